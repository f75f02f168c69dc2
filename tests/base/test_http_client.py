"""The client against real servers: what is sent, how connections are used again, TLS, and its end."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nsqdigest.base import tls
from nsqdigest.base.http import connection as http_connection
from nsqdigest.base.http.client import Client
from nsqdigest.base.http.errors import Closed, ConnectFailed, Overdue, TlsFailed
from support.certificates import Certificates, Pair
from support.ports import HOST, free_port
from support.raw_server import Peer, RawServer, silent
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

MakeClient = Callable[..., Client]


@pytest.fixture
async def client_to() -> AsyncIterator[MakeClient]:
    made: list[Client] = []

    def make(url: str, **changes: Any) -> Client:
        made.append(Client(url, **({"connections": 4, "timeout_s": 5.0, "connect_timeout_s": 5.0} | changes)))
        return made[-1]

    yield make
    for client in made:
        await client.close()
        assert client.open_connections == 0


class Receiver:
    def __init__(self) -> None:
        self.port = 0
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.peers: list[Any] = []
        self.answer: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        self.go_on = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/hook"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.peers.append(request.get_extra_info("peername"))
        self.bodies.append(await request.read())
        return web.Response(text="ok") if self.answer is None else await self.answer(request)

    async def when_told(self, _: web.Request) -> web.Response:
        await self.go_on.wait()
        return web.Response(text="ok")


async def serving(receiver: Receiver, host: str = HOST, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    application = web.Application(client_max_size=64 << 20)
    application.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, 0, ssl_context=tls).start()
    receiver.port = runner.addresses[0][1]
    yield receiver
    receiver.go_on.set()
    await runner.cleanup()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async for each in serving(Receiver()):
        yield each


# -- what is sent


async def test_a_post_arrives_as_it_was_given(receiver: Receiver, client_to: MakeClient) -> None:
    client = client_to(f"{receiver.url}?a=%2f", headers={"content-type": "application/json"})
    response = await client.post(b'{"a":1}', [("webhook-id", "1"), ("x-name", "Zoë")])
    assert (response.status, response.beginning, response.reusable) == (200, b"ok", True)
    (request,) = receiver.requests
    assert receiver.bodies == [b'{"a":1}']
    assert (request.method, request.raw_path) == ("POST", "/hook?a=%2f")
    assert {name.lower(): value for name, value in request.headers.items()} == {
        "host": f"{HOST}:{receiver.port}",
        "accept": "*/*",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "webhook-id": "1",
        "x-name": "Zoë",
        "content-length": "7",
    }


async def test_a_post_may_go_to_a_path_of_its_own(receiver: Receiver, client_to: MakeClient) -> None:
    await client_to(receiver.url).post(b"", path="/other?x=1")
    assert receiver.requests[0].raw_path == "/other?x=1"


@pytest.mark.parametrize("header", [("x", "a\r\ny: z"), ("x\r\ny", "z"), ("content-length", "7")])
async def test_a_header_that_could_be_more_is_not_sent(
    receiver: Receiver, client_to: MakeClient, header: tuple[str, str]
) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        await client_to(receiver.url).post(b"", [header])
    with pytest.raises(ValueError):  # noqa: PT011
        client_to(receiver.url, headers=dict([header]))
    assert receiver.requests == []


@pytest.mark.parametrize("size_bytes", [0, 65_536, 65_537, 256 * 1024, 8 << 20])
async def test_a_body_of_any_size_arrives_whole(receiver: Receiver, client_to: MakeClient, size_bytes: int) -> None:
    body = bytes(range(256)) * (size_bytes // 256) + b"x" * (size_bytes % 256)
    assert (await client_to(receiver.url).post(body)).reusable
    assert receiver.bodies == [body]


async def test_ipv6_hosts_are_connected_to(client_to: MakeClient) -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        async for receiver in serving(Receiver(), "::1"):
            await client_to(f"http://[::1]:{receiver.port}/hook").post(b"")
            assert receiver.requests[0].headers["host"] == f"[::1]:{receiver.port}"
    except OSError:
        pytest.skip("no IPv6")


async def test_a_name_is_looked_up_and_each_address_tried(receiver: Receiver, client_to: MakeClient) -> None:
    await client_to(receiver.url.replace(HOST, "localhost")).post(b"")
    assert receiver.requests[0].headers["host"] == f"localhost:{receiver.port}"


# -- what comes back


@pytest.mark.parametrize("status", [200, 204, 302, 304, 404, 410, 429, 503])
async def test_every_status_is_handed_on_and_no_redirect_followed(
    receiver: Receiver, client_to: MakeClient, status: int
) -> None:
    async def answer(_: web.Request) -> web.Response:
        headers = {"location": "/elsewhere", "retry-after": "5"}
        return web.Response(status=status, headers=headers, content_type="text/x")

    receiver.answer = answer
    client = client_to(receiver.url)
    for _ in range(2):
        response = await client.post(b"x")
        assert (response.status, response.retry_after, response.reusable) == (status, "5", True)
    assert [request.path for request in receiver.requests] == ["/hook"] * 2
    assert len(set(receiver.peers)) == 1


async def test_cookies_are_not_kept(receiver: Receiver, client_to: MakeClient) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(headers={"set-cookie": "session=1; Path=/"})

    receiver.answer = answer
    client = client_to(receiver.url)
    await client.post(b"")
    await client.post(b"")
    assert "cookie" not in receiver.requests[1].headers


async def test_a_chunked_answer_leaves_the_connection_usable(receiver: Receiver, client_to: MakeClient) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        for _ in range(3):
            await response.write(b"abc")
            await asyncio.sleep(0)
        return response

    receiver.answer = answer
    client = client_to(receiver.url)
    for _ in range(3):
        assert (await client.post(b"")).beginning == b"abcabcabc"
    assert len(set(receiver.peers)) == 1


# -- connections


async def test_posts_one_after_the_other_share_a_connection(receiver: Receiver, client_to: MakeClient) -> None:
    client = client_to(receiver.url)
    for _ in range(20):
        await client.post(b"x")
    assert len(set(receiver.peers)) == 1


async def test_there_are_never_more_connections_than_allowed(receiver: Receiver, client_to: MakeClient) -> None:
    receiver.answer = receiver.when_told
    client = client_to(receiver.url)
    posts = [asyncio.create_task(client.post(b"%d" % number)) for number in range(12)]
    await until(lambda: len(receiver.bodies) == 4, what="four posts")
    assert client.open_connections == 4
    receiver.go_on.set()
    assert {response.status for response in await asyncio.gather(*posts)} == {200}
    assert len(set(receiver.peers)) == 4
    assert sorted(receiver.bodies, key=int) == [b"%d" % number for number in range(12)], "each once"
    assert [int(body) for body in receiver.bodies[:4]] == [0, 1, 2, 3], "in line"


async def test_the_connection_that_was_idle_last_is_used_first(receiver: Receiver, client_to: MakeClient) -> None:
    client = client_to(receiver.url)
    await asyncio.gather(*(client.post(b"") for _ in range(4)))
    before = len(receiver.peers)
    for _ in range(8):
        await client.post(b"")
    assert len(set(receiver.peers[before:])) == 1


async def test_idle_connections_end(receiver: Receiver, client_to: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "IDLE_FOR_S", 0.05)
    monkeypatch.setattr("nsqdigest.base.http.client.IDLE_FOR_S", 0.05)
    client = client_to(receiver.url)
    await asyncio.gather(*(client.post(b"") for _ in range(3)))
    await until(lambda: client.open_connections == 0, what="the idle ones to end")
    assert (await client.post(b"")).status == 200


async def test_a_new_connection_may_be_asked_for(receiver: Receiver, client_to: MakeClient) -> None:
    client = client_to(receiver.url, connections=1)
    await client.post(b"")
    await client.post(b"", fresh=True)
    assert len(set(receiver.peers)) == 2
    assert client.open_connections == 1


async def test_also_from_the_line(receiver: Receiver, client_to: MakeClient) -> None:
    receiver.answer = receiver.when_told
    client = client_to(receiver.url, connections=1)
    first = asyncio.create_task(client.post(b""))
    await until(lambda: receiver.bodies, what="the first")
    second = asyncio.create_task(client.post(b"", fresh=True))
    await asyncio.sleep(0)
    receiver.go_on.set()
    await asyncio.gather(first, second)
    assert len(set(receiver.peers)) == 2


# -- time-outs and cancellation


async def test_a_post_without_an_answer_is_overdue_and_its_place_free(
    receiver: Receiver, client_to: MakeClient
) -> None:
    receiver.answer = receiver.when_told
    client = client_to(receiver.url, connections=1, timeout_s=0.1)
    for _ in range(2):
        with pytest.raises(Overdue, match=f"{HOST}:{receiver.port}"):
            await client.post(b"x")
    receiver.go_on.set()
    assert (await client.post(b"x")).status == 200


async def test_a_post_may_have_a_time_out_of_its_own(receiver: Receiver, client_to: MakeClient) -> None:
    receiver.answer = receiver.when_told
    client = client_to(receiver.url, timeout_s=10 * PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(Overdue):
            await client.post(b"x", timeout_s=0.05)


async def test_to_wait_in_line_counts(receiver: Receiver, client_to: MakeClient) -> None:
    receiver.answer = receiver.when_told
    client = client_to(receiver.url, connections=1)
    first = asyncio.create_task(client.post(b"first"))
    await until(lambda: receiver.bodies, what="the first")
    with pytest.raises(Overdue, match="no free connection"):
        await client.post(b"second", timeout_s=0.05)
    receiver.go_on.set()
    assert (await first).status == 200
    assert receiver.bodies == [b"first"]


async def test_a_post_that_is_cancelled_ends_its_connection(receiver: Receiver, client_to: MakeClient) -> None:
    receiver.answer = receiver.when_told
    client = client_to(receiver.url, connections=1)
    post = asyncio.create_task(client.post(b"x"))
    await until(lambda: receiver.bodies, what="the post")
    post.cancel()
    with pytest.raises(asyncio.CancelledError):
        await post
    await until(lambda: client.open_connections == 0, what="no connection")


async def test_a_post_that_is_cancelled_in_line_leaves_it(receiver: Receiver, client_to: MakeClient) -> None:
    receiver.answer = receiver.when_told
    client = client_to(receiver.url, connections=1)
    posts = [asyncio.create_task(client.post(b"%d" % number)) for number in range(4)]
    await until(lambda: receiver.bodies, what="the first post")
    posts[1].cancel()
    receiver.go_on.set()
    posts[2].cancel()
    await asyncio.gather(*posts, return_exceptions=True)
    assert receiver.bodies == [b"0", b"3"]


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_any_moment_a_post_leaves_the_client_usable(
    receiver: Receiver, client_to: MakeClient, turns: int
) -> None:
    client = client_to(receiver.url, connections=1)
    for _ in range(4):
        posts = [asyncio.create_task(client.post(b"x")) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for post in posts[:2]:
            post.cancel()
        *_, last = await asyncio.gather(*posts, return_exceptions=True)
        assert not isinstance(last, BaseException)
    assert client.open_connections <= 1


# -- its end


async def test_closed_it_fails_what_is_under_way_and_what_is_in_line(receiver: Receiver, client_to: MakeClient) -> None:
    receiver.answer = receiver.when_told
    client = client_to(receiver.url, connections=1)
    posts = [asyncio.create_task(client.post(b"x")) for _ in range(3)]
    await until(lambda: receiver.bodies, what="the first post")
    await client.close()
    assert [type(each) for each in await asyncio.gather(*posts, return_exceptions=True)] == [Closed] * 3
    assert client.open_connections == 0
    await client.close()
    with pytest.raises(Closed):
        await client.post(b"x")


async def test_closed_while_it_connects_it_does_not_wait(client_to: MakeClient) -> None:
    resolving = asyncio.Event()

    async def resolve(*_: Any) -> Sequence[str]:
        resolving.set()
        await asyncio.sleep(3600)
        return []

    client = client_to(f"http://{HOST}:1/", resolve=resolve, timeout_s=3600, connect_timeout_s=3600)
    post = asyncio.create_task(client.post(b"x"))
    await resolving.wait()
    async with asyncio.timeout(PATIENCE_S):
        await client.close()
    with pytest.raises(Closed):
        await post


async def test_nothing_is_left_behind(receiver: Receiver) -> None:
    tasks = len(asyncio.all_tasks())

    async def rounds(count: int) -> None:
        for _ in range(count):
            client = Client(receiver.url, connections=4, timeout_s=5, connect_timeout_s=5)
            await asyncio.gather(*(client.post(b"x") for _ in range(8)))
            await client.close()

    def living() -> int:
        return sum(isinstance(each, http_connection.Connection) for each in gc.get_objects())

    await rounds(2)
    gc.collect()
    gc.disable()
    try:
        before = living()
        await rounds(5)
        await asyncio.sleep(0)
        assert living() <= before, "freed without the collector"
    finally:
        gc.enable()
    await until(lambda: len(asyncio.all_tasks()) == tasks, what="every task to end")


# -- no connection


async def test_a_refused_connection_says_where(client_to: MakeClient) -> None:
    port = free_port()
    client = client_to(f"http://{HOST}:{port}/secret")
    with pytest.raises(ConnectFailed, match=f"^cannot connect to {HOST}:{port}: Connection refused$"):
        await client.post(b"x")
    assert client.open_connections == 0


async def test_a_name_that_nobody_knows_says_so(client_to: MakeClient) -> None:
    with pytest.raises(ConnectFailed, match=r"cannot connect to receiver\.invalid:80: "):
        await client_to("http://receiver.invalid/secret").post(b"x")


async def test_only_what_the_caller_resolved_is_connected_to(receiver: Receiver, client_to: MakeClient) -> None:
    asked: list[tuple[str, int]] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return ["127.0.0.9", HOST]  # at the first nobody listens

    client = client_to(f"http://receiver.invalid:{receiver.port}/hook", resolve=resolve)
    assert (await client.post(b"x")).status == 200
    assert asked == [("receiver.invalid", receiver.port)]
    assert receiver.requests[0].headers["host"] == f"receiver.invalid:{receiver.port}"


async def test_a_caller_may_resolve_to_nothing(client_to: MakeClient) -> None:
    async def resolve(*_: Any) -> Sequence[str]:
        return []

    with pytest.raises(ConnectFailed, match="no address that may be connected to"):
        await client_to("http://localhost:1/", resolve=resolve).post(b"x")


async def test_a_look_up_that_hangs_ends_with_the_connect_time_out(client_to: MakeClient) -> None:
    async def resolve(*_: Any) -> Sequence[str]:
        await asyncio.sleep(3600)
        return []

    client = client_to("http://localhost:1/", resolve=resolve, connect_timeout_s=0.05)
    with pytest.raises(ConnectFailed, match=r"no connection to localhost:1 within 0\.05 s"):
        await client.post(b"x")
    assert client.open_connections == 0


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def server_context(pair: Pair) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    return context


def client_context(ca_file: Path) -> ssl.SSLContext:
    return tls.client_context(ca_file.read_text("ascii"))


@pytest.mark.parametrize("host", [HOST, "localhost"])
async def test_over_tls_posts_arrive_and_share_a_connection(
    certificates: Certificates, client_to: MakeClient, host: str
) -> None:
    async for receiver in serving(Receiver(), tls=server_context(certificates.server)):
        client = client_to(f"https://{host}:{receiver.port}/hook", ssl_context=client_context(certificates.ca_file))
        for size_bytes in (5, 1 << 20, 5):
            response = await client.post(b"x" * size_bytes)
            assert (response.status, response.beginning, response.reusable) == (200, b"ok", True)
        assert [len(body) for body in receiver.bodies] == [5, 1 << 20, 5]
        assert len(set(receiver.peers)) == 1
        await client.close()


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("wrong_host", "its certificate is valid, but not for localhost"),
        ("common_name_only", "its certificate is valid, but not for localhost"),
        ("strange", "its certificate is signed by an authority that is not trusted here"),
        ("expired", "its certificate has expired"),
        ("not_yet", "its certificate is not valid yet"),
        ("wrong_purpose", r"its certificate does not pass \(unsuitable certificate purpose\)"),
        ("self_signed", "its certificate is signed by itself"),
    ],
)
async def test_a_certificate_that_is_not_right_is_refused(
    certificates: Certificates, client_to: MakeClient, pair: str, reason: str
) -> None:
    host = "localhost" if "localhost" in reason else HOST
    async for receiver in serving(Receiver(), tls=server_context(getattr(certificates, pair))):
        client = client_to(f"https://{host}:{receiver.port}/hook", ssl_context=client_context(certificates.ca_file))
        with pytest.raises(TlsFailed, match=reason):
            await client.post(b"x")
        assert receiver.requests == []
        await client.close()


async def test_by_default_the_authorities_of_the_machine_are_trusted(
    certificates: Certificates, client_to: MakeClient
) -> None:
    async for receiver in serving(Receiver(), tls=server_context(certificates.server)):
        with pytest.raises(TlsFailed):
            await client_to(f"https://{HOST}:{receiver.port}/hook").post(b"x")


async def test_plain_http_where_tls_is_expected_is_no_tls(receiver: Receiver, client_to: MakeClient) -> None:
    with pytest.raises(TlsFailed, match="the server at this address does not speak TLS"):
        await client_to(receiver.url.replace("http:", "https:")).post(b"x")
    assert receiver.requests == []


async def test_a_handshake_that_hangs_ends_with_the_connect_time_out(client_to: MakeClient) -> None:
    async with RawServer(silent) as server:
        client = client_to(server.url.replace("http:", "https:"), connect_timeout_s=0.1)
        with pytest.raises(ConnectFailed, match=r"within 0\.1 s"):
            await client.post(b"x")
        assert client.open_connections == 0


async def test_a_receiver_that_hangs_up_in_the_handshake_is_not_reached(client_to: MakeClient) -> None:
    async def hang_up(_: Peer) -> None: ...

    async with RawServer(hang_up) as server:
        with pytest.raises(ConnectFailed):
            await client_to(server.url.replace("http:", "https:")).post(b"x")
