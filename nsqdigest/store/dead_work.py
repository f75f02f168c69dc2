"""Sends dead digests again, or drops them for good: the ones that an operator names or selects, one after the other.

Invariants:
- Each digest has exactly one result. One that is not found, or not fit to be sent, stops no other.
- A digest is sent again under its own id. It leaves the dead store in the step in which it becomes due.
- Nothing is sent again that nobody would deliver: a route that the file does not have, a digest that lost its values.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.reasons import BuryReason
from nsqdigest.store import dead_selection
from nsqdigest.store.dead import Revival

if TYPE_CHECKING:
    from nsqdigest.store.dead import Dead, DeadStore
    from nsqdigest.store.dead_selection import Selection


class Result(StrEnum):
    REPLAYED = "replayed"
    ALREADY = "already"
    """It was replayed before, and is on its way."""
    DROPPED = "dropped"
    UNKNOWN = "unknown"
    """No such digest is dead."""
    ORPHAN = "orphan"
    """The file has no such route: nobody would deliver it."""
    VALUES_LOST = "values-lost"
    """Redis lost its records' values: there is nothing to send."""
    NOT_WHOLE = "not-whole"
    """The file to which it was exported does not have all of its records."""

    @property
    def is_done(self) -> bool:
        return self in (Result.REPLAYED, Result.ALREADY, Result.DROPPED)


class Handled(NamedTuple):
    id: str
    result: Result
    dead: Dead | None
    """None: it was not found."""
    records: int = 0
    """That were dropped, or are sent again."""


class DeadWork:
    def __init__(self, store: DeadStore, routes: Collection[str]) -> None:
        """`routes`: those of the file."""
        self._store = store
        self._routes = routes

    async def named(self, ids: Sequence[str], *, replays: bool) -> AsyncIterator[Handled]:
        for digest_id in dict.fromkeys(ids):
            dead = await self._store.find(digest_id)
            if dead is None:
                yield Handled(digest_id, Result.UNKNOWN, None)
            else:
                yield await self._handle(dead, replays=replays)

    async def selected(self, wanted: Selection, until_ms: int, limit: int, *, replays: bool) -> AsyncIterator[Handled]:
        """Those longest dead first, of those that died by then; at most so many."""
        handled = 0
        async for page in dead_selection.oldest_first(self._store, wanted, until_ms):
            for dead in page:
                if handled == limit:
                    return
                handled += 1
                yield await self._handle(dead, replays=replays)

    async def _handle(self, dead: Dead, *, replays: bool) -> Handled:
        if not replays:
            dropped = await self._store.drop(dead)
            return Handled(dead.id, Result.DROPPED if dropped is not None else Result.UNKNOWN, dead, dropped or 0)
        if dead.route not in self._routes:
            return Handled(dead.id, Result.ORPHAN, dead)
        if dead.details.reason == BuryReason.VALUES_LOST:
            return Handled(dead.id, Result.VALUES_LOST, dead)
        revival = await self._store.revive(dead)
        return Handled(dead.id, _RESULT_OF[revival], dead, dead.details.head.total)


_RESULT_OF = {
    Revival.REVIVED: Result.REPLAYED,
    Revival.ALREADY: Result.ALREADY,
    Revival.UNKNOWN: Result.UNKNOWN,
}
