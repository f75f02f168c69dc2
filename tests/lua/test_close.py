"""close.lua: a digest was delivered. It goes, its keys are remembered for a while, and the timeline waits again."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"


def under_way(store: Scripts, records: int = 1, digest_id: str = "id-1") -> Claim:
    """Adds, claims and opens."""
    store.add(*(Rec(T, b"%d" % n, NOW_MS + n) for n in range(records)), capacity=20_000)
    store.opened(claim := store.claim_one(T), digest_id)
    return claim


def test_the_snapshot_goes_and_is_counted_as_delivered(store: Scripts) -> None:
    assert store.close(under_way(store, 3)) == "closed"
    assert store.snapshot(T) == {}
    assert store.ledger() == {"added": 3, "delivered": 3}


def test_the_timeline_waits_with_the_new_base_and_bound(store: Scripts) -> None:
    store.close(under_way(store), base_ms=NOW_MS + 10, bound_ms=NOW_MS + 30)
    assert store.schedule(T) == (NOW_MS + 10, NOW_MS + 30, 0)
    assert store.waiting() == {T: NOW_MS + 10}
    assert (store.leased(), store.tokens()) == ({}, {})


@pytest.mark.parametrize(("records", "due_after_ms"), [(0, 10), (1, 15), (3, 25), (4, 30), (9, 30)])
def test_what_came_meanwhile_postpones_it_at_once(store: Scripts, records: int, due_after_ms: int) -> None:
    claim = under_way(store)
    for n in range(records):
        store.add(Rec(T, b"new%d" % n, NOW_MS))
    store.close(claim, base_ms=NOW_MS + 10, bound_ms=NOW_MS + 30, increment_ms=5)
    assert store.waiting() == {T: NOW_MS + due_after_ms}


def test_the_iteration_and_the_id_stay_and_the_rest_of_the_head_goes(store: Scripts) -> None:
    store.close(under_way(store))
    assert store.head(T) == {b"iteration": b"1", b"closed": b"id-1"}


# -- memory


def test_what_was_delivered_is_remembered_for_so_long(store: Scripts) -> None:
    store.close(under_way(store, 2), remember_ms=600_000)
    assert store.memory(T) == {b"0": NOW_MS, b"1": NOW_MS + 1}
    assert 590_000 < store.command("PTTL", store.key("shown", "r", T)) <= 600_000


def test_digests_are_remembered_together_the_newest_of_each_key(store: Scripts) -> None:
    store.close(under_way(store, 2), base_ms=NOW_MS)
    store.add(Rec(T, b"0", NOW_MS - 5), Rec(T, b"1", NOW_MS + 5), Rec(T, b"2", NOW_MS))
    store.opened(claim := store.claim_one(T), "id-2")
    store.close(claim, "id-2")
    assert store.memory(T) == {b"0": NOW_MS, b"1": NOW_MS + 5, b"2": NOW_MS}


def test_only_the_newest_are_remembered(store: Scripts) -> None:
    store.close(under_way(store, 5), remembered=2)
    assert store.memory(T) == {b"3": NOW_MS + 3, b"4": NOW_MS + 4}


def test_with_no_time_to_remember_there_is_no_memory(store: Scripts) -> None:
    store.close(under_way(store), remember_ms=0)
    assert store.memory(T) == {}


def test_of_a_very_large_digest_the_newest_10_000_are_remembered(store: Scripts) -> None:
    store.watch = None
    for start in range(0, 10_300, 500):
        block = range(start, min(start + 500, 10_300))
        store.add(*(Rec(T, b"%d" % n, NOW_MS + n) for n in block), capacity=20_000)
    store.opened(claim := store.claim_one(T))
    assert store.close(claim, remembered=20_000) == "closed"
    memory = store.memory(T)
    assert (len(memory), min(memory.values()), max(memory.values())) == (10_000, NOW_MS + 300, NOW_MS + 10_299)


def test_what_is_forgotten_expires_and_nothing_else_ever_does(store: Scripts) -> None:
    claim = under_way(store)
    store.add(Rec(T, b"new", NOW_MS))
    store.close(claim)
    expiring = [name for name in store.dump() if store.command("PTTL", name) >= 0]
    assert expiring == [store.key("shown", "r", T)]


# -- said twice, said by another


def test_closed_twice_it_is_already_closed_and_nothing_changes(store: Scripts) -> None:
    store.close(claim := under_way(store))
    before = store.dump()
    assert store.close(claim, base_ms=NOW_MS + 99) == "already"
    assert store.dump() == before


def test_closed_again_while_another_has_the_timeline_it_is_already_closed(store: Scripts) -> None:
    store.close(claim := under_way(store), base_ms=NOW_MS)
    store.claim_one(T, token="other")
    before = store.dump()
    assert store.close(claim) == "already"
    assert store.dump() == before


def test_a_worker_that_lost_its_lease_closes_nothing(store: Scripts) -> None:
    claim = under_way(store)
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    before = store.dump()
    assert store.close(claim) == "stale"
    assert store.dump() == before


def test_a_worker_whose_timeline_another_took_over_closes_nothing(store: Scripts) -> None:
    first = under_way(store)
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    store.opened(second := store.claim_one(T, token="second"), "not taken")
    before = store.dump()
    assert store.close(first) == "stale"
    assert store.dump() == before
    assert store.close(second) == "closed"


def test_the_right_token_with_another_id_closes_nothing(store: Scripts) -> None:
    claim = under_way(store)
    before = store.dump()
    assert store.close(claim, "id-2") == "stale"
    assert store.dump() == before


def test_a_digest_before_the_last_one_is_stale(store: Scripts) -> None:
    store.close(first := under_way(store), base_ms=NOW_MS)
    store.close(under_way(store, digest_id="id-2"), "id-2")
    assert store.close(first, "id-1") == "stale"


def test_what_was_claimed_and_never_opened_can_not_be_closed(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS))
    claim = store.claim_one(T)
    before = store.dump()
    for digest_id in ("id-1", ""):
        assert store.close(claim, digest_id) == "stale"
    assert store.dump() == before


def test_of_an_unknown_timeline_there_is_nothing_to_close(store: Scripts) -> None:
    assert store.close(Claim("r", T, NOW_MS, "token")) == "stale"
    assert store.dump() == {}


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.close(under_way(store))
    assert store.watch is not None
    assert store.watch.touched["finish"] == {
        *store.keys("waiting leased tokens schedule heads losses ledger", "r"),
        *store.keys("digest digest-values shown", "r", T),
        store.key("agenda"),
    }
