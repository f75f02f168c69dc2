"""A daemon whose `admin.listen` is a Unix socket: each command reaches it, over a reload and a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqdigest.base.errors import EXIT_UNREACHABLE
from support.daemon import Daemon, run_command
from support.stage import TOPIC, Stage, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

__all__ = ["stage"]

TOKEN = "a-long-enough-token"


@pytest.fixture
def socket_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nd") as folder:
        yield Path(folder) / "admin.sock"


@pytest.fixture
def daemon(stage: Stage, socket_path: Path) -> Daemon:
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon()
    daemon.admin = {"listen": f"unix:{socket_path}", "token": TOKEN}
    daemon.start()
    return daemon


def did(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(*words, "-c", str(daemon.config_path))


def test_commands_status_and_doctor_reach_it(daemon: Daemon, socket_path: Path) -> None:
    assert json.loads(did(daemon, "pause", "topic", TOPIC, "--json").stdout)["changed"]
    assert "paused" in did(daemon, "status").stdout
    assert did(daemon, "resume", "topic", TOPIC).returncode == 0
    told = did(daemon, "doctor").stdout
    assert f"unix:{socket_path}" in told
    assert "a daemon runs here already, and is ready" in told
    (started,) = daemon.said("daemon.started")
    assert f"curl --unix-socket {socket_path} " in started["ready"]


def test_a_reload_brings_another_token_and_a_reading_one(daemon: Daemon) -> None:
    daemon.admin |= {"token": f"{TOKEN}-of-today", "read_token": f"{TOKEN}-to-read"}
    daemon.reload()
    assert daemon.get("/api/status")[0] == 401
    assert did(daemon, "status").returncode == 0
    assert did(daemon, "pause", "topic", TOPIC).returncode == 0
    assert TOKEN not in daemon.log_text()


def test_after_a_kill_it_takes_the_place_of_its_own_socket(daemon: Daemon, socket_path: Path) -> None:
    daemon.kill()
    assert socket_path.is_socket()
    assert did(daemon, "status").returncode == EXIT_UNREACHABLE
    daemon.start()
    assert did(daemon, "status").returncode == 0
    second = did(daemon, "run")
    assert (second.returncode, "is another daemon running?" in second.stderr) == (EXIT_UNREACHABLE, True)
    assert did(daemon, "status").returncode == 0
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(PATIENCE_S) == 0
    wait_until(lambda: not socket_path.exists(), what="the socket to be removed")
