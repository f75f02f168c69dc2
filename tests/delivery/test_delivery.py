"""Delivery against real Redis, without its timers and with them: what must hold of a digest from claim to end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import redis

from nsqdigest.backoff import Controller, Curve, State
from nsqdigest.base.errors import StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery import opener
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.log import LogSinkSettings
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.answers import Claim
from nsqdigest.store.digests import READ_WHOLE_RECORDS, Digests
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.resp import Command
from nsqdigest.store.store import Store
from support.delivering import Delivering, ToldSink
from support.settings import POLICY, ROUTE, SINK
from support.store import Scripts
from support.stores import OpenStore, add, open_store, rec
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
LEASE_MS = 3000
TIMEOUT_MS = 1800
LATER = replace(POLICY, immediate=False, minimum_delay_ms=60_000, maximum_delay_ms=90_000)


class Sent(NamedTuple):
    digest: OutgoingDigest
    lease_left_ms: int


class LeaseReadingSink:
    """Accepts all, unless told otherwise, and keeps with each digest how much of its lease Redis had left."""

    def __init__(self, plain: Scripts) -> None:
        self._plain = plain
        self.sent: list[Sent] = []
        self.verdict = Verdict.DELIVERED

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.sent.append(Sent(digest, lease_left_ms(self._plain, digest.timeline)))
        return Outcome(self.verdict)

    async def close(self) -> None:
        pass


def lease_left_ms(plain: Scripts, timeline: str) -> int:
    seconds, microseconds = plain.command("TIME")
    return plain.leased().get(timeline.encode(), 0) - (int(seconds) * 1000 + int(microseconds) // 1000)


@pytest.fixture
def plain(redis_client: redis.Redis) -> Scripts:
    return Scripts(redis_client)


@pytest.fixture
def sink(plain: Scripts) -> LeaseReadingSink:
    return LeaseReadingSink(plain)


@pytest.fixture
async def store(open_store: OpenStore, redis_url: str) -> Store:
    store = open_store(redis_url, [StoreRoute("r", 100, 0, 60_000)])
    await store.start()
    return store


def scheduler_of(
    store: Store, sink: LeaseReadingSink, metrics: Metrics, settings: LogSinkSettings = SINK, lease_ms: int = 60_000
) -> Scheduler:
    outlet = Outlet(settings, sink, Controller(8, Curve(1.0, 10.0, jitter="none"), max))
    routes = {"r": DeliveryRoute(ROUTE, Plan(POLICY), outlet)}
    return Scheduler(SchedulerSettings(interval_ms=20, lease_ms=lease_ms, batch=100), routes, store, metrics, min)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def scheduler(store: Store, sink: LeaseReadingSink, metrics: Metrics) -> AsyncIterator[Scheduler]:
    scheduler = scheduler_of(store, sink, metrics)
    yield scheduler
    await scheduler.drain(time.monotonic() + 5)


class Stage(Delivering):
    """One digest of a timeline t with two records, claimed by the test."""

    def __init__(self, store: Store, **settings: Any) -> None:
        chosen = {"retry_base_ms": 1000, "retry_cap_ms": 9000, **settings}
        super().__init__(store.digests, store.dead, plan=Plan(LATER), **chosen)
        self.store = store

    async def claim(self) -> Claim:
        (claim,) = (await self.store.digests.claim(0, [("r", 0)], [5], self.lease_ms)).claims
        return claim

    async def go(self, claim: Claim | None = None, lease_ms: int | None = None) -> None:
        await self.opener.open(0, self.deliveries([claim or await self.claim()], lease_ms))
        await self.quiet()

    async def schedule(self) -> tuple[int, int]:
        """Base and bound of the timeline."""
        (packed,) = await self.store.namespace.send(0, [[b"HGET", b"{test:0}:schedule:r", b"t"]])
        return int.from_bytes(packed[:8], "big"), int.from_bytes(packed[8:16], "big")


MakeStage = Callable[..., Awaitable[Stage]]


@pytest.fixture
async def make(store: Store) -> AsyncIterator[MakeStage]:
    made: list[Stage] = []

    async def stage(**settings: Any) -> Stage:
        await add(store, rec(b"k", 7, b'{"a":1}'), rec(b"l", 8))
        made.append(Stage(store, **settings))
        return made[-1]

    yield stage
    for each in made:
        each.sink.may_answer.set()
        await each.stop()


@pytest.fixture
async def stage(make: MakeStage) -> Stage:
    return await make()


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "nsqdigest")
    return caplog


def lines(caplog: pytest.LogCaptureFixture, event: str) -> int:
    return [record.getMessage() for record in caplog.records].count(event)


# -- delivered


async def test_a_delivered_digest_is_closed_and_the_next_waits_from_now_on(stage: Stage) -> None:
    stage.sink.takes_s = 0.2
    before_ms = stage.store.clock.now_ms()
    await stage.go()
    (digest,) = stage.sink.sent
    assert (digest.route, digest.timeline, digest.attempt, digest.records) == ("r", "t", 1, 2)
    assert (await stage.store.operations.ledger("r"))["delivered"] == 2
    assert stage.metrics.total("digests_stale_total") == 0
    base_ms, bound_ms = await stage.schedule()
    assert base_ms >= before_ms + 60_190
    assert bound_ms == base_ms + 30_000


@pytest.mark.parametrize(("max_attempts", "verdict"), [(0, Verdict.DELIVERED), (1, Verdict.REFUSED)])
async def test_a_digest_whose_timeline_was_deleted_meanwhile_counts_as_stale_and_nothing_else(
    make: MakeStage, caplog: pytest.LogCaptureFixture, max_attempts: int, verdict: Verdict
) -> None:
    stage = await make(max_attempts=max_attempts)
    stage.sink.outcome = Outcome(verdict, "as told")
    stage.sink.before = lambda: stage.store.operations.delete("r", "t")
    await stage.go()
    assert stage.metrics.value("digests_stale_total", route="r") == 1
    assert stage.metrics.total("digests_delivered_total") == stage.metrics.total("digests_buried_total") == 0
    assert lines(caplog, "scheduler.digest.stale") == 1
    assert lines(caplog, "scheduler.digest.delivered") == lines(caplog, "scheduler.digest.buried") == 0


# -- failed


@pytest.mark.parametrize("records", [2, READ_WHOLE_RECORDS + 6])
async def test_a_failed_digest_comes_again_as_it_was(make: MakeStage, store: Store, records: int) -> None:
    await add(store, *(rec(b"%d" % number, 10 + number) for number in range(records - 2)))
    stage = await make()
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500")
    now_ms = stage.store.clock.now_ms()
    await stage.go()
    base_ms, bound_ms = await stage.schedule()
    assert now_ms + 1000 <= base_ms == bound_ms < now_ms + 5000
    await add(store, rec(b"newer", 99))
    await stage.store.operations.flush("r", "t")
    stage.sink.outcome = Outcome(Verdict.DELIVERED)
    await stage.go()
    first, second = stage.sink.sent
    assert (first.attempt, second.attempt, second.records) == (1, 2, records)
    assert (first.id, first.body) == (second.id, second.body)


async def test_a_receiver_that_is_gone_leaves_the_digest_due_as_it_was(stage: Stage) -> None:
    stage.sink.outcome = Outcome(Verdict.GONE, "410")
    await stage.go()
    claim = await stage.claim()
    await stage.go(claim)
    assert len(stage.sink.sent) == 1
    assert await stage.schedule() == (claim.due_ms, claim.due_ms)


# -- buried


async def test_a_digest_that_was_refused_three_times_is_dead_with_its_reason(stage: Stage) -> None:
    stage.sink.outcome = Outcome(Verdict.REFUSED, "400 Bad Request", 400, answer="no")
    for _ in range(3):
        await stage.store.operations.flush("r", "t")
        await stage.go()
    assert [digest.attempt for digest in stage.sink.sent] == [1, 2, 3]
    (dead,) = await stage.store.dead.page(0, 0)
    assert (dead.details.reason, dead.details.head.attempts) == ("refused", 3)
    assert dead.details[-3:] == ("400 Bad Request", "no", 400)
    assert dead.id == stage.sink.sent[0].id
    assert stage.metrics.value("digests_buried_total", sink="out", reason="refused") == 1
    assert stage.metrics.total("digests_stale_total") == 0


async def test_a_digest_that_is_too_old_is_dead_without_another_post(
    make: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await make(max_age_ms=60_000)
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500")
    await stage.go()
    await stage.store.operations.flush("r", "t")
    now_ms = Digests.now_ms
    monkeypatch.setattr(Digests, "now_ms", lambda digests: now_ms(digests) + 3_600_000)
    await stage.go()
    assert len(stage.sink.sent) == 1
    (dead,) = await stage.store.dead.page(0, 0)
    assert (dead.details.reason, dead.details.cause, dead.details.head.attempts) == ("too-old", "", 1)


@pytest.mark.parametrize(
    ("sink_says", "max_attempts", "posts"), [(Verdict.AGAIN, 4, 4), (Verdict.REFUSED, 0, 3), (Verdict.REFUSED, 1, 1)]
)
async def test_a_digest_is_buried_after_so_many_posts_each_with_its_number(
    store: Store, sink: LeaseReadingSink, sink_says: Verdict, max_attempts: int, posts: int
) -> None:
    sink.verdict = sink_says
    settings = replace(SINK, max_attempts=max_attempts, retry_base_ms=1, retry_cap_ms=1)
    scheduler = scheduler_of(store, sink, Metrics(), settings)
    await add(store)
    scheduler.start()
    (dead,) = await until(lambda: store.dead.page(0, 0))
    await scheduler.drain(time.monotonic() + 5)
    assert [digest.attempt for digest, _ in sink.sent] == list(range(1, posts + 1))
    assert dead.details.head.attempts == posts


async def test_what_a_full_dead_store_drops_is_counted_and_logged(
    open_store: OpenStore, redis_url: str, sink: LeaseReadingSink, metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(redis_url, [StoreRoute("r", 100, 0, 60_000)], dead_digests=1)
    await store.start()
    sink.verdict = Verdict.REFUSED
    scheduler = scheduler_of(store, sink, metrics, replace(SINK, max_attempts=1))
    for name in (b"a", b"b", b"c"):
        await add(store, rec(timeline=name))
    scheduler.start()
    await until(lambda: metrics.total("dead_digests_dropped_total") == 2)
    await scheduler.drain(time.monotonic() + 5)
    assert len(await store.dead.page(0, 0)) == 1
    ledger = await store.operations.ledger("r")
    assert (ledger["buried"], ledger["deleted"]) == (1, 2)
    assert lines(caplog, "scheduler.dead.dropped") >= 1


# -- what speaks for the sink


async def test_what_was_not_sent_says_nothing_of_the_sink_but_that_the_probe_is_lost(stage: Stage) -> None:
    controller = stage.outlet.controller
    controller.failed(controller.decision.epoch, 0.0)
    wake_at_s = controller.decision.wake_at_s
    assert wake_at_s is not None
    controller.tick(wake_at_s)
    assert stage.outlet.is_probing
    claim, epoch = await stage.claim(), controller.decision.epoch
    controller.began(epoch, wake_at_s, wake_at_s + 60)
    await stage.store.operations.delete("r", "t")
    await stage.go(claim)
    assert stage.sink.sent == []
    assert controller.decision.state is State.PROBING
    assert controller.decision.epoch != epoch
    assert stage.decided == ["out"]


async def test_an_empty_timeline_is_forgotten_and_nothing_is_counted(stage: Stage) -> None:
    await stage.go()
    await stage.store.operations.flush("r", "t")
    await stage.go()
    assert len(stage.sink.sent) == 1
    assert stage.metrics.total("digests_stale_total") == 0
    assert (await stage.store.operations.counts("r")).timelines == 0


# -- Redis fails


def failing(monkeypatch: pytest.MonkeyPatch, name: str, times: int, *, is_done: bool = False) -> list[float]:
    """So many calls of it fail, before or after Redis did them. Returns when each call was made."""
    called_s: list[float] = []
    real = getattr(Digests, name)

    async def call(digests: Digests, *arguments: Any) -> Any:
        called_s.append(time.monotonic())
        answer = await real(digests, *arguments) if is_done or len(called_s) > times else None
        if len(called_s) <= times:
            raise StoreError("redis-timeout", "as told")
        return answer

    monkeypatch.setattr(Digests, name, call)
    return called_s


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("name", ["open", "read", "finish"])
async def test_what_redis_does_not_answer_is_asked_again_after_a_pause_and_sent_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str, is_done: bool
) -> None:
    called_s = failing(monkeypatch, name, 2, is_done=is_done)
    await stage.go()
    assert [digest.attempt for digest in stage.sink.sent] == [1]
    assert (await stage.store.operations.ledger("r"))["delivered"] == 2
    assert len(called_s) == 3
    assert min(called_s[1] - called_s[0], called_s[2] - called_s[1]) > 0.09
    assert stage.metrics.total("store_errors_total") == stage.metrics.total("digests_stale_total") == 0
    assert stage.metrics.total("digests_delivered_total") == stage.metrics.total("digest_attempts_total") == 1


@pytest.mark.parametrize("verdict", [Verdict.AGAIN, Verdict.REFUSED])
async def test_an_end_whose_answer_was_lost_is_counted_once(
    make: MakeStage, monkeypatch: pytest.MonkeyPatch, verdict: Verdict
) -> None:
    stage = await make(max_attempts=1 if verdict is Verdict.REFUSED else 0)
    failing(monkeypatch, "finish", 1, is_done=True)
    stage.sink.outcome = Outcome(verdict, "as told")
    await stage.go()
    assert stage.metrics.total("digest_attempts_total") == 1
    assert stage.metrics.total("digests_stale_total") == 0
    assert stage.metrics.total("digests_buried_total") == (verdict is Verdict.REFUSED)
    if verdict is Verdict.AGAIN:
        await stage.store.operations.flush("r", "t")
        await stage.go()
        assert [digest.attempt for digest in stage.sink.sent] == [1, 2]


async def test_lost_answers_of_an_open_are_no_attempts(
    store: Store, sink: LeaseReadingSink, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted there, three of them would bury a digest of three attempts without one post."""
    called_s = failing(monkeypatch, "open", 3, is_done=True)
    scheduler = scheduler_of(store, sink, metrics, replace(SINK, max_attempts=3))
    await add(store)
    scheduler.start()
    await until(lambda: sink.sent)
    await scheduler.drain(time.monotonic() + 5)
    assert [digest.attempt for digest, _ in sink.sent] == [1]
    assert len(called_s) == 4
    assert await store.dead.page(0, 0) == []


async def test_what_redis_does_not_do_within_the_lease_is_left_to_the_next_one(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    called_s = failing(monkeypatch, "open", 1000)
    async with asyncio.timeout(PATIENCE_S):
        await stage.go(lease_ms=1_500)
    assert 2 <= len(called_s) <= 15
    assert stage.metrics.value("store_errors_total", reason="redis-timeout") == 1
    assert lines(caplog, "scheduler.digest.left") == 1
    assert stage.sink.sent == []


async def test_a_digest_leaves_only_when_its_open_is_durable(
    open_store: OpenStore, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis has no replica here, so no open is ever confirmed: nothing goes out. Nothing else waits for one."""
    store = open_store(redis_url, [StoreRoute("r", 100, 0, 60_000)], durability="replica", replicas=1, timeout_ms=300)
    await store.start()
    asked: list[tuple[str, bool]] = []
    run = store.namespace.run

    async def watched(partition: int, script: str, *arguments: Any, durable: bool = False) -> Any:
        asked.append((script, durable))
        return await run(partition, script, *arguments, durable=durable)

    monkeypatch.setattr(store.namespace, "run", watched)
    with pytest.raises(StoreError, match="redis-replicas"):
        await add(store)
    stage = Stage(store)
    async with asyncio.timeout(PATIENCE_S):
        await stage.go(lease_ms=700)
    assert stage.sink.sent == []
    assert ("open", True) in asked
    assert ("claim", False) in asked
    assert stage.metrics.value("store_errors_total", reason="redis-replicas") == 1
    await stage.stop()


# -- leases


async def test_a_lease_too_short_for_a_send_is_renewed_and_one_that_is_lost_ends_the_work(make: MakeStage) -> None:
    stage = await make(timeout_ms=61_000)
    await stage.go()
    assert len(stage.sink.sent) == 1
    await add(stage.store)
    await stage.store.operations.flush("r", "t")
    claim = await stage.claim()
    (delivery,) = stage.deliveries([claim])
    opened = await stage.opener._opened(0, [delivery])
    assert opened == [delivery]
    await stage.store.operations.delete("r", "t")
    delivery.body = b"{}"
    stage.outlet.put([delivery])
    await stage.quiet()
    assert len(stage.sink.sent) == 1
    assert stage.metrics.value("digests_stale_total", route="r") == 1


async def test_no_send_begins_with_less_lease_left_in_redis_than_the_sinks_timeout(
    store: Store, sink: LeaseReadingSink, plain: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several digests of one claim are read slowly. That the one renewed its lease is of no use to the others."""
    read, names = Digests.read, ["a", "b", "c"]

    async def slow_read(digests: Digests, *arguments: Any) -> object:
        records = await read(digests, *arguments)
        await until(lambda: min(lease_left_ms(plain, name) for name in names) < TIMEOUT_MS)
        return records

    monkeypatch.setattr(Digests, "read", slow_read)
    scheduler = scheduler_of(store, sink, Metrics(), replace(SINK, timeout_ms=TIMEOUT_MS), LEASE_MS)
    await add(store, *(rec(timeline=name.encode()) for name in names))
    scheduler.start()
    await until(lambda: len(sink.sent) == 3)
    await scheduler.drain(time.monotonic() + 5)
    assert sorted(digest.timeline for digest, _ in sink.sent) == names
    assert min(left_ms for _, left_ms in sink.sent) >= TIMEOUT_MS


# -- one id, one body


def before_values(monkeypatch: pytest.MonkeyPatch, then: Callable[[], Awaitable[object]]) -> list[object]:
    """Lets something happen once, after the index of a page was read and before its values are. Returns what is still
    to happen."""
    exchange, rest = Node.exchange, list[Any]([then])

    async def with_it(node: Node, commands: Sequence[Command]) -> list[Any]:
        if rest and commands[0][0] == b"HMGET" and b":digest-values:" in bytes(commands[0][1]):  # type: ignore[arg-type]
            await rest.pop()()
        return await exchange(node, commands)

    monkeypatch.setattr(Node, "exchange", with_it)
    return rest


def before_read(monkeypatch: pytest.MonkeyPatch, then: Callable[[], Awaitable[object]]) -> list[object]:
    """Lets something happen once, between the open and the read."""
    read, rest = Digests.read, list[Any]([then])

    async def with_it(digests: Digests, *arguments: Any) -> Any:
        if rest:
            await rest.pop()()
        return await read(digests, *arguments)

    monkeypatch.setattr(Digests, "read", with_it)
    return rest


@pytest.mark.parametrize("records", [3, READ_WHOLE_RECORDS + 1])
@pytest.mark.parametrize("what", ["deleted", "adopted"])
async def test_a_digest_whose_timeline_goes_while_it_is_read_is_not_sent(
    *,
    store: Store,
    sink: LeaseReadingSink,
    scheduler: Scheduler,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    records: int,
) -> None:
    """Else the receiver would get a second body under its id, without records."""

    async def goes() -> None:
        if what == "deleted":
            assert await store.operations.delete("r", "t") == records
        else:
            assert (await store.operations.adopt_some(0, "r", "s", 100)).records == records

    rest = (before_read if records == 3 else before_values)(monkeypatch, goes)
    await add(store, *(rec(b"%d" % number) for number in range(records)))
    scheduler.start()
    await until(lambda: not rest and scheduler.outlets[0].held == 0)
    assert sink.sent == []


@pytest.mark.parametrize("records", [2, READ_WHOLE_RECORDS + 1])
async def test_a_digest_of_which_redis_lost_every_value_is_buried_and_not_sent_empty(
    *,
    store: Store,
    sink: LeaseReadingSink,
    scheduler: Scheduler,
    plain: Scripts,
    monkeypatch: pytest.MonkeyPatch,
    records: int,
) -> None:
    async def lost() -> None:
        plain.command("DEL", plain.key("digest-values", "r", b"t"))

    (before_read if records == 2 else before_values)(monkeypatch, lost)
    await add(store, *(rec(b"%d" % number) for number in range(records)))
    scheduler.start()
    (dead,) = await until(lambda: store.dead.page(0, 0))
    assert (dead.details.reason, dead.details.head.total, sink.sent) == ("values-lost", records, [])


async def test_a_digest_of_which_redis_lost_the_snapshot_is_not_sent_and_its_neighbours_are(
    store: Store, scheduler: Scheduler, sink: LeaseReadingSink, plain: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost() -> None:
        plain.command("DEL", plain.key("digest", "r", b"b"))

    before_read(monkeypatch, lost)
    await add(store, *(rec(timeline=name) for name in (b"a", b"b", b"c")))
    scheduler.start()
    await until(lambda: len(sink.sent) == 2 and scheduler.outlets[0].held == 0)
    assert sorted(digest.timeline for digest, _ in sink.sent) == ["a", "c"]


# -- foreign and own mistakes


async def test_a_bug_is_fenced_logged_and_harms_nobody_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(opener, "builder_of", broken)
    await stage.go()
    assert lines(caplog, "scheduler.digest.bug") == 1
    assert stage.outlet.controller.decision.state is State.FLOWING
    assert stage.outlet.held == 0
    assert isinstance(stage.sink, ToldSink)
