"""delete.lua: a timeline goes, whatever state it is in, with all that it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.store import NOW_MS, Claim, Rec, Scripts, own_timeline

pytestmark = pytest.mark.script

T = b"t"


def waiting(store: Scripts) -> int:
    store.add(Rec(T, b"k", NOW_MS), Rec(T, b"l", NOW_MS))
    return 2


def leased(store: Scripts) -> int:
    waiting(store)
    store.claim_one(T)
    return 2


def under_way(store: Scripts) -> int:
    waiting(store)
    store.opened(store.claim_one(T))
    store.add(Rec(T, b"new", NOW_MS))
    return 3


def retried(store: Scripts) -> int:
    waiting(store)
    store.opened(claim := store.claim_one(T))
    store.fail(claim, NOW_MS + 5)
    return 2


def delivered(store: Scripts) -> int:
    waiting(store)
    store.opened(claim := store.claim_one(T))
    store.close(claim)
    return 0


def with_losses(store: Scripts) -> int:
    store.add(Rec(T, b"k", NOW_MS), Rec(T, b"k", NOW_MS + 1), Rec(T, b"l", NOW_MS), capacity=1)
    return 1


State = Callable[[Scripts], int]
STATES = [waiting, leased, under_way, retried, delivered, with_losses]


@pytest.mark.parametrize("state", STATES)
def test_in_every_state_it_goes_with_all_its_keys(store: Scripts, state: State) -> None:
    records = state(store)
    assert store.delete(T) == ("deleted", records)
    assert set(store.dump()) == {store.key("ledger", "r"), store.key("count")}
    assert store.timeline_count() == 0


@pytest.mark.parametrize("state", STATES)
def test_the_ledger_counts_what_it_held_as_deleted(store: Scripts, state: State) -> None:
    records = state(store)
    before = store.ledger()
    store.delete(T)
    after = store.ledger()
    assert after.get("deleted", 0) == records
    assert (after.get("open", 0), after.get("snapshots", 0), after["added"]) == (0, 0, before["added"])


@pytest.mark.parametrize("state", STATES)
def test_said_twice_the_second_knows_nothing_and_changes_nothing(store: Scripts, state: State) -> None:
    state(store)
    store.delete(T)
    before = store.dump()
    assert store.delete(T) == ("unknown", None)
    assert store.dump() == before


def test_of_nothing_there_is_nothing_to_delete(store: Scripts) -> None:
    assert store.delete(T) == ("unknown", None)
    assert store.dump() == {}


def test_the_others_stay(store: Scripts) -> None:
    for route, timeline in (("r", b"other"), ("other", T)):
        store.add(Rec(timeline, b"k", NOW_MS), route=route)
    waiting(store)
    store.delete(T)
    assert (store.waiting(), store.waiting("other")) == ({b"other": NOW_MS}, {T: NOW_MS})
    assert store.timeline_count() == 2


def test_whoever_had_it_leased_is_stale(store: Scripts) -> None:
    waiting(store)
    store.opened(claim := store.claim_one(T))
    store.delete(T)
    before = store.dump()
    assert store.open(claim) == store.renew(claim) == store.close(claim) == store.fail(claim, NOW_MS) == "stale"
    assert store.bury(claim) == ("stale", None)
    assert store.dump() == before


def test_whoever_had_it_leased_is_stale_also_when_it_was_begun_and_claimed_anew(store: Scripts) -> None:
    waiting(store)
    store.opened(old := store.claim_one(T, token="old"), "old")
    store.delete(T)
    waiting(store)
    store.opened(new := store.claim_one(T, token="new"), "new")
    assert store.close(old, "old") == "stale"
    assert store.close(new, "new") == "closed"


def test_what_comes_later_begins_it_anew(store: Scripts) -> None:
    delivered(store)
    store.delete(T)
    assert store.add(Rec(T, b"k", NOW_MS, repeat=True)).due_at_once == [1]  # nor is it remembered as shown
    assert store.opened(store.claim_one(T), "id-2").iteration == 1


def test_a_timeline_that_was_forgotten_leaves_no_memory_behind(store: Scripts) -> None:
    delivered(store)
    store.now_ms = NOW_MS + 1000
    assert store.open(store.claim_one(T)) == "empty"
    assert store.delete(T) == ("unknown", None)
    assert store.key("shown", "r", T) not in store.dump()


def test_a_revived_digest_is_deleted_like_any_timeline(store: Scripts) -> None:
    waiting(store)
    store.opened(claim := store.claim_one(T))
    store.bury(claim)
    store.revive()
    assert store.delete(own_timeline("id-1", T)) == ("deleted", 2)
    assert store.ledger() == {"added": 2, "deleted": 2}


def test_it_frees_a_place_under_the_limit_of_timelines(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS), limit=1)
    assert store.add(Rec(b"u", b"k", NOW_MS), limit=1).over_timelines == 1
    store.delete(T)
    assert store.add(Rec(b"u", b"k", NOW_MS), limit=1).over_timelines == 0


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    waiting(store)
    store.delete(T)
    assert store.watch is not None
    expected = {
        *store.keys("waiting leased tokens schedule heads losses ledger", "r"),
        store.key("count"),
        store.key("agenda"),
        *store.keys("set values digest digest-values shown ends", "r", T),
    }
    assert store.watch.touched["delete"] == expected


def test_a_claim_that_was_never_made_deletes_as_well(store: Scripts) -> None:
    """No token is asked for: it is the operator who says so."""
    leased(store)
    assert store.tokens() == {T: b"token"}
    assert store.delete(T) == ("deleted", 2)
    assert store.renew(Claim("r", T, NOW_MS, "token")) == "stale"
