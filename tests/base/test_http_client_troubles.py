"""Receivers that drip, break off, flood, reset, speak out of turn or keep silent: what a post makes of them."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.http import connection as http_connection
from nsqdigest.base.http.client import Client, Response
from nsqdigest.base.http.connection import DRAIN_BYTES
from nsqdigest.base.http.errors import Closed, NoHttp, Overdue, PostFailed, StaleConnection
from support.certificates import Certificates
from support.ports import HOST
from support.raw_server import Peer, RawServer, Script, silent
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

MakeClient = Callable[..., Client]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MUCH = 256 * 1024


@pytest.fixture
async def client_to() -> AsyncIterator[MakeClient]:
    made: list[Client] = []

    def make(url: str, **changes: Any) -> Client:
        made.append(Client(url, **({"connections": 1, "timeout_s": 5.0, "connect_timeout_s": 5.0} | changes)))
        return made[-1]

    yield make
    for client in made:
        await client.close()
        assert client.open_connections == 0


def answering(*answers: bytes, then_close: bool = False) -> Script:
    """One of them to each request of a connection."""

    async def script(peer: Peer) -> None:
        for answer in answers:
            await peer.request()
            await peer.write(answer)
        if not then_close:
            await peer.hung_up()

    return script


# -- whose answer is whole


@pytest.mark.parametrize("answer", [OK, b"HTTP/1.1 100 Continue\r\n\r\n" + OK], ids=["plain", "after 100"])
async def test_an_answer_that_comes_byte_by_byte_is_an_answer(client_to: MakeClient, answer: bytes) -> None:
    async def drip(peer: Peer) -> None:
        for _ in range(2):
            await peer.request()
            for byte in answer:
                await peer.write(bytes([byte]))
                await asyncio.sleep(0)
        await peer.hung_up()

    async with RawServer(drip) as server:
        client = client_to(server.url)
        for _ in range(2):
            assert (await client.post(b"x")).status == 200
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        OK.replace(b"1.1", b"1.0"),
        b"HTTP/1.1 200 OK\r\n\r\nok",
        OK + b"HTTP/1.1 500 No\r\n\r\n",
        OK + b"HTTP",
    ],
    ids=["close", "1.0", "until the end", "two answers", "one and a bit"],
)
async def test_after_some_answers_the_connection_is_not_used_again(client_to: MakeClient, answer: bytes) -> None:
    async with RawServer(answering(answer, OK, then_close=True)) as server:
        client = client_to(server.url)
        for _ in range(3):
            assert (await client.post(b"x")).status == 200
        assert server.connections == 3


async def test_a_receiver_that_closes_after_each_answer_gets_every_post(client_to: MakeClient) -> None:
    async with RawServer(answering(OK, then_close=True)) as server:
        client = client_to(server.url, connections=4)
        stale = 0
        for _ in range(25):
            try:
                await client.post(b"x")
            except StaleConnection:
                stale += 1
                assert (await client.post(b"x", fresh=True)).status == 200
        assert server.connections == 25, f"one for each post, {stale} of them stale before"


# -- whose status decides


@pytest.mark.parametrize("status", [200, 204, 302, 400, 500])
async def test_an_answer_cut_off_behind_its_headers_counts(client_to: MakeClient, status: int) -> None:
    half = b"HTTP/1.1 %d X\r\nretry-after: 5\r\ncontent-length: 100\r\n\r\nhalf" % status
    async with RawServer(answering(half, then_close=True)) as server:
        response = await client_to(server.url).post(b"x")
        assert (response.status, response.retry_after, response.reusable) == (status, "5", False)


async def test_a_body_that_drips_does_not_hold_up_a_success(
    client_to: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first post has its answer, the next one ends the rest of that body, and the last rest ends in time."""
    async with RawServer(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n1")) as server:
        client = client_to(server.url)
        with monkeypatch.context() as patient:
            patient.setattr(http_connection, "DRAIN_WITHIN_S", 10 * PATIENCE_S)
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(2):
                    response = await client.post(b"x")
                    assert (response.status, response.beginning, response.reusable) == (200, b"1", False)
        await until(lambda: client.open_connections == 0, what="the rest not to be awaited for ever")


async def test_the_rest_of_a_body_that_comes_soon_does_not_cost_the_connection(client_to: MakeClient) -> None:
    async def in_two(peer: Peer) -> None:
        for _ in range(10):
            await peer.request()
            await peer.write(OK[:-2])
            await asyncio.sleep(0)
            await peer.write(OK[-2:])
        await peer.hung_up()

    async with RawServer(in_two) as server:
        client = client_to(server.url)
        for _ in range(10):
            assert (await client.post(b"x")).status == 200
        assert server.connections == 1


async def test_the_beginning_of_a_failures_body_is_awaited(client_to: MakeClient) -> None:
    async def late(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 422 No\r\ncontent-length: 1000\r\n\r\n")
        await asyncio.sleep(0.05)
        await peer.write(b"field x " + b"." * 300)
        await peer.hung_up()

    async with RawServer(late) as server:
        response = await client_to(server.url).post(b"x")
        assert response.beginning == (b"field x " + b"." * 300)[:256]


@pytest.mark.parametrize("pause_s", [0.01, 3600])
async def test_but_not_for_long(client_to: MakeClient, monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
    monkeypatch.setattr(http_connection, "BODY_WITHIN_S", 0.2)

    async def drip(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 422 No\r\ncontent-length: 1000\r\n\r\nwhy")
        while True:
            await asyncio.sleep(pause_s)
            await peer.write(b".")

    async with RawServer(drip) as server:
        client = client_to(server.url)
        async with asyncio.timeout(PATIENCE_S):
            response = await client.post(b"x")
        assert response.status == 422
        assert response.beginning.startswith(b"why")
        await until(lambda: client.open_connections == 0, what="the connection to end")


@pytest.mark.parametrize("status", [200, 500])
async def test_a_gigabyte_is_not_read(client_to: MakeClient, status: int) -> None:
    written_bytes = 0

    async def flood(peer: Peer) -> None:
        nonlocal written_bytes
        await peer.request()
        await peer.write(b"HTTP/1.1 %d X\r\ncontent-length: 1000000000\r\n\r\n" % status)
        while written_bytes < 1_000_000_000:
            await peer.write(b"x" * 65_536)
            written_bytes += 65_536

    async with RawServer(flood) as server:
        client = client_to(server.url)
        response = await client.post(b"x")
        assert (response.status, len(response.beginning) <= 256) == (status, True)
        await until(lambda: client.open_connections == 0, what="the connection to end")
        assert written_bytes < (16 << 20) + DRAIN_BYTES, "what lies in the sockets' buffers"


async def test_an_answer_before_the_post_is_read_counts_and_ends_the_connection(client_to: MakeClient) -> None:
    async def hasty(peer: Peer) -> None:
        await peer.head()
        await peer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await peer.hung_up()

    async with RawServer(hasty) as server:
        client = client_to(server.url)
        response = await client.post(b"x" * (32 << 20))
        assert (response.status, response.reusable) == (413, False)
        await until(lambda: client.open_connections == 0, what="the connection to end")


# -- no answer


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-le", b"HTTP/1.1 100 Continue\r\n\r\n"]
)
async def test_a_receiver_that_hangs_up_before_it_answered_is_closed(client_to: MakeClient, answer: bytes) -> None:
    async with RawServer(answering(answer, then_close=True)) as server:
        with pytest.raises(Closed) as failed:
            await client_to(server.url).post(b"x")
        assert not isinstance(failed.value, StaleConnection), "it was new"
        assert str(failed.value).startswith(f"{HOST}:{server.port} closed the connection")


async def test_so_is_one_that_resets(client_to: MakeClient) -> None:
    async def reset(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with RawServer(reset) as server:
        with pytest.raises(Closed, match="broke off the connection before it answered"):
            await client_to(server.url).post(b"x" * MUCH)


@pytest.mark.parametrize("reset", [False, True])
async def test_an_idle_connection_that_ends_just_as_we_post_is_told_apart(client_to: MakeClient, reset: bool) -> None:
    async def once(peer: Peer) -> None:
        await peer.request()
        await peer.write(OK)
        if peer.number == 1:
            await peer.request()  # read and not answered
            if reset:
                peer.reset()
        else:
            await peer.hung_up()

    async with RawServer(once) as server:
        client = client_to(server.url)
        await client.post(b"x")
        with pytest.raises(StaleConnection):
            await client.post(b"x")
        assert (await client.post(b"x", fresh=True)).status == 200
        assert server.connections == 2


async def test_once_a_byte_of_the_answer_came_it_is_not(client_to: MakeClient) -> None:
    async with RawServer(answering(OK, b"H", then_close=True)) as server:
        client = client_to(server.url)
        await client.post(b"x")
        with pytest.raises(Closed) as failed:
            await client.post(b"x")
        assert not isinstance(failed.value, StaleConnection)


async def test_an_idle_connection_that_the_receiver_closed_is_not_used(client_to: MakeClient) -> None:
    async with RawServer(answering(OK, then_close=True)) as server:
        client = client_to(server.url)
        for _ in range(5):
            assert (await client.post(b"x")).status == 200
            await until(lambda: client.open_connections == 0, what="its end to be noticed")


async def test_what_comes_on_an_idle_connection_is_the_answer_to_nothing(client_to: MakeClient) -> None:
    async def times_out(peer: Peer) -> None:
        await peer.request()
        await peer.write(OK)
        if peer.number == 1:
            await asyncio.sleep(0.01)
            await peer.write(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await peer.hung_up()

    async with RawServer(times_out) as server:
        client = client_to(server.url)
        await client.post(b"x")
        await until(lambda: client.open_connections == 0, what="the connection to end")
        assert (await client.post(b"x")).status == 200


async def test_a_receiver_that_speaks_first_is_no_http(client_to: MakeClient) -> None:
    async def greets(peer: Peer) -> None:
        await peer.write(b"220 mail.example.com ESMTP hunter2\r\n")
        await peer.hung_up()

    async with RawServer(greets) as server:
        with pytest.raises(NoHttp) as failed:
            await client_to(server.url).post(b"x")
        assert failed.value.beginning.startswith(b"220 mail")


@pytest.mark.parametrize(
    "garbage", [b"220 hunter2\r\n", b"\xff" * 5_000, b"HTTP/1.1 200 OK\r\n" + b"x: hunter2\r\n" * 102]
)
async def test_garbage_is_no_http_and_is_quoted_only_where_it_is_asked_for(
    client_to: MakeClient, garbage: bytes
) -> None:
    async with RawServer(answering(garbage)) as server:
        client = client_to(server.url)
        with pytest.raises(NoHttp) as failed:
            await client.post(b"x")
        assert failed.value.beginning == garbage[:256]
        assert "hunter2" not in str(failed.value)
        await until(lambda: client.open_connections == 0, what="the connection to end")


# -- too slow


@pytest.mark.parametrize(
    "script", [silent, answering(b"HTTP/1.1 200 OK\r\n"), answering(b"HTTP/1.1 100 Continue\r\n\r\n")]
)
async def test_no_whole_head_in_time_is_overdue(client_to: MakeClient, script: Script) -> None:
    async with RawServer(script) as server:
        began_s = time.monotonic()
        client = client_to(server.url, timeout_s=0.2)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(Overdue):
                await client.post(b"x")
        assert time.monotonic() - began_s >= 0.2
        await until(lambda: client.open_connections == 0, what="the connection to end")


async def test_headers_that_drip_are_overdue(client_to: MakeClient) -> None:
    async def drip(peer: Peer) -> None:
        await peer.request()
        await peer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            await peer.write(b"x: y\r\n")
            await asyncio.sleep(0.02)

    async with RawServer(drip) as server:
        with pytest.raises(Overdue):
            await client_to(server.url, timeout_s=0.2).post(b"x")


@pytest.mark.parametrize("secure", [False, True])
async def test_a_receiver_that_reads_nothing_holds_a_large_post_no_longer_than_its_time_out(
    client_to: MakeClient, tmp_path: Path, secure: bool
) -> None:
    async def deaf(_: Peer) -> None:
        await asyncio.sleep(3600)

    server_tls, client_tls = contexts(tmp_path) if secure else (None, None)
    async with RawServer(deaf, server_tls) as server:
        client = client_to(server.url, timeout_s=0.5, ssl_context=client_tls)
        post = asyncio.create_task(client.post(b"x" * (64 << 20)))
        await until(lambda: any(each._paused for each in client._connections), what="the transport to be full")
        (connection,) = client._connections
        transport = connection._transport
        assert transport is not None
        assert transport.get_write_buffer_size() <= 1 << 20
        with pytest.raises(Overdue):
            await post


async def test_a_slow_reader_gets_a_large_post_whole(client_to: MakeClient) -> None:
    async def slow(peer: Peer) -> None:
        await asyncio.sleep(0.1)
        assert await peer.request() == b"x" * MUCH * 20
        await peer.write(OK)
        await peer.hung_up()

    async with RawServer(slow) as server:
        assert (await client_to(server.url).post(b"x" * MUCH * 20)).reusable


# -- over TLS as well


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    certificates = Certificates(folder)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificates.server.cert_file, certificates.server.key_file)
    return server, ssl.create_default_context(cafile=str(certificates.ca_file))


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (OK, 200),
        (b"HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhalf", 500),
        (b"", Closed),
        (b"HTTP/1.1 2", Closed),
        (b"220 no\r\n", NoHttp),
    ],
)
async def test_over_tls_it_is_the_same(
    client_to: MakeClient, tmp_path: Path, answer: bytes, outcome: int | type[PostFailed]
) -> None:
    server_tls, client_tls = contexts(tmp_path)
    async with RawServer(answering(answer, then_close=True), server_tls) as server:
        client = client_to(server.url, ssl_context=client_tls)
        for _ in range(2):
            (result,) = await asyncio.gather(client.post(b"x"), return_exceptions=True)
            assert (result.status if isinstance(result, Response) else type(result)) == outcome
            await until(lambda: client.open_connections == 0, what="the connection to end")
