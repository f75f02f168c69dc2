"""drop_dead.lua: one digest leaves the dead store for good."""

from __future__ import annotations

import pytest

from support.store import NOW_MS, Rec, Scripts, own_timeline

pytestmark = pytest.mark.script


def bury(store: Scripts, digest_id: str, records: int = 2, route: str = "r") -> None:
    timeline = digest_id.encode()
    store.add(*(Rec(timeline, b"%d" % n, NOW_MS) for n in range(records)), route=route)
    store.opened(claim := store.claim_one(timeline, route), digest_id)
    store.bury(claim, digest_id)


def test_the_digest_goes_with_all_that_belongs_to_it(store: Scripts) -> None:
    bury(store, "gone", 3)
    assert store.drop_dead("gone") == ("dropped", 3)
    assert not [name for name in store.contents() if name.startswith(store.key("dead"))]


def test_the_ledger_moves_its_records_from_buried_to_deleted(store: Scripts) -> None:
    bury(store, "gone", 3)
    store.drop_dead("gone")
    assert store.ledger() == {"added": 3, "deleted": 3}


def test_the_others_stay(store: Scripts) -> None:
    bury(store, "gone")
    bury(store, "stays", route="other")
    store.drop_dead("gone")
    assert len(store.dead("stays")) == 2
    assert store.ledger("other") == {"added": 2, "buried": 2}
    contents = store.contents()
    assert contents[store.key("dead")] == {b"stays": NOW_MS}
    assert contents[store.key("dead:details")] == {b"stays": b"{}"}


def test_said_twice_the_second_knows_nothing_and_changes_nothing(store: Scripts) -> None:
    bury(store, "gone")
    bury(store, "stays")
    store.drop_dead("gone")
    before = store.dump()
    assert store.drop_dead("gone") == ("unknown", None)
    assert store.dump() == before


def test_of_a_full_store_it_goes_only_while_more_are_dead_than_may_stay(store: Scripts) -> None:
    """Two that found the store too full at one instant drop no more together than one would."""
    for name in ("oldest", "older", "newest"):
        bury(store, name)
    assert store.drop_dead("oldest", may_stay=2) == ("dropped", 2)
    before = store.dump()
    assert store.drop_dead("older", may_stay=2) == ("within", None)
    assert store.dump() == before


def test_the_timeline_it_came_from_goes_on(store: Scripts) -> None:
    bury(store, "t")
    before = store.waiting(), store.schedule(b"t"), store.head(b"t")
    store.drop_dead("t")
    assert (store.waiting(), store.schedule(b"t"), store.head(b"t")) == before


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    bury(store, "gone")
    store.drop_dead("gone")
    dead = {store.key("dead"), store.key("dead:details"), store.key("dead-set:gone"), store.key("dead-values:gone")}
    assert store.watch is not None
    revived = store.keys("digest digest-values", "r", own_timeline("gone", b"t"))
    assert store.watch.touched["drop_dead"] == {store.key("ledger", "r"), *revived, *dead}


def test_a_name_that_a_call_which_was_cut_off_left_in_the_list_goes(store: Scripts) -> None:
    bury(store, "gone")
    store.drop_dead("gone")
    store.command("ZADD", store.key("dead"), 1, "gone")
    ledger = store.ledger()
    assert store.drop_dead("gone", route="") == ("dropped", 0)
    assert store.command("ZCARD", store.key("dead")) == 0
    assert store.ledger() == ledger
