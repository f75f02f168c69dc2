"""Against real Redis: an open that is carried out late, and a route that is due again and again."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.answers import Ended
from nsqdigest.store.digests import Ending, Opening
from nsqdigest.store.head import Head
from nsqdigest.store.record import Record
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan, Schedule
from support.settings import POLICY, ROUTE, SINK
from support.stores import OpenStore, add, open_store, rec
from support.waiting import until

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
TIMELINES = 30_000


async def test_an_open_that_is_carried_out_late_changes_no_digest_that_was_sent(
    open_store: OpenStore, redis_url: str
) -> None:
    """Asked again after a time-out, both are carried out: the first one last, and newer records came between."""
    store = open_store(redis_url, [StoreRoute("m", 5, 0, 60_000, merges=True)])
    await store.start()
    await add(store, rec(b"a", 1), route="m")
    (claim,) = (await store.digests.claim(0, [("m", 0)], [5], 60_000)).claims
    (head,) = await store.digests.open(0, [Opening(claim, "x")], {"m": [0]})
    assert isinstance(head, Head)
    (sent,) = await store.digests.read(0, [(claim, head)])
    await add(store, rec(b"b", 2), route="m")
    await store.digests.open(0, [Opening(claim, "x")], {"m": [0]})  # the one that had not been answered
    now = store.clock.now_ms()
    ended = await store.digests.finish(0, [Ending.close(claim, "x", Schedule(now, now))])
    assert sent is not None
    assert sent.keys == [b"a"]
    counters = await store.operations.ledger("m")
    assert (ended, counters["delivered"], counters.get("open", 0)) == ([Ended.DONE], 1, 1)


class QuickSink:
    """Accepts all."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, OutgoingDigest]] = []

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.sent.append((time.monotonic(), digest))
        return Outcome(Verdict.DELIVERED)

    async def close(self) -> None:
        pass


async def test_a_route_that_is_due_again_and_again_does_not_keep_others_waiting(
    open_store: OpenStore, redis_url: str
) -> None:
    store = open_store(redis_url, [StoreRoute("r", 5, 0, 60_000), StoreRoute("s", 5, 0, 60_000)], limit=100_000)
    await store.start()
    first = Schedule(0, 0)
    for start in range(0, TIMELINES, 500):
        records = [Record(0, b"t%d" % (start + n), b"k", 1, b"{}", False) for n in range(500)]
        await store.timelines.add("r", 0, records, first)
    sinks = {name: QuickSink() for name in "rs"}

    def uniform(low: float, high: float) -> float:
        return low

    curve = Curve(1.0, 10.0, jitter="none")
    outlets = {
        name: Outlet(replace(SINK, name=name, concurrency=64), sink, Controller(64, curve, uniform))
        for name, sink in sinks.items()
    }
    routes = {name: DeliveryRoute(replace(ROUTE, name=name), Plan(POLICY), outlets[name]) for name in "rs"}
    scheduler = Scheduler(
        SchedulerSettings(interval_ms=1000, lease_ms=60_000, batch=100),
        routes,
        store,
        Metrics(),
        uniform,
    )
    await store.timelines.add("s", 0, [Record(0, b"t", b"k", 1, b"{}", False)], first)
    scheduler.on_due([("r", 0)])
    scheduler.start()
    try:
        await until(lambda: sinks["s"].sent, 60.0, "the other route's digest")
        assert len([at_s for at_s, _ in sinks["r"].sent if at_s < sinks["s"].sent[0][0]]) < TIMELINES / 2
    finally:
        await scheduler.drain(time.monotonic() + 5)
