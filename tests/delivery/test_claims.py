"""timer.py and claims.py against real Redis: what they ask of the store, when, for how many, and what they do
about lost answers.

Where the interval is long, only what has to wake the scheduler before it does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from nsqdigest.backoff import Controller, Curve, State
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.answers import Claim, Claimed, Maintained
from nsqdigest.store.digests import Digests
from nsqdigest.store.holds import Holds
from nsqdigest.store.namespace import Namespace
from nsqdigest.store.operations import Operations
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan, Schedule
from nsqdigest.store.store import Store
from nsqdigest.store.upkeep import Upkeep
from support.settings import POLICY, ROUTE, SINK
from support.stores import rec, redis_settings
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

LONG_MS = 600_000


class Asked(NamedTuple):
    at_s: float
    partition: int
    routes: list[str]
    budgets: list[int]
    token: str | None


PLANS = {name: StoreRoute(name, 100, 0, 60_000) for name in ("r", "s")}


class WatchedDigests(Digests):
    """The real ones. They keep what they were asked, and can lose answers or calls."""

    def __init__(self, namespace: Namespace) -> None:
        super().__init__(namespace, PLANS)
        self.claims: list[Asked] = []
        self.taken: list[int] = []
        """By claim."""
        self.asked_again: list[tuple[float, str]] = []
        self.looks = self.looks_fail = 0
        self.claims_fail: list[tuple[Applied, bool]] = []
        """What is known of each, and whether it was done."""

    async def agenda(self, partition: int, within_ms: int) -> dict[str, int]:
        self.looks += 1
        if self.looks_fail:
            self.looks_fail -= 1
            raise StoreError("redis-connection", "as told", Applied.NO)
        return await super().agenda(partition, within_ms)

    async def claim(
        self, partition: int, routes: Sequence[tuple[str, int]], budgets: Sequence[int], lease_ms: int,
        token: str | None = None,
    ) -> Claimed:  # fmt: skip
        self.claims.append(Asked(time.monotonic(), partition, [name for name, _ in routes], list(budgets), token))
        applied, is_done = self.claims_fail.pop(0) if self.claims_fail else (None, True)
        claimed = await super().claim(partition, routes, budgets, lease_ms, token) if is_done else Claimed([], None)
        if applied is not None:
            raise StoreError("redis-timeout", "as told", applied)
        self.taken.append(len(claimed.claims))
        return claimed

    async def claim_again(self, partition: int, routes: Sequence[str], lease_ms: int, token: str) -> list[Claim]:
        self.asked_again.append((time.monotonic(), token))
        return await super().claim_again(partition, routes, lease_ms, token)


class WatchedUpkeep(Upkeep):
    def __init__(self, namespace: Namespace, operations: Operations) -> None:
        super().__init__(namespace, operations, PLANS, Holds(namespace))
        self.maintained_s: list[float] = []

    async def maintain(self, partition: int, routes: Sequence[str], lease_ms: int) -> Maintained:
        self.maintained_s.append(time.monotonic())
        return await super().maintain(partition, routes, lease_ms)


class WatchedStore(Store):
    digests: WatchedDigests
    upkeep: WatchedUpkeep

    def __init__(self, url: str, partitions: int = 1) -> None:
        super().__init__(redis_settings(url, partitions=partitions), PLANS.values(), 10_000)
        self.digests = WatchedDigests(self.namespace)
        self.upkeep = WatchedUpkeep(self.namespace, self.operations)


class ToldSink:
    def __init__(self) -> None:
        self.digests: list[OutgoingDigest] = []
        self.sent_s: list[float] = []
        self.verdicts: list[Verdict] = []
        """Of the next ones; then it accepts all."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.digests.append(digest)
        self.sent_s.append(time.monotonic())
        await self.may_answer.wait()
        return Outcome(self.verdicts.pop(0) if self.verdicts else Verdict.DELIVERED)

    async def close(self) -> None: ...


class Drawing:
    """Draws the lowest, and keeps the windows."""

    def __init__(self) -> None:
        self.windows: list[tuple[float, float]] = []

    def __call__(self, low: float, high: float) -> float:
        self.windows.append((low, high))
        return low


class Stage(NamedTuple):
    store: WatchedStore
    sink: ToldSink
    outlet: Outlet
    metrics: Metrics
    draw: Drawing
    scheduler: Scheduler
    backs: list[float]
    """When it said that Redis was back."""


MakeStage = Callable[..., Any]


@pytest.fixture
async def make(redis_url: str) -> AsyncIterator[MakeStage]:
    made: list[Stage] = []

    async def stage(
        *, interval_ms: int = LONG_MS, lease_ms: int = 60_000, batch: int = 100, limit: int = 8, partitions: int = 1,
        base_s: float = 0.1,
    ) -> Stage:  # fmt: skip
        store, sink, metrics, draw, backs = WatchedStore(redis_url, partitions), ToldSink(), Metrics(), Drawing(), []
        await store.start()
        settings = replace(SINK, retry_base_ms=150, retry_cap_ms=150)
        curve = Curve(base_s, 10.0, jitter="none")
        outlet = Outlet(settings, sink, Controller(limit, curve, lambda low, _: low, slow_start=False))
        routes = {
            name: DeliveryRoute(replace(ROUTE, name=name), Plan(POLICY), outlet) for name in ("r", "s")
        }  # both into one sink
        scheduler = Scheduler(
            SchedulerSettings(interval_ms=interval_ms, lease_ms=lease_ms, batch=batch), routes, store, metrics, draw,
            on_store_back=lambda: backs.append(time.monotonic()),
        )  # fmt: skip
        made.append(Stage(store, sink, outlet, metrics, draw, scheduler, backs))
        return made[-1]

    yield stage
    for each in made:
        each.sink.may_answer.set()
        await each.scheduler.drain(time.monotonic() + 5)
        await each.store.close(5)


async def put(store: Store, *names: bytes, route: str = "r", after_ms: int = 0) -> None:
    at_ms = store.clock.now_ms() + after_ms
    for name in names:
        await store.timelines.add(
            route, store.timelines.partition_of(name), [rec(timeline=name)], Schedule(at_ms, at_ms)
        )


def sent(stage: Stage) -> list[str]:
    return [digest.timeline for digest in stage.sink.digests]


# -- when it wakes


async def test_what_becomes_due_goes_out_at_its_time_however_long_the_interval(make: MakeStage) -> None:
    stage = await make()
    began_s = time.monotonic()
    await put(stage.store, b"now")
    await put(stage.store, b"later", after_ms=300)
    await put(stage.store, b"other", route="s", after_ms=600)
    stage.scheduler.start()
    await until(lambda: sent(stage) == ["now", "later", "other"])
    _, later_s, other_s = (at_s - began_s for at_s in stage.sink.sent_s)
    assert later_s > 0.29
    assert other_s > 0.59


async def test_a_digest_that_failed_goes_out_again_at_its_time_however_long_the_interval(make: MakeStage) -> None:
    stage = await make()
    stage.sink.verdicts = [Verdict.AGAIN]
    await put(stage.store, b"a")
    stage.scheduler.start()
    await until(lambda: len(stage.sink.digests) == 2)
    first_s, second_s = stage.sink.sent_s
    assert second_s - first_s > 0.14
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="again") == 1


async def test_what_found_no_room_goes_out_as_soon_as_there_is_some(make: MakeStage) -> None:
    stage = await make(limit=1)
    stage.sink.may_answer.clear()
    await put(stage.store, b"a", b"b", b"c")
    stage.scheduler.start()
    await until(lambda: len(stage.sink.digests) == 1)
    assert stage.outlet.held == 1
    stage.sink.may_answer.set()
    await until(lambda: len(stage.sink.digests) == 3)
    await until(lambda: stage.outlet.held == stage.outlet.reserved == 0)


async def test_a_sink_that_is_down_is_tried_when_its_backoff_ends_however_long_the_interval(make: MakeStage) -> None:
    stage = await make(base_s=0.2)
    stage.sink.verdicts = [Verdict.UNAVAILABLE]
    await put(stage.store, b"a", b"b")
    stage.scheduler.start()
    await until(lambda: stage.outlet.controller.decision.state is State.FLOWING and len(set(sent(stage))) == 2)
    assert stage.sink.sent_s[-1] - stage.sink.sent_s[0] > 0.19


# -- what it asks for


async def test_no_more_is_asked_for_than_a_partitions_share_of_the_room_and_a_batch(make: MakeStage) -> None:
    stage = await make(limit=10, partitions=4, batch=2)
    stage.scheduler.start()
    await until(lambda: len({asked.partition for asked in stage.store.digests.claims}) == 4)
    assert max(asked.budgets for asked in stage.store.digests.claims) == stage.store.digests.claims[0].budgets == [2]
    other = await make(limit=10, partitions=4)
    other.scheduler.start()
    await until(lambda: len({asked.partition for asked in other.store.digests.claims}) == 4)
    assert max(asked.budgets for asked in other.store.digests.claims) == other.store.digests.claims[0].budgets == [3]


async def test_two_routes_share_their_sinks_room_and_each_comes_first_in_turn(make: MakeStage) -> None:
    stage = await make(limit=1, interval_ms=20)
    await put(stage.store, *(b"r%d" % number for number in range(4)))
    await put(stage.store, *(b"s%d" % number for number in range(4)), route="s")
    stage.scheduler.start()
    await until(lambda: len(stage.sink.digests) == 8)
    assert stage.scheduler.outlets == [stage.outlet]
    assert {digest.route for digest in stage.sink.digests[:3]} == {"r", "s"}
    firsts = [asked.routes[0] for asked in stage.store.digests.claims if len(asked.routes) == 2]
    assert len(firsts) >= 2
    assert all(one != other for one, other in pairwise(firsts))


async def test_all_routes_are_asked_for_once_in_a_lease_and_else_those_that_have_something(make: MakeStage) -> None:
    stage = await make(interval_ms=20)
    stage.scheduler.start()
    await put(stage.store, b"a")
    await until(lambda: len(stage.sink.digests) == 1)
    await put(stage.store, b"b", route="s")
    await until(lambda: len(stage.sink.digests) == 2)
    looks = [asked.routes for asked in stage.store.digests.claims]
    assert sorted(looks[0]) == ["r", "s"]
    assert looks[-1] == ["s"]
    assert all(len(routes) == 1 for routes in looks[1:])


async def test_a_dead_daemons_leases_are_looked_for_four_times_in_a_lease(make: MakeStage, redis_url: str) -> None:
    stage = await make(interval_ms=20, lease_ms=800)
    dead = WatchedStore(redis_url)
    await put(stage.store, b"a")
    assert len((await dead.digests.claim(0, [("r", 0)], [5], 100)).claims) == 1
    await dead.close(1)
    began_s = time.monotonic()
    stage.scheduler.start()
    await until(lambda: sent(stage) == ["a"] and len(stage.store.upkeep.maintained_s) >= 4)
    # By the beginning, not by the one before, which a busy machine makes late.
    assert all(at_s - began_s > number * 0.19 for number, at_s in enumerate(stage.store.upkeep.maintained_s))


# -- an operator


async def test_an_operators_word_about_a_sink_is_new_once(make: MakeStage) -> None:
    stage = await make()
    assert not stage.scheduler.resume_sink("out")
    assert [stage.scheduler.pause_sink("out") for _ in range(2)] == [True, False]
    await put(stage.store, b"a")
    stage.scheduler.start()
    await until(lambda: bool(stage.store.upkeep.maintained_s))
    assert stage.store.digests.claims == []
    assert [stage.scheduler.resume_sink("out") for _ in range(2)] == [True, False]
    await until(lambda: sent(stage) == ["a"])


async def test_a_paused_route_is_not_asked_for_and_goes_on_at_once_when_resumed(make: MakeStage) -> None:
    stage = await make()
    assert [stage.scheduler.pause_route("r") for _ in range(2)] == [True, False]
    assert stage.scheduler.paused_routes == {"r"}
    await put(stage.store, b"a")
    await put(stage.store, b"b", route="s")
    stage.scheduler.start()
    await until(lambda: sent(stage) == ["b"])
    assert {name for asked in stage.store.digests.claims for name in asked.routes} == {"s"}
    assert [stage.scheduler.resume_route("r") for _ in range(2)] == [True, False]
    await until(lambda: sent(stage) == ["b", "a"])


# -- when Redis fails


async def test_what_a_claim_took_whose_answer_got_lost_is_asked_for_again_and_goes_out_once(make: MakeStage) -> None:
    stage = await make(interval_ms=50)
    stage.store.digests.claims_fail = [(Applied.AMBIGUOUS, True)]
    await put(stage.store, b"a", b"b")
    stage.scheduler.start()
    await until(lambda: sorted(sent(stage)) == ["a", "b"])
    assert [token for _, token in stage.store.digests.asked_again] == [stage.store.digests.claims[0].token]
    await until(lambda: stage.outlet.reserved == 0)  # the next claim may be under way
    await put(stage.store, b"c")
    await until(lambda: len(stage.sink.digests) == 3)
    assert len(stage.store.digests.asked_again) == 1


async def test_a_claim_that_may_still_come_is_asked_for_once_an_interval_until_its_lease_would_be_over(
    make: MakeStage,
) -> None:
    lease_s = 1.5
    stage = await make(interval_ms=50, lease_ms=int(lease_s * 1000))
    stage.store.digests.claims_fail = [(Applied.AMBIGUOUS, False)]
    began_s = time.monotonic()
    stage.scheduler.start()

    def was_the_last() -> bool:
        """The lease was over, and nothing was asked for some intervals. A pause before that is a slow look's."""
        asked_s = stage.store.digests.asked_again[-1][0] if stage.store.digests.asked_again else began_s
        return asked_s - began_s > lease_s - 0.01 and time.monotonic() - asked_s > 0.2

    await until(was_the_last)
    at_s = [asked_s for asked_s, _ in stage.store.digests.asked_again]
    assert 2 <= len(at_s) <= lease_s / 0.05
    # An interval apart at least, though a slow look makes one of them late.
    assert all(asked_s - began_s > number * 0.05 for number, asked_s in enumerate(at_s))
    assert {token for _, token in stage.store.digests.asked_again} == {stage.store.digests.claims[0].token}


async def test_a_claim_that_was_not_done_is_not_asked_for_again(make: MakeStage) -> None:
    stage = await make(interval_ms=20)
    stage.store.digests.claims_fail = [(Applied.NO, False)]
    await put(stage.store, b"a")
    stage.scheduler.start()
    await until(lambda: sent(stage) == ["a"])
    assert stage.store.digests.asked_again == []


async def test_while_redis_fails_it_is_asked_ever_more_seldom_and_its_return_is_told_once(make: MakeStage) -> None:
    stage = await make(partitions=2)
    await put(stage.store, b"a")
    stage.store.digests.looks_fail = 6
    stage.draw.windows.clear()
    began_s = time.monotonic()
    stage.scheduler.start()
    await until(lambda: stage.scheduler.failing_since_s is not None)
    since_s = stage.scheduler.failing_since_s
    assert since_s is not None
    assert began_s <= since_s <= time.monotonic()
    await until(lambda: sent(stage) == ["a"])
    await until(lambda: bool(stage.backs))
    assert time.monotonic() - began_s > 3 * 0.19
    assert sorted(stage.draw.windows[:6]) == [(100, 300)] * 2 + [(100, 900)] * 2 + [(100, 2700)] * 2
    assert stage.metrics.value("store_errors_total", reason="redis-connection") == 6
    assert stage.scheduler.failing_since_s is None
    assert len(stage.backs) == 1


async def test_being_woken_ends_the_wait_after_a_failure_but_not_at_once(make: MakeStage) -> None:
    stage = await make()
    stage.store.digests.looks_fail = 1
    began_s = time.monotonic()
    stage.scheduler.start()
    await put(stage.store, b"a")
    for _ in range(3):
        stage.scheduler.wake()
        await asyncio.sleep(0)
    await until(lambda: sent(stage) == ["a"])
    assert time.monotonic() - began_s > 0.09


# -- the end


async def test_a_drain_cuts_off_what_does_not_end_in_time(make: MakeStage) -> None:
    stage = await make()
    stage.sink.may_answer.clear()
    await put(stage.store, b"a")
    stage.scheduler.start()
    await until(lambda: sent(stage) == ["a"])
    began_s = time.monotonic()
    async with asyncio.timeout(PATIENCE_S):
        await stage.scheduler.drain(began_s + 0.3)
    assert time.monotonic() - began_s > 0.29
    assert stage.outlet.sending == 0
    assert all(task.done() for task in stage.scheduler.tasks)
    claims = len(stage.store.digests.claims)
    await put(stage.store, b"b")
    stage.scheduler.wake()
    await stage.scheduler.drain(time.monotonic() + 1)
    assert len(stage.store.digests.claims) == claims


async def test_a_drain_lets_a_claim_under_way_end_and_what_it_took_go_out(
    make: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = await make()
    may_go_on, claim = asyncio.Event(), Digests.claim

    async def slow(digests: Digests, *arguments: Any) -> Claimed:
        claimed = await claim(digests, *arguments)
        await may_go_on.wait()
        return claimed

    monkeypatch.setattr(Digests, "claim", slow)
    await put(stage.store, b"a")
    stage.scheduler.start()
    await until(lambda: bool(stage.store.digests.claims))
    drain = asyncio.create_task(stage.scheduler.drain(time.monotonic() + 5))
    await asyncio.sleep(0)
    may_go_on.set()
    await drain
    assert sent(stage) == ["a"]
    assert len(stage.store.digests.claims) == 1
    assert (await stage.store.operations.ledger("r"))["delivered"] == 1
