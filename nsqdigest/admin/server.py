"""The HTTP server on `admin.listen` (loopback by default): `/livez`, `/readyz`, `/metrics`, the page and `/api`.

Live means that the event loop turns. Ready means that every check passes; `?verbose` names each, and marks with `!`
trouble that does not make the daemon unready: a sink that refuses, or a pause by an operator. Nothing here changes the
daemon; `operator` does. The checks come from `daemon.status`, the page from `pages`; who may ask for what is decided by
`guard`, and how many may be connected by `door`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import NamedTuple, cast

from aiohttp import web

from nsqdigest.admin import pages, unix_socket
from nsqdigest.admin.door import Door
from nsqdigest.admin.gate import MOST_BODY_BYTES, Connection, Gate, ServerLog, on_expect
from nsqdigest.admin.guard import Tokens
from nsqdigest.admin.listener import Listener
from nsqdigest.base.errors import Unreachable
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address, UnixSocket
from nsqdigest.config.rules import is_local


class Check(NamedTuple):
    name: str
    is_well: bool
    """False makes the daemon unready."""
    detail: str
    is_trouble: bool = False
    """Somebody should look at it; the daemon stays ready."""

    @property
    def line(self) -> str:
        return f"[{'-' if not self.is_well else TROUBLE if self.is_trouble else '+'}] {self.name}: {self.detail}"


TROUBLE = "!"


def url_of(listen: Address | UnixSocket, path: str) -> str:
    """For people: what to ask, and how."""
    if isinstance(listen, UnixSocket):
        return f"curl --unix-socket {listen.path} http://localhost{path}"
    return f"http://{listen}{path}"


CLIENTS_END_WITHIN_S = 0.5
"""A request in progress gets so long when the daemon ends: a client that sends half a body, or does not read, must not
delay it. (aiohttp waits that long twice.)"""


_BACKLOG = 100
_LINGERS_S = 1.0
"""Where the answer came before the body, the body is read for so long: who sends it gets the answer."""


class AdminServer:
    def __init__(
        self,
        listen: Address | UnixSocket,
        metrics: Metrics,
        checks: Callable[[], list[Check]],
        api: Iterable[web.RouteDef] = (),
        tokens: Callable[[], Tokens] = Tokens,
    ) -> None:
        """`api`: what is under /api/. `tokens` returns those of the file in force."""
        self._listen = listen
        self._metrics = metrics
        self._checks = checks
        application = web.Application(client_max_size=MOST_BODY_BYTES)
        routes = [
            web.get("/livez", self._livez),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics_text),
            *pages.routes(),
            *api,
        ]
        for route in routes:
            route.kwargs["expect_handler"] = on_expect
        application.router.add_routes(routes)
        self._gate = Gate(tokens, metrics, is_local=is_local(listen))
        self._door = Door(self._protocol, self._gate.count)
        self._gate.attach(application, self._door)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLIENTS_END_WITHIN_S)
        self._listener: Listener | None = None
        self._socket_inode: int | None = None

    async def start(self) -> None:
        await self._runner.setup()
        try:
            sockets = await self._sockets(asyncio.get_running_loop())
        except Unreachable:
            await self._runner.cleanup()
            raise
        self._listener = Listener(sockets, self._door)
        self._listener.start()

    async def _sockets(self, loop: asyncio.AbstractEventLoop) -> list[socket.socket]:
        if isinstance(self._listen, UnixSocket):
            try:
                listener = await loop.run_in_executor(None, unix_socket.listening, self._listen.path)
            except Unreachable as error:
                raise Unreachable(f"admin.listen: {error}") from error
            self._socket_inode = os.stat(self._listen.path).st_ino
            return [_listens(listener)]
        try:
            # asyncio knows which sockets a host name takes; it does not accept on them.
            server = await loop.create_server(
                self._door, self._listen.host, self._listen.port, reuse_address=True, start_serving=False
            )
            try:
                return [_listens(bound.dup()) for bound in server.sockets]
            finally:
                server.close()
        except OSError as error:
            raise Unreachable(
                f"admin.listen: cannot listen on {self._listen} ({error.strerror or error}): is another daemon "
                'running? Choose another port, or "" for none'
            ) from error

    def _protocol(self) -> asyncio.Protocol:
        assert self._runner.server is not None
        return Connection(
            self._runner.server,
            loop=asyncio.get_running_loop(),
            access_log=cast(logging.Logger, None),
            auto_decompress=False,
            tcp_keepalive=not isinstance(self._listen, UnixSocket),
            lingering_time=_LINGERS_S,
            logger=cast(logging.Logger, ServerLog(self._gate.count)),
        )

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
            if isinstance(self._listen, UnixSocket) and self._socket_inode is not None:
                unix_socket.remove(self._listen.path, self._socket_inode)
        await self._runner.cleanup()

    async def _livez(self, _request: web.Request) -> web.Response:
        return _plain("ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        checks = self._checks()
        is_well = all(check.is_well for check in checks)
        lines = [check.line for check in checks]
        summary = "ready" if is_well else "not ready"
        shown = "verbose" in request.query or not is_well
        return _plain("\n".join([*lines, summary] if shown else [summary]) + "\n", 200 if is_well else 503)

    async def _metrics_text(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition(request.headers.get("accept", ""))
        return web.Response(body=body, headers={"content-type": content_type})


def _listens(bound: socket.socket) -> socket.socket:
    bound.setblocking(False)
    bound.listen(_BACKLOG)
    return bound


def _plain(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status)
