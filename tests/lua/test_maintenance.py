"""maintenance.lua: timelines whose lease ran out wait again, never later than they were due."""

from __future__ import annotations

import pytest

from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts

pytestmark = pytest.mark.script

T = b"t"


def lease(store: Scripts, timeline: bytes = T, due_after_ms: int = 0, route: str = "r") -> Claim:
    store.add(Rec(timeline, b"k", NOW_MS), route=route, base_ms=NOW_MS + due_after_ms)
    return store.claim_one(timeline, route)


def test_a_lease_that_ran_out_is_taken_back(store: Scripts) -> None:
    lease(store, due_after_ms=-7)
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintenance() == 1
    assert store.waiting() == {T: NOW_MS - 7}
    assert (store.leased(), store.tokens()) == ({}, {})


def test_a_lease_that_lasts_stays(store: Scripts) -> None:
    lease(store)
    store.now_ms = NOW_MS + LEASE_MS - 1
    before = store.dump()
    assert store.maintenance() == 0
    assert store.dump() == before


def test_it_is_due_at_once_whatever_came_meanwhile(store: Scripts) -> None:
    lease(store, due_after_ms=-7)
    store.add(Rec(T, b"l", NOW_MS), Rec(T, b"m", NOW_MS), increment_ms=1000)
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    assert store.claim(routes=[("r", 1, 1000)]).claims == [Claim("r", T, NOW_MS - 7, "token")]


def test_records_and_snapshot_stay(store: Scripts) -> None:
    store.opened(lease(store))
    store.add(Rec(T, b"new", NOW_MS))
    before = store.snapshot(T), store.head(T), store.open_set(T), store.ledger()
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    assert (store.snapshot(T), store.head(T), store.open_set(T), store.ledger()) == before


def test_a_renewed_lease_counts_from_its_renewal(store: Scripts) -> None:
    claim = lease(store)
    store.now_ms = NOW_MS + 10
    store.renew(claim)
    store.now_ms = NOW_MS + LEASE_MS + 9
    assert store.maintenance() == 0
    store.now_ms = NOW_MS + LEASE_MS + 10
    assert store.maintenance() == 1


def test_it_looks_after_all_given_routes_and_no_other(store: Scripts) -> None:
    for route in ("one", "two", "other"):
        lease(store, route=route)
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintenance(["one", "two"]) == 2
    assert store.leased("other") == {T: NOW_MS + LEASE_MS}


def test_so_many_of_a_route_in_one_call_those_first_that_ran_out_first(store: Scripts) -> None:
    for n in range(3):
        store.now_ms = NOW_MS - n
        lease(store, b"%d" % n, due_after_ms=-99)
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintenance(limit=2) == 2
    assert set(store.leased()) == {b"0"}
    assert store.maintenance(limit=2) == 1


def test_500_in_one_call(store: Scripts) -> None:
    store.watch = None
    store.add(*(Rec(b"%d" % n, b"k", NOW_MS) for n in range(500)))
    store.claim()
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintenance() == 500
    assert len(store.waiting()) == 500


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    store.now_ms = None
    store.add(Rec(T, b"k", NOW_MS))
    store.claim(lease_ms=LEASE_MS)
    assert store.maintenance() == 0
    store.claim(lease_ms=-1)
    store.renew(Claim("r", T, NOW_MS, "token"), lease_ms=-1)
    assert store.maintenance() == 1


def test_with_nothing_leased_it_does_nothing(store: Scripts) -> None:
    assert store.maintenance() == 0
    assert store.dump() == {}


def test_a_timeline_whose_schedule_is_lost_is_due_now(store: Scripts) -> None:
    """Only a loss of data can bring that about; it must not stand in the way of all others for ever."""
    store.is_sound = False
    lease(store)
    store.command("DEL", store.key("schedule", "r"))
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintenance() == 1
    assert store.claim().timelines == [T]


@pytest.mark.parametrize("place", [0, 499, 500, 1200])
def test_a_lease_that_ran_out_is_found_among_any_number_of_routes(store: Scripts, place: int) -> None:
    routes = [f"route-{number}" for number in range(1201)]
    store.add(Rec(T, b"k", NOW_MS), route=routes[place])
    store.claim(routes=[(routes[place], 1, 0)])
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintenance(routes) == 1
    assert store.maintenance(routes) == 0


HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS
AGE_MS = 13 * YEAR_MS


def test_what_a_clock_far_ahead_had_put_off_comes_back_to_the_longest_delay(store: Scripts) -> None:
    """Redis' clock was years ahead while a digest was closed, and while another timeline was claimed."""
    store.now_ms = NOW_MS + AGE_MS
    store.add(Rec(T, b"k", NOW_MS), Rec(b"u", b"k", NOW_MS), base_ms=NOW_MS + AGE_MS)
    store.opened(claim := store.claim_one(T), "id-1")
    store.close(claim, base_ms=NOW_MS + AGE_MS, bound_ms=NOW_MS + AGE_MS + HOUR_MS)
    store.now_ms = NOW_MS
    assert store.maintained(longest_ms=HOUR_MS, longest_lease_ms=LEASE_MS).brought_back == 2
    assert store.waiting() == {T: NOW_MS + HOUR_MS}
    assert store.schedule(T) == (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, 0)
    assert store.leased() == {b"u": NOW_MS + LEASE_MS}
    store.now_ms = NOW_MS + LEASE_MS
    assert store.maintained(longest_ms=HOUR_MS, longest_lease_ms=LEASE_MS).ran_out == 1
    assert store.waiting() == {T: NOW_MS + HOUR_MS, b"u": NOW_MS + LEASE_MS + HOUR_MS}


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, HOUR_MS + 1, 10 * YEAR_MS])
def test_what_some_policy_may_have_put_off_stays(store: Scripts, ahead_ms: int) -> None:
    """Another daemon's file may have a rarer one."""
    lease(store)
    store.add(Rec(b"u", b"k", NOW_MS), base_ms=NOW_MS + ahead_ms)
    before = store.dump()
    assert store.maintained(longest_ms=HOUR_MS, longest_lease_ms=LEASE_MS).brought_back == 0
    assert store.dump() == before


def test_a_timeline_that_is_nowhere_waits_again_page_by_page(store: Scripts) -> None:
    names = [b"%d" % number for number in range(1200)]
    for start in (0, 400, 800):
        store.add(*(Rec(name, b"k", NOW_MS) for name in names[start : start + 400]), limit=9999)
    store.command("ZREM", store.key("waiting", "r"), *names[::2])
    found, cursor = 0, b"0"
    for _ in range(20):
        done = store.maintained(limit=100, cursors={"r": cursor})
        found += done.found
        cursor, is_off = done.more.get("r", (b"0", False))
        assert not is_off
    assert found == 600
    assert store.waiting() == dict.fromkeys(names, NOW_MS)


def test_a_smaller_increment_brings_what_waits_forward(store: Scripts) -> None:
    """A score may be earlier than a timeline is due, never later."""
    store.add(
        *(Rec(T, b"%d" % n, NOW_MS) for n in range(5)), base_ms=NOW_MS, bound_ms=NOW_MS + HOUR_MS, increment_ms=60_000
    )
    assert store.waiting() == {T: NOW_MS + 5 * 60_000}
    assert store.maintained(increment_ms=1000, cursors={"r": b"all"}).more == {}
    assert store.waiting() == {T: NOW_MS + 5 * 1000}
    store.now_ms = NOW_MS + 5 * 1000
    assert store.claim(routes=[("r", 1, 1000)]).timelines == [T]


def test_a_count_that_is_off_is_told_and_set_right(store: Scripts) -> None:
    lease(store)
    store.command("INCRBY", store.key("count"), 3)
    assert store.maintained().miscounted == 3
    assert store.census() == -3
    assert (store.timeline_count(), store.maintained().miscounted) == (1, 0)


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    lease(store)
    store.now_ms = NOW_MS + LEASE_MS
    store.maintenance()
    assert store.watch is not None
    assert store.watch.touched["maintenance"] == {
        *store.keys("waiting leased tokens schedule ledger", "r"),
        *map(store.key, ["count", "agenda"]),
    }


def test_so_many_in_one_call_over_all_routes_and_the_others_follow(store: Scripts) -> None:
    """A route that a call did not get to keeps the place of its census."""
    routes = ["one", "two", "three"]
    for route in routes:
        for number in range(3):
            lease(store, b"%d" % number, route=route)
    store.now_ms = NOW_MS + LEASE_MS
    first = store.maintained(routes, 4, cursors={"three": b"all"})
    assert (first.ran_out, first.is_cut_short, first.miscounted) == (4, True, 0)
    assert first.more["three"] == (b"all", False)
    second = store.maintained([*routes[1:], routes[0]], 500, cursors={"three": b"all"})
    assert (second.ran_out, second.is_cut_short) == (5, False)
    assert second.more == {}
