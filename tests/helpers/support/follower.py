"""A `Follower` in the place of a consumer: it follows the nsqds of a topic and finishes every message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from nsqdigest.base.errors import NsqdigestError, NsqdRefused
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address, Nsq, parse_text
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.connections import Connections
from nsqdigest.nsq.directory import Directory
from nsqdigest.nsq.frames import Message
from nsqdigest.nsq.lookups import Discovery
from support.lookupd import ScriptedLookupd
from support.servers import Nsqd, Nsqlookupd, NsqServer
from support.waiting import until

CHANNEL = "ch"
POLL_S = 0.1
SLACK_S = 2.0
"""What a shared machine may take over what is promised."""
HasHttp = Nsqlookupd | ScriptedLookupd


def settings(lookupds: list[HasHttp], nsqds: list[Nsqd], lookupd_poll_interval: str = f"{POLL_S * 1000:g}ms") -> Nsq:
    def addresses(pairs: list[tuple[str, int]]) -> str:
        return ", ".join(f'"{Address(*pair)}"' for pair in pairs)

    text = f"""
        [nsq]
        nsqd_tcp_addresses = [{addresses([nsqd.tcp_address for nsqd in nsqds])}]
        lookupd_http_addresses = [{addresses([lookupd.http_address for lookupd in lookupds])}]
        lookupd_poll_interval = "{lookupd_poll_interval}"
        heartbeat_interval = "1s"
        [sinks.out]
        type = "log"
        [[routes]]
        topic = "t"
        timeline = "x"
        sink = "out"
        """
    return parse_text(text, "test.toml", {}, KINDS).nsq


class Follower:
    def __init__(self, topic: str, lookupds: list[HasHttp], nsqds: list[Nsqd], **more: str) -> None:
        nsq = settings(lookupds, nsqds, **more)
        self.topic = topic
        self.metrics = Metrics()
        self.bodies: list[bytes] = []
        self.opened: list[NsqConnection] = []
        self.open: list[NsqConnection] = []
        self.drawn: list[tuple[float, float]] = []
        self.directory = Directory(nsq.nsqd_tcp_addresses, time.monotonic())
        self.connections = Connections(
            topic,
            CHANNEL,
            self.directory,
            ConnectionOptions(heartbeat_interval_ms=nsq.heartbeat_interval_ms),
            self,
            metrics=self.metrics,
            uniform=self.uniform,
        )
        self.discovery = Discovery(
            nsq, {topic: self.connections.on_lookup_answer}, metrics=self.metrics, uniform=self.uniform
        )
        self.longest_wait_s = 2.0

    def uniform(self, low: float, high: float) -> float:
        """The longest wait that may be drawn, up to a test's patience."""
        self.drawn.append((low, high))
        return min(high, self.longest_wait_s * 1000)

    async def __aenter__(self) -> Self:
        self.task = asyncio.create_task(self.connections.run())
        self.discovery.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.discovery.stop()
        self.connections.stop_connecting()
        for connection in list(self.open):
            connection.close("the test ends")
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    # -- as the owner of the connections

    def on_open(self, connection: NsqConnection) -> None:
        self.opened.append(connection)
        self.open.append(connection)
        connection.set_rdy(100)

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        self.bodies += [message.body for message in messages]
        connection.fin(messages)

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        raise AssertionError(error)

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        if connection in self.open:
            self.open.remove(connection)

    # -- what the test asks

    @property
    def connected(self) -> set[tuple[str, int]]:
        return {(connection.address.host, connection.address.port) for connection in self.open}

    async def reaches(self, *nsqds: Nsqd, within_s: float = 5.0) -> None:
        wanted = {nsqd.tcp_address for nsqd in nsqds}
        await until(lambda: self.connected == wanted, within_s, f"connections to {wanted}")

    async def gets(self, nsqd: Nsqd, body: bytes, within_s: float = 5.0) -> None:
        await asyncio.to_thread(nsqd.publish, self.topic, body)
        await until(lambda: body in self.bodies, within_s, f"{body!r}")

    def failures(self) -> float:
        return self.metrics.total("lookupd_failures_total")

    def lost(self, reason: str) -> int:
        """Connections that ended for this reason, by the metric; of no other reason is there any."""
        name = "nsqd_connections_lost_total"
        count = self.metrics.value(name, topic=self.topic, reason=reason) or 0
        assert count == self.metrics.total(name)
        return int(count)

    async def several_rounds(self, lookupd: ScriptedLookupd, count: int = 5) -> None:
        asked = len(lookupd.requests) + count
        await until(lambda: len(lookupd.requests) >= asked, 10.0, "some rounds")


class LogLines(logging.Handler):
    """The log's lines, as (level, event, fields)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, str(record.msg), getattr(record, "fields", {})))

    def of(self, event: str, level: int = logging.INFO) -> list[dict[str, Any]]:
        return [fields for at, name, fields in self.lines if name == event and at >= level]

    @property
    def warnings(self) -> list[str]:
        return [name for at, name, _ in self.lines if at >= logging.WARNING]


Start = Callable[..., Any]


def registering(*lookupds: Nsqlookupd) -> list[str]:
    return [f"--lookupd-tcp-address={Address(*each.tcp_address)}" for each in lookupds]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """Starts a server of the test's own: `started(Nsqd, "--option")`."""
    with contextlib.ExitStack() as ending:

        def start(kind: type[NsqServer], *options: str, **more: Any) -> NsqServer:
            server = kind(tmp_path / f"server-{time.monotonic_ns()}", *options, **more)
            ending.callback(server.forget)
            return ending.enter_context(server)

        yield start
