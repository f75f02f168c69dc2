"""courier.py alone, against real Redis: what becomes of one claimed digest for each outcome, and what is told of it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from nsqdigest.delivery.attempt import Courier, DeliveryRoute, Lease, Outlet

from nsqdigest.backoff import Controller, Curve, State
from nsqdigest.base import log
from nsqdigest.base.errors import StoreError
from nsqdigest.base.log_counts import Repeats
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery import attempt
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.store.answers import Answer, Claim
from nsqdigest.store.digests import Digests
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.store import Store
from support.settings import POLICY, ROUTE, SINK
from support.stores import OpenStore, add, open_store, rec

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
LEASE_MS = 60_000


@dataclass
class ToldSink:
    outcome: Outcome | Exception = field(default_factory=lambda: Outcome(Verdict.DELIVERED))
    parcels: list[OutgoingDigest] = field(default_factory=list)
    takes_s: float = 0.0
    before: Callable[[], Any] | None = None

    async def deliver(self, parcel: OutgoingDigest) -> Outcome:
        self.parcels.append(parcel)
        if self.before is not None:
            await self.before()
        await asyncio.sleep(self.takes_s)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    async def close(self) -> None: ...


@dataclass
class Stage:
    store: Store
    sink: ToldSink
    metrics: Metrics
    post: Outlet
    route: DeliveryRoute
    courier: Courier
    windows: list[tuple[float, float]]
    decided: list[Outlet]

    async def claim(self) -> Claim:
        (claim,) = (await self.store.digests.claim(0, [("r", 0)], [5], LEASE_MS)).claims
        return claim

    async def carry(self, claim: Claim | None = None, lease_ms: int = LEASE_MS, epoch: int | None = None) -> None:
        claim = claim or await self.claim()
        epoch = self.post.controller.decision.epoch if epoch is None else epoch
        await self.courier.carry(claim, self.route, Lease(lease_ms, time.monotonic()), epoch)

    async def schedule(self) -> tuple[int, int]:
        """Base and bound of the timeline."""
        (packed,) = await self.store.namespace.send(0, [[b"HGET", b"{test:0}:schedule:r", b"t"]])
        return int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:16], "big")


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(log, "_repeats", Repeats())  # what another test said within the second is no repeat
    caplog.set_level(logging.DEBUG, "nsqdigest")
    return caplog


@pytest.fixture
async def stage(open_store: OpenStore, redis_url: str) -> Stage:
    return await staged(open_store, redis_url)


async def staged(open_store: OpenStore, redis_url: str, **settings: Any) -> Stage:
    store, sink, metrics, windows = open_store(redis_url, [StoreRoute("r", 100, 0, 60_000)]), ToldSink(), Metrics(), []
    await store.start()
    await add(store, rec(b"k", 7, b'{"a":1}'), rec(b"l", 8))
    chosen = {"retry_base_ms": 1000, "retry_cap_ms": 9000, **settings}
    post = Outlet(replace(SINK, **chosen), sink, Controller(8, Curve(5.0, 10.0, jitter="none"), lambda low, _: low))
    decided: list[Outlet] = []

    def lowest(low: float, high: float) -> float:
        windows.append((low, high))
        return low

    plan = Plan(replace(POLICY, immediate=False, minimum_delay_ms=60_000, maximum_delay_ms=90_000))
    route = DeliveryRoute(ROUTE, plan, post)
    carrying = Courier(store, LEASE_MS, metrics, lowest, decided.append)
    return Stage(store, sink, metrics, post, route, carrying, windows, decided)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return [record.getMessage() for record in caplog.records].count(event)


# -- delivered


async def test_a_delivered_digest_is_closed_and_counted_and_the_next_waits_from_now_on(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.sink.takes_s = 0.2
    before_ms = stage.store.clock.now_ms()
    await stage.carry()
    (parcel,) = stage.sink.parcels
    assert (parcel.route, parcel.timeline, parcel.attempt, parcel.records) == ("r", "t", 1, 2)
    assert (await stage.store.operations.ledger("r"))["delivered"] == 2
    value = stage.metrics.value
    assert value("digest_attempts_total", sink="out", outcome="delivered") == 1
    assert value("digests_delivered_total", sink="out", route="r") == 1
    assert value("digest_records_delivered_total", sink="out", route="r") == 2
    told_s = value("last_delivery_timestamp_seconds", sink="out")
    assert told_s is not None
    assert abs(told_s - time.time()) < 5
    assert stage.metrics.total("digests_stale_total") == 0
    base_ms, bound_ms = await stage.schedule()
    assert base_ms >= before_ms + 60_190
    assert bound_ms == base_ms + 30_000
    assert lines(caplog, "scheduler.digest.delivered") == 1


async def test_a_digest_whose_timeline_was_deleted_meanwhile_counts_as_stale_and_not_as_delivered(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.sink.before = lambda: stage.store.operations.delete("r", "t")
    await stage.carry()
    assert stage.metrics.value("digests_stale_total", route="r") == 1
    assert stage.metrics.total("digests_delivered_total") == 0
    assert lines(caplog, "scheduler.digest.stale") == 1
    assert lines(caplog, "scheduler.digest.delivered") == 0


async def test_a_refused_digest_whose_timeline_was_deleted_meanwhile_is_not_counted_as_buried(
    open_store: OpenStore, redis_url: str
) -> None:
    stage = await staged(open_store, redis_url, max_attempts=1)
    stage.sink.outcome = Outcome(Verdict.REFUSED, "400")
    stage.sink.before = lambda: stage.store.operations.delete("r", "t")
    await stage.carry()
    assert stage.metrics.value("digests_stale_total", route="r") == 1
    assert stage.metrics.total("digests_buried_total") == 0


# -- failed


async def test_a_failed_digest_waits_by_the_sinks_window_and_comes_again_as_it_was(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500")
    now_ms = stage.store.clock.now_ms()
    await stage.carry()
    assert stage.windows == [(1000, 3000)]
    base_ms, bound_ms = await stage.schedule()
    assert now_ms + 1000 <= base_ms == bound_ms < now_ms + 5000
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="again") == 1
    assert lines(caplog, "scheduler.digest.failed") == 1
    await stage.store.operations.flush("r", "t")
    stage.sink.outcome = Outcome(Verdict.DELIVERED)
    await stage.carry()
    first, second = stage.sink.parcels
    assert (first.attempt, second.attempt) == (1, 2)
    assert (first.id, first.body) == (second.id, second.body)


async def test_whatever_a_sink_raises_is_one_failed_attempt_and_a_line_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.sink.outcome = KeyError("odd")
    await stage.carry()
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="again") == 1
    assert lines(caplog, "scheduler.sink.bug") == 1
    assert [each.shown_timeline for each in (await stage.store.digests.claim(0, [("r", 0)], [5], 1)).claims] == []


async def test_a_sink_that_outlives_its_timeout_is_cut_off_and_unavailable(
    open_store: OpenStore, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_FENCE_GRACE_S", 0.2)
    stage = await staged(open_store, redis_url, timeout_ms=100)
    stage.sink.takes_s = 60
    began_s = time.monotonic()
    await stage.carry()
    assert 0.29 < time.monotonic() - began_s < 5
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="unavailable") == 1
    assert stage.post.controller.decision.state is State.BACKOFF
    assert stage.decided == [stage.post]


async def test_a_receiver_that_is_gone_stops_the_sink_and_the_digest_waits_unharmed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.sink.outcome = Outcome(Verdict.GONE, "410")
    await stage.carry()
    assert stage.post.is_stopped
    assert stage.post.room == 0
    assert lines(caplog, "scheduler.sink.stopped") == 1
    assert lines(caplog, "scheduler.digest.failed") == 0
    # Claimed before it stopped: put back without a post, due as it was.
    claim = await stage.claim()
    await stage.carry(claim)
    assert len(stage.sink.parcels) == 1
    assert await stage.schedule() == (claim.due_ms, claim.due_ms)


# -- buried


async def test_a_digest_that_was_refused_three_times_is_dead_with_its_reason(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.sink.outcome = Outcome(Verdict.REFUSED, "400", answer="no")
    for _ in range(3):
        await stage.store.operations.flush("r", "t")
        await stage.carry()
    assert [parcel.attempt for parcel in stage.sink.parcels] == [1, 2, 3]
    (dead,) = await stage.store.dead.page(0, 0)
    assert (dead.details.reason, dead.details.detail, dead.details.attempts) == ("refused", "400: no", 3)
    assert dead.id == stage.sink.parcels[0].id
    assert stage.metrics.value("digests_buried_total", sink="out", reason="refused") == 1
    assert lines(caplog, "scheduler.digest.buried") == 1
    assert stage.metrics.total("digests_stale_total") == 0


async def test_a_digest_that_is_too_old_is_dead_without_another_post(open_store: OpenStore, redis_url: str) -> None:
    stage = await staged(open_store, redis_url, max_age_ms=50)
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500")
    await stage.carry()
    await asyncio.sleep(0.06)
    await stage.store.operations.flush("r", "t")
    await stage.carry()
    assert len(stage.sink.parcels) == 1
    (dead,) = await stage.store.dead.page(0, 0)
    assert (dead.details.reason, dead.details.detail, dead.details.attempts) == ("too-old", "", 1)


# -- what speaks for the sink


async def test_what_was_not_sent_says_nothing_of_the_sink_but_that_the_probe_is_lost(stage: Stage) -> None:
    controller = stage.post.controller
    controller.failed(controller.decision.epoch, 0.0)
    wake_at_s = controller.decision.wake_at_s
    assert wake_at_s is not None
    controller.tick(wake_at_s)
    assert controller.decision.state is State.PROBING
    assert stage.post.is_probing
    claim, epoch = await stage.claim(), controller.decision.epoch
    controller.began(epoch, wake_at_s, wake_at_s + 60)
    await stage.store.operations.delete("r", "t")
    await stage.carry(claim)
    assert stage.sink.parcels == []
    assert controller.decision.state is State.PROBING
    assert controller.decision.epoch != epoch
    assert stage.decided == [stage.post]


async def test_an_empty_timeline_is_forgotten_and_nothing_is_told_of_it(stage: Stage) -> None:
    await stage.carry()
    await stage.store.operations.flush("r", "t")
    await stage.carry()
    assert len(stage.sink.parcels) == 1
    assert stage.metrics.total("digests_stale_total") == 0
    assert (await stage.store.operations.counts("r")).timelines == 0


# -- Redis fails


def failing(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[float]:
    """So many calls of it fail. Returns when each call was made."""
    called_s: list[float] = []
    real = getattr(Digests, name)

    async def call(digests: Digests, *arguments: Any) -> Any:
        called_s.append(time.monotonic())
        if len(called_s) <= times:
            raise StoreError("redis-timeout", "as told")
        return await real(digests, *arguments)

    monkeypatch.setattr(Digests, name, call)
    return called_s


@pytest.mark.parametrize("name", ["open", "page", "close_digest"])
async def test_what_redis_does_not_do_is_asked_again_after_a_pause_and_sent_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    called_s = failing(monkeypatch, name, 2)
    claim = await stage.claim()
    stage.windows.clear()
    await stage.carry(claim)
    assert len(stage.sink.parcels) == 1
    assert (await stage.store.operations.ledger("r"))["delivered"] == 2
    assert len(called_s) == 3
    assert [(low, round(high, 3)) for low, high in stage.windows] == [(0.1, 0.3)] * 2
    assert min(called_s[1] - called_s[0], called_s[2] - called_s[1]) > 0.09
    assert stage.metrics.total("store_errors_total") == 0


async def test_what_redis_does_not_do_within_the_lease_is_left_to_the_next_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called_s = failing(monkeypatch, "open", 1000)
    began_s = time.monotonic()
    await stage.carry(lease_ms=450)
    assert 2 <= len(called_s) <= 5
    assert time.monotonic() - began_s < 5
    assert stage.metrics.value("store_errors_total", reason="redis-timeout") == 1
    assert lines(caplog, "scheduler.digest.left") == 1
    assert stage.sink.parcels == []


async def test_a_lease_too_short_for_a_send_is_renewed_and_one_that_is_lost_ends_the_work(
    open_store: OpenStore, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await staged(open_store, redis_url, timeout_ms=LEASE_MS + 1000)
    renewed: list[Answer] = []
    renew = Digests.renew

    async def watched(digests: Digests, claim: Claim, lease_ms: int) -> Answer:
        renewed.append(await renew(digests, claim, lease_ms))
        if len(renewed) == 2:
            await stage.store.operations.delete("r", "t")
        return renewed[-1] if len(renewed) < 2 else Answer.STALE

    monkeypatch.setattr(Digests, "renew", watched)
    await stage.carry()
    assert renewed == [Answer.DONE] * 2
    assert stage.sink.parcels == []
    assert stage.metrics.value("digests_stale_total", route="r") == 1


async def test_a_bug_is_fenced_said_and_harms_nobody_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("nsqdigest.delivery.digest.Builder", broken)
    await stage.carry()
    assert lines(caplog, "scheduler.digest.bug") == 1
    assert stage.post.controller.decision.state is State.FLOWING
