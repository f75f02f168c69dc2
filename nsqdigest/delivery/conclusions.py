"""After a digest was sent, or could not be: decides what follows, ends it in the store, counts and logs it.

The decision is `verdicts`'; the sink's health takes in an outcome before the store does: meanwhile others may ask what
room there is. What Redis then answers is counted for all digests of a call at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base import log, tasks
from nsqdigest.base.errors import StoreError
from nsqdigest.base.reasons import NOTHING_SENT, BuryReason, Verdict
from nsqdigest.delivery import verdicts
from nsqdigest.delivery.delivery import Delivery, NextSchedules
from nsqdigest.delivery.finisher import Finisher, Result
from nsqdigest.store.answers import Ended
from nsqdigest.store.damage import ANOTHER_TYPE
from nsqdigest.store.dead import Details
from nsqdigest.store.digests import End, Ending

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.delivery.outlet import Outlet
    from nsqdigest.delivery.sinks.base import Outcome
    from nsqdigest.store.dead import Dead, DeadStore
    from nsqdigest.store.digests import Digests

_log = log.get("scheduler")

SUMMARY_EVERY_S = 10.0
DROPPED_PER_TURN = 2000
"""Dead digests beyond the limit, of one partition: a limit that was lowered takes many turns."""


class Conclusion(NamedTuple):
    """What the store is to do of a delivery, and what it came from."""

    delivery: Delivery
    ending: Ending
    outcome: Outcome | None = None
    """None: it was not sent."""
    reason: BuryReason | None = None


_as_conclusion = tuple.__new__


def _closed(delivery: Delivery, outcome: Outcome, following: NextSchedules) -> Conclusion:
    ending = Ending.close(delivery.claim, delivery.opened.id, following.after(delivery))
    return _as_conclusion(Conclusion, (delivery, ending, outcome, None))


class Conclusions:
    def __init__(
        self,
        digests: Digests,
        dead: DeadStore,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
        *,
        on_decision: Callable[[Outlet], None],
        on_end: Callable[[Sequence[Delivery]], None],
    ) -> None:
        """`on_decision`: the controller of this sink decided anew; `on_end`: nothing of these deliveries is under way
        any more."""
        self._digests = digests
        self._dead = dead
        self._metrics = metrics
        self._uniform = uniform
        self._on_decision = on_decision
        self._on_end = on_end
        self._finishers = [
            Finisher(digests, partition, uniform, self._count, self.limit_dead)
            for partition in range(digests.partitions)
        ]
        self._dropping: dict[int, asyncio.Task[None]] = {}
        """By partition: what drops the longest dead, beside everything else."""

    @property
    def finishers(self) -> Sequence[Finisher]:
        return self._finishers

    async def stop(self) -> None:
        """What was not dropped from the dead store by now is left to the next turn."""
        for task in self._dropping.values():
            task.cancel()
        await asyncio.gather(*self._dropping.values(), return_exceptions=True)

    # -- what becomes of a delivery

    def left(self, delivery: Delivery) -> None:
        """The lease brings it back."""
        if not delivery.is_concluded:
            delivery.is_concluded = True
            self._lose_probe(delivery)
            self._on_end([delivery])

    def stale(self, delivery: Delivery) -> None:
        """Not ours any more."""
        self._note_stale(delivery)
        self.left(delivery)

    def unread(self, delivery: Delivery, error: StoreError) -> None:
        """Redis did not open or read it."""
        self._note_left(delivery, error)
        self.left(delivery)

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Unsent, due as before; no attempt is counted."""
        for delivery in deliveries:
            delivery.is_concluded = True
            self._lose_probe(delivery)
        self._put([Conclusion(each, Ending.wait(each.claim, each.claim.due_ms, 0)) for each in deliveries])

    def bury(self, delivery: Delivery, reason: BuryReason) -> None:
        """Without another attempt."""
        delivery.is_concluded = True
        self._lose_probe(delivery)
        self._put([self._burial(delivery, reason, None)])

    def sent(self, results: Sequence[tuple[Delivery, Outcome]]) -> None:
        """Reports each to the sink's controller once, before its end goes to the store."""
        following = NextSchedules(self._digests.now_ms())
        conclude = self._concluded
        if {outcome.verdict for _, outcome in results} == {Verdict.DELIVERED}:
            self._note_success([delivery for delivery, _ in results])
            conclude = _closed
        conclusions = []
        for delivery, outcome in results:
            try:
                conclusions.append(conclude(delivery, outcome, following))
                delivery.is_concluded = True
            except Exception as error:
                _log.error("scheduler.digest.bug", **delivery.log_fields, error=error, exc_info=error)
                self.left(delivery)
        self._put(conclusions)

    def _note_success(self, delivered: Sequence[Delivery]) -> None:
        """Of a batch, all of which was accepted."""
        now_s = time.monotonic()
        claimed = [(each.outlet, each.epoch) for each in delivered]
        for outlet, epoch in set(claimed):
            outlet.history.delivered([each.opened.id for each in delivered if each.outlet is outlet])
            if outlet.health.delivered(epoch, now_s, claimed.count((outlet, epoch))):
                self._on_decision(outlet)

    def _lose_probe(self, delivery: Delivery) -> None:
        """Nothing was learnt of the sink."""
        outlet = delivery.outlet
        if outlet.admits(delivery.epoch) and outlet.controller.lost(delivery.epoch, time.monotonic()):
            self._on_decision(outlet)

    def _put(self, conclusions: Sequence[Conclusion]) -> None:
        by_partition: dict[int, list[Conclusion]] = defaultdict(list)
        for conclusion in conclusions:
            by_partition[conclusion.delivery.claim.partition].append(conclusion)
        for partition, theirs in by_partition.items():
            self._finishers[partition].put(theirs)

    # -- the decision

    def _concluded(self, delivery: Delivery, outcome: Outcome, following: NextSchedules) -> Conclusion:
        claim, head, outlet, now_ms = delivery.claim, delivery.opened, delivery.outlet, following.now_ms
        if outlet.health.observe(outcome, delivery, time.monotonic()):
            self._on_decision(outlet)
        if outcome.verdict is Verdict.DELIVERED:
            outlet.history.delivered([head.id])
            return _closed(delivery, outcome, following)
        if outcome.answer:
            _log.debug("scheduler.sink.answered", **delivery.log_fields, detail=outcome.cause, answer=outcome.answer)
        step = verdicts.after(outcome, outlet.settings, head.tries + 1, now_ms - head.since_ms, self._uniform)
        if step.step is verdicts.Step.BURY:
            assert step.reason is not None
            return self._burial(delivery, step.reason, outcome)
        if step.step is verdicts.Step.AGAIN:
            self._note_failure(delivery, outcome, step.wait_ms)
            posts = int(outcome.verdict not in NOTHING_SENT)
            return Conclusion(delivery, Ending.wait(claim, now_ms + step.wait_ms, posts), outcome)
        self._note_stop(delivery, outcome)
        return Conclusion(delivery, Ending.wait(claim, now_ms, 0), outcome)

    def _burial(self, delivery: Delivery, reason: BuryReason, last: Outcome | None) -> Conclusion:
        head, (route, timeline, sink) = delivery.opened, delivery.names
        was_posted = last is not None and last.verdict not in NOTHING_SENT
        head = head._replace(attempts=head.attempts + was_posted)
        cause, answer, status = (last.cause, last.answer, last.status or 0) if last else ("", "", 0)
        details = Details(head, route, timeline, sink, reason, cause, answer, status).encode()
        after = delivery.schedule_after(self._digests.now_ms())
        return Conclusion(delivery, Ending.bury(delivery.claim, head.id, after, details), last, reason)

    def _note_failure(self, delivery: Delivery, outcome: Outcome, wait_ms: int) -> None:
        now_s = time.time()
        delivery.outlet.history.failed(
            delivery.opened.id, outcome.why, now_s, now_s + wait_ms / 1000, is_of_sink=outcome.is_of_sink
        )
        _log.counted(
            "warning",
            "scheduler.digest.failed",
            by=("route", "sink", "verdict"),
            adds=("records",),
            **delivery.log_fields,
            verdict=outcome.verdict,
            detail=outcome.cause,
            again_s=wait_ms / 1000,
        )

    def _note_stop(self, delivery: Delivery, outcome: Outcome) -> None:
        outlet = delivery.outlet
        if outlet.is_stopped:  # others of its digests were under way, too
            return
        outlet.history.stopped(outcome.why, time.time())
        _log.error(
            "scheduler.sink.stopped",
            **delivery.log_fields,
            detail=outcome.cause,
            hint="the receiver answered 410 Gone: its digests wait until the daemon is reloaded or restarted",
        )
        # Its controller decided nothing: what waits goes back, and there is no decision to report.
        outlet.on_decision()

    # -- what the store made of it

    def _count(self, results: Sequence[Result]) -> None:
        delivered: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
        attempts = Counter(
            [(each.delivery.outlet.name, each.outcome.verdict) for each, _, _ in results if each.outcome is not None]
        )
        done, close = Ended.DONE, End.CLOSE
        for conclusion, ended, error in results:
            delivery = conclusion.delivery
            if ended is done and conclusion.ending.kind is close:
                delivered[delivery.outlet.name, delivery.names.route].append(delivery)
            elif ended is None or ended is Ended.DAMAGED:
                self._note_left(delivery, error or ANOTHER_TYPE)
            elif ended is Ended.STALE and conclusion.ending.kind is not End.WAIT:
                self._note_stale(delivery)
            elif conclusion.ending.kind is End.CLOSE:
                delivered[delivery.outlet.name, delivery.claim.route].append(delivery)
            elif conclusion.reason is not None:
                self._note_burial(conclusion, conclusion.reason)
        for (sink, verdict), count in attempts.items():
            self._metrics.add("digest_attempts_total", count, sink=sink, outcome=verdict)
        for (sink, route), theirs in delivered.items():
            self._count_delivered(sink, route, theirs)
        self._on_end([conclusion.delivery for conclusion, _, _ in results])

    def _count_delivered(self, sink: str, route: str, delivered: Sequence[Delivery]) -> None:
        now_ms, metrics = self._digests.now_ms(), self._metrics
        delays_s = [(now_ms - each.due_ms) / 1000 for each in delivered]
        if min(delays_s) < 0:  # the clock here may be behind Redis'
            delays_s = [max(0.0, delay_s) for delay_s in delays_s]
        totals = [each.opened.total for each in delivered]
        metrics.observe("digest_delay_seconds", *delays_s, route=route)
        metrics.observe("digest_records", *totals)
        metrics.set("last_delivery_timestamp_seconds", time.time(), sink=sink)
        metrics.add("digests_delivered_total", len(delivered), sink=sink, route=route)
        metrics.add("digest_records_delivered_total", sum(totals), sink=sink, route=route)
        _log.counted(
            "info",
            "scheduler.digest.delivered",
            by=("route", "sink"),
            adds=("digests", "records"),
            tops=("slowest_s",),
            every_s=SUMMARY_EVERY_S,
            route=route,
            sink=sink,
            digests=len(delivered),
            records=sum(totals),
            slowest_s=round(max(delays_s), 3),
        )
        if _log.is_debugging:
            for each in delivered:
                _log.debug("scheduler.digest.sent", **each.log_fields)

    def _note_stale(self, delivery: Delivery) -> None:
        self._metrics.add("digests_stale_total", route=delivery.claim.route)
        _log.debug("scheduler.digest.stale", **delivery.log_fields)

    def _note_left(self, delivery: Delivery, error: StoreError) -> None:
        self._metrics.add("store_errors_total", reason=error.reason)
        _log.counted(
            "warning",
            "scheduler.digest.left",
            by=("route", "reason"),
            route=delivery.claim.route,
            timeline=delivery.claim.shown_timeline,
            reason=error.reason,
            error=error,
        )

    def _note_burial(self, conclusion: Conclusion, reason: BuryReason) -> None:
        delivery, last = conclusion.delivery, conclusion.outcome
        outlet = delivery.outlet
        if reason.is_of_receiver:
            outlet.history.buried(
                delivery.opened.id, last.why if last else reason, time.time(),
                is_of_sink=last is None or last.is_of_sink,
            )  # fmt: skip
        self._metrics.add("digests_buried_total", sink=outlet.name, reason=reason)
        _log.counted(
            "error",
            "scheduler.digest.buried",
            by=("route", "sink", "reason"),
            adds=("records",),
            **delivery.log_fields,
            reason=reason,
            detail=last.cause if last else "",
        )

    # -- the limit of the dead store

    def limit_dead(self, partition: int) -> None:
        """Drops the longest dead beyond the limit: a bounded number, and nobody waits for it. To be called after a
        burial, and now and then, since the limit may have been lowered."""
        if partition not in self._dropping:
            work = self._drop_over_limit(partition)
            self._dropping[partition] = tasks.start(work, f"limit of the dead of partition {partition}")

    async def _drop_over_limit(self, partition: int) -> None:
        left, passed = DROPPED_PER_TURN, 0
        try:
            while left > 0:
                page = await self._dead.over_limit(partition, passed, left)
                for old in page.found:
                    self._note_dropped(old, await self._dead.drop_over_limit(old))
                if not page.found:
                    break
                left, passed = left - len(page.found), passed + page.unreadable
        except StoreError as error:  # the next turn tries again
            self._metrics.add("store_errors_total", reason=error.reason)
        finally:
            del self._dropping[partition]

    def _note_dropped(self, old: Dead, records: int) -> None:
        if not records:
            return  # another was quicker
        self._metrics.add("dead_digests_dropped_total", sink=old.details.sink)
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
