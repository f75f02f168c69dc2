"""A small nsqd, in memory and in this process: for the demo, and for tests of whatever speaks to one.

It behaves as nsqd 1.3.0 with default flags, snappy and deflate off; the same contract tests run against both. What
differs:

- nothing is on disk: `stop` keeps the messages in the object for the next `start`, and a process that ends loses them;
- TLS, snappy, deflate and AUTH are not there: never offered, and not accepted when asked for;
- `sample_rate` is answered, not applied; `output_buffer_*` likewise (everything is written at once);
- topics and channels cannot be emptied or deleted, topics not paused; no queue has a limit, not even an ephemeral one;
- /stats is JSON only, without producers, memory and latencies; of HTTP there is what `nsqd_http` lists;
- an MPUB is judged when all of it is there, and its messages must fit its size;
- a client that does not read is not sent more, instead of being cut off after one heartbeat interval;
- timeouts and delays are noticed within 50 ms, also in a channel made just now (nsqd may take 5 s to look at it).

For tests it can be directed: `script.answer` replaces the answer to a command, `script.on_command` sees each,
`send_raw` sends any bytes, `freeze` is a SIGSTOP, and `connections` remember what each client sent. Everything happens
on the loop that started it; `until` waits for a condition without asking again and again.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.demo.servers.nsqd_http import HttpSide
from nsqdigest.demo.servers.nsqd_protocol import Connection, Script, Watchers
from nsqdigest.demo.servers.nsqd_queues import Broker, Options, Refusal, valid_name
from nsqdigest.demo.servers.ports import draw_port
from nsqdigest.nsq.frames import Message

__all__ = ["Connection", "EmbeddedNsqd", "Options", "Refusal", "Script"]

SCAN_S = 0.05
REMEMBERED_CONNECTIONS = 256


class EmbeddedNsqd:
    """`async with EmbeddedNsqd() as nsqd:`, or `start` and `stop`. A port 0 is drawn at the first start, then kept."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.script = Script()
        self.connections: deque[Connection] = deque(maxlen=REMEMBERED_CONNECTIONS)
        """In the order of their coming, closed ones too (`.open`)."""
        self._broker = Broker(self.options, time.monotonic)
        self._open: set[Connection] = set()
        self._frozen = False
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._scan: asyncio.TimerHandle | None = None
        self._host = ""
        self._tcp_port = 0
        self._http_port = 0
        self._waiters: dict[int, tuple[Callable[[], object], asyncio.Future[None]]] = {}
        self._waiter_ids = itertools.count()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- the server

    @property
    def running(self) -> bool:
        return self._server is not None

    @property
    def tcp_address(self) -> tuple[str, int]:
        return self._host, self._tcp_port

    @property
    def http_address(self) -> tuple[str, int]:
        return self._host, self._http_port

    async def start(self, host: str = "127.0.0.1", tcp_port: int = 0, http_port: int = 0) -> None:
        if self.running:
            raise NsqdigestError(f"the embedded nsqd is running already, on {self._host}:{self._tcp_port}")
        self._loop = asyncio.get_running_loop()
        self._host = host
        tcp_port = tcp_port or self._tcp_port or draw_port(host)
        http_port = http_port or self._http_port or draw_port(host)
        watchers = Watchers(self._opened, self._closed, self._changed, self.script)
        self._server = await self._loop.create_server(lambda: Connection(self._broker, watchers), host, tcp_port)
        try:
            await self._start_http(host, http_port)
        except OSError:
            await self.stop()
            raise
        self._tcp_port, self._http_port = tcp_port, http_port
        self._tick()

    async def _start_http(self, host: str, port: int) -> None:
        self._runner = web.AppRunner(HttpSide(self._broker).application(), access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
        """Closes every connection. What was in flight or deferred is queued, for when it starts again."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        if self._scan is not None:
            self._scan.cancel()
        for connection in list(self._open):
            connection.abort()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self.until(lambda: not self._open)
        await server.wait_closed()
        self._broker.give_all_back()

    def _tick(self) -> None:
        if not self._frozen and self._broker.expire():
            self._changed()
        self._scan = self._loop.call_later(SCAN_S, self._tick)

    # -- without a connection

    def publish(self, topic: str, body: bytes, delay_ms: int = 0) -> Message:
        """As if a client had sent it. Returns it with its id and timestamp."""
        if not valid_name(topic):
            raise Refusal("E_BAD_TOPIC", f'PUB topic name "{topic}" is not valid')
        if not 0 < len(body) <= self.options.max_msg_size_bytes:
            raise Refusal(
                "E_BAD_MESSAGE", f"PUB of {len(body)} bytes: 1 to {self.options.max_msg_size_bytes} can be one"
            )
        (message,) = self._broker.publish(topic, [body], delay_ms)
        return message

    def stats(self, topic: str = "", channel: str = "") -> dict[str, Any]:
        """As `GET /stats?format=json` returns them."""
        return self._broker.stats(topic, channel)

    def most_in_flight(self, topic: str, channel: str) -> int:
        """The sum of RDY over the channel's connections."""
        topics = self._broker.stats(topic, channel)["topics"]
        clients = topics[0]["channels"][0]["clients"] if topics else []
        return sum(client["ready_count"] for client in clients)

    # -- for scripts

    def send_raw(self, connection: Connection, data: bytes) -> None:
        connection.send_raw(data)

    def freeze(self) -> None:
        """Like SIGSTOP, for the TCP side: sockets stay open and new ones are accepted; nothing is read or sent."""
        self._frozen = True
        for connection in self._open:
            connection.freeze()

    def thaw(self) -> None:
        self._frozen = False
        for connection in self._open:
            connection.thaw()

    async def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Returns when it holds; looked at after each command, arrival and departure. Raises TimeoutError."""
        if condition():
            return
        number = next(self._waiter_ids)
        holds = self._loop.create_future()
        self._waiters[number] = condition, holds
        try:
            async with asyncio.timeout(timeout_s):
                await holds
        finally:
            del self._waiters[number]

    def _changed(self) -> None:
        for condition, holds in list(self._waiters.values()):
            if not holds.done() and condition():
                holds.set_result(None)

    def _opened(self, connection: Connection) -> None:
        self.connections.append(connection)
        self._open.add(connection)
        if self._frozen:
            connection.freeze()

    def _closed(self, connection: Connection) -> None:
        self._open.discard(connection)
