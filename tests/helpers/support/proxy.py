"""A TCP proxy in the test's own loop that does to a connection what networks do: loses replies, cuts, resets, stalls.

`mode` may change at any moment and holds for all connections, old and new. What was held back by a pause is passed on
when it ends; what was dropped is gone.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from enum import Enum, auto
from typing import Self

from support.ports import HOST

CHUNK_BYTES = 1 << 16
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Mode(Enum):
    PASS = auto()
    DROP_REPLIES = auto()
    """Requests reach the server, its answers do not come back; the connection stays."""
    CUT_REPLIES = auto()
    """The first byte of an answer comes back, then the connection ends."""
    RESET_REPLIES = auto()
    """Where an answer should come there is a TCP reset."""
    PAUSE = auto()
    """Nothing passes, in neither direction."""


class Proxy:
    def __init__(self, port: int) -> None:
        """`port`: of the server, on this machine; new connections go to `server_port`, should that change."""
        self.server_port = port
        self._mode = Mode.PASS
        self._moves = asyncio.Event()
        self._moves.set()
        self._listener: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.port = 0
        self.requests_bytes = 0
        """How many bytes came from clients so far."""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._connected, HOST, 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        self._listener.close()
        for pump in self._pumps:
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)
        await self._listener.wait_closed()

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode is Mode.PAUSE:
            self._moves.clear()
        else:
            self._moves.set()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(HOST, self.server_port)
        for pump in (self._pump(client, to_server, False), self._pump(server, to_client, True)):
            task = asyncio.create_task(pump)
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, are_replies: bool) -> None:
        """One direction, until either end goes."""
        try:
            with suppress(OSError):
                while data := await reader.read(CHUNK_BYTES):
                    if not are_replies:
                        self.requests_bytes += len(data)
                    await self._moves.wait()
                    if are_replies and self._mode is not Mode.PASS:
                        if self._mode is Mode.DROP_REPLIES:
                            continue
                        if self._mode is Mode.CUT_REPLIES:
                            writer.write(data[:1])
                            await writer.drain()
                        else:
                            end: socket.socket = writer.get_extra_info("socket")
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                        return
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.close()
