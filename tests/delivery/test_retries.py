"""Digests that are sent again: frozen, merged with newer records, revived from the dead."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import redis

from nsqdigest.audit.ledger import balances
from nsqdigest.backoff import Controller, Curve, State
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.log import LogSinkSettings
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.dead import Dead, Revival
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.store import Store
from support import settings as usual
from support.settings import ROUTE
from support.store import Scripts, inconsistencies
from support.stores import OpenStore, add, open_store, rec
from support.waiting import until

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
POLICY = replace(usual.POLICY, minimum_delay_ms=0, maximum_delay_ms=0)
SINK = replace(usual.SINK, max_age_ms=3_600_000, retry_base_ms=10, retry_cap_ms=10)
Meanwhile = Callable[[], Awaitable[Any]]


class ScriptedSink:
    """Returns with what it is told to, and accepts after that; something may happen before its first answers."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []
        self.meanwhile: list[Meanwhile] = []
        self.sent: list[OutgoingDigest] = []

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.sent.append(digest)
        if self.meanwhile:
            await self.meanwhile.pop(0)()
        return Outcome(self.verdicts.pop(0) if self.verdicts else Verdict.DELIVERED, "said the test")

    async def close(self) -> None:
        pass

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(digest.body)["data"] for digest in self.sent]

    @property
    def told(self) -> list[tuple[int, list[str]]]:
        """Attempt and keys of each digest."""
        return [
            (digest.attempt, sorted(record["key"] for record in body["records"]))
            for digest, body in zip(self.sent, self.bodies, strict=True)
        ]


@pytest.fixture
def sink() -> ScriptedSink:
    return ScriptedSink()


@pytest.fixture
def settings() -> LogSinkSettings:
    return SINK


@pytest.fixture
def merges() -> bool:
    return False


@pytest.fixture
async def store(open_store: OpenStore, redis_url: str, merges: bool) -> Store:
    store = open_store(redis_url, [StoreRoute("r", 100, 0, 60_000, merges=merges)])
    await store.start()
    return store


@pytest.fixture
async def scheduler(store: Store, sink: ScriptedSink, settings: LogSinkSettings) -> AsyncIterator[Scheduler]:
    def uniform(low: float, high: float) -> float:
        return low

    outlet = Outlet(settings, sink, Controller(8, Curve(1.0, 10.0, jitter="none"), uniform))
    routes = {"r": DeliveryRoute(ROUTE, Plan(POLICY), outlet)}
    scheduler = Scheduler(
        SchedulerSettings(interval_ms=20, lease_ms=60_000, batch=100), routes, store, Metrics(), uniform
    )
    yield scheduler
    await scheduler.drain(time.monotonic() + 5)


@pytest.fixture
def plain(redis_client: redis.Redis) -> Scripts:
    return Scripts(redis_client)


async def counters(store: Store) -> dict[str, int]:
    ledger = await store.operations.ledger("r")
    assert balances(ledger)
    return {field: value for field, value in ledger.items() if value}


async def delivered(store: Store, records: int) -> None:
    async def is_so() -> bool:
        return (await counters(store)).get("delivered", 0) == records

    await until(is_so)


async def the_dead_one(store: Store) -> Dead:
    async def dead() -> list[Dead]:
        return await store.dead.page(0, 0)

    (found,) = await until(dead)
    return found


# -- frozen


async def test_a_digest_sent_again_is_the_same_and_newer_records_follow(
    scheduler: Scheduler, store: Store, sink: ScriptedSink
) -> None:
    sink.verdicts = [Verdict.AGAIN]
    sink.meanwhile = [partial(add, store, rec(b"newer"))]
    await add(store, rec(b"first"))
    scheduler.start()
    await delivered(store, 2)
    assert sink.told == [(1, ["first"]), (2, ["first"]), (1, ["newer"])]
    first, again, following = sink.sent
    assert (again.id, again.body) == (first.id, first.body)
    assert following.id != first.id


# -- merged


class TestMerged:
    @pytest.fixture
    def merges(self) -> bool:
        return True

    async def test_the_union_goes_out_under_a_new_id(
        self, scheduler: Scheduler, store: Store, sink: ScriptedSink
    ) -> None:
        sink.verdicts = [Verdict.AGAIN]
        sink.meanwhile = [partial(add, store, rec(b"newer"), rec(b"first", 9))]
        await add(store, rec(b"first"))
        scheduler.start()
        await delivered(store, 2)
        assert sink.told == [(1, ["first"]), (1, ["first", "newer"])]
        first, union = sink.bodies
        assert union["id"] != first["id"]
        assert (union["iteration"], union["superseded"], union["total"]) == (1, 1, 2)
        assert await counters(store) == {"added": 3, "superseded": 1, "delivered": 2}

    async def test_without_newer_records_it_is_the_same_digest(
        self, scheduler: Scheduler, store: Store, sink: ScriptedSink
    ) -> None:
        sink.verdicts = [Verdict.AGAIN]
        await add(store)
        scheduler.start()
        await delivered(store, 1)
        assert [digest.attempt for digest in sink.sent] == [1, 2]
        assert sink.sent[0].body == sink.sent[1].body

    @pytest.fixture
    def settings(self, request: pytest.FixtureRequest) -> LogSinkSettings:
        return replace(SINK, **getattr(request, "param", {}))

    @pytest.mark.parametrize("settings", [{"max_attempts": 3}], indirect=True)
    async def test_there_are_not_more_tries_because_it_merges(
        self, scheduler: Scheduler, store: Store, sink: ScriptedSink
    ) -> None:
        sink.verdicts = [Verdict.AGAIN] * 9
        sink.meanwhile = [partial(add, store, rec(b"%d" % n)) for n in (1, 2)]
        await add(store, rec(b"0"))
        scheduler.start()
        dead = await the_dead_one(store)
        assert (dead.details.reason, dead.details.head.total) == ("too-many-attempts", 3)
        assert sink.told == [(1, ["0"]), (1, ["0", "1"]), (1, ["0", "1", "2"])]

    @pytest.mark.parametrize("settings", [{"max_age_ms": 150}], indirect=True)
    async def test_its_age_counts_from_the_first_open(
        self, scheduler: Scheduler, store: Store, sink: ScriptedSink
    ) -> None:
        sink.verdicts = [Verdict.AGAIN] * 1000
        sink.meanwhile = [partial(add, store, rec(b"%d" % n)) for n in range(1000)]
        await add(store, rec(b"first"))
        scheduler.start()
        assert (await the_dead_one(store)).details.reason == "too-old"

    async def test_merged_into_one_another_they_are_one_digest_to_the_health_of_the_sink(
        self, scheduler: Scheduler, store: Store, sink: ScriptedSink
    ) -> None:
        sink.verdicts = [Verdict.AGAIN] * 5
        sink.meanwhile = [partial(add, store, rec(b"%d" % n)) for n in range(5)]
        await add(store, rec(b"first"))
        scheduler.start()
        await delivered(store, 6)
        assert len({digest.id for digest in sink.sent}) == 6
        assert scheduler.outlets[0].controller.decision.state is State.FLOWING


# -- revived


async def test_a_revived_digest_is_sent_with_the_bytes_it_had(
    scheduler: Scheduler, store: Store, sink: ScriptedSink, plain: Scripts
) -> None:
    sink.verdicts = [Verdict.REFUSED] * 3
    await add(store, rec(b"k", 1), rec(b"l", 2))
    scheduler.start()
    dead = await the_dead_one(store)
    # Its timeline goes on meanwhile.
    await add(store, rec(b"k", 3))
    await delivered(store, 1)
    assert await store.dead.revive(dead) is Revival.REVIVED
    await delivered(store, 3)
    refused, *_, following, revived = sink.sent
    assert (revived.id, revived.body, revived.timeline) == (refused.id, refused.body, "t")
    assert (revived.attempt, following.attempt) == (4, 1)
    await until(lambda: plain.timeline_count() == 0)
    assert await counters(store) == {"added": 3, "delivered": 3}
    assert inconsistencies(plain.tag, plain.contents()) == []
    assert not [name for name in plain.contents() if b"\x01" in name]


async def test_a_revived_digest_that_is_refused_again_is_dead_again(
    scheduler: Scheduler, store: Store, sink: ScriptedSink, plain: Scripts
) -> None:
    sink.verdicts = [Verdict.REFUSED] * 6
    await add(store)
    scheduler.start()
    dead = await the_dead_one(store)
    await store.dead.revive(dead)
    await until(lambda: len(sink.sent) == 6)
    again = await the_dead_one(store)
    head = again.details.head
    # Its age and its tries begin anew; all that its receiver sees stays.
    assert head._replace(since_ms=0, tries=0) == dead.details.head._replace(since_ms=0, tries=0, attempts=6)
    assert again.details._replace(head=head) == dead.details._replace(head=head)
    assert len({digest.body for digest in sink.sent}) == 1
    assert await counters(store) == {"added": 1, "buried": 1}
    await until(lambda: plain.timeline_count() == 0)


async def test_the_age_of_a_revived_digest_counts_from_its_revival(
    scheduler: Scheduler, store: Store, sink: ScriptedSink, plain: Scripts
) -> None:
    sink.verdicts = [Verdict.REFUSED] * 3
    await add(store)
    scheduler.start()
    dead = await the_dead_one(store)
    head = dead.details.head
    old = head._replace(opened_ms=head.opened_ms - 2 * SINK.max_age_ms, since_ms=head.since_ms - 2 * SINK.max_age_ms)
    details = dead.details._replace(head=old)
    plain.command("HSET", plain.key("dead:details"), dead.id, details.encode())
    await store.dead.revive(dead._replace(details=details))
    await delivered(store, 1)
