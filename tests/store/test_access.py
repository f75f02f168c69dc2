"""access.py: a namespace for a command that changes something; what a start of the daemon refuses is refused."""

from __future__ import annotations

import pytest

from nsqdigest.base.errors import EXIT_CONFIG, EXIT_NO, EXIT_UNREACHABLE, NsqdigestError, StoreMismatch, Unreachable
from nsqdigest.store.access import now_ms, operating
from nsqdigest.store.operations import Operations
from nsqdigest.store.store import Store
from support.ports import HOST, free_port
from support.servers import RedisServer
from support.store import Scripts
from support.stores import OpenStore, add, limited_url, redis_settings

pytestmark = pytest.mark.integration


async def test_a_user_with_the_rights_of_the_daemon_may_work(
    store: Store, redis_url: str, shared_redis: RedisServer
) -> None:
    await add(store)
    settings = redis_settings(limited_url(shared_redis))
    async with operating(settings, "f.toml") as namespace:
        assert await Operations(namespace).delete("r", "t") == 1
        assert abs(await now_ms(namespace) - store.clock.now_ms()) < 10_000


async def test_a_right_that_is_missing_is_named_before_anything_is_written(
    store: Store, redis_url: str, shared_redis: RedisServer
) -> None:
    await add(store)
    settings = redis_settings(limited_url(shared_redis))
    shared_redis.cli("ACL", "SETUSER", "nsqdigest", "-unlink")
    with pytest.raises(Unreachable, match=r"user nsqdigest may not send unlink; ACL SETUSER nsqdigest \+unlink"):
        async with operating(settings, "f.toml"):
            raise AssertionError("not reached")
    assert (await store.operations.counts("r")).timelines == 1


async def test_a_redis_that_is_not_there() -> None:
    settings = redis_settings(f"redis://:secret@{HOST}:{free_port()}/0")
    with pytest.raises(Unreachable) as caught:
        async with operating(settings, "f.toml"):
            raise AssertionError("not reached")
    assert caught.value.exit_code == EXIT_UNREACHABLE
    assert "redis.url in f.toml" in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_another_layout_is_refused(store: Store, redis_url: str) -> None:
    with pytest.raises(StoreMismatch, match=r"redis\.partitions = 1") as caught:
        async with operating(redis_settings(redis_url, partitions=4), "f.toml"):
            raise AssertionError("not reached")
    assert caught.value.exit_code == EXIT_CONFIG


async def test_a_namespace_that_nobody_used_is_left_as_it_is(
    open_store: OpenStore, redis_url: str, plain: Scripts
) -> None:
    async with operating(redis_settings(redis_url), "f.toml") as namespace:
        assert namespace.layout is None
        assert await Operations(namespace).delete("r", "t") is None
        assert await Operations(namespace).routes() == {}
    assert plain.command("KEYS", "*") == []


async def test_a_key_of_another_type_is_no_redis_out_of_reach(store: Store, redis_url: str, plain: Scripts) -> None:
    await add(store)
    plain.command("DEL", plain.key("set:r:t"))
    plain.command("SET", plain.key("set:r:t"), "of somebody else")
    with pytest.raises(NsqdigestError, match="something else wrote to a key") as caught:
        async with operating(redis_settings(redis_url), "f.toml") as namespace:
            await Operations(namespace).delete("r", "t")
    assert caught.value.exit_code == EXIT_NO
