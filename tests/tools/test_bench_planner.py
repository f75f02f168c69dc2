"""What the planner's measurement makes of its costs: the growth, and its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.tree import load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from bench.planner import __main__ as planner
else:
    planner = load("bench.planner.__main__")


@pytest.mark.parametrize(
    ("costs_us", "growth"),
    [
        ((12.0, 100.0, 1_000.0, 10_000.0), "linear"),
        ((12.0, 100.0, 1_500.0, 20_000.0), "n log n"),
        ((12.0, 100.0, 10_000.0, 1_000_000.0), "quadratic"),
    ],
)
def test_a_growth_is_called_by_the_nearest_name(costs_us: tuple[float, ...], growth: str) -> None:
    assert planner.verdict(planner.Row("some case", costs_us)) == growth


def test_what_does_not_grow_does_not_count() -> None:
    assert planner.Row("some case", (9_000.0, 100.0, 1_000.0, 10_000.0)).exponent == pytest.approx(1.0)


def test_the_page_has_each_cost_beside_how_many_times_the_one_before_it_is() -> None:
    page = planner.page([planner.Row("some case", (12.0, 96.0, 1_000.0, 10_000.0))], {"measured": "today"})
    assert "| some case | 12 | 96 (8.0) | 1,000 (10.4) | 10,000 (10.0) | 104 times, n^1.01 | linear |" in page
    assert page.endswith("- measured: today\n")


@pytest.mark.parametrize("case", planner.CASES, ids=lambda case: case.title)
def test_every_case_can_be_measured(case: planner.Case) -> None:
    assert planner.plan_us(case, 10, 3) > 0
