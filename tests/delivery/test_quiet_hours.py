"""Quiet hours against real Redis: what is due inside waits for their end, what is flushed does not."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import cast

import pytest

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.quiet_hours import QuietHours
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.inspection import Inspector
from nsqdigest.store.listing import Lister, Wanted
from nsqdigest.store.record import Record
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import EXEMPT_MS, Plan, Schedule
from nsqdigest.store.store import Store
from support.ports import HOST
from support.servers import RedisServer
from support.settings import POLICY, ROUTE, SINK
from support.stores import redis_settings
from support.waiting import until

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
FAR_MS = 4_000_000_000_000


class Night:
    """Quiet hours that are now, and end when a test wants them to."""

    def __init__(self) -> None:
        self.ends_ms = FAR_MS

    def end_ms(self, now_ms: int) -> int | None:
        return self.ends_ms if now_ms < self.ends_ms else None

    def release_ms(self, due_ms: int) -> int:
        return max(due_ms, self.ends_ms)


class Sink:
    def __init__(self) -> None:
        self.sent: list[str] = []
        self.outcomes: list[Outcome] = []
        self.on_post: Callable[[], None] = lambda: None

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.sent.append(digest.timeline)
        self.on_post()
        return self.outcomes.pop() if self.outcomes else Outcome(Verdict.DELIVERED)

    async def close(self) -> None:
        pass


@pytest.fixture
def night() -> Night:
    return Night()


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def store(redis_server: RedisServer, night: Night) -> AsyncIterator[Store]:
    route = StoreRoute("r", 100, 0, 60_000, quiet=cast("QuietHours", night))
    store = Store(redis_settings(f"redis://{HOST}:{redis_server.port}/0"), [route], 1000)
    await store.start()
    yield store
    await store.close(5)


@pytest.fixture
async def scheduler(store: Store, night: Night, sink: Sink, metrics: Metrics) -> AsyncIterator[Scheduler]:
    def uniform(low: float, high: float) -> float:
        return low

    plan = Plan(POLICY)
    plan.quiet = cast("QuietHours", night)
    outlet = Outlet(
        replace(SINK, max_age_ms=HOUR_MS, retry_base_ms=1, retry_cap_ms=1),
        sink,
        Controller(8, Curve(1.0, 10.0, jitter="none"), uniform),
    )
    scheduler = Scheduler(
        SchedulerSettings(interval_ms=600_000, lease_ms=60_000, batch=100),
        {"r": DeliveryRoute(ROUTE, plan, outlet)},
        store,
        metrics,
        uniform,
    )
    yield scheduler
    await scheduler.drain(time.monotonic() + 5)


async def add(store: Store, timeline: bytes, due_ms: int) -> None:
    await store.timelines.add("r", 0, [Record(0, timeline, b"k", 1, b"{}", False)], Schedule(due_ms, due_ms))


async def test_what_is_due_waits_and_what_is_flushed_goes_out(store: Store, scheduler: Scheduler, sink: Sink) -> None:
    now_ms = store.clock.now_ms()
    await add(store, b"held", now_ms - HOUR_MS)
    await add(store, b"urgent", now_ms)
    await store.operations.flush("r", "urgent", has_quiet_hours=True)
    scheduler.start()
    scheduler.on_due([("r", 0)])
    await until(lambda: bool(sink.sent))
    await until(lambda: scheduler.outlets[0].held == 0)
    figures = (await store.figures.read(["r"], store.clock.now_ms())).routes["r"]
    assert sink.sent == ["urgent"]
    assert (figures.waiting, figures.overdue, figures.overdue_s(store.clock.now_ms())) == (2, 0, 0.0)


async def test_it_goes_out_once_when_they_end_and_is_not_late(
    store: Store, scheduler: Scheduler, sink: Sink, night: Night, metrics: Metrics
) -> None:
    """Nothing wakes the timer but their end: it would look again after a minute."""
    now_ms = store.clock.now_ms()
    await add(store, b"t", now_ms - HOUR_MS)
    night.ends_ms = now_ms + 500
    scheduler.start()
    await until(lambda: bool(sink.sent))
    assert store.clock.now_ms() >= night.ends_ms
    await until(lambda: scheduler.outlets[0].held == 0)
    assert sink.sent == ["t"]
    delays = [line for line in metrics.text().splitlines() if "digest_delay_seconds_sum" in line]
    assert float(delays[0].split()[-1]) < HOUR_MS / 1000 / 2


async def test_a_retry_waits_too(store: Store, scheduler: Scheduler, sink: Sink, night: Night) -> None:
    await add(store, b"t", store.clock.now_ms())
    night.ends_ms = 0
    sink.outcomes = [Outcome(Verdict.AGAIN)]

    def night_begins() -> None:
        night.ends_ms = FAR_MS

    sink.on_post = night_begins
    scheduler.start()
    await until(lambda: bool(sink.sent))
    await until(lambda: scheduler.outlets[0].held == 0)
    await add(store, b"urgent", store.clock.now_ms())
    await store.operations.flush("r", "urgent", has_quiet_hours=True)
    scheduler.wake()
    await until(lambda: len(sink.sent) == 2)
    assert sink.sent == ["t", "urgent"]


async def test_commands_show_the_end_and_what_is_exempt_as_due_now(store: Store, night: Night) -> None:
    now_ms = store.clock.now_ms()
    night.ends_ms = now_ms + HOUR_MS
    quiet = cast("QuietHours", night)
    await add(store, b"held", now_ms - HOUR_MS)
    await add(store, b"urgent", now_ms)
    await store.operations.flush("r", "urgent", has_quiet_hours=True)
    lister = Lister(store.namespace, {"r": 0}, now_ms, {"r": quiet})
    listed = (await lister.first(10, Wanted())).timelines
    assert [(each.name, each.state, each.at_ms) for each in listed] == [
        ("urgent", "due", now_ms),
        ("held", "waiting", now_ms + HOUR_MS),
    ]
    inspector = Inspector(store.namespace)
    (place,) = await inspector.find("held", ["r"])
    known = await inspector.look(place, 0, quiet)
    assert known is not None
    assert (known.state, known.at_ms) == ("waiting", night.ends_ms)


async def test_a_damaged_zset_of_exempt_retries_stops_no_claim_and_is_named(
    store: Store, redis_server: RedisServer
) -> None:
    await add(store, b"urgent", EXEMPT_MS)
    key = (store.namespace.tags[0] + b"exempt").decode()
    with redis_server.client() as client:
        client.set(key, "of something else")
        agenda = await store.digests.agenda(0, 1000)
        claimed = await store.digests.claim(0, [("r", 0)], [5], 60_000)
        assert f"the key {key} has another type" in str(store.digests.exempt_damage[0])
        client.delete(key)
    assert agenda["r"] == EXEMPT_MS
    assert [claim.timeline for claim in claimed.claims] == ["urgent"]
    await store.digests.agenda(0, 1000)
    assert store.digests.exempt_damage == {}
