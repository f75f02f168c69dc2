"""The kind "log": writes digests as JSON lines to a file or to stdout.

Invariants:
- A line is written whole or counts as not delivered. After a write that broke off (a full disk) the next one begins on
  a new line, so that one torn line never spoils its neighbour.
- One thread writes at a time. A write that hangs (a pipe that nobody reads) keeps that thread, and no other starts: the
  digests that wait for it fail when their time-out passes, and closing the sink does not wait for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from nsqdigest.base import threads
from nsqdigest.base.findings import Finding, State
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import SinkSettings, texts
from nsqdigest.config.options import Option
from nsqdigest.config.problems import Wrong
from nsqdigest.config.readers import Text
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.sinks.kind import Reach, SinkContext, SinkKind

STDOUT = "-"
MOST_LINES_AT_ONCE = 100
_BREAKS_TO_BLANKS = bytes.maketrans(b"\r\n", b"  ")


# -- in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSinkSettings(SinkSettings):
    path: str


def file_name(text: str) -> str:
    if not text or "\0" in text:
        raise Wrong("is not a file's name", 'write one, or "-" for stdout')
    return texts.whole_path(text)


# -- delivery


class LogFile:
    def __init__(self, settings: LogSinkSettings) -> None:
        self._path = settings.path
        self._timeout_s = settings.timeout_ms / 1000
        self._file: int | None = None
        self._is_torn = False
        self._one_at_a_time = asyncio.Lock()
        self._writer = threads.Worker(f"sink to {settings.path}")
        self._writing: Future[None] | None = None

    at_once = MOST_LINES_AT_ONCE

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        return (await self.deliver_all([digest]))[0]

    async def deliver_all(self, digests: Sequence[OutgoingDigest]) -> list[Outcome]:
        """In one write: all of them are delivered, or none is."""
        return [await self._write_lines([digest.body for digest in digests])] * len(digests)

    async def _write_lines(self, bodies: Sequence[bytes]) -> Outcome:
        try:
            async with asyncio.timeout(self._timeout_s), self._one_at_a_time:
                await self._last_write_ended()
                lines = b"".join([line + b"\n" for line in map(_in_one_line, bodies)])
                self._writing = self._writer.start(partial(self._write, lines))
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

    def _write(self, lines: bytes) -> None:
        if self._file is None:
            is_stdout = self._path == STDOUT
            self._file = (
                sys.stdout.fileno() if is_stdout else os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            )
        data = memoryview(b"\n" + lines if self._is_torn else lines)
        while data:
            self._is_torn = True
            data = data[os.write(self._file, data) :]
        self._is_torn = False

    async def close(self) -> None:
        if self._writing is not None and not self._writing.done():
            return  # its thread may hang in that file for ever
        self._writer.stop()
        if self._file is not None and self._path != STDOUT:
            os.close(self._file)
            self._file = None


def _in_one_line(body: bytes) -> bytes:
    """Values are as they were published, perhaps over several lines; within JSON a break can only be a blank."""
    # To look first takes a quarter of the time that a translation takes.
    return body.translate(_BREAKS_TO_BLANKS) if b"\n" in body or b"\r" in body else body


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
    options=(Option("path", Text(file_name), STDOUT, '"-": stdout'),),
    example="out",
    doc="writes one line of JSON for each digest",
    build=build,
    look=look,
)
