"""revive.lua: a dead digest is on its way again under its own id, whatever its timeline does meanwhile."""

from __future__ import annotations

import pytest

from support.store import EXEMPT_MS, LEASE_MS, NOW_MS, Claim, Opened, Rec, Scripts, own_timeline

pytestmark = pytest.mark.script

T = b"t"
OWN = own_timeline("id-1", T)


def dead(store: Scripts, digest_id: str = "id-1", timeline: bytes = T) -> Opened:
    store.add(Rec(timeline, b"k", NOW_MS - 3, b"one"), Rec(timeline, b"l", NOW_MS - 1, b"two"))
    opened = store.opened(claim := store.claim_one(timeline), digest_id)
    store.bury(claim, digest_id)
    return opened


def claim_revived(store: Scripts, token: str = "revived") -> Claim:
    return store.claim_one(OWN, token=token)


def test_it_leaves_the_dead_store(store: Scripts) -> None:
    dead(store)
    assert store.revive() == ("revived", 2)
    assert not [name for name in store.contents() if name.startswith(store.key("dead"))]


def test_it_is_due_at_once_whatever_its_policy(store: Scripts) -> None:
    dead(store)
    store.revive()
    assert store.waiting()[OWN] == EXEMPT_MS
    assert store.timeline_count() == 2


def test_it_goes_out_as_it_was_under_its_own_id(store: Scripts) -> None:
    first = dead(store)
    records = store.dead("id-1")
    store.now_ms = NOW_MS + 50
    store.revive(attempts=7, next_earliest_ms=first.next_earliest_ms)
    again = store.opened(claim_revived(store), "not taken")
    assert again == first._replace(word="again", now_ms=NOW_MS + 50, attempts=7, since_ms=NOW_MS + 50)
    assert store.snapshot(OWN) == records


def test_its_totals_are_those_it_was_buried_with(store: Scripts) -> None:
    dead(store)
    store.revive(opened_ms=NOW_MS - 9, iteration=4, superseded=2, over_capacity=3, next_earliest_ms=NOW_MS + 77)
    again = store.opened(claim_revived(store), "not taken")
    assert (again.opened_ms, again.iteration, again.next_earliest_ms) == (NOW_MS - 9, 4, NOW_MS + 77)
    assert (again.superseded, again.over_capacity) == (2, 3)


def test_its_tries_begin_again(store: Scripts) -> None:
    dead(store)
    store.revive(attempts=7)
    claim = claim_revived(store)
    assert store.opened(claim).tries == 0
    store.fail(claim, NOW_MS)
    again = store.opened(claim_revived(store))
    assert (again.attempts, again.tries) == (8, 1)


def test_the_ledger_moves_it_from_buried_to_snapshots_and_then_to_delivered(store: Scripts) -> None:
    dead(store)
    store.revive()
    assert store.ledger() == {"added": 2, "snapshots": 2}
    store.opened(claim := claim_revived(store))
    store.close(claim, remember_ms=0)
    assert store.ledger() == {"added": 2, "delivered": 2}


def test_delivered_it_leaves_nothing_behind(store: Scripts) -> None:
    dead(store)
    before = set(store.dump())
    store.revive()
    store.opened(claim := claim_revived(store))
    store.close(claim, base_ms=NOW_MS, remember_ms=0)
    assert store.open(claim_revived(store)) == "empty"
    assert set(store.dump()) == {name for name in before if b"dead" not in name and b":di:" not in name} - {
        store.key("dead-values:id-1")
    }
    assert store.timeline_count() == 1


def test_its_timeline_goes_on_meanwhile(store: Scripts) -> None:
    dead(store)
    before = store.head(T), store.schedule(T), store.waiting()[T]
    store.revive()
    store.opened(revived := claim_revived(store))
    assert (store.head(T), store.schedule(T), store.waiting()[T]) == before
    store.add(Rec(T, b"k", NOW_MS, b"newer"))
    store.now_ms = NOW_MS + 1000
    store.opened(own := store.claim_one(T, token="own"), "id-2")
    assert store.close(own, "id-2") == store.close(revived) == "closed"
    assert store.ledger() == {"added": 3, "delivered": 3}


def test_its_timeline_may_be_deleted_meanwhile(store: Scripts) -> None:
    dead(store)
    store.revive()
    store.delete(T)
    store.opened(claim := claim_revived(store))
    assert store.close(claim) == "closed"


def test_buried_again_it_is_in_the_dead_store_as_it_was(store: Scripts) -> None:
    dead(store)
    records = store.dead("id-1")
    store.revive()
    store.opened(claim := claim_revived(store))
    assert store.bury(claim, details=b"again") == ("buried", 1)
    assert store.dead("id-1") == records
    assert store.ledger() == {"added": 2, "buried": 2}
    store.now_ms = NOW_MS + 1000
    store.open(claim_revived(store))
    assert store.revive() == ("revived", 2)


def test_a_worker_whose_lease_ran_out_closes_nothing(store: Scripts) -> None:
    dead(store)
    store.revive()
    store.opened(stale := claim_revived(store, "first"))
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    store.opened(owner := claim_revived(store, "second"))
    before = store.dump()
    assert store.close(stale) == "stale"
    assert store.bury(stale) == ("stale", None)
    assert store.dump() == before
    assert store.close(owner) == "closed"


def test_buried_again_it_can_be_revived_again_at_once(store: Scripts) -> None:
    """Its own timeline is empty by then and waits to be forgotten, which under a paused sink may take long."""
    dead(store)
    store.revive()
    store.opened(claim := claim_revived(store))
    store.bury(claim, remember_ms=0)
    assert store.revive() == ("revived", 2)
    assert store.opened(claim_revived(store), "not taken").id == "id-1"


def test_delivered_it_is_unknown_and_not_on_its_way(store: Scripts) -> None:
    dead(store)
    store.revive()
    store.opened(claim := claim_revived(store))
    store.close(claim, remember_ms=0)
    assert store.revive() == ("unknown", None)


def test_said_twice_it_is_on_its_way_already_and_nothing_changes(store: Scripts) -> None:
    dead(store)
    store.revive()
    before = store.dump()
    assert store.revive(attempts=5) == ("already", None)
    assert store.dump() == before
    store.opened(claim_revived(store))
    before = store.dump()
    assert store.revive() == ("already", None)
    assert store.dump() == before


@pytest.mark.parametrize("digest_id", ["id-1", "other"])
def test_what_is_not_dead_is_unknown_and_nothing_changes(store: Scripts, digest_id: str) -> None:
    dead(store, "dead")
    before = store.dump()
    assert store.revive(digest_id) == ("unknown", None)
    assert store.dump() == before


def test_one_whose_records_were_lost_is_unknown(store: Scripts) -> None:
    store.is_sound = False
    dead(store)
    store.command("DEL", store.key("dead-set:id-1"))
    before = store.dump()
    assert store.revive() == ("unknown", None)
    assert store.dump() == before


def test_one_whose_values_were_lost_still_goes_out(store: Scripts) -> None:
    store.is_sound = False
    dead(store)
    store.command("DEL", store.key("dead-values:id-1"))
    assert store.revive() == ("revived", 2)
    assert store.opened(claim_revived(store)).total == 2


def test_the_others_stay_dead(store: Scripts) -> None:
    dead(store)
    dead(store, "id-2", b"u")
    store.revive()
    assert store.contents()[store.key("dead")] == {b"id-2": NOW_MS}
    assert len(store.dead("id-2")) == 2


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    dead(store)
    store.now_ms = None
    seconds, microseconds = store.command("TIME")
    store.revive()
    since_ms = store.opened(claim_revived(store), "not taken").since_ms
    assert 0 <= since_ms - (seconds * 1000 + microseconds // 1000) < 10_000


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    dead(store)
    store.revive()
    assert store.watch is not None
    of_the_dead = {
        store.key("dead"),
        store.key("dead:details"),
        store.key("dead-set:id-1"),
        store.key("dead-values:id-1"),
    }
    expected = {
        *of_the_dead,
        *store.keys("waiting leased tokens schedule heads ledger", "r"),
        store.key("count"),
        store.key("agenda"),
        *store.keys("digest digest-values", "r", OWN),
    }
    assert store.watch.touched["revive"] == expected
