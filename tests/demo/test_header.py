"""The header of the demo: three lines over the same seconds, whatever the width."""

from __future__ import annotations

import pytest

from nsqdigest.demo.header import COLUMN_S, MOST_COLUMNS, History, sparkline

pytestmark = pytest.mark.unit


def outage(ends_s: float = 12.0) -> History:
    """Six events in each column; Redis away from 4 s to 8 s; digests of 20 events."""
    history = History()
    history.set_limit(64)
    limits = {4.0: 0, 5.0: 1, 5.5: 0, 6.5: 1, 7.0: 0, 8.0: 1, 8.5: 2, 9.0: 4, 9.5: 64}
    now_s = 0.0
    while now_s < ends_s:
        history.at(now_s)
        if now_s in limits:
            history.set_limit(limits[now_s])
        for _ in range(6 if now_s != 2.0 else 12):
            history.add_event()
        if now_s % 3 == 0:
            history.add_digest()
        now_s += COLUMN_S
    return history


def shown(history: History, width: int) -> list[str]:
    return ["".join(part if isinstance(part, str) else part[1] for part in line) for line in history.lines(width)]


FRAMES = {
    44: [
        "events in    █████████████  150 events",
        "in flight    ▁ ▁▁ ▁▂▃█████  64 → 0 → 1 → 64",
        "digests out   █     █       4 messages",
    ],
    80: [
        "events in    ▄▄▄▄█▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄               150 events",
        "in flight    █████████ ▁▁ ▁▁ ▁▂▃█████               at most 64 → 0 → 1 → 64",
        "digests out  █     █     █     █                    4 messages: 1 for 38 events",
    ],
    120: [
        "events in    ▄▄▄▄█▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄" + " " * 38 + "150 events",
        "in flight    █████████ ▁▁ ▁▁ ▁▂▃█████" + " " * 38 + "at most 64 → 0 → 1 → 64",
        "digests out  █     █     █     █" + " " * 43 + "4 messages: 1 for 38 events",
    ],
}


@pytest.mark.parametrize("width", FRAMES)
def test_an_outage_at_each_width(width: int) -> None:
    rows = shown(outage(), width)
    assert [row.rstrip() for row in rows] == FRAMES[width]
    assert all(len(row) <= width for row in rows)


@pytest.mark.parametrize("width", range(40, 121))
def test_no_width_is_too_narrow_for_it(width: int) -> None:
    rows = shown(outage(40.0), width)
    assert all(len(row.rstrip()) <= width for row in rows)
    assert rows[1].rstrip().endswith("64")


def test_a_probe_shows_though_it_is_over_within_its_column() -> None:
    history = History()
    history.at(COLUMN_S)
    history.set_limit(1)
    history.set_limit(0)
    history.at(3 * COLUMN_S)
    assert "▁" in shown(history, 80)[1]


@pytest.mark.parametrize(
    ("limits", "trail"),
    [
        ([64], [0, 64]),
        ([64, 0, 1, 64], [0, 64, 0, 1, 64]),
        ([64, 0, 1, 0, 1, 0, 1, 2, 4, 8, 16, 32, 64], [0, 64, 0, 1, 64]),
        ([64, 0, 1, 2, 4, 0, 1, 64], [0, 64, 0, 1, 4, 0, 1, 64]),
        ([64, 64, 0, 0], [0, 64, 0]),
        ([64, 128, 64, 0, 64], [0, 128, 0, 64]),
    ],
)
def test_the_trail_has_no_steps_of_a_ramp_and_no_repeated_probes(limits: list[int], trail: list[int]) -> None:
    history = History()
    for limit in limits:
        history.set_limit(limit)
    assert list(history.trail) == trail


def test_what_is_old_leaves_at_the_left() -> None:
    history = History()
    history.add_event()
    history.at((MOST_COLUMNS + 5) * COLUMN_S)
    assert "█" not in shown(history, 120)[0]
    history.at(1e9)  # a machine that slept
    assert history.events == 1


@pytest.mark.parametrize(
    ("values", "drawn"), [([], ""), ([0, 0], "  "), ([1], "█"), ([0, 1, 800], " ▁█"), ([8, 7, 1], "█▇▁")]
)
def test_a_sparkline_shows_the_smallest_value(values: list[int], drawn: str) -> None:
    assert sparkline(values) == drawn
