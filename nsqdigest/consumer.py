"""One topic and channel, over any number of nsqds: how much each may hand over, and the remedy.

The decisions are the pure modules' (`backoff`: how much and until when; `rdy`: which connection gets how much of it,
and which messages are worked on); this one carries them out and tells them what happened. Which nsqds are connected is
`links`' business; what becomes of the messages is `commits`'.

Invariants:
- While nothing may be in flight, what still arrives goes back unprocessed: RDY 0 takes effect late.
- While probing, one message on the one armed connection is processed, and nothing else.
- What a connection had handed over counts until it is finished or given back, though the connection be gone.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nsqdigest.backoff import Controller, Decision, State
from nsqdigest.base import log, tasks
from nsqdigest.base.backoff_report import report_decision
from nsqdigest.base.errors import NsqdigestError, NsqdRefused
from nsqdigest.intake.batches import OVERSIZE_BYTES, Arrival, Commits, Verdict, possible_repeat_after_s
from nsqdigest.intake.rdy import Planner, is_starved
from nsqdigest.intake.routing import NAMES_BYTES
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.connections import Connections
from nsqdigest.nsq.directory import Directory
from nsqdigest.nsq.frames import refused_id

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Nsq
    from nsqdigest.intake.letters import DeadLetters
    from nsqdigest.intake.routing import Router
    from nsqdigest.intake.writer import FiledRoute
    from nsqdigest.nsq.frames import Message
    from nsqdigest.store.timelines import Timelines

TICK_S = 0.25
LATE_REMEMBERED = 5000
SUSPECT_FOR_S = 1.0
"""After a standstill, what arrives for so long may have been waiting in the socket."""
FAREWELL_S = 1.0
"""What nsqd gets to answer CLS, and to read the rest, when nothing else is waited for."""

_log = log.get("consumer")


def most_held_bytes(settings: Nsq, event_bytes: int) -> int:
    """What a topic holds at most: bodies, dead letters of larger ones, names."""
    return settings.max_in_flight * event_bytes + OVERSIZE_BYTES + NAMES_BYTES


class Consumer:
    def __init__(
        self,
        topic: str,
        settings: Nsq,
        *,
        options: ConnectionOptions,
        router: Router,
        routes: Mapping[int, FiledRoute],
        store: Timelines,
        dead_letters: DeadLetters,
        controller: Controller,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
        on_due: Callable[[], None],
    ) -> None:
        self.topic = topic
        self.timeline_is_due = on_due
        self._settings = settings
        self._controller = controller
        self._metrics = metrics
        self._uniform = uniform
        self.links = Connections(
            topic,
            settings.channel,
            Directory(settings.nsqd_tcp_addresses, time.monotonic()),
            options,
            self,
            metrics=metrics,
            uniform=uniform,
        )
        self._commits = Commits(
            topic,
            batch_size=settings.batch_size,
            router=router,
            routes=routes,
            store=store,
            dead_letters=dead_letters,
            metrics=metrics,
            host=self,
        )
        self._planner: Planner[NsqConnection] = Planner()
        self._seats: list[NsqConnection] = []
        """The open connections, and those that are gone while something of theirs is still worked on."""
        self._late: dict[tuple[NsqConnection, bytes], int] = {}
        """What was finished when its time was nearly up, with its epoch: nsqd may say that it came too late."""
        self._wake: asyncio.TimerHandle | None = None
        self._draining = False
        self._is_held_back = False
        """Whether nothing is asked for until something in work is settled."""
        self._turned_s = time.monotonic()
        self._suspect_until_s = 0.0
        self._repeats_after_s = math.inf
        self.tasks: list[asyncio.Task[None]] = []

    # -- what others may see

    @property
    def decision(self) -> Decision:
        return self._controller.decision

    @property
    def controller(self) -> Controller:
        return self._controller

    @property
    def in_flight(self) -> int:
        return sum(seat.in_flight for seat in self._seats)

    @property
    def connections(self) -> list[NsqConnection]:
        return [connection for connection in self._seats if connection.is_open]

    @property
    def connected(self) -> int:
        return len(self.connections)

    @property
    def is_starved(self) -> bool:
        """Whether max_in_flight is what limits the rate."""
        return is_starved(self._seats)

    # -- beginning and end

    def start(self) -> None:
        self.tasks = [
            tasks.start(self._commits.run(), f"{self.topic} commits"),
            tasks.start(self._keep_time(), f"{self.topic} clock"),
            tasks.start(self.links.run(), f"{self.topic} links"),
        ]

    async def drain(self, until_s: float) -> None:
        """What is being stored is finished as its replies come, what was not begun goes back, then `stop`.

        Nobody waits for CLOSE_WAIT here: `stop` gives it FAREWELL_S, so that an nsqd that answers nothing does not hold
        up the drain.
        """
        self._hold()
        self._commits.give_back_waiting()
        for connection in self.connections:
            connection.cls()
        await self._commits.settle(until_s)
        await self.stop()

    async def stop(self) -> None:
        """At once: everything that is not finished goes back to nsqd, and the connections end in an order that loses
        nothing that was sent. It may be cancelled anywhere and begun again: what was given back is not held any more.

        Closing right after a REQ would leave messages to nsqd's msg_timeout: it does not requeue on disconnect.
        """
        self._hold()
        await self._commits.abandon()
        await self._say_goodbye(time.monotonic() + FAREWELL_S)
        await _side_by_side([connection.hang_up() for connection in self.connections], FAREWELL_S)
        for task in self.tasks:
            task.cancel()
        for connection in self.connections:
            connection.close("the daemon stops")
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _hold(self) -> None:
        """Nothing new comes in from here on, and what comes all the same goes back."""
        self._draining = True
        self.links.stop_connecting()
        self.pause()

    # -- the operator's word

    def pause(self) -> bool:
        """Nothing is asked for until `resume`; what waits here goes back. Returns whether that is new."""
        return self._settle(self._controller.pause(time.monotonic()))

    def resume(self) -> bool:
        """Goes on where `pause` found it. Returns whether it was paused."""
        if self._draining or self.decision.state is not State.PAUSED:
            return False
        return self._settle(self._controller.resume(time.monotonic()))

    async def _say_goodbye(self, until_s: float) -> None:
        goodbyes = [connection.say_goodbye() for connection in self.connections]
        await _side_by_side(goodbyes, until_s - time.monotonic())

    async def _keep_time(self) -> None:
        """Notices when time stood still, and what an operator would like to know."""
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self._notice_standstill(now_s)
            self._turned_s = now_s
            self._notice_what_is_held(now_s)
            self._metrics.set("starved", self.is_starved, topic=self.topic)
            for connection in self._planner.stalled(self._seats, now_s):
                _log.warning(
                    "consumer.connection.stalled",
                    topic=self.topic,
                    nsqd=str(connection.address),
                    rdy=connection.rdy,
                    in_flight=connection.in_flight,
                    last_message_s=round(now_s - connection.message_at_s, 1),
                    last_read_s=round(connection.quiet_s, 1),
                    hint="others of this topic flow; if the depth in this nsqd's /stats grows, restart it",
                )

    def _notice_what_is_held(self, now_s: float) -> None:
        """What is overdue nsqd takes back and hands over again, to be given back or stored twice; what is too large has
        no room. Until that is settled nothing more is asked for."""
        is_overdue, is_full = self._commits.is_overdue(now_s), self._commits.is_full
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

    def _notice_standstill(self, now_s: float) -> None:
        """A process that was stopped reads what came before the stop as if it were new; nsqd may have taken it back
        since."""
        if now_s - self._turned_s >= self._repeats_after_s:
            self._suspect_until_s = now_s + SUSPECT_FOR_S

    def store_answered(self) -> None:
        """Another part of the daemon has an answer of Redis, which had failed: a backoff ends soon."""
        self._settle(self._controller.answered(time.monotonic()))

    def _shortest_repeat_s(self) -> float:
        return min(map(possible_repeat_after_s, self.connections), default=math.inf)

    # -- what a connection says

    def on_open(self, connection: NsqConnection) -> None:
        self._seats.append(connection)
        self._repeats_after_s = self._shortest_repeat_s()
        self._metrics.set("nsqd_connections", self.connected, topic=self.topic)
        self._apply()

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        now_s = time.monotonic()
        self._metrics.add("messages_received_total", len(messages), topic=self.topic)
        decision = self.decision
        admitted = self._planner.admitted(decision, connection, len(messages), self.in_flight)
        if admitted < len(messages):
            self.give_back(connection, messages[admitted:])
            messages = messages[:admitted]
        if not messages:
            return
        if decision.state is State.PROBING:
            self._controller.began(decision.epoch, now_s, now_s + connection.msg_timeout_s)
            self._set_timer(None)
        self._notice_standstill(now_s)
        # By this connection's own time: the shortest of all would not make it a repeat here.
        received_s = now_s - possible_repeat_after_s(connection) if now_s < self._suspect_until_s else now_s
        self._commits.put(Arrival(connection, messages, decision.epoch, received_s))

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        self._metrics.add("messages_refused_total", 1, topic=self.topic, reason=error.code)
        now_s = time.monotonic()
        epoch = self._late.pop((connection, refused_id(error.detail)), None)
        if epoch is not None:  # the store was too slow for it, or we were
            self._settle(self._controller.failed(epoch, now_s))
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
        if connection not in self._seats:
            return
        self._metrics.set("nsqd_connections", self.connected, topic=self.topic)
        self._repeats_after_s = self._shortest_repeat_s()
        self._late = {key: epoch for key, epoch in self._late.items() if key[0] is not connection}
        if connection is self._planner.armed:
            self._settle(self._controller.lost(self.decision.epoch, time.monotonic()))
        self._apply()

    # -- what commits say

    def give_back(self, connection: NsqConnection, messages: Sequence[Message], about_s: float | None = None) -> None:
        """Back to nsqd, each after its own delay: none while draining, so that the next consumer has them at once."""
        if not messages:
            return
        low_ms, high_ms = (0.0, self._settings.requeue_delay_ms) if about_s is None else (500 * about_s, 1500 * about_s)
        if self._draining:
            low_ms = high_ms = 0.0
        connection.requeue([(message, int(self._uniform(low_ms, high_ms))) for message in messages])
        self._metrics.add("messages_requeued_total", len(messages), topic=self.topic)
        self._arm_if_idle(connection)

    def finish(self, connection: NsqConnection, messages: list[Message]) -> None:
        connection.fin(messages)
        self._arm_if_idle(connection)

    def _arm_if_idle(self, connection: NsqConnection) -> None:
        """No connection was idle when the probe began; this one may be now. (In a turn of its own: whoever finishes or
        gives back must not hear of an exception after nsqd was told.)"""
        if self.decision.state is State.PROBING and self._planner.armed is None and not connection.in_flight:
            asyncio.get_running_loop().call_soon(tasks.guarded(self._apply, f"{self.topic} probe"))

    def finished_late(self, connection: NsqConnection, messages: Iterable[Message], epoch: int) -> None:
        if not connection.is_open:
            return  # nsqd cannot refuse anything there any more
        for message in messages:
            self._late[connection, message.id] = epoch
        while len(self._late) > LATE_REMEMBERED:
            del self._late[next(iter(self._late))]

    def heard(self, verdict: Verdict, messages_by_epoch: Mapping[int, int]) -> None:
        now_s = time.monotonic()
        decided = False
        for epoch, messages in messages_by_epoch.items():
            if verdict is Verdict.FAILED:
                decided |= self._controller.failed(epoch, now_s)
            elif verdict is Verdict.STORED:
                decided |= self._controller.succeeded(epoch, now_s, messages)
            else:
                decided |= self._controller.lost(epoch, now_s)
        self._settle(decided)

    # -- the decision, carried out

    def _settle(self, decided: bool) -> bool:
        """The controller was told something: if it decided anew, says so and carries it out."""
        if not decided:
            return False
        if not self._draining:  # `paused` is what an operator did, and a drain speaks for itself
            report_decision(_log, self._metrics, "consumer.topic", self._controller, topic=self.topic)
        if self.decision.limit == 0:
            self._commits.give_back_waiting()
        self._apply()
        return True

    def _apply(self) -> None:
        """Sends the differences between the RDY that is wanted and the RDY that is set."""
        self._seats = [connection for connection in self._seats if connection.is_open or connection.in_flight]
        plan = self._planner.plan(self.decision, self._seats, time.monotonic(), is_held_back=self._is_held_back)
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
        if not self._settle(self._controller.tick(time.monotonic())):
            self._apply()


async def _side_by_side(works: Sequence[Coroutine[Any, Any, None]], within_s: float) -> None:
    """Until the time is over; then, or when it is cancelled itself, ends them and waits for their end."""
    ends = [asyncio.create_task(work) for work in works]
    try:
        if ends:
            await asyncio.wait(ends, timeout=max(0.0, within_s))
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)  # what ended by itself meanwhile has nothing left to do
