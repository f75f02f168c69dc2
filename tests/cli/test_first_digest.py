"""docs/first-digest.md, followed: its commands in their order, its servers' options, and what it says comes out."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import keeper
from support.daemon import installed_command
from support.ports import HOST, free_port
from support.servers import Nsqd, RedisServer
from support.waiting import PATIENCE_S, NotInTime, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers]

PAGE = (Path(__file__).parents[2] / "docs" / "first-digest.md").read_text("utf-8")
BLOCKS = [
    "\n".join(line[4:] for line in block.splitlines()) for block in re.findall(r"(?:^ {4}.*\n)+", PAGE, re.MULTILINE)
]
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = ("nsqd ", "redis-server ", "nsqdigest ", "echo ", "curl ")


class Terminal:
    """A command on a terminal of its own, and what it shows."""

    def __init__(self, words: list[str], folder: Path, environ: dict[str, str]) -> None:
        ours, its = pty.openpty()
        self._ours = ours
        self.process = keeper.kept(
            subprocess.Popen(words, cwd=folder, env=environ, stdin=its, stdout=its, stderr=its, close_fds=True)
        )
        os.close(its)
        self._shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            self._shown += data

    @property
    def text(self) -> str:
        """All so far: a terminal may hand over half a character, or half an end of a line."""
        return self._shown.decode("utf-8", "replace").replace("\r\n", "\n")

    def end(self) -> int:
        self.process.terminate()
        code = self.process.wait(PATIENCE_S)
        keeper.ended(self.process)
        self._reader.join(PATIENCE_S)
        os.close(self._ours)
        return code


def pattern_of(block: str) -> str:
    """What a block of the page shows, whatever the time is; within a line more may stand beside each other."""
    text = re.escape(block.strip()).replace(r"\ ", " ")
    text = re.sub(r"\d{4}\\-\d\d\\-\d\d", r"\\d{4}-\\d\\d-\\d\\d", text)
    text = re.sub(r"\d\d:\d\d:\d\d", r"\\d\\d:\\d\\d:\\d\\d", text)
    text = re.sub(r"\dm\d+s", r"\\dm\\d+s", text)
    text = text.replace(" UTC", r"(?: . [-:\d ]+)? UTC")  # events of two seconds have a beginning and an end
    return re.sub(r" +(?!\+)", " +", text)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Nsqd, RedisServer]]:
    """With the options that the page gives them, on free ports."""
    of_nsqd, of_redis = BLOCKS[0].splitlines()
    assert of_nsqd == "nsqd -data-path . > nsqd.log 2>&1 &"
    options = of_redis.removeprefix("redis-server ").partition(" >")[0].split()
    with Nsqd(tmp_path / "nsqd") as nsqd, RedisServer(tmp_path / "redis", *options) as redis:
        yield nsqd, redis


class Reader:
    """Somebody who follows the page: a terminal for the daemon, another one for everything else."""

    def __init__(self, folder: Path, nsqd: Nsqd, redis: RedisServer) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("NSQDIGEST")}
        self._environ = clean | {
            "PATH": f"{installed_command().parent}:{os.environ['PATH']}",
            "TERM": "dumb",
            "NSQDIGEST__NSQ__NSQD_TCP_ADDRESSES": f'["{HOST}:{nsqd.ports[0]}"]',
            "NSQDIGEST__REDIS__URL": redis.url,
            "NSQDIGEST__ADMIN__LISTEN": f"{HOST}:{free_port()}",
        }
        self._folder, self._nsqd, self._redis = folder, nsqd, redis
        self._published = 0
        self.said = ""
        self.daemon: Terminal | None = None

    def follow(self, block: str) -> None:
        if block == "nsqdigest run":
            self.daemon = Terminal(["nsqdigest", "run"], self._folder, self._environ)
            self.until_daemon_says("nsqdigest .* runs with")
        elif block.startswith(COMMANDS):
            self.said = "".join(self.shell(line) for line in block.splitlines())
            self._published += block.count("curl")
            if "doctor" in block:
                assert self.said.splitlines()[-1].startswith("nothing found"), self.said
            wait_until(lambda: self._stored() == self._published, PATIENCE_S, "the events to be stored")
        elif self.said.startswith("timeline "):
            assert re.search(pattern_of(block), self.said), self.said
            self.said = ""
        else:
            self.until_daemon_says(pattern_of(block))

    def _stored(self) -> int:
        return int(self._redis.cli("HGET", "{nsqdigest:0}:ledger:events", "added") or 0)

    def until_daemon_says(self, pattern: str) -> None:
        terminal = self.daemon
        assert terminal is not None
        try:
            wait_until(lambda: re.search(pattern, terminal.text), PATIENCE_S, pattern)
        except NotInTime:
            raise AssertionError(f"{pattern} is not in what the daemon says:\n{terminal.text}") from None

    def shell(self, command: str) -> str:
        here = command.replace("127.0.0.1:4151", f"{HOST}:{self._nsqd.ports[1]}")
        done = subprocess.run(
            ["bash", "-euc", here],
            cwd=self._folder, env=self._environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def leave(self) -> int:
        return self.daemon.end() if self.daemon else -1


def test_the_page_does_what_it_says(tmp_path: Path, servers: tuple[Nsqd, RedisServer]) -> None:
    (tmp_path / "empty").mkdir()
    reader = Reader(tmp_path / "empty", *servers)
    try:
        for block in BLOCKS[1:]:
            reader.follow(block)
    finally:
        text, code = reader.daemon.text if reader.daemon else "", reader.leave()
    assert code == 0, text


def test_its_file_is_what_init_writes_without_comments(tmp_path: Path) -> None:
    subprocess.run([installed_command(), "init"], cwd=tmp_path, check=True, capture_output=True)
    rows = (tmp_path / "nsqdigest.toml").read_text("utf-8").splitlines()
    written = [re.sub(r" +#.*", "", row) for row in rows if row and not row.startswith("#")]
    (shown,) = TOML
    assert set(filter(None, shown.splitlines())) <= set(written)
