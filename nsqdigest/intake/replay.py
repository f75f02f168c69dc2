"""Replays dead letters: takes them from the dead-letter topic, and publishes each event to the topic and the nsqd that
it came from.

Invariants:
- A letter is finished only after nsqd acknowledged its event. Any other letter goes back, whatever ends the run: none
  is lost. One whose publish may have happened goes back too, so an event may go twice.
- A letter that stays is held in flight, so that nsqd hands over no letter twice in a run; its body is not kept. At the
  end of the run it goes back at once. When nsqd would hand over no more because so many are held, they go back with a
  delay beyond the end of the run, and the run goes on.
- A run is bounded: in letters, in time (the messages' time-out), and in events per second.
- What is replayed in a run and comes back as a letter of the same run stays: nothing goes round in a circle.

The letters come over `nsq.connection`; `letter_reading` decides; events go to `nsq.publisher`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.errors import Applied, NsqdError, NsqdRefused, PublishError
from nsqdigest.intake.letter_reading import DeadEvent, Judge, NoLetter, Stays, read
from nsqdigest.nsq.connection import NsqConnection
from nsqdigest.nsq.publisher import Publisher

if TYPE_CHECKING:
    from nsqdigest.config import Address
    from nsqdigest.nsq.connection import ConnectionOptions
    from nsqdigest.nsq.frames import Message

WINDOW = 20
"""Letters that an nsqd may send ahead; each may be 1 MiB."""
_WINDOWS_TOGETHER = 64
IDLE_S = 1.5
"""So long nothing comes: there are no more letters."""
HELD_FOR_S = 300.0
"""The messages' time-out that is asked for. A run ends before it has passed, for then nsqd would hand letters over
again. An nsqd that allows less (--max-msg-timeout) keeps its own."""
_SHARE_OF_TIMEOUT = 0.75
_BEYOND_S = 5.0
"""A letter that was put off comes again so long after the latest end of the run."""
_GOODBYE_S = 5.0


class Ended(StrEnum):
    """Why a run ended."""

    EMPTY = "empty"
    """No letter is left that was not looked at."""
    LIMIT = "limit"
    TIME = "time"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    """nsqd did not acknowledge an event, or no connection is left."""


class Handled(NamedTuple):
    """One letter. `stays` is None: it was replayed (or would be)."""

    nsqd: Address
    event: DeadEvent | None
    """None: it is no letter."""
    stays: Stays | None
    detail: str = ""


@dataclass(slots=True)
class Run:
    """What a run did so far."""

    ended: Ended = Ended.EMPTY
    replayed: Counter[str] = field(default_factory=Counter)
    """By topic."""
    stayed: Counter[Stays] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """All letters that were looked at, by the reason in them."""
    put_off: int = 0
    """Letters that stay and come again only after a while: nsqd holds no more of them in flight."""
    problems: list[str] = field(default_factory=list)
    """Of nsqds that could not be used."""
    uncertain: int = 0
    """Letters that nsqd may hand over although their event was published."""


class Limits(NamedTuple):
    letters: int
    """That are replayed, at most."""
    per_s: float
    dry_run: bool
    """Nothing is published, and every letter stays."""


class Replay:
    def __init__(
        self,
        options: ConnectionOptions,
        judge: Judge,
        limits: Limits,
        on_handled: Callable[[Handled], None],
    ) -> None:
        self._options = options
        self._judge = judge
        self._limits = limits
        self._on_handled = on_handled
        self._publisher = Publisher(options)
        self._connections: list[NsqConnection] = []
        self._in_flight: dict[NsqConnection, dict[Message, None]] = {}
        """Whatever has no answer yet: those that stay, and those that were not looked at."""
        self._staying: defaultdict[NsqConnection, list[Message]] = defaultdict(list)
        self._arrived: asyncio.Queue[tuple[NsqConnection, Message] | None] = asyncio.Queue()
        """None: a connection ended."""
        self._sent: set[tuple[str, str]] = set()
        """Topic and hash of what was replayed."""
        self.so_far = Run()
        self._began_ns = time.time_ns()
        self._next_at_s = 0.0

    async def run(self, nsqds: Sequence[Address], topic: str, channel: str) -> Run:
        window = max(1, min(WINDOW, _WINDOWS_TOGETHER // max(1, len(nsqds))))
        try:
            await asyncio.gather(*(self._connect(address, topic, channel, window) for address in nsqds))
            if self._connections:
                self.so_far.ended = await self._until_end(window)
            elif nsqds:
                self.so_far.ended = Ended.FAILED
        finally:
            # Also where the command is interrupted: what is held would be gone for a whole time-out.
            await asyncio.shield(self._give_back())
        return self.so_far

    # -- the connections

    async def _connect(self, address: Address, topic: str, channel: str, window: int) -> None:
        try:
            connection = await self._opened(address)
            self._in_flight[connection] = {}
            self._connections.append(connection)
            await connection.subscribe(topic, channel)
            connection.set_rdy(min(window, connection.max_rdy))
        except NsqdError as error:
            self._add_problem(address, error)

    def _add_problem(self, address: Address, error: NsqdError) -> None:
        text = str(error) if str(address) in str(error) else f"nsqd at {address}: {error}"
        if text not in self.so_far.problems:
            self.so_far.problems.append(text)

    async def _opened(self, address: Address) -> NsqConnection:
        """With a long time-out of messages where nsqd allows it."""
        longer = replace(self._options, msg_timeout_ms=int(HELD_FOR_S * 1000))
        connection = NsqConnection(address, longer, self)
        try:
            await connection.open()
        except NsqdRefused as error:
            if "msg timeout" not in error.detail:
                raise
            connection = NsqConnection(address, self._options, self)
            await connection.open()
        return connection

    async def _give_back(self) -> None:
        """Nothing more comes, then all that was not replayed goes back at once."""
        await asyncio.gather(*(_within(connection.say_goodbye()) for connection in self._connections))
        for connection in self._connections:
            if connection.is_open:
                connection.requeue((message, 0) for message in self._in_flight[connection])
        await asyncio.gather(*(_within(connection.hang_up()) for connection in self._connections))
        for connection in self._connections:
            connection.close("the replay has ended")
        await self._publisher.close()

    # -- letter after letter

    async def _until_end(self, window: int) -> Ended:
        until_s = time.monotonic() + _SHARE_OF_TIMEOUT * min(each.msg_timeout_s for each in self._connections)
        while True:
            if self.so_far.replayed.total() >= self._limits.letters:
                return Ended.LIMIT
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return Ended.TIME
            try:
                async with asyncio.timeout(min(IDLE_S, left_s)):
                    arrival = await self._arrived.get()
            except TimeoutError:
                if left_s <= IDLE_S:
                    return Ended.TIME
                return Ended.EMPTY
            if arrival is None:
                if not any(each.is_open for each in self._connections):
                    return Ended.FAILED
                continue
            connection, message = arrival
            if not await self._handle(connection, message):
                return Ended.FAILED
            if connection.is_open:
                if len(self._staying[connection]) >= max(1, connection.max_rdy - window):
                    self._put_off(connection, until_s - time.monotonic())
                connection.set_rdy(min(len(self._staying[connection]) + window, connection.max_rdy))

    def _put_off(self, connection: NsqConnection, left_s: float) -> None:
        """Makes room: all that stay go back, and come again when this run is over."""
        staying = self._staying.pop(connection)
        delay_ms = int(1000 * (max(0.0, left_s) + _BEYOND_S))
        connection.requeue((message, delay_ms) for message in staying)
        for message in staying:
            del self._in_flight[connection][message]
        self.so_far.put_off += len(staying)

    async def _handle(self, connection: NsqConnection, message: Message) -> bool:
        """Returns whether the run goes on."""
        try:
            event = read(message.body)
        except NoLetter as why:
            self._hold(connection, message, None, Stays.NO_LETTER, str(why))
            return True
        self.so_far.reasons[event.reason] += 1
        refusal = self._refusal(event, message)
        if refusal is None and not self._limits.dry_run:
            refusal = await self._publish(connection, message, event)
        if refusal is not None:
            self._hold(connection, message, event, *refusal)
            return self.so_far.ended is not Ended.FAILED
        self.so_far.replayed[event.topic] += 1
        if self._limits.dry_run:
            self._keep(connection, message)
        self._on_handled(Handled(connection.address, event, None))
        return True

    def _refusal(self, event: DeadEvent, message: Message) -> tuple[Stays, str] | None:
        refusal = self._judge.refusal(event, time.time_ns() // 1_000_000)
        is_new = message.timestamp_ns >= self._began_ns
        if refusal is None and is_new and (event.topic, event.sha256) in self._sent:
            return Stays.CAME_BACK, f"{event.reason}: {event.detail}"
        return refusal

    async def _publish(self, connection: NsqConnection, message: Message, event: DeadEvent) -> tuple[Stays, str] | None:
        """Why it stays. None: nsqd has the event, and the letter is finished."""
        await self._pace()
        try:
            await self._publisher.publish(connection.address, event.topic, [event.body])
        except PublishError as error:
            if error.applied is Applied.AMBIGUOUS:
                self.so_far.uncertain += 1
            if not error.code:  # else nsqd refuses this event, and may take others
                self.so_far.problems.append(str(error))
                self.so_far.ended = Ended.FAILED
            return Stays.NOT_PUBLISHED, str(error)
        self._sent.add((event.topic, event.sha256))
        del self._in_flight[connection][message]
        if connection.is_open:
            connection.fin([message])
        else:
            self.so_far.uncertain += 1
        return None

    async def _pace(self) -> None:
        now_s = time.monotonic()
        wait_s = self._next_at_s - now_s
        self._next_at_s = max(now_s, self._next_at_s) + 1 / self._limits.per_s
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _hold(
        self, connection: NsqConnection, message: Message, event: DeadEvent | None, stays: Stays, detail: str
    ) -> None:
        self._keep(connection, message)
        self.so_far.stayed[stays] += 1
        self._on_handled(Handled(connection.address, event, stays, detail))

    def _keep(self, connection: NsqConnection, message: Message) -> None:
        message.body = b""
        self._staying[connection].append(message)

    # -- as a Receiver

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        self._in_flight[connection].update(dict.fromkeys(messages))
        for message in messages:
            self._arrived.put_nowait((connection, message))

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        """A FIN that came too late: nsqd hands the letter over again."""
        self.so_far.uncertain += 1

    def on_closed(self, connection: NsqConnection, reason: NsqdError) -> None:
        if connection in self._connections and not connection.closing:
            self._add_problem(connection.address, reason)
        self._arrived.put_nowait(None)


async def _within(goodbye: Awaitable[None]) -> None:
    with contextlib.suppress(NsqdError, TimeoutError):
        async with asyncio.timeout(_GOODBYE_S):
            await goodbye
