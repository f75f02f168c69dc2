"""What a simulation shows: spreads by two digits, a chart of bounded memory, widths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.trial.simulation import Chart, Simulation, Spread
from nsqdigest.trial.simulator import Event, SimulatedDigest

pytestmark = pytest.mark.unit

NOW_MS = 1_795_000_000_000
DAY_MS = 86_400_000


@given(st.lists(st.integers(0, 10**9), min_size=1), st.sampled_from([0.5, 0.9, 1.0]))
def test_a_spread_is_right_to_two_digits(values: list[int], part: float) -> None:
    spread = Spread()
    for value in values:
        spread.add(value)
    exact = sorted(values)[max(0, -(-len(values) * round(part * 10) // 10) - 1)]
    assert 0 <= exact - spread.at(part) <= exact / 10
    assert spread.largest == max(values)


@given(st.lists(st.integers(0, 400 * DAY_MS), min_size=1).map(sorted), st.integers(40, 250))
def test_every_event_is_in_the_chart_however_long_it_becomes(instants: list[int], width: int) -> None:
    chart = Chart()
    for at_ms in instants:
        chart.add_event(NOW_MS + at_ms)
        chart.add_digest(NOW_MS + at_ms)
    events, digests, scale, *caption = chart.rows(width, lambda at_ms: "x", lambda span_ms: "1h", is_ascii=True)
    assert len(events) <= width
    assert len(scale) <= max(width, len("        x x"))
    assert events.startswith("events  ")
    assert "@" in events
    assert bool(digests.removeprefix("digests").strip())
    assert "a column is 1h; the most in one: " in " ".join(" ".join(caption).split())


@pytest.mark.parametrize("width", [44, 80, 120])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_what_is_shown_fits_and_is_plain_where_it_has_to_be(width: int, is_ascii: bool) -> None:
    simulation = Simulation("default", "UTC", 1)
    for number in range(300):
        at_ms = NOW_MS + number * DAY_MS // 10
        simulation.add_event(Event(at_ms, "user:42"), 3)
        simulation.add_digest(SimulatedDigest("user:\x1b[31m" + "x" * 90, at_ms, at_ms - 1, 1, number + 1, 2, 1, at_ms))
    lines = simulation.lines(width, lambda span_ms: f"{span_ms}ms", is_ascii=is_ascii)
    table = lines.index("", lines.index("") + 1)
    assert all(len(line) <= width for line in lines[:table])
    assert "\x1b" not in "".join(lines)
    assert not is_ascii or "".join(lines[:table]).isascii()
    assert "300 digests held back by quiet hours" in lines
    assert lines[-1] == "the first 1 of 300; --limit shows more"


def test_many_digests_in_a_column_are_bars_and_few_are_numbers() -> None:
    few, many = Chart(), Chart()
    for chart, most in ((few, 9), (many, 30)):
        chart.add_event(NOW_MS)
        chart.add_event(NOW_MS + 20_000)
        for _ in range(most):
            chart.add_digest(NOW_MS)
        chart.add_digest(NOW_MS + 20_000)
    rows = [chart.rows(44, str, str, is_ascii=False)[1] for chart in (few, many)]
    assert rows == ["digests 9" + " " * 19 + "●", "digests █" + " " * 19 + "▁"]


@pytest.mark.parametrize("width", range(40, 200, 7))
def test_an_even_stream_looks_even(width: int) -> None:
    chart = Chart()
    for number in range(3_000):
        chart.add_event(NOW_MS + number * 1000)
        chart.add_digest(NOW_MS + number * 1000)
    bars = chart.rows(width, str, str, is_ascii=True)[0].removeprefix("events  ")
    assert set(bars[:-1]) == {"@"}
    assert len(bars) > width / 2
