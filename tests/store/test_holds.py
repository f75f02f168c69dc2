"""What a daemon knows of muted and snoozed timelines, whatever else is wrong in Redis."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis

from nsqdigest.base.metrics import Metrics
from nsqdigest.base.quiet_hours import Window
from nsqdigest.store.holds import HoldKind
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.store import Store
from nsqdigest.store.watch import StoreWatch
from support.settings import POLICY
from support.stores import PLAN, OpenStore
from support.waiting import until

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
HOLDS = "{test:0}:holds"
KNOWN_S = 20.0
"""Long enough for a slow machine, and less than the figures' pause in the test of many places."""


@pytest.fixture
async def many(open_store: OpenStore, redis_url: str) -> Store:
    """Routes and partitions of which a daemon reads the figures seldom."""
    store = open_store(redis_url, [PLAN, *(PLAN._replace(name=f"r{n}") for n in range(39))], partitions=32)
    await store.start()
    return store


async def watched(store: Store) -> StoreWatch:
    watch = StoreWatch(store, Metrics(), every_s=3600)
    watch.start(await store.look())
    return watch


async def test_a_mute_is_known_in_time_however_many_figures_there_are(many: Store, redis_client: redis.Redis) -> None:
    watch = await watched(many)
    mute(redis_client, partition=many.namespace.partition_of(b"ada"))
    await until(lambda: many.holds.is_any_muted, timeout_s=KNOWN_S)
    await watch.stop()


async def test_the_end_of_a_mute_is_known_although_another_route_is_damaged(
    open_store: OpenStore, redis_url: str, redis_client: redis.Redis
) -> None:
    store = open_store(redis_url, [PLAN, PLAN._replace(name="other")])
    mute(redis_client)
    redis_client.set("{test:0}:waiting:other", "planted")
    await store.start()
    assert store.holds.is_any_muted
    watch = await watched(store)
    redis_client.delete(HOLDS)
    await until(lambda: not store.holds.is_any_muted, timeout_s=KNOWN_S)
    await watch.stop()


async def test_of_a_partition_that_fails_the_last_holds_remain_and_the_others_are_known(
    open_store: OpenStore, redis_url: str, redis_client: redis.Redis
) -> None:
    store = open_store(redis_url, partitions=2)
    await store.start()
    mute(redis_client, partition=0)
    await store.holds.read()
    redis_client.delete(HOLDS)
    redis_client.set(HOLDS, "planted")
    mute(redis_client, timeline="bob", partition=1)
    with pytest.raises(Exception, match="WRONGTYPE"):
        await store.holds.read()
    assert {hold.timeline for hold in store.holds.all} == {"ada", "bob"}


async def test_damaged_holds_stop_no_daemon(open_store: OpenStore, redis_url: str, redis_client: redis.Redis) -> None:
    redis_client.set(HOLDS, "planted")
    store = open_store(redis_url)
    await store.start()
    assert store.holds.all == ()


@pytest.mark.parametrize("text", ["mute \u00b2 1 0 0 me", "mute", "", "drop 1 1 0 0 me", "mute -1 1 0 0 me"])
async def test_what_something_else_wrote_is_no_hold(
    open_store: OpenStore, redis_url: str, redis_client: redis.Redis, text: str
) -> None:
    redis_client.hset(HOLDS, "r:ada", text)
    store = open_store(redis_url)
    await store.start()
    assert store.holds.all == ()


async def test_daemons_whose_routes_have_quiet_hours_share_the_turns_of_upkeep(
    open_store: OpenStore, redis_url: str
) -> None:
    turns = []
    for _ in range(2):
        quiet = Plan(replace(POLICY, quiet=(Window(22 * 60, 7 * 60),))).quiet
        store = open_store(redis_url, [StoreRoute("r", 100, 0, 60_000, quiet=quiet)])
        await store.start()
        turns.append(await store.upkeep.has_turn(0, "upkeep", ["r"], 15_000))
    assert turns == [True, False]


def mute(client: redis.Redis, timeline: str = "ada", partition: int = 0) -> None:
    """As lua/operators/hold.lua writes it."""
    seconds, _ = client.time()
    now_ms = 1000 * int(seconds)
    client.hset(f"{{test:{partition}}}:holds", f"r:{timeline}", f"{HoldKind.MUTE} {now_ms + HOUR_MS} {now_ms} 0 0 me")
