"""`/livez`, `/readyz` and `/metrics` over HTTP, on `admin.listen` (loopback by default).

Live means that the event loop turns. Ready means that every check passes; `?verbose` names each, and marks with `!`
trouble that does not make the daemon unready: a sink that refuses, or a pause by an operator. Nothing here changes the
daemon; `operator` does. The checks come from `daemon.status`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from aiohttp import web

from nsqdigest.base.errors import Unreachable
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address


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

CLIENTS_END_WITHIN_S = 0.5
"""A request in progress gets so long when the daemon ends: a client that sends half a body, or does not read, must not
delay it. (aiohttp waits that long twice.)"""


class AdminServer:
    def __init__(
        self, listen: Address, metrics: Metrics, checks: Callable[[], list[Check]], api: Iterable[web.RouteDef] = ()
    ) -> None:
        self._listen = listen
        self._metrics = metrics
        self._checks = checks
        application = web.Application(client_max_size=64 * 1024)
        application.router.add_get("/livez", self._livez)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics_text)
        application.router.add_routes(api)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=CLIENTS_END_WITHIN_S)

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._listen.host, self._listen.port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise Unreachable(
                f"admin.listen: cannot listen on {self._listen} ({error.strerror or error}): is another daemon "
                'running? Choose another port, or "" for none'
            ) from error

    async def stop(self) -> None:
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
        return web.Response(body=body, headers={"content-type": content_type, "cache-control": "no-store"})


def _plain(text: str, status: int = 200) -> web.Response:
    return web.Response(
        text=text, status=status, headers={"cache-control": "no-store", "x-content-type-options": "nosniff"}
    )
