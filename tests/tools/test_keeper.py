"""A test run or a measurement that is killed leaves no server behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import keeper
from support.tree import ROOT
from support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers]


TEST = """
import os, pathlib, time
from support.redis_sets import ClusterServer, Sentinel
from support.servers import Nsqd, RedisServer

def test_that_never_ends(tmp_path):
    redis = RedisServer(tmp_path / "redis")
    redis.start()
    others = [Nsqd(tmp_path / "nsqd"), ClusterServer(tmp_path / "cluster"), Sentinel(tmp_path / "sentinel", redis, 1)]
    for server in others:
        server.start()
    redis.restart()
    pids = [os.getpid(), redis.pid, *(each.pid for each in others)]
    pathlib.Path({pids!r}).write_text(" ".join(map(str, pids)) + " .")
    time.sleep(600)
"""
MEASUREMENT = """
import os, pathlib, time
from bench.servers import nsqd, process, redis_server
folder = pathlib.Path({folder!r})
with nsqd(folder, 1) as server, redis_server(folder) as (_, client), process(["sleep", "600"], folder, "log") as child:
    pids = [os.getpid(), server.pid, client.info("server")["process_id"], child.pid]
    pathlib.Path({pids!r}).write_text(" ".join(map(str, pids)) + " .")
    time.sleep(600)
"""


class Run:
    """A process that starts servers, and writes its own pid and theirs into a file."""

    def __init__(self, pids: Path, *command: str) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.process = keeper.kept(
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
        try:
            text = wait_until(lambda: self._ended() or self._written(pids), 60, "the servers to be up")
            assert isinstance(text, str), "it ended instead"
            self.starter, *self.servers = map(int, text.split()[:-1])
        except BaseException:
            self.end()
            raise

    @staticmethod
    def _written(pids: Path) -> str:
        text = pids.read_text("utf-8") if pids.exists() else ""
        return text if text.endswith(".") else ""

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def running(self) -> list[int]:
        return [pid for pid in self.servers if keeper.is_running(pid)]

    def end(self) -> None:
        if not self._ended():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        keeper.ended(self.process)


@pytest.fixture
def pytest_run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    test, pids = tmp_path / "test_hangs.py", tmp_path / "pids"
    test.write_text(TEST.format(pids=str(pids)), "utf-8")
    run = Run(
        pids, sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider",
        f"--basetemp={tmp_path}/tmp", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"),
        "-k", "never_ends", *request.param, str(test), "tests/test_package.py",  # for the sake of tests/conftest.py
    )  # fmt: skip
    yield run
    run.end()


@pytest.mark.parametrize("pytest_run", [(), ("--numprocesses=1",)], indirect=True, ids=["pytest", "its controller"])
def test_a_killed_pytest_leaves_no_server_behind(pytest_run: Run) -> None:
    assert len(pytest_run.running()) == 4
    pytest_run.process.kill()
    wait_until(lambda: not pytest_run.running(), PATIENCE_S, "the servers to be gone")
    wait_until(lambda: not keeper.is_running(pytest_run.starter), PATIENCE_S, "who started them to be gone")


@pytest.mark.parametrize("pytest_run", [("--numprocesses=1",)], indirect=True, ids=["a worker"])
def test_a_killed_worker_leaves_no_server_behind(pytest_run: Run) -> None:
    assert pytest_run.starter != pytest_run.process.pid
    os.kill(pytest_run.starter, signal.SIGKILL)
    wait_until(lambda: not pytest_run.running(), PATIENCE_S, "the servers to be gone")


def test_a_killed_measurement_leaves_no_server_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    run = Run(pids, sys.executable, "-c", MEASUREMENT.format(folder=str(tmp_path), pids=str(pids)))
    try:
        assert len(run.running()) == 3
        run.process.kill()
        wait_until(lambda: not run.running(), PATIENCE_S, "the servers to be gone")
    finally:
        run.end()
