"""The log sink where others touch its file, and on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.bodies.sample import digest_json
from nsqdigest.delivery.bodies.terminal import lines_of
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.log import LogFile
from support.settings import SINK
from support.waiting import until

pytestmark = pytest.mark.integration

DELIVERED = Outcome(Verdict.DELIVERED)
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\u202e\u2028\r\nnext line\x00\x9b2J"


def sink_to(path: Path | str, **settings: Any) -> LogFile:
    return LogFile(replace(SINK, path=str(path), **settings))


def digest(body: bytes) -> OutgoingDigest:
    return OutgoingDigest("id", "events", "t", 1, 1, body)


async def write(sink: LogFile, *numbers: int) -> None:
    for number in numbers:
        assert await sink.deliver(digest(b"%d" % number)) == DELIVERED


def numbers_in(*paths: Path) -> list[int]:
    return [int(line) for path in paths for line in path.read_text().splitlines()]


# -- rotation


async def test_a_file_that_was_moved_is_left_alone_and_another_one_begun(tmp_path: Path) -> None:
    path, old = tmp_path / "out", tmp_path / "out.1"
    sink = sink_to(path)
    await write(sink, 1)
    path.rename(old)
    await write(sink, 2, 3)
    await sink.close()
    assert (numbers_in(old), numbers_in(path)) == ([1], [2, 3])


async def test_a_file_that_was_deleted_is_there_again_with_the_next_line(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = sink_to(path)
    await write(sink, 1)
    path.unlink()
    await write(sink, 2)
    await sink.close()
    assert numbers_in(path) == [2]


async def test_a_line_that_another_sink_or_process_left_half_written_spoils_no_other(tmp_path: Path) -> None:
    """As a full disk leaves it, before a reload builds the sink anew."""
    path = tmp_path / "out"
    path.write_bytes(b"1\nhal")
    sink = sink_to(path)
    await write(sink, 2, 3)
    await sink.close()
    assert path.read_bytes() == b"1\nhal\n2\n3\n"


async def test_a_sink_that_is_closed_while_its_file_hangs_leaves_nothing_once_that_goes_on(tmp_path: Path) -> None:
    path, threads = tmp_path / "pipe", set(threading.enumerate())
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    files = len(os.listdir("/proc/self/fd"))
    sink = sink_to(path, timeout_ms=50)
    assert (await sink.deliver(digest(b"x" * (1 << 20)))).verdict is Verdict.UNAVAILABLE
    await sink.close()
    os.set_blocking(reader, True)
    await until(lambda: os.read(reader, 1 << 16)[-1:] == b"\n", 5.0, "the end of the line")
    await until(lambda: set(threading.enumerate()) <= threads, 5.0, "the end of its thread")
    assert len(os.listdir("/proc/self/fd")) == files
    os.close(reader)


async def test_a_file_that_another_one_replaced_is_written_no_more(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = sink_to(path)
    await write(sink, 1)
    (tmp_path / "new").write_text("0\n")
    (tmp_path / "new").rename(path)
    await write(sink, 2)
    await sink.close()
    assert numbers_in(path) == [0, 2]


async def test_a_file_that_was_truncated_goes_on_at_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = sink_to(path)
    await write(sink, 1, 2)
    os.truncate(path, 0)
    await write(sink, 3)
    await sink.close()
    assert path.read_bytes() == b"3\n"  # and no hole before it


async def test_a_folder_that_comes_back_has_the_file_again(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    sink = sink_to(folder / "out")
    await write(sink, 1)
    shutil.rmtree(folder)
    outcome = await sink.deliver(digest(b"2"))
    assert (outcome.verdict, outcome.cause) == (Verdict.UNAVAILABLE, f"{folder / 'out'}: No such file or directory")
    folder.mkdir()
    await write(sink, 2)
    await sink.close()
    assert numbers_in(folder / "out") == [2]


async def test_a_link_that_leads_elsewhere_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.symlink_to(tmp_path / "a")
    sink = sink_to(path)
    await write(sink, 1)
    path.unlink()
    path.symlink_to(tmp_path / "b")
    await write(sink, 2)
    await sink.close()
    assert (numbers_in(tmp_path / "a"), numbers_in(tmp_path / "b")) == ([1], [2])


async def test_rotated_files_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "out"
    sink = sink_to(path)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(10):
        await write(sink, number)
        path.unlink()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    await sink.close()


async def test_nothing_is_lost_or_written_twice_while_files_are_moved_away(tmp_path: Path) -> None:
    path, count = tmp_path / "out", 300
    sink = sink_to(path)

    await write(sink, 0)
    writing = asyncio.ensure_future(write(sink, *range(1, count)))
    moved = 0
    while not writing.done():
        if path.exists():
            path.rename(tmp_path / f"out.{moved:03}")
            moved += 1
        await asyncio.sleep(0)
    await writing
    assert moved > 3
    await sink.close()
    assert sorted(numbers_in(*tmp_path.glob("out*"))) == list(range(count))


@pytest.mark.parametrize("how", ["create", "nocreate", "copytruncate"])
async def test_logrotate(tmp_path: Path, how: str) -> None:
    logrotate = shutil.which("logrotate", path=f"{os.environ['PATH']}:/usr/sbin")
    if logrotate is None:
        pytest.skip("logrotate is not installed")
    path = tmp_path / "out"
    settings = tmp_path / "rotate.conf"
    settings.write_text(f"{path} {{\n  rotate 9\n  missingok\n  {how}\n}}\n")
    settings.chmod(0o644)
    tmp_path.chmod(0o755)
    sink = sink_to(path)
    for number in range(3):
        await write(sink, 2 * number, 2 * number + 1)
        run = [logrotate, "--force", "--state", str(tmp_path / "state"), str(settings)]
        done = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    await write(sink, 6)
    await sink.close()
    assert numbers_in(tmp_path / "out.3", tmp_path / "out.2", tmp_path / "out.1", path) == list(range(7))


# -- for people


def body_of(*events: dict[str, Any], group: tuple[str, ...] = (), timeline: str = "user:42") -> bytes:
    return digest_json(events, Names("events", timeline, "out"), group)


def test_what_people_see() -> None:
    events = [{"message": f"payment {number} failed", "kind": "ab"[number % 2]} for number in range(7)]
    shown = list(lines_of(body_of(*events, group=("kind",)), colour=False, width=0))
    clock = r"\d\d:\d\d:\d\d"
    day = rf"\d{{4}}-\d\d-\d\d {clock}"
    expected = [
        "7 events in user:42", rf"  events · {day} \u2013 {day} UTC", "  4 \xd7 a", "  3 \xd7 b",
        *(rf"  {clock}  payment {number} failed" for number in range(5)),
        rf"  2 older events not shown · 2 superseded by newer ones · next not before {clock}",
    ]  # fmt: skip
    assert len(shown) == len(expected)
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, shown, strict=True))


@pytest.mark.parametrize("width", [0, 40, 80])
def test_nothing_that_a_publisher_sent_reaches_a_terminal_raw(width: int) -> None:
    body = body_of({"message": HOSTILE, "kind": HOSTILE}, {HOSTILE: HOSTILE}, group=("kind",), timeline=HOSTILE)
    for line in lines_of(body, colour=False, width=width):
        assert line.isprintable()


@pytest.mark.parametrize("text", ["x" * 500, "漢" * 500, "e\u0301" * 500, "😀" * 500])
def test_a_line_is_no_wider_than_the_terminal(text: str) -> None:
    from nsqdigest.base.screen import columns

    for line in lines_of(body_of({"message": text}, timeline=text), colour=False, width=60):
        assert columns(line) <= 60


async def test_a_file_for_people_has_no_colour(tmp_path: Path) -> None:
    sink = sink_to(tmp_path / "out", format="human")
    assert await sink.deliver(digest(body_of({"message": "a"}))) == DELIVERED
    await sink.close()
    text = (tmp_path / "out").read_text()
    assert text.startswith("1 event in user:42\n")
    assert text.endswith("\n\n")
    assert "\x1b" not in text


PROGRAM = """
import asyncio, sys
from dataclasses import replace
from nsqdigest.delivery.sinks.base import OutgoingDigest
from nsqdigest.delivery.sinks.log import LogFile
from support.settings import SINK
body = open(sys.argv[2], "rb").read()
async def main():
    sink = LogFile(replace(SINK, format=sys.argv[1]))
    print((await sink.deliver_all([OutgoingDigest("id", "r", "t", 1, 1, body)] * 2))[0].verdict, file=sys.stderr)
    await sink.close()
asyncio.run(main())
"""


class Terminal:
    """A real one, of 60 columns."""

    def __init__(self) -> None:
        self._ours, self._its = pty.openpty()
        termios.tcsetwinsize(self._its, (24, 60))

    def run(self, *words: str, **environ: str) -> str:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TERM": "xterm", "COLUMNS": ""} | environ
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            stdout=self._its,
            stderr=subprocess.PIPE,
            env=environment,
            check=True,
        )
        assert done.stderr == b"delivered\n"
        return os.read(self._ours, 65536).decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self._ours)
        os.close(self._its)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


@pytest.fixture
def body_file(tmp_path: Path) -> str:
    (tmp_path / "body").write_bytes(body_of({"message": HOSTILE + "x" * 100}, {"message": "two"}))
    return str(tmp_path / "body")


def test_on_a_terminal_it_writes_for_people(terminal: Terminal, body_file: str) -> None:
    shown = terminal.run("auto", body_file)
    assert shown.count("2 events in user:42") == 2
    assert set(re.findall(r"\x1b\[[0-9;]*m", shown)) == {"\x1b[1m", "\x1b[2m", "\x1b[0m"}
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert all(line.isprintable() and len(line) <= 60 for line in plain.split("\r\n"))


def test_no_color_is_respected(terminal: Terminal, body_file: str) -> None:
    assert "\x1b" not in terminal.run("auto", body_file, NO_COLOR="1")


def test_a_terminal_that_knows_no_letters_beyond_ascii(terminal: Terminal, body_file: str) -> None:
    assert "events \\xb7 " in terminal.run("auto", body_file, PYTHONIOENCODING="ascii", NO_COLOR="1")


def test_lines_of_json_on_a_terminal_when_asked_for(terminal: Terminal, body_file: str) -> None:
    first, second, rest = terminal.run("json", body_file).split("\r\n")
    assert json.loads(first) == json.loads(second)
    assert (json.loads(first)["type"], rest) == ("digest", "")


def test_without_a_terminal_it_writes_json(body_file: str) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "auto", body_file], capture_output=True, env=environment, check=True, text=True
    )
    assert [json.loads(line)["type"] for line in done.stdout.splitlines()] == ["digest"] * 2


@pytest.mark.parametrize("is_terminal", [False, True])
async def test_a_line_of_json_says_nothing_to_a_terminal(is_terminal: bool, tmp_path: Path) -> None:
    """In a file, too: somebody will look at it."""
    values = {"text": HOSTILE + "\x7f\x85\u061c\u200e\u2029\u2066 ä € 😀", "deep": [{"\u202e": "\u2028"}]}
    body = json.dumps(values, ensure_ascii=False, indent="\t").encode()
    ours, its = pty.openpty()
    path = Path(os.ttyname(its)) if is_terminal else tmp_path / "out"
    sink = sink_to(path, format="json")
    assert await sink.deliver(digest(body)) == DELIVERED
    await sink.close()
    os.close(its)
    written = os.read(ours, 65536).removesuffix(b"\r\n") if is_terminal else path.read_bytes().removesuffix(b"\n")
    os.close(ours)
    shown = written.decode()
    assert not re.search("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", shown)
    assert json.loads(shown) == values
    assert "ä € 😀" in shown
