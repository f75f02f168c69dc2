"""A server that speaks Redis' protocol and says what a test wants: what no real server says on demand.

It answers what a driver says at the start of each connection with OK. What it is asked after that goes to `answer`,
which returns the answer: bytes, a number, a list of answers, None, or text for a status (with a dash before it: an
error); `HANG_UP` closes the connection, `SILENCE` says nothing any more. A coroutine function may wait first.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import hiredis

from nsqdigest.config import Address
from support.ports import HOST

Words = tuple[bytes, ...]
Answer = Callable[[Words], Any]

HANG_UP = object()
SILENCE = object()
_AT_THE_START = frozenset((b"AUTH", b"CLIENT", b"SELECT"))


class ScriptedRedis:
    """`async with ScriptedRedis(answer) as server:`; `answer` may be another one later."""

    def __init__(self, answer: Answer = lambda words: "OK") -> None:
        self.answer = answer
        self.asked: list[Words] = []
        """What came after the start of a connection."""
        self.started: list[Words] = []
        """What came at the starts of connections."""
        self.connections = 0
        """Open ones."""
        self.accepted = 0
        self.address = Address(HOST, 0)

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def count(self, *words: bytes) -> int:
        """How often it was asked something that begins so."""
        return sum(asked[: len(words)] == words for asked in self.asked)

    def say(self, unasked: bytes) -> None:
        """To all that are connected."""
        for writer in self._writers:
            writer.write(unasked)

    def hang_up(self) -> None:
        """On all that are connected."""
        for writer in self._writers:
            writer.close()

    async def __aenter__(self) -> Self:
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.address = Address(HOST, self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.accepted += 1
        self._writers.add(writer)
        with suppress(OSError):
            await self._converse(reader, writer)
        self.connections -= 1
        self._writers.discard(writer)
        writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                words: Words = tuple(command)
                if words[0] in _AT_THE_START:
                    self.started.append(words)
                    writer.write(encoded("OK"))
                    continue
                self.asked.append(words)
                said = self.answer(words)
                if inspect.isawaitable(said):
                    said = await said
                if said is HANG_UP:
                    return
                if said is SILENCE:
                    await reader.read()
                    return
                writer.write(encoded(said))


def encoded(answer: Any) -> bytes:
    match answer:
        case None:
            return b"$-1\r\n"
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(answer), answer)
        case int():
            return b":%d\r\n" % answer
        case str():
            return f"{'' if answer.startswith('-') else '+'}{answer}\r\n".encode()
        case list():
            return b"*%d\r\n%b" % (len(answer), b"".join(map(encoded, answer)))
    raise TypeError(answer)
