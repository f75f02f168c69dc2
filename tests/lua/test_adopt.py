"""adopt.lua: a timeline goes over to another route, all its records into the open set there."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"


def begin(store: Scripts, records: int = 2, base_ms: int = NOW_MS) -> None:
    store.add(*(Rec(T, b"%d" % n, NOW_MS + n, b"old") for n in range(records)), base_ms=base_ms)


def under_way(store: Scripts, records: int = 2) -> Claim:
    begin(store, records)
    store.opened(claim := store.claim_one(T))
    return claim


def test_its_records_go_over(store: Scripts) -> None:
    begin(store)
    records = store.open_set(T)
    assert store.adopt(T, "new") == ("adopted", 2)
    assert store.open_set(T, "new") == records


def test_nothing_of_it_stays(store: Scripts) -> None:
    begin(store)
    store.adopt(T, "new")
    left = {name for name in store.dump() if name.split(b"}:")[1].split(b":")[1:2] == [b"r"]}
    assert left == {store.key("ledger", "r")}
    assert store.timeline_count() == 1


def test_both_ledgers_balance(store: Scripts) -> None:
    begin(store)
    store.adopt(T, "new")
    assert store.ledger() == {"added": 2, "dropped:adopted": 2}
    assert store.ledger("new") == {"added": 2, "open": 2}


def test_it_is_due_when_it_was_due(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS), base_ms=NOW_MS + 5, bound_ms=NOW_MS + 9)
    store.adopt(T, "new")
    assert store.schedule(T, "new") == (NOW_MS + 5, NOW_MS + 9, 1)
    assert store.waiting("new") == {T: NOW_MS + 5}


def test_a_leased_one_waits_again_and_whoever_had_it_is_stale(store: Scripts) -> None:
    claim = under_way(store)
    store.adopt(T, "new")
    assert store.waiting("new") == {T: NOW_MS}
    before = store.dump()
    assert store.open(claim) == store.renew(claim) == store.close(claim) == store.fail(claim, NOW_MS) == "stale"
    assert store.bury(claim) == ("stale", None)
    assert store.dump() == before


def test_a_digest_under_way_goes_out_under_a_new_id(store: Scripts) -> None:
    """Its body names the route, and one id has one body."""
    store.fail(under_way(store), NOW_MS + 5)
    store.add(Rec(T, b"new", NOW_MS + 9))
    assert store.adopt(T, "new") == ("adopted", 3)
    assert (store.snapshot(T), store.snapshot(T, "new")) == ({}, {})
    store.now_ms = NOW_MS + 5
    opened = store.opened(store.claim_one(T, "new"), "id-2")
    assert (opened.word, opened.id, opened.attempts, opened.total) == ("opened", "id-2", 0, 3)


def test_of_two_with_a_key_in_snapshot_and_open_set_the_newer_goes_over(store: Scripts) -> None:
    under_way(store, 1)
    store.add(Rec(T, b"0", NOW_MS + 9, b"newer"))
    store.adopt(T, "new")
    assert store.open_set(T, "new") == {b"0": (NOW_MS + 9, b"newer")}
    assert store.ledger("new") == {"added": 2, "open": 1, "superseded": 1}


@pytest.mark.parametrize(("is_under_way", "iteration"), [(False, 2), (True, 2)])
def test_the_iteration_goes_on(store: Scripts, is_under_way: bool, iteration: int) -> None:
    store.close(under_way(store), base_ms=NOW_MS)
    begin(store)
    if is_under_way:
        store.opened(store.claim_one(T), "id-2")
    store.adopt(T, "new")
    assert store.opened(store.claim_one(T, "new"), "id-3").iteration == iteration


def test_what_was_delivered_lately_is_not_shown_again(store: Scripts) -> None:
    store.close(under_way(store))
    memory = store.memory(T)
    store.adopt(T, "new")
    assert (store.memory(T), store.memory(T, "new")) == ({}, memory)
    assert 0 < store.command("PTTL", store.key("shown", "new", T)) <= 600_000
    assert store.add(Rec(T, b"0", NOW_MS, repeat=True), route="new").duplicates == 1


def test_what_was_lost_before_is_told_by_its_next_digest(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1), Rec(T, b"k", 2), Rec(T, b"l", 3), capacity=1)
    store.opened(store.claim_one(T))
    store.add(Rec(T, b"m", 4), Rec(T, b"m", 5), capacity=1)
    store.adopt(T, "new")
    told = store.opened(store.claim_one(T, "new"))
    assert (told.superseded, told.over_capacity) == (2, 1)


def test_more_than_the_other_route_keeps_the_newest_stay(store: Scripts) -> None:
    begin(store, 5)
    store.adopt(T, "new", capacity=2)
    assert store.open_set(T, "new").keys() == {b"3", b"4"}
    assert store.ledger("new") == {"added": 5, "open": 2, "dropped:capacity": 3}
    assert store.opened(store.claim_one(T, "new")).over_capacity == 3


def test_one_without_records_goes_over_too(store: Scripts) -> None:
    store.close(under_way(store), base_ms=NOW_MS + 7)
    assert store.adopt(T, "new") == ("adopted", 0)
    assert store.waiting("new") == {T: NOW_MS + 7}


# -- where the other route has one of that name


def test_the_sets_are_united_and_the_newer_of_two_stays(store: Scripts) -> None:
    begin(store, 3)
    store.add(Rec(T, b"0", NOW_MS + 9, b"theirs"), Rec(T, b"2", NOW_MS, b"theirs"), route="new", base_ms=NOW_MS + 50)
    store.adopt(T, "new")
    expected = {b"0": (NOW_MS + 9, b"theirs"), b"1": (NOW_MS + 1, b"old"), b"2": (NOW_MS + 2, b"old")}
    assert store.open_set(T, "new") == expected
    assert store.ledger("new") == {"added": 5, "open": 3, "superseded": 2}


@pytest.mark.parametrize(("mine", "theirs", "stays"), [(b"b", b"a", b"b"), (b"a", b"b", b"b"), (b"a", b"a", b"a")])
def test_of_equal_timestamps_the_larger_value_stays(store: Scripts, mine: bytes, theirs: bytes, stays: bytes) -> None:
    store.add(Rec(T, b"k", NOW_MS, mine))
    store.add(Rec(T, b"k", NOW_MS, theirs), route="new")
    store.adopt(T, "new")
    assert store.open_set(T, "new") == {b"k": (NOW_MS, stays)}


def test_its_own_schedule_stays_and_counts_the_records(store: Scripts) -> None:
    begin(store, 2)
    store.add(Rec(T, b"k", NOW_MS), route="new", base_ms=NOW_MS + 50, bound_ms=NOW_MS + 99)
    store.adopt(T, "new")
    assert store.schedule(T, "new") == (NOW_MS + 50, NOW_MS + 99, 3)
    assert store.timeline_count() == 1


def test_a_digest_under_way_there_is_left_alone(store: Scripts) -> None:
    begin(store)
    store.add(Rec(T, b"k", NOW_MS), route="new")
    store.opened(theirs := store.claim_one(T, "new", "theirs"), "theirs")
    before = store.snapshot(T, "new"), store.head(T, "new"), store.leased("new")
    store.adopt(T, "new")
    assert (store.snapshot(T, "new"), store.head(T, "new"), store.leased("new")) == before
    assert store.close(theirs, "theirs") == "closed"
    assert len(store.open_set(T, "new")) == 2


def test_both_memories_are_kept_as_long_as_the_longer(store: Scripts) -> None:
    store.close(under_way(store), remember_ms=600_000)
    store.add(Rec(T, b"k", NOW_MS), Rec(T, b"0", NOW_MS + 9), route="new")
    store.opened(claim := store.claim_one(T, "new"), "theirs")
    store.close(claim, "theirs", remember_ms=5_000)
    store.adopt(T, "new")
    assert store.memory(T, "new") == {b"0": NOW_MS + 9, b"1": NOW_MS + 1, b"k": NOW_MS}
    assert store.command("PTTL", store.key("shown", "new", T)) > 5_000


# -- else


def test_said_twice_the_second_knows_nothing_and_changes_nothing(store: Scripts) -> None:
    begin(store)
    store.adopt(T, "new")
    before = store.dump()
    assert store.adopt(T, "new") == ("unknown", None)
    assert store.dump() == before


def test_of_nothing_there_is_nothing_to_adopt(store: Scripts) -> None:
    assert store.adopt(T, "new") == ("unknown", None)
    assert store.dump() == {}


def test_a_thousand_records_go_over(store: Scripts) -> None:
    store.watch = None
    for half in (range(500), range(500, 1000)):
        store.add(*(Rec(T, b"%d" % n, NOW_MS + n) for n in half), capacity=5000)
    store.add(*(Rec(T, b"%d" % n, NOW_MS + 2 * n) for n in range(0, 1000, 2)), route="new", capacity=5000)
    store.adopt(T, "new", capacity=5000)
    assert store.open_set(T, "new") == {b"%d" % n: (NOW_MS + n * (2 - n % 2), b"{}") for n in range(1000)}
    # One record was there before, the very same: it is nothing that was added.
    assert store.ledger("new") == {"added": 1499, "open": 1000, "superseded": 499}


def test_a_record_whose_value_is_gone_stops_nobody(store: Scripts) -> None:
    store.is_sound = False
    begin(store)
    store.add(Rec(T, b"1", NOW_MS, b"theirs"), route="new")
    store.command("DEL", store.key("values", "r", T))
    assert store.adopt(T, "new") == ("adopted", 2)
    assert store.opened(store.claim_one(T, "new")).total == 2


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.close(under_way(store), base_ms=NOW_MS + LEASE_MS)
    store.add(Rec(T, b"0", NOW_MS + 9), Rec(T, b"1", NOW_MS + 9))
    store.now_ms = NOW_MS + LEASE_MS
    store.opened(store.claim_one(T), "id-2")
    store.add(Rec(T, b"0", NOW_MS + 10), Rec(T, b"0", NOW_MS + 11), Rec(T, b"2", NOW_MS), capacity=1)
    store.adopt(T, "new")
    assert store.watch is not None
    expected = {
        *store.keys("waiting leased tokens schedule heads losses ledger", "r"),
        *store.keys("set values digest digest-values shown ends", "r", T),
        store.key("count"),
        store.key("agenda"),
        store.key("holds"),
    }
    expected |= {*store.keys("waiting schedule heads losses ledger", "new"), *store.keys("set values shown", "new", T)}
    store.adopt(T, "new")
    touched = store.watch.touched["adopt"]
    assert touched == expected


def test_of_more_records_than_one_call_may_move_none_goes_over(store: Scripts) -> None:
    store.watch = None
    for start in range(0, 8_001, 500):
        block = range(start, min(start + 500, 8_001))
        store.add(*(Rec(T, b"%d" % n, NOW_MS + n) for n in block), capacity=20_000)
    before = store.dump()
    assert store.adopt(T, "new", capacity=20_000) == ("too-large", None)
    assert store.dump() == before
    store.opened(store.claim_one(T))
    before = store.dump()
    assert store.adopt(T, "new", capacity=20_000) == ("too-large", None)
    assert store.dump() == before


def test_who_is_held_stays_held(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS))
    store.hold(T, "snooze", NOW_MS + 3_600_000, by="ada")
    store.adopt(T, "new")
    (field,) = store.holds()
    assert field == b"new:" + T
    assert store.hold(T, "", route="new") == ["ended", "snooze"]
    assert store.waiting("new") == {T: NOW_MS}


def test_who_is_held_there_stays_held_as_it_was(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS))
    store.hold(T, "snooze", NOW_MS + 3_600_000, by="ada")
    store.hold(T, "mute", NOW_MS + 7_200_000, by="bob", route="new")
    store.adopt(T, "new")
    assert [(field, hold[:4]) for field, hold in store.holds().items()] == [(b"new:" + T, b"mute")]


def test_a_hold_there_that_is_over_holds_nobody_back(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS))
    store.hold(T, "mute", NOW_MS + 3_600_000, by="ada")
    store.hold(T, "snooze", NOW_MS + 60_000, by="bob", route="new")
    store.now_ms = NOW_MS + 120_000
    store.adopt(T, "new")
    assert [(field, hold[:4]) for field, hold in store.holds().items()] == [(b"new:" + T, b"mute")]


def test_one_that_is_over_goes_nowhere(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS))
    store.hold(T, "mute", NOW_MS + 60_000, by="ada")
    store.now_ms = NOW_MS + 120_000
    store.adopt(T, "new")
    assert store.holds() == {}
