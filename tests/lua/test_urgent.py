"""Urgent records: add makes their timeline due at once, or finish lets the next digest follow at once."""

from __future__ import annotations

from typing import Any

import pytest

from support.cutting_off import CutOff, Interruptible
from support.store import EXEMPT_MS, NOW_MS, SCHEDULE, Claim, Rec, Scripts

pytestmark = pytest.mark.script

T, U = b"t", b"u"
HOUR_MS = 3_600_000
EXEMPT = (EXEMPT_MS, EXEMPT_MS)
LATER: dict[str, Any] = {"base_ms": NOW_MS + HOUR_MS, "bound_ms": NOW_MS + 2 * HOUR_MS}


def rec(key: bytes, age_ms: int = 0, *, timeline: bytes = T, value: bytes = b"{}", repeat: bool = False) -> Rec:
    return Rec(timeline, key, NOW_MS - age_ms, value, repeat)


def urgent(key: bytes, age_ms: int = 0, *, timeline: bytes = T, value: bytes = b"{}", repeat: bool = False) -> Rec:
    return rec(key, age_ms, timeline=timeline, value=value, repeat=repeat)._replace(urgent=True)


def instants(store: Scripts, timeline: bytes = T) -> tuple[int, int]:
    schedule = store.schedule(timeline)
    assert schedule is not None
    return schedule[:2]


def under_way(store: Scripts) -> Claim:
    store.add(rec(b"a"))
    claim = store.claim_one(T)
    store.opened(claim)
    return claim


# -- add


def test_a_timeline_that_begins_with_one_is_due_at_once(store: Scripts) -> None:
    answer = store.add(rec(b"a", timeline=U), urgent(b"b"), **LATER)
    assert answer.due_at_once == [2]
    assert store.schedule(T) == (*EXEMPT, 1)
    assert store.waiting() == {U: NOW_MS + HOUR_MS, T: EXEMPT_MS}
    assert [claim.timeline for claim in store.claim().claims] == [T]


def test_a_timeline_that_waits_becomes_due_with_all_its_records(store: Scripts) -> None:
    store.add(rec(b"a"), rec(b"b", timeline=U), **LATER)
    answer = store.add(rec(b"c", timeline=U), urgent(b"d"), rec(b"e"), **LATER)
    assert (answer.counts, answer.due_at_once) == ({"added": 3}, [2])
    assert store.schedule(T) == (*EXEMPT, 3)
    assert store.schedule(U) == (*LATER.values(), 2)
    assert store.claim().timelines == [T]


def test_what_follows_does_not_put_it_off_and_it_is_told_once(store: Scripts) -> None:
    store.add(urgent(b"a"), **LATER)
    assert store.add(rec(b"b"), increment_ms=HOUR_MS, **LATER).due_at_once == []
    assert store.add(urgent(b"c"), increment_ms=HOUR_MS, **LATER).due_at_once == []
    assert store.schedule(T) == (*EXEMPT, 3)
    assert store.claim(routes=[("r", 1, HOUR_MS)]).claims[0].due_ms == EXEMPT_MS


def test_one_that_takes_the_place_of_an_older_one_is_urgent(store: Scripts) -> None:
    store.add(rec(b"a", 5), **LATER)
    assert store.add(urgent(b"a", 4), **LATER).due_at_once == [1]
    assert store.schedule(T) == (*EXEMPT, 1)


def test_one_that_finds_its_place_in_a_full_set_is_urgent(store: Scripts) -> None:
    store.add(rec(b"a", 5), capacity=1, **LATER)
    assert store.add(urgent(b"b", 4), capacity=1, **LATER).due_at_once == [1]


@pytest.mark.parametrize(
    "late",
    [urgent(b"a", 9), urgent(b"a", 9, repeat=True), urgent(b"z", 9), urgent(b"a", 5, value=b"!"), urgent(b"a", 5)],
    ids=["superseded", "superseded repeat", "too old for a full set", "the smaller value", "an exact copy"],
)
def test_one_that_changes_nothing_makes_nothing_urgent(store: Scripts, late: Rec) -> None:
    store.add(rec(b"a", 5), rec(b"b", 4), capacity=2, **LATER)
    before = store.waiting(), store.schedules("r")
    assert store.add(late, capacity=2, **LATER).due_at_once == []
    assert (store.waiting(), store.schedules("r")) == before


def test_beyond_the_limit_of_timelines_there_is_nothing_to_be_urgent(store: Scripts) -> None:
    store.add(rec(b"a", timeline=U), limit=1, **LATER)
    assert store.add(urgent(b"a"), limit=1, **LATER).counts == {"added": 1, "over_timelines": 1}
    assert store.schedule(T) is None


def test_a_duplicate_of_what_was_delivered_makes_nothing_urgent(store: Scripts) -> None:
    store.add(urgent(b"a"))
    store.opened(claim := store.claim_one(T))
    store.close(claim, base_ms=NOW_MS + HOUR_MS)
    before = store.waiting(), store.schedules("r")
    assert store.add(urgent(b"a", repeat=True)).counts == {"added": 1, "duplicates": 1}
    assert (store.waiting(), store.schedules("r")) == before


def test_filed_again_it_does_not_end_a_delay_that_began_since(store: Scripts) -> None:
    """It was claimed and given back until later, as where its sink is stopped."""
    batch = [urgent(b"a"), rec(b"b"), urgent(b"b", 1)]
    store.add(*batch, **LATER)
    store.fail(store.claim_one(T), NOW_MS + HOUR_MS, 0)
    for again in (batch, batch[::-1], [record._replace(repeat=True) for record in batch]):
        store.add(*again, **LATER)
        assert store.schedule(T) == (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, 2)


def test_a_timeline_that_is_claimed_stays_leased_and_is_exempt(store: Scripts) -> None:
    store.add(rec(b"a"))
    store.claim_one(T)
    assert store.add(urgent(b"b")).due_at_once == []
    assert store.schedule(T) == (*EXEMPT, 2)
    assert store.waiting() == {}


def test_the_keys_that_it_touches(store: Scripts) -> None:
    under_way(store)
    store.add(urgent(b"b"))
    store.add(urgent(b"b", timeline=U), **LATER)
    assert store.watch is not None
    assert store.watch.complaints == []


@pytest.mark.parametrize("before", [[], [rec(b"a", 9)], [rec(b"z", 9)]], ids=["new", "superseding", "known"])
def test_cut_off_after_any_write_it_is_urgent_when_it_comes_again(store: Scripts, before: list[Rec]) -> None:
    for writes in range(1, 20):
        store.client.flushdb()
        interruptible = Interruptible(store.client)
        if before:
            interruptible.add(*before, **LATER)
        interruptible.cut_off_after(writes)
        try:
            interruptible.add(urgent(b"a"), **LATER)
        except CutOff:
            interruptible.add(urgent(b"a", repeat=True), **LATER)
            assert interruptible.schedule(T) == (*EXEMPT, 1 + (len(before) > 0 and before[0].key != b"a"))
            assert interruptible.waiting() == {T: EXEMPT_MS}
        else:
            assert writes > 4
            return
    raise AssertionError("more writes than expected")


# -- while its digest is under way


def test_the_next_digest_follows_at_once(store: Scripts) -> None:
    claim = under_way(store)
    answer = store.add(urgent(b"b"), **LATER)
    assert (answer.counts, answer.due_at_once) == ({"added": 1}, [])
    assert store.close(claim, base_ms=NOW_MS + HOUR_MS, increment_ms=HOUR_MS) == "closed"
    assert store.schedule(T) == (*EXEMPT, 1)
    assert store.waiting() == {T: EXEMPT_MS}
    again = store.opened(store.claim_one(T), "id-2")
    assert (again.total, again.iteration) == (1, 2)


def test_after_that_its_policy_holds_again(store: Scripts) -> None:
    claim = under_way(store)
    store.add(urgent(b"b"), **LATER)
    store.close(claim, base_ms=NOW_MS + HOUR_MS)
    store.opened(claim := store.claim_one(T), "id-2")
    store.close(claim, "id-2", base_ms=NOW_MS + HOUR_MS)
    assert instants(store) == (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS)


def test_a_bury_lets_it_follow_too(store: Scripts) -> None:
    claim = under_way(store)
    store.add(urgent(b"b"), **LATER)
    store.bury(claim, base_ms=NOW_MS + HOUR_MS)
    assert instants(store) == EXEMPT


@pytest.mark.parametrize("posts", [0, 1])
def test_a_retry_waits_as_it_would_and_then_the_next_follows(store: Scripts, posts: int) -> None:
    claim = under_way(store)
    store.add(urgent(b"b"), **LATER)
    store.fail(claim, NOW_MS + 5, posts)
    assert instants(store) == (NOW_MS + 5, NOW_MS + 5)
    store.now_ms = NOW_MS + 5
    claim = store.claim_one(T)
    assert store.opened(claim, "id-2").word == "again"
    store.close(claim, base_ms=NOW_MS + HOUR_MS)
    assert instants(store) == EXEMPT


def test_while_a_retry_waits_it_makes_nothing_due(store: Scripts) -> None:
    store.fail(under_way(store), NOW_MS + HOUR_MS)
    assert store.add(urgent(b"b")).due_at_once == []
    assert store.schedule(T) == (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, 1)
    assert store.head(T)[b"urgent"] == b"1"


def test_a_merge_takes_it_in_and_nothing_follows(store: Scripts) -> None:
    store.fail(under_way(store), NOW_MS)
    store.add(urgent(b"b"))
    merged = store.opened(claim := store.claim_one(T), "id-2", merge_capacity=100)
    assert (merged.word, merged.total) == ("merged", 2)
    assert b"urgent" not in store.head(T)
    store.close(claim, "id-2", base_ms=NOW_MS + HOUR_MS)
    assert instants(store) == (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS)


def test_a_lease_that_runs_out_loses_nothing_of_it(store: Scripts) -> None:
    under_way(store)
    store.add(urgent(b"b"))
    store.now_ms = NOW_MS + HOUR_MS
    assert store.maintenance() == 1
    store.opened(claim := store.claim_one(T), "id-2")
    store.close(claim, base_ms=NOW_MS + 2 * HOUR_MS)
    assert instants(store) == EXEMPT


def test_an_open_that_is_asked_again_keeps_it(store: Scripts) -> None:
    claim = under_way(store)
    store.add(urgent(b"b"))
    assert store.opened(claim, "id-2").word == "again"
    store.close(claim, base_ms=NOW_MS + HOUR_MS)
    assert instants(store) == EXEMPT


# -- retries in quiet hours


QUIET: list[tuple[str, int, int]] = [("r", -1, 0), ("s", -1, 0)]


def test_the_retry_of_an_urgent_digest_is_not_held_back_by_quiet_hours(store: Scripts) -> None:
    """However often it fails; each waits as long as any retry does."""
    store.add(urgent(b"a"), **LATER)
    for number in range(1, 4):
        claimed = store.claim(routes=QUIET)
        assert [claim.due_ms for claim in claimed.claims] == [EXEMPT_MS]
        store.opened(claimed.claims[0])
        assert store.fail(claimed.claims[0], NOW_MS + 5 * number, is_retry=True) == "waiting"
        assert store.schedule(T) == (NOW_MS + 5 * number, NOW_MS + 5 * number, 0)
        early = store.claim(routes=QUIET)
        assert (early.claims, early.next_ms) == ([], NOW_MS + 5 * number)
        store.now_ms = NOW_MS + 5 * number
    store.close(store.claim(routes=QUIET).claims[0], base_ms=NOW_MS + HOUR_MS)
    assert store.schedule(T) == (NOW_MS + HOUR_MS, NOW_MS + HOUR_MS, 0)
    store.now_ms = NOW_MS + HOUR_MS
    assert store.claim(routes=QUIET).claims == []


def test_outside_of_them_it_stays_exempt_from_those_that_begin(store: Scripts) -> None:
    store.add(urgent(b"a"), **LATER)
    store.opened(claim := store.claim_one(T))
    store.fail(claim, NOW_MS + 5, is_retry=True)
    store.now_ms = NOW_MS + 5
    claim = store.claim_one(T)
    assert claim.due_ms == NOW_MS + 5
    store.fail(claim, NOW_MS + 9, is_retry=True)
    store.now_ms = NOW_MS + 9
    assert store.claim(routes=QUIET).timelines == [T]


@pytest.mark.parametrize("is_leased", [True, False])
def test_behind_a_retry_an_urgent_record_lets_that_go_out(store: Scripts, is_leased: bool) -> None:
    claim = under_way(store)
    if is_leased:
        store.add(urgent(b"b"), is_quiet=True)
    store.fail(claim, NOW_MS + 5, is_retry=True)
    if not is_leased:
        store.add(urgent(b"b"), rec(b"c", timeline=U), is_quiet=True, base_ms=NOW_MS + HOUR_MS)
    store.now_ms = NOW_MS + 4
    assert store.claim(routes=QUIET).claims == []
    store.now_ms = NOW_MS + 5
    (claim,) = store.claim(routes=QUIET).claims
    assert store.opened(claim, "id-2").word == "again"
    store.close(claim, base_ms=NOW_MS + HOUR_MS)
    assert store.claim(routes=QUIET).timelines == [T]


def test_other_retries_are_held_back_and_so_is_what_was_flushed_elsewhere(store: Scripts) -> None:
    store.fail(under_way(store), NOW_MS + 5, is_retry=True)
    store.now_ms = NOW_MS + 9
    assert store.claim(routes=QUIET).claims == []
    assert not store.client.exists(store.key("exempt"))


def test_retries_of_another_route_that_are_over_hide_none(store: Scripts) -> None:
    others = [b"%d" % number for number in range(500)]
    store.add(*(urgent(b"a", timeline=name) for name in others), route="day", **LATER)
    for is_last in (False, True):
        for claim in store.claim(routes=[("day", 1, 0)]).claims:
            if is_last:
                store.close(claim, base_ms=NOW_MS + HOUR_MS)
            else:
                store.opened(claim)
                store.fail(claim, NOW_MS + 1, posts=1, is_retry=True)
        store.now_ms = NOW_MS + 1
    store.add(urgent(b"a"), **LATER)
    store.opened(claim := store.claim(routes=QUIET).claims[0])
    store.fail(claim, NOW_MS + 5, is_retry=True)
    store.now_ms = NOW_MS + 5
    assert store.claim(routes=QUIET).timelines == [T]


def test_a_retry_that_was_moved_since_is_one_like_others(store: Scripts) -> None:
    store.add(urgent(b"a"), **LATER)
    store.opened(claim := store.claim_one(T))
    store.fail(claim, NOW_MS + 5, is_retry=True)
    store.hold(T, "snooze", NOW_MS + 9)
    store.now_ms = NOW_MS + 9
    assert store.claim(routes=QUIET).claims == []
    assert store.claim().timelines == [T]


def test_of_several_routes_each_has_its_own(store: Scripts) -> None:
    for route in ("r", "s"):
        store.add(urgent(b"a"), route=route, **LATER)
        (claim,) = store.claim(routes=[(route, 1, 0)]).claims
        store.opened(claim, f"id-{route}")
        store.fail(claim, NOW_MS + 5, is_retry=True)
    store.now_ms = NOW_MS + 5
    assert [claim.route for claim in store.claim(routes=QUIET[1:]).claims] == ["s"]
    assert [claim.route for claim in store.claim(routes=QUIET[:1]).claims] == ["r"]


def test_without_room_it_waits_and_is_next(store: Scripts) -> None:
    store.add(urgent(b"a"), **LATER)
    store.opened(claim := store.claim_one(T))
    store.fail(claim, NOW_MS + 5, is_retry=True)
    store.now_ms = NOW_MS + 5
    claimed = store.claim([0], routes=QUIET)
    assert (claimed.claims, claimed.next_ms) == ([], NOW_MS + 5)


# -- operators


def test_adopted_meanwhile_it_is_due_at_once(store: Scripts) -> None:
    under_way(store)
    store.add(urgent(b"b"))
    store.adopt(T, "new", "r")
    packed = store.command("HGET", store.key("schedule", "new"), T)
    assert SCHEDULE.unpack(packed) == (*EXEMPT, 2)


def test_deleted_meanwhile_nothing_of_it_is_left(store: Scripts) -> None:
    under_way(store)
    store.add(urgent(b"b"))
    store.delete(T)
    store.add(rec(b"c"), **LATER)
    assert store.schedule(T) == (*LATER.values(), 1)


def test_maintenance_leaves_it_where_it_is(store: Scripts) -> None:
    store.add(urgent(b"b"), **LATER)
    store.maintained(longest_ms=1, cursors={"r": b"all"})
    assert store.waiting() == {T: EXEMPT_MS}
    assert instants(store) == EXEMPT
