"""claim.lua: what is due goes from waiting to leased, within budgets, over all routes at once."""

from __future__ import annotations

import pytest

from nsqdigest.store.schedule import EXEMPT_MS
from support.store import LEASE_MS, NOW_MS, Claim, Rec, Scripts

pytestmark = pytest.mark.script


def begin(store: Scripts, timeline: bytes, due_after_ms: int = 0, route: str = "r") -> None:
    store.add(Rec(timeline, b"k", NOW_MS), route=route, base_ms=NOW_MS + due_after_ms)


def test_a_due_timeline_goes_from_waiting_to_leased(store: Scripts) -> None:
    begin(store, b"t", -5)
    claimed = store.claim(token="mine")
    assert claimed.claims == [Claim("r", b"t", NOW_MS - 5, "mine")]
    assert store.waiting() == {}
    assert store.leased() == {b"t": NOW_MS + LEASE_MS}
    assert store.tokens() == {b"t": b"mine"}


def test_it_leaves_the_records_and_the_ledger_alone(store: Scripts) -> None:
    begin(store, b"t")
    before = store.open_set(b"t"), store.ledger(), store.timeline_count()
    store.claim()
    assert (store.open_set(b"t"), store.ledger(), store.timeline_count()) == before


def test_what_it_takes_keeps_the_instant_it_was_due(store: Scripts) -> None:
    store.add(Rec(b"t", b"k", NOW_MS), increment_ms=3, base_ms=NOW_MS - 9, bound_ms=NOW_MS + 99)
    store.claim(routes=[("r", 1, 3)])
    assert store.schedule(b"t") == (NOW_MS - 6, NOW_MS - 6, 1)


@pytest.mark.parametrize(("bound_ms", "written"), [(NOW_MS + 99, 1), (NOW_MS - 9, 0)])
def test_a_schedule_that_is_so_already_is_not_written_again(store: Scripts, bound_ms: int, written: int) -> None:
    store.add(Rec(b"t", b"k", NOW_MS), base_ms=NOW_MS - 9, bound_ms=bound_ms)
    before = hash_writes(store)
    assert store.claim().claims == [Claim("r", b"t", NOW_MS - 9, "token")]
    assert hash_writes(store) - before == 1 + written  # the token is always
    assert store.schedule(b"t") == (NOW_MS - 9, NOW_MS - 9, 1)


def hash_writes(store: Scripts) -> int:
    stats = store.command("INFO", "commandstats")
    return int(stats["cmdstat_hset"]["calls"]) if "cmdstat_hset" in stats else 0


def test_neighbours_are_due_each_by_its_own_schedule(store: Scripts) -> None:
    for number, name in enumerate((b"a", b"b", b"c", b"d")):
        store.add(Rec(name, b"k", NOW_MS), base_ms=NOW_MS - 10 + number // 2)
    assert [claim.due_ms for claim in store.claim().claims] == [NOW_MS - 10, NOW_MS - 10, NOW_MS - 9, NOW_MS - 9]


def test_it_answers_with_the_instant_it_worked_at(store: Scripts) -> None:
    assert store.claim().now_ms == NOW_MS


def test_without_an_instant_it_asks_redis_clock(store: Scripts) -> None:
    begin(store, b"t")
    store.now_ms = None
    seconds, microseconds = store.command("TIME")
    claimed = store.claim()
    assert 0 <= claimed.now_ms - (seconds * 1000 + microseconds // 1000) < 10_000
    assert store.leased() == {b"t": claimed.now_ms + LEASE_MS}


def test_what_is_not_due_is_not_taken(store: Scripts) -> None:
    begin(store, b"now")
    begin(store, b"later", 1)
    assert store.claim().timelines == [b"now"]
    assert store.waiting() == {b"later": NOW_MS + 1}


def test_what_is_leased_is_not_taken_again(store: Scripts) -> None:
    begin(store, b"t")
    store.claim(token="first")
    assert store.claim(token="second").claims == []
    assert store.tokens() == {b"t": b"first"}


def test_without_timelines_there_is_nothing_and_no_next(store: Scripts) -> None:
    claimed = store.claim()
    assert (claimed.claims, claimed.next_ms) == ([], None)
    assert store.dump() == {}


# -- the exact due instant


def test_records_since_push_it_back_and_the_score_follows(store: Scripts) -> None:
    for n in range(3):
        store.add(Rec(b"t", b"%d" % n, NOW_MS), increment_ms=10, base_ms=NOW_MS - 15, bound_ms=NOW_MS + 99)
    claimed = store.claim(routes=[("r", 1, 10)])
    assert (claimed.claims, claimed.next_ms) == ([], NOW_MS + 15)
    assert store.waiting() == {b"t": NOW_MS + 15}
    store.now_ms = NOW_MS + 14
    assert store.claim(routes=[("r", 1, 10)]).claims == []
    store.now_ms = NOW_MS + 15
    assert store.claim(routes=[("r", 1, 10)]).claims == [Claim("r", b"t", NOW_MS + 15, "token")]


def test_never_past_the_bound(store: Scripts) -> None:
    for n in range(9):
        store.add(Rec(b"t", b"%d" % n, NOW_MS), increment_ms=10, base_ms=NOW_MS - 15, bound_ms=NOW_MS)
    assert store.claim(routes=[("r", 1, 10)]).claims == [Claim("r", b"t", NOW_MS, "token")]


def test_due_ones_among_postponed_ones_are_taken(store: Scripts) -> None:
    for name in (b"a", b"b", b"c", b"d"):
        store.add(Rec(name, b"1", NOW_MS), increment_ms=10, base_ms=NOW_MS - 10, bound_ms=NOW_MS + 99)
    for name in (b"a", b"c"):
        store.add(Rec(name, b"2", NOW_MS), increment_ms=10)
    claimed = store.claim(routes=[("r", 1, 10)])
    assert claimed.timelines == [b"b", b"d"]
    assert store.waiting() == {b"a": NOW_MS + 10, b"c": NOW_MS + 10}


# -- when the next is due


@pytest.mark.parametrize(
    ("due_after_ms", "budget", "next_after_ms"),
    [
        ([], 9, None),
        ([0], 9, None),
        ([5], 9, 5),
        ([7, 5], 9, 5),
        ([-3, 5], 9, 5),
        ([-3, -2, -1], 2, -1),  # the budget ran out: at once
        ([-3, 5], 0, -3),
    ],
)
def test_it_tells_when_the_next_is_due(
    store: Scripts, due_after_ms: list[int], budget: int, next_after_ms: int | None
) -> None:
    for n, after_ms in enumerate(due_after_ms):
        begin(store, b"%d" % n, after_ms)
    expected = None if next_after_ms is None else NOW_MS + next_after_ms
    assert store.claim(budgets=[budget]).next_ms == expected


def test_the_next_is_that_of_all_routes(store: Scripts) -> None:
    for route, after_ms in (("one", 9), ("two", 4), ("three", 6)):
        begin(store, b"t", after_ms, route)
    assert store.claim(routes=[("one", 1, 0), ("two", 1, 0), ("three", 1, 0)]).next_ms == NOW_MS + 4


# -- budgets and routes


def test_a_budget_bounds_what_is_taken_the_longest_due_first(store: Scripts) -> None:
    for n in range(5):
        begin(store, b"%d" % n, -n)
    assert store.claim(budgets=[3]).timelines == [b"4", b"3", b"2"]


def test_routes_on_one_budget_share_it(store: Scripts) -> None:
    for n in range(3):
        begin(store, b"%d" % n, route="one")
        begin(store, b"%d" % n, route="two")
    claims = store.claim(budgets=[4], routes=[("one", 1, 0), ("two", 1, 0)]).claims
    assert [claim.route for claim in claims] == ["one"] * 3 + ["two"]


def test_a_route_draws_on_its_own_budget(store: Scripts) -> None:
    for n in range(3):
        for route in ("one", "two", "three"):
            begin(store, b"%d" % n, route=route)
    claims = store.claim(budgets=[1, 0, 2], routes=[("one", 3, 0), ("two", 2, 0), ("three", 1, 0)]).claims
    assert [claim.route for claim in claims] == ["one", "one", "three"]


def test_each_route_has_its_own_increment(store: Scripts) -> None:
    for route in ("one", "two"):
        store.add(Rec(b"t", b"k", NOW_MS), route=route, increment_ms=0, bound_ms=NOW_MS + 99)
    claimed = store.claim(routes=[("one", 1, 10), ("two", 1, 0)])
    assert [claim.route for claim in claimed.claims] == ["two"]
    assert claimed.next_ms == NOW_MS + 10


def test_a_route_that_is_not_named_is_left_alone(store: Scripts) -> None:
    begin(store, b"t", route="sick")
    before = store.dump()
    assert store.claim(routes=[("well", 1, 0)]).claims == []
    assert store.dump() == before


def test_500_of_a_route_in_one_call_and_the_rest_in_the_next(store: Scripts) -> None:
    store.watch = None
    store.add(*(Rec(b"%d" % n, b"k", NOW_MS) for n in range(500)))
    store.add(*(Rec(b"x%d" % n, b"k", NOW_MS) for n in range(7)))
    first = store.claim(budgets=[500])
    assert (len(first.claims), first.next_ms) == (500, NOW_MS)
    assert len(store.claim(budgets=[500]).claims) == 7


def test_500_postponed_ones_are_scored_anew_in_one_call(store: Scripts) -> None:
    store.watch = None
    for n in (1, 2):
        store.add(*(Rec(b"%d" % m, b"%d" % n, NOW_MS) for m in range(500)), bound_ms=NOW_MS + 9)
    assert store.claim(routes=[("r", 1, 2)]).next_ms == NOW_MS + 4
    assert set(store.waiting().values()) == {NOW_MS + 4}


def test_a_small_room_is_filled_from_behind_many_that_were_postponed(store: Scripts) -> None:
    """800 stand before the one that is due."""
    for n in (1, 2):
        for start in (0, 400):
            new = (Rec(b"%d" % m, b"%d" % n, NOW_MS) for m in range(start, start + 400))
            store.add(*new, base_ms=NOW_MS - 9, bound_ms=NOW_MS + 99)
    begin(store, b"due", -1)
    found: list[bytes] = []
    calls = 0
    while not found:
        claimed = store.claim(budgets=[3], routes=[("r", 1, 10)])
        assert claimed.next_ms is not None
        assert found or claimed.next_ms <= NOW_MS + 11
        found, calls = claimed.timelines, calls + 1
    assert (found, calls) == ([b"due"], 2)  # 500 in a call


def test_a_timeline_whose_schedule_is_lost_is_due_now(store: Scripts) -> None:
    """Only a loss of data can bring that about; it must not stand in the way of all others for ever."""
    store.is_sound = False
    begin(store, b"t", -5)
    begin(store, b"u", -5)
    store.command("HDEL", store.key("schedule", "r"), b"t")
    assert set(store.claim().claims) == {Claim("r", b"t", NOW_MS, "token"), Claim("r", b"u", NOW_MS - 5, "token")}
    assert isinstance(store.opened(Claim("r", b"t", NOW_MS, "token")).total, int)


def test_every_kind_of_key_it_touches(store: Scripts) -> None:
    begin(store, b"t")
    begin(store, b"u", route="other")
    store.claim(routes=[("r", 1, 0), ("other", 1, 0)])
    assert store.watch is not None
    assert store.watch.touched["claim"] == {
        *store.keys("waiting leased tokens schedule", "r"),
        *store.keys("waiting leased tokens schedule", "other"),
        store.key("agenda"),
    }


# -- quiet hours


QUIET = [("r", -1, 10)]


def test_in_quiet_hours_only_what_is_exempt_is_taken(store: Scripts) -> None:
    begin(store, b"due", -5)
    begin(store, b"exempt", EXEMPT_MS - NOW_MS)
    claimed = store.claim(routes=QUIET)
    assert claimed.claims == [Claim("r", b"exempt", EXEMPT_MS, "token")]
    assert store.schedule(b"exempt") == (EXEMPT_MS, EXEMPT_MS, 1)
    assert store.waiting() == {b"due": NOW_MS - 5}


def test_what_quiet_hours_hold_back_is_nothing_to_come_back_for(store: Scripts) -> None:
    begin(store, b"due", -5)
    begin(store, b"later", 7, route="other")
    assert store.claim(routes=QUIET).next_ms is None
    assert store.claim(routes=[*QUIET, ("other", 1, 0)]).next_ms == NOW_MS + 7
    agenda = store.client.zrange(store.key("agenda"), 0, -1, withscores=True)
    assert agenda == [(store.key("waiting", "r"), NOW_MS - 5), (store.key("waiting", "other"), NOW_MS + 7)]


def test_what_is_exempt_and_finds_no_room_is_to_be_come_back_for(store: Scripts) -> None:
    begin(store, b"exempt", EXEMPT_MS - NOW_MS)
    assert store.claim(routes=QUIET, budgets=[0]).next_ms == EXEMPT_MS


def test_what_was_flushed_with_quiet_hours_is_taken_in_them_whatever_comes_meanwhile(store: Scripts) -> None:
    begin(store, b"t", 5_000)
    assert store.flush(b"t", due=EXEMPT_MS) == "due"
    store.add(*(Rec(b"t", b"%d" % n, NOW_MS) for n in range(9)), increment_ms=10)
    assert store.claim(routes=QUIET).timelines == [b"t"]
