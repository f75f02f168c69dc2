"""One topic and channel, over any number of nsqds: how many messages each may hand over, and every answer to nsqd.

The decisions are made by pure modules (`backoff`: how much may be in flight and until when; `rdy`: which connection
gets how much of it, and which messages are worked on). This module carries them out and feeds them what happened.

Invariants:
- While nothing may be in flight, messages that still arrive go back unprocessed: RDY 0 takes effect late.
- While probing, one message on the one armed connection is processed, and nothing else.
- RDY is lowered before FINs and REQs go out: for each of them nsqd would hand over another message. So the controller
  gets the verdict of a batch before nsqd gets its answers.
- Messages of a closed connection count against the limit until they are finished or given back.

Connections come from `nsq.connections`. Messages go to `intake.batches` and come back as a `BatchResult`; dead letters
go to `intake.letter_queue`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nsqdigest.backoff import Controller, Curve, Decision, State
from nsqdigest.base import log, tasks
from nsqdigest.base.backoff_report import report_decision
from nsqdigest.base.errors import NsqdigestError, NsqdRefused
from nsqdigest.intake.batch import Arrival, BatchResult, Verdict
from nsqdigest.intake.batches import Batches, Line
from nsqdigest.intake.decoding import Decoder
from nsqdigest.intake.late_answers import LateAnswers
from nsqdigest.intake.letter_queue import LetterQueue
from nsqdigest.intake.names import NAMES_BYTES
from nsqdigest.intake.oversize import OVERSIZE_BYTES, Oversize
from nsqdigest.intake.rdy import Planner, is_starved
from nsqdigest.intake.routing import IntakeRoute, Router
from nsqdigest.intake.writer import Place, StoreWriter
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.connections import Connections
from nsqdigest.nsq.directory import Directory, allowed_nsqds
from nsqdigest.nsq.farewell import part_from
from nsqdigest.nsq.frames import refused_id

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Limits, Nsq
    from nsqdigest.intake.letters import DeadLetters
    from nsqdigest.nsq.frames import Message
    from nsqdigest.store.timelines import Timelines

TICK_S = 0.25
POSSIBLE_REPEAT_FRACTION = 0.75
"""Of msg_timeout: nsqd may hand a message over again that was held for so long."""
SUSPECT_FOR_S = 1.0
"""After a standstill, messages that arrive for so long may have waited in the socket."""
NS_PER_S = 1_000_000_000

_log = log.get("consumer")


def most_held_bytes(settings: Nsq, event_bytes: int) -> int:
    """A topic holds no more: bodies, dead letters of larger ones, names."""
    return settings.max_in_flight * event_bytes + OVERSIZE_BYTES + NAMES_BYTES


def line_of(topic: str, routes: Sequence[IntakeRoute], limits: Limits, store: Timelines, metrics: Metrics) -> Line:
    """The routes of a topic, compiled."""
    decoder = Decoder(topic, Router(routes, limits), metrics)
    return Line(decoder, StoreWriter(routes, store, metrics), store.clock)


class Consumer:
    def __init__(
        self,
        topic: str,
        settings: Nsq,
        *,
        options: ConnectionOptions,
        limits: Limits,
        line: Line,
        dead_letters: DeadLetters,
        controller: Controller,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
        on_due: Callable[[frozenset[Place]], None],
    ) -> None:
        self.topic = topic
        self._settings = settings
        self._limits = limits
        self._controller = controller
        self._metrics = metrics
        self._received = metrics.number("messages_received_total", topic=topic)
        self._finished = metrics.number("messages_finished_total", topic=topic)
        self._requeued = metrics.number("messages_requeued_total", topic=topic)
        self._ages_s = metrics.histogram("message_age_seconds", topic=topic)
        self._sizes = metrics.histogram("batch_messages", topic=topic)
        self._uniform = uniform
        self._on_due = on_due
        """Called when a timeline is due that was not before."""
        self.links = Connections(
            topic,
            settings.channel,
            Directory(settings.nsqd_tcp_addresses, time.monotonic()),
            options,
            self,
            metrics=metrics,
            uniform=uniform,
        )
        self._batches = Batches(
            topic,
            settings.batch_size,
            line=line,
            metrics=metrics,
            owner=self,
        )
        self._letters = LetterQueue(topic, dead_letters, metrics, self)
        self._oversize = Oversize(limits.event_bytes, self._letters)
        self._planner: Planner[NsqConnection] = Planner()
        self._connections: list[NsqConnection] = []
        """The open ones, and those that are gone while messages of theirs are in work."""
        self._late_answers = LateAnswers()
        self._wake: asyncio.TimerHandle | None = None
        self._draining = False
        self._is_held_back = False
        """Whether RDY is 0 until something in work is settled."""
        self._ticked_s = time.monotonic()
        self._suspect_until_s = 0.0
        self._shortest_repeat_s = math.inf
        self.tasks = tasks.Tasks()

    # -- for status and metrics

    @property
    def decision(self) -> Decision:
        return self._controller.decision

    @property
    def controller(self) -> Controller:
        return self._controller

    @property
    def in_flight(self) -> int:
        return sum([connection.in_flight for connection in self._connections])

    @property
    def connections(self) -> list[NsqConnection]:
        return [connection for connection in self._connections if connection.is_open]

    @property
    def connected(self) -> int:
        return len(self.connections)

    @property
    def is_starved(self) -> bool:
        """Whether max_in_flight is what limits the rate."""
        return is_starved(self._connections)

    # -- start and end

    def start(self) -> None:
        self.tasks.start(self._batches.run(), f"{self.topic} batches")
        self.tasks.start(self._letters.run(), f"{self.topic} dead letters")
        self.tasks.start(self._keep_time(), f"{self.topic} clock")
        self.tasks.start(self.links.run(), f"{self.topic} links")

    def change(
        self, settings: Nsq, limits: Limits, line: Line, curve: Curve, *, slow_start: bool, gone: Sequence[str]
    ) -> None:
        """From now on it works by these, without an end of any connection that they still want. Those to addresses
        that the file named, and nobody names any more, end as in a drain. `gone`: nsqlookupds that are asked no more.

        The channel, and what is agreed with nsqd when a connection begins, stay: another consumer is needed for that.
        """
        self._settings, self._limits = settings, limits
        self._oversize.event_bytes = limits.event_bytes
        self._batches.change(settings.batch_size, line)
        before = self.decision
        self._controller.change(settings.max_in_flight, curve, time.monotonic(), slow_start=slow_start)
        if self.decision.state is not before.state:
            self._carry_out()
        self.links.change(settings.nsqd_tcp_addresses, gone, allowed_nsqds(settings))
        self._apply()

    def uses_other_than(self, line: Line) -> bool:
        """Whether a batch of an earlier configuration is not stored yet."""
        return self._batches.uses_other_than(line)

    async def drain(self, until_s: float) -> None:
        """Finishes what is being stored as the replies come, gives back what was not begun, then `stop`.

        CLOSE_WAIT is not waited for here: `stop` gives it a limited time, so that an nsqd that answers nothing does
        not hold up the drain.
        """
        self._stop_intake()
        self._batches.give_back_waiting()
        for connection in self.connections:
            connection.cls()
        while under_way := [*self._batches.under_way, *self._letters.under_way]:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.wait(under_way, timeout=left_s)
        await self.stop()

    async def stop(self) -> None:
        """At once: everything that is not finished goes back to nsqd, then the connections end. It may be cancelled
        anywhere and begun again: a message that was given back is not held any more."""
        self._stop_intake()
        under_way = [*self._batches.abandon(), *self._letters.abandon()]
        await asyncio.gather(*under_way, return_exceptions=True)
        await part_from(self.connections)
        for connection in self.connections:
            connection.close("the daemon stops")
        await self.tasks.stop()

    def _stop_intake(self) -> None:
        """No new connections, RDY 0, and messages that still arrive go back."""
        self._draining = True
        self.links.stop_connecting()
        self.pause()

    def pause(self) -> bool:
        """Nothing is asked for until `resume`, and what waits here goes back. Returns whether it was not paused yet."""
        if is_news := self._controller.pause(time.monotonic()):
            self._carry_out()
        return is_news

    def resume(self) -> bool:
        """Goes on where `pause` stopped it. Returns whether it was paused."""
        if self._draining or self.decision.state is not State.PAUSED:
            return False
        if is_news := self._controller.resume(time.monotonic()):
            self._carry_out()
        return is_news

    # -- from the connections

    def on_open(self, connection: NsqConnection) -> None:
        self._connections.append(connection)
        self._connections_changed()
        self._apply()

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        now_s = time.monotonic()
        self._received.value += len(messages)
        received_s, timeout_s = self._received_s(connection, now_s), connection.msg_timeout_s
        is_any_oversize = max([len(message.body) for message in messages]) > self._limits.event_bytes
        decision = self.decision
        admitted = self._planner.admitted(decision, connection, len(messages), self.in_flight)
        if admitted < len(messages):
            self.give_back(connection, messages[admitted:])
            messages = messages[:admitted]
        if not messages:
            return
        if decision.state is State.PROBING:
            self._controller.began(decision.epoch, now_s, now_s + timeout_s)
            self._set_timer(None)
        repeat_at_s = received_s + POSSIBLE_REPEAT_FRACTION * timeout_s
        arrival = Arrival(connection, messages, decision.epoch, repeat_at_s, expired_at_s=received_s + timeout_s)
        if is_any_oversize:
            arrival, result = self._oversize.take_out(arrival)
            self.on_batch_result(result)
        if arrival.messages:
            self._batches.put(arrival)

    def _received_s(self, connection: NsqConnection, now_s: float) -> float:
        """Now; but after a standstill messages count as held for so long that each may be a repeat."""
        self._notice_standstill(now_s)
        if now_s >= self._suspect_until_s:
            return now_s
        # By this connection's own time: the shortest of all would not make it a repeat here.
        return now_s - POSSIBLE_REPEAT_FRACTION * connection.msg_timeout_s

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        self._metrics.add("messages_refused_total", 1, topic=self.topic, reason=error.code)
        epoch = self._late_answers.refused(connection, refused_id(error.detail))
        # The store was too slow for it, or this process was.
        if epoch is not None and self._controller.failed(epoch, time.monotonic()):
            self._carry_out()
        _log.counted(
            "warning",
            "consumer.message.too_late",
            by=("topic", "nsqd"),
            topic=self.topic,
            nsqd=str(connection.address),
            error=error,
            msg_timeout_s=connection.msg_timeout_s,
        )

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        if connection not in self._connections:
            return
        self._connections_changed()
        self._late_answers.forget(connection)
        if connection is self._planner.armed and self._controller.lost(self.decision.epoch, time.monotonic()):
            self._carry_out()
        self._apply()

    def _connections_changed(self) -> None:
        open_now = self.connections
        shortest_timeout_s = min([connection.msg_timeout_s for connection in open_now], default=math.inf)
        self._shortest_repeat_s = POSSIBLE_REPEAT_FRACTION * shortest_timeout_s
        self._metrics.set("nsqd_connections", len(open_now), topic=self.topic)

    # -- from the batches and the dead letters

    def on_batch_result(self, result: BatchResult) -> None:
        """Answers nsqd for a whole batch. Where this raises, the groups without an answer are left in the result."""
        if result.due:
            self._on_due(result.due)
        if self._judge(result):
            self._carry_out()
        for arrival in result.late:
            self._late_answers.remember(arrival)
        while result.letters:
            self._letters.put(*result.letters[-1])
            result.letters.pop()
        now_ns = time.time_ns()
        ages_s = [(now_ns - message.timestamp_ns) / NS_PER_S for _, messages in result.finish for message in messages]
        if ages_s:
            self._ages_s.observe(*ages_s)
            self._sizes.observe(len(ages_s))
        while result.finish:
            self.finish(*result.finish[-1])
            result.finish.pop()
        while result.give_back:
            self.give_back(*result.give_back[-1])
            result.give_back.pop()

    def _judge(self, result: BatchResult) -> bool:
        """Whether the controller decided anew."""
        now_s = time.monotonic()
        decided = False
        for epoch, messages in result.messages_by_epoch.items():
            if result.verdict is Verdict.FAILED:
                decided |= self._controller.failed(epoch, now_s)
            elif result.verdict is Verdict.STORED:
                decided |= self._controller.succeeded(epoch, now_s, messages)
            else:
                decided |= self._controller.lost(epoch, now_s)
        return decided

    def finish(self, connection: NsqConnection, messages: list[Message]) -> None:
        connection.fin(messages)
        self._finished.value += len(messages)
        if self._controller.decision.state is State.PROBING:
            self._arm_if_idle(connection)

    def give_back(self, connection: NsqConnection, messages: Sequence[Message], about_s: float | None = None) -> None:
        """Requeues each after its own delay: none while draining, so that the next consumer gets them at once."""
        low_ms, high_ms = (0.0, self._settings.requeue_delay_ms) if about_s is None else (500 * about_s, 1500 * about_s)
        if self._draining:
            low_ms = high_ms = 0.0
        connection.requeue([(message, int(self._uniform(low_ms, high_ms))) for message in messages])
        self._requeued.value += len(messages)
        if self._controller.decision.state is State.PROBING:
            self._arm_if_idle(connection)

    def _arm_if_idle(self, connection: NsqConnection) -> None:
        """No connection was idle when the probe began; this one may be now. (In a turn of its own: once nsqd has its
        answer, finishing and giving back must not raise.)"""
        if self._planner.armed is None and not connection.in_flight:
            asyncio.get_running_loop().call_soon(tasks.guarded(self._apply, f"{self.topic} probe"))

    def store_answered(self) -> None:
        """Redis, which had failed, has answered another part of the daemon: a backoff ends soon."""
        if self._controller.answered(time.monotonic()):
            self._carry_out()

    # -- from the clock

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self._notice_standstill(now_s)
            self._ticked_s = now_s
            self._hold_back_if_needed(now_s)
            self._metrics.set("starved", self.is_starved, topic=self.topic)

    def _notice_standstill(self, now_s: float) -> None:
        """A process that was stopped reads messages from before the stop as if they were new, but nsqd may have taken
        them back since."""
        if now_s - self._ticked_s >= self._shortest_repeat_s:
            self._suspect_until_s = now_s + SUSPECT_FOR_S

    def _hold_back_if_needed(self, now_s: float) -> None:
        """nsqd takes overdue messages back and hands them over again, to be given back or stored twice; oversize ones
        have no room. Until that is settled nothing more is asked for."""
        is_overdue, is_full = self._batches.is_overdue(now_s), self._oversize.is_full
        if (is_overdue or is_full) == self._is_held_back:
            return
        self._is_held_back = is_overdue or is_full
        if is_overdue:
            _log.warning(
                "consumer.topic.overdue",
                topic=self.topic,
                in_flight=self.in_flight,
                hint="Redis is slower than msg_timeout allows, or this process stood still: RDY is 0 until what is in "
                "flight is stored; keep redis.timeout below nsq.msg_timeout",
            )
        elif is_full:
            _log.warning(
                "consumer.topic.oversize",
                topic=self.topic,
                hint="more messages above limits.event than dead letters can be sent: RDY is 0 until they are",
            )
        self._apply()

    # -- the decision, carried out

    def _carry_out(self) -> None:
        """Reports and applies the new decision of the controller."""
        if not self._draining:  # `paused` is what an operator did, and a drain speaks for itself
            report_decision(_log, self._metrics, "consumer.topic", self._controller, topic=self.topic)
        self._apply()  # first: for each message that goes back nsqd would hand over another, up to RDY
        if self.decision.limit == 0:
            self._batches.give_back_waiting()

    def _apply(self) -> None:
        """Sends the differences between the wanted RDY and the RDY that is set."""
        self._connections = [each for each in self._connections if each.is_open or each.in_flight]
        plan = self._planner.plan(self.decision, self._connections, time.monotonic(), is_held_back=self._is_held_back)
        for connection, count in plan.changes:
            connection.set_rdy(count)
        self._set_timer(plan.again_at_s)

    def _set_timer(self, plan_again_at_s: float | None) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        wake_at_s = min((at_s for at_s in (self.decision.wake_at_s, plan_again_at_s) if at_s is not None), default=None)
        if wake_at_s is not None and not self._draining:
            loop = asyncio.get_running_loop()
            tick = tasks.guarded(self._tick, f"{self.topic} timer")
            self._wake = loop.call_later(max(0.0, wake_at_s - time.monotonic()), tick)

    def _tick(self) -> None:
        if self._controller.tick(time.monotonic()):
            self._carry_out()
        else:
            self._apply()
