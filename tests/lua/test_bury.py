"""bury.lua: a digest that cannot be delivered goes to the dead store under its id; its timeline goes on."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"


def under_way(store: Scripts, digest_id: str = "id-1", timeline: bytes = T) -> Claim:
    store.add(Rec(timeline, b"k", NOW_MS - 1, b"one"), Rec(timeline, b"l", NOW_MS, b"two"))
    store.opened(claim := store.claim_one(timeline), digest_id)
    return claim


def test_the_snapshot_goes_to_the_dead_store_under_its_id(store: Scripts) -> None:
    claim = under_way(store)
    records = store.snapshot(T)
    assert store.bury(claim) == ("buried", 1)
    assert store.snapshot(T) == {}
    assert store.dead("id-1") == records


def test_since_when_and_its_details_are_kept(store: Scripts) -> None:
    claim = under_way(store)
    store.now_ms = NOW_MS + 9
    details = bytes(range(256))
    store.bury(claim, details=details)
    contents = store.contents()
    assert contents[store.key("dead")] == {b"id-1": NOW_MS + 9}
    assert contents[store.key("dead:details")] == {b"id-1": details}


def test_the_ledger_moves_them_from_snapshots_to_buried(store: Scripts) -> None:
    store.bury(under_way(store))
    assert store.ledger() == {"added": 2, "buried": 2}


def test_the_timeline_waits_like_after_a_close(store: Scripts) -> None:
    claim = under_way(store)
    store.add(Rec(T, b"new", NOW_MS))
    store.bury(claim, base_ms=NOW_MS + 10, bound_ms=NOW_MS + 30, increment_ms=5)
    assert store.schedule(T) == (NOW_MS + 10, NOW_MS + 30, 1)
    assert (store.waiting(), store.leased(), store.tokens()) == ({T: NOW_MS + 15}, {}, {})
    assert store.head(T) == {b"iteration": b"1", b"closed": b"id-1"}


def test_what_is_in_a_dead_digest_is_a_duplicate_for_a_while(store: Scripts) -> None:
    """Else a redelivered event went out in the next digest, and again when the dead one is revived."""
    store.bury(under_way(store))
    assert store.memory(T) == {b"k": NOW_MS - 1, b"l": NOW_MS}
    assert store.add(Rec(T, b"k", NOW_MS - 1, repeat=True)).counts == {"added": 1, "duplicates": 1}
    assert store.add(Rec(T, b"k", NOW_MS - 1)).counts == {"added": 1}


def test_with_no_time_to_remember_a_dead_digest_leaves_no_memory(store: Scripts) -> None:
    store.bury(under_way(store), remember_ms=0)
    assert store.memory(T) == {}


def test_the_next_digest_has_the_next_iteration(store: Scripts) -> None:
    store.bury(under_way(store), base_ms=NOW_MS)
    store.add(Rec(T, b"k", NOW_MS))
    assert store.opened(store.claim_one(T), "id-2").iteration == 2


def test_it_tells_how_many_are_dead_now(store: Scripts) -> None:
    assert [store.bury(under_way(store, f"id-{n}", b"%d" % n), f"id-{n}")[1] for n in range(3)] == [1, 2, 3]


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    claim = under_way(store)
    store.now_ms = None
    seconds, microseconds = store.command("TIME")
    store.bury(claim)
    since_ms = store.command("ZSCORE", store.key("dead"), "id-1")
    assert 0 <= since_ms - (seconds * 1000 + microseconds // 1000) < 10_000


def test_said_twice_it_is_already_buried_and_nothing_changes(store: Scripts) -> None:
    store.bury(claim := under_way(store))
    before = store.dump()
    assert store.bury(claim, details=b"other") == ("already", None)
    assert store.dump() == before


def test_what_was_buried_is_already_closed_and_the_other_way_round(store: Scripts) -> None:
    store.bury(claim := under_way(store), base_ms=NOW_MS)
    assert store.close(claim) == "already"
    store.close(claim := under_way(store, "id-2"), "id-2")
    assert store.bury(claim, "id-2") == ("already", None)


def test_a_worker_whose_timeline_another_took_over_buries_nothing(store: Scripts) -> None:
    first = under_way(store)
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    store.opened(store.claim_one(T, token="second"))
    before = store.dump()
    assert store.bury(first) == ("stale", None)
    assert store.dump() == before


def test_the_right_token_with_another_id_buries_nothing(store: Scripts) -> None:
    claim = under_way(store)
    before = store.dump()
    assert store.bury(claim, "id-2") == ("stale", None)
    assert store.dump() == before


def test_of_an_unknown_timeline_there_is_nothing_to_bury(store: Scripts) -> None:
    for token in ("token", ""):
        assert store.bury(Claim("r", T, NOW_MS, token)) == ("stale", None)
    assert store.dump() == {}


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.bury(under_way(store))
    dead = {store.key("dead"), store.key("dead:details"), store.key("dead-set:id-1"), store.key("dead-values:id-1")}
    assert store.watch is not None
    assert store.watch.touched["finish"] == {
        *store.keys("waiting leased tokens schedule heads losses ledger", "r"),
        *store.keys("digest digest-values shown", "r", T),
        *dead,
        store.key("agenda"),
    }
