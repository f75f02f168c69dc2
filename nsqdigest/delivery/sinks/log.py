"""The kind "log": writes digests to a file or to stdout: a line of JSON each, or a few lines for people.

Invariants:
- A line is written whole or counts as not delivered. After a write that broke off (a full disk) the next one begins on
  a new line, so that one torn line never spoils its neighbour; also after a reload, or where the daemon was killed.
- No line holds a character that a terminal obeys, or that reorders text: in JSON they are escaped, and the values stay
  the same.
- One thread writes at a time. A write that hangs (a pipe that nobody reads) keeps that thread, and no other starts: the
  digests that wait for it fail when their time-out passes, and closing the sink does not wait for it.
- Lines go to the file that has the path's name when they are written. Where logrotate or anybody else moved, deleted or
  replaced it, it is opened anew; a file that was truncated is written from its new end on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from nsqdigest.base import log, threads
from nsqdigest.base.findings import Finding, State
from nsqdigest.base.reasons import Verdict
from nsqdigest.base.screen import WIDTH_OF_A_PIPE
from nsqdigest.base.shown import safe_json
from nsqdigest.config import SinkSettings, texts
from nsqdigest.config.options import Option
from nsqdigest.config.problems import Wrong
from nsqdigest.config.readers import Choice, Text
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import Reach, SinkContext, SinkKind

_log = log.get("scheduler")

STDOUT = "-"
MOST_LINES_AT_ONCE = 200
MOST_BYTES_AT_ONCE = 64 << 20
"""More than ever lies ready for a sink: a file takes what there is."""
_NOT_SEEN = re.compile(rb"[\r\t\x7f]").search
_TO_BLANKS = bytes.maketrans(b"\r\n\t", b"   ")


# -- in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSinkSettings(SinkSettings):
    path: str
    format: str = "auto"


def file_name(text: str) -> str:
    if not text or "\0" in text:
        raise Wrong("is not a file's name", 'write one, or "-" for stdout')
    return texts.whole_path(text)


# -- delivery


class LogFile:
    def __init__(self, settings: LogSinkSettings) -> None:
        self._path = settings.path
        self._name = settings.name
        self._is_stdout = settings.path == STDOUT
        self._format = settings.format
        self._form: Form | None = None
        self._timeout_s = settings.timeout_ms / 1000
        self._file: int | None = None
        self._identity = (0, 0)
        """Device and inode of the file."""
        self._is_torn = False
        self._one_at_a_time = asyncio.Lock()
        self._writer = threads.Worker(f"sink to {settings.path}")
        self._writing: Future[None] | None = None

    at_once = MOST_LINES_AT_ONCE
    at_once_bytes = MOST_BYTES_AT_ONCE

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        return (await self.deliver_all([digest]))[0]

    async def deliver_all(self, digests: Sequence[OutgoingDigest]) -> list[Outcome]:
        """In one write: all of them are delivered, or none is."""
        return [await self._write_all([digest.body for digest in digests])] * len(digests)

    async def _write_all(self, bodies: Sequence[bytes]) -> Outcome:
        try:
            async with asyncio.timeout(self._timeout_s), self._one_at_a_time:
                await self._last_write_ended()
                self._writing = self._writer.start(partial(self._write, bodies))
                await asyncio.wrap_future(self._writing)
        except TimeoutError:
            return Outcome(Verdict.UNAVAILABLE, f"{self._path}: not written within {self._timeout_s:g} s")
        except OSError as error:
            return Outcome(Verdict.UNAVAILABLE, f"{self._path}: {error.strerror or error}")
        return Outcome(Verdict.DELIVERED)

    async def _last_write_ended(self) -> None:
        """Whoever began it may be gone."""
        if self._writing is not None and not self._writing.done():
            await asyncio.gather(asyncio.wrap_future(self._writing), return_exceptions=True)

    # -- in the thread

    def _write(self, bodies: Sequence[bytes]) -> None:
        file = self._opened()
        if self._form is None:
            is_terminal = self._is_stdout and os.isatty(file)
            is_human = self._format == "human" or (self._format == "auto" and is_terminal)
            self._form = partial(human, is_terminal=is_terminal) if is_human else json_lines
        lines = self._form(bodies)
        data = memoryview(b"\n" + lines if self._is_torn else lines)
        while data:
            self._is_torn = True
            data = data[os.write(file, data) :]
        self._is_torn = False

    def _opened(self) -> int:
        if self._file is not None and not self._is_stdout and self._is_elsewhere():
            os.close(self._file)
            self._file, self._is_torn = None, False
            _log.info("scheduler.log.reopened", sink=self._name, path=self._path)
        if self._file is None:
            self._file = self._open()
        return self._file

    def _open(self) -> int:
        if self._is_stdout:
            return sys.stdout.fileno()
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        status = os.fstat(file)
        self._identity = status.st_dev, status.st_ino
        self._is_torn = stat.S_ISREG(status.st_mode) and self._ends_torn(status.st_size)
        return file

    def _ends_torn(self, size_bytes: int) -> bool:
        """Whether a sink before this one, or a daemon that was killed, left half a line."""
        if not size_bytes:
            return False
        try:
            with open(self._path, "rb", buffering=0) as file:
                return os.pread(file.fileno(), 1, size_bytes - 1) not in (b"", b"\n")
        except OSError:  # it may be ours to write, and not to read
            return False

    def _is_elsewhere(self) -> bool:
        """Whether the path is no longer that of the open file. It is asked before each write: that costs microseconds,
        a look once a second would lose the lines of that second to a file that was deleted."""
        try:
            status = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return (status.st_dev, status.st_ino) != self._identity

    async def close(self) -> None:
        if self._writing is not None and not self._writing.done():
            # Its thread may hang in that file for ever; should it come back, it ends.
            self._writing.add_done_callback(lambda _: self._end())
            return
        self._end()

    def _end(self) -> None:
        self._writer.stop()
        if self._file is not None and not self._is_stdout:
            with contextlib.suppress(OSError):  # what was delivered is written
                os.close(self._file)
        self._file = None


# -- how digests are written


Form = Callable[[Sequence[bytes]], bytes]


def json_lines(bodies: Sequence[bytes]) -> bytes:
    """Values are as they were published, perhaps over several lines; within JSON a break can only be a blank."""
    lines = b"\n".join([*bodies, b""])
    if lines.count(b"\n") == len(bodies) and lines.isascii() and not _NOT_SEEN(lines):  # to look takes less
        return lines
    return b"\n".join([*map(_line, bodies), b""])


def _line(body: bytes) -> bytes:
    """Beyond ASCII there is nothing outside of strings, so that an escape stands for the same character."""
    return safe_json(body.translate(_TO_BLANKS).decode("utf-8", "replace")).encode()


def human(bodies: Sequence[bytes], *, is_terminal: bool) -> bytes:
    """With an empty line after each."""
    from nsqdigest.delivery.bodies.terminal import lines_of

    colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if is_terminal else WIDTH_OF_A_PIPE
    lines = [line for body in bodies for line in (*lines_of(body, colour=colour, width=width), "")]
    encoding = (is_terminal and sys.stdout.encoding) or "utf-8"
    return ("\n".join(lines) + "\n").encode(encoding, "backslashreplace")


# -- the doctor's look


def unwritable(path: str) -> tuple[str, str]:
    """Why this user cannot write a log there, and the remedy; "" where it can."""
    if path == STDOUT:
        return "", ""
    if os.path.isdir(path):
        return "is a folder", "name a file in it"
    if os.path.exists(path):
        if os.access(path, os.W_OK):
            return "", ""
        return "cannot be written by this user", "give the daemon's user the right to, or name another file"
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        return f"cannot be made: there is no folder {folder}", "make the folder, for the daemon's user"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"cannot be made: {folder} cannot be written by this user", "give the daemon's user the right to"
    return "", ""


async def look(sink: LogSinkSettings, reach: Reach) -> list[Finding]:
    if sink.path == STDOUT:
        return [Finding(sink.name, State.OK, "writes to stdout")]
    problem, remedy = await reach.in_a_thread(partial(unwritable, sink.path))
    if problem:
        return [Finding(sink.name, State.FAIL, f"{sink.path} {problem}", remedy)]
    return [Finding(sink.name, State.OK, f"{sink.path} can be written by this user")]


def build(settings: LogSinkSettings, context: SinkContext) -> LogFile:
    return LogFile(settings)


KIND = SinkKind(
    name="log",
    settings=LogSinkSettings,
    options=(
        Option("path", Text(file_name), STDOUT, '"-": stdout; a file is opened anew when it was moved or deleted'),
        Option("format", Choice(("auto", "json", "human")), "auto", '"json", "human"; "auto": human on a terminal'),
    ),
    example="out",
    doc="writes each digest as a line of JSON, on a terminal for people",
    build=build,
    look=look,
)
