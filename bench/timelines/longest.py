"""The longest calls: each script with the most work that one call may get, and the CPU that Redis takes for it.

A call that has too much to do leaves the rest to the next one, so most cases are several calls of the same script.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import redis

from bench.servers import BenchError
from bench.timelines.calls import records
from bench.timelines.measures import fresh_redis
from bench.timelines.report import LARGEST_BAR_MS, USUAL_BAR_MS, Longest
from bench.timelines.stores import (
    BATCH,
    CLAIM,
    DAY_MS,
    LEASE_MS,
    PLAN,
    ROUTE,
    VALUE,
    at_once,
    claim,
    cpu_us,
    later,
    store_on,
)
from nsqdigest.base.quiet_hours import MINUTES_OF_DAY, QuietHours, Window
from nsqdigest.config import Policy
from nsqdigest.delivery.ids import RANDOM_BYTES, uuid7
from nsqdigest.store.answers import Claim, Ended, NotOpened
from nsqdigest.store.digests import Ending, Opening
from nsqdigest.store.head import Head
from nsqdigest.store.record import Record
from nsqdigest.store.rescoring import Rescoring
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import EXEMPT_MS, Plan, Schedule
from nsqdigest.store.store import Store
from nsqdigest.store.upkeep import MENDED_TIMELINES

OPENED_PER_CALL = 100
"""The most digests that the daemon puts into one call; `CLAIM` is that of ends."""
LARGEST_DIGEST = 10_000
ADOPTED, REMEMBERED = 8_000, 500_000
HOUR_MS = 3_600_000
Play = Callable[["Watched"], Awaitable[None]]


class Watched:
    """A Redis, and the CPU that it took for each call of one script."""

    def __init__(self, port: int, client: redis.Redis, script: str) -> None:
        self._port = port
        self._client = client
        self._script = script
        self.took_us: list[float] = []

    @asynccontextmanager
    async def store(self, plans: Sequence[StoreRoute]) -> AsyncIterator[Store]:
        async with store_on(self._port, plans) as store:
            run = store.namespace.run

            async def watched(partition: int, name: str, *rest: Any, **options: Any) -> Any:
                if name != self._script:
                    return await run(partition, name, *rest, **options)
                began_us = cpu_us(self._client)
                answer = await run(partition, name, *rest, **options)
                self.took_us.append(cpu_us(self._client) - began_us)
                return answer

            store.namespace.run = watched  # type: ignore[method-assign]
            yield store

    def forget(self) -> None:
        """Leaves out the calls so far: they only made the case."""
        self.took_us.clear()

    def write(self, *command: Any) -> None:
        self._client.execute_command(*command)  # type: ignore[no-untyped-call]


# -- delivery


async def fill(store: Store, names: Sequence[bytes], first: int, count: int, when: Schedule) -> None:
    """Records `first` to `first + count` of each timeline."""
    for name in names:
        for start in range(first, first + count, BATCH):
            some = records(start, min(BATCH, first + count - start), timeline=name)
            await store.timelines.add(ROUTE, 0, some, when)


async def merges(watched: Watched, capacity: int) -> None:
    names = [b"t%d" % number for number in range(OPENED_PER_CALL)]
    async with watched.store([PLAN._replace(capacity=capacity, merges=True)]) as store:
        await fill(store, names, 0, capacity, at_once(store))
        claims = await claim(store)
        await open_until_done(store, claims)
        await fill(store, names, capacity, capacity, later(store))
        watched.forget()
        await open_until_done(store, claims)


async def open_until_done(store: Store, claims: Sequence[Claim]) -> list[Head]:
    """Returns the digests in the order of the claims."""
    now_ms, waiting, opened = store.clock.now_ms(), list(claims), dict[Claim, Head]()
    while waiting:
        openings = [Opening(each, uuid7(now_ms, random.randbytes(RANDOM_BYTES))) for each in waiting]
        answers = await store.digests.open(0, openings, {ROUTE: [now_ms]})
        opened |= {each: answer for each, answer in zip(waiting, answers, strict=True) if isinstance(answer, Head)}
        waiting = [each for each, answer in zip(waiting, answers, strict=True) if answer is NotOpened.LATER]
    return [opened[each] for each in claims]


async def ends(watched: Watched, capacity: int, digests: int, *, is_burial: bool) -> None:
    """A digest that is closed is the second of its timeline inside of the window."""
    names = [b"t%d" % number for number in range(digests)]
    async with watched.store([PLAN._replace(capacity=capacity)]) as store:
        for first in (0,) if is_burial else (0, capacity):
            await fill(store, names, first, capacity, at_once(store))
            claims = await claim(store)
            heads = await open_until_done(store, claims)
            watched.forget()
            await end_until_done(store, list(zip(claims, heads, strict=True)), is_burial=is_burial)


async def end_until_done(store: Store, digests: list[tuple[Claim, Head]], *, is_burial: bool) -> None:
    while digests:
        after = at_once(store)
        endings = [
            Ending.bury(claimed, head.id, after, b"{}") if is_burial else Ending.close(claimed, head.id, after)
            for claimed, head in digests
        ]
        answers = await store.digests.finish(0, endings)
        digests = [each for each, answer in zip(digests, answers, strict=True) if answer is Ended.LATER]


# -- many routes


def routes(count: int) -> list[StoreRoute]:
    return [PLAN._replace(name=f"r{number}", increment_ms=0) for number in range(count)]


async def add_everywhere(store: Store, plans: Sequence[StoreRoute], timelines: int, when: Schedule) -> None:
    mine = [Record(0, b"u%d" % number, b"k", 1, b"{}", False) for number in range(timelines)]
    for plan in plans:
        await store.timelines.add(plan.name, 0, mine, when)


async def claim_everywhere(store: Store, plans: Sequence[StoreRoute]) -> list[Claim]:
    return (await store.digests.claim(0, [(plan.name, 0) for plan in plans], [BATCH], LEASE_MS)).claims


async def census(watched: Watched, count: int) -> None:
    async with watched.store(plans := routes(count)) as store:
        await add_everywhere(store, plans, BATCH, at_once(store))
        await store.upkeep.maintain(0, store.routes, LEASE_MS)


async def leases(watched: Watched, count: int) -> None:
    async with watched.store(plans := routes(count)) as store:
        await add_everywhere(store, plans, BATCH, at_once(store))
        for plan in plans:
            await store.digests.claim(0, [(plan.name, 0)], [BATCH], 0)
        while not store.upkeep.is_census_done(0, store.routes):
            await store.upkeep.maintain(0, store.routes, LEASE_MS)
        for plan in plans:
            await store.digests.claim(0, [(plan.name, 0)], [BATCH], 0)
        watched.forget()
        await store.upkeep.maintain(0, store.routes, LEASE_MS)


async def early_scores(watched: Watched, count: int) -> None:
    """The increment of the policy became an hour: none is due."""
    plans = routes(count)
    async with watched.store(plans) as store:
        now_ms = store.clock.now_ms()
        await add_everywhere(store, plans, BATCH, Schedule(now_ms, now_ms + DAY_MS))
        store.change(
            [plan._replace(increment_ms=HOUR_MS) for plan in plans], 100_000_000, dead_digests=10_000, connections=16
        )
        for _ in range(5):
            await claim_everywhere(store, plans)


async def exempt_retries(watched: Watched, count: int) -> None:
    """They came before the quiet hours, and are due now."""
    plans = [plan._replace(has_quiet_hours=True) for plan in routes(count)]
    async with watched.store(plans) as store:
        await add_everywhere(store, plans, BATCH // count, Schedule(EXEMPT_MS, EXEMPT_MS))
        claims = await claim_everywhere(store, plans)
        now_ms = store.clock.now_ms()
        openings = [Opening(each, uuid7(now_ms, random.randbytes(RANDOM_BYTES))) for each in claims]
        await store.digests.open(0, openings, {plan.name: [now_ms] for plan in plans})
        await store.digests.finish(0, [Ending.wait(each, now_ms, 1) for each in claims])
        quiet = quiet_at(now_ms)
        store.change([plan._replace(quiet=quiet) for plan in plans], 100_000_000, dead_digests=10_000, connections=16)
        watched.forget()
        taken = await claim_everywhere(store, plans)
        if len(taken) != len(claims):
            raise BenchError(f"of {len(claims)} exempt retries {len(taken)} were claimed")


def quiet_at(now_ms: int) -> QuietHours:
    minute = now_ms // 60_000 % MINUTES_OF_DAY
    return QuietHours([Window((minute - 60) % MINUTES_OF_DAY, (minute + 600) % MINUTES_OF_DAY)], ZoneInfo("UTC"))


# -- operators and upkeep


async def adopts(watched: Watched, count: int, remembered: int) -> None:
    plans = [PLAN._replace(name=name, capacity=REMEMBERED // 2) for name in (ROUTE, "to")]
    async with watched.store(plans) as store:
        await fill(store, [b"t"], 0, count, later(store))
        for plan in plans if remembered else ():
            memory = store.namespace.keys[0, plan.name].memory + b"t"
            for start in range(0, remembered, 10_000):
                keys = (b"%s-%d" % (plan.name.encode(), number) for number in range(start, start + 10_000))
                watched.write(
                    "ZADD", memory, *(part for place, key in enumerate(keys) for part in (start + place, key))
                )
            watched.write("PEXPIRE", memory, PLAN.dedupe_window_ms)
        await store.operations.adopt_some(0, ROUTE, "to", plans[0].capacity)


async def adopts_met(watched: Watched) -> None:
    """Each record meets its key in the other route, and nearly all of them are beyond the capacity there."""
    plans = [PLAN._replace(name=name, capacity=ADOPTED) for name in ("to", ROUTE)]
    async with watched.store(plans) as store:
        for newer, plan in enumerate(plans):
            for start in range(0, ADOPTED, BATCH):
                some = [
                    Record(0, b"t", each.key, each.timestamp_us + newer, VALUE, False) for each in records(start, BATCH)
                ]
                await store.timelines.add(plan.name, 0, some, later(store))
        await store.operations.adopt_some(0, ROUTE, "to", PLAN.capacity)


async def mends(watched: Watched) -> None:
    async with watched.store([PLAN]) as store:
        for start in range(0, MENDED_TIMELINES, BATCH):
            mine = [Record(0, b"u%d" % number, b"k", 1, b"{}", False) for number in range(start, start + BATCH)]
            await store.timelines.add(ROUTE, 0, mine, later(store))
        watched.write("HSET", store.namespace.keys[0, ROUTE].ledger, "unfinished:added", 1)
        await store.upkeep.maintain(0, [ROUTE], LEASE_MS)


async def rescores(watched: Watched) -> None:
    before, after = plan_of(HOUR_MS), plan_of(3 * HOUR_MS)
    async with watched.store([PLAN]) as store:
        await Rescoring(store.namespace, {ROUTE: before}).rescore(0)
        for start in range(0, 4 * BATCH, BATCH):
            mine = [Record(0, b"u%d" % number, b"k", 1, b"{}", False) for number in range(start, start + BATCH)]
            await store.timelines.add(ROUTE, 0, mine, before.beginning(store.clock.now_ms()))
        watched.forget()
        await Rescoring(store.namespace, {ROUTE: after}).rescore(0)


def plan_of(minimum_delay_ms: int) -> Plan:
    return Plan(Policy(
        name="p", immediate=False, minimum_delay_ms=minimum_delay_ms, increment_delay_ms=0,
        maximum_delay_ms=9 * HOUR_MS, growth="none", growth_steps=0, intervals_ms=(), capacity=PLAN.capacity,
        on_retry="frozen", dedupe_window_ms=PLAN.dedupe_window_ms,
    ))  # fmt: skip


CASES: tuple[tuple[str, str, float, int, Play], ...] = (
    *(
        (f"open: merges of {capacity:,} with {capacity:,}, {OPENED_PER_CALL} digests", "open", bar_ms, 1,
         partial(merges, capacity=capacity))
        for capacity, bar_ms in ((500, USUAL_BAR_MS), (1_000, LARGEST_BAR_MS), (2_000, LARGEST_BAR_MS))
    ),
    *(
        (f"finish: {words} of {capacity:,} records, {digests} digests", "finish", bar_ms, 1,
         partial(ends, capacity=capacity, digests=digests, is_burial=is_burial))
        for capacity, digests, bar_ms in ((500, CLAIM, USUAL_BAR_MS), (LARGEST_DIGEST, 5, LARGEST_BAR_MS))
        for words, is_burial in (("burials", True), ("closes in the window", False))
    ),
    *(
        (f"{words}, {count} routes", script, bar_ms, times, partial(play, count=count))
        for words, script, times, play in (
            ("maintenance: census of 500 timelines in each", "maintenance", 1, census),
            ("maintenance: 500 leases that ran out in each", "maintenance", 1, leases),
            ("claim: 500 scores that are too early in each", "claim", 1, early_scores),
            ("claim: 500 exempt retries in quiet hours", "claim", 3, exempt_retries),
        )
        for count, bar_ms in ((100, USUAL_BAR_MS), (500, LARGEST_BAR_MS))
    ),
    (f"adopt: {ADOPTED:,} records", "adopt", LARGEST_BAR_MS, 3, partial(adopts, count=ADOPTED, remembered=0)),
    (f"adopt: {ADOPTED:,} newer records of known keys, into {PLAN.capacity}", "adopt", LARGEST_BAR_MS, 3, adopts_met),
    (f"adopt: two memories of {REMEMBERED:,} keys", "adopt", LARGEST_BAR_MS, 1,
     partial(adopts, count=1, remembered=REMEMBERED)),
    (f"mend: {MENDED_TIMELINES:,} timelines", "mend", USUAL_BAR_MS, 3, mends),
    ("rescore: a page of 200 timelines", "rescore", USUAL_BAR_MS, 1, rescores),
)  # fmt: skip
"""The name of the case, its script, its bar, the number of rounds, and the function that makes it."""


def longest(*, is_quick: bool = False) -> list[Longest]:
    with fresh_redis() as (port, client):
        return asyncio.run(_longest(port, client, CASES[:1] if is_quick else CASES))


async def _longest(port: int, client: redis.Redis, cases: Sequence[tuple[str, str, float, int, Play]]) -> list[Longest]:
    found = []
    for what, script, bar_ms, times, play in cases:
        took_us: list[float] = []
        for _ in range(times):
            client.flushall()
            watched = Watched(port, client, script)
            await play(watched)
            took_us += watched.took_us
        found.append(Longest(what, bar_ms, tuple(took_us)))
        print(f"longest: {what}: {found[-1].spread_ms.text('.1f')} ms in {len(took_us)} calls", flush=True)
    return found
