"""fail.lua: a delivery did not succeed (fail), or was not tried (defer). The snapshot stays; the timeline waits."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"
FAIL, DEFER = 1, 0
"""Posts that ended."""


def under_way(store: Scripts) -> Claim:
    store.add(Rec(T, b"k", NOW_MS), Rec(T, b"l", NOW_MS))
    store.opened(claim := store.claim_one(T))
    return claim


def test_the_timeline_waits_until_the_given_instant(store: Scripts) -> None:
    assert store.fail(under_way(store), NOW_MS + 50) == "waiting"
    assert store.waiting() == {T: NOW_MS + 50}
    assert store.schedule(T) == (NOW_MS + 50, NOW_MS + 50, 0)
    assert (store.leased(), store.tokens()) == ({}, {})


def test_what_comes_while_it_waits_does_not_postpone_the_retry(store: Scripts) -> None:
    store.fail(under_way(store), NOW_MS + 50)
    store.add(Rec(T, b"new", NOW_MS), Rec(T, b"newer", NOW_MS), increment_ms=10)
    store.now_ms = NOW_MS + 50
    assert store.claim(routes=[("r", 1, 10)]).claims == [Claim("r", T, NOW_MS + 50, "token")]


def test_the_snapshot_and_what_is_beside_it_stay(store: Scripts) -> None:
    claim = under_way(store)
    before = store.snapshot(T), store.head(T), store.ledger()
    store.fail(claim, NOW_MS + 50, DEFER)
    assert (store.snapshot(T), store.head(T), store.ledger()) == before


def test_a_post_that_failed_counts_and_what_was_deferred_does_not(store: Scripts) -> None:
    claim = under_way(store)
    for posts, expected in ((FAIL, 1), (DEFER, 1), (DEFER, 1), (FAIL, 2)):
        store.fail(claim, NOW_MS, posts)
        claim = store.claim_one(T)
        opened = store.opened(claim)
        assert opened.attempts == opened.tries == expected


def test_deferred_before_it_was_opened_it_just_waits(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS))
    claim = store.claim_one(T)
    assert store.fail(claim, NOW_MS + 5, DEFER) == "waiting"
    assert (store.waiting(), store.head(T)) == ({T: NOW_MS + 5}, {})
    assert store.schedule(T) == (NOW_MS + 5, NOW_MS + 5, 1)


@pytest.mark.parametrize("posts", [FAIL, DEFER])
def test_between_two_digests_the_head_is_left_alone(store: Scripts, posts: int) -> None:
    store.close(under_way(store), base_ms=NOW_MS)
    head = store.head(T)
    store.fail(store.claim_one(T), NOW_MS, posts)
    assert store.head(T) == head


def test_said_twice_the_second_is_stale_and_changes_nothing(store: Scripts) -> None:
    store.fail(claim := under_way(store), NOW_MS + 50)
    before = store.dump()
    assert store.fail(claim, NOW_MS + 99, FAIL) == "stale"
    assert store.dump() == before


def test_a_worker_whose_timeline_another_took_over_changes_nothing(store: Scripts) -> None:
    first = under_way(store)
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    store.claim_one(T, token="second")
    before = store.dump()
    assert store.fail(first, NOW_MS, FAIL) == "stale"
    assert store.fail(first, NOW_MS, DEFER) == "stale"
    assert store.dump() == before


def test_of_an_unknown_timeline_there_is_nothing_to_say(store: Scripts) -> None:
    for token in ("token", ""):
        assert store.fail(Claim("r", T, NOW_MS, token), NOW_MS, FAIL) == "stale"
    assert store.dump() == {}


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    store.fail(under_way(store), NOW_MS, FAIL)
    assert store.watch is not None
    assert store.watch.touched["finish"] == {
        *store.keys("waiting leased tokens schedule heads losses ledger", "r"),
        store.key("agenda"),
    }
