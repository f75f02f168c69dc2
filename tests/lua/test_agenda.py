"""The agenda of a partition: for each route of which timelines wait, an instant before which nothing of it is due."""

from __future__ import annotations

from typing import Any

import pytest

from support.store import EXEMPT_MS, LEASE_MS, NOW_MS, Rec, Scripts, own_timeline

pytestmark = pytest.mark.script

T = b"t"


def agenda(store: Scripts) -> dict[bytes, int]:
    """By route."""
    found: Any = store.client.zrange(store.key("agenda"), 0, -1, withscores=True)
    return {name.removeprefix(store.key("waiting") + b":"): int(score) for name, score in found}


def test_a_timeline_that_begins_is_put_down_and_the_earliest_stays(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1), base_ms=NOW_MS + 20)
    assert agenda(store) == {b"r": NOW_MS + 20}
    store.add(Rec(b"u", b"k", 1), Rec(b"v", b"k", 1), base_ms=NOW_MS + 10)
    store.add(Rec(b"w", b"k", 1), base_ms=NOW_MS + 30)
    store.add(Rec(T, b"k", 1), base_ms=NOW_MS + 5, route="other")
    assert agenda(store) == {b"r": NOW_MS + 10, b"other": NOW_MS + 5}


def test_a_claim_puts_off_to_what_is_left_and_strikes_out_where_nothing_is(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1))
    store.add(Rec(b"u", b"k", 1), base_ms=NOW_MS + 10)
    store.claim()
    assert agenda(store) == {b"r": NOW_MS + 10}
    store.now_ms = NOW_MS + 10
    store.claim(token="later")
    assert agenda(store) == {}


def test_a_claim_puts_off_to_the_exact_instant(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1), bound_ms=NOW_MS + 100)
    store.add(Rec(T, b"l", 1), bound_ms=NOW_MS + 100)
    store.claim(routes=[("r", 1, 7)])
    assert agenda(store) == {b"r": NOW_MS + 14}


def test_a_claim_of_another_route_leaves_it(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1))
    store.claim(routes=[("other", 1, 0)])
    assert agenda(store) == {b"r": NOW_MS}


def test_what_no_budget_was_left_for_stays_due(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1), Rec(b"u", b"k", 1))
    store.claim(budgets=[1])
    assert agenda(store) == {b"r": NOW_MS}


def test_a_claim_of_all_routes_puts_a_lost_agenda_right(store: Scripts) -> None:
    store.add(Rec(T, b"k", 1), base_ms=NOW_MS + 10)
    store.command("UNLINK", store.key("agenda"))
    store.claim()
    assert agenda(store) == {b"r": NOW_MS + 10}


@pytest.mark.parametrize("way", ["close", "bury", "fail", "maintenance", "flush", "revive", "adopt"])
def test_whatever_lets_a_timeline_wait_puts_it_down(store: Scripts, way: str) -> None:
    store.add(Rec(T, b"k", 1))
    store.opened(claim := store.claim_one(T))
    assert agenda(store) == {}
    match way:
        case "close":
            store.close(claim, base_ms=NOW_MS + 5)
        case "bury":
            store.bury(claim, base_ms=NOW_MS + 5)
        case "fail":
            store.fail(claim, NOW_MS + 5)
        case "maintenance":
            store.now_ms = NOW_MS + LEASE_MS
            store.maintenance()
        case "flush":
            store.fail(claim, NOW_MS + 50)
            store.flush(T)
        case "revive":
            store.bury(claim, base_ms=NOW_MS + 50)
            store.revive()
            assert store.waiting()[own_timeline("id-1", T)] == EXEMPT_MS
        case "adopt":
            store.adopt(T, "r2")
    route = "r2" if way == "adopt" else "r"
    assert agenda(store) == {route.encode(): min(store.waiting(route).values())}


@pytest.mark.parametrize("way", ["delete", "adopt"])
def test_a_route_of_which_nothing_waits_any_more_is_struck_out(store: Scripts, way: str) -> None:
    store.add(Rec(T, b"k", 1), Rec(b"u", b"k", 1))
    for timeline in (T, b"u"):
        assert b"r" in agenda(store)
        if way == "delete":
            store.delete(timeline)
        else:
            store.adopt(timeline, "r2")
    assert b"r" not in agenda(store)
