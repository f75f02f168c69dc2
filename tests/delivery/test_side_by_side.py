"""Two daemons' timers on one Redis, and what one digest costs of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import redis

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.resp import Command, encode
from nsqdigest.store.store import Store
from support.delivering import ToldSink
from support.settings import POLICY, ROUTE, SINK
from support.stores import OpenStore, add, open_store, rec
from support.waiting import until

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
MakeDaemon = Callable[..., Any]


class Daemon:
    def __init__(self, store: Store, interval_ms: int, lease_ms: int) -> None:
        self.store, self.sink, self.metrics = store, ToldSink(), Metrics()
        self.outlet = Outlet(SINK, self.sink, Controller(8, Curve(1.0, 10.0, jitter="none"), min, slow_start=False))
        self.scheduler = Scheduler(
            SchedulerSettings(interval_ms=interval_ms, lease_ms=lease_ms, batch=100),
            {"r": DeliveryRoute(ROUTE, Plan(POLICY), self.outlet)},
            store, self.metrics, min,
        )  # fmt: skip


@pytest.fixture
async def make(open_store: OpenStore, redis_url: str) -> AsyncIterator[MakeDaemon]:
    daemons: list[Daemon] = []

    async def daemon(interval_ms: int = 50, lease_ms: int = 60_000) -> Daemon:
        store = open_store(redis_url, [StoreRoute("r", 100, 0, 60_000)])
        await store.start()
        daemons.append(Daemon(store, interval_ms, lease_ms))
        return daemons[-1]

    yield daemon
    for each in daemons:
        await each.scheduler.drain(time.monotonic() + 5)
        assert each.outlet.held == each.outlet.reserved == each.outlet.ready_bytes == 0


async def test_two_daemons_share_what_is_due_and_nothing_goes_out_twice(make: MakeDaemon) -> None:
    one, other = await make(), await make()
    names = {f"t{number}" for number in range(600)}
    for name in names:
        await add(one.store, rec(timeline=name.encode()))
    for each in (one, other):
        each.sink.takes_s = 0.002
        each.scheduler.start()
    await until(lambda: len(one.sink.sent) + len(other.sink.sent) >= len(names), 20)
    await until(lambda: one.outlet.held == other.outlet.held == 0)
    sent = [*one.sink.sent, *other.sink.sent]
    assert Counter(digest.timeline for digest in sent) == Counter(names)
    assert len({digest.id for digest in sent}) == len(names)
    assert min(len(one.sink.sent), len(other.sink.sent)) > len(names) / 10
    for each in (one, other):
        assert each.metrics.total("digests_stale_total") == each.metrics.total("store_errors_total") == 0
    assert (await one.store.operations.ledger("r"))["delivered"] == len(names)


async def test_what_a_daemon_that_was_killed_had_ready_goes_out_with_the_same_id_and_bytes(make: MakeDaemon) -> None:
    killed, other = await make(lease_ms=1000), await make(lease_ms=1000)
    for number in range(20):
        await add(killed.store, rec(timeline=b"t%d" % number))
    killed.sink.may_answer.clear()
    killed.scheduler.start()
    await until(lambda: len(killed.sink.sent) == 8)
    for task in [*killed.scheduler.tasks, *killed.outlet._tasks]:
        task.cancel()
    other.scheduler.start()
    await until(lambda: len({digest.timeline for digest in other.sink.sent}) == 20, 20)
    again = {digest.id: digest for digest in other.sink.sent}
    for digest in killed.sink.sent:
        # Its post never ended, so the next one has the same number.
        assert again[digest.id] == digest
    killed.outlet.held = killed.outlet.ready_bytes = 0  # it is dead
    killed.outlet._ready.clear()


async def test_a_digest_that_is_due_alone_takes_few_round_trips_and_commands(
    make: MakeDaemon, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = await make(interval_ms=600_000, lease_ms=3_600_000)  # no maintenance comes between
    daemon.scheduler.start()
    await add(daemon.store, rec(timeline=b"first"))
    daemon.scheduler.wake()
    await until(lambda: len(daemon.sink.sent) == 1 and daemon.outlet.held == 0)
    daemon.scheduler.pause_route("r")  # the timer is awake after the first one
    for number in range(5):
        await add(daemon.store, rec(b"%d" % number, timeline=b"alone"))
    trips: list[list[bytes]] = []
    exchange = Node.exchange

    async def counted(node: Node, commands: Sequence[Command]) -> list[Any]:
        trips.append([encode(command).split(b"\r\n", 3)[2] for command in commands])
        return await exchange(node, commands)

    monkeypatch.setattr(Node, "exchange", counted)
    redis_client.config_resetstat()
    daemon.scheduler.resume_route("r")
    await until(lambda: len(daemon.sink.sent) == 2 and daemon.outlet.held == 0)
    taken = [names for names in trips if names[0] != b"TIME"]
    assert len(taken) == 4  # claim, open, read, finish
    assert [names[0] for names in taken] == [b"EVALSHA", b"EVALSHA", b"ZRANGE", b"EVALSHA"]
    assert len(trips) <= 4 + 3  # and looks: before, after the claim, after the end
    stats: dict[str, dict[str, int]] = redis_client.info("commandstats")
    commands = sum(
        each["calls"] for name, each in stats.items() if name not in {"cmdstat_info", "cmdstat_config|resetstat"}
    )
    assert commands <= 75
