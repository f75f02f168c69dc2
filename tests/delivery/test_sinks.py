"""Sinks against the real thing: a webhook's receiver on a socket, files, a full disk, stdout."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from standardwebhooks import Webhook as Verifier

import nsqdigest
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Secret
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.log import LogFile, LogSinkSettings
from nsqdigest.delivery.sinks.webhook import Webhook, WebhookSinkSettings
from support.ports import HOST, free_port
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

BODY = b'{"type":"digest","data":{"records":[{"value":{"n":1.50}}]}}'
PARCEL = OutgoingDigest(
    id="018bcfe5-6b7b-7000-8000-000000000000", route="events", timeline="user:42", attempt=1, records=1, body=BODY
)
SECRETS = ["whsec_" + base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2)]
TIMEOUT_MS = 5_000
SHORT_MS = 150

COMMON: dict[str, Any] = {
    "name": "out", "concurrency": 4, "timeout_ms": TIMEOUT_MS, "max_attempts": 0, "max_age_ms": 3_600_000,
    "retry_base_ms": 1_000, "retry_cap_ms": 900_000, "retry_after_max_ms": 3_600_000, "max_body_bytes": 256 * 1024,
}  # fmt: skip

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Receiver:
    """A webhook's receiver that remembers what came, and answers 200 or what it is told."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.connections: set[Any] = set()
        self.at_once = 0
        self.most_at_once = 0
        self.answer: Answer | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.connections.add(request.get_extra_info("peername"))
        self.bodies.append(await request.read())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self.answer(request) if self.answer is not None else web.Response(text="ok")
        finally:
            self.at_once -= 1

    def always(self, status: int, text: str = "", **headers: str) -> None:
        async def answer(_: web.Request) -> web.Response:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return web.Response(status=status, text=None if status in (204, 205, 304) else text, headers=named)

        self.answer = answer


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    receiver.url = f"http://{HOST}:{runner.addresses[0][1]}/hook"
    yield receiver
    await runner.cleanup()


MakeWebhook = Callable[..., Webhook]


@pytest.fixture
async def webhook_to() -> AsyncIterator[MakeWebhook]:
    made: list[Webhook] = []

    def make(url: str, **changes: Any) -> Webhook:
        settings = COMMON | {"type": "webhook", "url": url, "allow_http": True, "secrets": (), "headers": {}} | changes
        made.append(Webhook(WebhookSinkSettings(**settings)))
        return made[-1]

    yield make
    for webhook in made:
        await webhook.close()


@pytest.fixture
async def raw_server() -> AsyncIterator[Callable[[bytes], Awaitable[str]]]:
    """A server that answers every connection with the same bytes, whatever they are, and hangs up."""
    servers: list[asyncio.Server] = []

    async def start(answer: bytes) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        servers.append(await asyncio.start_server(serve, HOST, 0))
        return f"http://{HOST}:{servers[-1].sockets[0].getsockname()[1]}/hook"

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


# -- webhook: what is sent


async def test_a_digest_is_posted_with_its_very_bytes(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    assert (await webhook_to(receiver.url).deliver(PARCEL)).verdict is Verdict.DELIVERED
    assert receiver.bodies == [BODY]
    assert (receiver.requests[0].method, receiver.requests[0].path) == ("POST", "/hook")


async def test_the_headers_name_the_digest_and_the_attempt(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    await webhook_to(receiver.url).deliver(PARCEL._replace(attempt=7))
    sent = receiver.requests[0].headers
    assert sent["content-type"] == "application/json"
    assert sent["webhook-id"] == PARCEL.id
    assert sent["nsqdigest-attempt"] == "7"
    assert sent["user-agent"] == f"nsqdigest/{nsqdigest.__version__}"
    assert sent["content-length"] == str(len(BODY))


async def test_the_receiver_verifies_what_it_got_with_either_secret(
    receiver: Receiver, webhook_to: MakeWebhook
) -> None:
    await webhook_to(receiver.url, secrets=tuple(Secret(secret) for secret in SECRETS)).deliver(PARCEL)
    sent = {name.lower(): value for name, value in receiver.requests[0].headers.items()}
    for secret in SECRETS:
        assert Verifier(secret).verify(receiver.bodies[0], sent) == json.loads(BODY)


async def test_without_a_secret_there_is_no_signature(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    await webhook_to(receiver.url).deliver(PARCEL)
    assert "webhook-signature" not in receiver.requests[0].headers


async def test_headers_of_the_file_are_sent(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    await webhook_to(receiver.url, headers={"authorization": "Bearer x"}).deliver(PARCEL)
    assert receiver.requests[0].headers["authorization"] == "Bearer x"


async def test_cookies_are_not_kept(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    receiver.always(200, set_cookie="session=1; Path=/")
    webhook = webhook_to(receiver.url.replace(HOST, "localhost"))  # cookies of addresses are never kept
    for _ in range(2):
        await webhook.deliver(PARCEL)
    assert "cookie" not in receiver.requests[1].headers


async def test_a_proxy_of_the_environment_is_not_used(
    receiver: Receiver, webhook_to: MakeWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://{HOST}:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert (await webhook_to(receiver.url).deliver(PARCEL)).verdict is Verdict.DELIVERED


async def test_a_connection_is_used_again(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    webhook = webhook_to(receiver.url)
    for _ in range(20):
        await webhook.deliver(PARCEL)
    assert len(receiver.connections) == 1


async def test_a_connection_is_used_again_after_a_failure(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    receiver.always(500, "sorry")
    webhook = webhook_to(receiver.url)
    for _ in range(5):
        assert (await webhook.deliver(PARCEL)).verdict is Verdict.AGAIN
    assert len(receiver.connections) == 1


async def test_there_are_never_more_connections_than_its_concurrency(
    receiver: Receiver, webhook_to: MakeWebhook
) -> None:
    all_there = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        if receiver.at_once == 4:
            all_there.set()
        await all_there.wait()
        return web.Response()

    receiver.answer = answer
    webhook = webhook_to(receiver.url)
    outcomes = await asyncio.gather(*(webhook.deliver(PARCEL) for _ in range(12)))
    assert {outcome.verdict for outcome in outcomes} == {Verdict.DELIVERED}
    assert (len(receiver.connections), receiver.most_at_once) == (4, 4)


# -- webhook: what is answered


@pytest.mark.parametrize(
    ("verdict", "statuses"),
    [
        (Verdict.DELIVERED, [200, 201, 202, 204]),
        (Verdict.AGAIN, [301, 302, 304, 307, 308, 403, 404, 405, 408, 425, 500, 501]),
        (Verdict.UNAVAILABLE, [401, 429, 502, 503, 504]),
        (Verdict.REFUSED, [400, 402, 409, 413, 415, 422]),
        (Verdict.GONE, [410]),
    ],
)
async def test_every_status_has_its_outcome(
    receiver: Receiver, webhook_to: MakeWebhook, verdict: Verdict, statuses: list[int]
) -> None:
    webhook = webhook_to(receiver.url)
    for status in statuses:
        receiver.always(status, "said so")
        outcome = await webhook.deliver(PARCEL)
        assert outcome.verdict is verdict
        assert outcome.cause.startswith(str(status))


async def test_a_failure_tells_what_the_receiver_said(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    receiver.always(422, "field x is missing")
    assert await webhook_to(receiver.url).deliver(PARCEL) == Outcome(
        Verdict.REFUSED, "422 Unprocessable Entity", 422, answer="field x is missing"
    )


async def test_of_what_it_said_only_the_beginning_is_told(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    receiver.always(400, "x" * 100_000)
    assert len((await webhook_to(receiver.url).deliver(PARCEL)).answer) < 300


async def test_an_answer_that_is_no_text_is_told_all_the_same(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=400, body=b"\xff\xfe\x00")

    receiver.answer = answer
    assert (await webhook_to(receiver.url).deliver(PARCEL)).verdict is Verdict.REFUSED


@pytest.mark.parametrize(("header", "wait_s"), [("120", 120.0), ("soon", 0.0), ("²", 0.0)])
async def test_retry_after_is_handed_on(
    receiver: Receiver, webhook_to: MakeWebhook, header: str, wait_s: float
) -> None:
    receiver.always(503, retry_after=header)
    outcome = await webhook_to(receiver.url).deliver(PARCEL)
    assert (outcome.verdict, outcome.retry_after_s) == (Verdict.UNAVAILABLE, wait_s)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(receiver: Receiver, webhook_to: MakeWebhook, status: int) -> None:
    receiver.always(status, location="/elsewhere")
    assert (await webhook_to(receiver.url).deliver(PARCEL)).verdict is Verdict.AGAIN
    assert [request.path for request in receiver.requests] == ["/hook"]


@pytest.mark.parametrize(("status", "verdict"), [(200, Verdict.DELIVERED), (500, Verdict.AGAIN)])
async def test_an_endless_answer_is_not_read(
    receiver: Receiver, webhook_to: MakeWebhook, status: int, verdict: Verdict
) -> None:
    written_bytes = 0
    hung_up = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal written_bytes
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65_536)
                written_bytes += 65_536
        finally:
            hung_up.set()

    receiver.answer = answer
    assert (await webhook_to(receiver.url).deliver(PARCEL)).verdict is verdict
    async with asyncio.timeout(PATIENCE_S):
        await hung_up.wait()
    # What lies in the sockets' buffers; the client took next to nothing.
    assert written_bytes < 32 << 20


async def test_a_compressed_answer_is_not_unpacked(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    receiver.always(500, "not gzip at all", content_encoding="gzip")
    assert (await webhook_to(receiver.url).deliver(PARCEL)).answer == "not gzip at all"


# -- webhook: no answer


async def test_no_answer_in_time_is_unavailable(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    never = asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        await never.wait()
        return web.Response()

    receiver.answer = answer
    assert await webhook_to(receiver.url, timeout_ms=SHORT_MS).deliver(PARCEL) == Outcome(
        Verdict.UNAVAILABLE, "no answer within 0.15 s"
    )
    never.set()


async def test_a_refused_connection_is_unavailable(webhook_to: MakeWebhook) -> None:
    port = free_port()
    outcome = await webhook_to(f"http://{HOST}:{port}/hook").deliver(PARCEL)
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert str(port) in outcome.cause


async def test_a_name_that_does_not_resolve_is_unavailable(webhook_to: MakeWebhook) -> None:
    outcome = await webhook_to("http://receiver.invalid/hook").deliver(PARCEL)
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert "receiver.invalid" in outcome.cause


async def test_plain_http_where_tls_is_expected_is_unavailable(receiver: Receiver, webhook_to: MakeWebhook) -> None:
    outcome = await webhook_to(receiver.url.replace("http:", "https:")).deliver(PARCEL)
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert receiver.requests == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"220 mail.example.com ESMTP\r\n",
        b"\x00\x00\x00\x06\x00\x00\x00\x00OK",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        b"\xff" * 5_000,
    ],
)
async def test_garbage_in_place_of_http_is_tried_again(
    webhook_to: MakeWebhook, raw_server: Callable[[bytes], Awaitable[str]], garbage: bytes
) -> None:
    outcome = await webhook_to(await raw_server(garbage)).deliver(PARCEL)
    assert outcome.verdict is Verdict.AGAIN
    assert outcome.cause.startswith("no HTTP: ")
    assert "hook" not in outcome.cause + outcome.answer, "the path of the URL, often a secret"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-le"])
async def test_a_receiver_that_hangs_up_before_it_answered_is_unavailable(
    webhook_to: MakeWebhook, raw_server: Callable[[bytes], Awaitable[str]], answer: bytes
) -> None:
    outcome = await webhook_to(await raw_server(answer)).deliver(PARCEL)
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert outcome.cause


async def test_an_answer_cut_off_behind_its_status_counts(
    webhook_to: MakeWebhook, raw_server: Callable[[bytes], Awaitable[str]]
) -> None:
    url = await raw_server(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nok")
    assert (await webhook_to(url).deliver(PARCEL)).verdict is Verdict.DELIVERED


async def test_closed_it_leaves_no_connection_and_may_be_closed_again(
    receiver: Receiver, webhook_to: MakeWebhook
) -> None:
    webhook = webhook_to(receiver.url)
    await webhook.deliver(PARCEL)
    await webhook.close()
    await webhook.close()


# -- log


def log_to(path: Path | str, **settings: Any) -> LogFile:
    return LogFile(LogSinkSettings(**{**COMMON, **settings}, type="log", path=str(path)))


async def delivered(sink: LogFile, *bodies: bytes) -> list[Verdict]:
    return [(await sink.deliver(PARCEL._replace(body=body))).verdict for body in bodies]


async def test_a_digest_is_one_line_of_the_file(tmp_path: Path) -> None:
    sink = log_to(tmp_path / "out.jsonl")
    assert await delivered(sink, b'{"a":1}', b'{"b":2}') == [Verdict.DELIVERED] * 2
    await sink.close()
    assert (tmp_path / "out.jsonl").read_bytes() == b'{"a":1}\n{"b":2}\n'


async def test_a_value_published_over_several_lines_is_written_as_one(tmp_path: Path) -> None:
    sink = log_to(tmp_path / "out.jsonl")
    body = b'{"value":{\r\n  "s" : "a\\nb"\n}}'
    await delivered(sink, body)
    await sink.close()
    (line,) = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert json.loads(line) == json.loads(body)


async def test_what_is_in_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"before\n")
    sink = log_to(path)
    await delivered(sink, b"{}")
    await sink.close()
    assert path.read_bytes() == b"before\n{}\n"


async def test_deliveries_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    sink = log_to(tmp_path / "out.jsonl")
    bodies = [b'{"n":%d,"x":"%s"}' % (number, b"x" * 20_000) for number in range(30)]
    await asyncio.gather(*(delivered(sink, body) for body in bodies))
    await sink.close()
    assert sorted((tmp_path / "out.jsonl").read_bytes().splitlines()) == sorted(bodies)


async def test_a_full_disk_is_unavailable_and_says_so() -> None:
    sink = log_to("/dev/full")
    assert await sink.deliver(PARCEL) == Outcome(Verdict.UNAVAILABLE, "/dev/full: No space left on device")
    await sink.close()


async def test_a_missing_folder_is_unavailable_until_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "later" / "out.jsonl"
    sink = log_to(path)
    assert await sink.deliver(PARCEL) == Outcome(Verdict.UNAVAILABLE, f"{path}: No such file or directory")
    path.parent.mkdir()
    assert await delivered(sink, b"{}") == [Verdict.DELIVERED]
    await sink.close()
    assert path.read_bytes() == b"{}\n"


async def test_a_write_in_pieces_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real_write(file, data[:7]))
    sink = log_to(tmp_path / "out.jsonl")
    assert await delivered(sink, BODY) == [Verdict.DELIVERED]
    await sink.close()
    assert (tmp_path / "out.jsonl").read_bytes() == BODY + b"\n"


async def test_a_torn_line_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    room_bytes = 20

    def write(file: int, data: bytes) -> int:
        nonlocal room_bytes
        if room_bytes == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real_write(file, data[:room_bytes])
        room_bytes -= written
        return written

    monkeypatch.setattr(os, "write", write)
    sink = log_to(tmp_path / "out.jsonl")
    assert await delivered(sink, b'{"first":1}', BODY, BODY) == [
        Verdict.DELIVERED, Verdict.UNAVAILABLE, Verdict.UNAVAILABLE,
    ]  # fmt: skip
    room_bytes = 10_000
    assert await delivered(sink, BODY, b"{}") == [Verdict.DELIVERED] * 2
    await sink.close()
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert lines == [b'{"first":1}', BODY[:8], BODY, b"{}"]


async def test_a_reader_that_stands_still_keeps_one_thread_and_no_line_is_mixed_with_another(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    sink = log_to(path, timeout_ms=SHORT_MS)
    long_one = b'{"x":"%s"}' % (b"x" * (1 << 20))
    try:
        for body in (long_one, b"{}", b"{}"):
            outcome = await sink.deliver(PARCEL._replace(body=body))
            assert outcome == Outcome(Verdict.UNAVAILABLE, f"{path}: not written within {SHORT_MS / 1000:g} s")
            assert len([thread for thread in threading.enumerate() if str(path) in thread.name]) == 1
        await sink.close()  # does not wait for it
        read = bytearray()

        def read_on() -> int:
            with contextlib.suppress(BlockingIOError):
                read.extend(os.read(reader, 1 << 20))
            return read.count(b"\n")

        await until(lambda: read_on() == 1, what="the late line")
        sink._timeout_s = TIMEOUT_MS / 1000  # of this sink, which knows of the late line: from here on it succeeds
        assert await delivered(sink, b'{"b":2}') == [Verdict.DELIVERED]
        await until(lambda: read_on() == 2, what="the next line")
        assert bytes(read) == long_one + b'\n{"b":2}\n'
    finally:
        await sink.close()
        os.close(reader)


async def test_a_dash_is_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    sink = log_to("-")
    assert await delivered(sink, b'{"a":1}', b'{"b":2}') == [Verdict.DELIVERED] * 2
    await sink.close()
    assert capfd.readouterr().out == '{"a":1}\n{"b":2}\n'


async def test_closed_it_opens_the_file_anew(tmp_path: Path) -> None:
    sink = log_to(tmp_path / "out.jsonl")
    await delivered(sink, b'{"a":1}')
    await sink.close()
    await delivered(sink, b'{"b":2}')
    await sink.close()
    assert (tmp_path / "out.jsonl").read_bytes() == b'{"a":1}\n{"b":2}\n'
