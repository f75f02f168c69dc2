"""Reads what an audit needs: the ledgers and, for a deep audit, everything that they count.

Invariants:
- Nothing here writes, and no daemon has to stop.
- Names leave this module as printable text: whoever may write to Redis says nothing to a terminal.
- The ledgers of a partition are read in one call, so they are exact.
- Records are counted by pages, each timeline whole and at one instant. Sums over timelines are exact where nothing
  moved meanwhile; where they differ and something moved, they are taken again, a few times.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.audit.ledger import Audit, Census, Found, FoundDead, Recount, RouteAudit, records
from nsqdigest.base.shown import printable
from nsqdigest.store.damage import number
from nsqdigest.store.dead import route_and_total
from nsqdigest.store.keys import shown_timeline
from nsqdigest.store.operations import Operations
from nsqdigest.store.packing import RECORDS_PER_CALL

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace

_TIMELINES_PER_CALL = 100
_TRIES = 3
_MOST_DIFFERENCES = 100


class _Ledgers(NamedTuple):
    """The counters of one partition, at one instant."""

    timelines: int
    of_routes: tuple[tuple[Census, dict[str, int]], ...]
    """Where the timelines of a route are, and its counters."""


class _Sums:
    """What was counted in a partition so far."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()
        self.snapshots: Counter[str] = Counter()
        self.buried: Counter[str] = Counter()
        self.differences: list[str] = []


class Auditor:
    def __init__(self, namespace: Namespace, configured: Sequence[str]) -> None:
        """`namespace`: open to read. `configured`: the routes of the file."""
        self._namespace = namespace
        self._configured = list(configured)

    async def audit(self, *, deep: bool = False) -> Audit:
        orphans = sorted(set(await Operations(self._namespace).routes()) - set(self._configured))
        routes = [*self._configured, *orphans]
        ledgers = await asyncio.gather(
            *(self._ledgers(partition, routes) for partition in range(self._namespace.partitions))
        )
        recount = await self._recount(routes) if deep else None
        return Audit(
            tuple(
                RouteAudit(
                    printable(name),
                    name in self._configured,
                    tuple(each.of_routes[number][0] for each in ledgers),
                    tuple(each.of_routes[number][1] for each in ledgers),
                )
                for number, name in enumerate(routes)
            ),
            recount,
            self._namespace.layout is None,
            tuple(each.timelines for each in ledgers),
        )

    async def _ledgers(self, partition: int, routes: Sequence[str]) -> _Ledgers:
        of_routes = [self._namespace.keys[partition, route] for route in routes]
        keys = [
            self._namespace.tags[partition] + b"count",
            *(key for of in of_routes for key in (of.ledger, of.schedules, of.waiting, of.leased)),
        ]
        counted, *answers = await self._namespace.run(partition, "audit", keys, [])
        return _Ledgers(
            counted,
            tuple(
                (
                    Census(known, waiting, leased),
                    {
                        _shown(field): number(value, of.ledger)
                        for field, value in zip(flat[::2], flat[1::2], strict=True)
                    },
                )
                for of, (known, waiting, leased, *flat) in zip(of_routes, answers, strict=True)
            ),
        )

    # -- the recount

    async def _recount(self, routes: Sequence[str]) -> Recount:
        differences: list[str] = []
        unsure: list[str] = []
        for partition in range(self._namespace.partitions):
            found, moving = await self._recount_partition(partition, routes)
            differences += found
            unsure += moving
        return Recount(
            tuple(differences[:_MOST_DIFFERENCES]), tuple(unsure), untold=max(0, len(differences) - _MOST_DIFFERENCES)
        )

    async def _recount_partition(self, partition: int, routes: Sequence[str]) -> tuple[list[str], list[str]]:
        """Returns what differs for certain, and sums that differ but may have moved."""
        sums, sums_differ = _Sums(), list[str]()
        for _ in range(_TRIES):
            before, sums = await self._ledgers(partition, routes), _Sums()
            for route in routes:
                await self._count_timelines(partition, route, sums)
            await self._count_dead(partition, sums)
            after = await self._ledgers(partition, routes)
            sums_differ = _compare(partition, routes, after, sums)
            if before == after or not sums_differ:
                return sums.differences + sums_differ, []
        return sums.differences, sums_differ

    async def _count_timelines(self, partition: int, route: str, sums: _Sums) -> None:
        """HSCAN returns every timeline that exists all the while, some of them twice."""
        schedules = self._namespace.keys[partition, route].schedules
        seen: set[bytes] = set()
        cursor: bytes = b"0"
        while True:
            ((cursor, flat),) = await self._namespace.send(
                partition, [[b"HSCAN", schedules, cursor, b"COUNT", RECORDS_PER_CALL]]
            )
            names = [name for name in flat[::2] if name not in seen]
            seen.update(names)
            for start in range(0, len(names), _TIMELINES_PER_CALL):
                page = names[start : start + _TIMELINES_PER_CALL]
                for name, found in zip(page, await self._count_page(partition, route, page), strict=True):
                    sums.open[route] += found.records
                    sums.snapshots[route] += found.snapshot_records
                    shown = printable(shown_timeline(name.decode("utf-8", "backslashreplace")))
                    sums.differences += [
                        f'route "{printable(route)}", timeline "{shown}" {complaint}'
                        for complaint in found.complaints()
                    ]
            if cursor == b"0":
                return

    async def _count_page(self, partition: int, route: str, names: Sequence[bytes]) -> list[Found]:
        of = self._namespace.keys[partition, route]
        keys = [of.waiting, of.leased, of.schedules, of.heads]
        for name in names:
            keys += [of.index + name, of.values + name, of.snapshot + name, of.snapshot_values + name]
        numbers = await self._namespace.run(partition, "recount", keys, names)
        each = len(Found._fields)
        return [Found(*numbers[start : start + each]) for start in range(0, len(numbers), each)]

    async def _count_dead(self, partition: int, sums: _Sums) -> None:
        start = 0
        while True:
            (ids,) = await self._namespace.send(
                partition, [[b"ZRANGE", self._namespace.dead_keys[partition].dead, start, start + RECORDS_PER_CALL - 1]]
            )
            for digest_id, route, found in await self._count_dead_page(partition, ids):
                # Not read at one instant: a digest that seems to differ may just have been revived or dropped.
                again = await self._count_dead_page(partition, [digest_id]) if found.complaints() else []
                sums.buried[route] += found.records
                sums.differences += [
                    f'partition {partition}, dead digest "{_shown(digest_id)}": {complaint}'
                    for _, _, still in again
                    for complaint in still.complaints()
                ]
            start += len(ids)
            if len(ids) < RECORDS_PER_CALL:
                return

    async def _count_dead_page(self, partition: int, ids: Sequence[bytes]) -> list[tuple[bytes, str, FoundDead]]:
        keys = self._namespace.dead_keys[partition]
        if not ids:
            return []
        texts, *numbers = await self._namespace.send(
            partition,
            [
                [b"HMGET", keys.details, *ids],
                *(
                    command
                    for digest_id in ids
                    for command in (
                        [b"ZSCORE", keys.dead, digest_id],
                        [b"ZCARD", keys.index + digest_id],
                        [b"HLEN", keys.values + digest_id],
                    )
                ),
            ],
        )
        answers = []
        for digest_id, text, since, members, values in zip(
            ids, texts, numbers[::3], numbers[1::3], numbers[2::3], strict=True
        ):
            if since is not None:
                route, counted = route_and_total(text)
                answers.append((digest_id, route, FoundDead(counted, members, values)))
        return answers


def _shown(text: bytes) -> str:
    return printable(text.decode("utf-8", "backslashreplace"))


def _compare(partition: int, routes: Sequence[str], ledgers: _Ledgers, sums: _Sums) -> list[str]:
    differences = []
    for route, (_, counters) in zip(routes, ledgers.of_routes, strict=True):
        for field, found, where in (
            ("open", sums.open, "open"),
            ("snapshots", sums.snapshots, "in snapshots"),
            ("buried", sums.buried, "in the dead store"),
        ):
            counted = counters.get(field, 0)
            if counted != found[route]:
                differences.append(
                    f'route "{printable(route)}", partition {partition}: counted {records(counted)} {where}, '
                    f"{found[route]:,} are there"
                )
    differences += [
        f'partition {partition}: {records(count)} in the dead store are of an unknown route "{printable(route)}"'
        for route, count in sums.buried.items()
        if route not in routes and count
    ]
    there = sum(census.known for census, _ in ledgers.of_routes)
    if there != ledgers.timelines:
        differences.append(f"partition {partition}: counted {ledgers.timelines:,} timelines, {there:,} are there")
    return differences
