"""What an operator may ask of the store: what is there, and to have a timeline delivered now, deleted, or moved.

Routes are deleted and adopted in steps: a step is a bounded number of timelines, and its caller goes on until one did
nothing. That is for routes which no daemon feeds any more.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqdigest.store.keys import shown_timeline
from nsqdigest.store.packing import RECORDS_PER_CALL

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace

TIMELINES_PER_STEP = 100
_AT_A_TIME = 8


class Flushed(StrEnum):
    DUE = "due"
    LEASED = "leased"
    """It is being delivered already."""
    UNKNOWN = "unknown"


class RouteCounts(NamedTuple):
    """What is there of a route, over all partitions."""

    waiting: int
    leased: int
    open_records: int
    snapshot_records: int

    @property
    def timelines(self) -> int:
        return self.waiting + self.leased


class Step(NamedTuple):
    timelines: int
    records: int


class Operations:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    # -- what is there

    async def routes(self) -> dict[str, int]:
        """Every route that a daemon ever had, and when one that has it was last here (ms)."""
        (flat,) = await self._namespace.send(0, [[b"HGETALL", self._namespace.tags[0] + b"routes"]])
        return {name.decode(): int(here_ms) for name, here_ms in zip(flat[::2], flat[1::2], strict=True)}

    async def counts(self, route: str) -> RouteCounts:
        found = await asyncio.gather(
            *(self._counts(partition, route) for partition in range(self._namespace.partitions))
        )
        return RouteCounts(*map(sum, zip(*found, strict=True)))

    async def _counts(self, partition: int, route: str) -> RouteCounts:
        of = self._namespace.keys(partition, route)
        waiting, leased, (records, in_snapshots) = await self._namespace.send(
            partition,
            [[b"ZCARD", of.waiting], [b"ZCARD", of.leased], [b"HMGET", of.ledger, b"open", b"snapshots"]],
        )
        return RouteCounts(waiting, leased, int(records or 0), int(in_snapshots or 0))

    async def ledger(self, route: str) -> dict[str, int]:
        """The counters of a route over all partitions."""
        total: dict[str, int] = {}
        answers = await asyncio.gather(
            *(
                self._namespace.send(partition, [[b"HGETALL", self._namespace.keys(partition, route).ledger]])
                for partition in range(self._namespace.partitions)
            )
        )
        for (flat,) in answers:
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                total[field.decode()] = total.get(field.decode(), 0) + int(value)
        return total

    async def orphans(self, configured: set[str]) -> dict[str, RouteCounts]:
        """Routes that are not configured any more and of which timelines are there: nothing of them is delivered."""
        names = sorted(set(await self.routes()) - configured)
        found = {name: await self.counts(name) for name in names}
        return {name: counts for name, counts in found.items() if counts.timelines}

    # -- one timeline

    async def flush(self, route: str, timeline: str) -> Flushed:
        """Due at once, whatever its policy says; of one that is delivered already the next digest is not touched."""
        name, partition = timeline.encode(), self._home(timeline)
        answer = await self._namespace.run(
            partition, "flush", self._namespace.keys(partition, route).of(name), [b"", name]
        )
        return Flushed(answer[0].decode())

    async def delete(self, route: str, timeline: str) -> int | None:
        """Returns how many records went with it; None: there is no such timeline."""
        return await self._delete(self._home(timeline), route, timeline.encode())

    async def _delete(self, partition: int, route: str, name: bytes) -> int | None:
        answer = await self._namespace.run(partition, "delete", self._namespace.keys(partition, route).of(name), [name])
        return int(answer[1]) if answer[0] == b"deleted" else None

    def _home(self, timeline: str) -> int:
        """Its partition; a revived digest is in that of the timeline it came from."""
        return self._namespace.partition_of(shown_timeline(timeline).encode())

    # -- all of a route, step by step

    async def delete_some(self, partition: int, route: str, most: int = TIMELINES_PER_STEP) -> Step:
        return await self._step(partition, route, most, lambda name: self._delete(partition, route, name))

    async def adopt_some(
        self, partition: int, route: str, to: str, capacity: int, most: int = TIMELINES_PER_STEP
    ) -> Step:
        """Timelines go over to another route, all their records into its open sets.

        Of the ledgers: what went over is dropped:adopted in the one and added in the other. A timeline of more than
        10,000 records stays, since one call may not hold Redis for so long: `orphans` goes on naming its route.
        """
        if route == to:
            raise ValueError(f'the route "{route}" cannot adopt itself')
        return await self._step(partition, route, most, lambda name: self._adopt(partition, route, to, capacity, name))

    async def _adopt(self, partition: int, route: str, to: str, capacity: int, name: bytes) -> int | None:
        keys = [*self._namespace.keys(partition, route).of(name), *self._namespace.keys(partition, to).of(name)]
        answer = await self._namespace.run(partition, "adopt", keys, [name, capacity])
        return int(answer[1]) if answer[0] == b"adopted" else None

    async def _step(self, partition: int, route: str, most: int, work: Any) -> Step:
        of, last = self._namespace.keys(partition, route), min(most, RECORDS_PER_CALL) - 1
        waiting, leased = await self._namespace.send(
            partition, [[b"ZRANGE", of.waiting, 0, last], [b"ZRANGE", of.leased, 0, last]]
        )
        names = [*waiting, *leased][: last + 1]
        done: list[int] = []
        for start in range(0, len(names), _AT_A_TIME):
            answers = await asyncio.gather(*(work(name) for name in names[start : start + _AT_A_TIME]))
            done += [records for records in answers if records is not None]
        return Step(len(done), sum(done))
