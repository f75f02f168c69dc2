"""Redis 6.2, the lowest version that is supported: the same store on it, and the errors that it says in its own way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqdigest.errors import Applied, StoreError
from nsqdigest.policy import Schedule
from nsqdigest.store_types import Answer, Opened
from nsqdigest.timelines import Timelines
from support.ports import HOST, free_port
from support.servers import MissingServer, RedisServer, find_binary
from support.stores import OpenStore, add, limited_url, rec

pytestmark = pytest.mark.servers


@pytest.fixture
def old_redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis")
    try:
        server.executable = find_binary("redis-server-6.2")
    except MissingServer as problem:
        pytest.skip(str(problem))  # in CI as well: it is fetched where it can be had
    with server:
        yield server


@pytest.fixture
async def store(open_store: OpenStore, old_redis: RedisServer) -> Timelines:
    store = open_store(limited_url(old_redis))
    assert (await store.start()).version.startswith("6.2.")
    return store


async def refusal(store: Timelines) -> tuple[str, Applied]:
    with pytest.raises(StoreError) as raised:
        await add(store)
    return raised.value.reason, raised.value.applied


async def test_a_digest_goes_all_its_way(store: Timelines, old_redis: RedisServer) -> None:
    await add(store, rec(b"a"), rec(b"b", 2), rec(b"b", 3, possible_repeat=True))
    (claim,) = (await store.claim(0, [("r", 0)], [9], 60_000)).claims
    opened = await store.open(claim, 60_000, "id", [0])
    assert isinstance(opened, Opened)
    assert await store.fail(claim, 0) is Answer.DONE
    old_redis.cli("SCRIPT", "FLUSH")
    (claim,) = (await store.claim(0, [("r", 0)], [9], 60_000)).claims
    assert await store.open(claim, 60_000, "not taken", [0]) == opened._replace(again=True, attempt=2, tries=2)
    page = await store.page(claim, opened, 0, 2)
    assert page is not None
    assert [record.key for record in page if record is not None] == [b"b", b"a"]
    assert await store.close_digest(claim, "id", Schedule(0, 0)) is Answer.DONE


async def test_full_and_replica_are_wrapped_there_and_nothing_was_done(
    store: Timelines, old_redis: RedisServer
) -> None:
    await add(store)
    old_redis.cli("CONFIG", "SET", "maxmemory", 1)
    assert await refusal(store) == ("redis-full", Applied.NO)
    old_redis.cli("CONFIG", "SET", "maxmemory", 0)
    old_redis.cli("REPLICAOF", HOST, free_port())
    assert await refusal(store) == ("redis-readonly", Applied.NO)


async def test_a_missing_right_within_a_script_is_ambiguous(store: Timelines, old_redis: RedisServer) -> None:
    old_redis.cli("ACL", "SETUSER", "nsqdigest", "-hset")
    assert await refusal(store) == ("redis-auth", Applied.AMBIGUOUS)


async def test_a_planted_key_is_the_script_s_failure(store: Timelines, old_redis: RedisServer) -> None:
    old_redis.cli("RPUSH", "{test:0}:set:r:t", "planted")
    assert await refusal(store) == ("redis-script", Applied.AMBIGUOUS)
    assert (await store.wrong_types("r", 0, b"t")).own == ["{test:0}:set:r:t is a list, not a zset"]
