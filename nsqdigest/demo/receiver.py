"""The receivers: a webhook that checks signatures, and a reader of the dead-letter topic."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from nsqdigest.base.errors import NsqdigestError, NsqdRefused
from nsqdigest.config import Address
from nsqdigest.delivery.sinks.webhook import signature, signing_key
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import Message

HOST = "127.0.0.1"


class WebhookReceiver:
    """Answers 204 to what is signed with the secret, 401 to anything else."""

    def __init__(self, secret: str, on_digest: Callable[[bytes], None], on_forgery: Callable[[], None]) -> None:
        self._key = signing_key(secret)
        self._on_digest = on_digest
        self._on_forgery = on_forgery
        self.port = 0
        application = web.Application(client_max_size=4 << 20)
        application.router.add_post("/digests", self._receive)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/digests"

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        if not self._is_signed(request, body):
            self._on_forgery()
            return web.Response(status=401)
        self._on_digest(body)
        return web.Response(status=204)

    def _is_signed(self, request: web.Request, body: bytes) -> bool:
        shown, timestamp = request.headers.get("webhook-signature", ""), request.headers.get("webhook-timestamp", "")
        if not (timestamp.isascii() and timestamp.isdigit()):
            return False
        right = signature([self._key], request.headers.get("webhook-id", ""), int(timestamp), body)
        return hmac.compare_digest(shown.encode(), right.encode())


class DeadLetterReader:
    """Reads a topic as any consumer would, and finishes what it has read."""

    def __init__(self, nsqd: Address, topic: str, on_letter: Callable[[dict[str, Any]], None]) -> None:
        self._topic = topic
        self._on_letter = on_letter
        self._connection = NsqConnection(nsqd, ConnectionOptions(heartbeat_interval_ms=30_000), self)

    async def __aenter__(self) -> Self:
        await self._connection.open()
        await self._connection.subscribe(self._topic, "demo")
        self._connection.set_rdy(10)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._connection.close("the demo ends")
        await self._connection.hang_up()

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        for message in messages:
            self._on_letter(msgspec.json.decode(message.body))
        connection.fin(messages)

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        """nsqd sends the message again, and the account gets a complaint."""

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        """At the end of the demo. A connection that breaks before leaves dead letters missing in the account."""


def new_secret(random_bytes: bytes) -> str:
    return "whsec_" + base64.b64encode(random_bytes).decode()
