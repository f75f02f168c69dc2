"""One topic and channel, over any number of nsqds: who is connected, how much each may hand over, and the way out.

The decisions are the pure modules' (`backoff`: how much and until when; `rdy`: which connection gets how much of it);
this one carries them out and tells them what happened. What becomes of the messages is `commits`.

Always so:
- While nothing may be in flight, what still arrives goes back unprocessed: RDY 0 takes effect late.
- While probing, one message on the one armed connection is processed, and nothing else.
- Only a connection with nothing in flight is armed (nsqd would hand nothing over otherwise).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from nsqdigest import log, rdy
from nsqdigest.backoff import Controller, Decision, Reason, State
from nsqdigest.commits import Arrival, Commits, FiledRoute, Verdict, possible_repeat_after_s
from nsqdigest.errors import NsqdigestError, NsqdRefused
from nsqdigest.transport.connection import ConnectionOptions, NsqConnection

if TYPE_CHECKING:
    from nsqdigest.config import Address, Nsq
    from nsqdigest.dead_letters import DeadLetters
    from nsqdigest.events import Router
    from nsqdigest.metrics import Metrics
    from nsqdigest.timelines import Timelines
    from nsqdigest.transport.frames import Message

ROTATE_EVERY_S = 1.0
TICK_S = 0.25
SAY_AGAIN_S = 1.0
SUSPECT_FOR_S = 1.0
"""After a standstill, what arrives for so long may have been waiting in the socket."""
RECONNECT_FIRST_S = 0.25
RECONNECT_CAP_S = 30.0
FAREWELL_S = 1.0
"""What nsqd gets to answer CLS, and to read the rest, when nothing else is waited for."""

_log = log.get("consumer")


class Consumer:
    def __init__(
        self,
        topic: str,
        settings: Nsq,
        *,
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
        self._options = ConnectionOptions(
            heartbeat_interval_ms=settings.heartbeat_interval_ms, msg_timeout_ms=settings.msg_timeout_ms
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
        self._served_at_s: dict[NsqConnection, float] = {}
        """The open connections, and when each last had a message or was last given a place."""
        self._connecting: set[NsqConnection] = set()
        self._armed: NsqConnection | None = None
        self._armed_epoch = -1
        self._probe_came = False
        self._wake: asyncio.TimerHandle | None = None
        self._draining = False
        self._too_late, self._too_late_said_s = 0, -math.inf
        self._turned_s = time.monotonic()
        self._suspect_until_s = 0.0
        self._repeats_after_s = math.inf
        self.tasks: list[asyncio.Task[None]] = []

    # -- what others may see

    @property
    def decision(self) -> Decision:
        return self._controller.decision

    @property
    def connections(self) -> list[NsqConnection]:
        return list(self._served_at_s)

    @property
    def connected(self) -> int:
        return len(self._served_at_s)

    @property
    def addresses(self) -> Sequence[Address]:
        return self._settings.nsqd_tcp_addresses

    # -- beginning and end

    def start(self) -> None:
        self.tasks = [
            asyncio.create_task(self._commits.run(), name=f"{self.topic} commits"),
            asyncio.create_task(self._keep_time(), name=f"{self.topic} clock"),
            *(
                asyncio.create_task(self._stay_connected(address), name=f"{self.topic} at {address}")
                for address in self.addresses
            ),
        ]

    async def drain(self, until_s: float) -> None:
        """What is being stored is finished as its replies come, what was not begun goes back, then `stop`."""
        self._hold()
        self._commits.give_back_waiting()
        await self._say_goodbye(until_s)
        await self._commits.settle(until_s)
        await self.stop()

    async def stop(self) -> None:
        """At once: everything that is not finished goes back to nsqd, and the connections end in an order that loses
        no word.

        Closing right after a REQ would leave messages to nsqd's msg_timeout: it does not requeue on disconnect.
        """
        self._hold()
        await self._commits.abandon()
        await self._say_goodbye(time.monotonic() + FAREWELL_S)
        hang_ups = [asyncio.create_task(connection.hang_up()) for connection in self._served_at_s]
        if hang_ups:
            await asyncio.wait(hang_ups, timeout=FAREWELL_S)
        for task in self.tasks:
            task.cancel()
        for connection in [*self._served_at_s, *self._connecting]:
            connection.close("the daemon stops")
        await asyncio.gather(*self.tasks, *hang_ups, return_exceptions=True)

    def _hold(self) -> None:
        """Nothing new comes in from here on, and what comes all the same goes back."""
        self._draining = True
        self._controller.hold()
        self._apply()

    async def _say_goodbye(self, until_s: float) -> None:
        goodbyes = [asyncio.create_task(c.say_goodbye()) for c in self._served_at_s if not c.closing]
        if goodbyes:
            await asyncio.wait(goodbyes, timeout=max(0.0, until_s - time.monotonic()))
            for goodbye in goodbyes:
                goodbye.cancel()
            # One that ended by itself meanwhile has nothing left to say goodbye to.
            await asyncio.gather(*goodbyes, return_exceptions=True)

    # -- connections

    async def _stay_connected(self, address: Address) -> None:
        wait_s = RECONNECT_FIRST_S
        while not self._draining:
            connection = NsqConnection(address, self._options, self)
            self._connecting.add(connection)
            try:
                await connection.open()
                await connection.subscribe(self.topic, self._settings.channel)
            except NsqdigestError as error:
                connection.close("the handshake failed")
                _log.warning(
                    "consumer.connection.failed",
                    topic=self.topic,
                    nsqd=str(address),
                    error=error,
                    again_s=round(wait_s, 2),
                )
            else:
                wait_s = RECONNECT_FIRST_S
                self._serve(connection)
                reason = await connection.closed()
                if not self._draining:
                    _log.warning("consumer.connection.lost", topic=self.topic, nsqd=str(address), error=reason)
            finally:
                self._connecting.discard(connection)
            await asyncio.sleep(wait_s)
            wait_s = min(RECONNECT_CAP_S, self._uniform(RECONNECT_FIRST_S, 3 * wait_s))

    def _serve(self, connection: NsqConnection) -> None:
        self._served_at_s[connection] = time.monotonic()
        self._repeats_after_s = min(self._repeats_after_s, possible_repeat_after_s(connection))
        self._metrics.set("nsqd_connections", self.connected, topic=self.topic)
        _log.info(
            "consumer.connection.open",
            topic=self.topic,
            channel=self._settings.channel,
            nsqd=str(connection.address),
        )
        self._apply()

    async def _keep_time(self) -> None:
        """Moves the places on where there are fewer than connections, so that none starves; notices when time stood
        still."""
        rotated_s = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            self._notice_standstill(now_s)
            self._turned_s = now_s
            if now_s - rotated_s >= ROTATE_EVERY_S:
                rotated_s = now_s
                if self.decision.state in (State.FLOWING, State.RAMPING) and self.decision.limit < self.connected:
                    self._apply()

    def _notice_standstill(self, now_s: float) -> None:
        """A process that was stopped reads what came before the stop as if it were new; nsqd may have taken it back
        since."""
        if now_s - self._turned_s >= self._repeats_after_s:
            self._suspect_until_s = now_s + SUSPECT_FOR_S

    # -- what a connection says

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        now_s = time.monotonic()
        self._metrics.add("messages_received_total", len(messages), topic=self.topic)
        if connection in self._served_at_s:
            self._served_at_s[connection] = now_s
        decision = self.decision
        if decision.limit == 0 or decision.state is State.PROBING:
            messages = self._probe_among(connection, messages, decision, now_s)
        if messages:
            self._notice_standstill(now_s)
            received_s = now_s - self._repeats_after_s if now_s < self._suspect_until_s else now_s
            self._commits.put(Arrival(connection, messages, decision.epoch, received_s))

    def _probe_among(
        self, connection: NsqConnection, messages: list[Message], decision: Decision, now_s: float
    ) -> list[Message]:
        """The probing message, if this is where it was asked for; all others go back."""
        probe: list[Message] = []
        if decision.state is State.PROBING and connection is self._armed and not self._probe_came:
            self._probe_came = True
            probe, messages = messages[:1], messages[1:]
            self._controller.probe_began(decision.epoch, now_s + connection.msg_timeout_s)
            self._set_timer()
        self.give_back(connection, messages)
        return probe

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        self._metrics.add("messages_refused_total", 1, topic=self.topic, reason=error.code)
        self._too_late += 1
        now_s = time.monotonic()
        if now_s < self._too_late_said_s + SAY_AGAIN_S:
            return  # they come by the thousand: one line a second tells as much
        _log.warning(
            "consumer.message.too_late",
            topic=self.topic,
            messages=self._too_late,
            nsqd=str(connection.address),
            error=error,
            msg_timeout_s=connection.msg_timeout_s,
        )
        self._too_late, self._too_late_said_s = 0, now_s

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        if self._served_at_s.pop(connection, None) is None:
            return
        self._metrics.set("nsqd_connections", self.connected, topic=self.topic)
        if connection is self._armed and self._controller.probe_lost(self.decision.epoch, time.monotonic()):
            self._decided()
        else:
            self._apply()

    # -- what commits say

    def give_back(self, connection: NsqConnection, messages: Sequence[Message], longest_s: float | None = None) -> None:
        """Back to nsqd, each after its own delay: none while draining, so that the next consumer has them at once."""
        if not messages:
            return
        longest_ms = self._settings.requeue_delay_ms if longest_s is None else longest_s * 1000
        if self._draining:
            longest_ms = 0
        connection.requeue((message, int(self._uniform(0, longest_ms))) for message in messages)
        self._metrics.add("messages_requeued_total", len(messages), topic=self.topic)

    def heard(self, verdict: Verdict, messages_by_epoch: Mapping[int, int]) -> None:
        now_s = time.monotonic()
        decided = False
        for epoch, messages in messages_by_epoch.items():
            if verdict is Verdict.FAILED:
                decided |= self._controller.failed(epoch, now_s)
            elif verdict is Verdict.STORED:
                decided |= self._controller.succeeded(epoch, now_s, messages)
            else:
                # Nothing was asked of the store: had it been the probe, another one must follow.
                decided |= self._controller.probe_lost(epoch, now_s)
        if decided:
            self._decided()
        elif self.decision.state is State.PROBING and self._armed is None:
            # No connection was idle when the probe began; now what was in flight has ended.
            self._apply()

    # -- the decision, carried out

    def _decided(self) -> None:
        """The controller decided anew: say so, and carry it out."""
        decision = self.decision
        wait_s = None if decision.wake_at_s is None else round(decision.wake_at_s - time.monotonic(), 3)
        self._metrics.set("backoff_level", decision.level, topic=self.topic)
        # Probe after probe without a message is what a quiet topic looks like: no news.
        say = _log.debug if decision.reason is Reason.PROBE_LOST else _log.info
        say(
            f"consumer.backoff.{decision.state}",
            topic=self.topic,
            backoff_level=decision.level,
            limit=decision.limit,
            reason=decision.reason,
            wait_s=wait_s,
        )
        if decision.limit == 0:
            self._commits.give_back_waiting()
        self._apply()

    def _apply(self) -> None:
        """Sends the differences between the RDY that is wanted and the RDY that is set, lowered ones first."""
        now_s = time.monotonic()
        serving = [connection for connection in self._served_at_s if connection.is_open and not connection.closing]
        wanted = self._wanted(serving, now_s)
        for connection, count in sorted(wanted.items(), key=lambda item: item[1] - item[0].rdy):
            if connection.rdy != count:
                connection.set_rdy(count)
        self._set_timer()

    def _wanted(self, serving: list[NsqConnection], now_s: float) -> dict[NsqConnection, int]:
        decision = self.decision
        if decision.state is State.PROBING:
            if self._armed not in serving or self._armed_epoch != decision.epoch:
                self._arm(serving, now_s)
            return rdy.only(self._armed, serving)
        self._armed = None
        facts = [(connection, rdy.Facts(connection.max_rdy, self._served_at_s[connection])) for connection in serving]
        wanted = rdy.spread(decision.limit, facts)
        if 0 < decision.limit < len(serving):
            self._served_at_s.update({connection: now_s for connection, places in wanted.items() if places})
        return wanted

    def _arm(self, serving: list[NsqConnection], now_s: float) -> None:
        """Chooses where the probe is asked for: the connection that has waited longest, of those with nothing in
        flight."""
        idle = [connection for connection in serving if connection.in_flight == 0]
        self._armed = min(idle, key=self._served_at_s.__getitem__, default=None)
        if self._armed is not None:
            self._served_at_s[self._armed] = now_s
        self._armed_epoch = self.decision.epoch
        self._probe_came = False

    def _set_timer(self) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        wake_at_s = self.decision.wake_at_s
        if wake_at_s is not None and not self._draining:
            loop = asyncio.get_running_loop()
            self._wake = loop.call_later(max(0.0, wake_at_s - time.monotonic()), self._tick)

    def _tick(self) -> None:
        if self._controller.tick(time.monotonic()):
            self._decided()
        else:
            self._set_timer()
