"""daemons.py: what daemons tell each other, also those of another version, and what something else wrote."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nsqdigest.store.daemons import KNOWN_FOR_MS, Daemons, Told
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.store import Store
from support.servers import RedisServer
from support.store import Scripts
from support.stores import PLAN, USERS, url_as

pytestmark = pytest.mark.integration

ONE = Told(host="web-1", pid=7, version="1.2.0", config_hash="aaa", started_ms=5)
TWO = Told(host="web-0", pid=8, version="1.2.0", config_hash="bbb", started_ms=6)


@pytest.fixture(params=USERS)
def store_url(redis_url: str, shared_redis: RedisServer, request: pytest.FixtureRequest) -> str:
    return url_as(request.param, shared_redis, redis_url)


@pytest.fixture
def store_routes() -> Sequence[StoreRoute]:
    return (PLAN,)


async def test_they_know_each_other_by_host_until_they_say_goodbye(store: Store) -> None:
    daemons = Daemons(store.namespace)
    await daemons.check_in("one", ONE)
    found = await daemons.check_in("two", TWO)
    assert [(each.id, each.told) for each in found] == [("two", TWO), ("one", ONE)]
    now_ms = store.clock.now_ms()
    assert all(abs(now_ms - each.seen_ms) < 5_000 for each in found)
    assert await daemons.read(now_ms) == found
    assert await daemons.read(now_ms + KNOWN_FOR_MS + 5_000) == []
    await daemons.say_goodbye("two")
    assert [each.id for each in await daemons.read(now_ms)] == ["one"]


async def test_what_another_version_or_something_else_wrote(store: Store, plain: Scripts) -> None:
    now_ms, key = store.clock.now_ms(), store.namespace.tags[0] + b"daemons"
    later = b'%d {"host":"web-9","of_a_later_version":{"x":1}}' % now_ms
    plain.command(
        "HSET", key, "later", later, "text", "x", "list", b"%d [1]" % now_ms, "type", b'%d {"pid":"x"}' % now_ms
    )
    found = await Daemons(store.namespace).check_in("one", ONE)
    assert [each.id for each in found] == ["one", "later"]
    assert found[1].told == Told(host="web-9")
    assert [each.id for each in await Daemons(store.namespace).read(now_ms)] == ["one", "later"]
