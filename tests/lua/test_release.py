"""release.lua: timelines of a claim whose answer nobody heard wait again, due when they were due before."""

from __future__ import annotations

import pytest

from support.store import NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script


def lease(store: Scripts, timeline: bytes, token: str, due_after_ms: int = 0, route: str = "r") -> None:
    store.add(Rec(timeline, b"k", NOW_MS), route=route, base_ms=NOW_MS + due_after_ms)
    store.claim_one(timeline, route, token)


def test_what_the_claim_took_waits_again_due_as_before(store: Scripts) -> None:
    lease(store, b"t", "mine", due_after_ms=-7)
    assert store.release("mine") == 1
    assert store.waiting() == {b"t": NOW_MS - 7}
    assert (store.leased(), store.tokens()) == ({}, {})


def test_what_other_claims_took_stays_leased(store: Scripts) -> None:
    lease(store, b"t", "other")
    before = store.dump()
    assert store.release("mine") == 0
    assert store.dump() == before


def test_a_claim_that_was_never_carried_out_has_nothing_to_release(store: Scripts) -> None:
    store.add(Rec(b"t", b"k", NOW_MS))
    before = store.dump()
    assert store.release("mine") == 0
    assert store.dump() == before


def test_it_looks_through_all_given_routes(store: Scripts) -> None:
    for route in ("one", "two", "not asked"):
        lease(store, b"t", "mine", route=route)
    assert store.release("mine", ("one", "two")) == 2
    assert set(store.leased("not asked")) == {b"t"}


def test_the_records_stay_and_the_released_timeline_can_be_claimed(store: Scripts) -> None:
    lease(store, b"t", "mine")
    store.add(Rec(b"t", b"l", NOW_MS), increment_ms=1000)
    store.release("mine")
    assert set(store.open_set(b"t")) == {b"k", b"l"}
    assert store.claim(routes=[("r", 1, 1000)], token="next").timelines == [b"t"]
