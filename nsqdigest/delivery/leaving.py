"""Outlets that no route has any more, after a reload: what they hold ends as it would have, then they are closed.

Invariants:
- Such an outlet takes nothing more: what waits in it goes back unsent, due as before.
- It ends when all that was claimed for it is concluded, or when every lease of it is over. A sink that hangs is ended
  before that by its outlet's own watch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqdigest.base import log, tasks

if TYPE_CHECKING:
    from nsqdigest.delivery.outlet import Outlet

_log = log.get("scheduler")


class Leaving:
    def __init__(self) -> None:
        self._ends: dict[Outlet, asyncio.Task[None]] = {}

    @property
    def outlets(self) -> Sequence[Outlet]:
        return list(self._ends)

    def add(self, outlet: Outlet, lease_s: float) -> None:
        outlet.stop_taking()
        self._ends[outlet] = tasks.start(self._end(outlet, lease_s), f"end of sink {outlet.name}")

    async def _end(self, outlet: Outlet, lease_s: float) -> None:
        began_s = time.monotonic()
        await tasks.until(lambda: not outlet.is_busy, lease_s)
        await outlet.stop()
        await outlet.sink.close()
        del self._ends[outlet]
        _log.info("scheduler.sink.left", sink=outlet.name, after_s=round(time.monotonic() - began_s, 1))

    async def stop_waiting(self) -> None:
        """For the daemon's drain, which waits for these outlets like for the others."""
        for task in self._ends.values():
            task.cancel()
        await asyncio.gather(*self._ends.values(), return_exceptions=True)

    async def close(self) -> None:
        for outlet in self.outlets:
            await outlet.sink.close()
        self._ends.clear()
