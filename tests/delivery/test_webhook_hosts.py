"""A webhook whose host comes from events, against real receivers: one server with many names, and a name server that
lies. Only `socket.getaddrinfo` is not the real one.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.hosts import MOST_HOSTS
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.webhook import Webhook, WebhookSinkSettings, aim
from nsqdigest.delivery.sinks.webhook_hosts import SPARE_CLIENTS
from nsqdigest.delivery.targets import Source
from support.ports import HOST
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

LOOPBACK = ("127.0.0.0/8",)
SETTINGS: dict[str, Any] = {
    "name": "hook", "type": "webhook", "concurrency": 8, "timeout_ms": 5_000, "max_attempts": 0,
    "max_age_ms": 3_600_000, "retry_base_ms": 1_000, "retry_cap_ms": 900_000, "retry_after_max_ms": 3_600_000,
    "max_body_bytes": 256 * 1024,
    "allow_http": True, "allow_hosts": LOOPBACK, "secrets": (), "headers": {},
}  # fmt: skip


class Names:
    """A name server. A name that it was not told leads to the receiver."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[list[str]]] = {}
        """By name, its answers; the last of them again and again."""
        self.asked: list[str] = []
        self._real = socket.getaddrinfo

    def look_up(self, host: str, port: int, *arguments: Any, **how: Any) -> list[Any]:
        if not host.endswith(".test"):
            return list(self._real(host, port, *arguments, **how))
        self.asked.append(host)
        answers = self.addresses.get(host, [[HOST]])
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(kinds[":" in each], socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.look_up)
    return names


class Receiver:
    """Answers 200, or by the host that it is asked as."""

    def __init__(self) -> None:
        self.port = 0
        self.hosts: list[str] = []
        self.paths: list[str] = []
        self.by_host: dict[str, Callable[[], Awaitable[web.Response]]] = {}
        self.at_once: dict[str, int] = defaultdict(int)
        self.most_at_once: dict[str, int] = defaultdict(int)

    async def handle(self, request: web.Request) -> web.Response:
        host = request.host.partition(":")[0]
        await request.read()
        self.hosts.append(host)
        self.paths.append(request.raw_path)
        for name in (host, ""):
            self.at_once[name] += 1
            self.most_at_once[name] = max(self.most_at_once[name], self.at_once[name])
        try:
            return await self.by_host[host]() if host in self.by_host else web.Response()
        finally:
            for name in (host, ""):
                self.at_once[name] -= 1

    def always(self, host: str, status: int, **headers: str) -> None:
        async def answer() -> web.Response:
            return web.Response(status=status, headers={name.replace("_", "-"): text for name, text in headers.items()})

        self.by_host[host] = answer

    def hang(self, host: str) -> asyncio.Event:
        let_go = asyncio.Event()

        async def answer() -> web.Response:
            await let_go.wait()
            return web.Response()

        self.by_host[host] = answer
        return let_go


async def _serve(receiver: Receiver, ssl_context: ssl.SSLContext | None = None) -> web.AppRunner:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, HOST, 0, ssl_context=ssl_context).start()
    receiver.port = runner.addresses[0][1]
    return runner


@pytest.fixture
async def receiver(names: Names) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    runner = await _serve(receiver)
    yield receiver
    await runner.cleanup()


class Sink:
    def __init__(self, url: str, **changes: Any) -> None:
        self.settings = WebhookSinkSettings(**(SETTINGS | {"url": url} | changes))
        self.webhook = Webhook(self.settings)
        self._count = 0

    async def send(self, tenant: str, **event: Any) -> Outcome:
        self._count += 1
        found = aim(self.settings)
        assert found is not None
        target = found.of(Source("events", "t", json.dumps({"t": tenant, **event}).encode()))
        return await self.webhook.deliver(OutgoingDigest(f"id{self._count}", "events", "t", 1, 1, b"{}", target))


MakeSink = Callable[..., Sink]


@pytest.fixture
async def sink_to(receiver: Receiver) -> AsyncIterator[MakeSink]:
    made: list[Sink] = []

    def make(url: str = "", **changes: Any) -> Sink:
        made.append(Sink(url or f"http://{{t}}.tenants.test:{receiver.port}/hook/{{t}}", **changes))
        return made[-1]

    yield make
    for sink in made:
        await sink.webhook.close()


# -- where it goes


async def test_each_digest_goes_to_its_host_and_path(receiver: Receiver, sink_to: MakeSink) -> None:
    sink = sink_to()
    for tenant in ("acme", "beta", "acme"):
        assert (await sink.send(tenant)).verdict is Verdict.DELIVERED
    assert receiver.hosts == ["acme.tenants.test", "beta.tenants.test", "acme.tenants.test"]
    assert receiver.paths == ["/hook/acme", "/hook/beta", "/hook/acme"]


async def test_connections_of_a_host_are_used_again_and_names_looked_up_once_for_each(
    names: Names, sink_to: MakeSink
) -> None:
    sink = sink_to()
    for _ in range(5):
        await sink.send("acme")
    assert names.asked == ["acme.tenants.test"]


async def test_clients_are_few_however_many_hosts_there_are(sink_to: MakeSink) -> None:
    sink = sink_to()
    for number in range(3 * SPARE_CLIENTS):
        assert (await sink.send(f"t{number}")).verdict is Verdict.DELIVERED
    assert sink.webhook._hosts is not None  # its bound is what this is about
    assert len(sink.webhook._hosts._clients) == SPARE_CLIENTS
    assert len(sink.webhook._hosts._hosts) == 3 * SPARE_CLIENTS <= MOST_HOSTS


async def test_the_certificate_has_to_be_that_of_the_name(
    names: Names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is connected to is a pinned address; SNI, Host and the check of the certificate go by the name."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("acme.tenants.test").configure_cert(context)
    asked_for: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked_for.append(name)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    receiver = Receiver()
    runner = await _serve(receiver, context)
    sink = Sink(f"https://{{t}}.tenants.test:{receiver.port}/hook")
    try:
        assert (await sink.send("acme")).verdict is Verdict.DELIVERED
        outcome = await sink.send("evil")
    finally:
        await sink.webhook.close()
        await runner.cleanup()
    assert asked_for == ["acme.tenants.test", "evil.tenants.test"]
    assert receiver.hosts == ["acme.tenants.test"]
    assert outcome.verdict is Verdict.UNAVAILABLE
    assert "TLS with evil.tenants.test" in outcome.cause


# -- where it must not go


@pytest.mark.parametrize(
    "addresses",
    [
        ["169.254.169.254"],
        ["127.0.0.1"],
        ["8.8.8.8", "10.0.0.1"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::a9fe:a9fe"],
    ],
)
async def test_a_name_that_leads_to_an_address_that_is_not_public_is_not_connected_to(
    receiver: Receiver, names: Names, sink_to: MakeSink, addresses: list[str]
) -> None:
    names.addresses["acme.tenants.test"] = [addresses]
    outcome = await sink_to(allow_hosts=()).send("acme")
    assert (outcome.verdict, outcome.is_of_sink) == (Verdict.UNAVAILABLE, False)
    assert f"acme.tenants.test has the address {addresses[-1]}, which is not public" in outcome.cause
    assert receiver.hosts == []


async def test_a_name_that_changes_its_address_after_it_was_looked_at_gains_nothing(
    receiver: Receiver, names: Names, sink_to: MakeSink
) -> None:
    """DNS rebinding: public when it is checked, loopback when it would be connected to."""
    connected: list[str] = []
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def refused(sock: socket.socket, address: Any) -> None:
        connected.append(address[0])
        if address[0] != HOST:
            raise ConnectionRefusedError(111, "as told")
        await connect(sock, address)

    loop.sock_connect = refused  # type: ignore[method-assign]
    names.addresses["acme.tenants.test"] = [["8.8.8.8"], [HOST]]
    sink = sink_to(allow_hosts=())
    first, second = await sink.send("acme"), await sink.send("acme")
    assert connected == ["8.8.8.8"]
    assert names.asked == ["acme.tenants.test"]  # the second was put off: the first failed
    assert (first.verdict, second.verdict) == (Verdict.UNAVAILABLE, Verdict.DEFERRED)
    assert receiver.hosts == []


async def test_a_host_may_be_allowed_by_its_name(receiver: Receiver, sink_to: MakeSink) -> None:
    sink = sink_to(allow_hosts=("acme.tenants.test",))
    assert (await sink.send("acme")).verdict is Verdict.DELIVERED
    assert (await sink.send("beta")).verdict is Verdict.UNAVAILABLE
    assert receiver.hosts == ["acme.tenants.test"]


async def test_a_redirect_to_another_place_is_not_followed(receiver: Receiver, sink_to: MakeSink) -> None:
    receiver.always("acme.tenants.test", 307, location=f"http://{HOST}:{receiver.port}/latest/meta-data")
    outcome = await sink_to().send("acme")
    assert outcome.verdict is Verdict.AGAIN
    assert receiver.paths == ["/hook/acme"]


# -- one host among many


async def test_a_host_that_hangs_neither_stops_the_others_nor_takes_all_posts(
    receiver: Receiver, sink_to: MakeSink
) -> None:
    let_go = receiver.hang("dead.tenants.test")
    sink = sink_to(timeout_ms=600_000)
    dead = [asyncio.create_task(sink.send("dead")) for _ in range(20)]
    await until(lambda: receiver.at_once["dead.tenants.test"], what="a post to the dead host")
    async with asyncio.timeout(PATIENCE_S):  # a tenth of the sink's time-out
        outcomes = await asyncio.gather(*(sink.send(f"t{number}") for number in range(30)))
    assert {each.verdict for each in outcomes} == {Verdict.DELIVERED}
    assert receiver.most_at_once["dead.tenants.test"] == 1
    let_go.set()
    verdicts = {each.verdict for each in await asyncio.gather(*dead)}
    assert verdicts <= {Verdict.DELIVERED, Verdict.DEFERRED}


async def test_a_host_that_asks_for_silence_gets_it_and_the_others_go_on(receiver: Receiver, sink_to: MakeSink) -> None:
    receiver.always("busy.tenants.test", 429, retry_after="600")
    sink = sink_to(retry_after_max_ms=60_000)
    assert (await sink.send("busy")).retry_after_s == 600
    put_off = await sink.send("busy")
    assert put_off.verdict is Verdict.DEFERRED
    assert 50 < put_off.retry_after_s <= 60
    assert (await sink.send("acme")).verdict is Verdict.DELIVERED
    assert receiver.hosts == ["busy.tenants.test", "acme.tenants.test"]


async def test_a_host_that_fails_is_left_alone_and_its_digests_put_off(receiver: Receiver, sink_to: MakeSink) -> None:
    receiver.always("dead.tenants.test", 503)
    sink = sink_to()
    first = await sink.send("dead")
    assert (first.verdict, first.cause, first.is_of_sink) == (
        Verdict.UNAVAILABLE, "dead.tenants.test: 503 Service Unavailable", False,
    )  # fmt: skip
    put_off = await sink.send("dead")
    assert (put_off.verdict, put_off.cause, put_off.is_of_sink) == (Verdict.DEFERRED, first.cause, False)
    assert 0 < put_off.retry_after_s <= 30
    assert (await sink.send("acme")).verdict is Verdict.DELIVERED
    assert receiver.hosts == ["dead.tenants.test", "acme.tenants.test"]


async def test_a_host_that_is_well_again_gets_its_digests(receiver: Receiver, sink_to: MakeSink) -> None:
    receiver.always("dead.tenants.test", 503)
    sink = sink_to()
    await sink.send("dead")
    del receiver.by_host["dead.tenants.test"]
    while (outcome := await sink.send("dead")).verdict is not Verdict.DELIVERED:
        assert outcome.verdict is Verdict.DEFERRED
        await asyncio.sleep(min(0.1, outcome.retry_after_s))
    assert receiver.hosts.count("dead.tenants.test") == 2  # nothing but a probe


async def test_a_busy_host_gets_more_than_one_post_at_a_time_and_never_all(
    receiver: Receiver, sink_to: MakeSink
) -> None:
    async def slow() -> web.Response:
        await asyncio.sleep(0.01)
        return web.Response()

    receiver.by_host["acme.tenants.test"] = slow
    sink = sink_to()
    outcomes = await asyncio.gather(*(sink.send("acme") for _ in range(8)))
    outcomes += await asyncio.gather(*(sink.send("acme") for _ in range(30)))
    assert {each.verdict for each in outcomes} <= {Verdict.DELIVERED, Verdict.DEFERRED}
    assert [each.verdict for each in outcomes].count(Verdict.DELIVERED) > 30
    assert 1 < receiver.most_at_once["acme.tenants.test"] <= 6


async def test_all_hosts_together_get_no_more_than_its_concurrency(receiver: Receiver, sink_to: MakeSink) -> None:
    async def slow() -> web.Response:
        await asyncio.sleep(0.01)
        return web.Response()

    receiver.by_host = {f"t{number}.tenants.test": slow for number in range(40)}
    sink = sink_to()
    for most in (6, 8):  # new ones leave a quarter to those that are known to answer
        outcomes = await asyncio.gather(*(sink.send(f"t{number}") for number in range(40)))
        assert {each.verdict for each in outcomes} == {Verdict.DELIVERED}
        assert receiver.most_at_once[""] == most


async def test_a_host_or_a_place_that_is_gone_says_nothing_of_the_others(receiver: Receiver, sink_to: MakeSink) -> None:
    receiver.always("gone.tenants.test", 410)
    outcome = await sink_to().send("gone")
    assert (outcome.verdict, outcome.is_of_sink) == (Verdict.GONE, False)


@pytest.mark.parametrize(
    ("status", "is_of_sink"), [(403, False), (404, False), (405, False), (410, False), (400, True), (503, True)]
)
async def test_of_a_path_with_fields_some_answers_are_of_the_place(
    receiver: Receiver, sink_to: MakeSink, status: int, is_of_sink: bool
) -> None:
    receiver.always(HOST, status)
    sink = sink_to(f"http://{HOST}:{receiver.port}/hook/{{t}}", allow_hosts=())
    assert (await sink.send("a b")).is_of_sink is is_of_sink
    assert receiver.paths == ["/hook/a%20b"]


async def test_a_post_that_is_broken_off_gives_its_place_back(receiver: Receiver, sink_to: MakeSink) -> None:
    receiver.hang("dead.tenants.test")
    sink = sink_to(concurrency=1)
    sending = asyncio.create_task(sink.send("dead"))
    await until(lambda: receiver.at_once["dead.tenants.test"], what="a post to the dead host")
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    assert (await sink.send("acme")).verdict is Verdict.DELIVERED
