"""Exchanges on a connection that is open already, before a server that answers what the test says: what was asked and
nothing else is answered, and who is late, or speaks unasked, is gone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import exceptions as redis_errors

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.resp import Command
from support.ports import HOST
from support.scripted_redis import HANG_UP, SILENCE, ScriptedRedis, Words
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

LARGE_BYTES = 1 << 18
"""More is not read at a time."""
PING, GET = [b"PING"], [b"GET", b"k"]


@asynccontextmanager
async def connected(
    server: ScriptedRedis, *, connections: int = 4, timeout_s: float = PATIENCE_S
) -> AsyncIterator[Node]:
    """With one connection that has answered."""
    node = Node("a server", server.url, connections, timeout_s)
    async with asyncio.timeout(PATIENCE_S):
        assert await node.exchange([PING]) == [b"PONG"]
        server.asked.clear()
        try:
            yield node
        finally:
            await node.close()


def pong(words: Words) -> Any:
    return "PONG"


def otherwise(answer: Any) -> Any:
    return lambda words: "PONG" if words == (b"PING",) else answer


async def test_answers_of_any_size_come_in_their_order_however_they_are_cut() -> None:
    sizes = [0, 1, 8191, 8192, 8193, LARGE_BYTES, LARGE_BYTES + 1, 3, 2 * LARGE_BYTES, *[100] * 2000]

    def answer(words: Words) -> Any:
        return "PONG" if words == (b"PING",) else words[1][:1] * int(words[2])

    asked: list[Command] = [[b"X", b"%c" % (97 + number % 26), size] for number, size in enumerate(sizes)]
    async with ScriptedRedis(answer) as server, connected(server) as node:
        for _ in range(2):
            answers = await node.exchange(asked)
            assert answers == [b"%c" % (97 + number % 26) * size for number, size in enumerate(sizes)]
        assert server.accepted == 1


async def test_a_large_command_is_sent_whole() -> None:
    large = b"v" * (4 * LARGE_BYTES)

    def answer(words: Words) -> Any:
        return "PONG" if words == (b"PING",) else len(words[1])

    async with ScriptedRedis(answer) as server, connected(server) as node:
        assert await node.exchange([[b"SIZE", large], [b"SIZE", b"1"]]) == [len(large), 1]


async def test_a_refused_command_has_its_error_among_the_answers() -> None:
    def answer(words: Words) -> Any:
        return {b"PING": "PONG", b"BAD": "-ERR no"}[words[0]]

    async with ScriptedRedis(answer) as server, connected(server) as node:
        before, error, after = await node.exchange([PING, [b"BAD"], PING])
        assert (before, after) == (b"PONG", b"PONG")
        assert isinstance(error, redis_errors.ResponseError)
        assert server.accepted == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("PONG\r\n+MORE", redis_errors.ConnectionError),
        ("-ERR max number of clients reached", redis_errors.ConnectionError),
        (HANG_UP, redis_errors.ConnectionError),
    ],
)
async def test_after_anything_else_than_its_answers_the_connection_is_made_anew(answer: Any, error: type) -> None:
    async with ScriptedRedis(pong) as server, connected(server, connections=1) as node:
        server.answer = otherwise(answer)
        with pytest.raises(error):
            await node.exchange([GET])
        assert await node.exchange([PING]) == [b"PONG"]
        assert server.accepted == 2
        assert not node.is_busy


async def test_what_is_no_redis_is_not_listened_to() -> None:
    async with ScriptedRedis(pong) as server, connected(server, connections=1) as node:
        exchange = asyncio.create_task(node.exchange([GET]))
        server.answer = otherwise(SILENCE)
        await until(lambda: server.count(b"GET"))
        server.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(redis_errors.InvalidResponse):
            await exchange
        await until(lambda: server.connections == 0)
        assert await node.exchange([PING]) == [b"PONG"]


@pytest.mark.parametrize("unasked", [b"+OK\r\n", b"$5\r\nab", b"+OK\r\n" * LARGE_BYTES])
async def test_who_speaks_unasked_is_asked_nothing_any_more(unasked: bytes) -> None:
    async with ScriptedRedis(pong) as server, connected(server, connections=1) as node:
        server.say(unasked)
        await until(lambda: server.connections == 0)
        assert await node.exchange([PING]) == [b"PONG"]
        assert server.accepted == 2


async def test_an_exchange_that_is_late_ends_and_holds_up_no_other() -> None:
    async with ScriptedRedis(pong) as server, connected(server, timeout_s=0.2) as node:
        server.answer = otherwise(SILENCE)
        late = asyncio.create_task(node.exchange([GET]))
        await until(lambda: server.count(b"GET"))
        while not late.done():
            assert await node.exchange([PING]) == [b"PONG"]
        with pytest.raises(redis_errors.TimeoutError, match=r"no answer within 0\.2 s"):
            await late
        await until(lambda: server.connections == 1)


async def test_who_reads_nothing_is_late_too() -> None:
    async with ScriptedRedis(pong) as server, connected(server, timeout_s=0.2) as node:
        server.answer = otherwise(SILENCE)
        with pytest.raises(redis_errors.TimeoutError):
            await node.exchange([GET, [b"SET", b"v" * (64 << 20)]])
        assert not node.is_busy


async def test_where_nobody_listens_nothing_was_sent() -> None:
    async with ScriptedRedis(pong) as server, connected(server, connections=1) as node:
        url = server.url
        server.hang_up()
        await until(lambda: server.connections == 0)
    gone = Node("a server", url, 1, PATIENCE_S)
    with pytest.raises(StoreError) as raised:
        await gone.exchange([GET])
    assert (raised.value.reason, raised.value.applied) == ("redis-connection", Applied.NO)
    assert HOST in str(raised.value)
    assert not node.is_busy
    await gone.close()


async def test_a_server_that_is_retired_is_left_once_the_last_answer_is_there_whoever_went() -> None:
    goes_on = asyncio.Event()

    async def answer(words: Words) -> Any:
        if words == (b"GET", b"k"):
            await goes_on.wait()
        return "PONG"

    complaints: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with ScriptedRedis(answer) as server, connected(server) as node:
        exchange = asyncio.create_task(node.exchange([GET]))
        await until(lambda: server.count(b"GET"))
        await node.retire()
        exchange.cancel()
        await asyncio.wait([exchange])
        assert (node.is_busy, server.connections) == (True, 1)
        goes_on.set()
        await until(lambda: server.connections == 0)
        assert not node.is_busy
    del exchange
    gc.collect()
    assert complaints == []


async def test_a_server_that_is_retired_serves_who_waits_for_a_connection_before_it_is_left() -> None:
    goes_on = asyncio.Event()

    async def answer(words: Words) -> Any:
        if words == (b"GET", b"k"):
            await goes_on.wait()
        return "PONG"

    async with ScriptedRedis(answer) as server, connected(server, connections=1) as node:
        exchanges = [asyncio.create_task(node.exchange([command])) for command in (GET, PING)]
        await until(lambda: server.count(b"GET"))
        await node.retire()
        goes_on.set()
        assert await asyncio.gather(*exchanges) == [[b"PONG"], [b"PONG"]]
        await until(lambda: server.connections == 0)
        assert server.accepted == 1


async def test_to_close_ends_what_the_server_has_not_taken() -> None:
    async def answer(words: Words) -> Any:
        await asyncio.sleep(0 if words == (b"PING",) else 3600)
        return "PONG"

    async with ScriptedRedis(answer) as server, connected(server) as node:
        exchange = asyncio.create_task(node.exchange([GET, [b"SET", b"v" * (16 << 20)]]))
        await until(lambda: server.count(b"GET"))
        await node.close()
        with pytest.raises(redis_errors.ConnectionError):
            await exchange
        assert not node.is_busy


async def test_a_connection_that_is_about_to_close_is_not_used() -> None:
    async with ScriptedRedis(pong) as server, connected(server, connections=1) as node:
        (connection,) = node._idle
        assert connection.wire is not None
        connection.wire._transport.abort()  # what asyncio does when the server resets the connection
        assert await node.exchange([PING]) == [b"PONG"]
        assert server.accepted == 2
