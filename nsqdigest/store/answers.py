"""What is asked of the store and what it answers: values, and the words of the scripts (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from nsqdigest.base.errors import StoreError
from nsqdigest.store.keys import is_own, shown_timeline


class RoutePlan(NamedTuple):
    """What the store must know of a route."""

    name: str
    capacity: int
    increment_ms: int
    dedupe_window_ms: int
    merges: bool = False
    """A digest left over takes newer records in."""
    longest_ms: int = 366 * 86_400_000
    """No instant of its schedule lies further ahead: the longest delay of its policy, or of a retry."""


class Mended(NamedTuple):
    """A route whose ledger was not exact and is again."""

    route: str
    difference: int
    """So many records more are there than the ledger had; below 0: fewer."""


class Maintained(NamedTuple):
    """What maintenance found in a partition, and put right."""

    ran_out: int
    """Leases."""
    brought_back: int
    """Instants that lay further ahead than the policies allow: a clock was wrong."""
    found: int
    """Timelines that neither waited nor were leased."""
    miscounted: int
    """By how much the count of timelines was off."""
    mended: tuple[Mended, ...] = ()
    damaged: Mapping[str, StoreError] = MappingProxyType({})
    """Routes that could not be looked after, or not mended, and why."""

    def and_then(self, later: Maintained) -> Maintained:
        return Maintained(
            self.ran_out + later.ran_out,
            self.brought_back + later.brought_back,
            self.found + later.found,
            self.miscounted + later.miscounted,
            self.mended + later.mended,
            {**self.damaged, **later.damaged},
        )

    def repairs(self) -> dict[str, int]:
        """How many of each kind, where there were any."""
        found = {
            "instant": self.brought_back, "timeline": self.found, "count": abs(self.miscounted),
            "ledger": len(self.mended),
        }  # fmt: skip
        return {what: number for what, number in found.items() if number}


class Added(NamedTuple):
    added: int
    superseded: int
    over_capacity: int
    over_timelines: int
    duplicates: int
    repeated: int
    due_at_once: int


class WrongTypes(NamedTuple):
    shared: list[str]
    own: list[str]


class Claim(NamedTuple):
    partition: int
    route: str
    timeline: str
    due_ms: int
    token: str

    @property
    def is_revived(self) -> bool:
        return is_own(self.timeline)

    @property
    def shown_timeline(self) -> str:
        return shown_timeline(self.timeline)


class Claimed(NamedTuple):
    claims: list[Claim]
    next_due_ms: int | None


class NotOpened(StrEnum):
    """Why a claim came to no digest."""

    STALE = "stale"
    """The lease is another's."""
    EMPTY = "empty"
    """Nothing to send; the timeline is forgotten."""
    DAMAGED = "damaged"
    """A key of its own has another type."""


class Ended(StrEnum):
    """What became of the end of a digest."""

    DONE = "done"
    ALREADY = "already"
    """An earlier call did it."""
    STALE = "stale"
    DAMAGED = "damaged"
