"""A Rust job queue: decorrelated jitter without memory.

The wait before retry n is uniform in [base, min(cap, base * 3^n)]: of a delivery by its attempt, of the controller by
its level.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.backoff import Curve, retry_wait_ms
from support.controllers import backoff_over, controller, fail

pytestmark = pytest.mark.lineage

BASE_MS = 1_000
CAP_MS = 60_000
LARGEST = 2**63

attempts = st.integers(0, 100) | st.integers(0, LARGEST)
windows = st.tuples(st.integers(1, 10**6), st.integers(0, 10**8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


class Windows:
    """Remembers what is asked of it; draws the far end."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def __call__(self, low: float, high: float) -> float:
        self.asked.append((low, high))
        return high


def window_of(attempt: int, base_ms: int = BASE_MS, cap_ms: int = CAP_MS) -> tuple[float, float]:
    drawn = Windows()
    retry_wait_ms(attempt, base_ms, cap_ms, drawn)
    (window,) = drawn.asked
    return window


@pytest.mark.parametrize(
    ("attempt", "window_s"), [(1, (1, 3)), (2, (1, 9)), (3, (1, 27)), (4, (1, 60)), (5, (1, 60)), (1_000, (1, 60))]
)
def test_the_windows_are_1_to_3_9_27_and_60_seconds(attempt: int, window_s: tuple[int, int]) -> None:
    low_ms, high_ms = window_of(attempt)
    assert (low_ms / 1_000, high_ms / 1_000) == window_s


def test_attempt_0_is_treated_as_1() -> None:
    assert window_of(0) == window_of(1)


def test_the_largest_attempt_does_not_overflow() -> None:
    assert window_of(LARGEST) == (BASE_MS, CAP_MS)


def test_the_largest_attempt_costs_no_more_steps_than_the_cap_needs() -> None:
    class Counted(int):
        """A base that counts how often it is multiplied."""

        steps = 0

        def __rmul__(self, other: int) -> Counted:
            Counted.steps += 1
            return Counted(int(self) * other)

    retry_wait_ms(LARGEST, Counted(BASE_MS), CAP_MS, Windows())
    assert Counted.steps == 4


@given(windows, attempts, st.integers(0, 2**32))
def test_no_draw_is_below_base_or_above_cap(window: tuple[int, int], attempt: int, seed: int) -> None:
    base_ms, cap_ms = window
    assert base_ms <= retry_wait_ms(attempt, base_ms, cap_ms, random.Random(seed).uniform) <= cap_ms


@given(windows, attempts, attempts)
def test_the_window_never_shrinks(window: tuple[int, int], one: int, other: int) -> None:
    sooner, later = sorted((one, other))
    assert window_of(sooner, *window)[1] <= window_of(later, *window)[1]


def test_draws_spread_over_the_whole_window() -> None:
    """Also at the cap: the window is cut, not the draw, so that no two thirds of all waits are the cap itself."""
    uniform = random.Random(7).uniform
    draws = [retry_wait_ms(50, BASE_MS, CAP_MS, uniform) for _ in range(2_000)]
    tenths = [0] * 10
    for draw in draws:
        tenths[min(9, (draw - BASE_MS) * 10 // (CAP_MS - BASE_MS))] += 1
    assert min(tenths) > 100
    assert max(tenths) < 300
    assert draws.count(CAP_MS) < 5


# -- the controller's backoffs


def test_the_backoffs_of_failing_probes_are_drawn_from_the_same_windows() -> None:
    drawn = Windows()
    ctl = controller(curve=Curve(BASE_MS / 1_000, CAP_MS / 1_000, "decorrelated"), uniform=drawn)
    fail(ctl, 0.0)
    for _ in range(5):
        fail(ctl, backoff_over(ctl))
    assert drawn.asked == [(1, 3), (1, 9), (1, 27), (1, 60), (1, 60), (1, 60)]


@given(windows, st.integers(1, 100) | st.integers(1, LARGEST))
def test_a_level_has_the_window_of_that_attempt(window: tuple[int, int], level: int) -> None:
    base, cap = window
    assert Curve(base, cap, "decorrelated").window_s(level) == window_of(level, base, cap)


@given(windows, st.integers(0, LARGEST), st.integers(0, 2**32))
def test_no_backoff_is_below_base_or_above_the_maximum(window: tuple[int, int], level: int, seed: int) -> None:
    base, cap = window
    assert base <= Curve(base, cap, "decorrelated").wait_s(level, random.Random(seed).uniform) <= cap
