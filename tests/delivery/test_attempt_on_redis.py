"""courier.py against real Redis: what must hold of one digest from its claim to its send."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import redis

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.errors import StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.log import LogSink
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.answers import Claim, Opened
from nsqdigest.store.digests import Digests
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.resp import Command
from nsqdigest.store.store import Store
from support.settings import POLICY, ROUTE, SINK
from support.store import Scripts
from support.stores import OpenStore, add, open_store, rec
from support.waiting import until

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
LEASE_MS = 1000
TIMEOUT_MS = 600


class Sent(NamedTuple):
    parcel: OutgoingDigest
    lease_left_ms: int


class LeaseReadingSink:
    """Accepts all, unless told otherwise, and keeps with each digest how much of its lease Redis had left."""

    def __init__(self, plain: Scripts) -> None:
        self._plain = plain
        self.sent: list[Sent] = []
        self.verdict = Verdict.DELIVERED

    async def deliver(self, parcel: OutgoingDigest) -> Outcome:
        self.sent.append(Sent(parcel, lease_left_ms(self._plain, parcel.timeline)))
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
    store: Store, sink: LeaseReadingSink, metrics: Metrics, settings: LogSink = SINK, lease_ms: int = 60_000
) -> Scheduler:
    post = Outlet(settings, sink, Controller(8, Curve(1.0, 10.0, jitter="none"), max))
    routes = {"r": DeliveryRoute(ROUTE, Plan(POLICY), post)}
    return Scheduler(SchedulerSettings(interval_ms=20, lease_ms=lease_ms, batch=100), routes, store, metrics, min)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def scheduler(store: Store, sink: LeaseReadingSink, metrics: Metrics) -> AsyncIterator[Scheduler]:
    scheduler = scheduler_of(store, sink, metrics)
    yield scheduler
    await scheduler.drain(time.monotonic() + 5)


def before_values(monkeypatch: pytest.MonkeyPatch, then: Callable[[], Awaitable[object]]) -> list[object]:
    """Lets something happen once, after the index of a page was read and before its values are. Returns what is still
    to happen."""
    exchange, rest = Node.exchange, list[Any]([then])

    async def with_it(node: Node, commands: Sequence[Command]) -> list[Any]:
        if rest and commands[0][0] == b"HMGET":
            await rest.pop()()
        return await exchange(node, commands)

    monkeypatch.setattr(Node, "exchange", with_it)
    return rest


# -- one id, one body


@pytest.mark.parametrize("what", ["deleted", "adopted"])
async def test_a_digest_whose_timeline_goes_while_it_is_read_is_not_sent(
    store: Store, sink: LeaseReadingSink, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Else the receiver would get a second body under its id, without records."""

    async def goes() -> None:
        if what == "deleted":
            assert await store.operations.delete("r", "t") == 3
        else:
            assert (await store.operations.adopt_some(0, "r", "s", 100)).records == 3

    rest = before_values(monkeypatch, goes)
    await add(store, rec(b"a"), rec(b"b"), rec(b"c"))
    scheduler.start()
    await until(lambda: not rest and scheduler.posts[0].active == 0)
    assert sink.sent == []


async def test_a_digest_of_which_redis_lost_every_value_is_buried_and_not_sent_empty(
    store: Store, sink: LeaseReadingSink, scheduler: Scheduler, plain: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost() -> None:
        plain.command("DEL", plain.key("digest-values", "r", b"t"))

    before_values(monkeypatch, lost)
    await add(store, rec(b"a"), rec(b"b"))
    scheduler.start()
    (dead,) = await until(lambda: store.dead.page(0, 0))
    assert (dead.details.reason, dead.details.facts.total, sink.sent) == ("values-lost", 2, [])


# -- attempts


async def test_lost_answers_of_an_open_are_no_attempts(
    store: Store, sink: LeaseReadingSink, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted there, three of them would bury a digest of three attempts without one post."""
    opens, lost = Digests.open, [StoreError("redis-timeout", "said the test") for _ in range(3)]

    async def lossy(digests: Digests, *arguments: Any) -> object:
        answer = await opens(digests, *arguments)
        if lost:
            raise lost.pop()
        return answer

    monkeypatch.setattr(Digests, "open", lossy)
    scheduler = scheduler_of(store, sink, metrics, replace(SINK, max_attempts=3))
    await add(store)
    scheduler.start()
    await until(lambda: sink.sent)
    await scheduler.drain(time.monotonic() + 5)
    assert ([parcel.attempt for parcel, _ in sink.sent], lost) == ([1], [])
    assert await store.dead.page(0, 0) == []


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
    assert [parcel.attempt for parcel, _ in sink.sent] == list(range(1, posts + 1))
    assert dead.details.attempts == posts


# -- leases


async def test_no_send_begins_with_less_lease_left_in_redis_than_the_sinks_timeout(
    store: Store, sink: LeaseReadingSink, plain: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two digests of one claim are read slowly. That the one renewed its lease is of no use to the other."""
    page, renew, renewed = Digests.page, Digests.renew, asyncio.Event()

    async def slow_page(digests: Digests, claim: Claim, opened: Opened, start: int, count: int) -> object:
        records = await page(digests, claim, opened, start, count)
        if claim.timeline == "a":
            await until(lambda: lease_left_ms(plain, "a") < TIMEOUT_MS)  # so that it has to renew
        else:
            await renewed.wait()
            await until(lambda: lease_left_ms(plain, "b") < TIMEOUT_MS - 200)
        return records

    async def told_renew(digests: Digests, claim: Claim, lease_ms: int) -> object:
        answer = await renew(digests, claim, lease_ms)
        renewed.set()
        return answer

    monkeypatch.setattr(Digests, "page", slow_page)
    monkeypatch.setattr(Digests, "renew", told_renew)
    scheduler = scheduler_of(store, sink, Metrics(), replace(SINK, timeout_ms=TIMEOUT_MS), LEASE_MS)
    await add(store, rec(timeline=b"a"), rec(timeline=b"b"))
    scheduler.start()
    await until(lambda: len(sink.sent) == 2)
    await scheduler.drain(time.monotonic() + 5)
    assert {parcel.timeline for parcel, _ in sink.sent} == {"a", "b"}
    assert min(left_ms for _, left_ms in sink.sent) >= TIMEOUT_MS - 100  # a while passes on the way to the sink


# -- the dead store


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
    assert "scheduler.dead.dropped" in [record.getMessage() for record in caplog.records]
