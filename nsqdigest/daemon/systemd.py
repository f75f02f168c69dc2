"""What systemd wants to know of a service of `Type=notify-reload`: that it is ready, how it is, that it lives, that it
reads its file again, that it ends.

Where no systemd started the process (no NOTIFY_SOCKET) nothing is sent. A message that cannot be sent is no trouble of
the daemon's: nothing here raises or waits.

The watchdog is fed by progress: the event loop turns, and delivery's timers do. Where one of them hangs it is not fed,
and systemd starts the daemon again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping

from nsqdigest.base import tasks

_MOST_BYTES = 4096
_STATUS_EVERY_S = 5.0
_US_PER_S = 1_000_000


class Notifier:
    def __init__(
        self, status: Callable[[], str], makes_progress: Callable[[], bool], environ: Mapping[str, str] = os.environ
    ) -> None:
        """`status`: one line for `systemctl status`."""
        self._status = status
        self._makes_progress = makes_progress
        self._address = address_of(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = watchdog_s(environ, os.getpid())
        self.tasks = tasks.Tasks()

    def start(self) -> None:
        if self._address:
            self.tasks.start(self._run(), "systemd")

    def ready(self) -> None:
        """From now on systemd expects signs of life."""
        self._send("READY=1", f"STATUS={self._status()}")

    def reloading(self) -> None:
        """`ready` follows when it is over, whatever became of it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reads its file again")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", f"STATUS={status}")

    async def stop(self) -> None:
        await self.tasks.stop()

    async def _run(self) -> None:
        pause_s = min(_STATUS_EVERY_S, self._watchdog_s / 3) if self._watchdog_s else _STATUS_EVERY_S
        while True:
            alive = ("WATCHDOG=1",) if self._watchdog_s and self._makes_progress() else ()
            self._send(*alive, f"STATUS={self._status()}")
            await asyncio.sleep(pause_s)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines).encode()[:_MOST_BYTES]
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            sending.sendto(text, self._address)


def address_of(name: str) -> str:
    """Of NOTIFY_SOCKET: a path, or with @ a name that is no file. "" where there is none, or of another kind."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def watchdog_s(environ: Mapping[str, str], pid: int) -> float:
    """Within which time systemd wants a sign of life; 0: it wants none of this process."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0.0
    try:
        return max(0, int(environ.get("WATCHDOG_USEC", "0"))) / _US_PER_S
    except ValueError:
        return 0.0
