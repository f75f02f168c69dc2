"""When a timeline is due: base and bound at each moment of its life, and the arithmetic that Redis does with them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.quiet_hours import Window
from nsqdigest.config import Policy
from nsqdigest.store.schedule import EXEMPT_MS, Plan, Schedule

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_000
S = 1_000
MINUTE = 60 * S

DEFAULT = Policy(
    name="default",
    immediate=True,
    minimum_delay_ms=5 * MINUTE,
    increment_delay_ms=30 * S,
    maximum_delay_ms=30 * MINUTE,
    growth="none",
    growth_steps=2,
    intervals_ms=(),
    capacity=500,
    on_retry="frozen",
    dedupe_window_ms=15 * MINUTE,
)


def plan(**changes: Any) -> Plan:
    return Plan(dataclasses.replace(DEFAULT, **changes))


def delays_s(a_plan: Plan, iterations: int) -> list[int]:
    return [(a_plan.after_digest(number, NOW_MS).base_ms - NOW_MS) // S for number in range(1, iterations + 1)]


def due_ms(schedule: Schedule, records: int, increment_ms: int) -> int:
    """What Redis works out from the set."""
    return min(schedule.base_ms + increment_ms * records, schedule.bound_ms)


# -- the beginning


def test_immediate_is_due_now_however_many_records_come() -> None:
    schedule = plan().beginning(NOW_MS)
    assert schedule == Schedule(NOW_MS, NOW_MS)
    assert due_ms(schedule, 1_000, DEFAULT.increment_delay_ms) == NOW_MS


def test_not_immediate_waits_the_minimum_and_is_bound_by_the_maximum() -> None:
    assert plan(immediate=False).beginning(NOW_MS) == Schedule(NOW_MS + 5 * MINUTE, NOW_MS + 30 * MINUTE)


def test_not_immediate_with_intervals_waits_the_first_of_them() -> None:
    waiting = plan(immediate=False, intervals_ms=(30 * S, 5 * MINUTE))
    assert waiting.beginning(NOW_MS) == Schedule(NOW_MS + 30 * S, NOW_MS + 30 * MINUTE)


def test_immediate_does_not_use_the_first_interval() -> None:
    assert plan(intervals_ms=(30 * S, 5 * MINUTE)).beginning(NOW_MS) == Schedule(NOW_MS, NOW_MS)


def test_not_immediate_each_record_postpones_up_to_the_maximum() -> None:
    schedule = plan(immediate=False).beginning(NOW_MS)
    assert [(due_ms(schedule, n, 30 * S) - NOW_MS) // S for n in (1, 2, 10, 49, 50, 51, 500)] == [
        330, 360, 600, 1770, 1800, 1800, 1800,
    ]  # fmt: skip


# -- after a digest


def test_after_a_digest_base_is_its_delay_and_bound_the_maximum() -> None:
    assert plan().after_digest(1, NOW_MS) == Schedule(NOW_MS + 5 * MINUTE, NOW_MS + 30 * MINUTE)


def test_the_bound_is_never_before_the_base() -> None:
    tight = plan(maximum_delay_ms=MINUTE)
    schedule = tight.after_digest(1, NOW_MS)
    assert schedule == Schedule(NOW_MS + 5 * MINUTE, NOW_MS + 5 * MINUTE)


def test_without_growth_every_delay_is_the_minimum() -> None:
    assert delays_s(plan(), 5) == [300] * 5


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (0, [300, 300, 300, 300]),
        (1, [600, 600, 600, 600]),
        (2, [600, 1200, 1200, 1200]),
        (4, [600, 1200, 2400, 4800]),
    ],
)
def test_exponential_growth_doubles_with_each_digest_up_to_its_steps(steps: int, wanted: list[int]) -> None:
    growing = plan(growth="exponential", growth_steps=steps, maximum_delay_ms=100 * 3600 * S)
    assert delays_s(growing, 4) == wanted


@given(st.integers(0, 32), st.integers(1, 10**9), st.integers(0, 10**6))
def test_exponential_growth_is_minimum_shifted_by_the_iteration(steps: int, iteration: int, minimum_ms: int) -> None:
    growing = plan(growth="exponential", growth_steps=steps, minimum_delay_ms=minimum_ms)
    assert growing.after_digest(iteration, NOW_MS).base_ms == NOW_MS + (minimum_ms << min(iteration, steps))


def test_intervals_are_followed_by_the_minimum() -> None:
    listed = plan(intervals_ms=(30 * S, 60 * S, 90 * S), minimum_delay_ms=15 * MINUTE)
    assert delays_s(listed, 5) == [60, 90, 900, 900, 900]


def test_one_interval_is_only_the_wait_before_the_first_digest() -> None:
    assert delays_s(plan(intervals_ms=(30 * S,)), 3) == [300, 300, 300]


def test_the_delay_of_a_very_late_iteration_is_that_of_the_last_step() -> None:
    growing = plan(growth="exponential", growth_steps=2, maximum_delay_ms=3600 * S)
    assert growing.after_digest(2**63, NOW_MS).base_ms == NOW_MS + 1200 * S


# -- what a digest tells its receiver


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"growth": "exponential", "maximum_delay_ms": 3600 * S},
        {"growth": "exponential", "growth_steps": 0},
        {"intervals_ms": (30 * S, MINUTE, 2 * MINUTE)},
        {"intervals_ms": (30 * S,)},
    ],
)
def test_the_earliest_next_is_the_base_that_the_close_will_have(changes: dict[str, Any]) -> None:
    a_plan = plan(**changes)
    told = a_plan.earliest_next_ms(NOW_MS)
    for iteration in range(1, 10):
        assert told[min(iteration, len(told)) - 1] == a_plan.after_digest(iteration, NOW_MS).base_ms


# -- what the numbers promise


schedules = st.builds(
    lambda immediate, minimum_ms, increment_ms, extra_ms: dataclasses.replace(
        DEFAULT,
        immediate=immediate,
        minimum_delay_ms=minimum_ms,
        increment_delay_ms=increment_ms,
        maximum_delay_ms=minimum_ms + extra_ms,
    ),
    st.booleans(),
    st.integers(0, 10**8),
    st.integers(0, 10**7),
    st.integers(0, 10**8),
)


@given(schedules, st.integers(1, 20), st.integers(1, 10**6))
def test_a_digest_comes_neither_before_the_minimum_nor_after_the_maximum(
    policy: Policy, iteration: int, records: int
) -> None:
    due = due_ms(Plan(policy).after_digest(iteration, NOW_MS), records, policy.increment_delay_ms)
    assert policy.minimum_delay_ms <= due - NOW_MS <= policy.maximum_delay_ms


@given(schedules, st.lists(st.integers(1, 1_000), min_size=2, max_size=10))
def test_the_due_time_is_a_function_of_the_set_and_more_records_never_bring_it_forward(
    policy: Policy, counts: list[int]
) -> None:
    schedule = Plan(policy).beginning(NOW_MS)
    dues = [due_ms(schedule, count, policy.increment_delay_ms) for count in sorted(counts)]
    assert dues == sorted(dues)


# -- a calendar


NINE = {"at": ("0 9 * * *",), "minimum_delay_ms": 0, "increment_delay_ms": 0, "maximum_delay_ms": 0}
TODAY_MS = 1_763_510_400_000
"""Midnight of a day, UTC."""
NINE_MS = TODAY_MS + 9 * 60 * MINUTE
DAY = 24 * 60 * MINUTE


def test_with_a_calendar_a_timeline_begins_and_goes_on_with_the_next_instant() -> None:
    daily = plan(immediate=False, **NINE)
    assert daily.beginning(NINE_MS - 1) == Schedule(NINE_MS, NINE_MS)
    assert daily.after_digest(1, NINE_MS) == daily.after_digest(7, NINE_MS) == Schedule(NINE_MS + DAY, NINE_MS + DAY)
    assert daily.earliest_next_ms(NINE_MS) == [NINE_MS + DAY]
    assert DAY <= daily.longest_ms < 20 * DAY


def test_with_a_calendar_the_first_may_come_at_once() -> None:
    assert plan(immediate=True, **NINE).beginning(TODAY_MS) == Schedule(TODAY_MS, TODAY_MS)


def test_a_digest_that_is_late_is_followed_by_the_next_instant_but_never_before_what_it_named() -> None:
    late_ms = NINE_MS + DAY - 1
    daily = plan(immediate=False, **NINE)
    assert daily.after_digest(1, late_ms, NINE_MS + DAY) == Schedule(NINE_MS + DAY, NINE_MS + DAY)
    assert daily.after_digest(1, late_ms, NINE_MS + 2 * DAY).base_ms == NINE_MS + 2 * DAY


# -- quiet hours

NIGHT = (Window(22 * 60, 7 * 60),)


def test_quiet_hours_move_no_schedule_but_what_a_digest_names() -> None:
    quiet = plan(quiet=NIGHT)
    evening_ms = TODAY_MS + (21 * 60 + 58) * MINUTE
    assert quiet.after_digest(1, evening_ms) == plan().after_digest(1, evening_ms)
    assert quiet.earliest_next_ms(evening_ms) == [TODAY_MS + (24 + 7) * 60 * MINUTE]
    assert quiet.release_ms(evening_ms) == evening_ms
    assert quiet.longest_ms == plan().longest_ms + 2 * DAY


def test_what_is_exempt_is_released_at_once() -> None:
    assert plan(quiet=NIGHT).release_ms(EXEMPT_MS) == EXEMPT_MS
