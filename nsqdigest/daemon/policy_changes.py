"""At the start of a daemon: timelines that wait get the instants of their policy where that has changed.

It runs beside everything else, at its own pace, and ends. Where Redis fails it begins the partition again: doing it
twice changes nothing. What has damaged keys keeps its instants, and the scheduler reports the damage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base import log, tasks
from nsqdigest.base.errors import StoreError
from nsqdigest.store.rescoring import Rescored

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.store.rescoring import Rescoring

_log = log.get("daemon")

_RETRY_FIRST_MS = 1000
_RETRY_CAP_MS = 60_000


class PolicyChanges:
    def __init__(
        self,
        rescoring: Rescoring,
        partitions: int,
        policies: Mapping[str, str],
        metrics: Metrics,
        uniform: Callable[[float, float], float],
    ) -> None:
        """`policies`: the name of the policy by the name of the route, for the log."""
        self._rescoring = rescoring
        self._partitions = partitions
        self._policies = policies
        self._metrics = metrics
        self._uniform = uniform
        self._tasks = tasks.Tasks()

    def start(self) -> None:
        self._tasks.start(self._run(), "policy changes")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _run(self) -> None:
        total: dict[str, Rescored] = {}
        for partition in range(self._partitions):
            for route, done in (await self._until_done(partition)).items():
                total[route] = total.get(route, Rescored()).plus(done)
                self._metrics.add("timelines_rescored_total", done.sooner, route=route, direction="sooner")
                self._metrics.add("timelines_rescored_total", done.later, route=route, direction="later")
        for route, done in total.items():
            _log.info(
                "daemon.policy.changed", route=route, policy=self._policies[route], sooner=done.sooner, later=done.later
            )

    async def _until_done(self, partition: int) -> dict[str, Rescored]:
        failures = 0
        while True:
            try:
                return await self._rescoring.rescore(partition)
            except StoreError as error:
                if error.is_damage:
                    return {}
                failures += 1
                wait_ms = retry_wait_ms(failures, _RETRY_FIRST_MS, _RETRY_CAP_MS, self._uniform)
                _log.counted(
                    "warning", "daemon.policy.waiting", by=(), reason=error.reason, error=error, partition=partition,
                    hint="timelines that wait keep the instants of the policy before until then",
                )  # fmt: skip
                await asyncio.sleep(wait_ms / 1000)
