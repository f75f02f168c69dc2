"""What a record and a digest cost, how that grows, and what an idle fleet costs: each on a fresh Redis."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import redis

from bench.servers import BenchError, installed_daemon, nsqd, process, redis_server, tail
from bench.timelines.report import Costs, Idle, Size
from bench.timelines.stores import (
    BATCH,
    CLAIM,
    ROUTE,
    Events,
    at_once,
    claim,
    cpu_us,
    deliver,
    later,
    store_on,
)
from nsqdigest.store.record import Record
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store

TIMELINES = 10_000
ALONE = 500
"""Digests that go out one at a time."""
DAEMONS, PARTITIONS, ROUTES = 10, 32, 50
START_S = 60.0

CONFIG = """\
[nsq]
nsqd_tcp_addresses = ["{nsqd}"]
[redis]
url = "redis://127.0.0.1:{redis_port}/0"
partitions = {partitions}
[sinks.file]
type = "log"
path = "{folder}/digests.jsonl"
[admin]
listen = ""
[log]
format = "json"
"""
ROUTE_CONFIG = """\
[[routes]]
name = "route-{number}"
topic = "events"
timeline = "{{user}}"
sink = "file"
"""


@contextmanager
def fresh_redis() -> Iterator[tuple[int, redis.Redis]]:
    with (
        tempfile.TemporaryDirectory(prefix="nsqdigest-bench-", ignore_cleanup_errors=True) as folder,
        redis_server(Path(folder)) as served,
    ):
        yield served


# -- a record, a digest


def costs(rounds: int, batches: int) -> list[Costs]:
    with fresh_redis() as (port, client):
        return asyncio.run(_costs(port, client, rounds, batches))


async def _costs(port: int, client: redis.Redis, rounds: int, batches: int) -> list[Costs]:
    found = []
    for number in range(rounds):
        plain_us = _plain(client, Events(TIMELINES, number), batches)
        async with store_on(port) as store:
            add_us = await _adds(store, client, Events(TIMELINES, number), batches, at_once(store))
            alone_us = await _digests(store, client, ALONE, at_a_time=1)
            digest_us = await _digests(store, client, TIMELINES)
        client.flushall()
        found.append(Costs(plain_us, add_us, digest_us, alone_us))
    return found


def _plain(client: redis.Redis, events: Events, batches: int) -> float:
    """What nobody could do without: an index and the values. Returns the CPU per record."""
    client.flushall()
    began_us = cpu_us(client)
    for _ in range(batches):
        with client.pipeline(transaction=False) as pipeline:
            for record in events.batch():
                pipeline.zadd(b"i:" + record.timeline, {record.key: -record.timestamp_us})
                pipeline.hset(b"v:" + record.timeline, cast(Any, record.key), cast(Any, record.value))
            pipeline.execute()
    took_us = cpu_us(client) - began_us
    client.flushall()
    return took_us / (batches * BATCH)


async def _adds(store: Store, client: redis.Redis, events: Events, batches: int, first: Schedule) -> float:
    began_us = cpu_us(client)
    for _ in range(batches):
        await store.timelines.add(ROUTE, 0, events.batch(), first)
    return (cpu_us(client) - began_us) / (batches * BATCH)


async def _digests(store: Store, client: redis.Redis, most: int, at_a_time: int = CLAIM) -> float:
    """Delivers what is due, so many at most. Returns the CPU per digest."""
    delivered, began_us = 0, cpu_us(client)
    while delivered < most and (claims := await claim(store, at_a_time)):
        await deliver(store, claims)
        delivered += len(claims)
    return (cpu_us(client) - began_us) / delivered


# -- growth


def sizes(counts: list[int], rounds: int, batches: int) -> list[Size]:
    with fresh_redis() as (port, client):
        return asyncio.run(_sizes(port, client, counts, rounds, batches))


async def _sizes(port: int, client: redis.Redis, counts: list[int], rounds: int, batches: int) -> list[Size]:
    found = []
    async with store_on(port) as store:
        for count in counts:
            client.flushall()
            await store.look()  # its layout is written again
            empty_bytes = client.info("memory")["used_memory"]
            for batch in Events(count).each_once():
                await store.timelines.add(ROUTE, 0, batch, later(store))
            per_timeline = (client.info("memory")["used_memory"] - empty_bytes) / count
            events, add_us, digest_us = Events(count, seed=count), list[float](), list[float]()
            for number in range(rounds):
                add_us.append(await _adds(store, client, events, batches, later(store)))
                for first in range(0, 2 * CLAIM, CLAIM):
                    names = [b"due:%d:%d" % (number, first + name) for name in range(CLAIM)]
                    await store.timelines.add(
                        ROUTE, 0, [Record(0, name, b"k", 1, b"{}", False) for name in names], at_once(store)
                    )
                digest_us.append(await _digests(store, client, 2 * CLAIM))
            found.append(Size(count, tuple(add_us), tuple(digest_us), per_timeline))
            print(f"growth: {count:,} timelines: {per_timeline:,.0f} bytes each", flush=True)
    return found


# -- an idle fleet


def idle(seconds: float) -> Idle:
    program = installed_daemon()
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="nsqdigest-bench-", ignore_cleanup_errors=True))
        folder = Path(name)
        queue = stack.enter_context(nsqd(folder, 1000))
        port, client = stack.enter_context(redis_server(folder))
        file = folder / "nsqdigest.toml"
        text = CONFIG.format(nsqd=queue.tcp_address, redis_port=port, partitions=PARTITIONS, folder=folder)
        file.write_text(text + "".join(ROUTE_CONFIG.format(number=number) for number in range(ROUTES)), "utf-8")
        for number in range(DAEMONS):
            stack.enter_context(process([program, "run", "-c", str(file)], folder, f"daemon-{number}.log"))
            _wait_for(folder / f"daemon-{number}.log", b"daemon.started")
        asyncio.run(_one_waiting_everywhere(port))
        time.sleep(2)
        return _look(client, seconds)


def _wait_for(log: Path, words: bytes) -> None:
    deadline_s = time.monotonic() + START_S
    while words not in log.read_bytes():
        if time.monotonic() > deadline_s:
            raise BenchError(f"a daemon did not start:\n{tail(log)}")
        time.sleep(0.05)


async def _one_waiting_everywhere(port: int) -> None:
    plans = [StoreRoute(f"route-{number}", 500, 0, 0) for number in range(ROUTES)]
    async with store_on(port, plans, namespace="nsqdigest", partitions=PARTITIONS) as store:
        for partition in range(PARTITIONS):
            for plan in plans:
                await store.timelines.add(plan.name, partition, [Record(0, b"t", b"k", 1, b"{}", False)], later(store))


def _look(client: redis.Redis, seconds: float) -> Idle:
    client.config_resetstat()
    began_us, began_s = cpu_us(client), time.monotonic()
    time.sleep(seconds)
    took_us, took_s = cpu_us(client) - began_us, time.monotonic() - began_s
    stats = client.info("commandstats")
    rates = {name.removeprefix("cmdstat_"): told["calls"] / took_s for name, told in stats.items()}
    often = dict(sorted(rates.items(), key=lambda pair: -pair[1])[:8])
    return Idle(DAEMONS, PARTITIONS, ROUTES, took_us / 1e6 / took_s * 100, often)
