"""What the store returns: values, and the codes of the scripts (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from nsqdigest.base.errors import StoreError
from nsqdigest.store.keys import shown_timeline


class Added(NamedTuple):
    """What became of the records of one call, in the order of lua/intake/add.lua."""

    now_ms: int
    added: int
    superseded: int
    dropped_capacity: int
    dropped_timelines: int
    dropped_duplicate: int
    repeated: int
    due_at_once: int
    """Timelines that are due since this call: they began with it, or an urgent record came."""
    counted: int
    """How many records were ever presented to the route in this partition, those of this call included."""
    dropped_muted: int = 0
    dropped_cancelled: int = 0
    """Records that an end took out, and ends that told nothing: also records of earlier calls."""


class WrongTypes(NamedTuple):
    """Keys that hold another type than theirs, each with the two types."""

    shared: list[str]
    """Keys that all timelines of the route use."""
    own: list[str]
    """Keys of the timeline alone."""


class Claim(NamedTuple):
    partition: int
    route: str
    timeline: str
    due_ms: int
    token: str
    zone: str = ""
    """Of the timeline, where its route's policy takes zones from the events."""
    scheduled_as: str = ""
    """The same for all claims whose next instants are the same; "": as all of its route."""

    @property
    def shown_timeline(self) -> str:
        return shown_timeline(self.timeline)


class Claimed(NamedTuple):
    claims: list[Claim]
    next_due_ms: int | None


class NotOpened(StrEnum):
    """Why a claim led to no digest."""

    STALE = "stale"
    """The lease is another's."""
    EMPTY = "empty"
    """Nothing to send; the timeline is forgotten."""
    DAMAGED = "damaged"
    """A key of its own has another type."""
    LATER = "later"
    """The call had work enough without it: ask again."""


class Ended(StrEnum):
    """The result of ending a digest."""

    DONE = "done"
    ALREADY = "already"
    """An earlier call did it."""
    STALE = "stale"
    DAMAGED = "damaged"
    LATER = "later"
    """The call had work enough without it: ask again."""


# -- upkeep


class Mended(NamedTuple):
    """A route whose ledger was not exact and was recounted."""

    route: str
    difference: int
    """How many more records are there than the ledger had; below 0: fewer."""


class Maintained(NamedTuple):
    """What maintenance found in a partition and repaired."""

    ran_out: int
    """Leases."""
    brought_back: int
    """Instants that lay further ahead than the policies allow: a clock was wrong."""
    found: int
    """Timelines that neither waited nor were leased."""
    miscounted: int
    """How far the count of timelines was off."""
    mended: tuple[Mended, ...] = ()
    damaged: Mapping[str, StoreError] = MappingProxyType({})
    """Routes that maintenance could not look at or repair, and why."""

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
