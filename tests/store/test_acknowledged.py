"""losses.py: a ledger only grows, so what is missing from it is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.store.acknowledged import Losses

pytestmark = pytest.mark.unit

R, P = "r", 0


def acknowledged(losses: Losses, before: int, after: int) -> bool:
    return losses.acknowledged(R, P, losses.known(R, P), before, after)


def test_a_ledger_that_grows_is_no_loss() -> None:
    losses = Losses()
    assert [acknowledged(losses, before, before + 5) for before in (100, 105, 110, 300)] == [False] * 4
    assert losses.take() == {}


def test_what_is_missing_before_a_call_is_lost_and_told_once() -> None:
    losses = Losses()
    acknowledged(losses, 0, 50)
    assert acknowledged(losses, 42, 45)
    assert losses.take() == {R: 8}
    assert losses.take() == {}
    assert not acknowledged(losses, 45, 46)


def test_losses_add_up_by_route() -> None:
    losses = Losses()
    for route, partition in (("r", 0), ("r", 1), ("s", 0)):
        losses.acknowledged(route, partition, losses.known(route, partition), 0, 10)
        assert losses.found(route, partition, losses.known(route, partition), 7)
    assert losses.take() == {"r": 6, "s": 3}


def test_answers_that_overtake_each_other_are_no_loss() -> None:
    losses = Losses()
    first, second = losses.known(R, P), losses.known(R, P)
    assert not losses.acknowledged(R, P, second, 10, 20)
    assert not losses.acknowledged(R, P, first, 0, 10)
    assert losses.known(R, P).records == 20


def test_calls_from_before_a_loss_do_not_tell_it_again() -> None:
    losses = Losses()
    acknowledged(losses, 0, 50)
    both = [losses.known(R, P)] * 2
    assert [losses.acknowledged(R, P, when_sent, 40, 41) for when_sent in both] == [True, False]
    assert losses.take() == {R: 10}


def test_a_look_promises_nothing() -> None:
    """It sees what others wrote and nobody acknowledged yet."""
    losses = Losses()
    acknowledged(losses, 0, 50)
    assert not losses.found(R, P, losses.known(R, P), 80)
    assert not losses.found(R, P, losses.known(R, P), 50)
    assert losses.take() == {}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=30), st.data())
def test_without_a_loss_no_order_of_answers_tells_one(calls: list[tuple[int, int]], data: st.DataObject) -> None:
    """Calls are carried out one after another, each after it was sent; answers come in any order."""
    losses, counted = Losses(), 0
    under_way = []
    for delay, added in calls:
        under_way.append((losses.known(R, P), counted, counted + added))
        counted += added
        for _ in range(min(delay, len(under_way))):
            answer = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            assert not losses.acknowledged(R, P, *answer)
    assert losses.take() == {}


@pytest.mark.parametrize("lost", [1, 7, 100])
def test_a_ledger_that_begins_anew_is_a_loss_of_all(lost: int) -> None:
    losses = Losses()
    acknowledged(losses, 0, lost)
    assert acknowledged(losses, 0, 3)
    assert losses.take() == {R: lost}
