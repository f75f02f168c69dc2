"""What the throughput measurement makes of its rounds: medians, spreads, ratios, table and picture."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from support.tree import load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from bench.drawing import WIDTH
    from bench.throughput import report
else:
    WIDTH = load("bench.drawing").WIDTH
    report = load("bench.throughput.report")


def one_round(rate: float, *, events: int = 1000, stored: int = 1000, peak_rss_bytes: int = 50 << 20) -> report.Round:
    return report.Round(
        events=events,
        events_per_s=rate,
        consumer_us=6.0,
        redis_us=7.5,
        nsqd_us=2.0,
        peak_rss_bytes=peak_rss_bytes,
        most_in_flight=2500,
        counts={"added": stored, "open": stored},
    )


def lane(key: str, *rates: float, title: str = "some consumer", event_bytes: int = 250) -> report.LaneRounds:
    return report.LaneRounds(key, title, event_bytes, tuple(one_round(rate) for rate in rates))


@pytest.fixture
def lanes() -> dict[str, report.LaneRounds]:
    return {
        "a": lane("a", 4000, 5000, 4500, title="one <a> & two"),
        "b": lane("b", 30_000, 31_000, 29_000),
        "c": lane("c", 99_000, 100_000, 81_000),
    }


def test_a_spread_is_median_smallest_and_largest() -> None:
    assert report.spread_of([5, 1, 9, 3]) == report.Spread(4, 1, 9)


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        report.spread_of([])


def test_a_ratio_is_that_of_medians_and_its_spread_that_of_paired_rounds(lanes: dict[str, report.LaneRounds]) -> None:
    to_pynsq, to_go = report.ratios(lanes)
    assert to_pynsq.spread == report.Spread(22.0, 18.0, 24.75)
    assert to_go.spread.median == pytest.approx(3.3)
    assert to_go.spread.low == pytest.approx(81 / 29)


def test_ratios_are_those_of_the_goals_that_are_given(lanes: dict[str, report.LaneRounds]) -> None:
    (ratio,) = report.ratios(lanes, (("b", "a", 5.0),))
    assert (ratio.lane, ratio.peer, ratio.goal, ratio.reached) == ("b", "a", 5.0, True)


def test_a_ratio_below_its_goal_is_said_to_fail() -> None:
    slow = {"b": lane("b", 30_000), "c": lane("c", 89_000)}
    assert report.verdict(report.ratios(slow)[0]).startswith("**fail**: c is 3.0 (3.0")
    fast = {"b": lane("b", 30_000), "c": lane("c", 90_000)}
    assert report.verdict(report.ratios(fast)[0]).startswith("**pass**")


def test_a_lane_that_was_not_run_has_no_ratio(lanes: dict[str, report.LaneRounds]) -> None:
    del lanes["a"]
    assert [ratio.peer for ratio in report.ratios(lanes)] == ["b"]


@pytest.mark.parametrize("stored", [999, 1001, 0])
def test_an_event_too_few_or_too_many_is_a_loss(stored: int) -> None:
    rounds = (one_round(10.0), one_round(10.0, stored=stored))
    (line,) = report.losses({"c": report.LaneRounds("c", "daemon", 250, rounds)})
    assert line.startswith("lane c, round 2: 1000 events")
    assert str(stored) in line


def test_a_round_that_counted_nothing_is_not_complete() -> None:
    assert not report.Round(
        events=0, events_per_s=1, consumer_us=1, redis_us=1, nsqd_us=1, peak_rss_bytes=1, most_in_flight=0, counts={}
    ).complete


def test_each_row_of_the_table_has_a_cell_for_each_head(lanes: dict[str, report.LaneRounds]) -> None:
    rows = report.table(lanes)
    assert len(rows) == 2 + len(lanes)
    assert {row.count("|") for row in rows} == {8}
    assert "4,500 (4,000" in rows[2]


def test_the_page_holds_verdicts_memory_and_machine(lanes: dict[str, report.LaneRounds]) -> None:
    lanes["c64"] = lane("c64", 3000, 3000, 3000, event_bytes=65_536)
    page = report.markdown(
        lanes, max_in_flight=2500, machine={"Python": "3.11"}, notes=["a note"], picture="throughput.svg"
    )
    assert page.count("**pass**") == 2
    assert "max_in_flight \N{MULTIPLICATION SIGN} size is 156.2 MiB (0.3 \N{MULTIPLICATION SIGN})" in page
    assert "- a note\n" in page
    assert page.endswith("- Python: 3.11\n")


def test_the_page_names_what_was_lost() -> None:
    lost = report.LaneRounds("c", "daemon", 250, (one_round(10.0, stored=998),))
    page = report.markdown({"c": lost}, max_in_flight=2500, machine={}, notes=[], picture="p.svg")
    assert "**LOST**: lane c, round 1" in page
    assert "exactly once" not in page


def test_the_picture_is_well_formed_for_light_and_dark_and_keeps_its_bars_inside(
    lanes: dict[str, report.LaneRounds],
) -> None:
    drawn = report.picture_svg(lanes)
    root = ElementTree.fromstring(drawn)
    assert "prefers-color-scheme:dark" in drawn
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a. one <a> & two" in texts
    bars = [node.attrib for node in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert len(bars) == 1 + 3 + 3 * 3
    assert all(float(bar["x"]) + float(bar["width"]) <= WIDTH for bar in bars)


def test_the_picture_leaves_the_pass_with_large_events_out(lanes: dict[str, report.LaneRounds]) -> None:
    before = report.picture_svg(lanes)
    lanes["c64"] = lane("c64", 3000, 3000, 3000)
    assert report.picture_svg(lanes) == before


def test_a_picture_of_other_things_names_them_and_shows_the_processes_it_is_given(
    lanes: dict[str, report.LaneRounds],
) -> None:
    drawn = report.drawn_svg(list(lanes.values()), "Message", ("b", "c"), (report.NSQD,), "b is 2 times a")
    root = ElementTree.fromstring(drawn)
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"Messages per second", "CPU per message, µs", "consumer, then nsqd (yellow)", "b is 2 times a"} <= set(
        texts
    )
    bars = [node.attrib["class"] for node in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert (bars.count("ours"), bars.count("bar"), bars.count("nsqd"), bars.count("redis")) == (4, 2, 3, 0)


def test_the_readme_gets_the_figures_between_its_marks_and_keeps_the_rest(lanes: dict[str, report.LaneRounds]) -> None:
    readme = "before\n<!-- measured -->\nold\n<!-- /measured -->\nbehind\n"
    text = report.into_readme(readme, lanes, {"machine": "a machine"})
    assert text.startswith("before\n<!-- measured -->\n")
    assert text.endswith("<!-- /measured -->\nbehind\n")
    assert "old" not in text
    assert report.into_readme(text, lanes, {"machine": "a machine"}) == text


def test_the_readme_names_each_peer_once(lanes: dict[str, report.LaneRounds]) -> None:
    lanes["d"] = lane("d", 10_000, 10_000, 9_900, title="Benthos")
    text = report.into_readme("<!-- measured -->\n<!-- /measured -->\n", lanes, {"machine": "a machine"})
    assert "as one <a> & two, 3.3 times as many as some consumer and 9.9 times as many as Benthos" in " ".join(
        text.split()
    )
