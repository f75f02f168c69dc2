"""The largest calls that there are at the default limits, each as Redis itself times it (SLOWLOG)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import redis

from bench.timelines.measures import fresh_redis
from bench.timelines.report import Call
from bench.timelines.stores import BATCH, CLAIM, PLAN, ROUTE, VALUE, at_once, claim, later, open_one, store_on
from nsqdigest.store import scripts
from nsqdigest.store.digests import Ending
from nsqdigest.store.packing import BYTES_PER_CALL
from nsqdigest.store.record import Record
from nsqdigest.store.store import Store

Timed = Callable[[Awaitable[object]], Awaitable[float]]

LARGE_BYTES = 65_536
"""limits.event."""


def records(
    first: int, count: int, *, timeline: bytes = b"t", value: bytes = VALUE, repeat: bool = False
) -> list[Record]:
    return [Record(0, timeline, b"%010d" % number, number, value, repeat) for number in range(first, first + count)]


async def add_new(store: Store, timed: Timed) -> float:
    mine = [Record(0, b"user:%d" % number, b"k", 1, VALUE, False) for number in range(BATCH)]
    return await timed(store.timelines.add(ROUTE, 0, mine, later(store)))


async def add_to_full(store: Store, timed: Timed) -> float:
    """Each takes the place of the oldest."""
    await store.timelines.add(ROUTE, 0, records(0, BATCH), later(store))
    return await timed(store.timelines.add(ROUTE, 0, records(BATCH, BATCH), later(store)))


async def add_known(store: Store, timed: Timed) -> float:
    """Each is newer than the one of its key."""
    await store.timelines.add(ROUTE, 0, records(0, BATCH), later(store))
    newer = [Record(0, b"t", record.key, record.timestamp_us + BATCH, VALUE, False) for record in records(0, BATCH)]
    return await timed(store.timelines.add(ROUTE, 0, newer, later(store)))


async def add_repeats(store: Store, timed: Timed) -> float:
    """Of a digest that is being delivered, each has to be looked up."""
    await store.timelines.add(ROUTE, 0, records(0, BATCH), at_once(store))
    await open_one(store, (await claim(store))[0])
    return await timed(store.timelines.add(ROUTE, 0, records(0, BATCH, repeat=True), later(store)))


async def add_large(store: Store, timed: Timed) -> float:
    large = records(0, BYTES_PER_CALL // LARGE_BYTES, value=b'"' + b"x" * (LARGE_BYTES - 2) + b'"')
    return await timed(store.timelines.add(ROUTE, 0, large, later(store)))


async def claim_many(store: Store, timed: Timed) -> float:
    for first in range(0, 20 * BATCH, BATCH):
        mine = [Record(0, b"user:%d" % (first + number), b"k", 1, b"{}", False) for number in range(BATCH)]
        await store.timelines.add(ROUTE, 0, mine, at_once(store))
    return await timed(claim(store, CLAIM))


async def open_large(store: Store, timed: Timed) -> float:
    await store.timelines.add(ROUTE, 0, records(0, BATCH), at_once(store))
    return await timed(open_one(store, (await claim(store))[0]))


async def merge_large(store: Store, timed: Timed) -> float:
    await store.timelines.add(ROUTE, 0, records(0, BATCH), at_once(store))
    await open_one(store, claimed := (await claim(store))[0])
    await store.timelines.add(ROUTE, 0, records(BATCH, BATCH), later(store))
    return await timed(open_one(store, claimed))


async def close_large(store: Store, timed: Timed) -> float:
    """With as many remembered of the digest before."""
    for first in (0, BATCH):
        await store.timelines.add(ROUTE, 0, records(first, BATCH), at_once(store))
        claimed = (await claim(store))[0]
        opened = await open_one(store, claimed)
        closing = store.digests.finish(0, [Ending.close(claimed, opened.id, at_once(store))])
        if first:
            return await timed(closing)
        await closing
    raise AssertionError


async def maintain_many(store: Store, timed: Timed) -> float:
    mine = [Record(0, b"user:%d" % number, b"k", 1, b"{}", False) for number in range(BATCH)]
    await store.timelines.add(ROUTE, 0, mine, at_once(store))
    await store.digests.claim(0, [(ROUTE, 0)], [BATCH], 0)
    return await timed(store.upkeep.maintain(0, [ROUTE], 60_000))


async def delete_large(store: Store, timed: Timed) -> float:
    await store.timelines.add(ROUTE, 0, records(0, BATCH), at_once(store))
    await open_one(store, (await claim(store))[0])
    await store.timelines.add(ROUTE, 0, records(BATCH, BATCH), later(store))
    return await timed(store.operations.delete(ROUTE, "t"))


CALLS = (
    ("add: 500 records, 500 new timelines", "add", PLAN, add_new),
    ("add: 500 records into a full timeline", "add", PLAN, add_to_full),
    ("add: 500 newer records of known keys", "add", PLAN, add_known),
    ("add: 500 possible repeats", "add", PLAN, add_repeats),
    ("add: 1 MiB in 16 records", "add", PLAN, add_large),
    ("claim: 200 of 10,000 due", "claim", PLAN, claim_many),
    ("open: 500 records", "open", PLAN, open_large),
    ("open: 500 newer records merged with 500", "open", PLAN._replace(merges=True), merge_large),
    ("finish: 500 records, 500 remembered", "finish", PLAN, close_large),
    ("maintenance: 500 leases", "maintenance", PLAN, maintain_many),
    ("delete: 500 records and 500 in a digest", "delete", PLAN, delete_large),
)


def calls(times: int) -> list[Call]:
    with fresh_redis() as (port, client):
        client.config_set("slowlog-log-slower-than", 0)
        return asyncio.run(_calls(port, client, times))


async def _calls(port: int, client: redis.Redis, times: int) -> list[Call]:
    found = []
    for what, script, plan, play in CALLS:
        took_us = []
        for _ in range(times):
            client.flushall()
            async with store_on(port, [plan]) as store:
                took_us.append(await play(store, _timed(client, script)))
        found.append(Call(what, tuple(took_us)))
    return found


def _timed(client: redis.Redis, script: str) -> Timed:
    """What a call of this script took Redis."""
    call = b"EVALSHA " + scripts.load(script).sha

    async def timed(work: Awaitable[object]) -> float:
        client.slowlog_reset()
        await work
        return float(max(entry["duration"] for entry in client.slowlog_get(100) if entry["command"].startswith(call)))

    return timed
