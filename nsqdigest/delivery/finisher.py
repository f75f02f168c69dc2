"""Ends digests in the store: one partition, one call at a time, in it all that ended since the last call began.

Invariants:
- What ends while no call is under way goes at once; what ends meanwhile goes together in the next. While only a FEW
  wait behind a call, the next is made GATHER_S later.
- A call that failed is made again, with what ended since, until Redis does its part or the leases are over. After that
  maintenance brings a timeline back, and the same digest goes out under its own id.
- A digest that Redis does not end would be posted again and again. So until an end succeeds nothing is claimed but a
  trial now and then, after waits that grow.
- A digest whose keys are damaged stops no other: a call that Redis breaks off is divided until it stands alone.
- What one call has too much work with follows in the next.
- Each end that was put in has one result: what became of it, or that nothing did (None).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base import tasks
from nsqdigest.base.errors import StoreError
from nsqdigest.delivery import verdicts
from nsqdigest.store.answers import Ended
from nsqdigest.store.damage import halved
from nsqdigest.store.digests import End

if TYPE_CHECKING:
    from nsqdigest.delivery.conclusions import Conclusion
    from nsqdigest.store.digests import Digests

MOST_PER_CALL = 200
"""Redis does nothing else during a call: some milliseconds."""
FEW = 100
"""A call for one costs Redis and this process as much as thirty more in a call of many."""
GATHER_S = 0.005
"""What a kill repeats grows by what is sent in it."""
_HAS_ENDED = frozenset((Ended.DONE, Ended.ALREADY))


class Result(NamedTuple):
    conclusion: Conclusion
    ended: Ended | None
    """None: Redis did not do it while the lease was ours."""
    error: StoreError | None


_as_result = tuple.__new__


class Finisher:
    def __init__(
        self,
        digests: Digests,
        partition: int,
        uniform: Callable[[float, float], float],
        on_results: Callable[[Sequence[Result]], None],
        on_dead: Callable[[int], None],
    ) -> None:
        """`on_dead`: called with the partition after a burial in it."""
        self._digests = digests
        self._partition = partition
        self._uniform = uniform
        self._on_results = on_results
        self._on_dead = on_dead
        self._waiting: list[Conclusion] = []
        self._task: asyncio.Task[None] | None = None
        self.error: StoreError | None = None
        """Why the last call failed, until an end succeeds."""
        self._given_up = 0
        """How many times in a row Redis ended no digest before its lease was over."""
        self._next_trial_s = 0.0

    def may_claim(self, now_s: float) -> bool:
        """Whether new digests may be claimed: all of them, or a trial if `error` says why ends failed."""
        return self.error is None or (not self.is_busy and now_s >= self._next_trial_s)

    def trial_began(self, until_s: float) -> None:
        """A trial was claimed. Its end answers by then, or another trial may begin."""
        self._next_trial_s = until_s

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
        failures = 0
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST_PER_CALL], self._waiting[MOST_PER_CALL:]
                failed = await self._finish(batch)
                if failed:
                    failures += 1
                    await self._wait_or_leave(failed, verdicts.ask_redis_again_s(failures, self._uniform))
                else:
                    failures = 0
                    if 0 < len(self._waiting) < FEW:
                        await asyncio.sleep(GATHER_S)
        finally:
            self._task = None

    async def _finish(self, batch: Sequence[Conclusion]) -> list[Result]:
        """Returns those that failed and may be tried again."""
        answers = await halved(batch, self._ended)
        done = [each.conclusion for each in answers if isinstance(each, Result) and each.ended in _HAS_ENDED]
        if done and self.error is not None:
            self.error = None
        if self._given_up and any(each.ending.kind is not End.WAIT for each in done):
            self._given_up = 0
        ended = [
            answer if isinstance(answer, Result) else Result(conclusion, Ended.DAMAGED, answer)
            for conclusion, answer in zip(batch, answers, strict=True)
        ]
        later = [result.conclusion for result in ended if result.ended is Ended.LATER]
        if later:
            self._waiting = [*later, *self._waiting]
            ended = [result for result in ended if result.ended is not Ended.LATER]
        failed = [result for result in ended if result.ended is None]
        self._on_results(ended if not failed else [result for result in ended if result.ended is not None])
        if End.BURY in [conclusion.ending.kind for conclusion in batch]:
            died = [each for each in ended if each.conclusion.ending.kind is End.BURY and each.ended in _HAS_ENDED]
            if died:
                self._on_dead(self._partition)
        return failed

    async def _ended(self, batch: Sequence[Conclusion]) -> list[Result]:
        """Raises only what dividing the batch may help against."""
        try:
            ended = await self._digests.finish(self._partition, [conclusion.ending for conclusion in batch])
        except StoreError as error:
            if error.is_damage:
                raise
            return [Result(conclusion, None, error) for conclusion in batch]
        return [_as_result(Result, (*each, None)) for each in zip(batch, ended, strict=True)]

    async def _wait_or_leave(self, failed: Sequence[Result], wait_s: float) -> None:
        self.error = failed[0].error
        over = [each for each in failed if each.conclusion.delivery.lease_left_s <= wait_s]
        if over:
            self._given_up += 1
            self._next_trial_s = time.monotonic() + verdicts.try_an_end_s(self._given_up, self._uniform)
        self._on_results(over)
        left = [each.conclusion for each in failed if each not in over]
        self._waiting = [*left, *self._waiting]
        if self._waiting:
            await asyncio.sleep(wait_s)
