"""operators.py: what is there of which route; timelines delivered now, deleted, moved to another route."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from nsqdigest.audit.ledger import balances
from nsqdigest.store.head import Head
from nsqdigest.store.keys import own_timeline, shown_timeline
from nsqdigest.store.operations import Flushed, RouteCounts, Step
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from support.servers import RedisServer
from support.store import Scripts, inconsistencies
from support.stores import PLAN, USERS, OpenStore, add, close_digest, open_digest, rec, url_as

pytestmark = pytest.mark.integration

LEASE_MS = 60_000
HOUR_MS = 3_600_000
OLD = StoreRoute("old", capacity=1000, increment_ms=0, dedupe_window_ms=600_000)


@pytest.fixture(params=USERS)
def store_url(redis_url: str, shared_redis: RedisServer, request: pytest.FixtureRequest) -> str:
    return url_as(request.param, shared_redis, redis_url)


@pytest.fixture
def store_routes() -> Sequence[StoreRoute]:
    return PLAN, OLD


@pytest.fixture
async def parted(open_store: OpenStore, redis_url: str) -> Store:
    """A store of eight partitions."""
    store = open_store(redis_url, [PLAN, OLD], partitions=8)
    await store.start()
    return store


async def fill(store: Store, route: str, timelines: int, records: int = 2, after_ms: int = 0) -> None:
    for n in range(timelines):
        name = b"%d" % n
        partition = store.timelines.partition_of(name)
        mine = (rec(b"%d" % key, key, timeline=name) for key in range(records))
        await add(store, *mine, route=route, partition=partition, after_ms=after_ms)


async def all_steps(store: Store, step: Callable[[int], Awaitable[Step]]) -> list[Step]:
    """Those that did something, of each partition to its end."""
    done = []
    for partition in range(store.namespace.partitions):
        while (did := await step(partition)).timelines:
            done.append(did)
    return done


# -- what is there


async def test_a_route_is_known_from_the_first_daemon_on_that_had_it(open_store: OpenStore, redis_url: str) -> None:
    for names in (["one", "two"], ["two", "three"]):
        await open_store(redis_url, [PLAN._replace(name=name) for name in names]).start()
    now = open_store(redis_url)
    await now.start()
    routes = await now.operations.routes()
    assert routes.keys() == {"one", "two", "three", "r"}
    assert all(abs(now.clock.now_ms() - here_ms) < 60_000 for here_ms in routes.values())


async def test_counts_are_of_all_partitions(parted: Store) -> None:
    await fill(parted, "r", 20)
    partition = parted.timelines.partition_of(b"0")
    (claim, *_) = (await parted.digests.claim(partition, [("r", 0)], [1], LEASE_MS)).claims
    assert isinstance(await open_digest(parted, claim, "id-1", [0]), Head)
    assert await parted.operations.counts("r") == RouteCounts(19, 1, 38, 2)


async def test_of_an_unknown_route_there_is_nothing(store: Store) -> None:
    assert await store.operations.counts("unknown") == RouteCounts(0, 0, 0, 0)


async def test_orphans_are_routes_that_are_not_configured_and_have_timelines(store: Store) -> None:
    assert await store.operations.orphans({"r"}) == {}
    await fill(store, "old", 3)
    await fill(store, "r", 1)
    assert await store.operations.orphans({"r"}) == {"old": RouteCounts(3, 0, 6, 0)}


# -- one timeline


async def test_a_flushed_timeline_is_due_now(store: Store) -> None:
    await add(store, after_ms=HOUR_MS)
    assert await store.operations.flush("r", "t") is Flushed.DUE
    assert len((await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims) == 1
    assert await store.operations.flush("r", "t") is Flushed.LEASED
    assert await store.operations.flush("r", "other") is Flushed.UNKNOWN


async def test_a_deleted_timeline_is_gone(store: Store) -> None:
    await add(store)
    assert await store.operations.delete("r", "t") == 1
    assert await store.operations.delete("r", "t") is None


async def test_an_adopted_timeline_is_at_home(parted: Store) -> None:
    """So what its new route gathers goes into the same timeline, and what is asked of it finds it."""
    await fill(parted, "old", 20, after_ms=HOUR_MS)
    await all_steps(parted, lambda partition: parted.operations.adopt_some(partition, "old", "r", 1000))
    await fill(parted, "r", 20, records=3, after_ms=HOUR_MS)
    assert await parted.operations.counts("r") == RouteCounts(20, 0, 60, 0)
    for n in range(20):
        assert await parted.operations.flush("r", f"{n}") is Flushed.DUE
        assert await parted.operations.delete("r", f"{n}") == 3


# -- the limit of timelines


async def test_the_limit_is_exact_however_many_ask_at_once(open_store: OpenStore, redis_url: str) -> None:
    daemons = [open_store(redis_url, limit=10) for _ in range(3)]
    for daemon in daemons:
        await daemon.start()
    added = await asyncio.gather(
        *(add(daemons[n % 3], *(rec(timeline=b"%d" % m) for m in range(n, n + 4))) for n in range(0, 60, 2))
    )
    counts = await daemons[0].operations.counts("r")
    assert counts.timelines == 10
    assert (
        sum(one.dropped_timelines for one in added)
        == (await daemons[0].operations.ledger("r"))["dropped:timelines"]
        > 0
    )
    assert balances(await daemons[0].operations.ledger("r"))


async def test_a_timeline_that_is_there_is_filed_into_at_the_limit(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, limit=1)
    await store.start()
    await add(store)
    added = await add(store, rec(b"l"), rec(timeline=b"other"))
    assert (added.added, added.dropped_timelines) == (2, 1)


@pytest.mark.parametrize("end", ["delete", "forget"])
async def test_a_place_is_free_again_when_a_timeline_ends(open_store: OpenStore, redis_url: str, end: str) -> None:
    store = open_store(redis_url, limit=1)
    await store.start()
    await add(store)
    if end == "delete":
        await store.operations.delete("r", "t")
    else:
        for _ in range(2):
            (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
            if isinstance(await open_digest(store, claim, "id-1", [0]), Head):
                now_ms = store.clock.now_ms()
                await close_digest(store, claim, "id-1", Schedule(now_ms, now_ms))
    assert (await add(store, rec(timeline=b"other"))).dropped_timelines == 0


# -- all of a route


async def test_a_route_is_deleted_step_by_step(parted: Store) -> None:
    await fill(parted, "old", 50)
    await fill(parted, "r", 5)
    for partition in range(8):
        await parted.digests.claim(partition, [("old", 0)], [3], LEASE_MS)
    steps = await all_steps(parted, lambda partition: parted.operations.delete_some(partition, "old", 4))
    assert max(step.timelines for step in steps) == 4
    assert (sum(step.timelines for step in steps), sum(step.records for step in steps)) == (50, 100)
    assert await parted.operations.orphans({"r"}) == {}
    assert await parted.operations.counts("r") == RouteCounts(5, 0, 10, 0)
    ledger = await parted.operations.ledger("old")
    assert {field: value for field, value in ledger.items() if value} == {"added": 100, "deleted": 100}


async def test_a_route_is_adopted_step_by_step(store: Store, plain: Scripts) -> None:
    await fill(store, "old", 30)
    await fill(store, "r", 10, records=1)
    for claim in (await store.digests.claim(0, [("old", 0)], [7], LEASE_MS)).claims:
        await open_digest(store, claim, f"id-{claim.timeline}", [0])
    steps = await all_steps(store, lambda partition: store.operations.adopt_some(partition, "old", "r", 1000, 8))
    assert max(step.timelines for step in steps) == 8
    assert (sum(step.timelines for step in steps), sum(step.records for step in steps)) == (30, 60)
    assert await store.operations.orphans({"r"}) == {}
    # Each of the ten held a copy of one record.
    assert await store.operations.counts("r") == RouteCounts(30, 0, 60, 0)
    old, new = await store.operations.ledger("old"), await store.operations.ledger("r")
    assert {field: value for field, value in old.items() if value} == {"added": 60, "dropped:adopted": 60}
    assert {field: value for field, value in new.items() if value} == {"added": 60, "open": 60}
    assert inconsistencies(plain.tag, plain.contents()) == []


async def test_an_adopted_timeline_is_delivered_from_the_partition_where_it_was(parted: Store) -> None:
    await fill(parted, "old", 20)
    await all_steps(parted, lambda partition: parted.operations.adopt_some(partition, "old", "r", 1000))
    delivered = 0
    for partition in range(8):
        for claim in (await parted.digests.claim(partition, [("r", 0)], [20], LEASE_MS)).claims:
            opened = await open_digest(parted, claim, f"id-{claim.timeline}", [0])
            assert isinstance(opened, Head)
            delivered += opened.total
    assert delivered == 40


async def test_a_route_does_not_adopt_itself(store: Store) -> None:
    with pytest.raises(ValueError, match='the route "r" cannot adopt itself'):
        await store.operations.adopt_some(0, "r", "r", 1000)


# -- names


@pytest.mark.parametrize("timeline", ["t", "", "user:é", "a b"])
def test_a_revived_digest_has_a_timeline_of_its_own_and_shows_the_one_it_came_from(timeline: str) -> None:
    own = own_timeline("0193-id", timeline)
    assert own != timeline
    assert shown_timeline(own) == shown_timeline(timeline) == timeline


def test_a_name_that_only_begins_like_a_revived_ones_is_shown_too() -> None:
    assert [shown_timeline(name) for name in ("\x01planted", "\x01", "\x01a\x01b")] == ["planted", "", "b"]
