"""Writes digests as JSON lines to a file or to stdout.

A line is written whole or counts as not delivered. After a write that broke off (a full disk) the next begins on a new
line, so that one torn line never spoils its neighbour.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from nsqdigest.sinks.base import Outcome, Parcel, Verdict

if TYPE_CHECKING:
    from nsqdigest.config import LogSink

_BREAKS_TO_BLANKS = bytes.maketrans(b"\r\n", b"  ")


class LogFile:
    def __init__(self, settings: LogSink) -> None:
        self._path = settings.path
        self._file: int | None = None
        self._is_torn = False
        self._one_at_a_time = asyncio.Lock()

    async def deliver(self, parcel: Parcel) -> Outcome:
        async with self._one_at_a_time:
            try:
                # Values are as they were published, perhaps over several lines; within JSON a break can only be a
                # blank.
                await asyncio.to_thread(self._write, parcel.body.translate(_BREAKS_TO_BLANKS) + b"\n")
            except OSError as error:
                return Outcome(Verdict.UNAVAILABLE, f"{self._path}: {error.strerror or error}")
        return Outcome(Verdict.DELIVERED)

    def _write(self, line: bytes) -> None:
        if self._file is None:
            is_stdout = self._path == "-"
            self._file = (
                sys.stdout.fileno() if is_stdout else os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
            )
        data = memoryview(b"\n" + line if self._is_torn else line)
        while data:
            self._is_torn = True
            data = data[os.write(self._file, data) :]
        self._is_torn = False

    async def close(self) -> None:
        async with self._one_at_a_time:
            if self._file is not None and self._path != "-":
                os.close(self._file)
                self._file = None
