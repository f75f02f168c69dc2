"""explanation.py says when a timeline goes out; then the real scripts deliver it, in time that the test gives them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from nsqdigest.base.quiet_hours import Window
from nsqdigest.config import Policy
from nsqdigest.store.explanation import Explanation, Terms, explain
from nsqdigest.store.holds import Hold
from nsqdigest.store.inspection import Place, Read, known_of
from nsqdigest.store.schedule import EXEMPT_MS, Plan
from nsqdigest.trial.simulator import Event
from support.policies import HOUR_MS, MINUTE_MS, stories
from support.policy_daemon import PolicyDaemon
from support.settings import POLICY, SINK
from support.store import LEASE_MS, Rec, Scripts, store

pytestmark = pytest.mark.script
__all__ = ["store"]

TERMS_SINK = replace(SINK, retry_base_ms=MINUTE_MS, retry_cap_ms=20 * MINUTE_MS)


def explained(store: Scripts, policy: Policy, timeline: bytes, hold: Hold | None = None) -> Explanation | None:
    """None: it is not there."""
    plan, now_ms = Plan(policy), store.now_ms
    assert now_ms is not None
    schedule, head = (store.command("HGET", store.key(kind, "r"), timeline) for kind in ("schedule", "heads"))
    if schedule is None:
        return None
    scores = [store.command("ZSCORE", store.key(kind, "r"), timeline) for kind in ("waiting", "leased")]
    waiting, leased = (None if score is None else b"%d" % float(score) for score in scores)
    read = Read(schedule, waiting, leased, head, (None, None, None), 0)
    known = known_of(Place(0, "r", timeline.decode()), now_ms, read, plan.increment_ms, plan.quiet)
    return explain(known, Terms(policy, TERMS_SINK), hold)


class Watched(PolicyDaemon):
    """Notes after each change when each timeline is said to go out, and compares at its delivery."""

    def __init__(self, store: Scripts, policy: Policy) -> None:
        super().__init__(store, policy)
        self.policy = policy
        self.said: dict[str, Explanation] = {}

    def note(self) -> None:
        for timeline in self.store.schedules():
            explanation = explained(self.store, self.policy, timeline)
            if explanation is not None:
                self.said[timeline.decode()] = explanation

    def claim(self) -> None:
        before = len(self.sent)
        super().claim()
        for timeline, at_ms, *_ in self.sent[before:]:
            assert self.said[timeline].due_ms == at_ms, self.said[timeline]
        self.note()


@given(story=stories(25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_a_timeline_goes_out_when_its_explanation_says(store: Scripts, story: tuple[Policy, list[Event]]) -> None:
    policy, events = story
    store.client.flushdb()
    daemon = Watched(store, policy)
    for number, event in enumerate(events):
        daemon.deliver_until(event.instant_ms - 1)
        daemon.file(event, number)
        daemon.note()
    daemon.deliver_until(None)
    assert daemon.sent


# -- what no policy says


NOW_MS = 1_795_075_200_000  # a Thursday, 09:00 in Berlin
QUIET = replace(POLICY, quiet=(Window(8 * 60, 10 * 60),), zone="Europe/Berlin")


def begun(store: Scripts, base_ms: int, *, urgent: bool = False) -> None:
    store.now_ms = NOW_MS
    store.add(Rec(b"a", b"k", 1, urgent=urgent), base_ms=base_ms, bound_ms=base_ms)


def failed(store: Scripts) -> None:
    begun(store, NOW_MS)
    claim = store.claim_one(b"a")
    store.open(claim, "id-1")
    store.fail(claim, NOW_MS + 5 * MINUTE_MS)


def put_back(store: Scripts) -> None:
    begun(store, NOW_MS - MINUTE_MS)
    claim = store.claim_one(b"a")
    store.fail(claim, claim.due_ms, posts=0)


def flushed(store: Scripts) -> None:
    begun(store, NOW_MS + HOUR_MS)
    assert store.flush(b"a") == "due"


def flushed_at_night(store: Scripts) -> None:
    begun(store, NOW_MS + HOUR_MS)
    assert store.flush(b"a", due=EXEMPT_MS) == "due"


def snoozed(store: Scripts) -> None:
    begun(store, NOW_MS + MINUTE_MS)
    assert store.hold(b"a", "snooze", NOW_MS + 30 * MINUTE_MS) == ["held", ""]


CASES = {
    "retry": (POLICY, failed, 5 * MINUTE_MS, "as attempt 2 of its digest"),
    "retry in quiet hours": (QUIET, failed, HOUR_MS, "when its quiet hours end"),
    "put back": (POLICY, put_back, -MINUTE_MS, ""),
    "put back in quiet hours": (QUIET, put_back, HOUR_MS, "when its quiet hours end"),
    "flushed": (POLICY, flushed, 0, ""),
    "flushed in quiet hours": (QUIET, flushed_at_night, 0, "exempt from its policy"),
    "urgent in quiet hours": (QUIET, lambda store: begun(store, NOW_MS, urgent=True), 0, "exempt from its policy"),
    "snoozed": (POLICY, snoozed, 30 * MINUTE_MS, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_what_operators_and_retries_do_is_explained(store: Scripts, case: str) -> None:
    policy, prepare, after_ms, cause = CASES[case]
    prepare(store)
    explanation = explained(store, policy, b"a")
    assert explanation is not None
    assert explanation.due_ms == NOW_MS + after_ms
    assert cause in explanation.sentence
    quiet = Plan(policy).quiet
    for now_ms, is_taken in ((explanation.due_ms - 1, False), (max(NOW_MS, explanation.due_ms), True)):
        if now_ms >= NOW_MS:
            store.now_ms = now_ms
            is_quiet = quiet is not None and quiet.end_ms(now_ms) is not None
            claimed = store.claim(routes=[("r", -1 if is_quiet else 1, 0)])
            assert claimed.timelines == [b"a"] * is_taken, now_ms


def test_a_leased_timeline_is_due_when_its_lease_ends(store: Scripts) -> None:
    begun(store, NOW_MS)
    store.claim_one(b"a")
    explanation = explained(store, POLICY, b"a")
    assert explanation is not None
    assert explanation.due_ms is None
    assert explanation.reasons[0].at_ms == NOW_MS + LEASE_MS
