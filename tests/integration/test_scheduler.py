"""scheduler.py and courier.py against real Redis: what a lost answer costs, and what it does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from nsqdigest.backoff import Controller, Curve
from nsqdigest.config import LogSink, Policy, Route
from nsqdigest.config import Redis as RedisSettings
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.courier import ScheduledRoute, SinkPost
from nsqdigest.events import Record
from nsqdigest.metrics import Metrics
from nsqdigest.policy import Plan
from nsqdigest.scheduler import Scheduler
from nsqdigest.sinks.base import Outcome, Parcel, Verdict
from nsqdigest.timelines import RoutePlan, Timelines, ledger_balances
from support.ports import HOST
from support.proxy import Mode, Proxy
from support.servers import RedisServer
from support.waiting import until

LEASE_MS = 60_000
POLICY = Policy(
    name="default", immediate=True, minimum_delay_ms=60_000, increment_delay_ms=0, maximum_delay_ms=60_000,
    growth="none", growth_steps=0, intervals_ms=(), capacity=100, dedupe_window_ms=60_000,
)  # fmt: skip
ROUTE = Route(
    name="r", topic="t", match=(), timeline="{x}", key="", timestamp="", group="", policy="default", sink="kept",
)  # fmt: skip
SINK = LogSink(
    name="kept", type="log", concurrency=8, timeout_ms=5000, max_attempts=0, max_age_ms=0, retry_base_ms=1000,
    retry_cap_ms=1000, retry_after_max_ms=1000, max_body_bytes=65536, path="-",
)  # fmt: skip


class KeepingSink:
    """Accepts all, and can be told to let something happen before it answers."""

    def __init__(self) -> None:
        self.parcels: list[Parcel] = []
        self.proxy_mode_after: tuple[Proxy, Mode] | None = None

    async def deliver(self, parcel: Parcel) -> Outcome:
        self.parcels.append(parcel)
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
async def store(proxy: Proxy) -> AsyncIterator[Timelines]:
    settings = RedisSettings(url=f"redis://{HOST}:{proxy.port}/0", namespace="test", timeout_ms=300, partitions=1)
    store = Timelines(settings, [RoutePlan("r", 100, 0, 60_000)], 1000)
    await store.start()
    yield store
    await store.close(5)


@pytest.fixture
def sink() -> KeepingSink:
    return KeepingSink()


@pytest.fixture
async def scheduler(store: Timelines, sink: KeepingSink) -> AsyncIterator[Scheduler]:
    def uniform(low: float, high: float) -> float:
        return low

    post = SinkPost(SINK, sink, Controller(8, Curve(1.0, 10.0, "none"), uniform))
    scheduler = Scheduler(
        SchedulerSettings(interval_ms=50, lease_ms=LEASE_MS, batch=100),
        {"r": ScheduledRoute(ROUTE, Plan(POLICY), post)},
        store,
        Metrics(),
        uniform,
    )
    yield scheduler
    await scheduler.drain(time.monotonic() + 5)


async def add(store: Timelines, *timelines: bytes) -> None:
    records = [Record(0, timeline, b"k", 1, b"{}", False) for timeline in timelines]
    await store.add("r", 0, records, Plan(POLICY).beginning(store.clock.now_ms()))


async def test_what_a_claim_took_whose_answer_got_lost_does_not_wait_for_its_lease(
    scheduler: Scheduler, store: Timelines, sink: KeepingSink, proxy: Proxy
) -> None:
    await add(store, b"a", b"b", b"c")
    proxy.mode = Mode.DROP_REPLIES
    scheduler.start()
    await until(lambda: scheduler.failing_since_s is not None)
    proxy.mode = Mode.PASS
    await until(lambda: len(sink.parcels) == 3)  # within seconds, and the lease is a minute
    assert {parcel.timeline for parcel in sink.parcels} == {"a", "b", "c"}


async def test_a_close_whose_answer_got_lost_is_told_again_and_the_digest_goes_out_once(
    scheduler: Scheduler, store: Timelines, sink: KeepingSink, proxy: Proxy
) -> None:
    await add(store, b"a")
    sink.proxy_mode_after = (proxy, Mode.DROP_REPLIES)
    scheduler.start()
    await until(lambda: scheduler.failing_since_s is not None)
    proxy.mode = Mode.PASS
    await until(lambda: scheduler.posts[0].active == 0 and scheduler.failing_since_s is None)
    counters = await store.ledger("r")
    assert counters["delivered"] == 1
    assert ledger_balances(counters)
    assert [parcel.attempt for parcel in sink.parcels] == [1]


async def test_a_drain_lets_what_is_being_delivered_end_and_claims_nothing_more(
    scheduler: Scheduler, store: Timelines, sink: KeepingSink
) -> None:
    await add(store, b"a")
    scheduler.start()
    await until(lambda: bool(sink.parcels))
    await scheduler.drain(time.monotonic() + 5)
    await add(store, b"b")
    scheduler.poke()
    await asyncio.sleep(0)
    assert scheduler.posts[0].active == 0
    assert (await store.ledger("r"))["delivered"] == 1
