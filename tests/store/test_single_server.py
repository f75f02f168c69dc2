"""A single server, before one that answers what the test says: it has every slot, and is connected to again once it is
stale."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import MaxConnectionsError, MovedError

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.single import SingleServer
from support.scripted_redis import SILENCE
from support.scripted_sets import (
    LAST_SLOT,
    opened,
    scripted,
)
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration


async def test_the_server_that_is_named_has_every_slot_stale_or_not() -> None:
    async with scripted(lambda words: "PONG") as (server,), opened(server.url) as servers:
        node = await servers.server_for(0)
        await servers.mark_stale(node)
        assert [await servers.server_for(LAST_SLOT), *await servers.primaries()] == [node, node]


async def test_its_name_in_messages_is_without_the_password_that_it_is_asked_with() -> None:
    async with scripted(lambda words: "PONG") as (server,):
        async with opened(f"redis://:secret@{server.address}/0") as servers:
            node = await servers.server_for(0)
            await node.exchange([[b"PING"]])
        assert str(node) == f"redis://***@{server.address}/0"
        assert server.started[0] == (b"AUTH", b"secret")


async def test_once_stale_a_single_server_is_connected_to_anew() -> None:
    async with scripted(lambda words: "PONG") as (server,), opened(server.url) as servers:
        for is_stale in (False, True, False):
            node = await servers.server_for(0)
            if is_stale:
                await servers.mark_stale(node)
            await node.exchange([[b"PING"]])
        assert server.accepted == 2


async def test_a_single_server_that_points_elsewhere_is_one_of_a_cluster() -> None:
    async with scripted(lambda words: "PONG") as (server,), opened(server.url) as servers:
        with pytest.raises(StoreError, match=r"write redis\+cluster:// instead") as raised:
            await servers.redirected(await servers.server_for(0), 5, MovedError("5 10.0.0.1:6379"), for_good=True)
        assert (raised.value.reason, raised.value.applied) == ("redis-mode", Applied.NO)


async def test_a_single_server_gets_the_time_out_of_the_settings() -> None:
    async with scripted(lambda words: SILENCE) as (server,), opened(server.url, timeout_ms=50) as servers:
        with pytest.raises(Exception, match=r"no answer within 0\.05 s"):
            async with asyncio.timeout(PATIENCE_S):
                await (await servers.server_for(0)).exchange([[b"PING"]])


async def test_a_connection_that_the_server_closed_meanwhile_is_made_anew_before_its_next_use() -> None:
    async with scripted(lambda words: "PONG") as (server,), opened(server.url) as servers:
        node = await servers.server_for(0)
        await node.exchange([[b"PING"]])
        server.hang_up()
        await until(lambda: server.connections == 0)
        assert await node.exchange([[b"PING"]]) == [b"PONG"]
        assert (server.accepted, server.count(b"PING")) == (2, 2)


async def test_a_call_waits_while_all_connections_are_taken() -> None:
    goes_on = asyncio.Event()

    async def answer(words: tuple[bytes, ...]) -> str:
        await goes_on.wait()
        return "PONG"

    async with scripted(answer) as (server,):
        node = Node("a server", server.url, 1, PATIENCE_S)
        calls = [asyncio.ensure_future(node.exchange([[b"PING"]])) for _ in range(3)]
        await until(lambda: server.count(b"PING") == 1)
        goes_on.set()
        assert await asyncio.gather(*calls) == [[b"PONG"]] * 3
        assert server.accepted == 1
        await node.close()


async def test_more_connections_are_allowed_while_calls_wait_and_never_fewer() -> None:
    goes_on = asyncio.Event()

    async def answer(words: tuple[bytes, ...]) -> str:
        await goes_on.wait()
        return "PONG"

    async with scripted(answer) as (server,):
        node = Node("a server", server.url, 1, PATIENCE_S)
        servers = SingleServer(node)
        calls = [asyncio.ensure_future(node.exchange([[b"PING"]])) for _ in range(4)]
        await until(lambda: server.count(b"PING") == 1)
        for connections in (3, 2, 3):
            servers.allow(connections)
        await until(lambda: server.count(b"PING") == 3)
        goes_on.set()
        assert await asyncio.gather(*calls) == [[b"PONG"]] * 4
        assert server.accepted == 3
        await servers.close()


async def test_a_call_that_gets_no_connection_within_the_time_out_is_refused_unsent() -> None:
    async with scripted(lambda words: "PONG") as (server,):
        node = Node("a server", server.url, 0, 0.02)
        with pytest.raises(MaxConnectionsError):
            await node.exchange([[b"PING"]])
        assert server.accepted == 0


async def test_closed_it_has_no_connection_any_more() -> None:
    async with scripted(lambda words: "PONG") as (server,):
        async with opened(server.url) as servers:
            await (await servers.server_for(0)).exchange([[b"PING"]])
            assert server.connections == 1
        await until(lambda: server.connections == 0)
