"""Group commits of one topic: what arrived is decoded, filed in the store, and finished.

Invariants:
- FIN only after Redis acknowledged the write, or after nsqd acknowledged the dead letter. Everything else is given
  back, once, whatever raises on the way and whenever it is cancelled: a batch holds what nsqd has not been told yet,
  and its task gives that back at its end.
- Whatever came in while a write was under way is the next batch, and it is decoded while the reply is awaited: small
  batches when it is quiet, large ones under load.
- A failed batch is one failure, not one per message; an outage dead-letters nothing, however many attempts it costs.
- A write that was sent is not taken back: whoever ends its task no longer waits for the store's answer.
- A message that nsqd hands over a second time (attempts above 1) is a message like others, marked as a possible repeat:
  to store it twice changes nothing, and the second FIN is refused at worst. It is rare, since nothing is asked for
  while something is overdue.

How much may arrive, and where a message goes back to, is the consumer's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import NamedTuple, Protocol

from nsqdigest.base import log
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.intake.bodies import field_names
from nsqdigest.intake.letter_queue import LetterQueue, MessageOwner
from nsqdigest.intake.letters import BODY_BYTES, DeadLetters, Letter, shortened
from nsqdigest.intake.routing import Rejected, Router
from nsqdigest.intake.writer import Filed, FiledRoute, Filing
from nsqdigest.nsq.connection import NsqConnection
from nsqdigest.nsq.frames import Message
from nsqdigest.store.record import Record
from nsqdigest.store.timelines import Timelines

UNDER_WAY = 2
UNMATCHED_EVERY_S = 60.0
OVERSIZE_BYTES = 16 << 20
"""Of messages larger than limits.event, on their way to the dead-letter topic."""
_POSSIBLE_REPEAT_FRACTION = 0.75

_log = log.get("consumer")

Group = tuple[NsqConnection, list[Message]]
MessagesOf = dict[NsqConnection, list[Message]]


class Arrival(NamedTuple):
    """What one read brought: of one connection, in one epoch of the controller."""

    connection: NsqConnection
    messages: list[Message]
    epoch: int
    received_s: float


class Verdict(StrEnum):
    """What a batch says about the store."""

    STORED = "stored"
    FAILED = "failed"
    NOT_ASKED = "not-asked"
    """Only dead letters, or events of no route."""


class Host(MessageOwner, Protocol):
    """The consumer, as far as commits need it. Nothing here may wait."""

    def finished_late(self, connection: NsqConnection, messages: Iterable[Message], epoch: int) -> None:
        """These are being finished when their time is nearly up."""

    def heard(self, verdict: Verdict, messages_by_epoch: Mapping[int, int]) -> None: ...

    def timeline_is_due(self) -> None: ...


@dataclass(slots=True)
class _Batch:
    """A decoded batch. `owners` stands beside `records`: the message each came from."""

    arrivals: list[Arrival]
    records: list[Record] = field(default_factory=list)
    owners: list[Message] = field(default_factory=list)
    letters: list[tuple[NsqConnection, Letter]] = field(default_factory=list)
    unfinished: list[Group] = field(init=False)
    """What nsqd has not been told yet: to be given back, whatever happens."""
    stored: list[Group] = field(default_factory=list)
    """To be finished."""

    def __post_init__(self) -> None:
        self.unfinished = [(arrival.connection, arrival.messages) for arrival in self.arrivals]


class Commits:
    def __init__(
        self,
        topic: str,
        *,
        batch_size: int,
        router: Router,
        routes: Mapping[int, FiledRoute],
        store: Timelines,
        dead_letters: DeadLetters,
        metrics: Metrics,
        host: Host,
    ) -> None:
        self._topic = topic
        self._batch_size = batch_size
        self._router = router
        self._store = store
        self._filing = Filing(routes, store, metrics)
        self._metrics = metrics
        self._host = host
        self._inbox: deque[Arrival] = deque()
        self._inbox_filled = asyncio.Event()
        self._decoded: _Batch | None = None
        """What waits, decoded, for a write to end."""
        self._writes: dict[asyncio.Task[None], _Batch] = {}
        self._letters = LetterQueue(topic, dead_letters, metrics, host)
        self._is_full = False
        self._group = asyncio.TaskGroup()
        """Owns the task of each write and of each connection's letters."""

    # -- what the consumer does with it

    def put(self, arrival: Arrival) -> None:
        if max([len(message.body) for message in arrival.messages]) > self._router.event_bytes:
            arrival = self._refuse_oversize(arrival)
        if arrival.messages:
            self._inbox.append(arrival)
            self._inbox_filled.set()

    def _refuse_oversize(self, arrival: Arrival) -> Arrival:
        """What is larger than limits.event never waits for a write: of it only what a letter holds is kept, all of them
        together in OVERSIZE_BYTES, and what is beyond goes back. Returns the others."""
        connection, messages, epoch, _ = arrival
        limit, left = self._router.event_bytes, OVERSIZE_BYTES - self._letters.held_bytes
        letters: list[Letter] = []
        beyond: list[Message] = []
        for message in messages:
            size_bytes = len(message.body)
            if size_bytes <= limit:
                continue
            if min(size_bytes, BODY_BYTES) > left:
                beyond.append(message)
                continue
            letters.append(Letter(message, self._router.too_large(size_bytes), shortened(message)))
            left -= len(message.body)
        if letters:
            self._letters.put(connection, letters, self._group)
        self._host.give_back(connection, beyond)
        self._is_full |= bool(beyond)
        self._host.heard(Verdict.NOT_ASKED, {epoch: len(letters) + len(beyond)})
        refused = {id(message) for message in (*beyond, *(letter.message for letter in letters))}
        return arrival._replace(messages=[message for message in messages if id(message) not in refused])

    @property
    def is_full(self) -> bool:
        """Whether oversize messages had to go back, and their letters have not made room since."""
        self._is_full &= self._letters.held_bytes > OVERSIZE_BYTES // 2
        return self._is_full

    def is_overdue(self, now_s: float) -> bool:
        """Whether something here has been held for so long that nsqd takes it back, or will soon. (Letters do not
        count: the publisher has limits of its own, and what it cannot send goes back.)"""
        return any(_is_held_long(arrival, now_s) for arrival in self._waiting_or_under_way())

    def _waiting_or_under_way(self) -> Iterator[Arrival]:
        decoded = [] if self._decoded is None else self._decoded.arrivals
        return chain(self._inbox, decoded, *(batch.arrivals for batch in self._writes.values()))

    def give_back_waiting(self) -> None:
        """What was not begun: the inbox, and what waits, decoded, for a write to end."""
        if self._decoded is not None:
            self._give_back(self._decoded)
            self._decoded = None
        while self._inbox:
            arrival = self._inbox.popleft()
            self._host.give_back(arrival.connection, arrival.messages)

    async def settle(self, until_s: float | None = None) -> None:
        """Waits for what was begun, dead letters included; with an instant, no longer than that."""
        while under_way := self._under_way:
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            await asyncio.wait(under_way, timeout=left_s)

    async def abandon(self) -> None:
        """Gives back all that is not finished, also what is being written: whether it was stored nobody waits to
        hear."""
        self.give_back_waiting()
        for batch in self._writes.values():
            self._give_back(batch)
        self._letters.give_back_all()
        under_way = self._under_way
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    @property
    def _under_way(self) -> list[asyncio.Task[None]]:
        return [*self._writes, *self._letters.tasks]

    async def run(self) -> None:
        async with self._group:
            while True:
                if not self._inbox:
                    self._inbox_filled.clear()
                    await self._inbox_filled.wait()
                self._decoded = self._decode(self._take())
                while len(self._writes) >= UNDER_WAY:
                    await asyncio.wait(self._writes, return_when=asyncio.FIRST_COMPLETED)
                batch, self._decoded = self._decoded, None
                if batch is not None:
                    write = self._group.create_task(self._fenced(batch), name=f"{self._topic} commit")
                    self._writes[write] = batch
                    write.add_done_callback(self._writes.pop)
                # The reader has a turn, and the write begins; its bytes go out during the next ones. (To wait for that
                # gains nothing that could be measured: Redis still has the write before.)
                await asyncio.sleep(0)

    def _give_back(self, batch: _Batch) -> None:
        """What nsqd has not been told yet: nothing, where it was given back before."""
        for groups in (batch.unfinished, batch.stored):
            while groups:
                connection, messages = groups[-1]
                if messages:
                    self._host.give_back(connection, messages)
                groups.pop()

    # -- a batch

    def _take(self) -> list[Arrival]:
        """Up to `batch_size` messages, oldest first. What nsqd has taken back meanwhile is let go unprocessed."""
        room = self._batch_size
        now_s = time.monotonic()
        taken: list[Arrival] = []
        while self._inbox and room > 0:
            arrival = self._inbox.popleft()
            connection, messages = arrival.connection, arrival.messages
            if messages and now_s - arrival.received_s >= connection.msg_timeout_s:
                connection.forget_in_flight(len(messages))
                self._metrics.add("messages_expired_total", len(messages), topic=self._topic)
                _log.counted(
                    "warning",
                    "consumer.message.held_too_long",
                    by=("topic", "nsqd"),
                    adds=("messages",),
                    topic=self._topic,
                    messages=len(messages),
                    nsqd=str(connection.address),
                    msg_timeout_s=connection.msg_timeout_s,
                )
                continue
            if len(messages) > room:
                self._inbox.appendleft(arrival._replace(messages=messages[room:]))
                arrival = arrival._replace(messages=messages[:room])
            room -= len(arrival.messages)
            taken.append(arrival)
        return taken

    def _decode(self, arrivals: list[Arrival]) -> _Batch:
        batch = _Batch(arrivals)
        records, owners = batch.records, batch.owners
        unmatched: list[Message] = []
        now_ms = self._store.clock.now_ms()
        now_s = time.monotonic()
        records_of, add_record, add_owner = self._router.records_of, records.append, owners.append
        for arrival in arrivals:
            held_long = _is_held_long(arrival, now_s)
            for message in arrival.messages:
                try:
                    taken = records_of(message, now_ms, held_long or message.attempts > 1, add_record)
                except Exception as error:
                    taken = self._failed_at(message, error)
                if taken == 1:
                    add_owner(message)
                elif taken == 0:
                    unmatched.append(message)
                elif isinstance(taken, Rejected):
                    batch.letters.append((arrival.connection, Letter(message, taken)))
                    owners += [message] * (len(records) - len(owners))
                else:
                    owners += [message] * taken
        if unmatched:
            self._report_unmatched(unmatched)
        return batch

    def _report_unmatched(self, messages: Sequence[Message]) -> None:
        """They are finished: a mistake in `match` would else lose events without a word."""
        self._metrics.add("events_unmatched_total", len(messages), topic=self._topic)
        _log.counted(
            "warning",
            "consumer.event.unmatched",
            by=("topic",),
            adds=("events",),
            every_s=UNMATCHED_EVERY_S,
            topic=self._topic,
            events=len(messages),
            fields_of_one=field_names(messages[-1].body),
            hint="no route matches; they are finished. Compare `match` of this topic's routes with the fields",
        )

    def _failed_at(self, message: Message, error: Exception) -> Rejected:
        """A body that the program makes a mistake at: its neighbours must not come again and again with it."""
        _log.error("consumer.decode.bug", topic=self._topic, message=message.id, error=error, exc_info=error)
        return Rejected(DeadLetterReason.BUG, f"{type(error).__name__}: {error}")

    async def _fenced(self, batch: _Batch) -> None:
        try:
            await self._commit(batch)
        except Exception as error:
            _log.error("consumer.commit.bug", topic=self._topic, error=error, exc_info=error)
            # It steps back like from a failure of the store, so that a mistake does not make messages circle.
            self._host.heard(Verdict.FAILED, _by_epoch(batch.arrivals))
        finally:
            self._give_back(batch)

    async def _commit(self, batch: _Batch) -> None:
        now_s = time.monotonic()
        if any(_is_held_long(arrival, now_s) for arrival in batch.arrivals):
            # Since it was decoded the process stood still, or the writes before it took their time.
            for record in batch.records:
                record.possible_repeat = True
        filed = await self._filing.file(batch.records, batch.owners)
        failure = filed.failure
        if filed.due_at_once:
            self._host.timeline_is_due()
        if failure is not None:
            _log.warning(
                "consumer.store.failed",
                topic=self._topic,
                messages=len(filed.unsafe),
                reason=failure.reason,
                applied=failure.applied,
                error=failure,
            )
        # Before FIN and REQ: were a probe finished before its RDY is lowered, nsqd would hand over the next message.
        is_stored = any(id(owner) not in filed.refused for owner in batch.owners)
        verdict = Verdict.FAILED if failure else Verdict.STORED if is_stored else Verdict.NOT_ASKED
        self._host.heard(verdict, _by_epoch(batch.arrivals))
        self._conclude(batch, filed)

    def _conclude(self, batch: _Batch, filed: Filed) -> None:
        """Finishes what is stored, sends off the dead letters. What is left the batch's task gives back."""
        now_s = time.monotonic()
        stored_of, unsafe_of, letters_of = _sorted_out(batch, filed)
        for arrival in batch.arrivals:
            if _is_held_long(arrival, now_s):
                self._host.finished_late(arrival.connection, arrival.messages, arrival.epoch)
        batch.unfinished, batch.stored = list(unsafe_of.items()), list(stored_of.items())
        for connection, letters in letters_of.items():
            self._letters.put(connection, letters, self._group)
        self._observe(stored_of.values())
        while batch.stored:
            connection, stored = batch.stored[-1]
            if stored:
                self._host.finish(connection, stored)
                self._metrics.add("messages_finished_total", len(stored), topic=self._topic)
            batch.stored.pop()

    def _observe(self, stored: Iterable[list[Message]]) -> None:
        now_ns = time.time_ns()
        ages_s = [(now_ns - message.timestamp_ns) * 1e-9 for messages in stored for message in messages]
        if ages_s:
            self._metrics.observe("message_age_seconds", *ages_s, topic=self._topic)
            self._metrics.observe("batch_messages", len(ages_s), topic=self._topic)


def _sorted_out(batch: _Batch, filed: Filed) -> tuple[MessagesOf, MessagesOf, dict[NsqConnection, list[Letter]]]:
    """What is stored, what is not, and what becomes a letter: each message is in one of them. By connection, for a
    small send costs as much as a large one."""
    unsafe = filed.unsafe
    letters = [*batch.letters, *_refused(batch, filed.refused)]
    rejected = {id(letter.message) for _, letter in letters}
    stored_of: MessagesOf = {}
    unsafe_of: MessagesOf = {}
    letters_of: dict[NsqConnection, list[Letter]] = {}
    for connection, messages, _, _ in batch.arrivals:
        stored = messages
        if unsafe or rejected:
            stored = [message for message in messages if id(message) not in unsafe and id(message) not in rejected]
            unsafe_of.setdefault(connection, []).extend(message for message in messages if id(message) in unsafe)
        stored_of.setdefault(connection, []).extend(stored)
    for connection, letter in letters:
        if id(letter.message) not in unsafe:
            letters_of.setdefault(connection, []).append(letter)
    return stored_of, unsafe_of, letters_of


def _refused(batch: _Batch, refused: Mapping[int, str]) -> list[tuple[NsqConnection, Letter]]:
    if not refused:
        return []
    dead_before = {id(letter.message) for _, letter in batch.letters}
    return [
        (arrival.connection, Letter(message, Rejected(DeadLetterReason.REFUSED_BY_STORE, refused[id(message)])))
        for arrival in batch.arrivals
        for message in arrival.messages
        if id(message) in refused and id(message) not in dead_before
    ]


def possible_repeat_after_s(connection: NsqConnection) -> float:
    """A message held for so long may be handed over again before we finish it, so it is looked for among what was
    shown."""
    return connection.msg_timeout_s * _POSSIBLE_REPEAT_FRACTION


def _by_epoch(arrivals: Iterable[Arrival]) -> dict[int, int]:
    """How many messages of each epoch."""
    counts: dict[int, int] = {}
    for arrival in arrivals:
        counts[arrival.epoch] = counts.get(arrival.epoch, 0) + len(arrival.messages)
    return counts


def _is_held_long(arrival: Arrival, now_s: float) -> bool:
    return now_s - arrival.received_s >= possible_repeat_after_s(arrival.connection)
