"""When a timeline is due (pure): base and bound for every moment of its life, as absolute instants of Redis' clock.

    it begins, immediate      base = bound = now
    it begins, otherwise      base = now + first delay        bound = now + maximum
    after digest number n     base = now + delay(n)           bound = max(base, now + maximum)
    a retry                   base = bound = when to try again (delivery.py)
    an urgent record          base = bound = EXEMPT_MS

In between, due = min(base + increment * records, bound); Redis works that out from the set itself.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nsqdigest.config import Policy


EXEMPT_MS = 1
"""Base and bound of a timeline that is due at once and exempt from its policy: an urgent record came."""
_FURTHEST_MS = 2**53
_PACKED = struct.Struct(">QQI")
"""Base, bound and records, as lua/lib/schedule.lua packs them."""


def instant_ms(score: bytes | int) -> int:
    """As Redis answers it. What no script wrote may be infinite: it is as far away as numbers go."""
    return int(max(-_FURTHEST_MS, min(_FURTHEST_MS, float(score))))


class Schedule(NamedTuple):
    base_ms: int
    bound_ms: int


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


class Plan:
    """The instants of one policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
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
    def longest_ms(self) -> int:
        """The longest delay that this policy can give."""
        return max(self._first_ms, *self._after, self._policy.maximum_delay_ms)

    def beginning(self, now_ms: int) -> Schedule:
        if self._policy.immediate:
            return Schedule(now_ms, now_ms)
        return Schedule(now_ms + self._first_ms, now_ms + max(self._first_ms, self._policy.maximum_delay_ms))

    def after_digest(self, iteration: int, now_ms: int) -> Schedule:
        """The first digest has iteration 1."""
        base_ms = now_ms + self._after[min(iteration, len(self._after)) - 1]
        return Schedule(base_ms, max(base_ms, now_ms + self._policy.maximum_delay_ms))

    def earliest_next_ms(self, now_ms: int) -> list[int]:
        """The base after a digest closed now, by iteration from 1 on; the last stands for all later ones."""
        return [now_ms + delay_ms for delay_ms in self._after]
