"""Calendars: which instants a cron expression means in a zone, on days when its clock is put forward or back, too."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.calendar import BadCron, Calendar, NeverFires, check
from nsqdigest.base.local_time import DAY_MS, nearest_zone, zone_named

pytestmark = pytest.mark.unit

BERLIN, LORD_HOWE, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe"), ZoneInfo("America/New_York")
"""One hour forward at 2:00 and back at 3:00; half an hour at 2:00; one hour at 2:00."""
YEAR_MS = (1_767_225_600_000, 1_798_761_600_000)
"""2026."""


def ms(year: int, month: int, day: int, hour: int = 0, minute: int = 0, *, zone: ZoneInfo = BERLIN) -> int:
    return int(datetime(year, month, day, hour, minute, tzinfo=zone).timestamp()) * 1000


def following(expression: str, from_ms: int, count: int, zone: ZoneInfo = BERLIN) -> list[str]:
    calendar, found = Calendar([expression], zone), []
    for _ in range(count):
        from_ms = calendar.next_ms(from_ms)
        found.append(f"{datetime.fromtimestamp(from_ms / 1000, zone):%d %H:%M%z}"[:-2])
    return found


def test_the_next_instant_is_strictly_after() -> None:
    friday_at_nine = ms(2026, 11, 20, 9)
    calendar = Calendar(["0 9 * * 1-5"], BERLIN)
    assert calendar.next_ms(friday_at_nine - 1) == friday_at_nine
    assert calendar.next_ms(friday_at_nine) == ms(2026, 11, 23, 9)
    assert calendar.next_ms(friday_at_nine - 1) == friday_at_nine, "also when it is asked of an earlier instant again"


def test_of_several_expressions_the_next_of_any() -> None:
    calendar = Calendar(["0 9 * * *", "30 17 * * *"], BERLIN)
    assert calendar.next_ms(ms(2026, 11, 20, 9)) == ms(2026, 11, 20, 17, 30)
    assert calendar.next_ms(ms(2026, 11, 20, 17, 30)) == ms(2026, 11, 21, 9)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 2 * * *", ["29 03:00+02", "30 02:00+02"]),
        ("30 2 * * *", ["29 03:00+02", "30 02:30+02"]),
        ("0,30 2 * * *", ["29 03:00+02", "30 02:00+02"]),
        ("*/30 2 * * *", ["29 03:00+02", "30 02:00+02"]),
        ("0 */2 * * *", ["28 14:00+01", "28 16:00+01"]),
        ("0 3 * * *", ["29 03:00+02", "30 03:00+02"]),
    ],
)
def test_a_time_that_the_clock_skips_comes_once_when_it_is_put_forward(expression: str, expected: list[str]) -> None:
    assert following(expression, ms(2026, 3, 28, 12), 2) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 2 * * *", ["25 02:00+02", "26 02:00+01"]),
        ("30 2 * * *", ["25 02:30+02", "26 02:30+01"]),
        ("0 3 * * *", ["25 03:00+01", "26 03:00+01"]),
    ],
)
def test_a_time_that_the_clock_repeats_comes_once(expression: str, expected: list[str]) -> None:
    assert following(expression, ms(2026, 10, 24, 12), 2) == expected


def test_what_comes_every_hour_follows_the_real_hours() -> None:
    assert following("30 * * * *", ms(2026, 3, 29, 1), 2) == ["29 01:30+01", "29 03:30+02"]
    back = ["25 02:00+02", "25 02:30+02", "25 02:00+01", "25 02:30+01", "25 03:00+01"]
    assert following("*/30 * * * *", ms(2026, 10, 25, 1, 30), 5) == back
    lord_howe = following("*/15 * * * *", ms(2026, 10, 4, 1, 30, zone=LORD_HOWE), 2, LORD_HOWE)
    assert lord_howe == ["04 01:45+10", "04 02:30+11"], "half an hour is skipped there"


@given(
    zone=st.sampled_from([BERLIN, LORD_HOWE, NEW_YORK, ZoneInfo("UTC")]),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    from_ms=st.integers(*YEAR_MS),
)
def test_a_daily_time_comes_exactly_once_a_day(zone: ZoneInfo, hour: int, minute: int, from_ms: int) -> None:
    """And at that time of the clock, unless the clock skips it."""
    calendar = Calendar([f"{minute} {hour} * * *"], zone)
    days = []
    now_ms = from_ms
    for _ in range(8):
        now_ms, before_ms = calendar.next_ms(now_ms), now_ms
        assert before_ms < now_ms
        shown = datetime.fromtimestamp(now_ms / 1000, zone)
        days.append(shown.toordinal())
        skipped = (shown.hour, shown.minute) != (hour, minute)
        assert not skipped or shown.utcoffset() != datetime.fromtimestamp(now_ms / 1000 - 60, zone).utcoffset()
    assert days == list(range(days[0], days[0] + 8))


@given(
    zone=st.sampled_from([BERLIN, LORD_HOWE, NEW_YORK]),
    minute=st.sampled_from(["0", "30", "*/15", "7", "*"]),
    from_ms=st.integers(*YEAR_MS),
)
def test_what_comes_every_hour_matches_the_clock_each_time(zone: ZoneInfo, minute: str, from_ms: int) -> None:
    """Looked for minute by minute."""
    next_ms = Calendar([f"{minute} * * * *"], zone).next_ms(from_ms)
    fitting = {"*": range(60), "*/15": range(0, 60, 15)}.get(minute) or range(int(minute), int(minute) + 1)
    expected_ms = from_ms // 60_000 * 60_000 + 60_000
    while datetime.fromtimestamp(expected_ms / 1000, zone).minute not in fitting:
        expected_ms += 60_000
    assert next_ms == expected_ms


@pytest.mark.parametrize("expression", ["0 9 * * *", "0 9 * * 1", "0 0 1 1 *", "0 0 29 2 *", "*/5 * * 6 *"])
def test_the_longest_wait_is_at_least_each_wait_and_not_much_more(expression: str) -> None:
    calendar = Calendar([expression], BERLIN)
    longest_ms = calendar.longest_ms()
    now_ms, waits_ms = ms(2026, 1, 1), [0]
    while now_ms < ms(2034, 1, 1) and len(waits_ms) < 20_000:
        next_ms = calendar.next_ms(now_ms)
        waits_ms.append(next_ms - now_ms)
        now_ms = next_ms
    assert max(waits_ms) <= longest_ms <= max(waits_ms) + 10 * DAY_MS


@pytest.mark.parametrize("expression", ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6 *"])
def test_a_date_that_there_is_not_never_comes(expression: str) -> None:
    with pytest.raises(NeverFires):
        check(expression)


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("61 * * * *", "has a bad minute"),
        ("0 24 * * *", "has a bad hour"),
        ("0 9 * * FOO", "has a bad day of week"),
        ("0 9 * *", "has 4 fields, not 5"),
        ("0 0 9 * * *", "has 6 fields, not 5"),
    ],
)
def test_a_bad_expression_is_refused_by_its_field(expression: str, why: str) -> None:
    with pytest.raises(BadCron, match=why):
        check(expression)


def test_a_leap_day_and_names_of_days_are_fine() -> None:
    for expression in ("0 0 29 2 *", "0 9 * * MON-FRI", "0 0 L * *"):
        check(expression)


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("Berlin", "Europe/Berlin"),
        ("europe/berlin", "Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("New York", "America/New_York"),
        ("nowhere at all", ""),
    ],
)
def test_the_nearest_zone(text: str, zone: str) -> None:
    assert nearest_zone(text) == zone


@pytest.mark.parametrize("name", ["Mars/Base", "", "../etc/passwd", "Europe", "\0"])
def test_what_is_no_zone(name: str) -> None:
    assert zone_named(name) is None
