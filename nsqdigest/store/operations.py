"""The operations of an operator: count what a route has, and flush, delete or adopt its timelines.

A whole route is deleted or adopted in steps of a bounded number of timelines; the caller repeats the step until one
did nothing. This is for routes that no daemon feeds any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqdigest.store.damage import number
from nsqdigest.store.head import burying_id
from nsqdigest.store.holds import field_of
from nsqdigest.store.keys import shown_timeline
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.schedule import EXEMPT_MS

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace

TIMELINES_PER_STEP = 100
_CONCURRENT = 8


class Flushed(StrEnum):
    DUE = "due"
    LEASED = "leased"
    """It is being delivered already."""
    UNKNOWN = "unknown"


class RouteCounts(NamedTuple):
    """Of one route, over all partitions."""

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

    # -- reading

    async def routes(self) -> dict[str, int]:
        """Every route that a daemon ever had, and when a daemon that has it last checked in (ms)."""
        key = self._namespace.tags[0] + b"routes"
        (flat,) = await self._namespace.send(0, [[b"HGETALL", key]])
        return {name.decode(): number(seen_ms, key) for name, seen_ms in zip(flat[::2], flat[1::2], strict=True)}

    async def counts(self, route: str) -> RouteCounts:
        found = await asyncio.gather(
            *(self._counts(partition, route) for partition in range(self._namespace.partitions))
        )
        return RouteCounts(*map(sum, zip(*found, strict=True)))

    async def _counts(self, partition: int, route: str) -> RouteCounts:
        of = self._namespace.keys[partition, route]
        waiting, leased, (records, in_snapshots) = await self._namespace.send(
            partition,
            [[b"ZCARD", of.waiting], [b"ZCARD", of.leased], [b"HMGET", of.ledger, b"open", b"snapshots"]],
        )
        return RouteCounts(waiting, leased, number(records, of.ledger), number(in_snapshots, of.ledger))

    async def ledger(self, route: str) -> dict[str, int]:
        """The counters of a route over all partitions."""
        total: dict[str, int] = {}
        keys = [self._namespace.keys[partition, route].ledger for partition in range(self._namespace.partitions)]
        answers = await asyncio.gather(
            *(self._namespace.send(partition, [[b"HGETALL", key]]) for partition, key in enumerate(keys))
        )
        for key, (flat,) in zip(keys, answers, strict=True):
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                total[field.decode()] = total.get(field.decode(), 0) + number(value, key)
        return total

    async def orphans(self, configured: set[str]) -> dict[str, RouteCounts]:
        """Routes that are not configured any more and still have timelines: nobody delivers those."""
        names = sorted(set(await self.routes()) - configured)
        found = {name: await self.counts(name) for name in names}
        return {name: counts for name, counts in found.items() if counts.timelines}

    # -- one timeline

    async def flush(self, route: str, timeline: str, *, has_quiet_hours: bool = False) -> Flushed:
        """Makes the timeline due now, whatever its policy. Changes nothing where a digest of it is being delivered."""
        name, partition = timeline.encode(), self._partition_of(timeline)
        answer = await self._namespace.run(
            partition,
            "flush",
            self._namespace.keys[partition, route].of(name),
            [b"", name, EXEMPT_MS if has_quiet_hours else b""],
        )
        return Flushed(answer[0].decode())

    async def delete(self, route: str, timeline: str) -> int | None:
        """Returns how many records were deleted, None where there is no such timeline."""
        return await self._delete(self._partition_of(timeline), route, timeline.encode())

    async def _delete(self, partition: int, route: str, name: bytes) -> int | None:
        of = self._namespace.keys[partition, route]
        keys = [*of.of(name), of.ends + name]
        answer = await self._with_burial(partition, route, "delete", keys, [name])
        return int(answer[1]) if answer[0] == b"deleted" else None

    async def _with_burial(
        self, partition: int, route: str, script: str, keys: Sequence[bytes], arguments: Sequence[Any]
    ) -> list[Any]:
        """Calls a script with the keys of the timeline's digest in the dead store, if its burial was cut off. The first
        of the arguments is the timeline."""
        dead, heads = self._namespace.dead_keys[partition], self._namespace.keys[partition, route].heads
        while True:
            (head,) = await self._namespace.send(partition, [[b"HGET", heads, arguments[0]]])
            burying = burying_id(head)
            of_dead = [dead.dead, dead.details, dead.values + burying]
            answer = await self._namespace.run(partition, script, [*keys, *of_dead], [*arguments, burying])
            if answer[0] != b"changed":
                return list(answer)

    def _partition_of(self, timeline: str) -> int:
        """A revived digest stays in the partition of the timeline it came from."""
        return self._namespace.partition_of(shown_timeline(timeline).encode())

    # -- a whole route, step by step

    async def delete_some(self, partition: int, route: str, most: int = TIMELINES_PER_STEP) -> Step:
        return await self._step(partition, route, most, lambda name: self._delete(partition, route, name))

    async def adopt_some(
        self, partition: int, route: str, to: str, capacity: int, most: int = TIMELINES_PER_STEP
    ) -> Step:
        """Moves timelines to another route, with all their records into its open sets.

        The ledgers count the records as dropped:adopted in the one route and as added in the other. A timeline of more
        than 8,000 records stays, since one call must not block Redis for so long: `orphans` still lists its route.
        """
        if route == to:
            raise ValueError(f'the route "{route}" cannot adopt itself')
        return await self._step(partition, route, most, lambda name: self._adopt(partition, route, to, capacity, name))

    async def _adopt(self, partition: int, route: str, to: str, capacity: int, name: bytes) -> int | None:
        of, theirs = self._namespace.keys[partition, route], self._namespace.keys[partition, to]
        holds = self._namespace.tags[partition] + b"holds"
        keys = [*of.of(name), *theirs.of(name), of.ends + name, theirs.ends + name, holds]
        fields = [field_of(each, name) for each in (route, to)]
        arguments = [name, capacity, *fields, b""]
        answer = await self._with_burial(partition, route, "adopt", keys, arguments)
        return int(answer[1]) if answer[0] == b"adopted" else None

    async def delete_all(self, route: str) -> AsyncIterator[Step]:
        for partition in range(self._namespace.partitions):
            while (did := await self.delete_some(partition, route)).timelines:
                yield did

    async def adopt_all(self, route: str, to: str, capacity: int) -> AsyncIterator[Step]:
        for partition in range(self._namespace.partitions):
            while (did := await self.adopt_some(partition, route, to, capacity)).timelines:
                yield did

    async def _step(
        self, partition: int, route: str, most: int, work: Callable[[bytes], Awaitable[int | None]]
    ) -> Step:
        of, last = self._namespace.keys[partition, route], min(most, RECORDS_PER_CALL) - 1
        waiting, leased = await self._namespace.send(
            partition, [[b"ZRANGE", of.waiting, 0, last], [b"ZRANGE", of.leased, 0, last]]
        )
        names = [*waiting, *leased][: last + 1]
        done: list[int] = []
        for start in range(0, len(names), _CONCURRENT):
            answers = await asyncio.gather(*(work(name) for name in names[start : start + _CONCURRENT]))
            done += [records for records in answers if records is not None]
        return Step(len(done), sum(done))
