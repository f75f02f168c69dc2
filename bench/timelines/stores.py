"""nsqdigest's own store on a Redis of the measurement, and what it costs that Redis."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import redis

from bench.servers import HOST
from nsqdigest.config import Redis as RedisSettings
from nsqdigest.delivery.ids import RANDOM_BYTES, uuid7
from nsqdigest.store.answers import Claim
from nsqdigest.store.digests import Ending, Opening
from nsqdigest.store.head import Head
from nsqdigest.store.record import Record
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store

ROUTE = "events"
PLAN = StoreRoute(ROUTE, capacity=500, increment_ms=30_000, dedupe_window_ms=900_000)
LEASE_MS = 60_000
DAY_MS = 86_400_000
FIRST_US = 1_700_000_000_000_000
BATCH = 500
CLAIM = 200
VALUE = b'{"id":"e000000001","service":"checkout","message":"' + 197 * b"." + b'"}'


@asynccontextmanager
async def store_on(
    port: int, plans: Sequence[StoreRoute] = (PLAN,), namespace: str = "bench", partitions: int = 1
) -> AsyncIterator[Store]:
    settings = RedisSettings(
        url=f"redis://{HOST}:{port}/0", namespace=namespace, timeout_ms=60_000, durability="reply", replicas=1,
        partitions=partitions, ca_file="", cert_file="", key_file="", insecure=False,
    )  # fmt: skip
    store = Store(settings, plans, 100_000_000)
    await store.start()
    yield store
    await store.close(5)


def cpu_us(client: redis.Redis) -> float:
    """User and system time of the server so far."""
    told = client.info("cpu")
    return float(told["used_cpu_user_main_thread"] + told["used_cpu_sys_main_thread"]) * 1e6


class Events:
    """An endless stream of records over so many timelines, the same for the same seed. Each has a key of its own."""

    def __init__(self, timelines: int, seed: int = 7) -> None:
        self._draw = random.Random(seed)
        self._timelines = timelines
        self._number = 0

    def batch(self, size: int = BATCH) -> list[Record]:
        return [self._record(b"user:u%07d" % self._draw.randrange(self._timelines)) for _ in range(size)]

    def each_once(self) -> list[list[Record]]:
        """One for each timeline."""
        records = [self._record(b"user:u%07d" % number) for number in range(self._timelines)]
        return [records[start : start + BATCH] for start in range(0, len(records), BATCH)]

    def _record(self, timeline: bytes) -> Record:
        self._number += 1
        number = self._number
        return Record(0, timeline, b"%016x:%010d" % (number, number), FIRST_US + number, VALUE, False)


def later(store: Store) -> Schedule:
    """Not during this measurement."""
    at_ms = store.clock.now_ms() + DAY_MS
    return Schedule(at_ms, at_ms + DAY_MS)


def at_once(store: Store) -> Schedule:
    at_ms = store.clock.now_ms()
    return Schedule(at_ms, at_ms)


async def claim(store: Store, most: int = CLAIM) -> list[Claim]:
    return (await store.digests.claim(0, [(ROUTE, 0)], [most], LEASE_MS)).claims


async def open_all(store: Store, claims: Sequence[Claim]) -> list[Head]:
    now_ms = store.clock.now_ms()
    openings = [Opening(claimed, uuid7(now_ms, random.randbytes(RANDOM_BYTES))) for claimed in claims]
    opened = await store.digests.open(0, openings, {ROUTE: [now_ms]})
    return [head for head in opened if isinstance(head, Head)]


async def open_one(store: Store, claimed: Claim) -> Head:
    (opened,) = await open_all(store, [claimed])
    return opened


async def deliver(store: Store, claims: Sequence[Claim]) -> None:
    """As the daemon does it, but for the receiver."""
    opened = await open_all(store, claims)
    await store.digests.read(0, list(zip(claims, opened, strict=True)))
    after = later(store)
    endings = [Ending.close(claimed, head.id, after) for claimed, head in zip(claims, opened, strict=True)]
    await store.digests.finish(0, endings)
