"""Files the records of a batch in the store: one call for each route and partition, all of them at a time.

Invariants:
- What the store did not acknowledge is unsafe, and nothing else is; a call that fails leaves the others alone.
- A failure of the store ends its own group: nothing is tried again here, a batch comes back through NSQ.
- Only where the script itself failed (it met data that it cannot work with) is the call split, until the timelines
  that it fails for are alone: sending part of an add again is harmless, for add is a join. Such a timeline's records
  are refused only when the fault is shown to be its own: one of its own keys is of another type, or its neighbours went
  in and none of the keys that they share is at fault. Else it is a failure like others: an outage dead-letters nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nsqdigest.base import log
from nsqdigest.base.errors import StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.nsq.frames import Message
from nsqdigest.store.answers import Added
from nsqdigest.store.packing import calls_of
from nsqdigest.store.record import Record
from nsqdigest.store.schedule import Plan
from nsqdigest.store.timelines import Timelines

_log = log.get("consumer")


class FiledRoute(NamedTuple):
    """Where a route's number leads."""

    name: str
    plan: Plan


class Filed(NamedTuple):
    """What became of a batch. Messages are known by their identity."""

    unsafe: set[int]
    """Of these something is not known to be stored."""
    refused: dict[int, str]
    """These cannot be stored, and why."""
    failure: StoreError | None
    due_at_once: int


class _Group(NamedTuple):
    """Records of one route and partition. `owners` stands beside `records`: the message each came from."""

    route: FiledRoute
    partition: int
    records: Sequence[Record]
    owners: Sequence[Message]

    def only(self, timelines: set[bytes]) -> _Group:
        kept = [n for n, record in enumerate(self.records) if record.timeline in timelines]
        return self._replace(records=[self.records[n] for n in kept], owners=[self.owners[n] for n in kept])


class Filing:
    def __init__(self, routes: Mapping[int, FiledRoute], store: Timelines, metrics: Metrics) -> None:
        self._routes = routes
        self._store = store
        self._metrics = metrics

    async def file(self, records: Sequence[Record], owners: Sequence[Message]) -> Filed:
        """`owners` stands beside `records`."""
        filed = Filed(set(), {}, None, 0)
        groups = self._groups(records, owners)
        if len(groups) == 1:
            return await self._file_group(groups[0], filed)
        async with asyncio.TaskGroup() as together:
            tasks = [together.create_task(self._file_group(group, Filed(set(), {}, None, 0))) for group in groups]
        for each in (task.result() for task in tasks):
            filed.unsafe.update(each.unsafe)
            filed.refused.update(each.refused)
            filed = filed._replace(
                failure=filed.failure or each.failure, due_at_once=filed.due_at_once + each.due_at_once
            )
        return filed

    def _groups(self, records: Sequence[Record], owners: Sequence[Message]) -> list[_Group]:
        if len(self._routes) == 1 and self._store.partitions == 1:
            return [_Group(next(iter(self._routes.values())), 0, records, owners)] if records else []
        groups: dict[tuple[int, int], tuple[list[Record], list[Message]]] = {}
        for record, owner in zip(records, owners, strict=True):
            partition = self._store.partition_of(record.timeline)
            theirs, their_owners = groups.setdefault((record.route, partition), ([], []))
            theirs.append(record)
            their_owners.append(owner)
        return [_Group(self._routes[route], partition, *lists) for (route, partition), lists in groups.items()]

    async def _file_group(self, group: _Group, filed: Filed) -> Filed:
        start = 0
        for records in calls_of(group.records):
            call = group._replace(records=records, owners=group.owners[start : start + len(records)])
            start += len(records)
            if filed.failure is None:
                filed = await self._file_call(call, filed)
            else:
                filed.unsafe.update(map(id, call.owners))
        return filed

    async def _file_call(self, call: _Group, filed: Filed) -> Filed:
        try:
            added = await self._add(call)
        except StoreError as error:
            if error.is_damage:
                return await self._split(call, filed, error)
            filed.unsafe.update(map(id, call.owners))
            return filed._replace(failure=error)
        return filed._replace(due_at_once=filed.due_at_once + added.due_at_once)

    async def _add(self, call: _Group) -> Added:
        first = call.route.plan.beginning(self._store.clock.now_ms())
        added = await self._store.add(call.route.name, call.partition, call.records, first)
        self._count(call.route.name, added)
        return added

    # -- a call that the script failed

    async def _split(self, call: _Group, filed: Filed, error: StoreError) -> Filed:
        failing: list[tuple[bytes, StoreError]] = []
        has_neighbours = False
        parts = [(call, error)]
        while parts:
            part, why = parts.pop()
            if filed.failure is not None:
                filed.unsafe.update(map(id, part.owners))
                continue
            timelines = list(dict.fromkeys(record.timeline for record in part.records))
            if len(timelines) == 1:
                failing.append((timelines[0], why))
                continue
            middle = len(timelines) // 2
            for half in (part.only(set(timelines[:middle])), part.only(set(timelines[middle:]))):
                try:
                    added = await self._add(half)
                except StoreError as again:
                    if again.is_damage:
                        parts.append((half, again))
                        continue
                    filed.unsafe.update(map(id, half.owners))
                    filed = filed._replace(failure=again)
                else:
                    has_neighbours = True
                    filed = filed._replace(due_at_once=filed.due_at_once + added.due_at_once)
        for timeline, why in failing:
            filed = await self._judge(call.only({timeline}), filed, why, has_neighbours)
        return filed

    async def _judge(self, call: _Group, filed: Filed, error: StoreError, has_neighbours: bool) -> Filed:
        """The records of one timeline that an add fails for."""
        timeline = call.records[0].timeline
        try:
            wrong = await self._store.wrong_types(call.route.name, call.partition, timeline)
        except StoreError as unknown:
            filed.unsafe.update(map(id, call.owners))
            return filed._replace(failure=unknown)
        is_its_own = bool(wrong.own) or (has_neighbours and not wrong.shared)
        _log.error(
            "consumer.timeline.refused_by_store" if is_its_own else "consumer.store.damaged",
            route=call.route.name,
            timeline=timeline.decode(),
            records=len(call.records),
            error=error,
            keys=[*wrong.shared, *wrong.own],
            hint="look at these keys in Redis: something else wrote them. A timeline's own may be deleted"
            if wrong.shared or wrong.own
            else None,
        )
        if is_its_own:
            detail = ", ".join(wrong.own) or str(error)
            filed.refused.update((id(owner), detail) for owner in call.owners)
            return filed
        filed.unsafe.update(map(id, call.owners))
        return filed._replace(failure=error)

    # -- counting

    def _count(self, route: str, added: Added) -> None:
        self._metrics.add("records_added_total", added.added, route=route)
        for reason, count in _not_kept(added):
            if count:
                self._metrics.add("records_not_kept_total", count, route=route, reason=reason)
        if added.dropped_timelines:
            _log.counted(
                "error",
                "consumer.timelines.limit_reached",
                by=("route",),
                adds=("records_dropped",),
                route=route,
                records_dropped=added.dropped_timelines,
                hint="raise limits.timelines, or look for a timeline template that names too many",
            )


def _not_kept(added: Added) -> Iterable[tuple[str, int]]:
    return (
        ("superseded", added.superseded),
        ("capacity", added.dropped_capacity),
        ("timelines", added.dropped_timelines),
        ("duplicate", added.dropped_duplicate),
        ("repeated", added.repeated),
    )
