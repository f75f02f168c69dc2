"""Writes log lines to a file descriptor from a thread of its own, so that a reader that does not read stops nothing.

Invariants:
- `put` never waits. At most `QUEUE_BYTES` wait for the reader; a line beyond that is dropped and counted, and one line
  with the count follows once the reader reads again. Lines below a warning leave the last quarter of the queue free.
- Lines come out whole and in order.
- It writes to the descriptor, not to Python's stream: at exit Python flushes that, and would wait for a lock that a
  thread which hangs in a write never releases.
- Once it is closed and all is written, the few lines of an exiting process are written at once.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

QUEUE_BYTES = 1 << 20
_FOR_ALL_BYTES = QUEUE_BYTES * 3 // 4


class LogWriter:
    def __init__(self, descriptor: int, notice: Callable[[int], bytes], tick: Callable[[], float | None]) -> None:
        """`notice` renders the line with the number of dropped lines. `tick` is called between lines; it returns the
        seconds until it wants to be called again."""
        self._descriptor = descriptor
        self._notice = notice
        self._tick = tick
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        """Of the lines in the queue and of the one that is being written."""
        self._is_closing = self._has_ended = False
        self._unreported = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def put(self, line: bytes, *, is_urgent: bool) -> None:
        if self._has_ended:
            _write(self._descriptor, line)
            return
        with self._changed:
            limit_bytes = QUEUE_BYTES if is_urgent else _FOR_ALL_BYTES
            if self._waiting_bytes + len(line) > limit_bytes:
                self._drop()
                return
            self._lines.append(line)
            self._waiting_bytes += len(line)
            self._changed.notify_all()

    def close(self, within_s: float) -> None:
        """Writes the queue, for so long at the most; the rest is lost with the process. A second call does not
        wait again."""
        with self._changed:
            if self._is_closing:
                return
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(within_s)

    def _drop(self) -> None:
        self.dropped += 1
        self._unreported += 1

    def _run(self) -> None:
        while (line := self._next()) is not None:
            is_written = _write(self._descriptor, line)
            with self._changed:
                self._waiting_bytes -= len(line)
                if not is_written:
                    self._drop()
                unreported, self._unreported = (self._unreported, 0) if is_written else (0, self._unreported)
            if unreported:
                _write(self._descriptor, self._notice(unreported))

    def _next(self) -> bytes | None:
        """The next line; None: it is closed, and all is written."""
        while True:
            again_s = self._tick()
            with self._changed:
                if not self._lines and not self._is_closing:
                    self._changed.wait(again_s)
                if self._lines:
                    return self._lines.popleft()
                if self._is_closing:
                    self._has_ended = True
                    return None


def _write(descriptor: int, line: bytes) -> bool:
    """Waits for the reader as long as it takes. Returns False where there is none any more."""
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process made it non-blocking: the flag belongs to all that share it
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll(1000)
        except OSError:
            return False
    return True
