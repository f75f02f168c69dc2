"""A fresh nsqd and a fresh Redis for one measurement, ended with it: the servers of the tests (`support.servers`), set
up to be measured.

Nothing is kept on disk on purpose: nsqd holds the whole backlog in memory and Redis saves nothing, in every lane alike,
so that the disk of the machine is not what is measured.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import redis

from support import keeper, servers
from support.ports import HOST, free_port
from support.servers import ROOT
from support.waiting import NotInTime

__all__ = [
    "HOST",
    "ROOT",
    "BenchError",
    "Channel",
    "Nsqd",
    "find_binary",
    "free_port",
    "installed_daemon",
    "nsqd",
    "process",
    "redis_server",
    "tail",
    "wait_until_up",
]  # fmt: skip

STOP_TIMEOUT_S = 20.0
SLOW_ANSWER_S = 300.0
"""SAVE of a large backlog holds Redis for long."""
START_TIMEOUT_S = 10.0


class BenchError(Exception):
    """The measurement could not be made. Says what happened and what to do."""


def find_binary(name: str) -> str:
    try:
        return str(servers.find_binary(name))
    except servers.MissingServer as error:
        raise BenchError(str(error)) from None


def installed_daemon() -> str:
    """The console script of the environment that this runs in."""
    program = Path(sys.executable).with_name("nsqdigest")
    if not program.exists():
        raise BenchError(
            f"there is no nsqdigest beside {sys.executable}; run `make install`, then use .venv/bin/python"
        )
    return str(program)


def wait_until_up(is_up: Callable[[], bool], child: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not is_up():
        if child.poll() is not None or time.monotonic() > deadline_s:
            raise BenchError(f"{child.args!r} did not start:\n{tail(log)}")
        time.sleep(0.02)


@contextmanager
def process(command: list[str], folder: Path, log_name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs it in `folder`, its output in `log_name` there, and ends it: TERM, and KILL when that is not enough."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NSQDIGEST")}
    with (folder / log_name).open("wb") as log:
        child = keeper.kept(
            subprocess.Popen(
                command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        )
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            keeper.ended(child)


@dataclass(frozen=True, slots=True)
class Channel:
    """What nsqd says of the channel. `finished` is what was published and is nowhere any more."""

    depth: int
    in_flight: int
    finished: int
    requeued: int
    timed_out: int


class Nsqd:
    """nsqd's HTTP side over one kept connection."""

    def __init__(self, pid: int, tcp_port: int, http_port: int) -> None:
        self.pid = pid
        self.tcp_address = f"{HOST}:{tcp_port}"
        self._http = http.client.HTTPConnection(HOST, http_port, timeout=30)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self._http.request(method, path, body)
        answer = self._http.getresponse()
        data = answer.read()
        if answer.status != http.client.OK:
            raise BenchError(f"nsqd answered {answer.status} to {method} {path}: {data[:200]!r}")
        return data

    def create(self, topic: str, channel: str) -> None:
        self._ask("POST", f"/topic/create?topic={topic}")
        self._ask("POST", f"/channel/create?topic={topic}&channel={channel}")

    def publish(self, topic: str, block: bytes) -> None:
        """A block of messages in the binary form of MPUB."""
        self._ask("POST", f"/mpub?topic={topic}&binary=true", block)

    def channel(self, topic: str, channel: str) -> Channel:
        path = f"/stats?format=json&include_mem=false&include_clients=false&topic={topic}&channel={channel}"
        answer: dict[str, Any] = json.loads(self._ask("GET", path))
        facts = answer["topics"][0]["channels"][0]
        held = facts["depth"] + facts["in_flight_count"] + facts["deferred_count"]
        return Channel(
            depth=facts["depth"],
            in_flight=facts["in_flight_count"],
            finished=facts["message_count"] - held,
            requeued=facts["requeue_count"],
            timed_out=facts["timeout_count"],
        )

    def close(self) -> None:
        self._http.close()


ServerT = TypeVar("ServerT", bound=servers.Server)


@contextmanager
def _started(kind: Callable[..., ServerT], folder: Path, *options: str) -> Iterator[ServerT]:
    """Nothing of it is wanted afterwards, so it is killed."""
    try:
        server = kind(folder, *options)
        server.start()
    except (servers.ServerError, NotInTime) as error:
        raise BenchError(str(error)) from None
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def nsqd(folder: Path, messages: int, *options: str) -> Iterator[Nsqd]:
    """One that keeps `messages` of a topic, and as many of a channel, in memory. Options are its own flags."""
    with _started(servers.Nsqd, folder, f"--mem-queue-size={messages}", "--log-level=warn", *options) as server:
        client = Nsqd(server.pid, *server.ports)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def redis_server(folder: Path) -> Iterator[tuple[int, redis.Redis]]:
    """Yields (port, client)."""
    with (
        _started(servers.RedisServer, folder) as server,
        redis.Redis(host=HOST, port=server.port, decode_responses=True, socket_timeout=SLOW_ANSWER_S) as client,
    ):
        yield server.port, client


def tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
