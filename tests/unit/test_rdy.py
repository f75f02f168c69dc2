"""The limit over the connections: never above it, spread evenly, and in turns when there are too few places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.rdy import Facts, only, spread

NSQD_MAX_RDY = 2500


def connections(count: int, max_rdy: int = NSQD_MAX_RDY) -> list[tuple[str, Facts]]:
    return [(f"c{number}", Facts(max_rdy, float(number))) for number in range(count)]


@given(
    st.integers(0, 10_000),
    st.lists(st.tuples(st.integers(1, 3_000), st.floats(0, 1e6)), max_size=12),
)
def test_the_sum_is_never_above_the_limit_and_none_above_its_own(limit: int, facts: list[tuple[int, float]]) -> None:
    given_out = spread(limit, [(number, Facts(*each)) for number, each in enumerate(facts)])
    assert set(given_out) == set(range(len(facts)))
    assert sum(given_out.values()) <= limit
    assert all(0 <= given_out[number] <= max_rdy for number, (max_rdy, _) in enumerate(facts))


@given(st.integers(0, 2_000), st.integers(1, 12))
def test_nothing_of_the_limit_is_left_over_where_all_may_have_it(limit: int, count: int) -> None:
    given_out = spread(limit, connections(count))
    assert sum(given_out.values()) == limit
    assert max(given_out.values()) - min(given_out.values()) <= 1


@pytest.mark.parametrize(
    ("limit", "wanted"), [(9, [3, 3, 3]), (10, [4, 3, 3]), (11, [4, 4, 3]), (3, [1, 1, 1]), (2500, [834, 833, 833])]
)
def test_the_remainder_is_spread(limit: int, wanted: list[int]) -> None:
    assert list(spread(limit, connections(3)).values()) == wanted


def test_a_limit_of_0_gives_nothing_to_anyone() -> None:
    assert spread(0, connections(3)) == {"c0": 0, "c1": 0, "c2": 0}


def test_without_connections_there_is_nothing_to_give() -> None:
    assert spread(2500, []) == {}


def test_none_gets_more_than_its_nsqd_allows() -> None:
    assert spread(10_000, connections(2)) == {"c0": 2500, "c1": 2500}


def test_too_few_places_go_to_those_that_waited_longest() -> None:
    facts = [("late", Facts(10, 9.0)), ("first", Facts(10, 1.0)), ("second", Facts(10, 2.0))]
    assert spread(2, facts) == {"late": 0, "first": 1, "second": 1}


def test_places_rotate_so_that_none_waits_longer_than_a_round() -> None:
    """Three places and seven connections: within any three turns each has had one."""
    served_at_s = {f"c{number}": 0.0 for number in range(7)}
    served: list[set[str]] = []
    for turn in range(1, 31):
        given_out = spread(3, [(name, Facts(10, at_s)) for name, at_s in served_at_s.items()])
        served.append({name for name, places in given_out.items() if places})
        served_at_s.update(dict.fromkeys(served[-1], float(turn)))
    assert all(len(names) == 3 for names in served)
    assert all(set().union(*served[turn : turn + 3]) == set(served_at_s) for turn in range(28))


def test_the_probe_is_on_one_connection() -> None:
    assert only("b", ["a", "b", "c"]) == {"a": 0, "b": 1, "c": 0}


def test_without_a_chosen_connection_no_probe_is_anywhere() -> None:
    assert only(None, ["a", "b"]) == {"a": 0, "b": 0}
