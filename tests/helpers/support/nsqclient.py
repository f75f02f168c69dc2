"""A raw NSQ V2 client for tests: it sends what it is told, in any order, and hands back what came, sorted by kind.

It never answers a heartbeat, sends no RDY and decides nothing by itself: a test sees what the server does.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Self

import msgspec
from nsq import protocol

from nsqdigest.nsq.commands import MAGIC_V2
from nsqdigest.nsq.frames import HEARTBEAT, FrameSplitter, FrameType, Message
from support.waiting import PATIENCE_S


class NsqClient:
    """`async with await NsqClient.connect(nsqd.tcp_address) as client:`. Every wait ends with a TimeoutError."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = FrameSplitter()
        self._ended = False
        self.messages: list[Message] = []
        self.responses: list[bytes] = []
        self.errors: list[bytes] = []
        self.heartbeats = 0

    @classmethod
    async def connect(cls, address: tuple[str, int], magic: bytes = MAGIC_V2) -> Self:
        reader, writer = await asyncio.open_connection(*address)
        client = cls(reader, writer)
        client.send(magic)
        return client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):  # the server was faster
            await self._writer.wait_closed()

    # -- sending

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def rdy(self, count: int) -> None:
        self.send(protocol.ready(count))

    def fin(self, message: Message) -> None:
        self.send(protocol.finish(message.id))

    def req(self, message: Message, delay_ms: int = 0) -> None:
        self.send(protocol.requeue(message.id, delay_ms))

    def touch(self, message: Message) -> None:
        self.send(protocol.touch(message.id))

    def cls(self) -> None:
        self.send(b"CLS\n")

    def half_close(self) -> None:
        """Says that nothing more will be sent; what comes can still be read."""
        self._writer.write_eof()

    # -- receiving

    async def _receive(self) -> None:
        try:
            data = await self._reader.read(256 * 1024)
        except ConnectionError:
            data = b""
        self._ended = not data
        messages, others = self._splitter.feed(data)
        self.messages += messages
        for frame_type, content in others:
            if frame_type == FrameType.ERROR:
                self.errors.append(content)
            elif content == HEARTBEAT:
                self.heartbeats += 1
            else:
                self.responses.append(content)

    async def _until(self, what: str, count: int, have: list[Any]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while len(have) < count and not self._ended:
                    await self._receive()
        except TimeoutError:
            pass
        if len(have) < count:
            raise TimeoutError(
                f"waited for {count} {what}; there are {len(self.messages)} messages, responses {self.responses}, "
                f"errors {self.errors}, and the connection is {'closed' if self._ended else 'open'}"
            )

    async def response(self) -> bytes:
        await self._until("responses", 1, self.responses)
        return self.responses.pop(0)

    async def error(self) -> str:
        """The next error's code, such as E_BAD_TOPIC."""
        await self._until("errors", 1, self.errors)
        return self.errors.pop(0).partition(b" ")[0].decode()

    async def take(self, count: int = 1) -> list[Message]:
        await self._until("messages", count, self.messages)
        taken, self.messages[:] = self.messages[:count], self.messages[count:]
        return taken

    async def heartbeat(self) -> None:
        beats = self.heartbeats
        async with asyncio.timeout(PATIENCE_S):
            while self.heartbeats == beats and not self._ended:
                await self._receive()
        if self.heartbeats == beats:
            raise ConnectionError("the connection ended before a heartbeat")

    async def end(self) -> None:
        """Reads on until the server has closed."""
        async with asyncio.timeout(PATIENCE_S):
            while not self._ended:
                await self._receive()

    # -- both

    async def identify(self, **features: Any) -> dict[str, Any]:
        self.send(protocol.identify({"feature_negotiation": True, **features}))
        answer: dict[str, Any] = msgspec.json.decode(await self.response())
        return answer

    async def sub(self, topic: str, channel: str) -> None:
        self.send(protocol.subscribe(topic, channel))
        assert await self.response() == b"OK"

    async def pub(self, topic: str, *bodies: bytes) -> None:
        self.send(protocol.pub(topic, bodies[0]) if len(bodies) == 1 else protocol.mpub(topic, list(bodies)))
        assert await self.response() == b"OK"
