"""The gauges of the store: timelines, overdue ones, dead digests, orphans. Reads only.

A read is bounded: a few cheap commands for each route and partition, one partition after the other. Of the dead digests
only those that are new since the last read are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.store.damage import number
from nsqdigest.store.dead import Details, Unreadable
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.schedule import EXEMPT_MS, instant_ms, released_ms

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.operations import Operations
    from nsqdigest.store.route import StoreRoute

_ROUTES_PER_CALL = 50
_PAUSE_S = 5.0
_PLACES_PER_S = 16
_UNREADABLE = ""
"""Stands for the sink of a dead digest whose details cannot be read."""


def pause_s(places: int, look_s: float) -> float:
    """Between two reads of so many routes in partitions. `look_s`: how often a daemon looks at its store.

    Many are read less often, so that a fleet which has nothing to do costs Redis next to nothing.
    """
    return max(min(_PAUSE_S, look_s), places / _PLACES_PER_S)


class RouteFigures(NamedTuple):
    waiting: int = 0
    leased: int = 0
    open_records: int = 0
    overdue: int = 0
    """Waiting timelines that are due, and not held back by quiet hours."""
    oldest_due_ms: int | None = None
    """The earliest due instant of a waiting timeline; of one that waits for the end of quiet hours that end. What is
    exempt from its policy is not in it: it has no instant."""

    def overdue_s(self, now_ms: int) -> float:
        return 0.0 if self.oldest_due_ms is None else max(0, now_ms - self.oldest_due_ms) / 1000

    def plus(self, other: RouteFigures) -> RouteFigures:
        due_ms = [each.oldest_due_ms for each in (self, other) if each.oldest_due_ms is not None]
        return RouteFigures(
            self.waiting + other.waiting,
            self.leased + other.leased,
            self.open_records + other.open_records,
            self.overdue + other.overdue,
            min(due_ms, default=None),
        )


@dataclass(frozen=True, slots=True)
class Figures:
    now_ms: int = 0
    routes: Mapping[str, RouteFigures] = field(default_factory=dict)
    dead: Mapping[str, int] = field(default_factory=dict)
    """Dead digests by sink."""
    orphans: Mapping[str, int] = field(default_factory=dict)
    """Records by route, of routes that the file does not have."""


@dataclass(slots=True)
class _DeadOfPartition:
    ends: object = None
    """The number of dead digests, the first and the last id, at the last read."""
    sinks: dict[bytes, str] = field(default_factory=dict)


class StoreFigures:
    def __init__(self, namespace: Namespace, operations: Operations, routes: Mapping[str, StoreRoute]) -> None:
        self._namespace = namespace
        self._operations = operations
        self._routes = routes
        self.routes_changed()
        self._dead = [_DeadOfPartition() for _ in range(namespace.partitions)]

    def routes_changed(self) -> None:
        self._quiet = {name: route.quiet for name, route in self._routes.items()}

    async def read(self, routes: Sequence[str], now_ms: int) -> Figures:
        found = dict.fromkeys(routes, RouteFigures())
        for partition in range(self._namespace.partitions):
            for start in range(0, len(routes), _ROUTES_PER_CALL):
                some = routes[start : start + _ROUTES_PER_CALL]
                for name, figures in zip(some, await self._routes_of(partition, some, now_ms), strict=True):
                    found[name] = found[name].plus(figures)
            await self._read_dead(partition)
        orphans = await self._operations.orphans(set(routes))
        return Figures(
            now_ms,
            found,
            Counter(sink for of in self._dead for sink in of.sinks.values()),
            {name: counts.open_records + counts.snapshot_records for name, counts in orphans.items()},
        )

    async def _routes_of(self, partition: int, routes: Sequence[str], now_ms: int) -> list[RouteFigures]:
        commands: list[list[bytes | str | int]] = []
        for name in routes:
            of = self._namespace.keys[partition, name]
            commands += (
                [b"ZCARD", of.waiting],
                [b"ZCARD", of.leased],
                [b"HGET", of.ledger, b"open"],
                [b"ZCOUNT", of.waiting, b"-inf", EXEMPT_MS if self._is_quiet(name, now_ms) else now_ms],
                [b"ZRANGEBYSCORE", of.waiting, f"({EXEMPT_MS}", b"+inf", b"WITHSCORES", b"LIMIT", 0, 1],
            )
        answers = await self._namespace.send(partition, commands)
        return [
            RouteFigures(
                waiting,
                leased,
                number(open_records, self._namespace.keys[partition, name].ledger),
                overdue,
                released_ms(instant_ms(first[1]), self._quiet.get(name)) if first else None,
            )
            for name, waiting, leased, open_records, overdue, first in zip(
                routes, *(answers[n::5] for n in range(5)), strict=True
            )
        ]

    def _is_quiet(self, route: str, now_ms: int) -> bool:
        quiet = self._quiet.get(route)
        return quiet is not None and quiet.end_ms(now_ms) is not None

    async def _read_dead(self, partition: int) -> None:
        """A new dead digest becomes the last one, a revived or dropped one leaves: either changes `ends`."""
        key, of = self._namespace.dead_keys[partition].dead, self._dead[partition]
        ends = await self._namespace.send(
            partition, [[b"ZCARD", key], [b"ZRANGE", key, 0, 0], [b"ZRANGE", key, -1, -1]]
        )
        if of.ends == ends:
            return
        sinks: dict[bytes, str] = {}
        for start in range(0, ends[0], RECORDS_PER_CALL):
            (ids,) = await self._namespace.send(partition, [[b"ZRANGE", key, start, start + RECORDS_PER_CALL - 1]])
            new = [digest_id for digest_id in ids if digest_id not in of.sinks]
            sinks |= {digest_id: of.sinks[digest_id] for digest_id in ids if digest_id in of.sinks}
            if new:
                (texts,) = await self._namespace.send(
                    partition, [[b"HMGET", self._namespace.dead_keys[partition].details, *new]]
                )
                sinks |= {digest_id: sink_of(text) for digest_id, text in zip(new, texts, strict=True)}
        of.ends, of.sinks = ends, sinks


def sink_of(text: bytes | None) -> str:
    try:
        return Details.decode(text).sink if text is not None else _UNREADABLE
    except Unreadable:
        return _UNREADABLE
