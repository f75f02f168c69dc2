"""Upkeep of the store: leases that ran out, and repairs after a script that was cut off.

A script may stop between any two of its writes: a right was taken away, a key has another type, Redis was killed. It
adds first and removes last, so nothing is lost. Upkeep repairs the rest:

- lua/upkeep/maintenance.lua makes timelines wait again whose lease ran out or that are neither waiting nor leased.
- lua/upkeep/bring_back.lua brings instants back that Redis' clock wrote while it was ahead. An instant further ahead
  than the policy allows does not prove that: another daemon may have a file with a rarer policy. Proof is that the
  clock went back, seen beside the monotonic clock here, or by a turn of upkeep that began later than now. No instant is
  brought back by more than the clock went back.
- lua/upkeep/mend.lua recounts a route whose ledger is not exact, whole and in one call, if it has at most
  `MENDED_TIMELINES` timelines in the partition. A bigger one stays as it is, and `audit` reports it.
- lua/upkeep/census.lua sets a wrong count of timelines right.
- A route with a damaged key (it has another type) stays as it is and is reported; the other routes get their upkeep.
- A daemon's first census of a route covers all its timelines: the increment of its policy may have changed.
- Of daemons with the same routes one does a partition's upkeep at a time (lua/upkeep/turn.lua), so that a fleet costs
  Redis what one daemon does.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.store.answers import Maintained, Mended
from nsqdigest.store.damage import one_by_one
from nsqdigest.store.dead import route_and_total
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.servers.facts import SetBack

if TYPE_CHECKING:
    from nsqdigest.store.holds import Holds
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.operations import Operations

MENDED_TIMELINES = 5000
_TURN = 0.9
"""How long a turn lasts, of the time after which the work is to be done again. Less than the whole: a daemon that is
alone never asks too early."""
_NOTHING_LEFT = b"0"
_ALL = b"all"
PAGES_PER_TURN = 100


class _Page(NamedTuple):
    """What one call of maintenance.lua returned."""

    ran_out: int
    brought_back: int
    found: int
    miscounted: int
    inexact: list[str]
    """Routes."""
    is_cut_short: bool
    """There was more to do than one call may."""


class _WentBack(NamedTuple):
    by_ms: int
    found_s: float


class Upkeep:
    def __init__(
        self, namespace: Namespace, operations: Operations, routes: Mapping[str, StoreRoute], holds: Holds
    ) -> None:
        self._namespace = namespace
        self._holds = holds
        self._operations = operations
        self._routes = routes
        self._cursors: dict[tuple[int, str], bytes] = {}
        """Where the census of a route goes on. Routes that are missing here had none yet."""
        self._clocks = [SetBack() for _ in range(namespace.partitions)]
        self._went_back: dict[int, _WentBack] = {}
        """By partition: the last time that Redis' clock went back."""
        self._unreported_ms: dict[int, int] = {}

    async def has_turn(self, partition: int, work: str, routes: Sequence[str], every_ms: int) -> bool:
        """Whether a piece of work that each daemon could do is this one's, where it is to be done so often. If so, all
        others with the same routes leave it to this one until it is to be done again."""
        # Upkeep does not ask for quiet hours, and their text names a place in the memory of one daemon.
        same = repr([work, every_ms, *(self._routes[route]._replace(quiet=None) for route in sorted(routes))]).encode()
        whose = hashlib.blake2s(same, digest_size=8).hexdigest()
        turns = self._namespace.tags[partition] + b"turns"
        sent_s = time.monotonic()
        is_free, now_ms, ahead_ms = await self._namespace.run(
            partition, "turn", [turns], [b"", whose, int(_TURN * every_ms)]
        )
        self._observe(partition, sent_s, now_ms, ahead_ms + every_ms if ahead_ms else 0)
        return bool(is_free)

    def _observe(self, partition: int, sent_s: float, now_ms: int, at_least_ms: int) -> None:
        """`at_least_ms`: how far the clock went back as the turns in Redis tell, which also know what was before this
        daemon began."""
        self._namespace.clock.observe(now_ms)
        answered_s = time.monotonic()
        back_ms = self._clocks[partition].observe(sent_s, answered_s, now_ms) or at_least_ms
        if back_ms:
            self._went_back[partition] = _WentBack(back_ms, answered_s)
            self._unreported_ms[partition] = back_ms

    def went_back_ms(self, partition: int) -> int:
        """How far Redis' clock went back since this was called before."""
        return self._unreported_ms.pop(partition, 0)

    def is_census_done(self, partition: int, routes: Sequence[str]) -> bool:
        return all(self._cursors.get((partition, route), _ALL) == _NOTHING_LEFT for route in routes)

    def forget_census(self, routes: Collection[str]) -> None:
        """The next census of these routes covers all their timelines, like a daemon's first one."""
        self._cursors = {place: cursor for place, cursor in self._cursors.items() if place[1] not in routes}

    async def maintain(self, partition: int, routes: Sequence[str], lease_ms: int) -> Maintained:
        """One turn of upkeep. `lease_ms`: a longer lease was given by a clock that was ahead. Work that needs more
        pages than one turn has goes on in the next turn."""
        done = await self._bring_back(partition, routes, lease_ms)
        for number in range(PAGES_PER_TURN):
            # Another route is first each time: none takes all of what one call may do.
            first = number % max(1, len(routes))
            some, is_cut_short = await self._maintain(partition, [*routes[first:], *routes[:first]], lease_ms)
            done = done.and_then(some)
            if not is_cut_short and self.is_census_done(partition, routes):
                break
        return done

    async def _maintain(self, partition: int, routes: Sequence[str], lease_ms: int) -> tuple[Maintained, bool]:
        """Also whether there is more to do."""
        pages, damaged = await one_by_one(routes, lambda some: self._maintain_page(partition, some, lease_ms))
        self._cursors |= {(partition, route): _NOTHING_LEFT for route in damaged}
        inexact = [route for page in pages for route in page.inexact]
        mended, not_mended = await one_by_one(inexact, lambda some: self._mend_all(partition, some))
        miscounted = 0
        if not damaged and any(page.miscounted for page in pages):
            miscounted = await self._count_timelines(partition)
        done = Maintained(
            sum(page.ran_out for page in pages),
            sum(page.brought_back for page in pages),
            sum(page.found for page in pages),
            miscounted,
            tuple(chain.from_iterable(mended)),
            {**damaged, **not_mended},
        )
        return done, any(page.is_cut_short for page in pages)

    async def _maintain_page(self, partition: int, routes: Sequence[str], lease_ms: int) -> _Page:
        of_routes = [self._namespace.keys[partition, route] for route in routes]
        keys = [*(key for of in of_routes for key in of.of_route), *of_routes[0].of_partition]
        each = [
            argument
            for route in routes
            for argument in (
                max(self._routes[route].longest_ms, self._holds.latest_ms(route) - self._namespace.clock.now_ms()),
                self._routes[route].increment_ms,
                self._cursors.get((partition, route), _ALL),
            )
        ]
        ran_out, brought_back, found, miscounted, is_cut_short, *more = await self._namespace.run(
            partition, "maintenance", keys, [b"", RECORDS_PER_CALL, lease_ms, *each]
        )
        inexact, cursors = [], dict.fromkeys(((partition, route) for route in routes), _NOTHING_LEFT)
        for number, cursor, is_inexact in zip(more[::3], more[1::3], more[2::3], strict=True):
            route = routes[number - 1]
            cursors[partition, route] = cursor
            if is_inexact:
                inexact.append(route)
        self._cursors |= cursors
        return _Page(ran_out, brought_back, found, miscounted, inexact, bool(is_cut_short))

    async def _bring_back(self, partition: int, routes: Sequence[str], lease_ms: int) -> Maintained:
        """While there may be digests that were opened before the clock went back: their next instants follow from
        that."""
        went_back = self._went_back.get(partition)
        if went_back is None or time.monotonic() - went_back.found_s > lease_ms / 1000:
            self._went_back.pop(partition, None)
            return Maintained(0, 0, 0, 0)
        counts, damaged = await one_by_one(routes, lambda some: self._bring_all_back(partition, some, went_back.by_ms))
        return Maintained(0, sum(counts), 0, 0, damaged=damaged)

    async def _bring_all_back(self, partition: int, routes: Sequence[str], by_ms: int) -> int:
        now_ms, done = self._namespace.clock.now_ms(), 0
        for name in routes:
            of, route, passed = self._namespace.keys[partition, name], self._routes[name], 0
            latest_ms = max(now_ms + route.policy_longest_ms, self._holds.latest_ms(name))
            latest_retry_ms = max(latest_ms, now_ms + route.longest_ms)
            looked_at = RECORDS_PER_CALL
            while looked_at == RECORDS_PER_CALL:
                looked_at, brought = await self._namespace.run(
                    partition, "bring_back", [of.waiting, of.schedules, of.heads, of.agenda],
                    [latest_ms, latest_retry_ms, by_ms, passed, RECORDS_PER_CALL],
                )  # fmt: skip
                passed, done = passed + looked_at - brought, done + brought
        return done

    async def _mend_all(self, partition: int, routes: Sequence[str]) -> list[Mended]:
        return list(filter(None, [await self._mend(partition, route) for route in routes]))

    async def _mend(self, partition: int, route: str) -> Mended | None:
        """Returns None where the route changed meanwhile or is too big for one call. The next turn tries again."""
        of = self._namespace.keys[partition, route]
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
        """How many records the dead digests of a route have."""
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
            names_alone = [name for name, text in zip(ids, texts, strict=True) if text is None]
            for name in names_alone:  # what a call that was cut off left
                await self._namespace.run(partition, "drop_dead", dead.of(name.decode()), [name, b""])
            total += sum(count for text, count in zip(texts, counts, strict=True) if route_and_total(text)[0] == route)
            start += len(ids) - len(names_alone)

    async def _count_timelines(self, partition: int) -> int:
        """Sets the partition's count of timelines right, over all routes that ever were. Returns how far it was off."""
        routes = sorted({*await self._operations.routes(), *self._routes})
        of_routes = [self._namespace.keys[partition, route] for route in routes]
        keys = [of_routes[0].timelines, of_routes[0].agenda, *(of.schedules for of in of_routes)]
        (off,) = await self._namespace.run(partition, "census", keys, [])
        return int(off)
