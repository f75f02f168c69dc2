"""The timers of delivery, one a partition: when to claim what is due, and to look after the store. Any number of
daemons side by side, no leader.

A timer sleeps until its next timeline is due, at most `interval`, and is woken when a sink has room again, or when
intake filed something that is due at once. Of the routes in which something is known to be due it claims at once. The
partition's agenda, which is one cheap command, names the others that may have something due. Where nothing is, all
timers wake at the same instants and their reads share a round trip. The agenda is trusted for a lease: then all routes
are claimed of, which puts it right where it was lost. That, and upkeep, one daemon does for all (lua/upkeep/turn.lua).

Claims go one after another, since they share the sinks' room. After ALONE_S a slow one (a server of a Cluster that
hangs) lets the others go on, and keeps no more than its partition's share of the room.

From here a claim goes to the opener, its digest to its sink's outlet, and what became of it to the finisher. None of
them waits for another: Redis claims while digests are opened, rendered, sent and ended. What bounds them is the room.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from nsqdigest.backoff import Controller, State, retry_wait_ms
from nsqdigest.base import log, tasks
from nsqdigest.base.backoff_report import report_decision
from nsqdigest.base.errors import StoreError
from nsqdigest.delivery.claims import Claims, PartitionClaims, Served, Taken
from nsqdigest.delivery.conclusions import Conclusions
from nsqdigest.delivery.leaving import Leaving
from nsqdigest.delivery.opener import Opener

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Scheduler as SchedulerSettings
    from nsqdigest.delivery.delivery import Delivery, DeliveryRoute
    from nsqdigest.delivery.outlet import Outlet
    from nsqdigest.store.store import Store

_log = log.get("scheduler")

_UPKEEP_PER_LEASE = 4
_STORE_AGAIN_FIRST_MS = 100
_STORE_AGAIN_CAP_MS = 5000
ALONE_S = 0.1
"""So long a claim keeps the others waiting; and those of some routes, one after the other, all others."""


@dataclass(slots=True)
class _Timer:
    """Of one partition."""

    claims: PartitionClaims
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    failing_since_s: float | None = None
    turned_s: float = 0.0
    """When its last turn ended, with an answer of Redis or without."""
    looked_after_s: float = 0.0
    asked_of_all_s: float = 0.0
    claims_of_all: bool = True
    """Whether its next claim is of all routes, whatever the agenda says."""
    due: set[str] = field(default_factory=set)
    """Routes in which something is known to be due."""
    short_of: set[str] = field(default_factory=set)
    """Sinks that had no room for it: it is woken when they have."""

    @property
    def partition(self) -> int:
        return self.claims.partition


class Scheduler:
    def __init__(
        self,
        settings: SchedulerSettings,
        routes: Mapping[str, DeliveryRoute],
        store: Store,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
        *,
        on_store_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._digests = store.digests
        self._metrics = metrics
        self._uniform = uniform
        self._on_store_back = on_store_back
        self._claims = Claims(Served(settings, routes), store.digests, store.holds, self._note_damage)
        self._conclusions = Conclusions(
            store.digests, store.dead, metrics, uniform, on_decision=self._on_decision, on_end=self._on_end
        )
        self._opener = Opener(store.digests, settings.lease_ms, uniform, self._conclusions)
        self._timers = [_Timer(PartitionClaims(number)) for number in range(store.digests.partitions)]
        self._timers_first = 0
        self._claiming = asyncio.Lock()
        self._leaving = Leaving()
        self._draining = False
        self._is_started = False
        self._longer_lease = 0, 0.0
        """Of the settings before, and until when."""
        self.tasks = tasks.Tasks()
        self._phase_s = uniform(0, settings.interval_ms / 1000)
        """Of the instants at which idle timers wake: another one in each daemon."""

    @property
    def outlets(self) -> list[Outlet]:
        return self._claims.served.outlets

    @property
    def _settings(self) -> SchedulerSettings:
        return self._claims.served.settings

    @property
    def _routes(self) -> Mapping[str, DeliveryRoute]:
        return self._claims.served.routes

    @property
    def paused_routes(self) -> frozenset[str]:
        return frozenset(self._claims.paused_routes)

    @property
    def failing_since_s(self) -> float | None:
        """Since when some partition does not answer as it should."""
        return min((t.failing_since_s for t in self._timers if t.failing_since_s is not None), default=None)

    @property
    def turned_s(self) -> float:
        """When the slowest timer last ended a turn."""
        return min(timer.turned_s for timer in self._timers)

    def start(self) -> None:
        self._is_started = True
        for timer in self._timers:
            timer.turned_s = time.monotonic()
        self._start_outlets()
        for timer in self._timers:
            self.tasks.start(self._run(timer), f"scheduler of partition {timer.partition}")

    def _start_outlets(self) -> None:
        for outlet in self.outlets:
            outlet.on_room = partial(self._on_room, outlet)
            outlet.start(self._opener.render, self._conclusions, self._metrics)

    def change(
        self, settings: SchedulerSettings, routes: Mapping[str, DeliveryRoute], leaving: Iterable[Outlet]
    ) -> None:
        """From the next claim on. `leaving`: outlets that nobody has any more; what they hold ends as it would have.
        What is under way of a route that stays is due next by the route's present policy."""
        for outlet in leaving:
            self._leaving.add(outlet, self._longest_lease_ms() / 1000)
        for name, before in self._routes.items():
            if name in routes:
                before.plan = routes[name].plan
        longest_ms = self._longest_lease_ms()
        if settings.lease_ms < longest_ms:
            self._longer_lease = longest_ms, time.monotonic() + longest_ms / 1000
        self._claims.served = Served(settings, routes)
        self._claims.paused_routes &= routes.keys()
        self._opener.lease_ms = settings.lease_ms
        if self._is_started:
            self._start_outlets()
        for timer in self._timers:
            timer.claims_of_all = True
        self.wake()

    def _longest_lease_ms(self) -> int:
        """Of leases that this daemon has given and that are not over yet."""
        lease_ms, until_s = self._longer_lease
        return max(self._settings.lease_ms, lease_ms if time.monotonic() < until_s else 0)

    def wake(self) -> None:
        """Something may be due now, or there is room again."""
        for timer in self._timers:
            timer.woken.set()

    def on_due(self, places: Iterable[tuple[str, int]]) -> None:
        """In these routes and partitions a timeline is due now."""
        for route, partition in places:
            self._timers[partition].due.add(route)
            self._timers[partition].woken.set()

    # -- what an operator asks for: each returns whether it is new

    def pause_sink(self, name: str) -> bool:
        return self._control(name, Controller.pause)

    def resume_sink(self, name: str) -> bool:
        outlet = self._outlet(name)
        return outlet.controller.decision.state is State.PAUSED and self._control(name, Controller.resume)

    def _control(self, name: str, change: Callable[[Controller, float], bool]) -> bool:
        outlet = self._outlet(name)
        if not change(outlet.controller, time.monotonic()):
            return False
        self._on_decision(outlet)
        return True

    def _outlet(self, name: str) -> Outlet:
        return next(outlet for outlet in self.outlets if outlet.name == name)

    def pause_route(self, name: str) -> bool:
        is_new = name not in self._claims.paused_routes
        self._claims.paused_routes.add(name)
        return is_new

    def resume_route(self, name: str) -> bool:
        is_new = name in self._claims.paused_routes
        self._claims.paused_routes.discard(name)
        self.wake()
        return is_new

    # -- the end

    async def drain(self, until_s: float) -> None:
        """Claims nothing more. What waits goes back unsent; what is being claimed, sent or concluded has until then."""
        self._draining = True
        self.wake()
        for outlet in self.outlets:
            outlet.put_back_ready()  # now, not after a server that hangs has taken all of the time
        if timers := list(self.tasks):
            # Cut off, a claim would leave timelines leased with nobody to deliver them.
            await asyncio.wait(timers, timeout=max(0.0, until_s - time.monotonic()))
        await self.tasks.stop()
        await self._opener.quiet(max(0.0, until_s - time.monotonic()))
        await self._opener.stop()
        await self._leaving.stop_waiting()
        outlets = [*self.outlets, *self._leaving.outlets]
        for outlet in outlets:
            outlet.stop_taking()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                while self._is_busy(outlets):
                    for outlet in outlets:
                        await outlet.quiet()
                    for finisher in self._conclusions.finishers:
                        await finisher.quiet()
        for outlet in outlets:
            await outlet.stop()
        for finisher in self._conclusions.finishers:
            await finisher.stop()
        await self._conclusions.stop()
        await self._leaving.close()

    def _is_busy(self, outlets: Iterable[Outlet]) -> bool:
        return any(outlet.sending for outlet in outlets) or any(
            finisher.is_busy for finisher in self._conclusions.finishers
        )

    # -- the timers

    async def _run(self, timer: _Timer) -> None:
        while not self._draining:
            timer.woken.clear()
            try:
                wait_s = await self._turn_once(timer)
                self._answered(timer)
            except StoreError as error:
                wait_s = self._failed(timer, error)
                # What else goes on in the daemon wakes often. Where Redis fails that is no reason to ask at once.
                await asyncio.sleep(_STORE_AGAIN_FIRST_MS / 1000)
            timer.turned_s = time.monotonic()
            # Being woken ends the wait after a failure too: that intake stored something says that Redis is back.
            if wait_s > 0 and not timer.woken.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._wake_at_s(timer, wait_s)):
                        await timer.woken.wait()
            else:
                await asyncio.sleep(0)

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
        return retry_wait_ms(timer.failures, _STORE_AGAIN_FIRST_MS, _STORE_AGAIN_CAP_MS, self._uniform) / 1000

    async def _turn_once(self, timer: _Timer) -> float:
        """One look at a partition. Returns how long nothing will be due there."""
        now_s = time.monotonic()
        for outlet in self.outlets:
            if outlet.controller.tick(now_s):
                self._on_decision(outlet)
        if now_s - timer.looked_after_s >= self._settings.lease_ms / 1000 / _UPKEEP_PER_LEASE:
            await self._look_after(timer)
            timer.looked_after_s = now_s
        await self._take_lost(timer, now_s)
        wait_s = self._settings.interval_ms / 1000
        for outlet in self.outlets:
            if outlet.controller.decision.wake_at_s is not None:
                wait_s = min(wait_s, outlet.controller.decision.wake_at_s - now_s)
        if not self._draining:
            wait_s = min(wait_s, await self._claim(timer))
        return max(0.0, wait_s)

    async def _take_lost(self, timer: _Timer, now_s: float) -> None:
        lost = await self._claims.take_lost(timer.claims, now_s)
        if lost:
            _log.info("scheduler.claim.found", timelines=len(lost), partition=timer.partition)
            self._opener.begin(timer.partition, lost)

    async def _look_after(self, timer: _Timer) -> None:
        upkeep, routes = self._store.upkeep, list(self._routes)
        has_turn = await self._has_turn(timer.partition, "upkeep", self._settings.lease_ms // _UPKEEP_PER_LEASE)
        went_back_ms = upkeep.went_back_ms(timer.partition)
        if went_back_ms:
            _log.counted("warning", "scheduler.store.clock_went_back", by=(), by_s=went_back_ms / 1000)
        if has_turn:
            self._conclusions.limit_dead(timer.partition)
        if has_turn or went_back_ms or not upkeep.is_census_done(timer.partition, routes):
            await self._maintain(timer)

    async def _has_turn(self, partition: int, work: str, every_ms: int) -> bool:
        try:
            return await self._store.upkeep.has_turn(partition, work, list(self._routes), every_ms)
        except StoreError as error:
            if not error.is_damage:
                raise
            self._note_damage(partition, "", error)
            return True

    async def _maintain(self, timer: _Timer) -> None:
        done = await self._store.upkeep.maintain(timer.partition, list(self._routes), self._longest_lease_ms())
        if done.ran_out:
            _log.warning("scheduler.lease.ran_out", timelines=done.ran_out, partition=timer.partition)
        for kind, repaired in done.repairs().items():
            self._metrics.add("store_repairs_total", repaired, kind=kind)
            _log.warning("scheduler.store.repaired", kind=kind, number=repaired, partition=timer.partition)
        for route, error in done.damaged.items():
            self._note_damage(timer.partition, route, error)

    def _note_damage(self, partition: int, route: str, error: StoreError) -> None:
        self._metrics.add("store_errors_total", reason=error.reason)
        _log.counted(
            "error",
            "scheduler.store.damaged",
            by=("route",),
            route=route,
            partition=partition,
            error=error,
            hint="look for keys of this route that something else wrote; other routes go on",
        )

    async def _claim(self, timer: _Timer) -> float:
        """Claims what there is room for. Returns in how many seconds this partition has more."""
        now_s, interval_ms = time.monotonic(), self._settings.interval_ms
        self._refuse_without_ends(timer)
        timer.short_of.clear()
        self._note_short(timer)
        if not self._has_room:
            return interval_ms / 1000
        agenda = await self._agenda_beside_claim(timer)
        if (damage := self._digests.exempt_damage.get(timer.partition)) is not None:
            self._note_damage(timer.partition, "", damage)
        now_ms = self._digests.now_ms()
        if now_s - timer.asked_of_all_s >= self._settings.lease_ms / 1000:
            timer.claims_of_all |= await self._has_turn(timer.partition, "claim of all", self._settings.lease_ms)
            timer.asked_of_all_s = now_s
        mine = {name: due_ms for name, due_ms in agenda.items() if name in self._routes}
        due = {name for name, due_ms in mine.items() if due_ms <= now_ms}
        timer.due.update(name for name in due if not self._routes[name].outlet.room)
        names = [name for name in self._routes if timer.claims_of_all or name in due]
        later_ms = [due_ms for name, due_ms in mine.items() if name not in names and self._routes[name].outlet.room]
        wait_s = (min(later_ms, default=now_ms + interval_ms) - now_ms) / 1000
        if names:
            wait_s = min(wait_s, await self._claim_of(timer, names))
        timer.claims_of_all = False
        self._refuse_without_ends(timer)
        return wait_s

    def _refuse_without_ends(self, timer: _Timer) -> None:
        """Raises the error of Redis if it ends no digest, unless a trial may begin."""
        finisher = self._conclusions.finishers[timer.partition]
        timer.claims.is_trial = finisher.error is not None
        if finisher.error is not None and not finisher.may_claim(time.monotonic()):
            raise finisher.error

    async def _agenda_beside_claim(self, timer: _Timer) -> Mapping[str, int]:
        """What is known to be due need not wait for the agenda."""
        agenda = self._digests.agenda(timer.partition, self._settings.interval_ms)
        if not timer.due:
            return await agenda
        names = [name for name in self._routes if name in timer.due]
        timer.due.clear()
        claimed, looked = await asyncio.gather(self._claim_of(timer, names), agenda, return_exceptions=True)
        if isinstance(claimed, BaseException):
            raise claimed
        if isinstance(looked, BaseException):
            raise looked
        return looked

    async def _claim_of(self, timer: _Timer, names: Sequence[str]) -> float:
        """And goes on while there is something due and room for it, but not for long: others may be due by now. What is
        claimed is opened meanwhile. Returns in how many seconds there is more."""
        interval_s, until_s = self._settings.interval_ms / 1000, time.monotonic() + ALONE_S
        while not self._draining:
            self._refuse_without_ends(timer)
            taken = await self._alone(timer, names)
            self._opener.begin(timer.partition, taken.deliveries)
            if timer.claims.is_trial and taken.deliveries:
                finisher = self._conclusions.finishers[timer.partition]
                finisher.trial_began(time.monotonic() + self._settings.lease_ms / 1000)
            wait_s = interval_s
            if taken.next_due_ms is not None:
                wait_s = (taken.next_due_ms - self._digests.now_ms()) / 1000
            if wait_s <= 0:
                timer.due.update(names)
            if not self._has_room:
                return interval_s
            if wait_s > 0 or not taken.deliveries or timer.claims.is_trial or time.monotonic() >= until_s:
                return wait_s
        return interval_s

    @property
    def _has_room(self) -> bool:
        """Whether any sink has. One that has room again wakes the timers that it was short of."""
        return any(outlet.room for outlet in self.outlets)

    async def _alone(self, timer: _Timer, names: Sequence[str]) -> Taken:
        await self._claiming.acquire()
        self._note_short(timer)
        release = contextlib.ExitStack()
        release.callback(self._claiming.release)
        alone = asyncio.get_running_loop().call_later(ALONE_S, release.close)
        try:
            return await self._claims.take(timer.claims, names)
        finally:
            alone.cancel()
            release.close()
            self._note_short(timer)
            for outlet in self.outlets:  # what was reserved is free again
                self._wake_short_of(outlet)

    def _note_short(self, timer: _Timer) -> None:
        timer.short_of.update(outlet.name for outlet in self.outlets if not outlet.room)

    def _wake_short_of(self, outlet: Outlet) -> None:
        if outlet.room:
            for timer in self._timers:
                if outlet.name in timer.short_of:
                    timer.woken.set()

    def _on_room(self, outlet: Outlet) -> None:
        """There may be room for one alone: another partition is first each time."""
        self._timers_first = (self._timers_first + 1) % len(self._timers)
        for timer in (*self._timers[self._timers_first :], *self._timers[: self._timers_first]):
            if outlet.name in timer.short_of:
                timer.woken.set()

    # -- what comes back

    def _on_decision(self, outlet: Outlet) -> None:
        report_decision(_log, self._metrics, "scheduler.sink", outlet.controller, sink=outlet.name)
        outlet.on_decision()
        self.wake()

    def _on_end(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing of them is under way any more: there is room, and they may be due again soon."""
        ended = Counter([delivery.outlet for delivery in deliveries])
        for outlet, count in ended.items():
            outlet.held -= count
        for partition in {delivery.claim.partition for delivery in deliveries}:
            self._timers[partition].woken.set()
        for outlet in ended:
            self._wake_short_of(outlet)
