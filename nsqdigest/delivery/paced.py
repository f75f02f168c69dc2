"""The outlet of a sink that takes so many posts in a time and no more: `rate = "1/s"`.

Invariants:
- No send begins sooner than the spacing after the one before, however many senders are idle. A probe is a send, too.
- Nothing is claimed long before it can be sent: there is room from AHEAD_S before the next send on, for as many as will
  be sent within AHEAD_S. So a digest is as fresh as its send, and its lease is not spent in a line.
- A sink without a rate has the plain outlet: nothing of this is asked for its digests.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from nsqdigest.delivery.outlet import AHEAD_S, Outlet

if TYPE_CHECKING:
    from nsqdigest.backoff import Controller
    from nsqdigest.config import SinkSettings
    from nsqdigest.delivery.delivery import Delivery
    from nsqdigest.delivery.sinks.base import Sink
    from nsqdigest.delivery.targets import Aim

_MOMENT_S = 0.0001
"""A timer may be early by so much."""


def outlet_of(
    settings: SinkSettings, sink: Sink, controller: Controller, aim: Aim | None = None, senders: int = 0
) -> Outlet:
    return (PacedOutlet if settings.spacing_s else Outlet)(settings, sink, controller, aim, senders)


class PacedOutlet(Outlet):
    def __init__(
        self, settings: SinkSettings, sink: Sink, controller: Controller, aim: Aim | None = None, senders: int = 0
    ) -> None:
        super().__init__(settings, sink, controller, aim, senders)
        self._bulk = None
        self._spacing_s = settings.spacing_s
        self._next_s = 0.0
        """When the next send may begin."""
        self._room_at_s = 0.0
        """From when on there is room for it."""
        self._waking: list[asyncio.TimerHandle] = []

    @property
    def room(self) -> int:
        now_s = time.monotonic()
        if now_s < self._room_at_s - _MOMENT_S:
            return 0
        ahead = int(min(max(0.0, now_s - self._room_at_s), AHEAD_S) / self._spacing_s)
        free = min(super().room, 1 + ahead - (self.held + self.reserved - self.sending))
        return free if free > ahead // 4 else 0  # a claim of a few costs as much as one of many

    def follow(self, before: Outlet) -> None:
        if isinstance(before, PacedOutlet):
            self._next_s, self._room_at_s = before._next_s, before._room_at_s

    async def stop(self) -> None:
        self._sleep()
        await super().stop()

    def _next_batch(self) -> list[Delivery]:
        now_s = time.monotonic()
        if now_s < self._next_s - _MOMENT_S:  # `_wake` comes then
            return []
        batch = super()._next_batch()
        if batch:
            self._next_s = now_s + self._spacing_s
            self._room_at_s = self._next_s - AHEAD_S
            self._sleep()
            loop = asyncio.get_running_loop()
            self._waking = [
                loop.call_later(max(0.0, self._room_at_s - now_s), self.on_room),
                loop.call_later(self._spacing_s, self._wake),
            ]
        return batch

    def _sleep(self) -> None:
        for handle in self._waking:
            handle.cancel()
