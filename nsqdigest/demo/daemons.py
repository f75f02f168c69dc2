"""The daemon of the demo: `nsqdigest run` as a process of its own, so that it can be killed; its log is read.

The process ends with this one, however this one ends. It gets the demo's file and environment, and nothing of what the
user's own environment says to nsqdigest.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from nsqdigest.base import log
from nsqdigest.base.errors import NsqdigestError
from nsqdigest.demo.servers.child import ends_with_this_process

START_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 25.0
"""A little longer than the daemon itself takes for it at most."""
_STARTED = "daemon.started"
_LINES_OF_AN_ERROR = 5
_PACKAGE_PARENT = Path(__file__).resolve().parents[2]


async def audit(file: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """What `nsqdigest audit --json` says. Raises where it cannot."""
    process = await asyncio.create_subprocess_exec(
        *_command("audit", "--json", str(file)), env=_environ(environ),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    out, err = await process.communicate()
    try:
        return msgspec.json.decode(out, type=dict[str, Any])
    except msgspec.DecodeError:
        raise NsqdigestError(err.decode(errors="replace").strip()) from None


def _command(*words: str) -> list[str]:
    return ends_with_this_process([sys.executable, "-P", "-m", "nsqdigest", *words])


def _environ(of_demo: Mapping[str, str]) -> dict[str, str]:
    """The package is the one that runs here, wherever Python would look for it."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("NSQDIGEST")}
    paths = [str(_PACKAGE_PARENT), *filter(None, [inherited.get("PYTHONPATH")])]
    return {**inherited, **of_demo, "PYTHONPATH": os.pathsep.join(paths)}


OnLog = Callable[[int, str, dict[str, Any]], None]
"""Called with the level, the event and the fields of each line of the log."""


class DaemonProcess:
    def __init__(self, file: Path, environ: Mapping[str, str], on_log: OnLog) -> None:
        """`environ`: beside what every process needs."""
        self._file = file
        self._environ = environ
        self._on_log = on_log
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._last_lines: deque[str] = deque(maxlen=_LINES_OF_AN_ERROR)
        self._is_asked_to_end = False

    @property
    def has_ended_by_itself(self) -> bool:
        return self._process is not None and self._process.returncode is not None and not self._is_asked_to_end

    async def start(self) -> None:
        """Returns when it takes in events. Raises where it ends instead."""
        self._process = await asyncio.create_subprocess_exec(
            *_command("run", str(self._file)), env=_environ(self._environ),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stderr is not None
        self._reader = asyncio.create_task(self._read_log(self._process.stderr), name="demo-daemon-log")
        started = asyncio.create_task(self._started.wait())
        try:
            await asyncio.wait(
                [started, self._reader], timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )  # the log ends when the process does
        finally:
            started.cancel()
            if not self._started.is_set():
                await self.kill()
        if not self._started.is_set():
            raise NsqdigestError("the demo's daemon did not start; its log:\n" + "\n".join(self._last_lines))

    def kill_at_once(self) -> None:
        """SIGKILL: nothing in it runs any more when this returns."""
        self._is_asked_to_end = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def kill(self) -> None:
        self.kill_at_once()
        await self._wait()

    async def drain(self) -> int:
        """As `systemctl stop` does. Returns its exit code."""
        self._is_asked_to_end = True
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(DRAIN_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
        return await self._wait()

    async def _wait(self) -> int:
        code = await self._process.wait() if self._process is not None else 0
        if self._reader is not None:
            await self._reader
        return code

    async def _read_log(self, stream: asyncio.StreamReader) -> None:
        """To its end, also when nobody looks."""
        async for line in stream:
            text = line.decode(errors="replace").rstrip()
            try:
                fields = msgspec.json.decode(text, type=dict[str, Any])
                level, event = log.LEVELS[fields.pop("level")], str(fields.pop("event"))
            except (msgspec.DecodeError, KeyError):
                self._last_lines.append(text)  # what Python itself writes when it cannot start
                continue
            fields.pop("time", None)
            self._last_lines.append(f"{event}: {fields.get('error', '')}")
            self._on_log(level, event, fields)
            if event == _STARTED:
                self._started.set()
