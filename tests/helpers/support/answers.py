"""Receivers that answer in every way there is: one server in a thread of its own, and a script for each sink.

A script is a coroutine function that gets the connection after a whole post was read; when it returns the server hangs
up. The first posts of a sink are answered by its script, those after them with 204.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import NamedTuple, Self

from support.ports import HOST
from support.raw_server import Peer, RawServer
from support.waiting import PATIENCE_S

Script = Callable[[Peer], Awaitable[None]]
_ACCEPTED = b"HTTP/1.1 204 No Content\r\n\r\n"


class Came(NamedTuple):
    id: str
    attempt: int
    body: bytes
    at_s: float


class Answers:
    """`with Answers(scripts, 2) as answers:`. A sink NAME posts to `answers.url(NAME)`. Those `for_ever` get no 204."""

    def __init__(self, scripts: Mapping[str, Script], trouble: int, for_ever: Collection[str] = ()) -> None:
        self._scripts = scripts
        self._trouble = trouble
        self._for_ever = for_ever
        self._servers = [RawServer(self._serve)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="answers", daemon=True)
        self.posts: dict[str, list[Came]] = {name: [] for name in scripts}
        self.strays: list[bytes] = []
        """What was asked for that no sink's URL names."""

    def url(self, name: str) -> str:
        return f"http://{HOST}:{self._servers[0].port}/{name}"

    def another(self, script: Script, tls: ssl.SSLContext | None = None) -> RawServer:
        """A server beside it, in its thread."""
        server = RawServer(script, tls)
        asyncio.run_coroutine_threadsafe(server.__aenter__(), self._loop).result(PATIENCE_S)
        self._servers.append(server)
        return server

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._servers[0].__aenter__(), self._loop).result(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            asyncio.run_coroutine_threadsafe(server.__aexit__(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _serve(self, peer: Peer) -> None:
        while True:
            body = await peer.request()
            request, *lines = peer.last_head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            _, path, _ = request.split(" ", 2)
            posts = self.posts.get(path.removeprefix("/"))
            if posts is None or not request.startswith("POST "):
                self.strays.append(peer.last_head)
                return
            posts.append(Came(headers["webhook-id"], int(headers["nsqdigest-attempt"]), body, time.monotonic()))
            name = path.removeprefix("/")
            if len(posts) <= self._trouble or name in self._for_ever:
                await self._scripts[name](peer)
                return
            await peer.write(_ACCEPTED)


# -- scripts


def writes(*parts: bytes, every_s: float = 0.0, resets: bool = False) -> Script:
    """These bytes, then the end of the connection."""

    async def script(peer: Peer) -> None:
        for part in parts:
            await peer.write(part)
            await asyncio.sleep(every_s)
        if resets:
            peer.reset()

    return script


def status(code: int, *headers: str, body: bytes = b"") -> Script:
    lines = "".join(f"{header}\r\n" for header in headers)
    return writes(f"HTTP/1.1 {code} {code}\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)


def drips(head: bytes, part: bytes) -> Script:
    """One part after the other, for ever."""

    async def script(peer: Peer) -> None:
        await peer.write(head)
        while True:
            await peer.write(part)
            await asyncio.sleep(0.02)

    return script


def floods(head: bytes, total_bytes: int) -> Script:
    async def script(peer: Peer) -> None:
        await peer.write(head)
        with contextlib.suppress(ConnectionError):
            for _ in range(total_bytes >> 16):
                await peer.write(b"x" * 65_536)

    return script


async def hangs(peer: Peer) -> None:
    await peer.hung_up()


def bomb() -> bytes:
    """256 MiB of zeros, in 256 KiB."""
    return gzip.compress(bytes(1 << 20)) * 256
