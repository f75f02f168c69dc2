"""What the measurement of timelines makes of its figures: ratios, verdicts, table and picture."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from support.tree import load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from bench.timelines import report
else:
    report = load("bench.timelines.report")


@pytest.fixture
def results() -> report.Results:
    return report.Results(
        costs=(
            report.Costs(4.0, 10.0, 50.0, 150.0),
            report.Costs(5.0, 10.0, 70.0, 170.0),
            report.Costs(4.0, 12.0, 60.0, 160.0),
        ),
        sizes=(report.Size(10, (5.0, 6.0, 7.0), (100.0,), 900.0), report.Size(1000, (9.0,), (250.0,), 800.0)),
        idle=report.Idle(10, 32, 50, 0.5, {"zrange": 12.0}),
        calls=(report.Call("add", (3000.0, 4000.0, 90_000.0)), report.Call("claim", (6000.0, 5000.0, 5000.0))),
        longest=(report.Longest("open: merges", 15.0, (12_000.0, 14_900.0, 1_000.0)),),
    )


def verdicts(results: report.Results) -> list[bool]:
    return [line.startswith("- **pass**") for line in report.verdicts(results)]


def test_the_ratio_is_of_the_same_round(results: report.Results) -> None:
    ratio = report.add_ratio(results.costs)
    assert (ratio.median, ratio.low, ratio.high) == (2.5, 2.0, 3.0)


def test_growth_is_beside_the_smallest(results: report.Results) -> None:
    assert [(add, digest) for _, add, digest in report.growth(results.sizes)] == [(1.0, 1.0), (1.5, 2.5)]


def test_the_slowest_call_is_that_with_the_largest_median(results: report.Results) -> None:
    assert report.slowest(results.calls).what == "claim"


def test_each_goal_is_met_or_missed_by_itself(results: report.Results) -> None:
    assert verdicts(results) == [True, True, True, True]
    dear = (report.Costs(1.0, 3.6, 1.0, 0.0),)
    grown = (results.sizes[0], report.Size(1000, (5.0,), (251.0,), 1.0))
    assert verdicts(results._replace(costs=dear)) == [False, True, True, True]
    assert verdicts(results._replace(sizes=grown)) == [True, False, True, True]
    assert verdicts(results._replace(idle=results.idle._replace(percent=1.0))) == [True, True, False, True]
    assert verdicts(results._replace(calls=(report.Call("add", (10_000.0,)),))) == [True, True, True, False]


def test_the_page_holds_every_figure_and_the_machine(results: report.Results) -> None:
    page = report.markdown(results, machine={"Python": "3.11"}, notes=["a note"], picture="timelines.svg")
    assert page.count("**pass**") == 5
    assert "| open: merges | 3 | 12.0 | 14.9 | 15 |" in page
    assert "| 1,000 | 9.0 (9.0" in page
    assert "0.50 % of a core" in page
    assert "zrange 12.0" in page
    assert "- a note\n" in page
    assert page.endswith("- Python: 3.11\n")
    growth = [
        line.count("|") for line in page.splitlines() if line.startswith(("| timelines", "|--:", "| 10 ", "| 1,000"))
    ]
    assert growth == [7, 7, 7, 7]


def test_a_call_above_its_bar_is_named(results: report.Results) -> None:
    above = report.Longest("finish: burials", 30.0, (1.0, 30_100.0))
    section = "\n".join(report.longest_section([*results.longest, above]))
    assert "- **fail**: above the bar: finish: burials; the bar is 15 ms" in section
    assert "- **pass**: above the bar: no call; " in "\n".join(report.longest_section(results.longest))


@pytest.mark.parametrize("has_section", [True, False])
def test_the_longest_calls_alone_leave_the_rest_of_the_page(results: report.Results, *, has_section: bool) -> None:
    page = report.markdown(results, machine={}, notes=["a note"], picture="timelines.svg")
    without = page.replace("\n".join(report.longest_section(results.longest)) + "\n", "")
    assert report.LONGEST not in without
    anew = report.longest_section(results.longest, measured="now")
    found = report.with_longest(page if has_section else without, anew)
    assert found == page.replace("| 15 |\n", "| 15 |\n\nMeasured: now.\n")


def test_the_picture_is_well_formed_and_keeps_its_bars_inside(results: report.Results) -> None:
    root = ElementTree.fromstring(report.picture_svg(results))
    bars = [node.attrib for node in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(bars) == 1 + 2 + 2
    width = float(bars[0]["width"])
    assert all(float(bar["x"]) + float(bar["width"]) <= width + 1 for bar in bars)
