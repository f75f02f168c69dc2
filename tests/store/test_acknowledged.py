"""AcknowledgedCounts: a ledger only grows, so records that are missing from it are lost; each loss counts once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.store.acknowledged import AcknowledgedCounts

pytestmark = pytest.mark.unit

R, P = "r", 0


def acknowledged(counts: AcknowledgedCounts, before: int, after: int) -> bool:
    return counts.on_answer(R, P, counts.known[R, P], before, after)


def test_a_ledger_that_grows_is_no_loss() -> None:
    counts = AcknowledgedCounts()
    assert [acknowledged(counts, before, before + 5) for before in (100, 105, 110, 300)] == [False] * 4
    assert counts.take_lost() == {}


def test_what_is_missing_before_a_call_is_lost_and_counted_once() -> None:
    counts = AcknowledgedCounts()
    acknowledged(counts, 0, 50)
    assert acknowledged(counts, 42, 45)
    assert counts.take_lost() == {R: 8}
    assert counts.take_lost() == {}
    assert not acknowledged(counts, 45, 46)


def test_losses_add_up_by_route() -> None:
    counts = AcknowledgedCounts()
    for route, partition in (("r", 0), ("r", 1), ("s", 0)):
        counts.on_answer(route, partition, counts.known[route, partition], 0, 10)
        assert counts.compare(route, partition, counts.known[route, partition], 7)
    assert counts.take_lost() == {"r": 6, "s": 3}


def test_answers_that_overtake_each_other_are_no_loss() -> None:
    counts = AcknowledgedCounts()
    first, second = counts.known[R, P], counts.known[R, P]
    assert not counts.on_answer(R, P, second, 10, 20)
    assert not counts.on_answer(R, P, first, 0, 10)
    assert counts.known[R, P].records == 20


def test_calls_from_before_a_loss_do_not_count_it_again() -> None:
    counts = AcknowledgedCounts()
    acknowledged(counts, 0, 50)
    both = [counts.known[R, P]] * 2
    assert [counts.on_answer(R, P, when_sent, 40, 41) for when_sent in both] == [True, False]
    assert counts.take_lost() == {R: 10}


def test_a_look_promises_nothing() -> None:
    """It sees what others wrote and nobody acknowledged yet."""
    counts = AcknowledgedCounts()
    acknowledged(counts, 0, 50)
    assert not counts.compare(R, P, counts.known[R, P], 80)
    assert not counts.compare(R, P, counts.known[R, P], 50)
    assert counts.take_lost() == {}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=30), st.data())
def test_without_a_loss_no_order_of_answers_shows_one(calls: list[tuple[int, int]], data: st.DataObject) -> None:
    """Calls are carried out one after another, each after it was sent; answers come in any order."""
    counts, counted = AcknowledgedCounts(), 0
    under_way = []
    for delay, added in calls:
        under_way.append((counts.known[R, P], counted, counted + added))
        counted += added
        for _ in range(min(delay, len(under_way))):
            answer = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            assert not counts.on_answer(R, P, *answer)
    assert counts.take_lost() == {}


@pytest.mark.parametrize("lost", [1, 7, 100])
def test_a_ledger_that_begins_anew_is_a_loss_of_all(lost: int) -> None:
    counts = AcknowledgedCounts()
    acknowledged(counts, 0, lost)
    assert acknowledged(counts, 0, 3)
    assert counts.take_lost() == {R: lost}
