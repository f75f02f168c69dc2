"""nsqdigest's own store for one test, and records to put into it.

- `open_store`: makes stores on any server; they are closed after the test.
- `store`: one that is started, at `store_url` with `store_routes`. A module that needs other ones overrides those two.
- `plain`: the same database, for commands and single scripts.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import pytest
import redis

from nsqdigest.config import Redis as RedisSettings
from nsqdigest.store.answers import Added, Claim, Ended, NotOpened
from nsqdigest.store.digests import Ending, Opening
from nsqdigest.store.head import Head
from nsqdigest.store.record import Record
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from support.ports import HOST
from support.servers import ROOT, RedisServer
from support.store import Scripts

PLAN = StoreRoute("r", capacity=1000, increment_ms=0, dedupe_window_ms=600_000)
T = b"t"
OpenStore = Callable[..., Store]

_RIGHTS = re.compile(r"ACL SETUSER nsqdigest on (.*?)\n\n", re.DOTALL)


def redis_settings(url: str, **settings: Any) -> RedisSettings:
    defaults: dict[str, Any] = {
        "namespace": "test",
        "timeout_ms": 5000,
        "partitions": 1,
        "durability": "reply",
        "replicas": 1,
        "ca_file": "",
        "cert_file": "",
        "key_file": "",
        "insecure": False,
    }
    return RedisSettings(url=url, **(defaults | settings))


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    made: list[Store] = []

    def make(
        url: str,
        routes: Iterable[StoreRoute] = (PLAN,),
        limit: int = 1000,
        connections: int = 16,
        dead_digests: int = 10_000,
        **settings: Any,
    ) -> Store:
        store = Store(redis_settings(url, **settings), routes, limit, connections, dead_digests=dead_digests)
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close(5)


@pytest.fixture
def store_url(redis_url: str) -> str:
    return redis_url


@pytest.fixture
def store_routes() -> Sequence[StoreRoute]:
    return (PLAN,)


@pytest.fixture
async def store(open_store: OpenStore, store_url: str, store_routes: Sequence[StoreRoute]) -> Store:
    store = open_store(store_url, store_routes)
    await store.start()
    return store


@pytest.fixture
def plain(redis_client: redis.Redis) -> Scripts:
    return Scripts(redis_client)


def rec(
    key: bytes = b"k", at_ms: int = 1, value: bytes = b"{}", timeline: bytes = T, possible_repeat: bool = False
) -> Record:
    return Record(0, timeline, key, 1000 * at_ms, value, possible_repeat)


async def add(store: Store, *records: Record, route: str = "r", partition: int = 0, after_ms: int = 0) -> Added:
    at_ms = store.clock.now_ms() + after_ms
    return await store.timelines.add(route, partition, records or (rec(),), Schedule(at_ms, at_ms))


def rights() -> list[str]:
    """What docs/redis.md gives the daemon's user."""
    found = _RIGHTS.search((ROOT / "docs" / "redis.md").read_text(encoding="utf-8"))
    assert found is not None, "docs/redis.md has no ACL SETUSER nsqdigest"
    return found[1].replace("\\\n", " ").split()


USERS = ("anybody", "with the rights that docs/redis.md gives")
"""Who uses the store: a user with all rights, or one with no more than required."""


def url_as(user: str, server: RedisServer, redis_url: str) -> str:
    return redis_url if user == USERS[0] else limited_url(server)


def limited_url(server: RedisServer) -> str:
    """A user of this server with exactly those rights, for the namespace of tests."""
    words = [word.replace("~{nsqdigest:*", "~{test:*") for word in rights()]
    server.cli("ACL", "SETUSER", "nsqdigest", "reset", "on", *words)
    password = next(word for word in words if word.startswith(">"))[1:]
    return f"redis://nsqdigest:{password}@{HOST}:{server.port}/0"


# -- one digest at a time; delivery does all of this of many in one call


async def open_digest(store: Store, claim: Claim, digest_id: str, next_earliest_ms: Sequence[int]) -> Head | NotOpened:
    openings, instants = [Opening(claim, digest_id)], {claim.route: next_earliest_ms}
    return (await store.digests.open(claim.partition, openings, instants))[0]


async def finish(store: Store, ending: Ending) -> Ended:
    (ended,) = await store.digests.finish(ending.claim.partition, [ending])
    return ended


async def close_digest(store: Store, claim: Claim, digest_id: str, after: Schedule) -> Ended:
    return await finish(store, Ending.close(claim, digest_id, after))


async def fail_digest(store: Store, claim: Claim, again_ms: int) -> Ended:
    """After a post."""
    return await finish(store, Ending.wait(claim, again_ms, 1))


async def defer_digest(store: Store, claim: Claim, again_ms: int) -> Ended:
    return await finish(store, Ending.wait(claim, again_ms, 0))


async def bury_digest(store: Store, claim: Claim, digest_id: str, after: Schedule, details: bytes) -> Ended:
    return await finish(store, Ending.bury(claim, digest_id, after, details))
