"""Which dead digests an operator means: a selection, and two ways through the dead store. Reads only.

Invariants:
- A page is a few hundred digests of one partition. Only what was asked for is kept here.
- `oldest_first` ends: a digest that dies while it is at work dies after the instant that the caller gave.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.store.packing import RECORDS_PER_CALL

if TYPE_CHECKING:
    from nsqdigest.store.dead import Dead, DeadStore


@dataclass(frozen=True, slots=True)
class Selection:
    """ "" and 0: any."""

    route: str = ""
    sink: str = ""
    reason: str = ""
    timeline: str = ""
    before_ms: int = 0
    """It died by then."""

    def takes(self, dead: Dead) -> bool:
        details = dead.details
        return (
            self.route in ("", details.route)
            and self.sink in ("", details.sink)
            and self.reason in ("", details.reason)
            and self.timeline in ("", details.timeline)
            and not 0 < self.before_ms < dead.since_ms
        )


class Found(NamedTuple):
    dead: list[Dead]
    total: int
    """How many there are that were asked for."""
    unreadable: int
    """Details that no version of nsqdigest wrote, of any selection."""


async def newest(store: DeadStore, wanted: Selection, limit: int) -> Found:
    """Newest dead first."""
    kept: list[Dead] = []
    total = there = readable = 0
    for partition, size in enumerate(await store.sizes()):
        there += size
        for start in range(0, size, RECORDS_PER_CALL):
            page = await store.page(partition, start, RECORDS_PER_CALL)
            readable += len(page)
            taken = [dead for dead in page if wanted.takes(dead)]
            total += len(taken)
            kept = nlargest(limit, [*kept, *taken], key=lambda dead: (dead.since_ms, dead.id))
    return Found(kept, total, max(0, there - readable))


async def oldest_first(store: DeadStore, wanted: Selection, until_ms: int) -> AsyncIterator[list[Dead]]:
    """In pages, those that died by then. The caller may take them out of the store between two pages: a page begins at
    the instant at which the one before ended, without those that were in it."""
    for partition in range(store.partitions):
        from_ms, seen, offset = 0, set[str](), 0
        while page := await store.page_between(partition, from_ms, until_ms, offset):
            new = [each for each in page if each.id not in seen]
            if taken := [each.dead for each in new if each.dead is not None and wanted.takes(each.dead)]:
                yield taken
            # More than a page may have died in one millisecond.
            offset = 0 if new else offset + len(page)
            if page[-1].since_ms > from_ms:
                from_ms, seen, offset = page[-1].since_ms, set(), 0
            elif not new and len(page) < RECORDS_PER_CALL:
                break
            seen.update(each.id for each in page if each.since_ms == from_ms)
