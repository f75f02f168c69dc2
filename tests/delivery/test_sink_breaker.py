"""The controller in front of a sink: the same as a topic's, with deliveries for messages. Real Redis, a sink that is
told what to answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from nsqdigest import backoff
from nsqdigest.backoff import Controller, Curve, Reason, State
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import Delivery, DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.record import Record
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.store import Store
from support import settings
from support.settings import POLICY, ROUTE
from support.stores import redis_settings
from support.waiting import until

pytestmark = pytest.mark.integration

SINK = replace(settings.SINK, concurrency=4, retry_base_ms=1, retry_cap_ms=1)


class ToldSink:
    """Returns what it is told, for all or for one timeline, and can be made to wait with it."""

    def __init__(self) -> None:
        self.sent: list[OutgoingDigest] = []
        self.verdict = Verdict.DELIVERED
        self.verdict_of: dict[str, Verdict] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.sent.append(digest)
        verdict = self.verdict_of.get(digest.timeline, self.verdict)
        await self.may_answer.wait()
        return Outcome(verdict, "as told")

    async def close(self) -> None:
        pass


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    store = Store(redis_settings(redis_url), [StoreRoute("r", 100, 0, 60_000)], 1000)
    await store.start()
    yield store
    await store.close(5)


@pytest.fixture
def sink() -> ToldSink:
    return ToldSink()


@pytest.fixture
def outlet(sink: ToldSink) -> Outlet:
    curve = Curve(base_s=0.01, max_duration_s=0.08, jitter="none")
    return Outlet(SINK, sink, Controller(SINK.concurrency, curve, lambda low, _: low))


@pytest.fixture
async def scheduler(store: Store, outlet: Outlet) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(
        SchedulerSettings(interval_ms=20, lease_ms=60_000, batch=100),
        {"r": DeliveryRoute(ROUTE, Plan(POLICY), outlet)},
        store,
        Metrics(),
        lambda low, _: low,
    )
    yield scheduler
    await scheduler.drain(time.monotonic() + 5)


async def add(store: Store, *timelines: bytes) -> None:
    records = [Record(0, timeline, b"k", 1, b"{}", False) for timeline in timelines]
    await store.timelines.add("r", 0, records, Plan(POLICY).beginning(store.clock.now_ms()))


async def test_a_sink_that_is_down_is_asked_with_one_digest_at_a_time(
    scheduler: Scheduler, store: Store, sink: ToldSink, outlet: Outlet
) -> None:
    sink.verdict = Verdict.UNAVAILABLE
    await add(store, *(b"t%d" % number for number in range(20)))
    scheduler.start()
    await until(lambda: outlet.controller.decision.level == 3)
    before = len(sink.sent)
    # What was under way when it stepped back had begun before; from then on each step up took one delivery.
    assert before <= SINK.concurrency + 3
    sink.verdict = Verdict.DELIVERED
    await until(lambda: len({p.timeline for p in sink.sent[before:]}) == 20, 20.0, "all to be delivered")


async def test_a_slow_probe_still_speaks_for_its_sink(
    scheduler: Scheduler, store: Store, sink: ToldSink, outlet: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that takes its whole time-out to fail raises the level like one that fails at once."""
    monkeypatch.setattr(backoff, "PROBE_MESSAGE_WITHIN_S", 0.05)
    sink.verdict = Verdict.UNAVAILABLE
    await add(store, b"a")
    scheduler.start()
    await until(lambda: outlet.controller.decision.state is State.BACKOFF)
    sink.may_answer.clear()
    asked = len(sink.sent)
    await until(lambda: len(sink.sent) == asked + 1)
    began_s = time.monotonic()
    await until(lambda: time.monotonic() > began_s + 4 * backoff.PROBE_MESSAGE_WITHIN_S)
    assert (outlet.controller.decision.state, outlet.controller.decision.level) == (State.PROBING, 1)
    sink.may_answer.set()
    await until(lambda: outlet.controller.decision.level == 2)
    assert outlet.controller.decision.reason in (Reason.PROBE_FAILED, Reason.BACKOFF_OVER)


async def test_the_digest_that_failed_last_is_not_the_probe_while_another_is_due(
    scheduler: Scheduler, store: Store, sink: ToldSink, outlet: Outlet
) -> None:
    sink.verdict_of = {"bad": Verdict.UNAVAILABLE}
    await add(store, b"bad")
    scheduler.start()
    await until(lambda: outlet.controller.decision.state is State.BACKOFF)
    failed = len(sink.sent)
    await add(store, b"good")
    await until(lambda: len(sink.sent) > failed)
    assert sink.sent[failed].timeline == "good"


async def test_a_digest_that_failed_last_is_the_probe_where_nothing_else_is_due(
    scheduler: Scheduler, store: Store, sink: ToldSink, outlet: Outlet
) -> None:
    sink.verdict = Verdict.UNAVAILABLE
    await add(store, b"only")
    scheduler.start()
    await until(lambda: outlet.controller.decision.state is State.BACKOFF)
    sink.verdict = Verdict.DELIVERED
    await until(lambda: outlet.controller.decision.reason is Reason.RECOVERED)
    assert {digest.timeline for digest in sink.sent} == {"only"}


async def test_what_was_claimed_before_the_sink_stepped_back_is_put_back_unsent(
    scheduler: Scheduler, store: Store, sink: ToldSink, outlet: Outlet
) -> None:
    await add(store, b"a", b"b")
    claims = (await store.digests.claim(0, [("r", 0)], [2], 60_000)).claims
    epoch = outlet.controller.decision.epoch
    outlet.controller.failed(epoch, time.monotonic())
    outlet.held += 2
    route = DeliveryRoute(ROUTE, Plan(POLICY), outlet)
    await scheduler._opener.open(0, [Delivery(claim, route, time.monotonic() + 60, epoch) for claim in claims])
    await until(lambda: outlet.held == 0)
    assert sink.sent == []
    scheduler.start()
    await until(lambda: {digest.timeline for digest in sink.sent} == {"a", "b"})
    assert {digest.attempt for digest in sink.sent} == {1}


async def test_a_held_sink_opens_nothing_and_goes_on_when_resumed(
    scheduler: Scheduler, store: Store, sink: ToldSink, outlet: Outlet
) -> None:
    scheduler.start()
    assert scheduler.pause_sink("out")
    await add(store, b"a")
    scheduler.wake()
    assert not scheduler.pause_sink("out")
    assert outlet.room == 0
    assert scheduler.resume_sink("out")
    assert not scheduler.resume_sink("out")
    await until(lambda: [digest.timeline for digest in sink.sent] == ["a"])
