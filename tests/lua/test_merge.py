"""open.lua where a policy says on_retry = "merge": a digest left over takes newer records in, under a new id."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Claim, Opened, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"
CAPACITY = 10


def merged(store: Scripts, digest_id: str = "id-2", capacity: int = CAPACITY, token: str = "again") -> Opened:
    return store.opened(store.claim_one(T, token=token), digest_id, [NOW_MS + 1000, NOW_MS + 2000], capacity)


@pytest.fixture
def left_over(store: Scripts) -> Scripts:
    """A digest of three records, whose first attempt failed."""
    store.add(*(Rec(T, b"%d" % n, NOW_MS + n, b"old") for n in range(3)))
    opened = store.opened(claim := store.claim_one(T), "id-1", merge_capacity=CAPACITY)
    assert opened.word == "opened"
    store.fail(claim, NOW_MS)
    return store


def test_the_union_goes_out_under_a_new_id(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"new", NOW_MS + 9, b"new"))
    opened = merged(left_over)
    assert (opened.word, opened.id, opened.total) == ("merged", "id-2", 4)
    assert left_over.snapshot(T).keys() == {b"0", b"1", b"2", b"new"}
    assert left_over.open_set(T) == {}


def test_without_newer_records_it_is_the_same_digest(left_over: Scripts) -> None:
    frozen = left_over.snapshot(T)
    opened = merged(left_over)
    assert (opened.word, opened.id, opened.attempts, opened.tries) == ("again", "id-1", 1, 1)
    assert left_over.snapshot(T) == frozen


def test_under_its_own_id_it_takes_nothing_in(left_over: Scripts) -> None:
    """The call was sent again, and the first one is carried out last: by now it may have been sent."""
    frozen = left_over.snapshot(T)
    claim = left_over.claim_one(T, token="again")
    left_over.add(Rec(T, b"new", NOW_MS + 9, b"new"))
    opened = left_over.opened(claim, "id-1", merge_capacity=CAPACITY)
    assert (opened.word, opened.id, opened.total) == ("again", "id-1", 3)
    assert left_over.snapshot(T) == frozen


def test_where_the_policy_freezes_it_newer_records_do_not_matter(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"new", NOW_MS + 9))
    assert merged(left_over, capacity=0).id == "id-1"
    assert left_over.open_set(T).keys() == {b"new"}


def test_of_two_with_the_same_key_the_newer_stays(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"0", NOW_MS + 9, b"newer"), Rec(T, b"2", NOW_MS, b"older"))
    opened = merged(left_over)
    expected = {b"0": (NOW_MS + 9, b"newer"), b"1": (NOW_MS + 1, b"old"), b"2": (NOW_MS + 2, b"old")}
    assert left_over.snapshot(T) == expected
    assert (opened.total, opened.superseded) == (3, 2)


@pytest.mark.parametrize(("value", "stays"), [(b"older", b"older"), (b"ol", b"old"), (b"old", b"old")])
def test_of_equal_timestamps_the_larger_value_stays(left_over: Scripts, value: bytes, stays: bytes) -> None:
    left_over.add(Rec(T, b"0", NOW_MS, value))
    merged(left_over)
    assert left_over.snapshot(T)[b"0"] == (NOW_MS, stays)


def test_the_ledger_balances(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"0", NOW_MS + 9), Rec(T, b"new", NOW_MS + 9))
    merged(left_over)
    assert left_over.ledger() == {"added": 5, "snapshots": 4, "superseded": 1}


@pytest.mark.parametrize("capacity", [1, 3, 4])
def test_of_more_than_its_capacity_the_newest_stay(left_over: Scripts, capacity: int) -> None:
    left_over.add(Rec(T, b"1", NOW_MS + 7), Rec(T, b"new", NOW_MS + 9), Rec(T, b"oldest", NOW_MS - 9))
    opened = merged(left_over, capacity=capacity)
    newest = [b"new", b"1", b"2", b"0", b"oldest"][:capacity]
    assert left_over.snapshot(T).keys() == set(newest)
    assert (opened.total, opened.superseded, opened.over_capacity) == (capacity, 1, 5 - capacity)
    assert left_over.ledger()["dropped:capacity"] == 5 - capacity


def test_what_the_first_told_as_lost_is_told_with_what_was_lost_since(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1), Rec(T, b"k", 2), Rec(T, b"l", 3), capacity=1)
    first = store.opened(claim := store.claim_one(T), "id-1")
    assert (first.superseded, first.over_capacity) == (1, 1)
    store.fail(claim, NOW_MS)
    store.add(Rec(T, b"m", 4), Rec(T, b"m", 5), Rec(T, b"n", 6), capacity=1)
    opened = merged(store, capacity=1)
    assert (opened.superseded, opened.over_capacity, opened.total) == (2, 3, 1)


def test_the_iteration_is_not_raised(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"new", NOW_MS))
    opened = merged(left_over)
    assert (opened.iteration, opened.next_earliest_ms) == (1, NOW_MS + 1000)


def test_attempts_are_of_the_new_id_and_tries_and_age_of_all_of_it(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"new", NOW_MS))
    left_over.now_ms = NOW_MS + 50
    opened = merged(left_over)
    assert (opened.attempts, opened.opened_ms) == (0, NOW_MS + 50)
    assert (opened.tries, opened.since_ms) == (1, NOW_MS)


def test_a_deferred_try_does_not_count(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"new", NOW_MS))
    merged(left_over)
    left_over.fail(Claim("r", T, NOW_MS, "again"), NOW_MS, posts=0)
    opened = merged(left_over)
    assert (opened.attempts, opened.tries) == (0, 1)


def test_after_it_was_closed_the_next_digest_counts_from_its_own_beginning(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"new", NOW_MS))
    merged(left_over)
    left_over.close(Claim("r", T, NOW_MS, "again"), "id-2", base_ms=NOW_MS)
    left_over.add(Rec(T, b"next", NOW_MS))
    left_over.now_ms = NOW_MS + 70
    opened = merged(left_over, "id-3")
    assert (opened.word, opened.iteration, opened.since_ms, opened.tries) == ("opened", 2, NOW_MS + 70, 0)


def test_it_may_merge_again_and_again(left_over: Scripts) -> None:
    for n in range(3, 6):
        left_over.add(Rec(T, b"%d" % n, NOW_MS + n))
        opened = merged(left_over, f"id-{n}")
        left_over.fail(Claim("r", T, NOW_MS, "again"), NOW_MS)
        assert (opened.word, opened.id, opened.total, opened.tries) == ("merged", f"id-{n}", n + 1, n - 2)


def test_the_schedule_counts_no_records_any_more(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"new", NOW_MS))
    merged(left_over)
    assert left_over.schedule(T) == (NOW_MS, NOW_MS, 0)


def test_a_worker_that_held_the_first_can_neither_close_nor_bury_the_union(left_over: Scripts) -> None:
    left_over.opened(stale := left_over.claim_one(T, token="stale"), "not taken")
    left_over.add(Rec(T, b"new", NOW_MS))
    left_over.now_ms = NOW_MS + LEASE_MS
    left_over.maintenance()
    assert merged(left_over).word == "merged"
    before = left_over.dump()
    assert left_over.close(stale, "id-1") == left_over.close(stale, "id-2") == "stale"
    assert left_over.bury(stale, "id-1") == ("stale", None)
    assert left_over.open(stale, merge_capacity=CAPACITY) == "stale"
    assert left_over.dump() == before


def test_its_own_worker_closes_it_under_the_new_id_only(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"new", NOW_MS))
    merged(left_over)
    claim = Claim("r", T, NOW_MS, "again")
    assert left_over.close(claim, "id-1") == "stale"
    assert left_over.close(claim, "id-2") == "closed"
    assert left_over.ledger() == {"added": 4, "delivered": 4}


def test_a_thousand_newer_records_are_merged(store: Scripts) -> None:
    store.watch = None
    for start in (0, 500, 1000):
        store.add(*(Rec(T, b"%d" % n, NOW_MS + n) for n in range(start, start + 500)), capacity=5000)
    store.opened(claim := store.claim_one(T), "id-1")
    store.fail(claim, NOW_MS)
    for start in (1000, 1500):
        store.add(*(Rec(T, b"%d" % n, NOW_MS + 2 * n) for n in range(start, start + 500)), capacity=5000)
    opened = merged(store, capacity=1999)
    assert (opened.total, opened.superseded, opened.over_capacity) == (1999, 500, 1)
    assert store.snapshot(T) == {b"%d" % n: (NOW_MS + n + n * (n >= 1000), b"{}") for n in range(1, 2000)}
    assert store.ledger() == {"added": 2500, "snapshots": 1999, "superseded": 500, "dropped:capacity": 1}


def test_a_newer_record_whose_value_is_gone_does_not_take_the_place_of_one_that_is_whole(left_over: Scripts) -> None:
    left_over.is_sound = False
    left_over.add(Rec(T, b"0", NOW_MS + 9), Rec(T, b"new", NOW_MS + 9))
    left_over.command("DEL", left_over.key("values", "r", T))
    assert merged(left_over).total == 4
    assert left_over.command("HGET", left_over.key("digest-values", "r", T), b"0") == b"old"


def test_every_kind_of_key_it_touches(left_over: Scripts) -> None:
    left_over.add(Rec(T, b"0", NOW_MS), Rec(T, b"new", NOW_MS + 9))
    assert left_over.watch is not None
    left_over.watch.touched.clear()
    merged(left_over, capacity=2)
    expected = {
        *left_over.keys("waiting leased tokens schedule heads losses ledger", "r"),
        left_over.key("agenda"),
        *left_over.keys("set values digest digest-values", "r", T),
    }
    assert left_over.watch.touched["open"] == expected


# -- bounded work


def large(store: Scripts, records: int, first: int = 0) -> None:
    for start in range(first, first + records, 500):
        block = range(start, min(start + 500, first + records))
        store.add(*(Rec(T, b"%d" % n, NOW_MS + n) for n in block), capacity=20_000)


@pytest.mark.parametrize(("newer", "word"), [(2000, "merged"), (2001, "again")])
def test_it_takes_in_no_more_than_one_call_may_move_and_goes_out_as_it_was_else(
    left_over: Scripts, newer: int, word: str
) -> None:
    left_over.watch = None
    large(left_over, newer, first=10)
    assert merged(left_over, capacity=20_000).word == word
    assert len(left_over.open_set(T)) == (0 if word == "merged" else newer)


def test_a_capacity_that_became_much_smaller_is_not_enforced_by_a_merge(store: Scripts) -> None:
    store.watch = None
    large(store, 2100)
    store.opened(claim := store.claim_one(T), "id-1", merge_capacity=CAPACITY)
    store.fail(claim, NOW_MS)
    store.add(Rec(T, b"new", NOW_MS))
    assert merged(store, capacity=CAPACITY).word == "again"
