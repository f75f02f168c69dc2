"""Calendars: cron expressions in a zone, as instants (pure).

cronsim says which wall clock times match an expression; what an instant that the clock skips or repeats means is
decided here, as people expect: nothing is skipped, nothing comes twice.

- A time that the clock skips comes when the clock is put forward; of several, one.
- A time that the clock repeats comes the first time only.
- An expression that matches in every hour ("0 * * * *") follows the real hours: none is made up for, and in a repeated
  hour it matches again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from nsqdigest.base.local_time import DAY_MS, LocalClock
from nsqdigest.base.words import counted

FIELDS = 5
_MINUTE = timedelta(minutes=1)
_REFERENCE_MS = 1_677_628_800_000
"""1 March 2023: the next leap day is nearly a year away, the one after it five years."""
_SPAN_DAYS = 5 * 366
_STEP_DAYS = 7
_MOST_YEARS = 10
_ANY_DAY = datetime(2024, 1, 1)  # noqa: DTZ001 of a wall clock


class NeverFires(Exception):
    """No date matches the expression."""


class BadCron(Exception):
    """The text says which field is wrong."""


def check(expression: str) -> None:
    """Raises BadCron or NeverFires."""
    parts = expression.split()
    if len(parts) != FIELDS:
        raise BadCron(
            f"has {counted(len(parts), 'field')}, not {FIELDS}: minute, hour, day of month, month, day of week"
        )
    try:
        found = next(CronSim(expression, _ANY_DAY))
    except StopIteration:
        raise NeverFires from None
    except CronSimError as error:
        minute, hour, day, _, weekday = parts
        try:
            CronSim(f"{minute} {hour} {day} * {weekday}", _ANY_DAY)
            CronSim(f"{minute} {hour} 1 {parts[3]} {weekday}", _ANY_DAY)
        except CronSimError:
            raise BadCron(f"has a {str(error).lower().replace('-', ' ')}") from None
        raise NeverFires from None
    if found.year > _ANY_DAY.year + _MOST_YEARS:
        raise NeverFires


class Calendar:
    def __init__(self, expressions: Sequence[str], zone: ZoneInfo) -> None:
        """Expressions that `check` accepts."""
        self._clock = LocalClock(zone)
        self._expressions = [(each, _is_hourly(each)) for each in expressions]
        self._asked_ms, self._next_ms = 0, 0
        """The last answer: from the first instant on, until before the second, it is the second."""

    def next_ms(self, now_ms: int) -> int:
        """The next instant, strictly after `now_ms`."""
        if not self._asked_ms <= now_ms < self._next_ms:
            self._next_ms = min(
                self._next_hourly_ms(each, now_ms) if is_hourly else self._next_fixed_ms(each, now_ms)
                for each, is_hourly in self._expressions
            )
            self._asked_ms = now_ms
        return self._next_ms

    def longest_ms(self) -> int:
        """At least as long as any wait for the next instant."""
        longest_ms, now_ms = 0, _REFERENCE_MS
        while now_ms < _REFERENCE_MS + _SPAN_DAYS * DAY_MS:
            next_ms = self.next_ms(now_ms)
            longest_ms = max(longest_ms, next_ms - now_ms)
            now_ms = max(next_ms, now_ms + _STEP_DAYS * DAY_MS)
        return longest_ms + (_STEP_DAYS + 2) * DAY_MS  # it looks once a week, and clocks are put forward and back

    def _next_fixed_ms(self, expression: str, now_ms: int) -> int:
        for shown in _after(expression, self._clock.shown(now_ms)):
            instant_ms = self._clock.first_ms(shown)
            if instant_ms > now_ms:
                return instant_ms
        raise AssertionError(f"{expression} was checked")

    def _next_hourly_ms(self, expression: str, now_ms: int) -> int:
        clock, from_ms, shown_from = self._clock, now_ms, self._clock.shown(now_ms) + timedelta(microseconds=1)
        while True:
            offset_ms = clock.offset_ms(from_ms)
            shown = next(each for each in _after(expression, shown_from - _MINUTE) if each >= shown_from)
            instant_ms = from_ms + (shown - clock.shown(from_ms)) // timedelta(milliseconds=1)
            if clock.offset_ms(instant_ms) == offset_ms:
                return instant_ms
            from_ms = clock.change_ms(from_ms, instant_ms)  # what it shows from there on is looked at anew
            shown_from = clock.shown(from_ms)


def _is_hourly(expression: str) -> bool:
    return CronSim(expression, _ANY_DAY).hours == set(range(24))


def _after(expression: str, shown: datetime) -> Iterator[datetime]:
    """The wall clock times that match, from after the minute of `shown`."""
    return iter(CronSim(expression, shown.replace(second=0, microsecond=0)))
