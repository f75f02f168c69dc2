"""One sink at work: its health, the digests that wait for it, and a fixed set of senders.

Invariants:
- No more sends are under way than the controller allows; a probe is one digest.
- No send begins with less lease left than the sink's time-out; a lease that is another's by then ends the work,
  silently.
- What was claimed before the sink stepped back goes back unsent.
- Whatever a sink does becomes one outcome. A sender that outlives the sink's own time-out is ended by the watch.
- What a sink that is well accepted within one turn of the loop is concluded together, behind the sends that follow it.
  Every other outcome is concluded before anything else is sent.
- What is claimed and not concluded is bounded: as many as may be sent at once, and what the sink has been sending in
  AHEAD_S; a kill repeats no more than that. What waits, rendered, is bounded in bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from nsqdigest.backoff import State
from nsqdigest.base import log, tasks
from nsqdigest.base.reasons import NOTHING_SENT, Verdict
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.sink_state import SinkHistory
from nsqdigest.delivery.sinks.base import BulkSink, Outcome, OutgoingDigest, Sink
from nsqdigest.delivery.verdicts import Health
from nsqdigest.store.head import Head

if TYPE_CHECKING:
    from nsqdigest.backoff import Controller
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import SinkSettings
    from nsqdigest.delivery.conclusions import Conclusions
    from nsqdigest.delivery.delivery import Delivery
    from nsqdigest.delivery.targets import Aim

_log = log.get("scheduler")

AHEAD_S = 0.1
"""So much work of a sink may lie ready: enough for its senders while the next digests are opened."""
MOST_AHEAD = 800
READY_BYTES = 8 << 20
"""Of rendered bodies that wait for one sink. What was read last may go beyond it; digests that are open by then are
read when their turn comes."""
_FENCE_GRACE_S = 5.0
"""A sink that outlives its own time-out by so much is ended from outside."""
_WATCH_S = 1.0
_PACE_WINDOW_S = 0.02
REMEMBERED_ATTEMPTS = 1000
_ALL_DELIVERED = {Verdict.DELIVERED}

Render = Callable[["Delivery"], Awaitable[bool]]
"""Reads the records of a digest whose turn has come into its body. Returns whether it is to be sent."""


Attempt = tuple[float, float, Names, Head, Outcome]
"""When it ended (Unix time), how many seconds it took, what it was of, and its outcome. Made for each digest, so it has
only what is there already."""
_Sent = tuple["Delivery", Outcome, float]
"""With how many seconds it took."""


class Pace:
    """How many digests a second a sink has been taking."""

    def __init__(self) -> None:
        self.per_s = 0.0
        self._since_s = 0.0
        self._ended = 0

    def ended(self, count: int, now_s: float) -> None:
        self._ended += count
        passed_s = now_s - self._since_s
        if passed_s >= _PACE_WINDOW_S:
            # A window that began long ago was mostly waiting, and says nothing of what the sink could take.
            measured = self._ended / min(passed_s, 10 * _PACE_WINDOW_S)
            self.per_s = measured if not self.per_s else (self.per_s + measured) / 2
            self._since_s, self._ended = now_s, 0


_as_outgoing = tuple.__new__


def _outgoing(delivery: Delivery) -> OutgoingDigest:
    head, (route, timeline, _) = delivery.opened, delivery.names
    fields = head.id, route, timeline, head.attempts + 1, head.total, delivery.body or b"", delivery.target
    return _as_outgoing(OutgoingDigest, fields)


class _Sender:
    """One of a fixed set; it sends one batch after the other."""

    __slots__ = ("batch", "began_s", "is_overdue", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.batch: Sequence[Delivery] = ()
        self.began_s = 0.0
        self.is_overdue = False


class Outlet:
    def __init__(
        self, settings: SinkSettings, sink: Sink, controller: Controller, aim: Aim | None = None, senders: int = 0
    ) -> None:
        """`aim`: for a sink without a fixed target; `senders`: for one that sends fewer at a time than it holds."""
        self.settings = settings
        self.name = settings.name
        self.timeout_s = settings.timeout_ms / 1000
        self.sink = sink
        self.aim = aim
        self.most_senders = senders or settings.concurrency
        self._bulk = sink if isinstance(sink, BulkSink) else None
        self._at_once = self._bulk.at_once if self._bulk is not None else 1
        self._at_once_bytes = self._bulk.at_once_bytes if self._bulk is not None else 0
        self.controller = controller
        self.health = Health(controller, settings.retry_after_max_ms)
        self.attempts: deque[Attempt] = deque(maxlen=REMEMBERED_ATTEMPTS)
        """What became of the last ones, for people; the newest last."""
        self.history = SinkHistory()
        self.held = 0
        """Claimed for this sink, and not concluded."""
        self.reserved = 0
        """What claims under way may bring."""
        self.ready_bytes = 0
        self.on_room: Callable[[], None] = lambda: None
        """Called when there is room again although nothing ended."""
        self._ready: deque[Delivery] = deque()
        self._sending = 0
        self._accepted: list[_Sent] = []
        """In this turn of the loop, and not concluded."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._senders: list[_Sender] = []
        self._pace = Pace()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_draining = False
        self._is_stopping = False

    # -- what others may know

    @property
    def is_probing(self) -> bool:
        return self.controller.decision.state is State.PROBING

    @property
    def is_stopped(self) -> bool:
        return self.history.stopped_since_s is not None

    def admits(self, epoch: int) -> bool:
        """Whether what was claimed in this epoch is still wanted: since then the sink may have stepped back."""
        return epoch == self.controller.decision.epoch and self.history.stopped_since_s is None

    @property
    def room(self) -> int:
        """How many more may be claimed for it."""
        if self.is_stopped or self.holds_enough:
            return 0
        limit = self.controller.decision.limit
        ahead = 0
        if self.controller.decision.state is State.FLOWING:
            least = self._at_once if self._bulk is not None else 0
            ahead = min(MOST_AHEAD, max(least, int(self._pace.per_s * AHEAD_S)))
        free = limit + ahead - self.held - self.reserved
        # A claim of a few costs as much as one of many, and the senders have work meanwhile.
        is_worth_it = ahead <= limit or free >= ahead // 4
        return free if free > 0 and is_worth_it else 0

    @property
    def holds_enough(self) -> bool:
        """Whether no more bodies should wait for it."""
        return self.ready_bytes >= READY_BYTES

    @property
    def sending(self) -> int:
        """Those included whose outcome is not concluded."""
        return self._sending + len(self._accepted)

    # -- life

    def start(self, render: Render, conclusions: Conclusions, metrics: Metrics) -> None:
        self._render = render
        self._conclusions = conclusions
        self._took = {
            verdict: metrics.histogram("delivery_seconds", sink=self.name, outcome=verdict) for verdict in Verdict
        }
        if self._tasks:
            return
        self._senders = [_Sender() for _ in range(self.most_senders)]
        for number, sender in enumerate(self._senders):
            sender.task = tasks.start(self._send_on(sender), f"sender {number} of {self.name}")
        watch = tasks.start(self._watch(), f"watch of {self.name}")
        self._tasks = [*(sender.task for sender in self._senders if sender.task), watch]

    def stop_taking(self) -> None:
        """What waits goes back unsent; what is being sent goes on."""
        self._is_draining = True
        self.put_back_ready()

    def follow(self, before: Outlet) -> None:
        """It takes the place of another one, which takes nothing more."""

    @property
    def is_busy(self) -> bool:
        """Whether something that was claimed for it, or is being claimed, is not concluded."""
        return bool(self.held or self.reserved or self.sending)

    async def quiet(self) -> None:
        """Until nothing is being sent, and what was sent is concluded."""
        await self._quiet.wait()

    async def stop(self) -> None:
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_FENCE_GRACE_S)
        self._tasks = []

    # -- what waits

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """The sink may have stepped back while they were opened: those wait for nobody."""
        if self._is_draining or not all(map(self.admits, {each.epoch for each in deliveries})):
            back = [each for each in deliveries if self._is_draining or not self.admits(each.epoch)]
            self._conclusions.put_back(back)
            deliveries = [each for each in deliveries if not each.is_concluded]
        self._ready.extend(deliveries)
        self.ready_bytes += sum([len(each.body or b"") for each in deliveries])
        self._wake()

    def has_ready(self, delivery: Delivery) -> bool:
        return delivery in self._ready

    def put_back_ready(self) -> None:
        back = list(self._ready)
        self._ready.clear()
        self.ready_bytes = 0
        if back:
            self._conclusions.put_back(back)

    def on_decision(self) -> None:
        """The controller decided anew: more may be sent, or nothing of what waits."""
        if self._ready and not self.admits(self._ready[0].epoch):
            self.put_back_ready()
        self._wake()

    def _wake(self) -> None:
        """As many senders as may send, and have something to send."""
        batches = -(-len(self._ready) // self._at_once)
        free = min(self.controller.decision.limit - self._sending, batches)
        while free > 0 and self._idle:
            waiter = self._idle.popleft()
            if not waiter.done():
                waiter.set_result(None)
                free -= 1

    def _next_batch(self) -> list[Delivery]:
        """What one sender is to send now: several only to a sink that takes several."""
        ready, decision = self._ready, self.controller.decision
        if not ready or self._sending >= decision.limit:
            return []
        most = self._at_once if decision.state is not State.PROBING else 1
        while ready:
            batch = self._popped(most)
            if not all(map(self.admits, {each.epoch for each in batch})):
                self._conclusions.put_back([each for each in batch if not self.admits(each.epoch)])
                batch = [each for each in batch if not each.is_concluded]
            if batch:
                return batch
        return []

    def _popped(self, most: int) -> list[Delivery]:
        """The first ones. One without a body is read when its turn comes, and alone."""
        ready = self._ready
        first = ready.popleft()
        batch = [first]
        if first.body is None:
            return batch
        size_bytes = len(first.body)
        while ready and len(batch) < most and (body := ready[0].body) is not None:
            if size_bytes + len(body) > self._at_once_bytes:
                break
            size_bytes += len(body)
            batch.append(ready.popleft())
        self.ready_bytes -= size_bytes
        return batch

    # -- the senders

    async def _send_on(self, sender: _Sender) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_stopping:  # a sink may swallow its cancellation
            batch = self._next_batch()
            if not batch:
                waiter = loop.create_future()
                self._idle.append(waiter)
                await waiter
                continue
            if not self._sending:
                self._quiet.clear()
            self._sending += 1
            if self._ready and self._bulk is not None:
                # A batch ends at a digest that is still to be read, or with enough bytes: there are more than were
                # counted on.
                self._wake()
            try:
                await self._send(sender, batch)
            except Exception as error:
                _log.error("scheduler.digest.bug", **batch[0].log_fields, error=error, exc_info=error)
                for delivery in batch:
                    self._conclusions.left(delivery)
            finally:
                self._sending -= 1
                if not self._sending:
                    self._note_quiet()
                if self._ready and self._idle:
                    self._wake()

    async def _send(self, sender: _Sender, batch: list[Delivery]) -> None:
        began_s = time.monotonic()
        until_s = began_s + self.timeout_s
        for delivery in batch:
            if delivery.body is None or delivery.leased_until_s < until_s:
                batch = await self._made_ready(batch)
                began_s = time.monotonic()
                break
        if not batch:
            return
        sender.batch, sender.began_s = batch, began_s
        try:
            outcomes = await self._outcomes(batch)
        except asyncio.CancelledError:
            if not sender.is_overdue or self._is_stopping:
                if sender.task is None or sender.task.cancelling():
                    raise
                _log.error("scheduler.sink.bug", **batch[0].log_fields, error="it cancelled itself")
                outcomes = [Outcome(Verdict.AGAIN, "CancelledError")] * len(batch)
            else:
                outcomes = [Outcome(Verdict.UNAVAILABLE, "no outcome within the time-out")] * len(batch)
        finally:
            sender.batch = ()
            if sender.is_overdue and sender.task is not None:
                sender.is_overdue = False
                sender.task.uncancel()
        self._ended(batch, outcomes, time.monotonic() - began_s)

    async def _made_ready(self, batch: Sequence[Delivery]) -> list[Delivery]:
        """Those of a batch that are to be sent, when all are rendered and ours for long enough."""
        leased = [delivery for delivery in batch if delivery.has_lease]
        ready = [delivery for delivery in batch if await self._is_ready(delivery)]
        late = [each for each in ready if not self.admits(each.epoch) or (each in leased and not each.has_lease)]
        if late:  # while others were renewed or read, the sink stepped back, or a lease grew too short
            self._conclusions.put_back(late)
            ready = [delivery for delivery in ready if not delivery.is_concluded]
        return ready

    async def _is_ready(self, delivery: Delivery) -> bool:
        """Rendered, and ours for long enough; else it is concluded."""
        try:
            return await self._render(delivery)
        except Exception as error:
            _log.error("scheduler.digest.bug", **delivery.log_fields, error=error, exc_info=error)
            self._conclusions.left(delivery)
            return False

    async def _outcomes(self, ready: Sequence[Delivery]) -> Sequence[Outcome]:
        outcomes: Sequence[Outcome]
        try:
            if len(ready) == 1:
                outcomes = (await self.sink.deliver(_outgoing(ready[0])),)
            elif self._bulk is not None:
                outcomes = await self._bulk.deliver_all(list(map(_outgoing, ready)))
            else:
                outcomes = [await self.sink.deliver(_outgoing(each)) for each in ready]
            if len(outcomes) != len(ready) or set(map(type, outcomes)) != {Outcome}:
                raise TypeError("a sink returns one Outcome for each digest")
            return outcomes
        except Exception as error:
            _log.error("scheduler.sink.bug", **ready[0].log_fields, error=error, exc_info=error)
            return [Outcome(Verdict.AGAIN, type(error).__name__, answer=str(error))] * len(ready)

    # -- what was sent

    def _ended(self, sent: Sequence[Delivery], outcomes: Sequence[Outcome], took_s: float) -> None:
        results = zip(sent, outcomes, repeat(took_s), strict=False)
        # A sink that is not well may send more, or nothing more, by what becomes of this.
        if self.controller.decision.state is State.FLOWING and {each.verdict for each in outcomes} == _ALL_DELIVERED:
            if not self._accepted:
                asyncio.get_running_loop().call_soon(self._conclude_accepted)
            self._accepted += results
            return
        self._conclude_accepted()
        self._conclude(list(results))

    def _conclude_accepted(self) -> None:
        """It costs little more for all of a turn than for one."""
        results, self._accepted = self._accepted, []
        if results:
            self._conclude(results)
            self._note_quiet()

    def _conclude(self, results: Sequence[_Sent]) -> None:
        """Never raises: what a bug keeps from its conclusion is left to its lease."""
        try:
            ended_s, at_s = time.monotonic(), time.time()
            self.attempts += [(at_s, took_s, each.names, each.opened, outcome) for each, outcome, took_s in results]
            verdicts = [outcome.verdict for _, outcome, _ in results]
            for verdict in set(verdicts):
                took = [took_s for _, outcome, took_s in results if outcome.verdict is verdict]
                if verdict not in NOTHING_SENT:
                    self._pace.ended(len(took), ended_s)
                self._took[verdict].observe(*took)
            self._conclusions.sent([(delivery, outcome) for delivery, outcome, _ in results])
        except Exception as error:
            _log.error("scheduler.digest.bug", **results[0][0].log_fields, error=error, exc_info=error)
            for delivery, _, _ in results:
                self._conclusions.left(delivery)

    def _note_quiet(self) -> None:
        if not self._sending and not self._accepted:
            self._quiet.set()

    async def _watch(self) -> None:
        """Ends sends that their sink should have ended."""
        limit_s = self.timeout_s + _FENCE_GRACE_S
        while True:
            await asyncio.sleep(min(_WATCH_S, limit_s / 4))
            now_s = time.monotonic()
            for sender in self._senders:
                is_late = bool(sender.batch) and now_s - sender.began_s > limit_s
                if is_late and not sender.is_overdue and sender.task is not None:
                    sender.is_overdue = True
                    sender.task.cancel()
