"""The upkeep of the store: leases that ran out, and what a script that was cut off left half done.

A script may stop between any two of its writes (a right taken away, a key of another type, a kill). It adds first and
removes last, so nothing is lost; what is left is mended here:

- `maintenance` lets timelines wait whose lease ran out or that are nowhere, and brings instants back that lie further
  ahead than the policies allow.
- A route whose ledger is not exact is recounted, whole and in one call, if it has at most `MENDED_TIMELINES`
  timelines in the partition. One with more stays as it is and `audit` says so.
- A count of timelines that is off is set to how many there are.
- A route with a damaged key (it has another type) is left as it is, and said; the others are looked after all the same.
- A daemon's first census of a route looks at all its timelines: the policy may have another increment than it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.store.answers import Maintained, Mended, RoutePlan
from nsqdigest.store.damage import one_by_one
from nsqdigest.store.dead import route_and_total
from nsqdigest.store.packing import RECORDS_PER_CALL

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.operations import Operations

MENDED_TIMELINES = 5000
_NOTHING_LEFT = b"0"
_ALL = b"all"
_PAGES_PER_TURN = 20


class _Look(NamedTuple):
    """What one call of the script returned."""

    ran_out: int
    brought_back: int
    found: int
    miscounted: int
    inexact: list[str]
    """Routes."""


class Upkeep:
    def __init__(self, namespace: Namespace, operations: Operations, plans: Mapping[str, RoutePlan]) -> None:
        self._namespace = namespace
        self._operations = operations
        self._plans = plans
        self._cursors: dict[tuple[int, str], bytes] = {}
        """Where the census of a route goes on; a route that is not here was never looked over."""

    async def maintain(self, partition: int, routes: Sequence[str], lease_ms: int) -> Maintained:
        """What is left of a census after some pages goes on in the next turn."""
        done = await self._maintain(partition, routes, lease_ms)
        for _ in range(_PAGES_PER_TURN - 1):
            if all(self._cursors[partition, route] == _NOTHING_LEFT for route in routes):
                break
            done = done.and_then(await self._maintain(partition, routes, lease_ms))
        return done

    async def _maintain(self, partition: int, routes: Sequence[str], lease_ms: int) -> Maintained:
        looks, damaged = await one_by_one(routes, lambda some: self._look_over(partition, some, lease_ms))
        self._cursors |= {(partition, route): _NOTHING_LEFT for route in damaged}
        inexact = [route for look in looks for route in look.inexact]
        mended, not_mended = await one_by_one(inexact, lambda some: self._mend_all(partition, some))
        miscounted = 0
        if not damaged and any(look.miscounted for look in looks):
            miscounted = await self._count_timelines(partition)
        return Maintained(
            sum(look.ran_out for look in looks),
            sum(look.brought_back for look in looks),
            sum(look.found for look in looks),
            miscounted,
            tuple(chain.from_iterable(mended)),
            {**damaged, **not_mended},
        )

    async def _look_over(self, partition: int, routes: Sequence[str], lease_ms: int) -> _Look:
        of_routes = [self._namespace.keys(partition, route) for route in routes]
        keys = [*(key for of in of_routes for key in of.of_route), *of_routes[0].of_partition]
        each = [
            word
            for route in routes
            for word in (
                self._plans[route].longest_ms,
                self._plans[route].increment_ms,
                self._cursors.get((partition, route), _ALL),
            )
        ]
        ran_out, brought_back, found, miscounted, *more = await self._namespace.run(
            partition, "maintenance", keys, [b"", RECORDS_PER_CALL, lease_ms, *each]
        )
        inexact, cursors = [], dict.fromkeys(((partition, route) for route in routes), _NOTHING_LEFT)
        for number, cursor, is_inexact in zip(more[::3], more[1::3], more[2::3], strict=True):
            route = routes[number - 1]
            cursors[partition, route] = cursor
            if is_inexact:
                inexact.append(route)
        self._cursors |= cursors
        return _Look(ran_out, brought_back, found, miscounted, inexact)

    async def _mend_all(self, partition: int, routes: Sequence[str]) -> list[Mended]:
        return list(filter(None, [await self._mend(partition, route) for route in routes]))

    async def _mend(self, partition: int, route: str) -> Mended | None:
        """None: what is there changed meanwhile, or is too much for one call. The next maintenance tries again."""
        of = self._namespace.keys(partition, route)
        known, had = await self._namespace.send(partition, [[b"HLEN", of.schedules], [b"HGET", of.ledger, b"buried"]])
        if known > MENDED_TIMELINES:
            return None
        buried = await self._count_buried(partition, route)
        (flat,) = await self._namespace.send(partition, [[b"HGETALL", of.schedules]])
        names = flat[::2]
        own = (key for name in names for key in (of.index + name, of.snapshot + name))
        answer = await self._namespace.run(partition, "mend", [*of.fixed, *own], [buried, had or 0, *names])
        return Mended(route, answer[1]) if answer[0] == b"mended" else None

    async def _count_buried(self, partition: int, route: str) -> int:
        """Records in dead digests of a route."""
        dead, start, total = self._namespace.dead_keys[partition], 0, 0
        while True:
            (ids,) = await self._namespace.send(
                partition, [[b"ZRANGE", dead.dead, start, start + RECORDS_PER_CALL - 1]]
            )
            if not ids:
                return total
            texts, *counts = await self._namespace.send(
                partition, [[b"HMGET", dead.details, *ids], *([b"ZCARD", dead.index + name] for name in ids)]
            )
            total += sum(count for text, count in zip(texts, counts, strict=True) if route_and_total(text)[0] == route)
            start += len(ids)

    async def _count_timelines(self, partition: int) -> int:
        """Sets a partition's count of timelines right, over all routes that ever were. Returns how far it was off."""
        routes = sorted({*await self._operations.routes(), *self._plans})
        of_routes = [self._namespace.keys(partition, route) for route in routes]
        keys = [of_routes[0].timelines, of_routes[0].agenda, *(of.schedules for of in of_routes)]
        (off,) = await self._namespace.run(partition, "census", keys, [])
        return int(off)
