"""Back pressure: how many publishes, and how many bytes of them, may be in progress. Further ones wait in line.

Invariants:
- First come, first served: small publishes do not overtake a large one for ever.
- A publish that gives up, by time-out or cancellation, leaves the line, and releases what it was admitted with in that
  very moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nsqdigest.base.errors import Applied, PublishError


class Backpressure:
    """`acquire` before a publish, `release` after it. One that is larger than the limit goes when it is alone."""

    def __init__(self, most_commands: int, most_bytes: int, within_s: float) -> None:
        self._most_commands = most_commands
        self._most_bytes = most_bytes
        self._within_s = within_s
        self._commands = 0
        self._size_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def blocked_by(self, size_bytes: int) -> str:
        """The limit that a publish of this size would wait for: "commands", "bytes", or "" for none."""
        if self._commands >= self._most_commands:
            return "commands"
        return "bytes" if self._waiting or not self._fits(size_bytes) else ""

    async def acquire(self, size_bytes: int, topic: str) -> None:
        if not self.blocked_by(size_bytes):
            self._admit(size_bytes)
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, admitted))
        try:
            async with asyncio.timeout(self._within_s):
                await admitted
        except BaseException as error:
            if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self.release(size_bytes)  # admitted in the very moment it gave up
            self._admit_waiting()  # it may have been the one that the others waited behind
            if isinstance(error, TimeoutError):
                raise PublishError(
                    f"a publish of {size_bytes} bytes to {topic} waited {self._within_s:g} s and was not sent: "
                    f"{self._commands} commands with {self._size_bytes} bytes are in progress, and nsqd is slow to "
                    "acknowledge them",
                    applied=Applied.NO,
                ) from None
            raise

    def release(self, size_bytes: int) -> None:
        self._commands -= 1
        self._size_bytes -= size_bytes
        self._admit_waiting()

    def refuse_all(self, make_error: Callable[[], PublishError]) -> None:
        while self._waiting:
            _, admitted = self._waiting.popleft()
            if not admitted.done():
                admitted.set_exception(make_error())

    def _fits(self, size_bytes: int) -> bool:
        return self._commands == 0 or (
            self._commands < self._most_commands and self._size_bytes + size_bytes <= self._most_bytes
        )

    def _admit(self, size_bytes: int) -> None:
        self._commands += 1
        self._size_bytes += size_bytes

    def _admit_waiting(self) -> None:
        while self._waiting:
            size_bytes, admitted = self._waiting[0]
            if not admitted.done():
                if not self._fits(size_bytes):
                    return
                self._admit(size_bytes)
                admitted.set_result(None)
            self._waiting.popleft()
