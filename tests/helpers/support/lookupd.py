"""A nsqlookupd that answers what the test says, in the test's own loop: bytes as they are, well or badly formed."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Self

from support.ports import HOST
from support.servers import Nsqlookupd
from support.waiting import wait_until


@dataclass(frozen=True, slots=True)
class Reply:
    """What is written after a request. `pause_s`: between one byte and the next. `hangs_up`: closes behind it."""

    data: bytes
    pause_s: float = 0.0
    hangs_up: bool = True


def http(status: str, body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body) if length is None else length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def naming(*addresses: tuple[str, int]) -> Reply:
    """An ordinary answer."""
    producers: Iterable[dict[str, object]] = (
        {"broadcast_address": host, "tcp_port": port, "http_port": port + 1} for host, port in addresses
    )
    return Reply(http("200 OK", json.dumps({"channels": [], "producers": list(producers)}).encode()))


@contextmanager
def registered(lookupd: Nsqlookupd, topic: str, host: str, port: int) -> Iterator[None]:
    """An nsqd that only claims to be one: a real nsqlookupd names it as long as this lasts."""
    facts = {"broadcast_address": host, "hostname": host, "tcp_port": port, "http_port": port, "version": "1.3.0"}
    body = json.dumps(facts).encode()
    with socket.create_connection(lookupd.tcp_address) as connection:
        connection.sendall(b"  V1IDENTIFY\n" + struct.pack(">i", len(body)) + body + f"REGISTER {topic}\n".encode())
        wait_until(lambda: (host, port) in lookupd.nsqds_of(topic), what="the registration")
        yield


class ScriptedLookupd:
    """`async with ScriptedLookupd(naming(("127.0.0.1", 4150))) as lookupd:`; `reply` may change at any moment."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.requests: list[str] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()

    @property
    def http_address(self) -> tuple[str, int]:
        return HOST, self.port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        if self._talks:
            await asyncio.wait(self._talks)
        await self._server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                request = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(request.split(b" ")[1].decode())
                reply = self.reply
                pieces = [reply.data] if not reply.pause_s else [bytes([byte]) for byte in reply.data]
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(reply.pause_s)
                if not reply.hangs_up:
                    await reader.read()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
