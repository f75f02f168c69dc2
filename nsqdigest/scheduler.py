"""The timer: claims timelines that are due and has each carried to its sink. Any number of daemons side by side, no
leader.

As many timelines are claimed as their sink has room for now; while a sink is known to be down nothing of it is claimed
but a probe. It sleeps until the next timeline is due, at most `interval`, and is poked when something is due at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from nsqdigest import delivery, log
from nsqdigest.backoff import Reason, State
from nsqdigest.courier import Courier, Lease, ScheduledRoute, SinkPost
from nsqdigest.errors import Applied, StoreError

if TYPE_CHECKING:
    from nsqdigest.config import Scheduler as SchedulerSettings
    from nsqdigest.metrics import Metrics
    from nsqdigest.timelines import Claim, Timelines

_log = log.get("scheduler")

_MAINTENANCE_PER_LEASE = 4
_STORE_AGAIN_FIRST_MS = 100
_STORE_AGAIN_CAP_MS = 5000


class _Unheard(NamedTuple):
    """A claim whose answer got lost."""

    partition: int
    token: str
    until_s: float


class Scheduler:
    def __init__(
        self,
        settings: SchedulerSettings,
        routes: Mapping[str, ScheduledRoute],
        store: Timelines,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._store = store
        self._metrics = metrics
        self._uniform = uniform
        self._courier = Courier(store, settings.lease_ms, metrics, uniform, self._sink_decided)
        self._poked = asyncio.Event()
        self._draining = False
        self._work: set[asyncio.Task[None]] = set()
        self.tasks: list[asyncio.Task[None]] = []
        self._turn = 0
        self._maintained_s = 0.0
        self._unheard: list[_Unheard] = []
        self._released_s = 0.0
        self.failing_since_s: float | None = None

    @property
    def posts(self) -> list[SinkPost]:
        return list({id(route.post): route.post for route in self._routes.values()}.values())

    def start(self) -> None:
        self.tasks = [asyncio.create_task(self._run(), name="scheduler")]

    def poke(self) -> None:
        """Something is due now, or there is room again."""
        self._poked.set()

    async def drain(self, until_s: float) -> None:
        """Claims nothing more; what is being claimed or delivered has until then to end."""
        self._draining = True
        self.poke()
        if self.tasks:
            # Cut off, a claim would leave timelines leased with nobody to deliver them.
            await asyncio.wait(self.tasks, timeout=max(0.0, until_s - time.monotonic()))
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._work:
            await asyncio.wait(self._work, timeout=max(0.0, until_s - time.monotonic()))
        for task in list(self._work):
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    # -- the timer

    async def _run(self) -> None:
        failures = 0
        while not self._draining:
            self._poked.clear()
            try:
                wait_s = await self._turn_once()
                failures = 0
                if self.failing_since_s is not None:
                    _log.info("scheduler.store.back", after_s=round(time.monotonic() - self.failing_since_s, 1))
                    self.failing_since_s = None
            except StoreError as error:
                failures += 1
                if self.failing_since_s is None:
                    self.failing_since_s = time.monotonic()
                    _log.warning("scheduler.store.failed", reason=error.reason, error=error)
                self._metrics.add("store_errors_total", reason=error.reason)
                wait_ms = delivery.retry_wait_ms(failures, _STORE_AGAIN_FIRST_MS, _STORE_AGAIN_CAP_MS, self._uniform)
                wait_s = wait_ms / 1000
            # A poke ends the wait after a failure too: that intake stored something says that Redis is back.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._poked.wait()

    async def _turn_once(self) -> float:
        """One look at every partition. Answers how long nothing will be due."""
        now_s = time.monotonic()
        for post in self.posts:
            if post.controller.tick(now_s):
                self._sink_decided(post)
        if now_s - self._maintained_s >= self._settings.lease_ms / 1000 / _MAINTENANCE_PER_LEASE:
            await self._maintain()
            self._maintained_s = now_s
        await self._release_unheard(now_s)
        wait_s = self._settings.interval_ms / 1000
        for post in self.posts:
            if post.controller.decision.wake_at_s is not None:
                wait_s = min(wait_s, post.controller.decision.wake_at_s - now_s)
        for partition in range(self._store.partitions):
            if self._draining:
                break
            wait_s = min(wait_s, await self._claim(partition))
        return max(0.0, wait_s)

    async def _release_unheard(self, now_s: float) -> None:
        """Brings back what claims took whose answers got lost, instead of waiting for their leases to run out.

        Such a claim may even be carried out later than this asks (a stopped Redis finds it in its socket), so it is
        asked again until something came back or the lease is over anyway.
        """
        if not self._unheard or now_s - self._released_s < self._settings.interval_ms / 1000:
            return
        self._released_s = now_s
        for unheard in list(self._unheard):
            returned = await self._store.release(unheard.partition, list(self._routes), unheard.token)
            if returned:
                _log.info("scheduler.claim.released", timelines=returned, partition=unheard.partition)
            if returned or now_s >= unheard.until_s:
                self._unheard.remove(unheard)

    async def _maintain(self) -> None:
        for partition in range(self._store.partitions):
            returned = await self._store.maintenance(partition, list(self._routes))
            if returned:
                _log.warning("scheduler.lease.ran_out", timelines=returned, partition=partition)

    async def _claim(self, partition: int) -> float:
        """Claims what there is room for. Answers in how many seconds this partition has more."""
        posts = [post for post in self.posts if post.room > 0]
        if not posts:
            return self._settings.interval_ms / 1000
        numbers = {id(post): number for number, post in enumerate(posts)}
        names = [name for name, route in self._routes.items() if id(route.post) in numbers]
        self._turn += 1  # another route is first each time, so that none of a sink's routes takes all its room
        names = names[self._turn % len(names) :] + names[: self._turn % len(names)]
        routes = [(name, numbers[id(self._routes[name].post)]) for name in names]
        lease = Lease(self._settings.lease_ms)
        budgets = [min(post.room, self._settings.batch) for post in posts]
        token = uuid4().hex
        try:
            claimed = await self._store.claim(partition, routes, budgets, self._settings.lease_ms, token)
        except StoreError as error:
            if error.applied is Applied.AMBIGUOUS:
                self._unheard.append(_Unheard(partition, token, time.monotonic() + self._settings.lease_ms / 1000))
            raise
        now_ms = self._store.clock.now_ms()
        for claim in claimed.claims:
            route = self._routes[claim.route]
            route.post.active += 1
            self._metrics.set("schedule_lag_seconds", max(0, now_ms - claim.due_ms) / 1000, route=claim.route)
            task = asyncio.create_task(self._carry(claim, route, lease), name=f"digest of {claim.route}")
            self._work.add(task)
            task.add_done_callback(self._work.discard)
        if claimed.next_due_ms is None or not any(post.room for post in posts):
            return self._settings.interval_ms / 1000
        return (claimed.next_due_ms - now_ms) / 1000

    async def _carry(self, claim: Claim, route: ScheduledRoute, lease: Lease) -> None:
        try:
            await self._courier.carry(claim, route, lease)
        finally:
            route.post.active -= 1
            self.poke()

    def _sink_decided(self, post: SinkPost) -> None:
        decision = post.controller.decision
        self._metrics.set("sink_backoff_level", decision.level, sink=post.name)
        wait_s = None if decision.wake_at_s is None else round(decision.wake_at_s - time.monotonic(), 3)
        say = _log.warning if decision.state is State.PAUSED else _log.info
        if decision.reason is Reason.PROBE_LOST:
            say = _log.debug  # nothing was due meanwhile: no news
        say(
            f"scheduler.sink.{decision.state}",
            sink=post.name,
            backoff_level=decision.level,
            limit=decision.limit,
            reason=decision.reason,
            wait_s=wait_s,
        )
        self.poke()
