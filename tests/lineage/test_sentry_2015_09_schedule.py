"""Sentry timelines of September 2015: a schedule that backs off. The same numbers for the same settings."""

from __future__ import annotations

import dataclasses

import pytest

from nsqdigest.config import Policy
from nsqdigest.store.schedule import Plan, Schedule

pytestmark = pytest.mark.lineage

NOW_MS = 1_443_000_000_000
S = 1_000

BACKING_OFF = Policy(
    name="sentry-2015-09",
    immediate=False,
    minimum_delay_ms=300 * S,
    increment_delay_ms=0,
    maximum_delay_ms=1200 * S,
    growth="exponential",
    growth_steps=2,
    intervals_ms=(),
    capacity=500,
    on_retry="frozen",
    dedupe_window_ms=0,
)
TABLE = dataclasses.replace(
    BACKING_OFF, growth="none", minimum_delay_ms=900 * S, intervals_ms=(30 * S, 300 * S), maximum_delay_ms=900 * S
)


@pytest.mark.parametrize(("iteration", "delay_s"), [(1, 600), (2, 1200), (3, 1200), (4, 1200), (1_000_000, 1200)])
def test_after_a_digest_it_waits_duration_shifted_by_the_iteration_up_to_the_maximum(
    iteration: int, delay_s: int
) -> None:
    assert delay_s == 300 << min(iteration, 2)
    assert Plan(BACKING_OFF).after_digest(iteration, NOW_MS).base_ms == NOW_MS + delay_s * S


def test_before_the_first_digest_it_waits_the_duration_itself() -> None:
    assert Plan(BACKING_OFF).beginning(NOW_MS).base_ms == NOW_MS + 300 * S


@pytest.mark.parametrize(("iteration", "delay_s"), [(1, 300), (2, 900), (3, 900), (100, 900)])
def test_the_later_table_waits_300_seconds_after_the_first_digest_then_900(iteration: int, delay_s: int) -> None:
    assert Plan(TABLE).after_digest(iteration, NOW_MS).base_ms == NOW_MS + delay_s * S


def test_the_later_table_waits_30_seconds_before_the_first_digest() -> None:
    assert Plan(TABLE).beginning(NOW_MS) == Schedule(NOW_MS + 30 * S, NOW_MS + 900 * S)


def test_forgotten_with_its_timeline_the_iteration_begins_anew() -> None:
    """Nothing of the schedule lives outside the timeline: the plan answers from the iteration it is given."""
    plan = Plan(BACKING_OFF)
    assert plan.after_digest(7, NOW_MS).base_ms == NOW_MS + 1200 * S
    assert plan.after_digest(1, NOW_MS).base_ms == NOW_MS + 600 * S
