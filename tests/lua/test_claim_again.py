"""claim.lua where an answer was lost: what that claim took is claimed again by its token, and nothing else."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script


def lease(store: Scripts, timeline: bytes, token: str, due_after_ms: int = 0, route: str = "r") -> None:
    store.add(Rec(timeline, b"k", NOW_MS), route=route, base_ms=NOW_MS + due_after_ms)
    store.claim_one(timeline, route, token)


def test_what_the_claim_took_is_claimed_under_a_new_lease_due_as_before(store: Scripts) -> None:
    lease(store, b"t", "mine", due_after_ms=-7)
    store.now_ms = NOW_MS + 5
    (again,) = store.claim_again("mine").claims
    assert (again.timeline, again.due_ms, again.token) == (b"t", NOW_MS - 7, "mine")
    assert store.leased() == {b"t": NOW_MS + 5 + LEASE_MS}
    assert store.opened(again).total == 1


def test_what_other_claims_took_stays_as_it_is(store: Scripts) -> None:
    lease(store, b"t", "other")
    before = store.dump()
    assert store.claim_again("mine").claims == []
    assert store.dump() == before


def test_after_a_claim_that_was_never_carried_out_nothing_is_taken(store: Scripts) -> None:
    store.add(Rec(b"t", b"k", NOW_MS))
    before = store.dump()
    assert store.claim_again("mine").claims == []
    assert store.dump() == before


def test_it_looks_through_all_given_routes(store: Scripts) -> None:
    for route in ("one", "two", "not asked"):
        lease(store, b"t", "mine", route=route)
    assert {claim.route for claim in store.claim_again("mine", ("one", "two")).claims} == {"one", "two"}
