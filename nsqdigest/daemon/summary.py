"""What went on in the last minute, as one line of the log: what came in and went out, what waits, what is dead.

An operator who reads the log sees that the daemon is at work, and how far behind it is. The numbers are those of the
metrics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nsqdigest.base import log, tasks

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.store.figures import Figures

EVERY_S = 60.0
_COUNTERS = {
    "events_in": "messages_received_total",
    "events_stored": "message_age_seconds",
    "digests_out": "digests_delivered_total",
    "records_out": "digest_records_delivered_total",
    "dead_letters": "dead_letters_total",
    "digests_buried": "digests_buried_total",
}
"""Field: the metric that counts it, over all labels."""

_log = log.get("daemon")


class Summary:
    def __init__(self, metrics: Metrics, figures: Callable[[], Figures], every_s: float = EVERY_S) -> None:
        self._metrics = metrics
        self._figures = figures
        self._every_s = every_s
        self._before = self._totals()
        self._began_s = time.monotonic()
        self.tasks = tasks.Tasks()

    def start(self) -> None:
        self._began_s = time.monotonic()
        self.tasks.start(self._run(), "summary")

    async def stop(self) -> None:
        await self.tasks.stop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            _log.info("daemon.summary", **self.take())

    def take(self) -> dict[str, Any]:
        """The fields of a line about the time since the last one."""
        now_s, totals = time.monotonic(), self._totals()
        since, self._before = self._before, totals
        seconds, self._began_s = now_s - self._began_s, now_s
        return {
            "seconds": round(seconds),
            **{name: total - since[name] for name, total in totals.items()},
            **waiting(self._figures()),
        }

    def _totals(self) -> dict[str, int]:
        return {name: int(self._metrics.total(metric)) for name, metric in _COUNTERS.items()}


def waiting(figures: Figures) -> dict[str, Any]:
    """What waits in Redis, of all routes of the file."""
    routes = figures.routes.values()
    return {
        "timelines_waiting": sum(of.waiting for of in routes),
        "timelines_overdue": sum(of.overdue for of in routes),
        "oldest_due_s": round(max((of.overdue_s(figures.now_ms) for of in routes), default=0.0)),
        "digests_dead": sum(figures.dead.values()),
    }
