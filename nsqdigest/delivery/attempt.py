"""Carries one claimed timeline to its sink: opens its digest, renders it, delivers it, tells the store what became of
it.

Invariants:
- No send begins with less lease left than the sink's time-out; a lease that is another's by then ends the work,
  silently.
- Close only after the receiver accepted. Whatever a sink does becomes one outcome.
- What Redis does not do is asked of it again until the lease ends; after that maintenance brings the timeline back, and
  the same digest goes out under its own id.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from nsqdigest.backoff import State
from nsqdigest.base import log
from nsqdigest.base.errors import StoreError
from nsqdigest.base.reasons import BuryReason, Verdict
from nsqdigest.delivery import digest, ids, verdicts
from nsqdigest.delivery.sink_state import SinkHistory, why_of
from nsqdigest.delivery.sinks.base import Outcome, Parcel, Sink
from nsqdigest.store.answers import Answer, Claim, NotOpened, Opened
from nsqdigest.store.dead import Details
from nsqdigest.store.packing import first_page, next_page
from nsqdigest.store.record import Head
from nsqdigest.store.schedule import Plan, Schedule
from nsqdigest.store.store import Store

if TYPE_CHECKING:
    from nsqdigest.backoff import Controller
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Route
    from nsqdigest.config import Sink as SinkSettings

_log = log.get("scheduler")

T = TypeVar("T")

_AGAIN_FIRST_S = 0.1
_AGAIN_CAP_S = 2.0
NO_EPOCH = -1
"""Of claims that are only to be put back."""
_FENCE_GRACE_S = 5.0
"""A sink that outlives its own time-out by so much is ended from outside."""


@dataclass(slots=True)
class SinkPost:
    """A sink, its health and its work."""

    settings: SinkSettings
    sink: Sink
    controller: Controller
    health: verdicts.Health = field(init=False)
    active: int = 0
    reserved: int = 0
    """What claims under way may bring."""
    history: SinkHistory = field(default_factory=SinkHistory)

    def __post_init__(self) -> None:
        self.health = verdicts.Health(self.controller)

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def timeout_s(self) -> float:
        return self.settings.timeout_ms / 1000

    @property
    def room(self) -> int:
        return 0 if self.is_stopped else max(0, self.controller.decision.limit - self.active - self.reserved)

    @property
    def is_probing(self) -> bool:
        return self.controller.decision.state is State.PROBING

    @property
    def is_stopped(self) -> bool:
        return self.history.stopped_since_s is not None

    def admits(self, epoch: int) -> bool:
        """Whether what was claimed in this epoch is still wanted: since then the sink may have stepped back."""
        return epoch == self.controller.decision.epoch and not self.is_stopped


@dataclass(frozen=True, slots=True)
class ScheduledRoute:
    settings: Route
    plan: Plan
    post: SinkPost


class Lease:
    """How long one claim is ours, by our own clock, counted from before it was asked for."""

    def __init__(self, lease_ms: int, asked_at_s: float) -> None:
        self._lease_s = lease_ms / 1000
        self._until_s = asked_at_s + self._lease_s

    @property
    def left_s(self) -> float:
        return self._until_s - time.monotonic()

    def renewed(self, asked_at_s: float) -> None:
        self._until_s = asked_at_s + self._lease_s


@dataclass(frozen=True, slots=True)
class _Errand:
    """One digest under way."""

    claim: Claim
    route: ScheduledRoute
    lease: Lease
    opened: Opened

    @property
    def facts(self) -> Head:
        opened = self.opened
        return Head(
            id=opened.id,
            route=self.claim.route,
            timeline=self.claim.shown_timeline,
            sink=self.route.post.name,
            iteration=opened.iteration,
            opened_ms=opened.opened_ms,
            next_earliest_ms=opened.next_earliest_ms,
            first_ms=opened.first_ms,
            last_ms=opened.last_ms,
            total=opened.total,
            superseded=opened.superseded,
            dropped_capacity=opened.dropped_capacity,
        )

    @property
    def lineage(self) -> str:
        """The same for all that was merged into one another."""
        return f"{self.claim.route} {self.claim.timeline} {self.opened.since_ms}"

    @property
    def said(self) -> dict[str, Any]:
        """What every log line about it names."""
        return {
            "route": self.claim.route,
            "timeline": self.claim.shown_timeline,
            "digest": self.opened.id,
            "sink": self.route.post.name,
            "attempt": self.opened.attempt,
            "records": self.opened.total,
        }


class Courier:
    def __init__(
        self,
        store: Store,
        lease_ms: int,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
        sink_decided: Callable[[SinkPost], None],
    ) -> None:
        self._digests = store.digests
        self._dead = store.dead
        self._lease_ms = lease_ms
        self._metrics = metrics
        self._uniform = uniform
        self._sink_decided = sink_decided

    async def carry(self, claim: Claim, route: ScheduledRoute, lease: Lease, epoch: int) -> None:
        """Never raises: what goes wrong is said, and the lease brings the timeline back. The sink's controller hears of
        it once, whatever comes of it."""
        post = route.post
        if not post.admits(epoch):
            await self._fenced(claim, self._digests.defer(claim, claim.due_ms))
            return
        heard = False
        try:
            sent = await self._fenced(claim, self._attempt(claim, route, lease, epoch))
            if sent is not None:
                errand, outcome = sent
                self._metrics.add("digest_attempts_total", sink=post.name, outcome=outcome.verdict)
                # The sink's health first: while the store is told, others may ask what room there is.
                heard = True
                self._told(post, post.health.heard(outcome, errand.lineage, claim, epoch, time.monotonic()))
                await self._fenced(claim, self._conclude(errand, outcome))
        finally:
            if not heard and post.admits(epoch):
                self._told(post, post.controller.lost(epoch, time.monotonic()))

    def _told(self, post: SinkPost, decided: bool) -> None:
        if decided:
            self._sink_decided(post)

    async def _fenced(self, claim: Claim, work: Awaitable[T]) -> T | None:
        try:
            return await work
        except StoreError as error:
            self._metrics.add("store_errors_total", reason=error.reason)
            _log.counted(
                "warning",
                "scheduler.digest.left",
                by=("route", "reason"),
                route=claim.route,
                timeline=claim.shown_timeline,
                reason=error.reason,
                error=error,
            )
        except Exception as error:
            _log.error(
                "scheduler.digest.bug", route=claim.route, timeline=claim.shown_timeline, error=error, exc_info=error
            )
        return None

    async def _while_leased(self, lease: Lease, work: Callable[[], Awaitable[T]]) -> T:
        """Work that may be done again, again and again until Redis does its part of it or the lease is over."""
        wait_s = _AGAIN_FIRST_S
        while True:
            try:
                return await work()
            except StoreError:
                if lease.left_s <= wait_s:
                    raise
            await asyncio.sleep(wait_s)
            wait_s = min(_AGAIN_CAP_S, self._uniform(_AGAIN_FIRST_S, 3 * wait_s))

    # -- one digest

    async def _open(self, claim: Claim, route: ScheduledRoute, lease: Lease) -> _Errand | None:
        """May be asked again when its answer got lost: it is the same digest then, at the same attempt; or, merged with
        still newer records, another one. Nobody was told of the first."""
        now_ms, asked_at_s = self._digests.clock.now_ms(), time.monotonic()
        new_id = ids.uuid7(now_ms, secrets.randbits(ids.RANDOM_BITS))
        opened = await self._digests.open(claim, self._lease_ms, new_id, route.plan.earliest_next_ms(now_ms))
        if opened is NotOpened.EMPTY:
            return None
        if opened is NotOpened.STALE:
            self._stale(claim)
            return None
        lease.renewed(asked_at_s)
        return _Errand(claim, route, lease, opened)

    async def _attempt(
        self, claim: Claim, route: ScheduledRoute, lease: Lease, epoch: int
    ) -> tuple[_Errand, Outcome] | None:
        """Opens, renders and sends; None where nothing was sent."""
        errand = await self._while_leased(lease, lambda: self._open(claim, route, lease))
        if errand is None:
            return None
        post, opened = route.post, errand.opened
        age_ms = self._digests.clock.now_ms() - opened.since_ms
        expired = verdicts.expired(post.settings, opened.tries, age_ms)
        if expired is not None:
            await self._bury(errand, expired)
            return None
        body = await self._while_leased(lease, lambda: self._render(errand))
        if body is None:
            self._stale(claim)
            return None
        if isinstance(body, BuryReason):
            await self._bury(errand, body)
            return None
        if not post.admits(epoch):
            await self._digests.defer(claim, claim.due_ms)
            return None
        return errand, await self._send(errand, body)

    # -- before

    async def _render(self, errand: _Errand) -> bytes | BuryReason | None:
        """The body, read from the snapshot page by page until it is full, with lease enough for a send; None: it is not
        ours any more. An id that went out with records never goes out without: where Redis lost all values, it is
        buried."""
        settings, opened = errand.route.settings, errand.opened
        group = tuple(settings.group.split(".")) if settings.group else ()
        builder = digest.Builder(errand.facts, errand.route.post.settings.max_body_bytes, group)
        start = seen_bytes = missing = 0
        count = first_page(opened.total)
        while start < opened.total and not builder.is_full:
            if not await self._has_lease(errand):
                return None
            page = await self._digests.page(errand.claim, opened, start, count)
            if page is None:
                return None
            for record in page:
                if record is None:
                    missing += 1
                else:
                    seen_bytes += len(record.value)
                    builder.add(*record)
            start += len(page)
            count = next_page(start, seen_bytes, opened.total - start)
        if missing:
            _log.error("scheduler.digest.values_missing", **errand.said, missing=missing)
        if missing == start:
            return BuryReason.VALUES_LOST
        return builder.body() if await self._has_lease(errand) else None

    async def _has_lease(self, errand: _Errand) -> bool:
        """Enough for one send; renewed where it is not."""
        if errand.lease.left_s >= errand.route.post.timeout_s:
            return True
        asked_at_s = time.monotonic()
        if await self._digests.renew(errand.claim, self._lease_ms) is not Answer.DONE:
            return False
        errand.lease.renewed(asked_at_s)
        return True

    async def _send(self, errand: _Errand, body: bytes) -> Outcome:
        began_s = time.perf_counter()
        outcome = await self._fenced_send(errand, body)
        took_s = time.perf_counter() - began_s
        self._metrics.observe("delivery_seconds", took_s, sink=errand.route.post.name, outcome=outcome.verdict)
        return outcome

    async def _fenced_send(self, errand: _Errand, body: bytes) -> Outcome:
        post, claim, opened = errand.route.post, errand.claim, errand.opened
        parcel = Parcel(opened.id, claim.route, claim.shown_timeline, opened.attempt, opened.total, body)
        try:
            async with asyncio.timeout(post.timeout_s + _FENCE_GRACE_S):
                return await post.sink.deliver(parcel)
        except TimeoutError:
            return Outcome(Verdict.UNAVAILABLE, "no outcome within the time-out")
        except Exception as error:
            _log.error("scheduler.sink.bug", **errand.said, error=error, exc_info=error)
            return Outcome(Verdict.AGAIN, type(error).__name__, answer=str(error))

    # -- after

    async def _conclude(self, errand: _Errand, outcome: Outcome) -> None:
        claim, opened, post = errand.claim, errand.opened, errand.route.post
        if outcome.answer:
            _log.debug("scheduler.sink.answered", **errand.said, detail=outcome.detail, answer=outcome.answer)
        now_ms, now_s, why = self._digests.clock.now_ms(), time.time(), why_of(outcome)
        following = verdicts.after(outcome, post.settings, opened.tries + 1, now_ms - opened.since_ms, self._uniform)
        if following.step is verdicts.Step.CLOSE:
            post.history.delivered(opened.id)
            after = self._schedule_after(errand)
            answer = await self._while_leased(errand.lease, lambda: self._digests.close_digest(claim, opened.id, after))
            if answer is Answer.STALE:
                self._stale(claim)
                return
            self._count_delivered(errand)
            _log.counted("info", "scheduler.digest.delivered", by=("route", "sink"), adds=("records",), **errand.said)
        elif following.step is verdicts.Step.AGAIN:
            post.history.failed(opened.id, why, now_s, now_s + following.wait_ms / 1000)
            _log.counted(
                "warning",
                "scheduler.digest.failed",
                by=("route", "sink", "verdict"),
                adds=("records",),
                **errand.said,
                verdict=outcome.verdict,
                detail=outcome.detail,
                again_s=following.wait_ms / 1000,
            )
            await self._while_leased(errand.lease, lambda: self._digests.fail(claim, now_ms + following.wait_ms))
        elif following.step is verdicts.Step.BURY:
            assert following.reason is not None
            await self._bury(errand, following.reason, outcome)
        else:
            if not post.is_stopped:  # others of its digests were under way, too
                post.history.stopped(why, now_s)
                _log.error(
                    "scheduler.sink.stopped",
                    **errand.said,
                    detail=outcome.detail,
                    hint="the receiver answered 410 Gone: its digests wait until the daemon is restarted",
                )
            await self._while_leased(errand.lease, lambda: self._digests.defer(claim, now_ms))

    def _count_delivered(self, errand: _Errand) -> None:
        claim, opened, sink = errand.claim, errand.opened, errand.route.post.name
        # A retry is due when it is tried again; the digest was due before it was opened first.
        delay_ms = self._digests.clock.now_ms() - min(claim.due_ms, opened.since_ms)
        self._metrics.observe("digest_delay_seconds", max(0, delay_ms) / 1000, route=claim.route)
        self._metrics.observe("digest_records", opened.total)
        self._metrics.set("last_delivery_timestamp_seconds", time.time(), sink=sink)
        self._metrics.add("digests_delivered_total", sink=sink, route=claim.route)
        self._metrics.add("digest_records_delivered_total", opened.total, sink=sink, route=claim.route)

    async def _bury(self, errand: _Errand, reason: BuryReason, last: Outcome | None = None) -> None:
        claim, opened, post = errand.claim, errand.opened, errand.route.post
        after = self._schedule_after(errand)
        said = ": ".join(filter(None, (last.detail, last.answer))) if last else ""
        posts = opened.attempts + (last is not None)
        details = Details(errand.facts, reason, said, posts).encode()
        answer = await self._while_leased(errand.lease, lambda: self._digests.bury(claim, opened.id, after, details))
        if answer is Answer.STALE:
            self._stale(claim)
            return
        if reason.is_of_receiver:
            post.history.buried(opened.id, why_of(last) if last else reason, time.time())
        self._metrics.add("digests_buried_total", sink=post.name, reason=reason)
        _log.counted(
            "error",
            "scheduler.digest.buried",
            by=("route", "sink", "reason"),
            adds=("records",),
            **errand.said,
            reason=reason,
            detail=last.detail if last else "",
        )
        await self._drop_the_longest_dead(claim.partition)

    async def _drop_the_longest_dead(self, partition: int) -> None:
        for old in await self._dead.over_limit(partition):
            records = await self._dead.drop_over_limit(old)
            if not records:
                continue  # another was quicker
            self._metrics.add("dead_digests_dropped_total", sink=old.details.facts.sink)
            _log.counted(
                "error",
                "scheduler.dead.dropped",
                by=("route",),
                adds=("records",),
                digest=old.id,
                route=old.route,
                records=records,
                hint="more digests are dead than limits.dead_digests allows: the oldest is gone for good",
            )

    def _schedule_after(self, errand: _Errand) -> Schedule:
        """Of the next digest; never before the instant that this one told its receiver. Of a revived one there is no
        next: the timeline that it had for itself is empty, and is forgotten at once."""
        if errand.claim.is_revived:
            now_ms = self._digests.clock.now_ms()
            return Schedule(now_ms, now_ms)
        after = errand.route.plan.after_digest(errand.opened.iteration, self._digests.clock.now_ms())
        base_ms = max(after.base_ms, errand.opened.next_earliest_ms)
        return Schedule(base_ms, max(base_ms, after.bound_ms))

    def _stale(self, claim: Claim) -> None:
        self._metrics.add("digests_stale_total", route=claim.route)
        _log.debug("scheduler.digest.stale", route=claim.route, timeline=claim.shown_timeline)
