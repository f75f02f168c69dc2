"""A policy in the store does what the simulator predicts: the real scripts, in time that the test gives them."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings

from nsqdigest.config import Policy
from nsqdigest.store.schedule import Plan
from nsqdigest.trial.simulator import Event, SimulatedDigest, Simulator
from support.policies import CAPACITY, policies, streams, zoned_policies, zoned_streams
from support.store import Rec, Scripts, store

pytestmark = pytest.mark.script
__all__ = ["store"]


class Daemon:
    """Claims as the timer does: when something may be due, and of a route with quiet hours only what is exempt."""

    def __init__(self, store: Scripts, policy: Policy) -> None:
        self._store = store
        self._plan = Plan(policy)
        self._ids = count()
        self.sent: list[tuple[str, int, int, int, int]] = []

    def file(self, event: Event, number: int) -> None:
        self._store.now_ms = event.instant_ms
        plan = self._plan.of_zone(event.zone)
        first, anew = plan.beginning(event.instant_ms), plan.anew(event.instant_ms) or ("", "")
        key = (event.key or str(number)).encode()
        record = Rec(event.timeline.encode(), key, event.instant_ms * 1000 + number, b"%d" % number)
        self._store.add(
            record, capacity=CAPACITY, increment_ms=self._plan.increment_ms, base_ms=first.base_ms,
            bound_ms=first.bound_ms, zone=(event.zone, *anew) if self._plan.zone_template else None,
        )  # fmt: skip

    def deliver_until(self, until_ms: int | None) -> None:
        """All that goes out by then."""
        while (now_ms := self._next_ms()) is not None and (until_ms is None or now_ms <= until_ms):
            self._store.now_ms = now_ms
            self._claim()

    def _next_ms(self) -> int | None:
        """As the agenda says it."""
        scores = self._store.waiting()
        if not scores:
            return None
        first_ms = min(scores.values())
        first_ms = first_ms if self._plan.zone_template else self._plan.release_ms(first_ms)
        return max(first_ms, self._store.now_ms or 0)

    def _claim(self) -> None:
        now_ms = self._store.now_ms
        assert now_ms is not None
        is_zoned, quiet = bool(self._plan.zone_template), self._plan.quiet
        is_quiet = not is_zoned and quiet is not None and quiet.end_ms(now_ms) is not None
        for claim in self._store.claim(routes=[("r", -1 if is_quiet else 1, self._plan.increment_ms)]).claims:
            plan = self._plan.of_zone(self._store.head(claim.timeline).get(b"zone", b"").decode())
            if is_zoned and plan.quiet is not None and (end_ms := plan.quiet.end_ms(now_ms)):
                self._store.fail(claim, end_ms, posts=0)
                continue
            opened = self._store.open(claim, f"id-{next(self._ids)}", plan.earliest_next_ms(now_ms))
            if isinstance(opened, str):
                assert opened == "empty"
                continue
            after = plan.after_digest(opened.iteration, now_ms, opened.next_earliest_ms)
            self._store.close(
                claim, opened.id, increment_ms=self._plan.increment_ms, base_ms=after.base_ms, bound_ms=after.bound_ms
            )
            self.sent.append((claim.timeline.decode(), now_ms, opened.iteration, opened.total, opened.superseded))


@given(policy=policies(), events=streams(25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_the_store_delivers_what_the_simulator_predicts(store: Scripts, policy: Policy, events: list[Event]) -> None:
    check(store, policy, events)


@given(policy=zoned_policies(), events=zoned_streams(25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_it_does_so_where_timelines_have_zones_of_their_own(
    store: Scripts, policy: Policy, events: list[Event]
) -> None:
    check(store, policy, events)


def check(store: Scripts, policy: Policy, events: list[Event]) -> None:
    store.client.flushdb()
    simulator, daemon, predicted = Simulator(Plan(policy), CAPACITY), Daemon(store, policy), list[SimulatedDigest]()
    for number, event in enumerate(events):
        predicted += simulator.add(event)
        daemon.deliver_until(event.instant_ms - 1)
        daemon.file(event, number)
    predicted += simulator.finish()
    daemon.deliver_until(None)
    expected = [(each.timeline, each.at_ms, each.iteration, each.records, each.superseded) for each in predicted]
    assert sorted(daemon.sent) == sorted(expected)
    assert store.waiting() == {}
