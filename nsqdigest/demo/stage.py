"""The scenario: the shop's events are published, two events are broken, Redis is stopped for a while, the daemon is
killed.

An event is in the account before it is published, so that every arrival is expected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from nsqdigest.demo.account import Account
from nsqdigest.demo.header import History
from nsqdigest.demo.narrator import Narrator
from nsqdigest.demo.servers.redis import EmbeddedRedis
from nsqdigest.demo.shop import POISON, Shop

TICK_S = 0.1
GATHERED_S = 6.0
"""The longest wait of an event under demo.toml: publishing ends so much earlier."""
SLACK_S = 0.5
OUTAGE_S = 4.0
ROUND_S = 40.0
"""Without an end, the scenario begins again after so long."""

Publish = Callable[[list[bytes]], Awaitable[None]]
Cue = tuple[float, Callable[[], Awaitable[None]]]


class Timing(NamedTuple):
    """In seconds since the shop opened."""

    ends_s: float | None
    """None: at a signal."""
    stop_s: float
    outage_s: float
    broken_s: tuple[float, float]
    kill_s: float
    """From then on the daemon is killed at the next digest of several events."""

    @classmethod
    def of(cls, seconds: int) -> Timing:
        ends_s = max(seconds - GATHERED_S - SLACK_S, 0.6 * seconds) if seconds else None
        length_s = ends_s or 24.0
        broken_s = 0.22 * length_s, 0.85 * length_s
        return cls(ends_s, 0.33 * length_s, min(OUTAGE_S, 0.2 * length_s), broken_s, 0.64 * length_s)


class Stage:
    def __init__(
        self,
        timing: Timing,
        narrator: Narrator,
        account: Account,
        history: History,
        *,
        redis: EmbeddedRedis,
        kill_soon: Callable[[], None],
    ) -> None:
        """`kill_soon`: has the daemon killed when it next delivers."""
        self._timing = timing
        self._narrator = narrator
        self._account = account
        self._history = history
        self._redis = redis
        self._kill_soon = kill_soon
        self._published_at_stop: int | None = None
        """None: Redis runs."""
        self._stopped_s = 0.0
        self.redis_away_s = 0.0
        """In all."""

    async def play(self, shop: Shop, publish: Publish, asked_to_end: asyncio.Event) -> None:
        """Until its time is over, or it is asked to end. Redis runs again when it returns."""
        opened_s = time.monotonic()
        round_from_s = 0.0
        cues = self._cues(publish)
        try:
            while not asked_to_end.is_set():
                now_s = time.monotonic() - opened_s
                if self._timing.ends_s is not None and now_s >= self._timing.ends_s:
                    break
                if self._timing.ends_s is None and now_s >= round_from_s + ROUND_S:
                    round_from_s += ROUND_S
                    cues = self._cues(publish)
                while cues and now_s >= round_from_s + cues[0][0]:
                    await cues.pop(0)[1]()
                await self._publish_what_happened(shop, now_s, publish)
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await asked_to_end.wait()
        finally:
            await self._start_store()

    def _cues(self, publish: Publish) -> list[Cue]:
        timing = self._timing
        cues: list[Cue] = [
            (timing.stop_s, self._stop_store),
            (timing.stop_s + timing.outage_s, self._start_store),
            (timing.kill_s, self._kill_daemon),
        ]
        cues += [
            (at_s, partial(self._publish_broken, body, publish))
            for at_s, body in zip(timing.broken_s, POISON, strict=True)
        ]
        return sorted(cues, key=lambda cue: cue[0])

    async def _publish_what_happened(self, shop: Shop, now_s: float, publish: Publish) -> None:
        events = shop.until(now_s, time.time_ns() // 1_000_000)
        for event in events:
            self._account.published_event(event.number)
            self._history.add_event()
        self._narrator.published(events)
        if events:
            await publish([event.body for event in events])

    async def _publish_broken(self, body: bytes, publish: Publish) -> None:
        self._narrator.published_broken(body)
        self._account.published_broken(body)
        self._history.add_event()
        await publish([body])

    async def _stop_store(self) -> None:
        self._narrator.phase(f"Redis is stopped for {self._timing.outage_s:.0f} s. Watch the daemon step back.")
        self._published_at_stop = self._account.published
        self._stopped_s = time.monotonic()
        self._redis.pause()

    async def _start_store(self) -> None:
        if self._published_at_stop is None:
            return
        waiting = self._account.published - self._published_at_stop
        self._published_at_stop = None
        self._redis.resume()
        self.redis_away_s += time.monotonic() - self._stopped_s
        self._narrator.phase(f"Redis runs again. {waiting} events were published meanwhile; nsqd has kept them.")

    async def _kill_daemon(self) -> None:
        self._kill_soon()
