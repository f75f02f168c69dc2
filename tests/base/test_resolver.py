"""Names that resolve slowly: they delay whoever asked for them, and nobody else."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import redis.asyncio

from nsqdigest.base import resolver
from nsqdigest.base.errors import ConnectionLost
from nsqdigest.base.resolver import MOST_NSQDS, Resolver
from nsqdigest.config import Address
from nsqdigest.nsq import handshake
from nsqdigest.nsq.connection import ConnectionOptions
from support.daemon import toml
from support.keeper import kept
from support.ports import HOST
from support.servers import Nsqd, RedisServer
from support.waiting import PATIENCE_S, until, wait_until

pytestmark = pytest.mark.integration

SLOW = "slow.example"
KNOWN = "known.example"
"""At this machine."""


class NameServer:
    """In place of the machine's: what ends in SLOW is answered when `answers` is set, and nobody knows it."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked: Counter[str] = Counter()
        self.threads: set[threading.Thread] = set()
        """Those that wait for an answer."""
        self._real = socket.getaddrinfo

    @property
    def waiting(self) -> int:
        return sum(thread.is_alive() for thread in self.threads.copy())

    def getaddrinfo(self, host: str, *more: Any, **named: Any) -> Any:
        self.asked[str(host)] += 1
        if str(host).endswith(SLOW):
            self.threads.add(threading.current_thread())
            self.answers.wait(10 * PATIENCE_S)
            raise socket.gaierror(socket.EAI_NONAME, "nobody knows it")
        return self._real(HOST if host == KNOWN else host, *more, **named)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.answers.set()
    wait_until(lambda: not server.waiting, what="the threads to end")


async def test_a_name_is_asked_for_once_at_a_time_whoever_asks(names: NameServer) -> None:
    of = Resolver(4)
    asking = [asyncio.create_task(of.look_up(SLOW, 1)) for _ in range(5)]
    await until(lambda: names.asked[SLOW] == 1, what="the name server to be asked")
    asking[0].cancel()
    names.answers.set()
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in found] == [asyncio.CancelledError, *[socket.gaierror] * 4]
    assert names.asked[SLOW] == 1
    with pytest.raises(socket.gaierror):
        await of.look_up(SLOW, 1)
    assert names.asked[SLOW] == 2, "nothing is remembered"


async def test_names_beyond_the_bound_wait_in_line(names: NameServer) -> None:
    of = Resolver(2)
    slow = [asyncio.create_task(of.look_up(f"{number}.{SLOW}", 1)) for number in range(4)]
    known = asyncio.create_task(of.look_up(KNOWN, 1))
    await until(lambda: names.waiting == 2, what="two threads")
    await asyncio.sleep(0)
    assert names.waiting == 2
    assert [address for *_, address in await of.look_up("127.0.0.1", 7, kind=socket.SOCK_STREAM)] == [("127.0.0.1", 7)]
    names.answers.set()
    assert {address for *_, address in await known} == {(HOST, 1)}
    await asyncio.gather(*slow, return_exceptions=True)
    await until(lambda: names.waiting == 0, what="no thread to be left")


async def test_what_can_be_no_name_is_a_name_that_nobody_knows() -> None:
    with pytest.raises(socket.gaierror, match="it cannot be a name"):
        await Resolver(1).look_up("x" * 64, 1)


def in_our_loop(test: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    resolver.run(limited())


def test_slow_names_of_nsqds_delay_no_other_connection_and_not_the_end(
    names: NameServer, nsqd: Nsqd, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as may be looked up at a time. Redis, HTTP and an nsqd at its IP address are connected to meanwhile."""
    options = ConnectionOptions(heartbeat_interval_ms=30_000)
    monkeypatch.setattr(handshake, "HANDSHAKE_TIMEOUT_S", 0.5)

    async def connect() -> None:
        slow = [
            asyncio.create_task(handshake.shake_hands(Address(f"{number}.{SLOW}", 4150), options))
            for number in range(MOST_NSQDS + 1)
        ]
        await until(lambda: names.waiting == MOST_NSQDS, what="the threads")
        async with redis.asyncio.Redis(host=KNOWN, port=redis_server.port) as client:
            assert await client.ping()
        host, port = nsqd.http_address
        async with aiohttp.ClientSession() as session, session.get(f"http://{KNOWN}:{port}/ping") as answer:
            assert (host, answer.status) == (HOST, 200)
        established = await handshake.shake_hands(Address(*nsqd.tcp_address), options)
        established.stream.close()
        failures = await asyncio.gather(*slow, return_exceptions=True)
        assert {type(each) for each in failures} == {ConnectionLost}

    in_our_loop(connect)
    assert names.waiting == MOST_NSQDS, "they are still asked for, and nobody waited for that"


_SLOW_DAEMON = f"""
import socket, sys, threading
real = socket.getaddrinfo
def getaddrinfo(host, *more, **named):
    if str(host).endswith("{SLOW}"):
        threading.Event().wait(600)
    return real(host, *more, **named)
socket.getaddrinfo = getaddrinfo
from nsqdigest.cli import main
sys.argv = ["nsqdigest", "run", "-c", sys.argv[1]]
main()
"""


def test_a_daemon_ends_right_after_its_drain_though_names_hang(redis_server: RedisServer, tmp_path: Path) -> None:
    """Names of nsqds, a nsqlookupd and a webhook."""
    settings: dict[str, dict[str, Any]] = {
        "nsq": {
            "nsqd_tcp_addresses": [f"{number}.{SLOW}:4150" for number in range(8)],
            "lookupd_http_addresses": [f"lookupd.{SLOW}:4161"],
        },
        "redis": {"url": redis_server.url},
        "sinks.out": {"type": "log"},
        "admin": {"listen": ""},
    }
    file = tmp_path / "nsqdigest.toml"
    file.write_text(toml(settings, [{"topic": "events", "timeline": "{x}", "sink": "out"}]), encoding="utf-8")
    daemon = kept(subprocess.Popen([sys.executable, "-c", _SLOW_DAEMON, str(file)], stderr=subprocess.PIPE, text=True))
    try:
        assert daemon.stderr is not None
        for line in daemon.stderr:
            if '"daemon.started"' in line:
                daemon.terminate()
            if '"daemon.stopped"' in line:
                break
        assert daemon.wait(PATIENCE_S) == 0
    finally:
        daemon.kill()
        daemon.wait()
        assert daemon.stderr is not None
        daemon.stderr.close()
