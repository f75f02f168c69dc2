"""audit.lua and recount.lua: what is read for an audit, all of it at one instant."""

from __future__ import annotations

import pytest

from support.store import NOW_MS, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"


def test_of_an_empty_partition_there_is_nothing(store: Scripts) -> None:
    assert store.audit(["r", "other"]) == (0, {"r": (0, {}), "other": (0, {})})


def test_the_counters_of_each_route_stand_beside_its_timelines(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS), Rec(T, b"k", NOW_MS + 1), Rec(b"u", b"k", NOW_MS))
    store.add(Rec(T, b"k", NOW_MS), route="other")
    r, other = (2, {"added": 3, "open": 2, "superseded": 1}), (1, {"added": 1, "open": 1})
    assert store.audit(["r", "unknown", "other"]) == (3, {"r": r, "unknown": (0, {}), "other": other})


def test_leased_timelines_are_there_as_well(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS))
    store.claim_one(T)
    assert store.audit() == (1, {"r": (1, {"added": 1, "open": 1})})


def test_each_timeline_is_recounted_in_its_place(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS), Rec(T, b"l", NOW_MS))
    store.opened(store.claim_one(T))
    store.add(Rec(T, b"m", NOW_MS), Rec(b"waiting", b"k", NOW_MS))
    assert store.recount([T, b"waiting", b"unknown"]) == [
        [1, 1, 1, 1, 2, 2, 2], [1, 1, 1, 1, 0, 0, 0], [0, -1, 0, 0, 0, 0, 0],
    ]  # fmt: skip


def test_what_does_not_go_together_is_told_as_it_is(store: Scripts) -> None:
    store.add(Rec(T, b"k", NOW_MS), Rec(T, b"l", NOW_MS))
    store.opened(store.claim_one(T))
    store.is_sound = False
    store.command("ZADD", store.key("waiting", "r"), NOW_MS, T)
    store.command("ZADD", store.key("set", "r", T), 1, b"planted")
    store.command("HDEL", store.key("digest-values", "r", T), b"k")
    store.command("ZADD", store.key("digest", "r", T), 1, b"planted")
    assert store.recount([T]) == [[2, 0, 1, 0, 2, 3, 1]]
