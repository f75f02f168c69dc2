"""A route as the store needs it (pure)."""

from __future__ import annotations

from typing import NamedTuple

from nsqdigest.base.quiet_hours import QuietHours

_LONGEST_MS = 366 * 86_400_000
_REMEMBERED_PER_CAPACITY, _REMEMBERED_AT_LEAST = 2, 1000


ORPHAN = "the file has no route of this name, so no daemon delivers them"


def orphan_remedy(route: str) -> str:
    """The three ways out for what a renamed or removed route left in Redis."""
    return (
        "write the route again until they are delivered, move them with `nsqdigest adopt "
        f"{route} --to ROUTE`, or delete them with `nsqdigest delete --route {route}`"
    )


class StoreRoute(NamedTuple):
    name: str
    capacity: int
    increment_ms: int
    dedupe_window_ms: int
    merges: bool = False
    """A digest that was not delivered takes newer records in."""
    longest_ms: int = _LONGEST_MS
    """No instant of its schedule lies further ahead: the longest delay of its policy, or of a retry."""
    policy_longest_ms: int = _LONGEST_MS
    """The same of its policy alone."""
    quiet: QuietHours | None = None
    has_quiet_hours: bool = False
    """Those of all its timelines, or of each its own."""
    is_zoned: bool = False
    """Its timelines have zones of their own: `quiet` is None then."""
    has_ends: bool = False
    """Some of its records may end others of their key."""
    has_message_keys: bool = False
    """Its records have the keys of their messages, and no `key` of the route's."""

    @property
    def memory_ms(self) -> int:
        """How long the keys of a timeline are remembered after its last digest. If records may end others, also after
        its last event, and longer: an end may wait for its digest as long as the policy says."""
        return self.dedupe_window_ms + (self.longest_ms if self.has_ends else 0)

    @property
    def remembered_keys(self) -> int:
        """How many keys of a timeline are remembered at most."""
        return max(_REMEMBERED_PER_CAPACITY * self.capacity, _REMEMBERED_AT_LEAST)
