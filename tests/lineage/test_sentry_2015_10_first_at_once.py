"""Sentry digests of October 2015: the first event at once, what follows gathered, postponed by each, up to a limit.

The same numbers for the same settings (minimum 300 s, increment 30 s, maximum 1800 s), and its weaknesses shown absent.
"""

from __future__ import annotations

import pytest

from nsqdigest.config import Policy
from nsqdigest.store.schedule import Plan
from support.store import NOW_MS, Added, Claim, Rec, Scripts

pytestmark = pytest.mark.lineage

S = 1_000
POLICY = Policy(
    name="sentry-2015-10",
    immediate=True,
    minimum_delay_ms=300 * S,
    increment_delay_ms=30 * S,
    maximum_delay_ms=1800 * S,
    growth="none",
    growth_steps=0,
    intervals_ms=(),
    capacity=500,
    on_retry="frozen",
    dedupe_window_ms=0,
)
INCREMENT_MS = POLICY.increment_delay_ms
T = b"t"


def add(store: Scripts, *records: Rec, capacity: int = POLICY.capacity) -> Added:
    assert store.now_ms is not None
    first = Plan(POLICY).beginning(store.now_ms)
    return store.add(
        *records, base_ms=first.base_ms, bound_ms=first.bound_ms, increment_ms=INCREMENT_MS, capacity=capacity
    )


def event(n: int, at_ms: int = 0, value: bytes = b"{}") -> Rec:
    return Rec(T, b"%d" % n, NOW_MS + at_ms, value)


def claim(store: Scripts) -> list[Claim]:
    return store.claim(routes=[("r", 1, INCREMENT_MS)]).claims


def due_ms(store: Scripts) -> int:
    """When it is claimed, worked out from its schedule."""
    schedule = store.schedule(T)
    assert schedule is not None
    base_ms, bound_ms, records = schedule
    return min(base_ms + INCREMENT_MS * records, bound_ms) - NOW_MS


def deliver(store: Scripts, digest_id: str = "id-1") -> None:
    """Claimed, opened and closed, all of it now."""
    (mine,) = claim(store)
    opened = store.opened(mine, digest_id)
    after = Plan(POLICY).after_digest(opened.iteration, opened.now_ms)
    bounds = {"base_ms": after.base_ms, "bound_ms": after.bound_ms, "increment_ms": INCREMENT_MS}
    assert store.close(mine, digest_id, remember_ms=0, **bounds) == "closed"


@pytest.fixture
def delivered(store: Scripts) -> Scripts:
    """A timeline whose first digest has just gone out."""
    add(store, event(0))
    deliver(store)
    return store


# -- its stories


def test_a_record_for_an_unknown_timeline_makes_it_due_now(store: Scripts) -> None:
    add(store, event(0))
    assert [one.timeline for one in claim(store)] == [T]


def test_the_caller_is_told_so_exactly_once(store: Scripts) -> None:
    assert [add(store, event(n)).due_at_once for n in range(3)] == [[1], [], []]


def test_after_a_digest_it_is_due_at_now_plus_the_minimum(delivered: Scripts) -> None:
    assert due_ms(delivered) == 300 * S


@pytest.mark.parametrize(("records", "due_s"), [(1, 330), (2, 360), (10, 600), (50, 1800), (200, 1800)])
def test_a_record_for_a_waiting_one_moves_it_by_the_increment_up_to_the_last_digest_plus_the_maximum(
    delivered: Scripts, records: int, due_s: int
) -> None:
    delivered.watch = None
    for n in range(records):
        add(delivered, event(n))
    assert due_ms(delivered) == due_s * S
    delivered.now_ms = NOW_MS + due_s * S - 1
    assert claim(delivered) == []
    delivered.now_ms += 1
    assert [one.timeline for one in claim(delivered)] == [T]


def test_a_record_for_one_that_is_being_delivered_moves_nothing(store: Scripts) -> None:
    add(store, event(0))
    (mine,) = claim(store)
    before = store.leased(), store.waiting()
    add(store, event(1))
    assert (store.leased(), store.waiting()) == before
    assert store.open(mine) != "stale"


def test_an_empty_digest_forgets_the_timeline(delivered: Scripts) -> None:
    delivered.now_ms = NOW_MS + 300 * S
    (mine,) = claim(delivered)
    assert delivered.open(mine) == "empty"
    assert delivered.timeline_count() == 0
    assert add(delivered, event(1)).due_at_once == [1]


# -- its weaknesses


def test_replaying_an_add_does_not_postpone_the_digest_again(delivered: Scripts) -> None:
    for _ in range(5):
        add(delivered, event(1), event(2))
    assert due_ms(delivered) == 360 * S


@pytest.mark.parametrize("kind", ["head", "shown"])
def test_nothing_fires_because_what_told_of_the_last_digest_is_gone(delivered: Scripts, kind: str) -> None:
    """There the key of the last digest could expire, and a waiting timeline was due at once."""
    delivered.is_sound = False
    add(delivered, event(1))
    delivered.command("DEL", delivered.key(kind, "r", T))
    add(delivered, event(2))
    assert claim(delivered) == []
    assert due_ms(delivered) == 360 * S


def test_nothing_that_tells_when_it_is_due_can_expire(delivered: Scripts) -> None:
    add(delivered, event(1))
    assert all(delivered.command("PTTL", name) == -1 for name in delivered.dump())


@pytest.mark.parametrize(
    "changing_nothing",
    [event(1, 5, b"same"), event(1, 4, b"older"), event(9, -99)],
    ids=["exact copy", "older than what its key has", "older than all that is kept"],
)
def test_a_record_that_changes_nothing_does_not_move_it(delivered: Scripts, changing_nothing: Rec) -> None:
    add(delivered, event(1, 5, b"same"), event(2, 5), capacity=2)
    before = due_ms(delivered), delivered.waiting(), delivered.open_set(T)
    add(delivered, changing_nothing, capacity=2)
    assert (due_ms(delivered), delivered.waiting(), delivered.open_set(T)) == before


def test_a_record_that_takes_anothers_place_does_not_move_it_either(delivered: Scripts) -> None:
    """The set is as large as before, and the due time is a function of it."""
    add(delivered, event(1, 5), event(2, 5), capacity=2)
    add(delivered, event(1, 6), event(3, 7), capacity=2)
    assert due_ms(delivered) == 360 * S
