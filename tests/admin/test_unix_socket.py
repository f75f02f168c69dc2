"""`admin.listen = "unix:PATH"`: who may connect, whose socket is replaced, and that commands and the doctor use it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from nsqdigest.admin import unix_socket
from nsqdigest.admin.guard import Tokens
from nsqdigest.admin.server import AdminServer, Check
from nsqdigest.base.errors import Unreachable
from nsqdigest.base.findings import Finding, State
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Secret, UnixSocket
from nsqdigest.doctor.places import look_at_admin

pytestmark = pytest.mark.integration

TOKEN = "a-long-enough-token"
WRITES = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def path() -> Iterator[Path]:
    """A short one: the kernel takes 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="nd") as folder:
        yield Path(folder) / "admin.sock"


def server_at(path: Path) -> AdminServer:
    async def thing(_request: web.Request) -> web.Response:
        return web.json_response({})

    api = [web.get("/api/thing", thing), web.post("/api/thing", thing)]
    checks = [Check("running", True, "yes")]
    return AdminServer(UnixSocket(str(path)), Metrics(), lambda: checks, api, lambda: Tokens(Secret(TOKEN)))


@pytest.fixture
async def served(path: Path) -> AsyncIterator[AdminServer]:
    server = server_at(path)
    await server.start()
    yield server
    await server.stop()


async def asked(path: Path, method: str, target: str, headers: dict[str, str]) -> int:
    def ask() -> int:
        connection = unix_socket.Connection(str(path), 10.0)
        try:
            connection.request(method, target, b"{}" if method == "POST" else None, headers)
            return connection.getresponse().status
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def looked(path: Path) -> Finding:
    async def pids_here() -> list[int]:
        return []

    return (await look_at_admin(UnixSocket(str(path)), pids_here))[0]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("method", "target", "headers", "status"),
    [
        ("GET", "/livez", {}, 200),
        ("GET", "/api/thing", {}, 200),
        ("GET", "/api/thing", {"x-forwarded-for": "203.0.113.7"}, 401),
        ("GET", "/api/thing", {"host": "attacker.example"}, 403),
        ("GET", "/api/thing", {"origin": "http://attacker.example"}, 403),
        ("POST", "/api/thing", {"content-type": "application/json"}, 401),
        ("POST", "/api/thing", WRITES, 200),
    ],
)
async def test_it_is_an_address_of_this_machine(
    path: Path, method: str, target: str, headers: dict[str, str], status: int
) -> None:
    assert await asked(path, method, target, headers) == status


@pytest.mark.usefixtures("served")
async def test_owner_and_group_may_connect_and_the_log_names_the_user(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nsqdigest")
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    await asked(path, "POST", "/api/thing", WRITES)
    (line,) = [record for record in caplog.records if record.getMessage() == "admin.write"]
    assert line.__dict__["fields"]["client"] == f"uid {os.getuid()}"


async def test_the_socket_of_a_daemon_that_died_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
        dead.listen()
    assert (await looked(path)).state is State.OK
    server = server_at(path)
    await server.start()
    assert await asked(path, "GET", "/livez", {}) == 200
    assert (await looked(path)).detail == "a daemon runs here already, and is ready"
    await server.stop()
    assert not path.exists()


@pytest.mark.usefixtures("served")
async def test_that_of_a_living_daemon_is_not(path: Path) -> None:
    with pytest.raises(Unreachable, match=r"admin.listen: a process listens on .* is another daemon running"):
        await server_at(path).start()
    assert await asked(path, "GET", "/livez", {}) == 200


async def test_nor_that_of_a_daemon_that_hangs(path: Path) -> None:
    """Its queue is full, so that no connection is made."""
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(path))
        hanging.listen(0)
        waiting = []
        for _ in range(3):
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(str(path))
        with pytest.raises(Unreachable, match="a process listens on"):
            await server_at(path).start()
        for each in waiting:
            each.close()


async def test_what_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("dear diary", encoding="utf-8")
    with pytest.raises(Unreachable, match="is there and is not a socket; move it away"):
        await server_at(path).start()
    assert path.read_text(encoding="utf-8") == "dear diary"
    assert (await looked(path)).state is State.FAIL


async def test_a_folder_that_is_not_there_is_named(path: Path) -> None:
    beyond = path / "deeper" / "admin.sock"
    with pytest.raises(Unreachable, match="deeper is not there; make this folder"):
        await server_at(beyond).start()
    assert (await looked(beyond)).remedy.startswith("make this folder")


async def test_a_daemon_that_ends_late_does_not_take_its_successors_socket_along(path: Path) -> None:
    before = server_at(path)
    await before.start()
    path.unlink()
    after = server_at(path)
    await after.start()
    await before.stop()
    assert await asked(path, "GET", "/livez", {}) == 200
    await after.stop()
