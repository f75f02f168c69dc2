"""Ends what a test run started, however the run itself ends: a small process that outlives it for a moment.

Invariants:
- The keeper reads the pids of started processes from a pipe whose only writing end is in this process. The kernel
  closes that end when this process ends, SIGKILL included; the keeper then kills (SIGKILL) what still runs, and ends.
- It holds each process by a pidfd, so that a pid which the kernel has given to another process is never killed.
- It is in a session of its own: a Ctrl-C, or whoever ends the group of the test run, does not reach it.
- A process that was forked from this one has no keeper until it starts a server; then it gets one of its own.

On kernels without pidfd (not Linux) there is no keeper, and a run that is killed leaves its servers behind.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

_PR_SET_PDEATHSIG = 1
# Runs without site-packages: it starts in some 10 ms, once for each test process.
_KEEPER = """
import os, signal, sys
kept = {}
for line in sys.stdin:
    pid = int(line)
    try:
        if pid > 0:
            kept[pid] = os.pidfd_open(pid)
        elif -pid in kept:
            os.close(kept.pop(-pid))
    except ProcessLookupError:
        pass
for pidfd in kept.values():
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except ProcessLookupError:
        pass
"""


class _Keeper:
    def __init__(self) -> None:
        self._owner = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._owner == os.getpid() or not hasattr(os, "pidfd_open"):
            return
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEPER],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )  # fmt: skip
        self._owner = os.getpid()
        atexit.register(self._close)

    def tell(self, line: bytes) -> None:
        if self._process is not None and self._owner == os.getpid():
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _close(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.communicate()


_keeper = _Keeper()


PopenT = TypeVar("PopenT", bound=subprocess.Popen[Any])


def kept(process: PopenT) -> PopenT:
    """Kills this child when the calling process ends. Whoever has waited for one of many calls `ended`."""
    _keeper.start()
    _keeper.tell(b"%d\n" % process.pid)
    return process


def ended(process: subprocess.Popen[Any]) -> None:
    _keeper.tell(b"-%d\n" % process.pid)


def end_with_parent() -> None:
    """Kills the calling process when its parent, or the thread that started it, ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """A process that was killed and that nobody has waited for (its parent may be gone) does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
