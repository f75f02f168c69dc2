"""`nsqdigest demo` as a user meets it: a process, its output in a pipe, a signal or two, and what is left behind."""

from __future__ import annotations

import asyncio
import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from support.keeper import kept
from support.nsqclient import NsqClient
from support.ports import HOST
from support.servers import RedisServer, find_binary
from support.terminal import Terminal

pytestmark = pytest.mark.integration

TIMEOUT_S = 90
NSQD = re.compile(r"running: nsqd on (\d+),")
PAGE = re.compile(r"the page: (http://127\.0\.0\.1:\d+/)$", re.MULTILINE)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Temporary folders of the demo are made where they can be counted."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    servers = find_binary(RedisServer.binary).parent
    path = f"{servers}{os.pathsep}{os.environ['PATH']}"
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("NSQDIGEST", "DEMO"))}
    return {**ours, "TMPDIR": str(folder), "PATH": path, "PYTHONUTF8": "1"}


class Demo:
    def __init__(self, environ: Mapping[str, str], *options: str) -> None:
        self._folder = Path(environ["TMPDIR"])
        self.process = kept(subprocess.Popen(
            [sys.executable, "-P", "-c", "from nsqdigest.cli import main; main()", "demo", *options],
            cwd=self._folder, env=environ, text=True, encoding="utf-8",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ))  # fmt: skip
        self.said = ""

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if text in line:
                return
        pytest.fail(f"it ended before it said {text!r}: {self.said}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        self.said += out
        return self.process.returncode, self.said, err

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    @property
    def daemon_pid(self) -> int:
        own = self.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text(encoding="ascii").split()
        (daemon,) = [pid for pid in children if b"nsqdigest\0run" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return int(daemon)

    async def one_more_event(self) -> None:
        """Returns when the shop has published another event. Reads it from a channel that begins now."""
        found = NSQD.search(self.said)
        assert found is not None, self.said
        async with await NsqClient.connect((HOST, int(found[1]))) as client:
            await client.identify()
            await client.sub("shop", "test#ephemeral")
            client.rdy(1)
            (message,) = await client.take()
            client.fin(message)

    @property
    def left_behind(self) -> list[str]:
        """Folders, and processes that have one of them open as their own."""
        processes = []
        for entry in Path("/proc").glob("[0-9]*/cwd"):
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if target.startswith(str(self._folder)):
                processes.append(str(entry))
        return [*processes, *map(str, self._folder.iterdir())]


@pytest.fixture
def demos() -> Iterator[list[Demo]]:
    started: list[Demo] = []
    yield started
    for demo in started:
        demo.kill()


def count(said: str, name: str) -> int:
    found = re.search(rf"^  {name} +(\d+) ", said, re.MULTILINE)
    assert found, said
    return int(found.group(1))


def a_daemon_was_killed_and_another_took_over(said: str) -> bool:
    """In this order, and each on a page of its own."""
    story = ("the page: http://", "▶ kill -9: ", "daemon 2 runs: ", "the page: http://", "that digest came again with")
    place = 0
    for said_then in story:
        place = said.find(said_then, place) + 1
    again = re.search(r"[1-9]\d* came twice with the same bytes", said)  # several may have been under way
    return place > 0 and again is not None and len(set(PAGE.findall(said))) == 2


@pytest.mark.servers
def test_everything_it_publishes_arrives_though_the_store_is_stopped_on_the_way(
    environ: dict[str, str], demos: list[Demo]
) -> None:
    demo = Demo({**environ, "DEMO_SECONDS": "8"})
    demos.append(demo)
    code, said, err = demo.end()
    assert (code, err) == (0, ""), said
    assert "\x1b" not in said
    assert count(said, "lost") == 0
    assert count(said, "dead letters") == 2
    delivered, digests = count(said, "delivered"), count(said, "digests")
    assert count(said, "published") == delivered + 2 >= 50
    assert f"Redis stored {delivered} events, {delivered} were delivered: it balances" in " ".join(said.split())
    assert digests >= 8
    for phrase in (
        "Redis is stopped for", "steps back (level 1)", "probes with a single event", "has recovered", "is back to",
        "publishes a broken event", "its dead letter: not-json", "its dead letter: missing-field", " · digest 2 · ",
        "  event     ",
    ):  # fmt: skip
        assert phrase in said
    assert not re.search(r"daemon( 2)? +[a-z]+\.[a-z.]+ ", said), "an event of the log without words of its own"
    in_short = f"{delivered} events became {digests} messages: {delivered / digests:.0f} times fewer interruptions."
    assert in_short in said
    in_one_line = " ".join(said.split())
    assert re.search(r"Redis was away for (\d|\d\.\d) s and the daemon was killed with kill -9. Lost: 0.", in_one_line)
    assert a_daemon_was_killed_and_another_took_over(said)
    assert demo.left_behind == []


@pytest.mark.servers
def test_ctrl_c_while_the_store_is_stopped_starts_it_again(environ: dict[str, str], demos: list[Demo]) -> None:
    demo = Demo(environ, "--seconds", "10")
    demos.append(demo)
    demo.read_until("steps back (level 1)")
    demo.process.send_signal(signal.SIGINT)
    code, said, err = demo.end()
    assert (code, err) == (0, ""), said
    assert "Redis runs again" in said
    assert demo.left_behind == []


@pytest.mark.servers
def test_a_second_ctrl_c_ends_it_at_once_and_says_what_had_not_arrived(
    environ: dict[str, str], demos: list[Demo]
) -> None:
    demo = Demo(environ, "--seconds", "8")
    demos.append(demo)
    demo.read_until(" · digest 1 · ")
    os.kill(demo.daemon_pid, signal.SIGSTOP)
    asyncio.run(demo.one_more_event())  # which cannot arrive in time
    demo.process.send_signal(signal.SIGINT)
    demo.read_until("Publishing has ended")
    demo.process.send_signal(signal.SIGINT)
    code, said, err = demo.end()
    assert (code, err) == (1, ""), said
    arrived = count(said, "delivered") + count(said, "dead letters")
    assert count(said, "lost") == count(said, "published") - arrived > 0
    assert "Ended too early" in said
    assert demo.left_behind == []


@pytest.mark.servers
def test_ctrl_c_while_it_starts_leaves_nothing_behind(environ: dict[str, str], demos: list[Demo]) -> None:
    demo = Demo(environ)
    demos.append(demo)
    demo.read_until("nsqdigest demo")
    demo.process.send_signal(signal.SIGINT)
    demo.end()
    assert demo.left_behind == []


@pytest.mark.servers
def test_a_daemon_that_dies_unasked_is_a_loss_that_the_demo_admits(environ: dict[str, str], demos: list[Demo]) -> None:
    demo = Demo(environ, "--seconds", "0")
    demos.append(demo)
    demo.read_until(" · digest 1 · ")
    (page,) = PAGE.findall(demo.said)
    with urllib.request.urlopen(page, timeout=TIMEOUT_S) as answer:
        assert answer.headers["content-type"].startswith("text/html")
    os.kill(demo.daemon_pid, signal.SIGSTOP)
    asyncio.run(demo.one_more_event())  # which this daemon will never deliver
    os.kill(demo.daemon_pid, signal.SIGKILL)
    code, said, err = demo.end()
    assert (code, err) == (1, ""), said
    assert "the daemon ended by itself" in said
    assert count(said, "lost") == count(said, "published") - count(said, "delivered") > 0
    assert demo.left_behind == []


@pytest.mark.servers
def test_on_a_terminal_ctrl_c_ends_the_publishing_and_leaves_all_of_the_log_in_its_history(
    environ: dict[str, str],
) -> None:
    terminal = Terminal(80, 24)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    modes = termios.tcgetattr(theirs)
    demo = kept(subprocess.Popen(
        [sys.executable, "-P", "-c", "from nsqdigest.cli import main; main()", "demo", "--seconds", "0"],
        cwd=environ["TMPDIR"], env=environ | {"TERM": "xterm-256color"}, stdin=theirs, stdout=theirs, stderr=theirs,
    ))  # fmt: skip
    decoder = codecs.getincrementaldecoder("utf-8")()

    def read_until(holds: Callable[[], object]) -> None:
        while not holds():
            assert select.select([ours], [], [], TIMEOUT_S)[0], terminal.shown
            terminal.feed(decoder.decode(os.read(ours, 65536)).replace("\r\n", "\n"))

    try:
        read_until(lambda: any("digest 1" in row for row in terminal.shown) and "the page" in terminal.shown[3])
        assert [row.split("  ")[0] for row in terminal.shown[:3]] == ["events in", "in flight", "digests out"]
        demo.send_signal(signal.SIGINT)
        read_until(lambda: any("Lost: 0." in row for row in terminal.shown) and not terminal.is_alternate)
        assert demo.wait(TIMEOUT_S) == 0
        assert terminal.shows_cursor
        assert termios.tcgetattr(theirs) == modes
        said = "\n".join([*terminal.history, *terminal.shown])
        assert said.startswith("nsqdigest demo   until Ctrl-C")
        assert "digest 1" in said
        assert (count(said, "lost"), count(said, "delivered") > 0) == (0, True)
        assert not list(Path(environ["TMPDIR"]).iterdir())
    finally:
        if demo.poll() is None:
            demo.kill()
            demo.wait()
        os.close(ours)
        os.close(theirs)


@pytest.mark.servers
def test_a_reader_who_leaves_ends_it(environ: dict[str, str], demos: list[Demo]) -> None:
    demo = Demo(environ, "--seconds", "8")
    demos.append(demo)
    demo.read_until("publishes a broken event")
    assert demo.process.stdout is not None
    assert demo.process.stderr is not None
    demo.process.stdout.close()
    err = demo.process.stderr.read()
    assert (demo.process.wait(TIMEOUT_S), err) == (1, "")
    assert demo.left_behind == []


def test_without_a_redis_it_says_what_to_install(environ: dict[str, str], demos: list[Demo], tmp_path: Path) -> None:
    demo = Demo({**environ, "PATH": str(tmp_path)})
    demos.append(demo)
    code, said, err = demo.end()
    assert code != 0
    assert said == ""
    assert "apt install redis-server" in err


def test_a_picture_into_a_folder_that_is_not_there_is_refused_before_anything_starts(
    environ: dict[str, str], demos: list[Demo]
) -> None:
    demo = Demo(environ, "--picture", "nowhere/demo.svg")
    demos.append(demo)
    code, said, err = demo.end()
    assert (code, said) == (2, "")
    assert "--picture: there is no folder nowhere" in err


@pytest.mark.parametrize("text", ["soon", "-1", "1.5"])
def test_a_length_that_is_none_is_a_usage_error(environ: dict[str, str], demos: list[Demo], text: str) -> None:
    demo = Demo({**environ, "DEMO_SECONDS": text})
    demos.append(demo)
    code, said, err = demo.end()
    assert (code, said) == (2, "")
    assert "DEMO_SECONDS" in err
    assert text in err
