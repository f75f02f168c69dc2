"""timer.py, and all behind it, against real Redis: what a lost answer costs, and what it does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from nsqdigest.audit.ledger import balances
from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.record import Record
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan, Schedule
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.resp import Command
from nsqdigest.store.store import Store
from support.ports import HOST
from support.proxy import Mode, Proxy
from support.redis_sets import RedisCluster
from support.servers import RedisServer
from support.settings import POLICY, ROUTE, SINK
from support.stores import OpenStore, open_store, redis_settings
from support.waiting import until

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
LEASE_MS = 60_000


class KeepingSink:
    """Accepts all, and can be told to let something happen before it answers."""

    def __init__(self) -> None:
        self.sent: list[OutgoingDigest] = []
        self.at_a_time = self.most_at_a_time = 0
        self.proxy_mode_after: tuple[Proxy, Mode] | None = None

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.sent.append(digest)
        self.at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        await asyncio.sleep(0)
        self.at_a_time -= 1
        if self.proxy_mode_after is not None:
            proxy, mode = self.proxy_mode_after
            proxy.mode = mode
            self.proxy_mode_after = None
        return Outcome(Verdict.DELIVERED)

    async def close(self) -> None:
        pass


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[Proxy]:
    async with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[Store]:
    settings = redis_settings(f"redis://{HOST}:{proxy.port}/0", timeout_ms=300)
    store = Store(settings, [StoreRoute("r", 100, 0, 60_000)], 1000)
    await store.start()
    yield store
    await store.close(5)


@pytest.fixture
def sink() -> KeepingSink:
    return KeepingSink()


def scheduler_of(store: Store, sink: KeepingSink, limit: int = 8, lease_ms: int = LEASE_MS) -> Scheduler:
    def uniform(low: float, high: float) -> float:
        return low

    outlet = Outlet(SINK, sink, Controller(limit, Curve(1.0, 10.0, jitter="none"), uniform))
    return Scheduler(
        SchedulerSettings(interval_ms=50, lease_ms=lease_ms, batch=100),
        {"r": DeliveryRoute(ROUTE, Plan(POLICY), outlet)},
        store,
        Metrics(),
        uniform,
    )


@pytest.fixture
async def scheduler(store: Store, sink: KeepingSink) -> AsyncIterator[Scheduler]:
    scheduler = scheduler_of(store, sink)
    yield scheduler
    await scheduler.drain(time.monotonic() + 5)


async def add(store: Store, *timelines: bytes) -> None:
    records = [Record(0, timeline, b"k", 1, b"{}", False) for timeline in timelines]
    await store.timelines.add("r", 0, records, Plan(POLICY).beginning(store.clock.now_ms()))


async def test_what_a_claim_took_whose_answer_got_lost_does_not_wait_for_its_lease(
    scheduler: Scheduler, store: Store, sink: KeepingSink, proxy: Proxy
) -> None:
    await add(store, b"a", b"b", b"c")
    proxy.mode = Mode.DROP_REPLIES
    scheduler.start()
    await until(lambda: scheduler.failing_since_s is not None)
    proxy.mode = Mode.PASS
    await until(lambda: len(sink.sent) == 3)  # within seconds, and the lease is a minute
    assert {digest.timeline for digest in sink.sent} == {"a", "b", "c"}


async def test_a_close_whose_answer_got_lost_is_told_again_and_the_digest_goes_out_once(
    scheduler: Scheduler, store: Store, sink: KeepingSink, proxy: Proxy
) -> None:
    await add(store, b"a")
    sink.proxy_mode_after = (proxy, Mode.DROP_REPLIES)
    scheduler.start()
    await until(lambda: scheduler.failing_since_s is not None)
    proxy.mode = Mode.PASS
    await until(lambda: scheduler.outlets[0].held == 0 and scheduler.failing_since_s is None)
    counters = await store.operations.ledger("r")
    assert counters["delivered"] == 1
    assert balances(counters)
    assert [digest.attempt for digest in sink.sent] == [1]


async def test_a_drain_lets_what_is_being_delivered_end_and_claims_nothing_more(
    scheduler: Scheduler, store: Store, sink: KeepingSink
) -> None:
    await add(store, b"a")
    scheduler.start()
    await until(lambda: bool(sink.sent))
    await scheduler.drain(time.monotonic() + 5)
    await add(store, b"b")
    scheduler.wake()
    await asyncio.sleep(0)
    assert scheduler.outlets[0].held == 0
    assert (await store.operations.ledger("r"))["delivered"] == 1


# -- partitions


@pytest.mark.parametrize("limit", [1, 8, 100])
async def test_what_is_due_in_any_partition_goes_out_and_never_more_at_a_time_than_there_is_room(
    open_store: OpenStore, redis_url: str, sink: KeepingSink, limit: int
) -> None:
    store = open_store(redis_url, partitions=16)
    await store.start()
    scheduler = scheduler_of(store, sink, limit)
    names = [b"%d" % n for n in range(120)]
    for name in names:
        await into_partition(store, name)
    scheduler.start()
    await until(lambda: len(sink.sent) == len(names))
    assert {digest.timeline.encode() for digest in sink.sent} == set(names)
    assert sink.most_at_a_time <= limit
    await scheduler.drain(time.monotonic() + 5)


async def into_partition(store: Store, name: bytes) -> None:
    first = Plan(POLICY).beginning(store.clock.now_ms())
    await store.timelines.add("r", store.timelines.partition_of(name), [Record(0, name, b"k", 1, b"{}", False)], first)


# -- with nothing to do


async def test_while_nothing_is_due_all_partitions_are_looked_at_in_one_round_trip_and_nothing_is_claimed(
    open_store: OpenStore, redis_url: str, redis_client: redis.Redis, sink: KeepingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(redis_url, partitions=16)
    await store.start()
    now_ms = store.clock.now_ms()
    for partition in range(16):
        later = Schedule(now_ms + LEASE_MS, now_ms + LEASE_MS)
        await store.timelines.add("r", partition, [Record(0, b"t", b"k", 1, b"{}", False)], later)
    scheduler = scheduler_of(store, sink)
    scheduler.start()
    exchanges: list[int] = []
    exchange = Node.exchange

    async def counted(node: Node, commands: Sequence[Command]) -> list[Any]:
        exchanges.append(sum(command[0] == b"ZRANGEBYSCORE" for command in commands))
        return await exchange(node, commands)

    monkeypatch.setattr(Node, "exchange", counted)
    # The first look of each is followed by a claim over all routes; by the second one these have ended.
    await until(lambda: exchanges.count(16) >= 2)
    redis_client.config_resetstat()
    exchanges.clear()
    await until(lambda: exchanges.count(16) >= 4)
    assert "cmdstat_evalsha" not in redis_client.info("commandstats")
    await scheduler.drain(time.monotonic() + 5)


async def test_what_another_daemon_added_is_seen_within_the_interval(
    open_store: OpenStore, redis_url: str, sink: KeepingSink
) -> None:
    store, other = open_store(redis_url), open_store(redis_url)
    await store.start()
    await other.start()
    scheduler = scheduler_of(store, sink)
    scheduler.start()
    await add(other, b"a")  # which wakes nobody here
    await until(lambda: len(sink.sent) == 1)
    await scheduler.drain(time.monotonic() + 5)


async def test_an_agenda_that_was_lost_holds_nothing_up_for_longer_than_a_lease(
    open_store: OpenStore, redis_url: str, redis_client: redis.Redis, sink: KeepingSink
) -> None:
    store = open_store(redis_url)
    await store.start()
    scheduler = scheduler_of(store, sink, lease_ms=400)
    scheduler.start()
    later = Schedule(store.clock.now_ms() + 200, store.clock.now_ms() + 200)
    await store.timelines.add("r", 0, [Record(0, b"a", b"k", 1, b"{}", False)], later)
    redis_client.unlink("{test:0}:agenda")
    await until(lambda: len(sink.sent) == 1)
    await scheduler.drain(time.monotonic() + 5)


# -- a set of servers


async def test_a_server_of_a_cluster_that_hangs_does_not_hold_up_the_partitions_of_others(
    tmp_path: Path, open_store: OpenStore, sink: KeepingSink
) -> None:
    options = ("--cluster-require-full-coverage", "no")
    with RedisCluster(tmp_path, *options, replicas=0) as cluster:
        store = open_store(cluster.url, partitions=12, timeout_ms=200_000)
        await store.start()
        scheduler = scheduler_of(store, sink)
        hanging = cluster.primary_of(key_slot(b"{test:0}"))
        elsewhere = [p for p in range(12) if cluster.primary_of(key_slot(b"{test:%d}" % p)) is not hanging]
        names = [name for name in (b"%d" % n for n in range(60)) if store.timelines.partition_of(name) in elsewhere]
        hanging.pause()
        for name in names:
            await into_partition(store, name)
        scheduler.start()
        await until(lambda: len(sink.sent) == len(names))  # and what is asked of the one hangs for minutes
        hanging.resume()
        await scheduler.drain(time.monotonic() + 5)
