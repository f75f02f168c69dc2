"""Nothing is left behind: no memory after thousands of reconnects and bad frames, no task, no socket.

Memory is what Python's allocator holds (tracemalloc) after a collection, before and after, against a small server in
this process, which remembers nothing. The bound holds for any number of rounds: what grew by a byte with each would
break it.
"""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from nsqdigest.base.errors import NsqdigestError, NsqdRefused, PublishError
from nsqdigest.config import Address, load
from nsqdigest.daemon.life import Daemon
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.nsq.commands import MAGIC_V2
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import FrameType, Message, frame, message_frame
from nsqdigest.nsq.publisher import Publisher
from support.ports import HOST
from support.stage import PROVE, TOPIC, Stage
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

RECONNECTS = 5_000 if PROVE else 250
BAD_FRAMES_OF_A_KIND = 5_600 if PROVE else 25
"""Of nine kinds: 50,000 in all where it is to be proven."""
PUBLISHES = 5_000 if PROVE else 250
WARM_UP = 25
GROWTH_ALLOWED_BYTES = 64 * 1024
OPTIONS = ConnectionOptions(heartbeat_interval_ms=30_000)

OK = frame(FrameType.RESPONSE, b"OK")
A_MESSAGE = message_frame(Message(b"0" * 16, 1, 1, b"x" * 100))
BAD = {
    "a type from the future": frame(7, b"data"),
    "a negative size": struct.pack(">ii", -5, 2),
    "a huge size": struct.pack(">ii", 2**31 - 1, 2),
    "a message without a header": frame(FrameType.MESSAGE, b"short"),
    "an answer that nobody asked for": frame(FrameType.RESPONSE, b"CLOSE_WAIT"),
    "an error that nobody knows": frame(FrameType.ERROR, b"E_SOMETHING_NEW " + b"z" * 1_000),
    "messages and garbage": A_MESSAGE * 20 + frame(9, b""),
    "half a message": A_MESSAGE[:-1],
    "noise": random.Random(1).randbytes(4_096),
}


class ScriptedServer:
    """Answers IDENTIFY and SUB like an nsqd, says `last_words`, and hangs up, as it does to a PUB. It keeps nothing."""

    def __init__(self, last_words: Callable[[], bytes]) -> None:
        self._last_words = last_words
        self._server: asyncio.Server | None = None
        self.address = Address(HOST, 0)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._talk, HOST, 0)
        self.address = Address(HOST, self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(len(MAGIC_V2))
            while line := await reader.readline():
                if line.startswith((b"IDENTIFY", b"PUB")):
                    await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                if line.startswith(b"PUB"):
                    return
                writer.write(frame(FrameType.RESPONSE, b"{}") if line.startswith(b"IDENTIFY") else OK)
                if line.startswith(b"SUB"):
                    await reader.readline()  # RDY: no nsqd sends messages before it
                    writer.write(self._last_words())
                    await writer.drain()
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class Counting:
    """A receiver that keeps numbers only."""

    def __init__(self) -> None:
        self.messages = 0
        self.closed = 0

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        self.messages += len(messages)

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None: ...

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        self.closed += 1


@asynccontextmanager
async def no_task_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await until(lambda: asyncio.all_tasks() <= before, PATIENCE_S, "every task to end")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def held_bytes() -> int:
    await asyncio.sleep(0)  # callbacks of what has just ended
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def growth_of(rounds: int, one_round: Callable[[], Awaitable[None]]) -> int:
    """Bytes that are held after so many rounds, and were not before."""
    tracemalloc.start()
    try:
        for _ in range(WARM_UP):
            await one_round()
        files = open_files()
        before = await held_bytes()
        for _ in range(rounds):
            await one_round()
        grown = await held_bytes() - before
        assert open_files() <= files + 2  # the server's side of the last one may still be open
        return grown
    finally:
        tracemalloc.stop()


async def connect_and_lose(address: Address, receiver: Counting) -> None:
    connection = NsqConnection(address, OPTIONS, receiver)
    await connection.open()
    await connection.subscribe(TOPIC, "ch")
    connection.set_rdy(1)
    await connection.closed()
    await connection.hang_up()


async def test_memory_stays_flat_over_reconnects() -> None:
    receiver = Counting()
    async with no_task_left(), ScriptedServer(lambda: A_MESSAGE * 3) as server:
        grown = await growth_of(RECONNECTS, lambda: connect_and_lose(server.address, receiver))
    assert receiver.closed == WARM_UP + RECONNECTS
    assert receiver.messages == 3 * receiver.closed
    assert grown < GROWTH_ALLOWED_BYTES


@pytest.mark.parametrize("kind", BAD)
async def test_memory_stays_flat_over_bad_frames(kind: str) -> None:
    receiver = Counting()
    async with no_task_left(), ScriptedServer(lambda: BAD[kind]) as server:
        grown = await growth_of(BAD_FRAMES_OF_A_KIND, lambda: connect_and_lose(server.address, receiver))
    assert receiver.closed == WARM_UP + BAD_FRAMES_OF_A_KIND
    assert grown < GROWTH_ALLOWED_BYTES


async def test_memory_stays_flat_over_publishes_that_fail() -> None:
    """Each ends the connection, each makes another one."""
    async with no_task_left(), ScriptedServer(lambda: b"") as server:
        publisher = Publisher(OPTIONS, uniform=lambda _low, _high: 0.0)

        async def publish() -> None:
            with pytest.raises(PublishError):
                await publisher.publish(server.address, TOPIC, [b"x" * 100])

        grown = await growth_of(PUBLISHES, publish)
        await publisher.close()
    assert grown < GROWTH_ALLOWED_BYTES


@pytest.mark.parametrize("stage_of_life", ["connecting", "introducing itself", "subscribed", "draining"])
async def test_a_connection_that_is_closed_leaves_no_task(stage_of_life: str) -> None:
    introduced = asyncio.Event()

    async def never_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = {b"IDENTIFY\n": b"{}", b"SUB events ch\n": b"OK"}
        await reader.readexactly(len(MAGIC_V2))
        while line := await reader.readline():
            if line.startswith(b"IDENTIFY"):
                await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            introduced.set()
            if line in answers and stage_of_life in ("subscribed", "draining"):
                writer.write(frame(FrameType.RESPONSE, answers[line]))
        writer.close()

    receiver = Counting()
    async with no_task_left(), await asyncio.start_server(never_answers, HOST, 0) as server:
        connection = NsqConnection(Address(HOST, server.sockets[0].getsockname()[1]), OPTIONS, receiver)
        under_way: asyncio.Future[Any] = asyncio.ensure_future(connection.open())
        if stage_of_life == "connecting":
            await asyncio.sleep(0)
        elif stage_of_life == "introducing itself":
            await introduced.wait()
        else:
            await under_way
            await connection.subscribe(TOPIC, "ch")
            if stage_of_life == "draining":
                under_way = asyncio.ensure_future(connection.say_goodbye())
                await asyncio.sleep(0)
        connection.close("enough")
        await asyncio.gather(under_way, return_exceptions=True)
        await connection.hang_up()
    assert receiver.closed == 1


@pytest.mark.servers
async def test_a_daemon_that_drained_leaves_no_task(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    process = stage.daemon()
    process.start()  # writes the file and shows that it is right
    process.stop()
    threshold = gc.get_threshold()
    try:
        async with no_task_left():
            daemon = Daemon(load(process.config_path, {}, KINDS))
            await daemon.start()
            await asyncio.to_thread(stage.publisher(nsqd).publish, 500)
            await until(lambda: receiver.posts, PATIENCE_S, "a digest")
            await daemon.drain()
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
