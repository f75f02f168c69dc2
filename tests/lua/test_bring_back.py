"""bring_back.lua: instants that a clock wrote while it was ahead come back, and no others."""

from __future__ import annotations

import pytest

from support.store import NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script

T, U = b"t", b"u"
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
LATEST_MS = NOW_MS + MINUTE_MS
"""What the policy allows now."""


def waits(store: Scripts, timeline: bytes, base_ms: int, bound_ms: int | None = None) -> None:
    store.add(Rec(timeline, b"k", NOW_MS), base_ms=base_ms, bound_ms=base_ms if bound_ms is None else bound_ms)


def test_what_the_clock_put_off_comes_back_to_what_the_policy_allows(store: Scripts) -> None:
    waits(store, T, NOW_MS + HOUR_MS, LATEST_MS + HOUR_MS)
    assert store.bring_back(HOUR_MS, latest_ms=LATEST_MS) == (1, 1)
    assert store.schedule(T) == (LATEST_MS, LATEST_MS, 1)
    assert store.waiting() == {T: LATEST_MS}
    store.now_ms = LATEST_MS
    assert store.claim().timelines == [T]


@pytest.mark.parametrize("base_ms", [LATEST_MS, LATEST_MS + HOUR_MS + 1, NOW_MS + 24 * HOUR_MS])
def test_what_the_policy_allows_and_what_the_clock_cannot_have_put_off_stay(store: Scripts, base_ms: int) -> None:
    waits(store, T, base_ms)
    before = store.dump()
    assert store.bring_back(HOUR_MS, latest_ms=LATEST_MS)[1] == 0
    assert store.dump() == before


def test_a_digest_that_waits_for_another_attempt_has_a_limit_of_its_own(store: Scripts) -> None:
    for timeline, again_ms in ((T, NOW_MS + HOUR_MS), (U, NOW_MS + 2 * HOUR_MS)):
        waits(store, timeline, NOW_MS)
        claim = store.claim_one(timeline)
        store.opened(claim, f"id-{again_ms}")
        store.fail(claim, again_ms)
    limits = {"latest_ms": LATEST_MS, "latest_retry_ms": NOW_MS + HOUR_MS}
    assert store.bring_back(HOUR_MS, **limits) == (2, 1)
    assert store.waiting() == {T: NOW_MS + HOUR_MS, U: NOW_MS + HOUR_MS}
    assert store.bring_back(HOUR_MS, **limits) == (2, 0)


def test_so_many_in_one_call_and_those_that_stay_are_passed_over(store: Scripts) -> None:
    names = [b"%d" % number for number in range(7)]
    for number, name in enumerate(names):
        waits(store, name, NOW_MS + HOUR_MS + number)
    assert store.bring_back(HOUR_MS, latest_ms=LATEST_MS, most=3) == (3, 3)
    assert store.bring_back(HOUR_MS, latest_ms=LATEST_MS, most=3) == (3, 3)
    assert store.bring_back(HOUR_MS, latest_ms=LATEST_MS, passed=1, most=3) == (0, 0)
    assert store.bring_back(HOUR_MS, latest_ms=LATEST_MS, most=3) == (1, 1)
    assert set(store.waiting().values()) == {LATEST_MS}


def test_a_timeline_without_a_schedule_comes_back_too(store: Scripts) -> None:
    """Only a loss of data can bring that about."""
    store.is_sound = False
    waits(store, T, NOW_MS + HOUR_MS)
    store.command("DEL", store.key("schedule", "r"))
    assert store.bring_back(HOUR_MS, latest_ms=LATEST_MS) == (1, 1)
    assert store.waiting() == {T: LATEST_MS}


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    waits(store, T, NOW_MS + HOUR_MS)
    store.bring_back(HOUR_MS, latest_ms=LATEST_MS)
    assert store.watch is not None
    assert store.watch.touched["bring_back"] == {*store.keys("waiting schedule heads", "r"), store.key("agenda")}
