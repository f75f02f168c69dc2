"""Timelines as intake uses them: records go in, one call for each route and partition.

Instants are integer milliseconds of Redis' clock; only the timestamps of records are microseconds, so that what nsqd
took in within a millisecond keeps its order. Key names are `keys`', packing is `packing`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nsqdigest.store.answers import Added, WrongTypes
from nsqdigest.store.damage import number
from nsqdigest.store.keys import partition_limit
from nsqdigest.store.packing import NOTHING_SPECIAL, Special, pack_batch
from nsqdigest.store.route import StoreRoute

if TYPE_CHECKING:
    from nsqdigest.store.acknowledged import AcknowledgedCounts
    from nsqdigest.store.holds import Holds
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.record import Record
    from nsqdigest.store.schedule import Schedule, Zoned


_NONE: frozenset[bytes] = frozenset()


class Timelines:
    def __init__(
        self,
        namespace: Namespace,
        routes: Mapping[str, StoreRoute],
        limit: int,
        acknowledged: AcknowledgedCounts,
        holds: Holds,
    ) -> None:
        self._namespace = namespace
        self._holds = holds
        self._routes = routes
        self.set_limit(limit)
        self._acknowledged = acknowledged
        self.clock = namespace.clock
        self.partitions = namespace.partitions

    def set_limit(self, limit: int) -> None:
        self._limit_per_partition = partition_limit(limit, self._namespace.partitions)

    def partition_of(self, timeline: bytes) -> int:
        return self._namespace.partition_of(timeline)

    async def add(
        self, route: str, partition: int, records: Sequence[Record], first: Schedule, zoned: Zoned | None = None
    ) -> Added:
        """At most RECORDS_PER_CALL records of one route and partition. `zoned`: of a route whose timelines have zones
        of their own."""
        settings, of = self._routes[route], self._namespace.keys[partition, route]
        muted = self._holds.muted(route) if self._holds.is_any_muted else _NONE
        is_special = zoned is not None or settings.has_ends or settings.has_quiet_hours
        special = self._special(settings, partition, records, zoned) if is_special else NOTHING_SPECIAL
        keys, batch = pack_batch(of, records, muted, special, has_message_keys=settings.has_message_keys)
        known = self._acknowledged.known[route, partition]
        *counts, due_at_once, counted, muted, cancelled = await self._namespace.run(
            partition,
            "add",
            [*of.fixed, *keys],
            [b"", settings.capacity, settings.increment_ms, first.base_ms, first.bound_ms, self._limit_per_partition,
             of.name_from, *batch],
            durable=True,
        )  # fmt: skip
        added = Added._make([*counts, len(due_at_once), counted, muted, cancelled])
        self.clock.observe(added.now_ms)
        if self._acknowledged.on_answer(route, partition, known, added.counted - added.added, added.counted):
            self._namespace.needs_check.set()
        return added

    def _special(self, route: StoreRoute, partition: int, records: Sequence[Record], zoned: Zoned | None) -> Special:
        ends = (route.memory_ms, route.remembered_keys) if route.has_ends else ()
        is_exempt = route.has_quiet_hours and any(record.is_urgent for record in records)
        return Special(ends, zoned, self._namespace.tags[partition] + b"exempt" if is_exempt else b"")

    async def compare_acknowledged(self) -> None:
        """Reads the ledgers and counts the records that Redis had acknowledged and lost."""
        await asyncio.gather(*(self._compare_partition(number) for number in range(self.partitions)))

    async def _compare_partition(self, partition: int) -> None:
        known = [(route, self._acknowledged.known[route, partition]) for route in self._routes]
        known = [(route, when_sent) for route, when_sent in known if when_sent.records]
        if not known:
            return  # nothing was acknowledged, so nothing is lost
        answers = await self._namespace.send(
            partition, [[b"HGET", self._namespace.keys[partition, route].ledger, b"added"] for route, _ in known]
        )
        for (route, when_sent), answer in zip(known, answers, strict=True):
            added = number(answer, self._namespace.keys[partition, route].ledger)
            self._acknowledged.compare(route, partition, when_sent, added)

    async def wrong_types(self, route: str, partition: int, timeline: bytes) -> WrongTypes:
        """Keys that hold another type than theirs: those that an add shares with its neighbours, and its own."""
        of = self._namespace.keys[partition, route]
        shared = {of.waiting: b"zset", of.schedules: b"hash", of.heads: b"hash", of.ledger: b"hash", of.losses: b"hash",
                  of.timelines: b"string", of.agenda: b"zset"}  # fmt: skip
        own = {of.index: b"zset", of.values: b"hash", of.snapshot: b"zset", of.memory: b"zset", of.ends: b"zset"}
        wanted = shared | {prefix + timeline: kind for prefix, kind in own.items()}
        types = await self._namespace.send(partition, [[b"TYPE", key] for key in wanted])
        wrong = [
            (key, f"{key.decode()} is a {found.decode()}, not a {kind.decode()}")
            for (key, kind), found in zip(wanted.items(), types, strict=True)
            if found not in (kind, b"none")
        ]
        return WrongTypes(
            [text for key, text in wrong if key in shared], [text for key, text in wrong if key not in shared]
        )
