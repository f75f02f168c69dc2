"""Connections to the HTTP server: how many, how long, how much. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from nsqdigest.admin import door, gate
from nsqdigest.admin.guard import Tokens
from nsqdigest.admin.server import AdminServer, Check
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address, Secret
from support.ports import HOST, free_port
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

GET = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
TOKEN = "a-long-enough-token"
ANSWERED = b"HTTP/1.1 200 OK\r\n"


class Peer:
    """A client of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def answer(self) -> bytes:
        """The head of the next one; b"" where the connection was closed."""
        try:
            return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def rest(self) -> bytes:
        """Until the server closes the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE_S)
        except ConnectionError:
            return b""

    async def is_closed(self) -> bool:
        return await self.rest() is not None

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Served:
    def __init__(self) -> None:
        self.address = Address(HOST, free_port())
        self.metrics = Metrics()
        self.goes_on = asyncio.Event()
        api = [web.get("/api/slow", self.slow), web.post("/api/slow", self.slow), web.get("/api/large", self.large)]
        checks = [Check("running", True, "yes")]
        self.server = AdminServer(self.address, self.metrics, lambda: checks, api, lambda: Tokens(Secret(TOKEN)))
        self.peers: list[Peer] = []
        self.slow_ones = 0

    async def slow(self, _request: web.Request) -> web.Response:
        self.slow_ones += 1
        await self.goes_on.wait()
        return web.json_response({})

    async def large(self, _request: web.Request) -> web.Response:
        return web.Response(body=b" " * (32 << 20))

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_connection(self.address.host, self.address.port))
        self.peers.append(peer)
        return peer

    def refused(self, reason: str) -> int:
        series = f'nsqdigest_http_refusals_total{{reason="{reason}"}} '
        return int(float(self.metrics.text().partition(series)[2].partition("\n")[0]))

    @property
    def connections(self) -> int:
        return len(self.server._door)


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """Impatient, and with few places."""
    monkeypatch.setattr(door, "MOST", 4)
    monkeypatch.setattr(door, "KEPT", 1)
    monkeypatch.setattr(door, "HEAD_WITHIN_S", 0.3)
    monkeypatch.setattr(gate, "BODY_WITHIN_S", 0.3)
    served = Served()
    await served.server.start()
    yield served
    served.goes_on.set()
    for peer in served.peers:
        await peer.close()
    await served.server.stop()


async def test_a_request_that_drips_is_closed(served: Served) -> None:
    peer = await served.peer()
    for byte in (b"G", b"E", b"T"):
        await peer.send(byte)
    assert await peer.is_closed()
    assert served.refused("too-slow") == 1
    assert served.connections == 0


async def test_dripping_on_does_not_make_it_last_longer(served: Served) -> None:
    peer = await served.peer()
    await peer.send(b"GET /livez HTTP/1.1\r\n")

    async def drips() -> bool:
        await peer.send(b"x: y\r\n")
        return served.refused("too-slow") == 1

    await until(drips, PATIENCE_S)


async def test_so_is_a_second_request_that_drips_and_one_that_never_begins(served: Served) -> None:
    peer, silent = await served.peer(), await served.peer()
    await peer.send(GET)
    assert (await peer.answer()).startswith(ANSWERED)
    await peer.send(b"GET")
    assert await peer.is_closed()
    assert await silent.is_closed()


async def test_a_connection_that_waits_between_two_requests_stays(served: Served) -> None:
    peer = await served.peer()
    for _ in range(3):
        await peer.send(GET)
        assert (await peer.answer()).startswith(ANSWERED)
        assert await peer.reader.readexactly(3) == b"ok\n"
    assert served.connections == 1


async def test_it_ends_when_nothing_comes_for_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "IDLE_S", 0.2)
    peer = await served.peer()
    await peer.send(GET)
    assert (await peer.answer()).startswith(ANSWERED)
    assert await peer.is_closed()
    assert served.refused("too-slow") == 0


async def test_an_answer_that_nobody_reads_ends_with_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "IDLE_S", 0.2)
    peer = await served.peer()
    await peer.send(b"GET /api/large HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await until(lambda: served.connections == 0, PATIENCE_S)


async def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest(served: Served) -> None:
    peers = [await served.peer() for _ in range(3)]
    for peer in peers:
        await peer.send(GET)
        assert (await peer.answer()).startswith(ANSWERED)
    newer = [await served.peer() for _ in range(2)]
    for peer in newer:
        await peer.send(GET)
        assert (await peer.answer()).startswith(ANSWERED)
    assert await peers[0].is_closed()
    await peers[1].send(GET)
    assert ANSWERED in await peers[1].reader.readuntil(b"GMT\r\n")
    assert (served.connections, served.refused("too-many-connections")) == (4, 1)


SLOW = b"GET /api/slow HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_one_that_is_being_answered_keeps_its_place(served: Served) -> None:
    busy = [await served.peer() for _ in range(3)]
    for peer in busy:
        await peer.send(SLOW)
    await until(lambda: served.slow_ones == 3, PATIENCE_S)
    flood = [await served.peer() for _ in range(5)]
    for peer in flood[:-1]:
        assert await peer.is_closed()
    served.goes_on.set()
    for peer in busy:
        assert (await peer.answer()).startswith(ANSWERED)


async def test_a_place_is_kept_for_health_and_metrics(served: Served) -> None:
    """All that may be answered at once wait for a slow Redis."""
    busy = [await served.peer() for _ in range(3)]
    for peer in busy:
        await peer.send(SLOW)
    await until(lambda: served.slow_ones == 3, PATIENCE_S)
    for path in (b"/livez", b"/readyz", b"/metrics"):
        peer = await served.peer()
        await peer.send(GET.replace(b"/livez", path))
        assert (await peer.answer()).startswith(ANSWERED)
    peer = await served.peer()
    await peer.send(SLOW)
    assert (await peer.answer()).startswith(b"HTTP/1.1 503 ")
    assert served.refused("busy") == 1
    served.goes_on.set()
    await busy[0].answer()
    peer = await served.peer()
    await peer.send(SLOW)
    assert (await peer.answer()).startswith(ANSWERED)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /api/status HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n",
        b"POST /api/slow HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n"
        b"authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n",
    ],
)
async def test_a_body_that_never_comes_keeps_nobody_out(
    served: Served, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """Ten times as many as there are places; then monitoring asks."""
    monkeypatch.setattr(gate, "BODY_WITHIN_S", 10 * PATIENCE_S)
    for _ in range(40):
        await (await served.peer()).send(head)
    for _ in range(3):
        peer = await served.peer()
        await peer.send(GET)
        assert (await peer.answer()).startswith(ANSWERED)


async def test_a_read_with_a_body_and_a_compressed_write_are_refused_before_the_body_comes(served: Served) -> None:
    told = f"host: localhost\r\ncontent-type: application/json\r\nauthorization: Bearer {TOKEN}\r\n".encode()
    for head, status in (
        (b"GET /api/slow HTTP/1.1\r\n" + told + b"content-length: 9\r\n\r\n", 400),
        (b"HEAD /livez HTTP/1.1\r\n" + told + b"transfer-encoding: chunked\r\n\r\n", 400),
        (b"POST /api/slow HTTP/1.1\r\n" + told + b"content-length: 9\r\ncontent-encoding: gzip\r\n\r\n", 415),
    ):
        peer = await served.peer()
        await peer.send(head)
        assert (await peer.answer()).startswith(b"HTTP/1.1 %d " % status)
    assert served.slow_ones == 0


async def test_a_flood_of_connections_keeps_nobody_out(served: Served) -> None:
    flood = [await served.peer() for _ in range(60)]
    peer = await served.peer()
    await peer.send(GET)
    assert (await peer.answer()).startswith(ANSWERED)
    assert served.connections <= 4
    assert len(flood) == 60


async def test_a_body_that_drips_is_refused_and_only_with_the_token_waited_for(served: Served) -> None:
    head = b"POST /api/slow HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n"
    told = b"authorization: Bearer " + TOKEN.encode() + b"\r\n"
    without, with_token = await served.peer(), await served.peer()
    await without.send(head + b"\r\n1")
    assert (await without.answer()).startswith(b"HTTP/1.1 401 ")
    await with_token.send(head + told + b"\r\n1")
    assert (await with_token.answer()).startswith(b"HTTP/1.1 408 ")
    assert served.slow_ones == 0


async def test_a_body_that_is_broken_off_is_no_error_of_ours(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST /api/slow HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nauthorization: Bearer "
    for body in (b"content-length: 10\r\n\r\n1", b"transfer-encoding: chunked\r\n\r\nzz\r\n"):
        peer = await served.peer()
        await peer.send(head + TOKEN.encode() + b"\r\n" + body)
        await peer.close()
    await until(lambda: served.connections == 0, PATIENCE_S)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert served.refused("malformed") == 1


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * (1 << 20) + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
        b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /api/slow HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n" + b"x" * (1 << 20),
        b"x" * (1 << 20),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 600,  # TLS
        b"GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: other\r\n\r\n",
        b"GET http://attacker.example/livez HTTP/1.1\r\nhost: attacker.example\r\n\r\n",
        b"CONNECT attacker.example:80 HTTP/1.1\r\nhost: attacker.example:80\r\n\r\n",
        b"GET /livez HTTP/9.9\r\nhost: localhost\r\n\r\n",
        b"\r\n\r\n\0\0\0 /livez\r\n\r\n",
    ],
)
async def test_what_is_no_request_of_ours_is_refused_or_closed(served: Served, sent: bytes) -> None:
    peer = await served.peer()
    await peer.send(sent)
    assert (await peer.answer()).startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")) or not await peer.rest()


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 4\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        b"content-length: 4\r\ncontent-length: 5\r\n",
        b"content-length: +4\r\n",
        b"content-length: 4, 4\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding : chunked\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    ],
)
async def test_a_request_that_two_servers_would_read_differently_is_not_followed_by_another(
    served: Served, framing: bytes
) -> None:
    """What is smuggled behind it is not answered."""
    peer = await served.peer()
    await peer.send(
        b"POST /livez HTTP/1.1\r\nhost: localhost\r\n" + framing + b"\r\n0\r\n\r\nGET /api/smuggled HTTP/1.1\r\n"
        b"host: localhost\r\n\r\n"
    )
    answer = await peer.rest()
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ")), answer
    assert answer.count(b"HTTP/1.") <= 1


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /livez\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET http://localhost:99999999/<script> HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
async def test_what_is_no_http_gets_the_headers_of_every_answer(served: Served, sent: bytes) -> None:
    peer = await served.peer()
    await peer.send(sent)
    head = (await peer.answer()).lower()
    assert head.startswith(b"http/1.0 400 ")
    for name, value in gate.HEADERS.items():
        assert f"\r\n{name}: {value}\r\n".lower().encode() in head
    assert b"aiohttp" not in head
    assert b"python" not in head


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\naccept: application/openmetrics-text;version=x\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\naccept: text/plain;version=\xff\r\n", 200),
        (b"GET /metrics HTTP/1.1\r\naccept: text/plain;version=" + b"9" * 8000 + b"\r\n", 200),
        (b"GET /livez HTTP/1.1\r\nexpect: \xff\r\n", 200),
        (b"GET /api/slow HTTP/1.1\r\norigin: null\r\nexpect: tea\r\n", 403),
        (b"GET /api/slow HTTP/1.1\r\ncontent-encoding: gzip\r\ncontent-length: 7\r\n", 400),
    ],
)
async def test_a_header_that_means_nothing_is_no_error_of_ours(
    served: Served, sent: bytes, status: int, logged: Callable[[str], int]
) -> None:
    peer = await served.peer()
    await peer.send(sent + b"host: localhost\r\n\r\n" + (b"notgzip" if b"gzip" in sent else b""))
    assert (await peer.answer()).startswith(b"HTTP/1.1 %d " % status)
    await peer.close()
    assert not logged("admin.request.bug")


async def test_who_waits_for_a_word_before_the_body_gets_it(served: Served) -> None:
    peer = await served.peer()
    await peer.send(
        f"POST /api/slow HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n"
        "content-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n".encode()
    )
    assert (await peer.answer()).startswith(b"HTTP/1.1 100 ")
    await peer.send(b"{}")
    served.goes_on.set()
    assert (await peer.answer()).startswith(ANSWERED)


@pytest.mark.parametrize(
    "line", [b"x-forwarded-port: 443\r\n", b"x-forwarded-server: a\r\n", b"true-client-ip: 1\r\n", b""]
)
async def test_what_a_proxy_passes_on_needs_the_token(served: Served, line: bytes) -> None:
    """nginx, unless it is told otherwise, adds no header, and asks in HTTP/1.0."""
    for path, status in ((b"/api/slow", 401), (b"/livez", 200)):
        peer = await served.peer()
        version = b"1.1" if line else b"1.0"
        await peer.send(b"GET " + path + b" HTTP/" + version + b"\r\nhost: 127.0.0.1:4180\r\n" + line + b"\r\n")
        assert (await peer.answer()).startswith(b"HTTP/" + version + b" %d " % status)


async def test_requests_that_are_sent_ahead_are_answered_in_turn_and_not_without_end(served: Served) -> None:
    peer = await served.peer()
    await peer.send(GET * 5)
    assert [ANSWERED in await peer.answer() for _ in range(5)] == [True] * 5
    await peer.send(GET * 50_000)
    assert await peer.is_closed()
    assert served.refused("too-much") == 1


async def test_it_ends_while_requests_are_under_way(served: Served) -> None:
    peer = await served.peer()
    await peer.send(b"GET /api/slow HTTP/1.1\r\nhost: localhost\r\n\r\n")
    await until(lambda: served.slow_ones == 1, PATIENCE_S)
    await served.server.stop()
    assert await peer.is_closed()
    assert served.connections == 0
