"""How late the event loop is: the longest delay of a timer in the last few seconds."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from nsqdigest.base import tasks

_EVERY_S = 0.25
_REMEMBERED_S = 15.0


class LoopLag:
    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=int(_REMEMBERED_S / _EVERY_S))
        """(when, how late), both in seconds."""
        self.tasks = tasks.Tasks()

    @property
    def longest_s(self) -> float:
        since_s = time.monotonic() - _REMEMBERED_S
        return max((late_s for at_s, late_s in self._seen if at_s >= since_s), default=0.0)

    def start(self) -> None:
        self.tasks.start(self._run(), "event loop lag")

    async def stop(self) -> None:
        await self.tasks.stop()

    async def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            await asyncio.sleep(_EVERY_S)
            now_s = time.monotonic()
            self._seen.append((now_s, max(0.0, now_s - began_s - _EVERY_S)))
