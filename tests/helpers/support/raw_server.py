"""A TCP server whose every connection is a script: it reads requests and writes whatever bytes a test wants.

`async with RawServer(script) as server:`. A script is a coroutine function that gets the connection. When it returns,
the server hangs up; at the end of the `with` every script that still runs is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Self

from support.ports import HOST


class Peer:
    """One connection, from the server's side. `number` counts them from 1."""

    def __init__(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = number
        self._reader = reader
        self._writer = writer
        self.requests = 0
        self.last_head = b""

    async def head(self) -> bytes:
        return await self._reader.readuntil(b"\r\n\r\n")

    async def line(self) -> bytes:
        return await self._reader.readuntil(b"\n")

    async def request(self) -> bytes:
        """The body of the next request. Raises IncompleteReadError where the client has hung up."""
        self.last_head = await self.head()
        head = self.last_head.lower()
        length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        self.requests += 1
        return await self._reader.readexactly(int(length.partition(b":")[2]))

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def hung_up(self) -> None:
        """Until the client has."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65_536):
                pass

    def reset(self) -> None:
        """RST in place of FIN."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def close(self) -> None:
        self._writer.close()


Script = Callable[[Peer], Awaitable[None]]


class RawServer:
    def __init__(self, script: Script, tls: ssl.SSLContext | None = None) -> None:
        self._script = script
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.requests = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{HOST}:{self.port}/secret"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A plain function: asyncio would log the cancellation of a coroutine of its own as an error.
        self.connections += 1
        task = asyncio.create_task(self._talk(Peer(self.connections, reader, writer), writer))
        self._tasks.add(task)

    async def _talk(self, peer: Peer, writer: asyncio.StreamWriter) -> None:
        try:
            await self._script(peer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.requests += peer.requests
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()


async def silent(peer: Peer) -> None:
    """Reads and never writes."""
    await peer.hung_up()
