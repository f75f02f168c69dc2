"""The timer: claims timelines that are due and has each carried to its sink. Any number of daemons side by side, no
leader.

As many timelines are claimed as their sink has room for now; while a sink is known to be down nothing of it is claimed
but a probe. Each partition has a timer of its own: it sleeps until its next timeline is due, at most `interval`, and is
poked when something is due at once.

A timer looks at the partition's agenda, which is one cheap read, and claims only of the routes that may have something
due. Where nothing is, all timers wake at the same instants and their reads share a round trip. The agenda is trusted
for a lease: then all routes are claimed of, which puts it right where it was lost.

Claims go one after another, since they share the sinks' room. But a server of a Cluster that hangs holds up nobody for
long: whoever waits longer lets the others go on, keeping no more than its partition's share of the room; and no claim
is sent before the agenda was heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from nsqdigest.backoff import Controller, State, retry_wait_ms
from nsqdigest.base import log, tasks
from nsqdigest.base.backoff_report import report_decision
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.delivery import verdicts
from nsqdigest.delivery.attempt import NO_EPOCH, Courier, Lease, ScheduledRoute, SinkPost
from nsqdigest.store.answers import Claimed
from nsqdigest.store.damage import one_by_one

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Scheduler as SchedulerSettings
    from nsqdigest.store.answers import Claim
    from nsqdigest.store.timelines import Timelines

_log = log.get("scheduler")

_MAINTENANCE_PER_LEASE = 4
_STORE_AGAIN_FIRST_MS = 100
_STORE_AGAIN_CAP_MS = 5000
_ALONE_S = 0.1
"""So long a claim keeps the others waiting."""


class _Unheard(NamedTuple):
    """A claim whose answer got lost."""

    token: str
    until_s: float


class _Look(NamedTuple):
    """How a sink stood when a claim was made for it. By the time of the answer it may stand otherwise."""

    post: SinkPost
    is_probe: bool
    epoch: int


@dataclass(slots=True)
class _Timer:
    """Of one partition."""

    partition: int
    poked: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    failing_since_s: float | None = None
    maintained_s: float = 0.0
    claimed_of_all_s: float = 0.0
    unheard: list[_Unheard] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)
    """Routes that are claimed of by calls of their own, since a call failed at their keys."""
    released_s: float = 0.0


class Scheduler:
    def __init__(
        self,
        settings: SchedulerSettings,
        routes: Mapping[str, ScheduledRoute],
        store: Timelines,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
        *,
        on_store_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._store = store
        self._metrics = metrics
        self._uniform = uniform
        self._on_store_back = on_store_back
        self._courier = Courier(store, settings.lease_ms, metrics, uniform, self._sink_decided)
        self._timers = [_Timer(partition) for partition in range(store.partitions)]
        self._claiming = asyncio.Lock()
        self._draining = False
        self._work: set[asyncio.Task[None]] = set()
        self.tasks: list[asyncio.Task[None]] = []
        self._paused_routes: set[str] = set()
        self._turn = 0
        self._phase_s = uniform(0, settings.interval_ms / 1000)
        """Of the instants at which idle timers wake: another one in each daemon."""

    @property
    def posts(self) -> list[SinkPost]:
        return list({id(route.post): route.post for route in self._routes.values()}.values())

    @property
    def paused_routes(self) -> frozenset[str]:
        return frozenset(self._paused_routes)

    @property
    def failing_since_s(self) -> float | None:
        """Since when some partition does not answer as it should."""
        return min((t.failing_since_s for t in self._timers if t.failing_since_s is not None), default=None)

    def start(self) -> None:
        self.tasks = [
            tasks.start(self._run(timer), f"scheduler of partition {timer.partition}") for timer in self._timers
        ]

    def poke(self) -> None:
        """Something is due now, or there is room again."""
        for timer in self._timers:
            timer.poked.set()

    # -- the operator's word: answers whether it is new

    def pause_sink(self, name: str) -> bool:
        return self._tell(name, Controller.pause)

    def resume_sink(self, name: str) -> bool:
        post = self._post(name)
        return post.controller.decision.state is State.PAUSED and self._tell(name, Controller.resume)

    def _tell(self, name: str, word: Callable[[Controller, float], bool]) -> bool:
        post = self._post(name)
        if not word(post.controller, time.monotonic()):
            return False
        self._sink_decided(post)
        return True

    def _post(self, name: str) -> SinkPost:
        return next(post for post in self.posts if post.name == name)

    def pause_route(self, name: str) -> bool:
        is_new = name not in self._paused_routes
        self._paused_routes.add(name)
        return is_new

    def resume_route(self, name: str) -> bool:
        is_new = name in self._paused_routes
        self._paused_routes.discard(name)
        self.poke()
        return is_new

    # -- the end

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

    async def _run(self, timer: _Timer) -> None:
        while not self._draining:
            timer.poked.clear()
            try:
                wait_s = await self._turn_once(timer)
                self._answered(timer)
            except StoreError as error:
                wait_s = self._failed(timer, error)
                # What else goes on in the daemon pokes often. Where Redis fails that is no reason to ask at once.
                await asyncio.sleep(_STORE_AGAIN_FIRST_MS / 1000)
            # A poke ends the wait after a failure too: that intake stored something says that Redis is back.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._wake_at_s(timer, wait_s)):
                    await timer.poked.wait()

    def _wake_at_s(self, timer: _Timer, wait_s: float) -> float:
        """By the loop's clock. Who has nothing to do before wakes together with the others."""
        now_s, interval_s = asyncio.get_running_loop().time(), self._settings.interval_ms / 1000
        if timer.failures:
            return now_s + wait_s
        together_s = ((now_s - self._phase_s) // interval_s + 1) * interval_s + self._phase_s
        return min(now_s + wait_s, together_s)

    def _answered(self, timer: _Timer) -> None:
        timer.failures = 0
        since_s, timer.failing_since_s = timer.failing_since_s, None
        if since_s is not None and self.failing_since_s is None:
            _log.info("scheduler.store.back", after_s=round(time.monotonic() - since_s, 1))
            self._on_store_back()

    def _failed(self, timer: _Timer, error: StoreError) -> float:
        """Returns how long to wait."""
        if self.failing_since_s is None:
            _log.warning("scheduler.store.failed", reason=error.reason, error=error, partition=timer.partition)
        timer.failures += 1
        timer.failing_since_s = timer.failing_since_s or time.monotonic()
        self._metrics.add("store_errors_total", reason=error.reason)
        wait_ms = retry_wait_ms(timer.failures, _STORE_AGAIN_FIRST_MS, _STORE_AGAIN_CAP_MS, self._uniform)
        return wait_ms / 1000

    async def _turn_once(self, timer: _Timer) -> float:
        """One look at a partition. Returns how long nothing will be due there."""
        now_s = time.monotonic()
        for post in self.posts:
            if post.controller.tick(now_s):
                self._sink_decided(post)
        if now_s - timer.maintained_s >= self._settings.lease_ms / 1000 / _MAINTENANCE_PER_LEASE:
            await self._maintain(timer)
            timer.maintained_s = now_s
        await self._release_unheard(timer, now_s)
        wait_s = self._settings.interval_ms / 1000
        for post in self.posts:
            if post.controller.decision.wake_at_s is not None:
                wait_s = min(wait_s, post.controller.decision.wake_at_s - now_s)
        if not self._draining:
            wait_s = min(wait_s, await self._claim(timer))
        return max(0.0, wait_s)

    async def _release_unheard(self, timer: _Timer, now_s: float) -> None:
        """Brings back what claims took whose answers got lost, instead of waiting for their leases to run out.

        Such a claim may even be carried out later than this asks (a stopped Redis finds it in its socket), so it is
        asked again until something came back or the lease is over anyway.
        """
        if not timer.unheard or now_s - timer.released_s < self._settings.interval_ms / 1000:
            return
        timer.released_s = now_s
        for unheard in list(timer.unheard):
            returned = await self._store.release(timer.partition, list(self._routes), unheard.token)
            if returned:
                _log.info("scheduler.claim.released", timelines=returned, partition=timer.partition)
            if returned or now_s >= unheard.until_s:
                timer.unheard.remove(unheard)

    async def _maintain(self, timer: _Timer) -> None:
        done = await self._store.maintenance(timer.partition, list(self._routes), self._settings.lease_ms)
        if done.ran_out:
            _log.warning("scheduler.lease.ran_out", timelines=done.ran_out, partition=timer.partition)
        for kind, repaired in done.repairs().items():
            self._metrics.add("store_repairs_total", repaired, kind=kind)
            _log.warning("scheduler.store.repaired", kind=kind, number=repaired, partition=timer.partition)
        for route, error in done.damaged.items():
            self._say_damaged(timer, route, error)

    def _say_damaged(self, timer: _Timer, route: str, error: StoreError) -> None:
        self._metrics.add("store_errors_total", reason=error.reason)
        _log.counted(
            "error",
            "scheduler.store.damaged",
            by=("route",),
            route=route,
            partition=timer.partition,
            error=error,
            hint="look for keys of this route that something else wrote; other routes go on",
        )

    async def _claim(self, timer: _Timer) -> float:
        """Claims what there is room for. Answers in how many seconds this partition has more."""
        now_s, interval_ms = time.monotonic(), self._settings.interval_ms
        agenda = await self._store.agenda(timer.partition, interval_ms)
        now_ms = self._store.clock.now_ms()
        of_all = now_s - timer.claimed_of_all_s >= self._settings.lease_ms / 1000
        mine = {name: due_ms for name, due_ms in agenda.items() if name in self._routes}
        names = [name for name in self._routes if of_all or mine.get(name, now_ms + 1) <= now_ms]
        later_ms = [due_ms for name, due_ms in mine.items() if name not in names and self._routes[name].post.room]
        wait_s = (min(later_ms, default=now_ms + interval_ms) - now_ms) / 1000
        if not names:
            return wait_s
        await self._claiming.acquire()
        let_go = contextlib.ExitStack()
        let_go.callback(self._claiming.release)
        alone = asyncio.get_running_loop().call_later(_ALONE_S, let_go.close)
        try:
            wait_s = min(wait_s, await self._claim_of(timer, names))
        finally:
            alone.cancel()
            let_go.close()
        if of_all:
            timer.claimed_of_all_s = now_s
        return wait_s

    async def _claim_of(self, timer: _Timer, names: list[str]) -> float:
        posts = [post for post in self.posts if post.room > 0]
        numbers = {id(post): number for number, post in enumerate(posts)}
        names = [name for name in names if id(self._routes[name].post) in numbers and name not in self._paused_routes]
        if not names or self._draining:
            return self._settings.interval_ms / 1000
        self._turn += 1  # another route is first each time, so that none of a sink's routes takes all its room
        names = names[self._turn % len(names) :] + names[: self._turn % len(names)]
        routes = {name: numbers[id(self._routes[name].post)] for name in names}
        looks = [_Look(post, post.is_probing, post.controller.decision.epoch) for post in posts]
        asked_at_s = time.monotonic()
        claimed = await self._ask_all(timer, looks, routes)
        now_s, now_ms = time.monotonic(), self._store.clock.now_ms()
        for look in looks:
            theirs = [claim for claim in claimed.claims if self._routes[claim.route].post is look.post]
            if look.is_probe and theirs:
                probe, others = verdicts.choose_probe(theirs, look.post.health.failed_last)
                look.post.controller.began(look.epoch, now_s, asked_at_s + self._settings.lease_ms / 1000)
                self._begin([probe], asked_at_s, look.epoch)
                self._begin(others, asked_at_s, NO_EPOCH)
            else:
                self._begin(theirs, asked_at_s, look.epoch)
        if claimed.next_due_ms is None or not any(post.room for post in posts):
            return self._settings.interval_ms / 1000
        return (claimed.next_due_ms - now_ms) / 1000

    async def _ask_all(self, timer: _Timer, looks: Sequence[_Look], routes: Mapping[str, int]) -> Claimed:
        """Of the routes, each with the number of its look. In one call, but for routes whose keys are damaged."""
        budgets = [self._budget(look) for look in looks]
        for look, budget in zip(looks, budgets, strict=True):
            look.post.reserved += budget
        room = budgets.copy()

        async def claim_of(names: Sequence[str]) -> Claimed:
            claimed = await self._ask(timer, [(name, routes[name]) for name in names], room)
            for claim in claimed.claims:
                room[routes[claim.route]] -= 1
            return claimed

        try:
            sound = [name for name in routes if name not in timer.damaged]
            suspect = [[name] for name in routes if name in timer.damaged]
            timer.damaged.difference_update(routes)
            claimed, errors = list[Claimed](), dict[str, StoreError]()
            for some in filter(None, [sound, *suspect]):
                done, damaged = await one_by_one(some, claim_of)
                claimed += done
                errors |= damaged
        finally:
            for look, budget in zip(looks, budgets, strict=True):
                look.post.reserved -= budget
        timer.damaged.update(errors)
        for route, error in errors.items():
            self._say_damaged(timer, route, error)
            if len(timer.damaged) == len(self._routes):
                raise error
        due_ms = [each.next_due_ms for each in claimed if each.next_due_ms is not None]
        return Claimed([claim for each in claimed for claim in each.claims], min(due_ms, default=None))

    async def _ask(self, timer: _Timer, routes: Sequence[tuple[str, int]], budgets: Sequence[int]) -> Claimed:
        token = uuid4().hex
        try:
            return await self._store.claim(timer.partition, routes, budgets, self._settings.lease_ms, token)
        except StoreError as error:
            if error.applied is Applied.AMBIGUOUS and any(budgets) and not (error.is_damage and len(routes) == 1):
                timer.unheard.append(_Unheard(token, time.monotonic() + self._settings.lease_ms / 1000))
            raise

    def _budget(self, look: _Look) -> int:
        if look.is_probe:
            return 2  # the probe is chosen out of two, so that it need not be the digest that failed last
        return min(-(-look.post.room // len(self._timers)), self._settings.batch)

    def _begin(self, claims: Iterable[Claim], asked_at_s: float, epoch: int) -> None:
        for claim in claims:
            route = self._routes[claim.route]
            route.post.active += 1
            lease = Lease(self._settings.lease_ms, asked_at_s)  # of this claim alone: so are its renewals
            task = tasks.start(self._carry(claim, route, lease, epoch), f"digest of {claim.route}")
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _carry(self, claim: Claim, route: ScheduledRoute, lease: Lease, epoch: int) -> None:
        try:
            await self._courier.carry(claim, route, lease, epoch)
        finally:
            was_full = route.post.room == 0
            route.post.active -= 1
            self._timers[claim.partition].poked.set()  # it may be due again soon: a retry
            if was_full:
                self.poke()

    def _sink_decided(self, post: SinkPost) -> None:
        report_decision(_log, self._metrics, "scheduler.sink", post.controller, sink=post.name)
        self.poke()
