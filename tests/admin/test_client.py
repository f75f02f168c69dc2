"""client.py: what commands send to a daemon, and what a stranger at its address gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from nsqdigest.admin import client, proof
from nsqdigest.admin.guard import Tokens
from nsqdigest.admin.server import AdminServer, Check
from nsqdigest.admin.views import ErrorView
from nsqdigest.base.errors import NsqdigestError, Unreachable
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address, Config, Secret, load
from nsqdigest.delivery.sinks.table import KINDS
from support.ports import HOST, free_port

pytestmark = pytest.mark.integration

TOKEN = "a-long-enough-token"
READING = "a-long-token-that-reads"
PAUSE = {"kind": "topic", "name": "events"}


def config_of(folder: Path, port: int, host: str = HOST, **admin: str) -> Config:
    file = folder / "nsqdigest.toml"
    settings = {"listen": f"{host}:{port}", "token": TOKEN, **admin}
    file.write_text(
        f'nsq.nsqd_tcp_addresses = ["{HOST}:1"]\n'
        + "".join(f"admin.{key} = {json.dumps(value)}\n" for key, value in settings.items())
        + 'sinks.out.type = "log"\n[[routes]]\ntopic = "events"\ntimeline = "{user}"\nsink = "out"\n',
        encoding="utf-8",
    )
    return load(file, {}, KINDS)


class Served:
    """An admin server, and what its handlers were asked for."""

    def __init__(self, tokens: Tokens, host: str = HOST) -> None:
        self.port = free_port()
        self.done: list[Any] = []
        api = [web.post("/api/pause", self.pause), web.get("/api/status", self.status)]
        checks = [Check("running", True, "yes")]
        self.server = AdminServer(Address(host, self.port), Metrics(), lambda: checks, api, lambda: tokens)

    async def pause(self, request: web.Request) -> web.Response:
        self.done.append(await request.json())
        return web.json_response({"changed": True})

    async def status(self, request: web.Request) -> web.Response:
        self.done.append(request.headers.get("authorization"))
        return web.json_response({"error": ""})


class Stranger:
    """Another program at the daemon's address. `nonce`: what it gives for one; None: an older daemon."""

    def __init__(self, answer: Callable[[], web.Response]) -> None:
        self.port = free_port()
        self.nonce: str | None = f"1.{'0' * 32}.{'0' * 64}"
        self.asked: list[str] = []
        self.shown = ""
        self._answer = answer
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        self._runner = web.AppRunner(application)

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.raw_path} {dict(request.headers)} {await request.text()}")
        self.shown = request.headers.get("authorization", "")
        if request.path == proof.NONCE_PATH and self.nonce is None:
            return web.json_response({"error": "there is no such address"}, status=404)
        if request.path == proof.NONCE_PATH:
            return web.json_response({"nonce": self.nonce})
        return self._answer()

    async def __aenter__(self) -> Stranger:
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.port).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served(Tokens(Secret(TOKEN), Secret(READING)))
    await served.server.start()
    yield served
    await served.server.stop()


async def posted(config: Config) -> dict[str, Any]:
    return await asyncio.to_thread(client.post, config, "/api/pause", PAUSE)


async def test_a_write_is_done_without_sending_the_token(served: Served, tmp_path: Path) -> None:
    config = config_of(tmp_path, served.port)
    for _ in range(2):
        assert await posted(config) == {"changed": True}
    assert served.done == [PAUSE, PAUSE]


@pytest.mark.parametrize(
    ("admin", "host", "is_proved"),
    [({}, HOST, False), ({"read_token": READING}, HOST, True), ({}, "0.0.0.0", True)],
)
async def test_a_read_proves_a_token_only_if_one_is_needed(
    tmp_path: Path, admin: dict[str, str], host: str, is_proved: bool
) -> None:
    """The file may have a newer token than the daemon, and `status` works all the same."""
    served = Served(Tokens(Secret(TOKEN), Secret(READING) if admin else None), host)
    await served.server.start()
    try:
        config = config_of(tmp_path, served.port, host, **admin)
        await asyncio.to_thread(client.get, config, "/api/status", ErrorView)
    finally:
        await served.server.stop()
    assert [str(shown).startswith("Nsqdigest-Proof ") for shown in served.done] == [is_proved]
    assert TOKEN not in str(served.done)


async def test_a_token_that_the_daemon_does_not_have_is_refused(served: Served, tmp_path: Path) -> None:
    with pytest.raises(NsqdigestError, match="does not prove that it has the token of this file, refuses: the token"):
        await posted(config_of(tmp_path, served.port, token="another-long-token"))
    assert served.done == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.json_response({"changed": True}),
        lambda: web.json_response({"changed": True}, headers={proof.HEADER: "0" * 64}),
        lambda: web.json_response({"error": "type your token into http://attacker.example"}, status=401),
        lambda: web.Response(text="hello"),
        lambda: web.Response(status=307, headers={"location": "http://attacker.example/api/pause"}),
    ],
)
async def test_a_stranger_at_the_address_gets_no_token_and_is_not_believed(
    tmp_path: Path, answer: Callable[[], web.Response]
) -> None:
    async with Stranger(answer) as stranger:
        with pytest.raises(NsqdigestError) as caught:
            await posted(config_of(tmp_path, stranger.port))
        assert "which does not prove that it has the token" in str(caught.value) or "no nsqdigest" in str(caught.value)
        assert TOKEN not in str(stranger.asked)


@pytest.mark.parametrize("nonce", ["", "x", "a\r\nb: c", f"1.{'0' * 32}.{'0' * 63}", "ä"])
async def test_what_is_no_nonce_is_not_used(tmp_path: Path, nonce: str) -> None:
    async with Stranger(lambda: web.json_response({})) as stranger:
        stranger.nonce = nonce
        with pytest.raises(Unreachable, match="no nsqdigest"):
            await posted(config_of(tmp_path, stranger.port))
        assert len(stranger.asked) == 1


async def test_what_a_stranger_recorded_opens_nothing(served: Served, tmp_path: Path) -> None:
    """It passes on a nonce of the real daemon, and so gets a proof that this daemon would take: of that one request."""
    real = client.connection_to(Address(HOST, served.port), 10.0)

    def asked(method: str, path: str, shown: str, body: bytes) -> int:
        real.request(method, path, body, {"authorization": shown, "content-type": "application/json"})
        answer = real.getresponse()
        answer.read()
        return answer.status

    def nonce() -> str:
        real.request("GET", proof.NONCE_PATH)
        return str(json.loads(real.getresponse().read())["nonce"])

    async with Stranger(lambda: web.json_response({"changed": True})) as stranger:
        stranger.nonce = await asyncio.to_thread(nonce)
        with pytest.raises(Unreachable, match="does not prove"):
            await posted(config_of(tmp_path, stranger.port))
    body = json.dumps(PAUSE).encode()
    other = json.dumps({**PAUSE, "name": "other"}).encode()
    tried = [("POST", "/api/resume", body), ("PUT", "/api/pause", body)]
    assert [await asyncio.to_thread(asked, *each[:2], stranger.shown, each[2]) for each in tried] == [401, 401]
    assert await asyncio.to_thread(asked, "POST", "/api/pause", stranger.shown, other) == 401
    assert await asyncio.to_thread(asked, "POST", "/api/pause", stranger.shown, body) == 401  # it is used up
    assert served.done == []
    real.close()


async def test_an_older_daemon_is_named(tmp_path: Path) -> None:
    async with Stranger(lambda: web.json_response({})) as stranger:
        stranger.nonce = None
        with pytest.raises(Unreachable, match="of an older version than this command"):
            await posted(config_of(tmp_path, stranger.port))
