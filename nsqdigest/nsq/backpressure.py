"""Back pressure: how many publishes, and how many bytes of them, may be under way; who comes then waits in line.

First come, first served: a large one is not overtaken for ever by small ones. Whoever gives up, by time-out or
cancellation, leaves the line, and what was given to it in the same moment goes back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from nsqdigest.base.errors import Applied, PublishError


class Room:
    """How much may be under way. What is larger than all of it goes when nothing else does."""

    def __init__(self, most_commands: int, most_bytes: int, within_s: float) -> None:
        self._most_commands = most_commands
        self._most_bytes = most_bytes
        self._within_s = within_s
        self._commands = 0
        self._size_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def full_of(self, size_bytes: int) -> str:
        """What a publish of this size would have to wait for: "commands", "bytes", or "" for nothing."""
        if self._commands >= self._most_commands:
            return "commands"
        return "bytes" if self._waiting or not self._fits(size_bytes) else ""

    async def take(self, size_bytes: int, topic: str) -> None:
        if not self.full_of(size_bytes):
            self._admit(size_bytes)
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, admitted))
        try:
            async with asyncio.timeout(self._within_s):
                await admitted
        except BaseException as error:
            if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self.give(size_bytes)  # let in at the very moment it gave up
            self._let_in()  # it may have been the one that the others waited behind
            if isinstance(error, TimeoutError):
                raise PublishError(
                    f"no room for a publish of {size_bytes} bytes to {topic} within {self._within_s:g} s: "
                    f"{self._commands} commands with {self._size_bytes} bytes are under way, and nsqd is slow to "
                    "acknowledge them",
                    applied=Applied.NO,
                ) from None
            raise

    def give(self, size_bytes: int) -> None:
        self._commands -= 1
        self._size_bytes -= size_bytes
        self._let_in()

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

    def _let_in(self) -> None:
        while self._waiting:
            size_bytes, admitted = self._waiting[0]
            if not admitted.done():
                if not self._fits(size_bytes):
                    return
                self._admit(size_bytes)
                admitted.set_result(None)
            self._waiting.popleft()
