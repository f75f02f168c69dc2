"""add.lua: records into timelines. It is a join: replayed, split or in another order, batches end the same."""

from __future__ import annotations

import itertools
import random

import pytest

from support.store import NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"
AWKWARD_NAMES = [
    b"a b", b":", b"t:", b"t:v", b"::i:r:t", b"{other:1}:x", b"}{", b"\xc3\xbc\xf0\x9f\x90\x99", b"%s *?[a]", b'"\\"',
]  # fmt: skip


def rec(key: bytes, age_ms: int = 0, value: bytes = b"{}", repeat: bool = False, timeline: bytes = T) -> Rec:
    return Rec(timeline, key, NOW_MS - age_ms, value, repeat)


def due_of(store: Scripts, increment_ms: int, timeline: bytes = T) -> int:
    """By the rule: min(base + increment * records, bound)."""
    schedule = store.schedule(timeline)
    assert schedule is not None
    base_ms, bound_ms, records = schedule
    return min(base_ms + increment_ms * records, bound_ms)


# -- what a record does


def test_a_first_record_begins_its_timeline(store: Scripts) -> None:
    answer = store.add(rec(b"k", 5, b"value"), base_ms=NOW_MS + 10, bound_ms=NOW_MS + 20)
    assert answer.counts == {"added": 1}
    assert store.open_set(T) == {b"k": (NOW_MS - 5, b"value")}
    assert store.schedule(T) == (NOW_MS + 10, NOW_MS + 20, 1)
    assert store.waiting() == {T: NOW_MS + 10}
    assert store.timeline_count() == 1


def test_it_answers_with_the_instant_it_worked_at(store: Scripts) -> None:
    assert store.add(rec(b"k")).now_ms == NOW_MS


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    store.now_ms = None
    seconds, microseconds = store.command("TIME")
    assert 0 <= store.add(rec(b"k")).now_ms - (seconds * 1000 + microseconds // 1000) < 10_000


def test_a_newer_record_takes_the_place_of_an_older_one_with_its_key(store: Scripts) -> None:
    store.add(rec(b"k", 5, b"old"))
    assert store.add(rec(b"k", 4, b"new")).counts == {"added": 1, "superseded": 1}
    assert store.open_set(T) == {b"k": (NOW_MS - 4, b"new")}


def test_an_older_record_changes_nothing_but_counts(store: Scripts) -> None:
    store.add(rec(b"k", 4, b"new"))
    assert store.add(rec(b"k", 5, b"z-old")).counts == {"added": 1, "superseded": 1}
    assert store.open_set(T) == {b"k": (NOW_MS - 4, b"new")}


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (b"", b"a"), (b"a", b"ab"), (b"B", b"a"), (b"a", b"\xc3\xa4"), (b"z", b"\xc3\xa4"), (b"\x00", b"\x00\x00"),
        (b"a\x00b", b"a\x01"), (b"\x7f", b"\x80"), (b"x\xfe", b"x\xff"), (b"10", b"9"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("capacity", [1, 2])
def test_of_equal_timestamps_the_larger_value_wins_bytewise(
    store: Scripts, smaller: bytes, larger: bytes, capacity: int
) -> None:
    for first, second in ((smaller, larger), (larger, smaller)):
        store.client.flushdb()
        store.add(rec(b"k", value=first), capacity=capacity)
        assert store.add(rec(b"k", value=second), capacity=capacity).counts == {"added": 1, "superseded": 1}
        assert store.open_set(T)[b"k"] == (NOW_MS, larger)


def all_but_ledger(store: Scripts) -> dict[bytes, bytes]:
    return {name: value for name, value in store.dump().items() if name != store.key("ledger", "r")}


def test_an_exact_copy_changes_nothing_and_is_counted_apart(store: Scripts) -> None:
    store.add(rec(b"k"), rec(b"l"))
    before, ledger = all_but_ledger(store), store.ledger()
    assert store.add(rec(b"l"), rec(b"k"), rec(b"k")).counts == {"repeated": 3}
    assert all_but_ledger(store) == before
    assert store.ledger() == ledger | {"repeated": 3}


def test_what_lost_is_remembered_for_the_next_digest(store: Scripts) -> None:
    store.add(rec(b"k", 5), rec(b"k", 4), rec(b"k", 6), capacity=1)
    store.add(rec(b"older", 9), rec(b"newer", 1), capacity=1)
    assert store.losses() == {b"s" + T: 2, b"c" + T: 2}


def test_timestamps_keep_every_digit(store: Scripts) -> None:
    largest = 2**53 - 1
    store.add(Rec(T, b"k", largest), Rec(T, b"l", 0), Rec(T, b"m", largest - 1))
    assert {key: at for key, (at, _) in store.open_set(T).items()} == {b"k": largest, b"l": 0, b"m": largest - 1}


def test_keys_and_values_are_opaque_bytes(store: Scripts) -> None:
    every_byte = bytes(range(256))
    store.add(rec(every_byte, value=every_byte[::-1]), rec(b"", value=b""))
    assert store.open_set(T) == {every_byte: (NOW_MS, every_byte[::-1]), b"": (NOW_MS, b"")}


# -- capacity


def test_a_timeline_keeps_exactly_its_newest_capacity_records(store: Scripts) -> None:
    ages = list(range(20))
    random.shuffle(ages)
    answer = store.add(*(rec(b"k%d" % age, age) for age in ages), capacity=7)
    assert set(store.open_set(T)) == {b"k%d" % age for age in range(7)}
    assert answer.counts == {"added": 20, "over_capacity": 13}
    assert store.ledger() == {"added": 20, "open": 7, "dropped:capacity": 13}


def test_a_full_timeline_refuses_an_older_newcomer_before_writing_it(store: Scripts) -> None:
    store.add(rec(b"a", 1), rec(b"b", 2), capacity=2)
    before = store.open_set(T), store.schedule(T), store.waiting()
    assert store.add(rec(b"c", 3), capacity=2).counts == {"added": 1, "over_capacity": 1}
    assert (store.open_set(T), store.schedule(T), store.waiting()) == before


def test_of_equally_old_records_the_ones_with_the_smaller_keys_stay(store: Scripts) -> None:
    for order in itertools.permutations([b"B", b"a", b"\xff"]):
        store.client.flushdb()
        store.add(*(rec(key) for key in order), capacity=2)
        assert set(store.open_set(T)) == {b"B", b"a"}


def test_a_full_timeline_renews_a_record_in_place(store: Scripts) -> None:
    store.add(rec(b"a", 1), rec(b"b", 9), capacity=2)
    assert store.add(rec(b"b", 0, b"new"), capacity=2).counts == {"added": 1, "superseded": 1}
    assert store.open_set(T) == {b"a": (NOW_MS - 1, b"{}"), b"b": (NOW_MS, b"new")}


def test_what_a_full_timeline_loses_moves_neither_count_nor_due(store: Scripts) -> None:
    store.add(rec(b"a", 1), rec(b"b", 2), capacity=2, increment_ms=7, bound_ms=NOW_MS + 1000)
    schedule, waiting = store.schedule(T), store.waiting()
    store.add(rec(b"c"), rec(b"d", 9), rec(b"b", 1), capacity=2, increment_ms=7, bound_ms=NOW_MS + 1000)
    assert (store.schedule(T), store.waiting()) == (schedule, waiting)


# -- a join


def variants(records: list[Rec]) -> list[list[list[Rec]]]:
    """The same records in other batches: at once, one by one, reversed, shuffled and split, everything twice."""
    shuffled = random.sample(records, len(records))
    middle = len(records) // 2
    return [
        [records],
        [[record] for record in records],
        [[record] for record in reversed(records)],
        [shuffled[:middle], shuffled[middle:]],
        [records, shuffled[:middle], records[::-1]],
    ]


@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_however_batches_are_cut_and_ordered_the_set_is_the_same(store: Scripts, capacity: int) -> None:
    records = [rec(random.choice([b"a", b"b", b"c", b"d", b"e"]), random.randrange(4), b"%d" % n) for n in range(24)]
    best: dict[bytes, tuple[float, bytes]] = {}
    for record in records:
        best[record.key] = max(best.get(record.key, (0, b"")), (record.timestamp_ms, record.value))
    newest = sorted(best, key=lambda key: (-best[key][0], key))[:capacity]
    for batches in variants(records):
        store.client.flushdb()
        for batch in batches:
            store.add(*batch, capacity=capacity, increment_ms=10, bound_ms=NOW_MS + 1000)
        assert store.open_set(T) == {key: best[key] for key in newest}
        assert due_of(store, 10) == NOW_MS + 10 * len(newest)


def test_replaying_what_is_kept_leaves_every_key_but_the_ledger_as_it_was(store: Scripts) -> None:
    names = [b"t", b"u", b"v"]
    records = [rec(b"%d" % n, n, timeline=names[n % 3]) for n in range(12)]
    store.add(*records, increment_ms=5, base_ms=NOW_MS - 50, bound_ms=NOW_MS + 9)
    before, ledger = all_but_ledger(store), store.ledger()
    for batches in variants(records):
        for batch in batches:
            store.add(*batch, increment_ms=5, base_ms=NOW_MS + 77, bound_ms=NOW_MS + 99)
    assert all_but_ledger(store) == before
    assert {**store.ledger(), "repeated": 0} == ledger | {"repeated": 0}


def test_a_refused_record_replayed_is_refused_again_and_nothing_else_moves(store: Scripts) -> None:
    records = [rec(b"a", 1), rec(b"b", 2), rec(b"c", 3)]
    store.add(*records, capacity=2)
    before = store.open_set(T), store.schedule(T), store.waiting()
    assert store.add(*records, capacity=2).counts == {"added": 1, "over_capacity": 1, "repeated": 2}
    assert (store.open_set(T), store.schedule(T), store.waiting()) == before


# -- when it is due


@pytest.mark.parametrize(
    ("increment_ms", "bound_after_ms", "records", "due_after_ms"),
    [(0, 0, 1, 0), (0, 50, 3, 0), (10, 50, 1, 10), (10, 50, 3, 30), (10, 50, 5, 50), (10, 50, 9, 50)],
)
def test_due_is_base_plus_increments_up_to_the_bound(
    store: Scripts, increment_ms: int, bound_after_ms: int, records: int, due_after_ms: int
) -> None:
    for n in range(records):
        store.add(rec(b"%d" % n), increment_ms=increment_ms, base_ms=NOW_MS, bound_ms=NOW_MS + bound_after_ms)
    assert due_of(store, increment_ms) == NOW_MS + due_after_ms
    assert store.waiting()[T] <= due_of(store, increment_ms)


def test_a_later_batch_does_not_bring_other_limits(store: Scripts) -> None:
    store.add(rec(b"k"), base_ms=NOW_MS + 10, bound_ms=NOW_MS + 20)
    store.add(rec(b"l"), base_ms=NOW_MS + 77, bound_ms=NOW_MS + 99)
    assert store.schedule(T) == (NOW_MS + 10, NOW_MS + 20, 2)


def test_timelines_that_begin_and_are_due_are_told(store: Scripts) -> None:
    store.add(rec(b"k", timeline=b"old"))
    answer = store.add(rec(b"k", timeline=b"new"), rec(b"l", timeline=b"old"), rec(b"k", timeline=b"another"))
    assert answer.due_at_once == [1, 3]


def test_a_timeline_that_begins_for_later_is_not_told(store: Scripts) -> None:
    assert store.add(rec(b"k"), base_ms=NOW_MS + 1).due_at_once == []
    assert store.add(rec(b"k", timeline=b"u"), increment_ms=1, bound_ms=NOW_MS + 9).due_at_once == []


# -- the limit on timelines


def test_beyond_the_limit_no_timeline_begins_and_those_there_go_on(store: Scripts) -> None:
    store.add(rec(b"k", timeline=b"a"), rec(b"k", timeline=b"b"), limit=2)
    answer = store.add(rec(b"k", timeline=b"c"), rec(b"l", timeline=b"c"), rec(b"l", timeline=b"a"), limit=2)
    assert answer.counts == {"added": 3, "over_timelines": 2}
    assert store.ledger() == {"added": 5, "open": 3, "dropped:timelines": 2}
    assert set(store.waiting()) == {b"a", b"b"}
    assert store.open_set(b"c") == {}


def test_the_limit_is_of_all_routes_together_and_exact_within_a_batch(store: Scripts) -> None:
    store.add(rec(b"k", timeline=b"a"), route="one", limit=3)
    answer = store.add(*(rec(b"k", timeline=b"%d" % n) for n in range(4)), route="two", limit=3)
    assert answer.counts == {"added": 4, "over_timelines": 2}
    assert store.timeline_count() == 3


# -- possible repeats


def test_a_repeat_of_what_the_digest_under_way_shows_is_a_duplicate(store: Scripts) -> None:
    store.add(rec(b"k", 5))
    store.opened(store.claim_one(T))
    before = store.snapshot(T)
    assert store.add(rec(b"k", 5, repeat=True), rec(b"k", 6, repeat=True)).counts == {"added": 2, "duplicates": 2}
    assert store.open_set(T) == {}
    assert store.snapshot(T) == before
    assert store.ledger() == {"added": 3, "snapshots": 1, "dropped:duplicate": 2}


def test_a_repeat_of_what_was_delivered_lately_is_a_duplicate(store: Scripts) -> None:
    store.add(rec(b"k", 5))
    store.opened(claim := store.claim_one(T))
    store.close(claim)
    assert store.add(rec(b"k", 5, repeat=True)).counts == {"added": 1, "duplicates": 1}
    assert store.open_set(T) == {}


def test_a_repeat_of_a_forgotten_timeline_does_not_begin_it_anew(store: Scripts) -> None:
    store.add(rec(b"k", 5))
    store.opened(claim := store.claim_one(T))
    store.close(claim, base_ms=NOW_MS)
    assert store.open(store.claim_one(T)) == "empty"
    answer = store.add(rec(b"k", 5, repeat=True))
    assert (answer.counts, answer.due_at_once) == ({"added": 1, "duplicates": 1}, [])
    assert store.timeline_count() == 0


def test_a_repeat_that_is_newer_than_what_was_shown_is_a_record(store: Scripts) -> None:
    store.add(rec(b"k", 5), rec(b"l", 5))
    store.opened(claim := store.claim_one(T))
    assert store.add(rec(b"k", 4, repeat=True)).counts == {"added": 1}
    store.close(claim)
    assert store.add(rec(b"l", 4, repeat=True)).counts == {"added": 1}
    assert set(store.open_set(T)) == {b"k", b"l"}


def test_a_repeat_of_what_is_only_in_the_open_set_is_an_exact_copy(store: Scripts) -> None:
    store.add(rec(b"k"))
    before = all_but_ledger(store)
    assert store.add(rec(b"k", repeat=True)).counts == {"repeated": 1}
    assert all_but_ledger(store) == before


def test_first_deliveries_are_not_looked_up(store: Scripts) -> None:
    store.add(rec(b"k", 5))
    store.opened(store.claim_one(T))
    answer = store.add(rec(b"k", 5), rec(b"k", 5, repeat=True))
    assert answer.counts == {"added": 2, "duplicates": 1}
    assert store.open_set(T) == {b"k": (NOW_MS - 5, b"{}")}


# -- while a digest is under way


def test_a_record_added_again_while_its_digest_is_out_survives_the_close(store: Scripts) -> None:
    store.add(rec(b"k", 5, b"shown"))
    store.opened(claim := store.claim_one(T))
    store.add(rec(b"k", 4, b"again"))
    assert store.snapshot(T) == {b"k": (NOW_MS - 5, b"shown")}
    assert store.close(claim) == "closed"
    assert store.open_set(T) == {b"k": (NOW_MS - 4, b"again")}


def test_what_comes_while_leased_waits_for_the_close(store: Scripts) -> None:
    store.add(rec(b"k"))
    store.claim_one(T)
    answer = store.add(rec(b"l"))
    assert (store.waiting(), answer.due_at_once) == ({}, [])


# -- names, sizes, the server


@pytest.mark.parametrize("route", ["r", "r.s", "-"])
def test_names_of_timelines_are_opaque_bytes(store: Scripts, route: str) -> None:
    store.add(*(rec(b"k", timeline=name, value=name) for name in AWKWARD_NAMES), route=route)
    for name in AWKWARD_NAMES:
        assert store.open_set(name, route) == {b"k": (NOW_MS, name)}
    assert set(store.waiting(route)) == set(AWKWARD_NAMES)


def test_routes_with_the_same_timelines_do_not_meet(store: Scripts) -> None:
    store.add(rec(b"k", value=b"one"), route="one")
    store.add(rec(b"k", value=b"two"), route="two")
    assert (store.open_set(T, "one")[b"k"][1], store.open_set(T, "two")[b"k"][1]) == (b"one", b"two")


def test_500_timelines_of_both_kinds_in_one_call(store: Scripts) -> None:
    records = [rec(b"k", timeline=b"%d" % n, repeat=n % 2 == 1) for n in range(500)]
    answer = store.add(*records)
    assert (answer.counts, len(answer.due_at_once)) == ({"added": 500}, 500)
    assert store.timeline_count() == 500


def test_500_records_and_a_mebibyte_in_one_call(store: Scripts) -> None:
    store.watch = None  # MONITOR is slow with large values
    value = random.randbytes(2200)
    assert store.add(*(rec(b"%d" % n, n, value) for n in range(500)), capacity=500).counts == {"added": 500}
    assert len(store.open_set(T)) == 500
    assert store.add(rec(b"large", value=bytes(1 << 20))).counts["added"] == 1


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.add(rec(b"k"))
    store.opened(claim := store.claim_one(T))
    store.close(claim)
    store.add(rec(b"k", 1), rec(b"k", 2), rec(b"l", 3, repeat=True), capacity=1)
    assert store.watch is not None
    assert store.watch.touched["add"] == {
        *store.keys("waiting schedule ledger losses", "r"),
        *map(store.key, ["count", "agenda"]),
        *store.keys("set values digest shown", "r", T),
    }


# -- filed again


@pytest.mark.parametrize("order", [1, -1])
def test_a_batch_filed_again_does_not_add_to_what_the_digest_tells_as_lost(store: Scripts, order: int) -> None:
    """The ledger counts what was written, replays too, and stays balanced; the digest tells of events."""
    batch = [rec(b"k", 4), rec(b"k", 3), rec(b"a", 2), rec(b"b", 1), rec(b"old", 5)]
    store.add(*batch, capacity=3)
    store.add(rec(b"c", 0), capacity=3)
    for _ in range(3):
        store.add(*(record._replace(repeat=True) for record in batch[::order]), capacity=3)
    opened = store.opened(store.claim_one(T))
    assert (opened.superseded, opened.over_capacity) == (1, 2)
    ledger = store.ledger()
    assert ledger["superseded"] + ledger["dropped:capacity"] == ledger["added"] - 3


def test_what_a_possible_repeat_takes_the_place_of_is_told_as_lost(store: Scripts) -> None:
    store.add(rec(b"k", 9), rec(b"a", 8), rec(b"b", 7), capacity=3)
    store.add(rec(b"k", 6, repeat=True), rec(b"new", 0, repeat=True), capacity=3)
    opened = store.opened(store.claim_one(T))
    assert (opened.superseded, opened.over_capacity) == (1, 1)
