"""client.py: what commands send to a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from nsqdigest.admin import client
from nsqdigest.admin.views import ErrorView
from nsqdigest.config import Config, load
from nsqdigest.delivery.sinks.table import KINDS
from support.ports import HOST, free_port

pytestmark = pytest.mark.integration

TOKEN = "a-long-enough-token"


class Served:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.shown: list[str | None] = []
        self.file = folder / "nsqdigest.toml"

    def config(self, host: str) -> Config:
        self.file.write_text(
            f'nsq.nsqd_tcp_addresses = ["{HOST}:1"]\nadmin.listen = "{host}:{self.port}"\nadmin.token = "{TOKEN}"\n'
            'sinks.out.type = "log"\n[[routes]]\ntopic = "events"\ntimeline = "{user}"\nsink = "out"\n',
            encoding="utf-8",
        )
        return load(self.file, {}, KINDS)

    async def answer(self, request: web.Request) -> web.Response:
        self.shown.append(request.headers.get("authorization"))
        return web.json_response({"error": ""})


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    served = Served(tmp_path)
    application = web.Application()
    application.router.add_get("/api/status", served.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, HOST, served.port).start()
    yield served
    await runner.cleanup()


@pytest.mark.parametrize(("host", "shown"), [(HOST, None), ("0.0.0.0", f"Bearer {TOKEN}")])
async def test_a_read_shows_the_token_only_where_one_is_needed(served: Served, host: str, shown: str | None) -> None:
    """The file may have a newer token than the daemon, and `status` is asked all the same."""
    config = served.config(host)
    await asyncio.to_thread(client.get, config, "/api/status", ErrorView)
    assert served.shown == [shown]
