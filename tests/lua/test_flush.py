"""flush.lua: a waiting timeline is due now, whatever its policy or a retry says."""

from __future__ import annotations

import pytest

from support.store import NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"
LATER_MS = NOW_MS + 3_600_000


def begin(store: Scripts, base_ms: int = LATER_MS, bound_ms: int = 2 * LATER_MS) -> None:
    store.add(Rec(T, b"k", NOW_MS), increment_ms=30_000, base_ms=base_ms, bound_ms=bound_ms)


def test_what_waits_is_due_now(store: Scripts) -> None:
    begin(store)
    assert store.flush(T) == "due"
    assert store.claim(routes=[("r", 1, 30_000)]).claims[0].due_ms == NOW_MS


def test_records_that_come_meanwhile_do_not_postpone_it(store: Scripts) -> None:
    begin(store)
    store.flush(T)
    store.add(*(Rec(T, b"%d" % n, NOW_MS) for n in range(9)), increment_ms=30_000)
    assert store.claim(routes=[("r", 1, 30_000)]).timelines == [T]


def test_records_that_came_before_do_not_postpone_it(store: Scripts) -> None:
    begin(store, base_ms=NOW_MS - 1)
    store.flush(T)
    assert store.claim(routes=[("r", 1, 30_000)]).timelines == [T]


def test_one_without_records_since_its_digest_is_due_too(store: Scripts) -> None:
    begin(store, NOW_MS, NOW_MS)
    store.opened(claim := store.claim_one(T))
    store.close(claim, base_ms=LATER_MS)
    assert store.flush(T) == "due"
    assert store.open(store.claim_one(T)) == "empty"


def test_a_retry_is_due_now_with_its_snapshot(store: Scripts) -> None:
    begin(store, NOW_MS, NOW_MS)
    store.opened(claim := store.claim_one(T))
    store.fail(claim, LATER_MS)
    assert store.flush(T) == "due"
    again = store.opened(store.claim_one(T), "not taken")
    assert (again.word, again.id, again.attempts) == ("again", "id-1", 1)


def test_what_is_being_delivered_says_so_and_nothing_changes(store: Scripts) -> None:
    begin(store, NOW_MS, NOW_MS)
    store.claim_one(T)
    before = store.dump()
    assert store.flush(T) == "leased"
    assert store.dump() == before


def test_what_is_unknown_says_so_and_nothing_changes(store: Scripts) -> None:
    assert store.flush(T) == "unknown"
    assert store.dump() == {}


@pytest.mark.parametrize("bound_ms", [NOW_MS, NOW_MS - 5])
def test_what_is_due_already_stays_as_it_is(store: Scripts, bound_ms: int) -> None:
    begin(store, NOW_MS - 9, bound_ms)
    before = store.dump()
    assert store.flush(T) == "due"
    assert store.dump() == before


def test_said_twice_the_second_changes_nothing(store: Scripts) -> None:
    begin(store)
    store.flush(T)
    before = store.dump()
    store.now_ms = NOW_MS + 5
    assert store.flush(T) == "due"
    assert store.dump() == before


def test_records_and_ledger_are_left_alone(store: Scripts) -> None:
    begin(store)
    before = store.open_set(T), store.ledger(), store.timeline_count()
    store.flush(T)
    assert (store.open_set(T), store.ledger(), store.timeline_count()) == before
    assert store.schedule(T) == (NOW_MS, NOW_MS, 1)


def test_the_others_wait_on(store: Scripts) -> None:
    begin(store)
    store.add(Rec(b"other", b"k", NOW_MS), base_ms=LATER_MS)
    store.flush(T)
    assert store.waiting() == {T: NOW_MS, b"other": LATER_MS}


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    store.now_ms = None
    seconds, microseconds = store.command("TIME")
    now_ms = seconds * 1000 + microseconds // 1000
    store.add(Rec(T, b"k", now_ms), base_ms=now_ms + 3_600_000)
    store.flush(T)
    assert 0 <= store.waiting()[T] - now_ms < 10_000


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    begin(store)
    store.flush(T)
    assert store.watch is not None
    assert store.watch.touched["flush"] == {*store.keys("waiting schedule", "r"), store.key("agenda")}
