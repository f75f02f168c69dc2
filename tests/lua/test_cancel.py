"""Records that end the record of their key: both go, unless a digest showed the key; late ones never come back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import redis

from support.cutting_off import CutOff, Interruptible
from support.store import EXEMPT_MS, NOW_MS, Added, Rec, Scripts

pytestmark = pytest.mark.script

T, U = b"t", b"u"
END, SILENT_END = 8, 24
ENDS = (600_000, 40)


def fires(at: int, key: bytes = b"k", *, timeline: bytes = T, **more: Any) -> Rec:
    return Rec(timeline, key, NOW_MS + at, b"fires", **more)


def ends(at: int, key: bytes = b"k", *, timeline: bytes = T, silently: bool = False, **more: Any) -> Rec:
    return Rec(timeline, key, NOW_MS + at, b"ended", end=SILENT_END if silently else END, **more)


def add(store: Scripts, *records: Rec, **more: Any) -> Added:
    return store.add(*records, ends=ENDS, **more)


def shown(store: Scripts) -> dict[bytes, tuple[int, bytes]]:
    return {key: (at - NOW_MS, value) for key, (at, value) in store.open_set(T).items()}


def deliver(store: Scripts) -> int:
    """What is open goes out. Returns how many were cancelled since the digest before, by its head."""
    store.opened(claim := store.claim_one(T), digest_id := f"id-{store.command('INCR', 'ids')}")
    head = store.head(T)
    assert store.close(claim, digest_id, base_ms=NOW_MS) == "closed"
    return int(head.get(b"cancelled", 0))


def is_balanced(store: Scripts) -> bool:
    ledger = store.ledger()
    counted = {name: number for name, number in ledger.items() if name not in {"added", "repeated"}}
    assert ledger.get("open", 0) == len(store.open_set(T))
    assert store.recount([T])[0][1] in {-1, len(store.open_set(T))}
    return bool(ledger.get("added", 0) == sum(counted.values()))


# -- what nobody has seen


def test_what_was_not_delivered_goes_with_its_end(store: Scripts) -> None:
    add(store, fires(1), fires(1, b"other"))
    assert add(store, ends(2)).counts == {"added": 1, "cancelled": 2}
    assert shown(store) == {b"other": (1, b"fires")}
    assert store.ledger() == {"added": 3, "open": 1, "dropped:cancelled": 2}
    assert deliver(store) == 2
    assert store.losses() == {}


def test_in_one_batch_too_and_a_timeline_that_would_begin_does_not(store: Scripts) -> None:
    assert add(store, fires(1), ends(2), ends(3), fires(1)).counts == {"added": 4, "cancelled": 4}
    assert store.schedule(T) is None
    assert (store.losses(), store.waiting()) == ({}, {})
    assert is_balanced(store)


def test_a_timeline_that_is_empty_then_sends_nothing(store: Scripts) -> None:
    add(store, fires(1))
    add(store, ends(2))
    assert store.open(store.claim_one(T)) == "empty"
    assert (store.schedule(T), store.losses(), store.timeline_count()) == (None, {}, 0)
    add(store, fires(1, repeat=True), fires(2))
    assert (store.schedule(T), store.losses()) == (None, {})
    assert is_balanced(store)


def test_an_end_alone_is_told_since_what_it_ends_may_have_been_shown_long_ago(store: Scripts) -> None:
    assert add(store, ends(2)).counts == {"added": 1}
    assert add(store, ends(3)).counts == {"added": 1, "superseded": 1}
    assert shown(store) == {b"k": (3, b"ended")}


def test_an_older_event_that_comes_after_its_end_takes_that_out(store: Scripts) -> None:
    add(store, ends(2))
    assert add(store, fires(1)).counts == {"added": 1, "cancelled": 2}
    assert shown(store) == {}
    assert add(store, ends(5)).counts == {"added": 1, "cancelled": 1}
    assert is_balanced(store)


def test_a_newer_event_counts(store: Scripts) -> None:
    add(store, fires(1), ends(2))
    assert add(store, fires(3)).counts == {"added": 1}
    assert add(store, ends(2, repeat=True)).counts == {"added": 1, "superseded": 1}
    assert shown(store) == {b"k": (3, b"fires")}
    assert is_balanced(store)


def test_of_equal_timestamps_the_end_counts_as_the_newer(store: Scripts) -> None:
    for order in itertools.permutations([fires(1), ends(1)]):
        store.client.flushdb()
        for record in order:
            add(store, record)
        assert shown(store) == {}


# -- what a digest showed


def test_the_end_of_what_was_delivered_is_told(store: Scripts) -> None:
    add(store, fires(1))
    deliver(store)
    assert add(store, ends(2), fires(1), fires(1, repeat=True)).counts == {
        "added": 3, "superseded": 1, "duplicates": 1,
    }  # fmt: skip
    assert shown(store) == {b"k": (2, b"ended")}
    assert deliver(store) == 0


def test_the_end_of_what_is_being_delivered_is_told_in_the_next_digest(store: Scripts) -> None:
    add(store, fires(1))
    store.opened(claim := store.claim_one(T))
    assert add(store, ends(2)).counts == {"added": 1}
    store.close(claim, base_ms=NOW_MS)
    assert shown(store) == {b"k": (2, b"ended")}


def test_of_equal_timestamps_the_end_of_what_was_delivered_is_told_once(store: Scripts) -> None:
    add(store, fires(1))
    deliver(store)
    assert add(store, ends(1)).counts == {"added": 1}
    assert add(store, ends(1)).counts == {"repeated": 1}
    deliver(store)
    assert add(store, ends(1, repeat=True)).counts == {"added": 1, "duplicates": 1}


def test_an_end_with_the_timestamp_of_what_was_shown_does_not_hide_a_later_one(store: Scripts) -> None:
    for order in itertools.permutations([ends(2), fires(4), ends(5)]):
        store.client.flushdb()
        add(store, fires(2))
        deliver(store)
        for record in order:
            add(store, record)
        assert shown(store) == {b"k": (5, b"ended")}
        assert is_balanced(store)


def test_a_reminder_of_what_was_delivered_gives_way_to_the_end(store: Scripts) -> None:
    for order in itertools.permutations([fires(2), fires(3), ends(4)]):
        store.client.flushdb()
        add(store, fires(1))
        deliver(store)
        for record in order:
            add(store, record)
        assert shown(store) == {b"k": (4, b"ended")}
        assert is_balanced(store)


def test_an_end_that_was_told_is_not_told_again(store: Scripts) -> None:
    add(store, fires(1))
    deliver(store)
    add(store, ends(2))
    deliver(store)
    for at in (3, 5, 7):
        assert add(store, ends(at)).counts == {"added": 1, "cancelled": 1}
    assert add(store, fires(6)).counts == {"added": 1, "cancelled": 1}
    assert add(store, fires(8)).counts == {"added": 1}
    assert add(store, ends(9)).counts == {"added": 1, "cancelled": 2}
    assert shown(store) == {}


# -- silently


def test_a_silent_end_never_shows_itself(store: Scripts) -> None:
    add(store, fires(1))
    deliver(store)
    add(store, fires(2))
    assert add(store, ends(3, silently=True)).counts == {"added": 1, "cancelled": 2}
    assert add(store, ends(3, silently=True, repeat=True)).counts == {"repeated": 1}
    assert add(store, ends(1, b"unknown", silently=True)).counts == {"added": 1, "cancelled": 1}
    assert shown(store) == {}
    assert add(store, fires(4)).counts == {"added": 1}
    assert is_balanced(store)


# -- in any order, replayed


FORGOTTEN = {"nothing": "", "what was shown": "shown", "what ended": "ends", "both": "shown ends"}


def forget(store: Scripts, what: str) -> None:
    """The memories expire."""
    for kind in FORGOTTEN[what].split():
        store.command("DEL", store.key(kind, "r", T))


@pytest.mark.parametrize("first", [(), (fires(1),), (fires(0), ends(1)), (ends(1),)], ids=["", "f", "fe", "e"])
@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("forgotten", FORGOTTEN)
@pytest.mark.parametrize("instants", [(2, 3, 4, 5), (1, 1, 4, 5), (1, 1, 1, 5)], ids=str)
def test_whatever_the_order_the_same_is_left(
    store: Scripts, first: tuple[Rec, ...], silently: bool, forgotten: str, instants: tuple[int, ...]
) -> None:
    """After digests that showed the first records, each in one of its own. Batches of one, or all in one; all of it
    comes again then, perhaps with the mark of a repeat."""
    first_at, first_end, second_at, second_end = instants
    events = [
        fires(first_at),
        ends(first_end, silently=silently),
        fires(second_at),
        ends(second_end, silently=silently),
    ]
    for several in (events, events[:3], [events[1], events[3]]):
        left = set()
        for number, order in enumerate(itertools.permutations(several)):
            store.client.flushall()
            for record in first:
                add(store, record)
                if store.open_set(T):
                    deliver(store)
            forget(store, forgotten)
            for batch in [order] if number % 2 else [(record,) for record in order]:
                add(store, *batch)
            settled = store.open_set(T), store.schedules("r") if store.open_set(T) else {}
            add(store, *(record._replace(repeat=number % 3 > 0) for record in order[::-1]))
            assert (store.open_set(T), store.schedules("r") if store.open_set(T) else {}) == settled
            assert is_balanced(store)
            left.add(repr(sorted(settled[0].items())))
        assert len(left) == 1


def test_an_end_that_died_unseen_hides_no_later_one(store: Scripts) -> None:
    add(store, fires(1))
    deliver(store)
    add(store, ends(2), fires(2, b"other"))
    store.opened(claim := store.claim_one(T), "dies")
    assert store.bury(claim, "dies", base_ms=NOW_MS)[0] == "buried"
    assert set(store.memory(T)) == {b"k", b"other"}
    assert add(store, ends(3)).counts == {"added": 1}
    assert shown(store) == {b"k": (3, b"ended")}
    assert is_balanced(store)


# -- what was forgotten makes one too many, never one too few


@pytest.mark.parametrize("forgotten", FORGOTTEN)
@pytest.mark.parametrize("before", [(), (fires(1), ends(2))], ids=["first", "second"])
@pytest.mark.parametrize("is_seen", [True, False])
def test_an_incident_that_outlasts_the_memory_is_resolved(
    store: Scripts, before: tuple[Rec, ...], is_seen: bool, forgotten: str
) -> None:
    for record in before:
        add(store, record)
        if is_seen:
            deliver(store)
    add(store, fires(3))
    deliver(store)
    forget(store, forgotten)
    assert add(store, ends(4)).counts == {"added": 1}
    assert shown(store) == {b"k": (4, b"ended")}
    assert is_balanced(store)


@pytest.mark.parametrize("forgotten", FORGOTTEN)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 1, 0), (0, 2, 1), (2, 0, 1)])
def test_an_end_that_waits_is_owed_whatever_is_forgotten_meanwhile(
    store: Scripts, order: tuple[int, ...], forgotten: str
) -> None:
    add(store, fires(1))
    deliver(store)
    add(store, ends(3))
    forget(store, forgotten)
    events = [fires(2), fires(4), ends(5)]
    for number in order:
        add(store, events[number])
    assert shown(store) == {b"k": (5, b"ended")}
    assert is_balanced(store)


def test_an_end_of_a_key_that_was_trimmed_is_told(store: Scripts) -> None:
    def tell(record: Rec) -> None:
        add(store, record)
        if store.open_set(T):
            store.opened(claim := store.claim_one(T), digest_id := f"id-{store.command('INCR', 'ids')}")
            store.close(claim, digest_id, base_ms=NOW_MS, remembered=10)

    for at, record in enumerate((fires, ends, fires), 1):
        tell(record(at))
    for at in range(10, 30):
        tell(fires(at, b"other %d" % at))
    assert b"k" not in store.memory(T)
    assert add(store, ends(40)).counts == {"added": 1}
    assert shown(store) == {b"k": (40, b"ended")}


def test_what_was_shown_is_known_as_long_as_what_has_ended(store: Scripts) -> None:
    add(store, fires(1))
    deliver(store)
    store.command("PEXPIRE", store.key("shown", "r", T), 5000)
    add(store, fires(2))
    assert store.command("PTTL", store.key("shown", "r", T)) > ENDS[0] - 60_000


# -- capacity, schedule, urgency, memory


def test_ends_need_no_place_in_a_full_set(store: Scripts) -> None:
    add(store, fires(1, b"a"), fires(2, b"b"), capacity=2)
    add(store, ends(3, b"a"), capacity=2)
    assert add(store, fires(3, b"c"), capacity=2).counts == {"added": 1}
    add(store, ends(9, b"d", silently=True), ends(9, b"b"), fires(1, b"b"), capacity=2)
    assert set(shown(store)) == {b"c"}
    assert is_balanced(store)


def test_what_goes_brings_the_due_instant_forward_again(store: Scripts) -> None:
    later: dict[str, Any] = {"increment_ms": 100, "base_ms": NOW_MS + 1000, "bound_ms": NOW_MS + 9000}
    add(store, fires(1, b"a"), fires(1, b"b"), fires(1, b"c"), **later)
    assert store.waiting() == {T: NOW_MS + 1300}
    add(store, ends(2, b"a"), ends(2, b"b"), **later)
    assert store.schedule(T) == (NOW_MS + 1000, NOW_MS + 9000, 1)
    assert store.waiting() == {T: NOW_MS + 1100}
    store.now_ms = NOW_MS + 1100
    assert store.claim(routes=[("r", 1, 100)]).timelines == [T]


def test_an_end_that_goes_makes_nothing_urgent(store: Scripts) -> None:
    later: dict[str, Any] = {"base_ms": NOW_MS + 1000}
    add(store, fires(1), fires(1, b"other"), **later)
    assert add(store, ends(2, urgent=True), **later).due_at_once == []
    assert add(store, fires(1, timeline=U, urgent=True), ends(2, timeline=U, urgent=True), **later).due_at_once == []
    assert store.waiting() == {T: NOW_MS + 1000}
    add(store, ends(2, b"news", urgent=True), **later)
    assert store.waiting() == {T: EXEMPT_MS}


def test_ends_are_remembered_for_a_while_and_so_many(store: Scripts) -> None:
    key = store.key("ends", "r", T)
    store.add(*(fires(at, b"%d" % at) for at in range(9)), ends=(5000, 6))
    store.add(*(ends(50 + at, b"%d" % at) for at in range(9)), ends=(5000, 6))
    assert store.command("ZRANGE", key, 0, -1) == [b"e%d" % at for at in range(8, 2, -1)]
    assert 4000 < store.command("PTTL", key) <= 5000


def test_an_end_that_waits_stays_when_it_comes_again_though_nothing_is_known_of_it(store: Scripts) -> None:
    add(store, fires(1))
    deliver(store)
    add(store, ends(2))
    forget(store, "both")
    assert add(store, ends(2, repeat=True)).counts == {"repeated": 1}
    assert shown(store) == {b"k": (2, b"ended")}
    assert add(store, ends(3)).counts == {"added": 1, "superseded": 1}
    assert shown(store) == {b"k": (3, b"ended")}
    assert is_balanced(store)


def test_where_a_key_of_it_has_another_type_its_neighbours_are_not_concerned(store: Scripts) -> None:
    store.command("SET", store.key("ends", "r", U), "x")
    with pytest.raises(Exception, match="WRONGTYPE"):
        add(store, fires(1), ends(2, timeline=U))
    store.is_sound = False
    assert add(store, ends(2)).counts["cancelled"] == 2


# -- operators


def test_deleted_nothing_is_left_of_it(store: Scripts) -> None:
    add(store, fires(1), ends(2), fires(3), fires(3, b"other"))
    store.delete(T)
    assert not store.client.exists(store.key("ends", "r", T))
    assert store.losses() == {}


def test_who_adopts_a_timeline_knows_its_ends(store: Scripts) -> None:
    add(store, fires(1), ends(2), fires(1, b"other"))
    store.adopt(T, "s")
    assert store.add(fires(2), route="s", ends=ENDS).counts == {"added": 1, "cancelled": 1}
    assert store.client.hgetall(store.key("losses", "s"))[b"x" + T] == b"3"
    assert not store.client.exists(store.key("ends", "r", T))


def test_a_merge_and_a_revival_keep_the_count(store: Scripts) -> None:
    add(store, fires(1), ends(2), fires(3))
    claim = store.claim_one(T)
    store.opened(claim)
    assert store.head(T)[b"cancelled"] == b"2"
    add(store, fires(1, b"l"), ends(2, b"l"), ends(4))
    store.fail(claim, NOW_MS)
    store.opened(claim := store.claim_one(T), "id-2", merge_capacity=9)
    assert store.head(T)[b"cancelled"] == b"4"
    assert store.bury(claim, "id-2", base_ms=NOW_MS)[0] == "buried"
    store.revive("id-2", cancelled=4)
    assert store.head(b"\x01id-2\x01t")[b"cancelled"] == b"4"


# -- cut off


@pytest.mark.parametrize("first", [(), (fires(1),)], ids=["not shown", "shown"])
@pytest.mark.parametrize("batch", [(ends(3),), (fires(2), ends(3)), (ends(3), fires(2))], ids=["e", "fe", "ef"])
def test_cut_off_anywhere_it_ends_the_same_when_it_comes_again(
    redis_client: redis.Redis, first: tuple[Rec, ...], batch: tuple[Rec, ...]
) -> None:
    store = Interruptible(redis_client)
    outcomes = set()
    for writes in range(20):
        store.client.flushall()
        for record in first:
            add(store, record)
            deliver(store)
        add(store, fires(2), fires(2, b"other"))
        was_cut_off = False
        try:
            store.cut_off_after(writes)
            add(store, *batch)
        except CutOff:
            was_cut_off = True
            add(store, *(record._replace(repeat=True) for record in batch))
        outcomes.add(repr(sorted(store.open_set(T).items())))
        store.mend([T])
        assert is_balanced(store)
        if not was_cut_off:
            break
    assert len(outcomes) == 1
