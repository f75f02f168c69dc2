"""hold.lua: a timeline is muted or snoozed until an instant, and that ends; and what add does with muted records."""

from __future__ import annotations

import pytest

from support.cutting_off import CutOff, Interruptible
from support.store import EXEMPT_MS, NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script

T, U = b"t", b"u"
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
UNTIL_MS = NOW_MS + HOUR_MS


def rec(key: bytes, timeline: bytes = T, *, muted: bool = False, urgent: bool = False) -> Rec:
    return Rec(timeline, key, NOW_MS, b"{}", muted=muted, urgent=urgent)


def waiting(store: Scripts, base_ms: int = NOW_MS + MINUTE_MS, bound_ms: int = NOW_MS + 2 * MINUTE_MS) -> None:
    store.add(rec(b"a"), base_ms=base_ms, bound_ms=bound_ms)


# -- snooze


def test_a_snoozed_timeline_is_due_at_the_end_and_not_before(store: Scripts) -> None:
    waiting(store)
    assert store.hold(T, "snooze", UNTIL_MS, by="ada l") == ["held", ""]
    assert store.schedule(T) == (UNTIL_MS, UNTIL_MS, 1)
    assert store.waiting() == {T: UNTIL_MS}
    assert store.holds() == {
        b"r:t": b"snooze %d %d %d %d ada l" % (UNTIL_MS, NOW_MS, NOW_MS + MINUTE_MS, NOW_MS + 2 * MINUTE_MS)
    }
    store.now_ms = UNTIL_MS - 1
    assert store.claim().timelines == []
    store.now_ms = UNTIL_MS
    assert store.claim().timelines == [T]


def test_it_expires_by_itself(store: Scripts) -> None:
    store.hold(T, "snooze", NOW_MS + MINUTE_MS)
    store.hold(U, "mute", UNTIL_MS)
    store.hold(T, "")
    assert MINUTE_MS < store.command("PTTL", store.key("holds")) <= HOUR_MS


def test_what_is_over_is_removed_with_the_next(store: Scripts) -> None:
    store.hold(T, "mute", NOW_MS + MINUTE_MS)
    store.now_ms = NOW_MS + MINUTE_MS
    assert store.hold(U, "mute", UNTIL_MS, most=1) == ["held", ""]
    assert list(store.holds()) == [b"r:u"]
    assert store.hold(T, "") == ["unknown"]


def test_what_comes_meanwhile_waits_with_it(store: Scripts) -> None:
    waiting(store)
    store.hold(T, "snooze", UNTIL_MS)
    store.add(rec(b"b"), rec(b"c"))
    assert store.schedule(T) == (UNTIL_MS, UNTIL_MS, 3)


def test_one_that_is_due_after_the_end_is_left_as_it_is(store: Scripts) -> None:
    waiting(store, UNTIL_MS + 1, UNTIL_MS + 2)
    store.hold(T, "snooze", UNTIL_MS)
    assert store.schedule(T) == (UNTIL_MS + 1, UNTIL_MS + 2, 1)
    assert store.waiting() == {T: UNTIL_MS + 1}


def test_its_end_lets_it_be_due_as_before(store: Scripts) -> None:
    waiting(store)
    store.hold(T, "snooze", UNTIL_MS)
    store.add(rec(b"b"))
    assert store.hold(T, "") == ["ended", "snooze"]
    assert store.schedule(T) == (NOW_MS + MINUTE_MS, NOW_MS + 2 * MINUTE_MS, 2)
    assert store.waiting() == {T: NOW_MS + MINUTE_MS}
    assert store.holds() == {}
    assert store.hold(T, "") == ["unknown"]


def test_an_urgent_one_stays_so(store: Scripts) -> None:
    store.add(rec(b"a", urgent=True))
    store.hold(T, "snooze", UNTIL_MS)
    assert store.waiting() == {T: UNTIL_MS}
    store.hold(T, "")
    assert store.schedule(T) == (EXEMPT_MS, EXEMPT_MS, 1)


def test_its_end_does_not_undo_what_others_did_meanwhile(store: Scripts) -> None:
    waiting(store)
    store.hold(T, "snooze", UNTIL_MS)
    store.flush(T)
    store.hold(T, "")
    assert store.schedule(T) == (NOW_MS, NOW_MS, 1)


def test_one_whose_claim_was_put_off_stays_where_it_is(store: Scripts) -> None:
    store.hold(T, "snooze", UNTIL_MS)
    store.add(rec(b"a"))
    store.fail(store.claim_one(T), NOW_MS + 10, 0)
    store.hold(T, "")
    assert store.schedule(T) == (NOW_MS + 10, NOW_MS + 10, 1)


@pytest.mark.parametrize("state", ["unknown", "leased"])
def test_one_that_does_not_wait_is_only_noted(store: Scripts, state: str) -> None:
    if state == "leased":
        store.add(rec(b"a"))
        store.claim_one(T)
    before = store.schedules("r")
    assert store.hold(T, "snooze", UNTIL_MS) == ["held", ""]
    assert store.schedules("r") == before
    assert store.waiting() == {}
    assert store.hold(T, "") == ["ended", "snooze"]
    assert store.schedules("r") == before


def test_a_second_snooze_takes_the_place_of_the_first(store: Scripts) -> None:
    waiting(store)
    store.hold(T, "snooze", UNTIL_MS)
    assert store.hold(T, "snooze", NOW_MS + 90_000) == ["held", "snooze"]
    assert store.schedule(T) == (NOW_MS + 90_000, NOW_MS + 2 * MINUTE_MS, 1)
    store.hold(T, "")
    assert store.schedule(T) == (NOW_MS + MINUTE_MS, NOW_MS + 2 * MINUTE_MS, 1)


def test_a_mute_takes_the_place_of_a_snooze_and_ends_it(store: Scripts) -> None:
    waiting(store)
    store.hold(T, "snooze", UNTIL_MS)
    assert store.hold(T, "mute", UNTIL_MS) == ["held", "snooze"]
    assert store.schedule(T) == (NOW_MS + MINUTE_MS, NOW_MS + 2 * MINUTE_MS, 1)
    assert store.hold(T, "") == ["ended", "mute"]


def test_there_are_only_so_many(store: Scripts) -> None:
    store.hold(T, "mute", UNTIL_MS, most=1)
    before = store.dump()
    assert store.hold(U, "snooze", UNTIL_MS, most=1) == ["full"]
    assert store.dump() == before
    assert store.hold(T, "snooze", UNTIL_MS, most=1) == ["held", "mute"]


@pytest.mark.parametrize("what", ["snooze", ""])
def test_cut_off_after_any_write_it_is_done_when_it_is_asked_again(store: Scripts, what: str) -> None:
    for writes in range(1, 12):
        store.client.flushdb()
        interruptible = Interruptible(store.client)
        waiting(interruptible)
        interruptible.hold(U, "mute", NOW_MS + 1)
        if what == "":
            interruptible.hold(T, "snooze", UNTIL_MS)
        interruptible.cut_off_after(writes)
        try:
            interruptible.hold(T, what, UNTIL_MS)
        except CutOff:
            interruptible.hold(T, what, UNTIL_MS)
            at_ms, latest_ms = (UNTIL_MS, UNTIL_MS) if what else (NOW_MS + MINUTE_MS, NOW_MS + 2 * MINUTE_MS)
            assert interruptible.schedule(T) == (at_ms, latest_ms, 1)
            (score_ms,) = interruptible.waiting().values()
            assert score_ms <= at_ms
            if what:
                interruptible.hold(T, "")
                assert interruptible.schedule(T) == (NOW_MS + MINUTE_MS, NOW_MS + 2 * MINUTE_MS, 1)
        else:
            assert writes > 3
            return
    raise AssertionError("more writes than expected")


# -- mute


def test_a_muted_record_is_counted_and_not_kept(store: Scripts) -> None:
    answer = store.add(rec(b"a", muted=True, urgent=True), rec(b"b", U))
    assert (answer.added, answer.muted, answer.due_at_once, answer.counted) == (2, 1, [1], 2)
    assert store.schedule(T) is None
    assert (store.open_set(T), list(store.open_set(U))) == ({}, [b"b"])
    ledger = store.ledger()
    assert (ledger["added"], ledger["dropped:muted"], ledger["open"]) == (2, 1, 1)


def test_a_known_timeline_keeps_what_it_has(store: Scripts) -> None:
    waiting(store)
    before = store.schedules("r")
    store.add(rec(b"a", muted=True), rec(b"b", muted=True, urgent=True))
    assert store.schedules("r") == before
    assert store.ledger()["dropped:muted"] == 2


def test_beyond_the_limit_of_timelines_it_is_muted_all_the_same(store: Scripts) -> None:
    store.add(rec(b"a", U), limit=1)
    assert store.add(rec(b"a", muted=True), limit=1).counts == {"added": 1}
