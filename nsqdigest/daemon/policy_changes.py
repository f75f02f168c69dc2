"""Gives timelines that wait the instants of their policy if that has changed: after a start and after a reload.

It works beside everything else, at its own pace, and ends when nothing is left to do. Where Redis fails it begins the
partition again: doing it twice changes nothing. What has damaged keys keeps its instants, and the scheduler reports the
damage.

- While another daemon that runs has another policy for a route, that route's timelines keep their instants: a rolling
  restart changes them once, at its end, and a daemon that comes back with the old file changes nothing.
- One daemon of a fleet does the work, the others wait until it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base import log, tasks
from nsqdigest.base.errors import StoreError
from nsqdigest.store.daemons import Daemons
from nsqdigest.store.rescoring import Rescored

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.store.rescoring import Rescoring
    from nsqdigest.store.store import Store

_log = log.get("daemon")

_RETRY_FIRST_MS = 1000
_RETRY_CAP_MS = 60_000
_LOOKS_AGAIN_S = 2.0
_TURN_MS = 30_000
"""After this long another daemon takes over from one that died."""
_DIFFERS_EVERY_S = 60.0


class PolicyChanges:
    def __init__(
        self,
        rescoring: Rescoring,
        store: Store,
        policies: Mapping[str, str],
        metrics: Metrics,
        uniform: Callable[[float, float], float],
    ) -> None:
        """`policies`: the name of the policy by the name of the route, for the log."""
        self._rescoring = rescoring
        self._store = store
        self._policies = policies
        self._metrics = metrics
        self._uniform = uniform
        self._tasks = tasks.Tasks()
        self.marks = rescoring.marks
        self.daemon_id = ""

    def start(self, daemon_id: str) -> None:
        """`daemon_id`: its own among those that are known."""
        self.daemon_id = daemon_id
        self._tasks.start(self._run(), "policy changes")

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _run(self) -> None:
        total: dict[str, Rescored] = {}
        left = [*range(self._store.namespace.partitions)]
        while True:
            unfinished = [partition for partition in left if not await self._until_done(partition, total)]
            if not unfinished:
                break
            left = unfinished
            await asyncio.sleep(_LOOKS_AGAIN_S)
        for route, done in total.items():
            _log.info(
                "daemon.policy.changed", route=route, policy=self._policies[route], sooner=done.sooner, later=done.later
            )

    async def _until_done(self, partition: int, total: dict[str, Rescored]) -> bool:
        """Returns whether nothing is left to do in a partition."""
        failures = 0
        while True:
            try:
                return await self._rescore(partition, total)
            except StoreError as error:
                if error.is_damage:
                    return True
                failures += 1
                wait_ms = retry_wait_ms(failures, _RETRY_FIRST_MS, _RETRY_CAP_MS, self._uniform)
                _log.counted(
                    "warning", "daemon.policy.waiting", by=(), reason=error.reason, error=error, partition=partition,
                    hint="timelines that wait keep the instants of the policy before until then",
                )  # fmt: skip
                await asyncio.sleep(wait_ms / 1000)

    async def _rescore(self, partition: int, total: dict[str, Rescored]) -> bool:
        changed = await self._rescoring.changed(partition)
        if not changed:
            return True
        differing = await self._differing()
        mine = [name for name in changed if name not in differing]
        if len(mine) < len(changed):
            routes = sorted(differing.intersection(changed))
            _log.counted("warning", "daemon.policy.differs", by=(), every_s=_DIFFERS_EVERY_S, routes=routes)
        work = f"policies {[(name, self.marks[name]) for name in mine]}"
        if mine and await self._store.upkeep.has_turn(partition, work, mine, _TURN_MS):
            for route, done in (await self._rescoring.rescore(partition, mine)).items():
                total[route] = total.get(route, Rescored()).plus(done)
                self._metrics.add("timelines_rescored_total", done.sooner, route=route, direction="sooner")
                self._metrics.add("timelines_rescored_total", done.later, route=route, direction="later")
            return len(mine) == len(changed)  # what is damaged is not tried again
        return False

    async def _differing(self) -> set[str]:
        """The routes for which another daemon that runs has another policy."""
        known = await Daemons(self._store.namespace).read(self._store.clock.now_ms())
        others = (each.told.policies for each in known if each.id != self.daemon_id)
        return {route for policies in others for route, mark in policies.items() if self.marks.get(route, mark) != mark}
