"""Writes the records of a batch to the store: one call for each route and partition, all of them concurrently.

Invariants:
- What the store did not acknowledge is `not_stored`, and nothing else is; a call that fails leaves the others alone.
- A failure of the store ends its own group: nothing is tried again here, a batch comes back through NSQ.
- Only where the script itself failed (it met data that it cannot work with) is the call split, until the timelines
  that it fails for are alone. (To send a part of an add again is harmless: add is a join.) The records of such a
  timeline are refused only when the fault is shown to be the timeline's own: one of its own keys has another type, or
  its neighbours went in and none of the keys that they share is at fault. Otherwise it is a failure like others: an
  outage dead-letters nothing.

Comes from `batches`; goes to the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from nsqdigest.base import log
from nsqdigest.base.errors import StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.intake.routing import IntakeRoute
from nsqdigest.store.packing import BYTES_PER_CALL, RECORDS_PER_CALL
from nsqdigest.store.record import Record
from nsqdigest.store.schedule import Zoned
from nsqdigest.store.timelines import Timelines

_log = log.get("consumer")


Place = tuple[str, int]
"""A route and a partition."""


class WriteResult(NamedTuple):
    """What became of records, by their sources. A source of several records may be in both sets, or in one of them
    while others of its records are stored."""

    not_stored: frozenset[object] = frozenset()
    """At least one record of each is not known to be stored."""
    refused: Mapping[object, str] = MappingProxyType({})
    """At least one record of each can never be stored, and why."""
    failure: StoreError | None = None
    due: frozenset[Place] = frozenset()
    """Where a timeline began that is due at once."""

    @staticmethod
    def merged(results: Sequence[WriteResult]) -> WriteResult:
        """The first failure stands for all."""
        return WriteResult(
            frozenset().union(*(each.not_stored for each in results)),
            {source: why for each in results for source, why in each.refused.items()},
            next((each.failure for each in results if each.failure is not None), None),
            frozenset().union(*(each.due for each in results)),
        )


def _failed(records: Iterable[Record], failure: StoreError | None) -> WriteResult:
    return WriteResult(not_stored=frozenset(record.source for record in records), failure=failure)


class _Call(NamedTuple):
    """Records of one route, partition and zone."""

    route: IntakeRoute
    partition: int
    now_ms: int
    """By Redis' clock: what begins with these records begins now."""
    records: Sequence[Record]
    zone: str = ""
    """That all of them name for their timelines."""

    @property
    def timelines(self) -> list[bytes]:
        return list(dict.fromkeys(record.timeline for record in self.records))

    def only(self, timelines: Iterable[bytes]) -> _Call:
        wanted = set(timelines)
        return self._replace(records=[record for record in self.records if record.timeline in wanted])


class StoreWriter:
    def __init__(self, routes: Sequence[IntakeRoute], store: Timelines, metrics: Metrics) -> None:
        self._routes = {route.number: route for route in routes}
        self._store = store
        self._metrics = metrics
        self._added = {
            number: metrics.number("records_added_total", route=route.settings.name)
            for number, route in self._routes.items()
        }
        self._zoned = frozenset(route.number for route in routes if route.plan.zone_template)
        """Routes whose timelines have zones of their own."""
        is_only = len(routes) == 1 and store.partitions == 1 and not self._zoned
        self._only_route = routes[0] if is_only else None

    async def write(self, records: Sequence[Record], now_ms: int) -> WriteResult:
        """`now_ms`: by Redis' clock, when the batch was decoded. A timeline that begins with it begins then."""
        groups = self._groups(records, now_ms)
        if len(groups) == 1:
            return await self._write_group(groups[0])
        async with asyncio.TaskGroup() as together:
            tasks = [together.create_task(self._write_group(group)) for group in groups]
        return WriteResult.merged([task.result() for task in tasks])

    def _groups(self, records: Sequence[Record], now_ms: int) -> list[_Call]:
        if self._only_route is not None:
            return [_Call(self._only_route, 0, now_ms, records)] if records else []
        groups: dict[tuple[int, int, str], list[Record]] = {}
        for record in records:
            place = record.route, self._store.partition_of(record.timeline), record.zone
            groups.setdefault(place, []).append(record)
        return [
            _Call(self._routes[route], partition, now_ms, theirs, zone)
            for (route, partition, zone), theirs in groups.items()
        ]

    async def _write_group(self, group: _Call) -> WriteResult:
        """Call after call; after a failure the rest is not sent."""
        results: list[WriteResult] = []
        failure: StoreError | None = None
        for records in calls_of(group.records):
            if failure is None:
                result = await self._write_call(group._replace(records=records))
                failure = result.failure
            else:
                result = _failed(records, failure)
            results.append(result)
        return results[0] if len(results) == 1 else WriteResult.merged(results)

    async def _write_call(self, call: _Call) -> WriteResult:
        try:
            return await self._add(call)
        except StoreError as error:
            return await self._split(call, error) if error.is_damage else _failed(call.records, error)

    async def _add(self, call: _Call) -> WriteResult:
        name, plan = call.route.settings.name, call.route.plan
        if call.route.number in self._zoned:
            plan = plan.of_zone(call.zone)
            first, zoned = plan.beginning(call.now_ms), Zoned(call.zone, plan.anew(call.now_ms))
            added = await self._store.add(name, call.partition, call.records, first, zoned)
        else:
            added = await self._store.add(name, call.partition, call.records, plan.beginning(call.now_ms))
        self._added[call.route.number].value += added.added
        not_kept = {
            "superseded": added.superseded, "capacity": added.dropped_capacity, "timelines": added.dropped_timelines,
            "duplicate": added.dropped_duplicate, "muted": added.dropped_muted, "repeated": added.repeated,
            "cancelled": added.dropped_cancelled,
        }  # fmt: skip
        if any(not_kept.values()):
            self._report_not_kept(name, not_kept)
        return WriteResult(due=frozenset([(name, call.partition)]) if added.due_at_once else frozenset())

    # -- a call that the script failed

    async def _split(self, call: _Call, error: StoreError) -> WriteResult:
        results: list[WriteResult] = []
        failing: list[tuple[_Call, StoreError]] = []
        has_neighbours = False
        failure: StoreError | None = None
        parts = [(call, error)]
        while parts:
            part, why = parts.pop()
            if failure is not None:
                results.append(_failed(part.records, failure))
                continue
            timelines = part.timelines
            if len(timelines) == 1:
                failing.append((part, why))
                continue
            middle = len(timelines) // 2
            for half in (part.only(timelines[:middle]), part.only(timelines[middle:])):
                try:
                    results.append(await self._add(half))
                    has_neighbours = True
                except StoreError as again:
                    if again.is_damage:
                        parts.append((half, again))
                        continue
                    failure = again
                    results.append(_failed(half.records, again))
        results += [await self._judge(part, why, has_neighbours) for part, why in failing]
        return WriteResult.merged(results)

    async def _judge(self, call: _Call, error: StoreError, has_neighbours: bool) -> WriteResult:
        """The records of one timeline that an add fails for: refused, or a failure."""
        [timeline] = call.timelines
        try:
            wrong = await self._store.wrong_types(call.route.settings.name, call.partition, timeline)
        except StoreError as unknown:
            return _failed(call.records, unknown)
        is_its_own = bool(wrong.own) or (has_neighbours and not wrong.shared)
        _log.error(
            "consumer.timeline.refused_by_store" if is_its_own else "consumer.store.damaged",
            route=call.route.settings.name,
            timeline=timeline.decode(),
            records=len(call.records),
            error=error,
            keys=[*wrong.shared, *wrong.own],
            hint="look at these keys in Redis: something else wrote them. A timeline's own may be deleted"
            if wrong.shared or wrong.own
            else None,
        )
        if not is_its_own:
            return _failed(call.records, error)
        detail = ", ".join(wrong.own) or str(error)
        return WriteResult(refused={record.source: detail for record in call.records})

    # -- what was not kept

    def _report_not_kept(self, route: str, not_kept: Mapping[str, int]) -> None:
        for reason, count in not_kept.items():
            if count:
                self._metrics.add("records_not_kept_total", count, route=route, reason=reason)
        if not_kept["timelines"]:
            _log.counted(
                "error",
                "consumer.timelines.limit_reached",
                by=("route",),
                adds=("records_dropped",),
                route=route,
                records_dropped=not_kept["timelines"],
                hint="raise limits.timelines, or look for a timeline template that names too many",
            )


def calls_of(records: Sequence[Record]) -> list[Sequence[Record]]:
    """Splits records into what one call may carry: so many records, so many bytes (one record is always allowed)."""
    if len(records) <= RECORDS_PER_CALL and sum([len(record.value) for record in records]) <= BYTES_PER_CALL:
        return [records] if records else []
    calls: list[Sequence[Record]] = []
    start = size = 0
    for position, record in enumerate(records):
        if position > start and (position - start == RECORDS_PER_CALL or size + len(record.value) > BYTES_PER_CALL):
            calls.append(records[start:position])
            start, size = position, 0
        size += len(record.value)
    if start < len(records):
        calls.append(records[start:])
    return calls
