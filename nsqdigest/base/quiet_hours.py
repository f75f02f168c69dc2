"""Quiet hours: times of day in a zone during which nothing is delivered (pure).

A window is two minutes of the day; one whose end is not after its beginning goes over midnight. Where the clock repeats
an hour, a window begins with the first of two instants and ends with the second; where it skips one, at the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from nsqdigest.base.local_time import LocalClock, is_zone

MINUTES_OF_DAY = 24 * 60


class Window(NamedTuple):
    start_minute: int
    end_minute: int

    @property
    def minutes(self) -> set[int]:
        """Of the day."""
        length = (self.end_minute - self.start_minute) % MINUTES_OF_DAY
        return {(self.start_minute + minute) % MINUTES_OF_DAY for minute in range(length)}

    def __str__(self) -> str:
        return "-".join(f"{minute // 60:02}:{minute % 60:02}" for minute in self)


class QuietHours:
    def __init__(self, windows: Sequence[Window], zone: ZoneInfo, *, is_zoned: bool = False) -> None:
        """Windows that leave some minute of the day free. `is_zoned`: timelines may have them in zones of their own."""
        self._is_zoned = is_zoned
        self._windows = windows
        self._elsewhere: dict[str, QuietHours] = {}
        self._clock = LocalClock(zone)
        self._known = (0, 0, 0)
        """The last answer: from the first instant on, until before the second, it is the third."""

    def in_zone(self, name: str) -> QuietHours:
        """The same windows in the zone of a timeline. These themselves where there is no such zone, or the policy takes
        none from the events (any more)."""
        if not self._is_zoned or not is_zone(name):
            return self
        if name not in self._elsewhere:
            self._elsewhere[name] = QuietHours(self._windows, ZoneInfo(name))
        return self._elsewhere[name]

    def end_ms(self, now_ms: int) -> int | None:
        """When the quiet hours end that `now_ms` is in, None where it is in none."""
        from_ms, until_ms, end_ms = self._known
        if not from_ms <= now_ms < until_ms:
            self._known = _, _, end_ms = self._look(now_ms)
        return end_ms or None

    def release_ms(self, due_ms: int) -> int:
        """When what is due at an instant may be delivered at the earliest."""
        return self.end_ms(due_ms) or due_ms

    def _look(self, now_ms: int) -> tuple[int, int, int]:
        """From when on, and until when, the answer is the third: the end of the quiet hours, or 0."""
        today = self._clock.shown(now_ms).date()
        days = [datetime.combine(today, time()) + timedelta(days=day) for day in range(-2, 4)]
        spans = sorted(self._span(day, window) for day in days for window in self._windows)
        joined = [spans[0]]
        for start_ms, end_ms in spans[1:]:
            if start_ms <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], end_ms)
            else:
                joined.append((start_ms, end_ms))
        free_from_ms = 0
        for start_ms, end_ms in joined:
            if now_ms < start_ms:
                return free_from_ms, start_ms, 0
            if now_ms < end_ms:
                return start_ms, end_ms, end_ms
            free_from_ms = end_ms
        raise AssertionError("the days around now have a window after it")

    def _span(self, day: datetime, window: Window) -> tuple[int, int]:
        start_minute, end_minute = window
        if end_minute <= start_minute:
            end_minute += MINUTES_OF_DAY
        start, end = (day + timedelta(minutes=minute) for minute in (start_minute, end_minute))
        return self._clock.first_ms(start), self._clock.last_ms(end)
