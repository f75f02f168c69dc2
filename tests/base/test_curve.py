"""How long a backoff lasts by its level: the curve, its jitter and its cap."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.backoff import RECHECK_WITHIN_S, SHORTEST_WAIT_S, Curve

pytestmark = pytest.mark.unit

LEVEL_CAP = 7
FULL = Curve(1.0, 120.0)
EQUAL = Curve(1.0, 120.0, jitter="equal")
PLAIN = Curve(1.0, 120.0, jitter="none")
DECORRELATED = Curve(1.0, 60.0, "decorrelated")

curves = st.builds(
    lambda base_s, times, strategy, jitter: Curve(base_s, base_s * times, strategy, jitter),
    st.floats(0.01, 3_600.0),
    st.floats(1.0, 1e5),
    st.sampled_from(("exponential", "decorrelated")),
    st.sampled_from(("full", "equal", "none")),
)


def highest(low: float, high: float) -> float:
    return high


def test_levels_wait_around_base_times_two_to_the_level_up_to_the_maximum() -> None:
    assert [PLAIN.longest_s(level) for level in range(1, 9)] == [2, 4, 8, 16, 32, 64, 120, 120]


def test_full_jitter_draws_from_the_shortest_wait_to_the_whole() -> None:
    assert [FULL.window_s(level) for level in (1, 3, LEVEL_CAP)] == [(0.1, 2.0), (0.1, 8.0), (0.1, 120.0)]


def test_equal_jitter_draws_from_half_to_the_whole() -> None:
    assert [EQUAL.window_s(level) for level in (1, LEVEL_CAP)] == [(1.0, 2.0), (60.0, 120.0)]


def test_without_jitter_the_whole_is_waited() -> None:
    assert [PLAIN.wait_s(level, random.Random(1).uniform) for level in (1, 3, LEVEL_CAP)] == [2.0, 8.0, 120.0]


def test_decorrelated_draws_from_base_to_base_times_three_to_the_level() -> None:
    windows = [DECORRELATED.window_s(level) for level in (1, 2, 3, 4, 5)]
    assert windows == [(1.0, 3.0), (1.0, 9.0), (1.0, 27.0), (1.0, 60.0), (1.0, 60.0)]


def test_decorrelated_asks_for_no_other_jitter() -> None:
    windows = {Curve(1.0, 60.0, "decorrelated", jitter).window_s(3) for jitter in ("full", "equal", "none")}
    assert windows == {(1.0, 27.0)}


def test_a_wait_is_one_draw_from_the_window() -> None:
    windows: list[tuple[float, float]] = []

    def drawn(low: float, high: float) -> float:
        windows.append((low, high))
        return 5.0

    assert FULL.wait_s(3, drawn) == 5.0
    assert windows == [(0.1, 8.0)]


def test_no_wait_is_shorter_than_100_ms() -> None:
    assert FULL.wait_s(1, lambda low, high: low) == SHORTEST_WAIT_S == 0.1


@pytest.mark.parametrize(
    ("base_s", "max_duration_s", "cap"),
    [(1.0, 120.0, LEVEL_CAP), (1.0, 2.0, 1), (1.0, 2.1, 2), (1.0, 1.0, 1), (0.01, 3600.0, 19), (3600.0, 3600.0, 1)],
)
def test_the_cap_is_the_first_level_whose_wait_is_the_maximum(base_s: float, max_duration_s: float, cap: int) -> None:
    assert Curve(base_s, max_duration_s).level_cap == cap


@pytest.mark.parametrize(("max_duration_s", "cap"), [(3.0, 1), (3.1, 2), (60.0, 4), (81.0, 4)])
def test_the_cap_of_decorrelated_waits_is_where_its_window_reaches_the_maximum(max_duration_s: float, cap: int) -> None:
    assert Curve(1.0, max_duration_s, "decorrelated").level_cap == cap


@given(curves)
def test_the_maximum_is_reached_at_the_cap_and_not_below(curve: Curve) -> None:
    assert curve.longest_s(curve.level_cap) == curve.max_duration_s
    assert curve.level_cap == 1 or curve.longest_s(curve.level_cap - 1) < curve.max_duration_s


@given(curves, st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_windows_never_shrink_and_stay_within_the_maximum(curve: Curve, one: int, other: int) -> None:
    (low, high), (next_low, next_high) = (curve.window_s(level) for level in sorted((one, other)))
    assert SHORTEST_WAIT_S <= low <= next_low <= next_high <= max(SHORTEST_WAIT_S, curve.max_duration_s)
    assert high <= next_high


def test_the_draws_of_a_short_window_do_not_pile_up_at_the_shortest_wait() -> None:
    uniform = random.Random(7).uniform
    waits = [Curve(0.1, 30.0).wait_s(1, uniform) for _ in range(1_000)]
    assert min(waits) >= SHORTEST_WAIT_S
    assert sum(wait_s < SHORTEST_WAIT_S + 0.01 for wait_s in waits) < 200


def test_a_window_below_the_shortest_wait_is_the_shortest_wait() -> None:
    assert Curve(0.01, 0.02).window_s(1) == (SHORTEST_WAIT_S, SHORTEST_WAIT_S)


@pytest.mark.parametrize("curve", [FULL, EQUAL, PLAIN, DECORRELATED])
def test_a_recheck_is_drawn_from_a_small_window_whatever_the_jitter(curve: Curve) -> None:
    assert curve.recheck_s(LEVEL_CAP, lambda low, high: low) == SHORTEST_WAIT_S
    assert curve.recheck_s(LEVEL_CAP, highest) == RECHECK_WITHIN_S


@pytest.mark.parametrize("curve", [FULL, EQUAL, DECORRELATED])
def test_jitter_survives_the_cap(curve: Curve) -> None:
    """At the cap the draw is over the capped window, not a long draw cut to one value."""
    uniform = random.Random(7).uniform
    waits = [curve.wait_s(curve.level_cap, uniform) for _ in range(1_000)]
    low, high = curve.window_s(curve.level_cap)
    tenths = [0] * 10
    for wait_s in waits:
        tenths[min(9, int((wait_s - low) / (high - low) * 10))] += 1
    assert min(tenths) > 50


def test_levels_come_down_one_by_one_or_by_half() -> None:
    assert [Curve(1.0, 120.0).below(level) for level in (7, 3, 2, 1)] == [6, 2, 1, 0]
    assert [Curve(1.0, 120.0, recovery="halve").below(level) for level in (7, 3, 2, 1)] == [3, 1, 1, 0]
