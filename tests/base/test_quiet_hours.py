"""Quiet hours: when they begin and end, on days when the clock is put forward or back, too."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.quiet_hours import MINUTES_OF_DAY, QuietHours, Window

pytestmark = pytest.mark.unit

BERLIN = ZoneInfo("Europe/Berlin")
ZONES = (BERLIN, ZoneInfo("Australia/Lord_Howe"), ZoneInfo("America/New_York"))
NIGHT = Window(22 * 60, 7 * 60)
MINUTE_MS = 60_000


def ms(month: int, day: int, hour: int, minute: int = 0, fold: int = 0) -> int:
    return int(datetime(2026, month, day, hour, minute, tzinfo=BERLIN, fold=fold).timestamp()) * 1000


def test_a_night_goes_over_midnight() -> None:
    quiet = QuietHours([NIGHT], BERLIN)
    begins_ms, ends_ms = ms(11, 19, 22), ms(11, 20, 7)
    assert quiet.end_ms(begins_ms - 1) is None
    assert quiet.end_ms(begins_ms) == quiet.end_ms(ends_ms - 1) == ends_ms
    assert quiet.end_ms(ends_ms) is None
    assert quiet.end_ms(begins_ms + 1) == ends_ms, "also when it is asked of an earlier instant again"
    assert (quiet.release_ms(begins_ms - 1), quiet.release_ms(begins_ms)) == (begins_ms - 1, ends_ms)


def test_windows_that_meet_are_one() -> None:
    quiet = QuietHours([Window(12 * 60, 13 * 60), Window(13 * 60, 15 * 60), NIGHT], BERLIN)
    assert quiet.end_ms(ms(11, 19, 12, 30)) == ms(11, 19, 15)
    assert quiet.end_ms(ms(11, 19, 16)) is None


def test_a_window_into_a_gap_ends_when_the_clock_is_put_forward() -> None:
    quiet = QuietHours([Window(60, 150)], BERLIN)  # until 2:30, which there is not
    assert quiet.end_ms(ms(3, 29, 1, 30)) == ms(3, 29, 3)


def test_a_window_into_an_overlap_is_quiet_until_the_second_time() -> None:
    quiet = QuietHours([Window(60, 150)], BERLIN)
    assert quiet.end_ms(ms(10, 25, 1, 30)) == ms(10, 25, 2, 30, fold=1)
    begins_in_it = QuietHours([Window(150, 240)], BERLIN)
    assert begins_in_it.end_ms(ms(10, 25, 2, 30, fold=0)) == ms(10, 25, 4)
    assert begins_in_it.end_ms(ms(10, 25, 2, 10, fold=1)) == ms(10, 25, 4)


@given(
    zone=st.sampled_from(ZONES),
    windows=st.lists(
        st.builds(Window, st.integers(0, MINUTES_OF_DAY - 1), st.integers(0, MINUTES_OF_DAY - 1)),
        min_size=1,
        max_size=3,
    ).filter(lambda all_: all(len(each.minutes) > 0 for each in all_)),
    day=st.integers(1_767_225_600, 1_798_761_600),
)
def test_nothing_is_released_at_a_quiet_minute_of_the_clock(zone: ZoneInfo, windows: list[Window], day: int) -> None:
    """Neither by the first nor by the second reading of a clock that is put back; and it is released at once when the
    clock shows a minute that is free, unless an hour repeats."""
    minutes = set().union(*(window.minutes for window in windows))
    if len(minutes) == MINUTES_OF_DAY:
        return
    quiet = QuietHours(windows, zone)
    for minute in range(0, 30 * 60, 7):
        now_ms = (day // 60 + minute) * MINUTE_MS
        shown = datetime.fromtimestamp(now_ms / 1000, zone)
        end_ms = quiet.end_ms(now_ms)
        if 60 * shown.hour + shown.minute in minutes:
            assert end_ms is not None
        if end_ms is not None:
            released = datetime.fromtimestamp(end_ms / 1000, zone)
            assert now_ms < end_ms <= now_ms + 50 * 60 * MINUTE_MS
            assert 60 * released.hour + released.minute not in minutes
            assert quiet.end_ms(end_ms) is None
