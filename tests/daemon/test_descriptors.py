"""A daemon without a free descriptor says so at its admin address, loses nothing and goes on once some are free."""

from __future__ import annotations

import os
import re
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from support.daemon import Daemon, run_command
from support.ports import HOST
from support.servers import http_get
from support.stage import QUIET, Stage, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers]

__all__ = ["stage"]

GET = b"GET /readyz?verbose HTTP/1.1\r\nhost: localhost\r\n\r\n"
CROWD = 30
MOST_LINES = 200


@pytest.fixture
def daemon(stage: Stage) -> Daemon:
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon(QUIET)
    daemon.start()
    return daemon


def descriptors(daemon: Daemon) -> dict[int, str]:
    """What each stands for."""
    found = {}
    for entry in (Path("/proc") / str(daemon.pid) / "fd").iterdir():
        with suppress(FileNotFoundError):
            found[int(entry.name)] = os.readlink(entry)
    return found


def has_spare(daemon: Daemon) -> bool:
    return any(number > 2 and what == os.devnull for number, what in descriptors(daemon).items())


@contextmanager
def no_descriptors_left(daemon: Daemon) -> Iterator[None]:
    """The limit becomes the lowest number that is free while the daemon has its spare."""
    wait_until(lambda: has_spare(daemon), what="its spare descriptor")
    taken = descriptors(daemon)
    free = next(number for number in range(len(taken) + 1) if number not in taken)
    soft, hard = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (soft, hard))


def names_the_cause(daemon: Daemon) -> bool:
    """It may close connections meanwhile, to its receiver for example, and then has free descriptors."""
    with no_descriptors_left(daemon):
        shown = " ".join(run_command("status", "-c", str(daemon.config_path)).stdout.split())
        ready = http_get(daemon.ports[0], "/readyz?verbose")[1]
    said = re.search(r"[Dd]escriptors are nearly used up: .* raise LimitNOFILE=", shown)
    return said is not None and "[!] descriptors: " in ready


def lines(daemon: Daemon) -> int:
    return len(daemon.log_text().splitlines())


def answer(connection: socket.socket) -> bytes:
    """All that comes until the end of the body, or until the daemon closes."""
    received = b""
    with suppress(ConnectionError):
        while b"ready\n" not in received and (data := connection.recv(65536)):
            received += data
    return received


def test_a_daemon_without_descriptors_answers_and_loses_nothing(stage: Stage, daemon: Daemon) -> None:
    publisher = stage.publisher(stage.nsqds[0])
    publisher.publish(100)
    stage.wait_until_all_is_delivered()
    before = lines(daemon)
    with no_descriptors_left(daemon), ExitStack() as crowd:
        connections = [
            crowd.enter_context(socket.create_connection((HOST, daemon.ports[0]), timeout=PATIENCE_S))
            for _ in range(CROWD)
        ]
        for connection in connections:
            connection.sendall(GET)
        # None ends by itself. A slow daemon may close some unanswered, so that others get an answer.
        assert any(b"ready\n" in received for received in [answer(connection) for connection in connections])
        publisher.publish(100)
        assert lines(daemon) - before < MOST_LINES
    wait_until(lambda: names_the_cause(daemon), what="the sentence of status")
    assert 1 <= len(daemon.said("admin.accept")) < CROWD
    assert "descriptors:" not in http_get(daemon.ports[0], "/readyz?verbose")[1]
    wait_until(lambda: daemon.metric("descriptors_used_ratio") < 0.9, what="free descriptors")
    publisher.publish(100)
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
