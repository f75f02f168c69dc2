"""Zones of timelines: the newest event that names one decides, whatever the order; who waits gets its instants."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import redis

from support.cutting_off import CutOff, Interruptible
from support.store import EXEMPT_MS, NOW_MS, Added, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"
HOUR_MS = 3_600_000
BERLIN, TOKYO = NOW_MS + 2 * HOUR_MS, NOW_MS + HOUR_MS
AT = {"Europe/Berlin": BERLIN, "Asia/Tokyo": TOKYO, "": NOW_MS + 3 * HOUR_MS}
"""The next instant of the calendar in each zone; without one that of the default."""


def rec(key: bytes, at: int = 0, *, timeline: bytes = T, **more: Any) -> Rec:
    return Rec(timeline, key, NOW_MS + at, **more)


def add(store: Scripts, zone: str, /, *records: Rec, **more: Any) -> Added:
    instants: dict[str, Any] = {"base_ms": AT[zone], "zone": (zone, AT[zone], AT[zone]), **more}
    return store.add(*records, **instants)


def state(store: Scripts) -> tuple[Any, ...]:
    return store.schedule(T), store.head(T).get(b"zone"), sorted(store.open_set(T))


def test_a_timeline_begins_in_the_zone_of_its_first_event(store: Scripts) -> None:
    add(store, "Asia/Tokyo", rec(b"a", 5), rec(b"b", 9))
    assert store.schedule(T) == (TOKYO, TOKYO, 2)
    assert store.head(T) == {b"zone": b"Asia/Tokyo", b"zoned": b"%d" % (NOW_MS + 9)}


def test_without_a_zone_it_has_that_of_all_and_no_mark(store: Scripts) -> None:
    add(store, "", rec(b"a"))
    assert store.schedule(T) == (AT[""], AT[""], 1)
    assert store.head(T) == {}


def test_whatever_the_order_the_newest_that_names_one_decides(store: Scripts) -> None:
    batches = [("Europe/Berlin", rec(b"a", 1)), ("Asia/Tokyo", rec(b"b", 3)), ("", rec(b"c", 5)),
               ("Europe/Berlin", rec(b"d", 2))]  # fmt: skip
    for order in itertools.permutations(batches):
        store.client.flushdb()
        for zone, record in order:
            add(store, zone, record)
        assert state(store) == ((TOKYO, TOKYO, 4), b"Asia/Tokyo", [b"a", b"b", b"c", b"d"])
        before = store.waiting()
        assert before[T] <= TOKYO
        for zone, record in order[::-1]:
            add(store, zone, record._replace(repeat=True))
        assert state(store)[0] == (TOKYO, TOKYO, 4)
        assert store.waiting() == before


def test_who_gets_another_zone_is_due_by_that(store: Scripts) -> None:
    add(store, "Asia/Tokyo", rec(b"a", 1))
    add(store, "Europe/Berlin", rec(b"b", 2))
    assert (store.schedule(T), store.waiting()) == ((BERLIN, BERLIN, 2), {T: TOKYO})
    store.now_ms = TOKYO
    assert store.claim().claims == []
    add(store, "Asia/Tokyo", rec(b"c", 3), zone=("Asia/Tokyo", BERLIN - 5, BERLIN - 5))
    assert store.waiting() == {T: BERLIN - 5}


def test_where_its_instants_do_not_depend_on_it_only_the_name_changes(store: Scripts) -> None:
    add(store, "Asia/Tokyo", rec(b"a", 1), zone=("Asia/Tokyo", "", ""))
    add(store, "Europe/Berlin", rec(b"b", 2), zone=("Europe/Berlin", "", ""))
    assert state(store) == ((TOKYO, TOKYO, 2), b"Europe/Berlin", [b"a", b"b"])


def test_what_is_due_exempt_or_under_way_keeps_its_instants(store: Scripts) -> None:
    add(store, "Asia/Tokyo", rec(b"a", 1), base_ms=NOW_MS)
    add(store, "Europe/Berlin", rec(b"b", 2))
    assert state(store)[:2] == ((NOW_MS, NOW_MS, 2), b"Europe/Berlin")
    store.opened(claim := store.claim_one(T))
    add(store, "Asia/Tokyo", rec(b"c", 3, urgent=True))
    head = store.head(T)
    assert (head[b"zone"], head[b"urgent"], head[b"id"]) == (b"Asia/Tokyo", b"1", b"id-1")
    store.fail(claim, NOW_MS + 5)
    add(store, "Europe/Berlin", rec(b"d", 4))
    assert store.schedule(T) == (NOW_MS + 5, NOW_MS + 5, 2)
    store.now_ms = NOW_MS + 5
    store.close(store.claim_one(T), base_ms=BERLIN)
    assert store.schedule(T) == (EXEMPT_MS, EXEMPT_MS, 2)
    add(store, "Asia/Tokyo", rec(b"e", 5))
    assert store.schedule(T) == (EXEMPT_MS, EXEMPT_MS, 3)
    assert store.head(T)[b"zone"] == b"Asia/Tokyo"


def test_a_digest_leaves_it_and_what_forgets_the_timeline_forgets_it(store: Scripts) -> None:
    add(store, "Asia/Tokyo", rec(b"a", 1), base_ms=NOW_MS)
    store.opened(claim := store.claim_one(T))
    store.close(claim, base_ms=NOW_MS)
    assert store.head(T)[b"zone"] == b"Asia/Tokyo"
    assert store.open(store.claim_one(T)) == "empty"
    assert store.head(T) == {}


def test_beyond_the_limit_of_timelines_nothing_is_left(store: Scripts) -> None:
    add(store, "Asia/Tokyo", rec(b"a", 1, timeline=b"u"))
    add(store, "Asia/Tokyo", rec(b"a", 1), limit=1)
    assert store.head(T) == {}


def test_who_adopts_a_timeline_knows_its_zone(store: Scripts) -> None:
    add(store, "Asia/Tokyo", rec(b"a", 1))
    store.adopt(T, "s")
    assert store.head(T, "s") == {b"zone": b"Asia/Tokyo", b"zoned": b"%d" % (NOW_MS + 1), b"iteration": b"0"}


def test_of_two_that_become_one_the_newest_event_decides(store: Scripts) -> None:
    for there, here, last in ((1, 2, b"Asia/Tokyo"), (2, 1, b"Europe/Berlin")):
        store.client.flushdb()
        add(store, "Asia/Tokyo", rec(b"a", here))
        add(store, "Europe/Berlin", rec(b"b", there), route="s")
        store.adopt(T, "s")
        assert store.head(T, "s") == {b"zone": last, b"zoned": b"%d" % (NOW_MS + 2)}


def test_beside_ends_it_works_the_same(store: Scripts) -> None:
    add(store, "Asia/Tokyo", rec(b"a", 1), rec(b"a", 2, end=8), rec(b"b", 3), ends=(1000, 10))
    assert state(store) == ((TOKYO, TOKYO, 1), b"Asia/Tokyo", [b"b"])


def test_cut_off_anywhere_it_ends_the_same_when_it_comes_again(redis_client: redis.Redis) -> None:
    store, outcomes = Interruptible(redis_client), set()
    for writes in range(20):
        store.client.flushall()
        add(store, "Europe/Berlin", rec(b"a", 1))
        was_cut_off = False
        try:
            store.cut_off_after(writes)
            add(store, "Asia/Tokyo", rec(b"b", 2))
        except CutOff:
            was_cut_off = True
            add(store, "Asia/Tokyo", rec(b"b", 2, repeat=True))
        store.now_ms = TOKYO
        outcomes.add((state(store)[:2], store.claim().timelines == [T]))
        store.now_ms = NOW_MS
        if not was_cut_off:
            break
    assert len(outcomes) == 1
