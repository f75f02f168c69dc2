"""A namespace: what opening it to read checks and refuses, and that it then writes nothing."""

from __future__ import annotations

import pytest
import redis

from nsqdigest.base.errors import StoreMismatch, Unreachable
from nsqdigest.store import scripts
from nsqdigest.store.keys import SCHEMA
from nsqdigest.store.namespace import Layout, Namespace, reading
from support.ports import HOST, free_port
from support.store import Scripts
from support.stores import OpenStore, redis_settings

pytestmark = pytest.mark.integration

SOURCE = "nsqdigest.toml"


async def test_one_that_no_daemon_used_is_open_to_read_and_stays_empty(
    redis_url: str, redis_client: redis.Redis
) -> None:
    async with reading(redis_settings(redis_url), SOURCE) as namespace:
        assert namespace.layout is None
    assert redis_client.dbsize() == 0


async def test_one_that_a_daemon_used_has_its_layout(open_store: OpenStore, redis_url: str) -> None:
    await open_store(redis_url, partitions=4).start()
    async with reading(redis_settings(redis_url, partitions=4), SOURCE) as namespace:
        assert namespace.layout == Layout(SCHEMA, 4)


@pytest.mark.parametrize(("schema", "partitions", "refusal"), [(9, 1, "layout 9"), (SCHEMA, 4, "write 4")])
async def test_another_layout_is_refused(
    redis_url: str, redis_client: redis.Redis, schema: int, partitions: int, refusal: str
) -> None:
    Scripts(redis_client).hello(schema, partitions)
    with pytest.raises(StoreMismatch, match=refusal):
        async with reading(redis_settings(redis_url), SOURCE):
            pytest.fail("it was opened")


async def test_a_redis_that_cannot_be_read_is_out_of_reach_and_the_remedy_names_the_file() -> None:
    port = free_port()
    with pytest.raises(Unreachable, match=rf"{port}/0 cannot be read: .*; see that it runs, and redis.url in {SOURCE}"):
        async with reading(redis_settings(f"redis://{HOST}:{port}/0"), SOURCE):
            pytest.fail("it was opened")


@pytest.mark.parametrize("script", [name for name in scripts.names() if not scripts.only_reads(name)])
async def test_read_only_it_runs_no_script_that_writes(script: str) -> None:
    namespace = Namespace(redis_settings(f"redis://{HOST}:{free_port()}/0"), 1, read_only=True)
    with pytest.raises(AssertionError, match="read-only"):
        await namespace.run(0, script, [], [])


def test_the_scripts_that_only_read_are_those_of_their_folder() -> None:
    assert [name for name in scripts.names() if scripts.only_reads(name)] == ["audit", "recount", "rights"]
