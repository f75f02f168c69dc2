"""The thread that writes the log: a reader who stands still stops nobody, and what he misses is counted."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from nsqdigest.base import log
from nsqdigest.base.log_writer import QUEUE_BYTES, LogWriter
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.unit

PIPE_BYTES = 4096
LINE = b"x" * 1023 + b"\n"
LONG_S = PATIENCE_S


class Pipe:
    """With a reader who only begins when he is asked to."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        fcntl.fcntl(self.write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.text = b""
        self._open = {self.read_end, self.write_end}
        self._reader = threading.Thread(target=self._read)

    def _read(self) -> None:
        while chunk := os.read(self.read_end, 1 << 16):
            self.text += chunk

    def read(self) -> None:
        self._reader.start()

    def lines(self) -> list[bytes]:
        """All of them; nobody writes any more."""
        self.close(self.write_end)
        self._reader.join(LONG_S)
        return self.text.splitlines(keepends=True)

    def close(self, end: int) -> None:
        if end in self._open:
            self._open.remove(end)
            os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    for end in (pipe.read_end, pipe.write_end):
        pipe.close(end)


def writer_to(pipe: Pipe) -> LogWriter:
    return LogWriter(pipe.write_end, lambda lines: b"%d dropped\n" % lines, lambda: None)


def ended(pipe: Pipe, writer: LogWriter) -> list[bytes]:
    """All lines, once everything is written."""
    pipe.read()
    writer.close(LONG_S)
    return pipe.lines()


def test_lines_come_whole_and_in_order(pipe: Pipe) -> None:
    writer = writer_to(pipe)
    wanted = [b"%d %s" % (number, LINE) for number in range(200)]
    for line in wanted:
        writer.put(line, is_urgent=False)
    assert ended(pipe, writer) == wanted


def test_without_a_reader_nobody_waits_and_the_queue_has_its_bound(pipe: Pipe) -> None:
    writer = writer_to(pipe)
    begun_s = time.monotonic()
    for _ in range(2 * QUEUE_BYTES // len(LINE)):
        writer.put(LINE, is_urgent=True)
    assert time.monotonic() - begun_s < PATIENCE_S
    assert 0 <= QUEUE_BYTES // len(LINE) - writer.dropped <= PIPE_BYTES // len(LINE)
    lines = ended(pipe, writer)
    assert lines.count(LINE) == 2 * QUEUE_BYTES // len(LINE) - writer.dropped
    # One for each time that the writer got on, as a busy machine may let it do before the last line was put.
    assert sum(int(line.split()[0]) for line in lines if line != LINE) == writer.dropped


def test_the_last_part_of_the_queue_is_for_warnings(pipe: Pipe) -> None:
    writer = writer_to(pipe)
    while not writer.dropped:
        writer.put(LINE, is_urgent=False)
    for _ in range(100):
        writer.put(b"warning\n", is_urgent=True)
    assert writer.dropped == 1
    assert ended(pipe, writer).count(b"warning\n") == 100


def test_a_reader_who_is_gone_stops_nobody(pipe: Pipe) -> None:
    writer = writer_to(pipe)
    pipe.close(pipe.read_end)
    for _ in range(3):
        writer.put(LINE, is_urgent=True)
    wait_until(lambda: writer.dropped == 3, what="the lines to be counted")
    writer.close(LONG_S)


def test_closing_waits_no_longer_than_it_may(pipe: Pipe) -> None:
    writer = writer_to(pipe)
    for _ in range(10):
        writer.put(LINE, is_urgent=True)
    begun_s = time.monotonic()
    writer.close(0.05)
    assert time.monotonic() - begun_s < PATIENCE_S
    pipe.read()  # which lets the thread go
    wait_until(lambda: pipe.text.count(LINE) == 10, what="all lines")


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.write_end, False)
    writer = writer_to(pipe)
    for _ in range(100):
        writer.put(LINE, is_urgent=True)
    assert ended(pipe, writer) == [LINE] * 100


def test_after_its_end_lines_are_written_at_once(pipe: Pipe) -> None:
    writer = writer_to(pipe)
    writer.close(LONG_S)
    writer.put(b"late\n", is_urgent=True)
    assert os.read(pipe.read_end, 100) == b"late\n"


# -- as `log` uses it

PROGRAM = """
import sys
from nsqdigest.base import log
log.setup("info", "json")
"""


def run(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM + program], stderr=subprocess.PIPE)


def test_an_exit_loses_neither_what_is_queued_nor_what_is_counted() -> None:
    process = run(
        """
for number in range(300):
    log.get("test").info("test.event", number=number)
    log.get("test").counted("warning", "test.often", by=("kind",), every_s=60, kind="a")
raise SystemExit(3)
"""
    )
    _, output = process.communicate(timeout=LONG_S)
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["number"] for line in lines if line["event"] == "test.event"] == list(range(300))
    assert [line.get("times", 1) for line in lines if line["event"] == "test.often"] == [1, 299]
    assert process.returncode == 3


def test_an_exit_waits_for_a_reader_no_longer_than_its_bound() -> None:
    process = run("for number in range(2000): log.get('test').info('test.event', padding='x' * 500)")
    assert process.wait(log.ENDS_WITHIN_S + LONG_S) == 0
    assert process.stderr is not None
    process.stderr.close()


def test_a_count_comes_when_its_period_ends_though_nothing_else_is_logged() -> None:
    process = run(
        """
for number in range(3):
    log.get("test").counted("info", "test.often", by=("kind",), adds=("records",), every_s=0.05, kind="a", records=2)
sys.stdin.read()
"""
    )
    assert process.stderr is not None
    lines = [json.loads(process.stderr.readline()) for _ in range(2)]
    process.kill()
    process.communicate()
    assert [(line["records"], line.get("times")) for line in lines] == [(2, None), (4, 2)]


def test_what_was_dropped_is_told_when_the_log_is_read_again(pipe: Pipe) -> None:
    root, ours = logging.getLogger(), logging.getLogger(log.ROOT)
    handlers, levels = root.handlers[:], (root.level, ours.level)
    with os.fdopen(os.dup(pipe.write_end), "w", encoding="utf-8") as stream:
        log.setup("info", "json", stream)
        try:
            logger = log.get("test")
            while not log.lines_dropped():
                logger.info("test.event", padding="x" * 1000)
            dropped = log.lines_dropped()
            pipe.read()
            wait_until(lambda: b"log.lines_dropped" in pipe.text, what="the line about it")
            log.end(LONG_S)
        finally:
            root.handlers[:] = handlers
            root.setLevel(levels[0])
            ours.setLevel(levels[1])
    (line,) = [json.loads(each) for each in pipe.lines() if b"log.lines_dropped" in each]
    assert (line["level"], line["lines"]) == ("warning", dropped)
