"""When a timeline is due (pure): base and bound for every moment of its life, as absolute instants of Redis' clock.

    it begins, immediate      base = bound = now
    it begins, otherwise      base = now + first delay        bound = now + maximum
    after digest number n     base = now + delay(n)           bound = max(base, now + maximum)
    with a calendar           base = bound = its next instant after now, when it begins as after a digest
    a retry                   base = bound = when to try again (delivery.py)
    exempt from the policy    base = bound = EXEMPT_MS

Where a policy takes the zone from the events, each timeline has a plan of its own zone: `Plan.of_zone`.

In between, due = min(base + increment * records, bound); Redis works that out from the set itself. Quiet hours change
nothing of it: what is due inside waits until they end, since a route is then claimed of only up to EXEMPT_MS. (Of a
route whose timelines have zones of their own everything is claimed, and put off until then: base = bound = the end of
the quiet hours, whatever comes meanwhile.)
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.calendar import Calendar
from nsqdigest.base.local_time import DAY_MS, is_zone, zone_named
from nsqdigest.base.quiet_hours import QuietHours

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from nsqdigest.config import Policy


EXEMPT_MS = 1
"""The due instant of what goes out at once, also in quiet hours. (lua/lib/schedule.lua has the same.)"""
_FURTHEST_MS = 2**53
_PACKED = struct.Struct(">QQI")
"""Base, bound and records, as lua/lib/schedule.lua packs them."""


def instant_ms(score: bytes | int) -> int:
    """As Redis answers it. What no script wrote may be infinite: it is as far away as numbers go."""
    number = score if isinstance(score, int) else float(score)
    if -_FURTHEST_MS <= number <= _FURTHEST_MS:
        return int(number)
    return -_FURTHEST_MS if number < 0 else _FURTHEST_MS


class Schedule(NamedTuple):
    base_ms: int
    bound_ms: int


class Zoned(NamedTuple):
    """The zone that events name for their timelines ("": none), and the instants of one that waits and has another."""

    zone: str
    anew: Schedule | None


def unpacked(packed: bytes | None, otherwise_ms: int) -> tuple[int, int, int]:
    """Base, bound and records of a timeline. Where data was lost, or something else wrote it: the given instant, and no
    records."""
    if packed is not None and len(packed) == _PACKED.size:
        base_ms, bound_ms, records = _PACKED.unpack(packed)
        if base_ms < _FURTHEST_MS and bound_ms < _FURTHEST_MS:
            return base_ms, bound_ms, records
    return otherwise_ms, otherwise_ms, 0


def due_ms(base_ms: int, bound_ms: int, increment_ms: int, records: int) -> int:
    """Of a timeline that waits."""
    return min(base_ms + increment_ms * records, bound_ms)


def released_ms(due_ms: int, quiet: QuietHours | None) -> int:
    """When a timeline that is due at an instant may be delivered at the earliest."""
    return due_ms if quiet is None or due_ms <= EXEMPT_MS else quiet.release_ms(due_ms)


def shown_due_ms(due_ms: int, now_ms: int, quiet: QuietHours | None) -> int:
    """The same for people: what is exempt from its policy is due now."""
    return now_ms if due_ms <= EXEMPT_MS else released_ms(due_ms, quiet)


def calendar_of(policy: Policy) -> Calendar | None:
    return Calendar(policy.at, _zone_of(policy)) if policy.at else None


def quiet_of(policy: Policy) -> QuietHours | None:
    return QuietHours(policy.quiet, _zone_of(policy), is_zoned=policy.is_zoned) if policy.quiet else None


def _zone_of(policy: Policy) -> ZoneInfo:
    zone = zone_named(policy.common_zone)
    assert zone is not None  # the configuration was checked
    return zone


_REMEMBERED = re.compile(
    r"immediate=([01]) delays=(\d+),\d+,(\d+) growth=\d+ intervals=([\d,]*)(?: quiet=.*)?"
).fullmatch


class Remembered(NamedTuple):
    """How a policy scored the timelines that had no digest yet, read back from its text (`Plan.text`)."""

    first_ms: int
    """From the beginning of a timeline to its base."""
    spread_ms: int
    """From its base to its bound."""

    @classmethod
    def of(cls, text: str) -> Remembered | None:
        """None for a calendar, whose instants say nothing of the beginning, and for a text of another version."""
        match = _REMEMBERED(text)
        if match is None:
            return None
        if match[1] == "1":
            return cls(0, 0)
        first_ms = int(match[4].partition(",")[0] or match[2])
        return cls(first_ms, max(first_ms, int(match[3])) - first_ms)

    def began_ms(self, schedule: Schedule, now_ms: int) -> int:
        """When a timeline with this schedule began. One that something else has put off since was due by now."""
        due_since_ms = now_ms - self.first_ms
        if schedule.bound_ms - schedule.base_ms != self.spread_ms:
            return due_since_ms
        began_ms = schedule.base_ms - self.first_ms
        return due_since_ms if began_ms > now_ms else began_ms


class Plan:
    """The instants of one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._of_zones: dict[str, Plan] = {}
        self._calendar = calendar_of(policy)
        self.quiet = quiet_of(policy)
        if policy.intervals_ms:
            self._after = (*policy.intervals_ms[1:], policy.minimum_delay_ms)
        elif policy.growth == "exponential":
            self._after = tuple(
                policy.minimum_delay_ms << min(iteration, policy.growth_steps)
                for iteration in range(1, max(1, policy.growth_steps) + 1)
            )
        else:
            self._after = (policy.minimum_delay_ms,)
        self._first_ms = policy.intervals_ms[0] if policy.intervals_ms else policy.minimum_delay_ms

    @property
    def zone_template(self) -> str:
        """Of the events, which name the zones of their timelines; "" where all have the same."""
        return self._policy.zone if self._policy.is_zoned else ""

    def of_zone(self, name: str) -> Plan:
        """The plan of a timeline whose zone this is. The plan itself where it names none, or none that there is."""
        if not self._policy.is_zoned or not is_zone(name):
            return self
        if name not in self._of_zones:
            self._of_zones[name] = Plan(replace(self._policy, zone=name))
        return self._of_zones[name]

    @property
    def increment_ms(self) -> int:
        return self._policy.increment_delay_ms

    def delay_ms(self, iteration: int) -> int:
        """The least between the digest of this number and the next; 0: before the first, where that waits."""
        return self._after[min(iteration, len(self._after)) - 1] if iteration else self._first_ms

    @property
    def has_calendar(self) -> bool:
        return self._calendar is not None

    @property
    def text(self) -> str:
        """All that decides base, bound and increment, in one form. Two policies with the same text score alike."""
        policy = self._policy
        delays_ms = (policy.minimum_delay_ms, policy.increment_delay_ms, policy.maximum_delay_ms)
        if self._calendar is not None:
            default = f" default={policy.zone_default}" if policy.is_zoned else ""
            return f"at={','.join(policy.at)} zone={policy.zone}{default} immediate={policy.immediate:d}"
        growth = policy.growth_steps if policy.growth == "exponential" else 0
        put_off = ""
        if policy.is_zoned and policy.quiet:  # base and bound are the end of these, where they held a timeline back
            put_off = f" quiet={','.join(map(str, policy.quiet))} zone={policy.zone} default={policy.zone_default}"
        return (
            f"immediate={policy.immediate:d} delays={','.join(map(str, delays_ms))} growth={growth} "
            f"intervals={','.join(map(str, policy.intervals_ms))}{put_off}"
        )

    @property
    def longest_ms(self) -> int:
        """No instant of its schedules lies further ahead."""
        if self._calendar is not None:
            longest_ms = self._calendar.longest_ms()
        else:
            longest_ms = max(self._first_ms, *self._after, self._policy.maximum_delay_ms)
        # What a digest promises ends with the quiet hours; another zone may change its clock when this one does not.
        return longest_ms + (2 * DAY_MS if self.quiet or self._policy.is_zoned else 0)

    def beginning(self, now_ms: int) -> Schedule:
        if self._policy.immediate:
            return Schedule(now_ms, now_ms)
        if self._calendar is not None:
            next_ms = self._calendar.next_ms(now_ms)
            return Schedule(next_ms, next_ms)
        return Schedule(now_ms + self._first_ms, now_ms + max(self._first_ms, self._policy.maximum_delay_ms))

    def anew(self, now_ms: int) -> Schedule | None:
        """The instants of a timeline that waits and gets this zone, where they depend on it."""
        if self._calendar is None:
            return None
        next_ms = self._calendar.next_ms(now_ms)
        return Schedule(next_ms, next_ms)

    def after_digest(self, iteration: int, now_ms: int, promised_ms: int = 0) -> Schedule:
        """The first digest has iteration 1. Never before the instant that the digest named to its receiver."""
        if self._calendar is not None:
            base_ms = max(self._calendar.next_ms(now_ms), promised_ms)
            return Schedule(base_ms, base_ms)
        base_ms = max(now_ms + self.delay_ms(iteration), promised_ms)
        return Schedule(base_ms, max(base_ms, now_ms + self._policy.maximum_delay_ms))

    def earliest_next_ms(self, now_ms: int) -> list[int]:
        """Before which no digest comes that follows one opened now, by iteration from 1 on; the last stands for all
        later ones."""
        if self._calendar is not None:
            return [self.release_ms(self._calendar.next_ms(now_ms))]
        return [self.release_ms(now_ms + delay_ms) for delay_ms in self._after]

    def release_ms(self, due_ms: int) -> int:
        """When what is due at an instant may be delivered at the earliest: at the end of the quiet hours it is in."""
        return released_ms(due_ms, self.quiet)
