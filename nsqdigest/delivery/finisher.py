"""Ends digests in the store: one partition, one call at a time, in it all that ended since the last call began.

Invariants:
- What ends while no call is under way goes at once; what ends meanwhile goes together in the next.
- A call that failed is made again, with what ended since, until Redis does its part or the leases are over. After that
  maintenance brings a timeline back, and the same digest goes out under its own id.
- A digest whose keys are damaged stops no other: a call that Redis breaks off is divided until it stands alone.
- Each end that was put in has one result: what became of it, or that nothing did (None).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base import tasks
from nsqdigest.base.errors import StoreError
from nsqdigest.store.answers import Ended

if TYPE_CHECKING:
    from nsqdigest.delivery.conclusions import Conclusion
    from nsqdigest.store.digests import Digests

MOST_PER_CALL = 100
"""Redis does nothing else during a call: some milliseconds."""
_AGAIN_FIRST_S = 0.1
_AGAIN_CAP_S = 2.0


class Result(NamedTuple):
    conclusion: Conclusion
    ended: Ended | None
    """None: Redis did not do it while the lease was ours."""
    error: StoreError | None


class Finisher:
    def __init__(
        self,
        digests: Digests,
        partition: int,
        uniform: Callable[[float, float], float],
        on_results: Callable[[Sequence[Result]], None],
        on_dead: Callable[[int, int], Awaitable[None]],
    ) -> None:
        """`on_dead`: called after a burial with the partition and the number of digests that are dead in it."""
        self._digests = digests
        self._partition = partition
        self._uniform = uniform
        self._on_results = on_results
        self._on_dead = on_dead
        self._waiting: list[Conclusion] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    async def quiet(self) -> None:
        """Until no end waits for the store."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """What Redis has not done by now is left to the leases."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def put(self, conclusions: Sequence[Conclusion]) -> None:
        self._waiting += conclusions
        if self._task is None and self._waiting:
            self._task = tasks.start(self._work(), f"ends of partition {self._partition}")

    async def _work(self) -> None:
        wait_s = _AGAIN_FIRST_S
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST_PER_CALL], self._waiting[MOST_PER_CALL:]
                failed = await self._finish(batch)
                if failed:
                    await self._wait_or_leave(failed, wait_s)
                    wait_s = min(_AGAIN_CAP_S, self._uniform(_AGAIN_FIRST_S, 3 * wait_s))
                else:
                    wait_s = _AGAIN_FIRST_S
        finally:
            self._task = None

    async def _finish(self, batch: Sequence[Conclusion]) -> list[Result]:
        """Returns those that failed and may be tried again."""
        try:
            ended, dead = await self._digests.finish(self._partition, [conclusion.ending for conclusion in batch])
        except StoreError as error:
            if not error.is_damage:
                return [Result(conclusion, None, error) for conclusion in batch]
            if len(batch) == 1:
                self._on_results([Result(batch[0], Ended.DAMAGED, error)])
                return []
            middle = len(batch) // 2
            return [*await self._finish(batch[:middle]), *await self._finish(batch[middle:])]
        self._on_results([Result(conclusion, each, None) for conclusion, each in zip(batch, ended, strict=True)])
        if any(conclusion.ending.kind == "bury" for conclusion in batch):
            await self._on_dead(self._partition, dead)
        return []

    async def _wait_or_leave(self, failed: Sequence[Result], wait_s: float) -> None:
        over = [each for each in failed if each.conclusion.delivery.lease.left_s <= wait_s]
        self._on_results(over)
        left = [each.conclusion for each in failed if each not in over]
        self._waiting = [*left, *self._waiting]
        if self._waiting:
            await asyncio.sleep(wait_s)
