"""Group commits of one topic: what arrived is decoded, filed in the store, and finished.

Always so:
- FIN only after Redis acknowledged the write, or after nsqd acknowledged the dead letter. Everything else is given
  back.
- Whatever came in while a write was under way is the next batch, and it is decoded while the reply is awaited: small
  batches when it is quiet, large ones under load.
- A failed batch is one failure, not one per message; an outage dead-letters nothing, however many attempts it costs.
- A write is never cancelled: it ends with the store's answer or its time-out.
- A message that nsqd hands over again while it is still being worked on is not worked on twice: it shares the fate of
  the first hand-over. Only those with attempts above 1 can be such, and only when one comes is there a look.

How much may arrive, and where a message goes back to, is the consumer's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from nsqdigest import log
from nsqdigest.dead_letters import DeadLetters
from nsqdigest.errors import DeadLetterReason, StoreError
from nsqdigest.events import Record, Rejected, Router
from nsqdigest.filing import Filed, FiledRoute, Filing
from nsqdigest.handovers import Again, MessagesOf, Tied, firsts
from nsqdigest.metrics import Metrics
from nsqdigest.timelines import Timelines
from nsqdigest.transport.connection import NsqConnection
from nsqdigest.transport.frames import Message

UNDER_WAY = 2
KEPT_AGAIN_S = 30.0
"""A message that can neither be filed nor dead-lettered comes again after about so long."""
_POSSIBLE_REPEAT_FRACTION = 0.75

_log = log.get("consumer")


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


class Host(Protocol):
    """The consumer, as far as commits need it. Nothing here may wait."""

    def give_back(
        self, connection: NsqConnection, messages: Sequence[Message], longest_s: float | None = None
    ) -> None: ...

    def finish(self, connection: NsqConnection, messages: list[Message]) -> None: ...

    def finished_late(self, connection: NsqConnection, messages: Iterable[Message], epoch: int) -> None:
        """These are being finished when their time is nearly up."""

    def heard(self, verdict: Verdict, messages_by_epoch: Mapping[int, int]) -> None: ...

    def timeline_is_due(self) -> None: ...


class _Letter(NamedTuple):
    connection: NsqConnection
    message: Message
    rejected: Rejected


class _Batch(NamedTuple):
    """A decoded batch. `owners` stands beside `records`: the message each came from."""

    arrivals: list[Arrival]
    records: list[Record]
    owners: list[Message]
    letters: list[_Letter]


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
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._host = host
        self._inbox: deque[Arrival] = deque()
        self._inbox_filled = asyncio.Event()
        self._decoded: list[Arrival] = []
        """What waits, decoded, for a write to end."""
        self._writes: dict[asyncio.Task[None], _Batch] = {}
        self._letters: dict[asyncio.Task[None], list[_Letter]] = {}
        self._tied = Tied()
        self._is_abandoned = False

    # -- what the consumer does with it

    def put(self, arrival: Arrival) -> None:
        self._inbox.append(arrival)
        self._inbox_filled.set()

    def give_back_waiting(self) -> None:
        """What was not begun: the inbox, and what waits, decoded, for a write to end."""
        self._give_back(self._decoded)
        self._decoded = []
        while self._inbox:
            arrival = self._inbox.popleft()
            self._host.give_back(arrival.connection, arrival.messages)

    async def settle(self, until_s: float | None = None) -> None:
        """Waits for what was begun, dead letters included; with an instant, no longer than that."""
        while under_way := {*self._writes, *self._letters}:
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            await asyncio.wait(under_way, timeout=left_s)

    async def abandon(self) -> None:
        """Gives back all that is not finished, also what is being written: whether it was stored nobody waits to
        hear."""
        self.give_back_waiting()
        self._is_abandoned = True
        for write, batch in self._writes.items():
            if not write.done():
                self._give_back(batch.arrivals)
        letters = dict(self._letters)
        for task in letters:
            task.cancel()
        await asyncio.gather(*letters, return_exceptions=True)
        for task, unsent in letters.items():
            for letter in unsent if task.cancelled() else ():
                self._return(letter.connection, [letter.message])

    async def run(self) -> None:
        while True:
            if not self._inbox:
                self._inbox_filled.clear()
                await self._inbox_filled.wait()
            arrivals = self._take()
            try:
                batch = self._decode(arrivals)
            except Exception as error:
                _log.error("consumer.decode.bug", topic=self._topic, error=error, exc_info=error)
                self._give_back(arrivals)
                self._host.heard(Verdict.FAILED, _by_epoch(arrivals))
                continue
            self._decoded = arrivals
            while len(self._writes) >= UNDER_WAY:
                await asyncio.wait(self._writes, return_when=asyncio.FIRST_COMPLETED)
            arrivals, self._decoded = self._decoded, []
            if arrivals:
                write = asyncio.create_task(self._commit(batch), name=f"{self._topic} commit")
                self._writes[write] = batch
                write.add_done_callback(self._writes.pop)
            await asyncio.sleep(0)  # lets the write go out before the next batch is decoded

    def _give_back(self, arrivals: Iterable[Arrival]) -> None:
        for arrival in arrivals:
            self._return(arrival.connection, arrival.messages)

    def _return(self, connection: NsqConnection, messages: Sequence[Message], longest_s: float | None = None) -> None:
        messages_of: MessagesOf = {connection: list(messages)}
        self._tied.join(messages_of)
        for each, theirs in messages_of.items():
            self._host.give_back(each, theirs, longest_s)

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
                connection.let_go(len(messages))
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
        records: list[Record] = []
        owners: list[Message] = []
        letters: list[_Letter] = []
        unmatched = 0
        now_ms = self._store.clock.now_ms()
        now_s = time.monotonic()
        records_of, add_record, add_owner = self._router.records_of, records.append, owners.append
        in_work: dict[tuple[bytes, int], Message] = {}
        known: list[Again] = []
        for arrival in arrivals:
            connection = arrival.connection
            held_long = _is_held_long(arrival, now_s)
            for message in arrival.messages:
                again = message.attempts > 1
                if again:
                    in_work = in_work or self._in_work(arrivals)
                    first = in_work[message.id, message.timestamp_ns]
                    if first is not message:
                        known.append(Again(first, connection, message))
                        continue
                taken = records_of(message, now_ms, held_long or again, add_record)
                if taken == 1:
                    add_owner(message)
                elif taken == 0:
                    unmatched += 1
                elif isinstance(taken, Rejected):
                    letters.append(_Letter(connection, message, taken))
                    owners += [message] * (len(records) - len(owners))
                else:
                    owners += [message] * taken
        if unmatched:
            self._metrics.add("events_unmatched_total", unmatched, topic=self._topic)
        if known:
            self._tie(known, arrivals)
        return _Batch(arrivals, records, owners, letters)

    def _in_work(self, arrivals: list[Arrival]) -> dict[tuple[bytes, int], Message]:
        """What is being written or dead-lettered, and this batch."""
        messages = [letter.message for task, letters in self._letters.items() if not task.done() for letter in letters]
        # A write that is done has let go of its messages, though its callback may not have run yet.
        for others in (*(batch.arrivals for write, batch in self._writes.items() if not write.done()), arrivals):
            for arrival in others:
                messages += arrival.messages
        return firsts(messages)

    def _tie(self, known: list[Again], arrivals: MutableSequence[Arrival]) -> None:
        """From here on they are no messages of these arrivals."""
        self._tied.tie(known)
        taken_out = {id(again.message) for again in known}
        for position, arrival in enumerate(arrivals):
            left = [message for message in arrival.messages if id(message) not in taken_out]
            arrivals[position] = arrival._replace(messages=left)
        self._metrics.add("messages_handed_over_again_total", len(known), topic=self._topic)

    def _tie_waiting(self, batch: _Batch) -> None:
        """While writes took long, more hand-overs of their messages may have come than were looked at yet."""
        worked_on = firsts([message for arrival in batch.arrivals for message in arrival.messages])
        known = [
            Again(first, arrival.connection, message)
            for arrival in self._inbox
            for message in arrival.messages
            if message.attempts > 1 and (first := worked_on.get((message.id, message.timestamp_ns)))
        ]
        if known:
            self._tie(known, self._inbox)

    async def _commit(self, batch: _Batch) -> None:
        now_s = time.monotonic()
        if any(_is_held_long(arrival, now_s) for arrival in batch.arrivals):
            # Since it was decoded the process stood still, or the writes before it took their time.
            for record in batch.records:
                record.possible_repeat = True
        try:
            filed = await self._filing.file(batch.records, batch.owners)
        except Exception as error:
            _log.error("consumer.commit.bug", topic=self._topic, error=error, exc_info=error)
            # To be on the safe side nothing of it counts as stored, and it steps back like from a failure of the store.
            everything = {id(message) for arrival in batch.arrivals for message in arrival.messages}
            filed = Filed(everything, {}, StoreError("bug", f"{type(error).__name__}: {error}"), 0)
        unsafe, failure = filed.unsafe, filed.failure
        if filed.due_at_once:
            self._host.timeline_is_due()
        if self._is_abandoned:
            return
        if failure is not None:
            _log.warning(
                "consumer.store.failed",
                topic=self._topic,
                messages=len(unsafe),
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
        """Finishes what is stored, gives back what is not, sends off the dead letters."""
        now_s, unsafe = time.monotonic(), filed.unsafe
        if any(_is_held_long(arrival, now_s) for arrival in batch.arrivals):
            self._tie_waiting(batch)
        letters = [*batch.letters, *_refused(batch, filed.refused)]
        rejected = {id(letter.message) for letter in letters}
        stored_of: MessagesOf = {}  # one write each: a small send costs as much as a large one
        for arrival in batch.arrivals:
            connection, messages, epoch, _ = arrival
            stored = messages
            if unsafe or rejected:
                stored = [message for message in messages if id(message) not in unsafe and id(message) not in rejected]
                self._return(connection, [message for message in messages if id(message) in unsafe])
            stored_of.setdefault(connection, []).extend(stored)
            if _is_held_long(arrival, now_s):
                self._host.finished_late(connection, stored, epoch)
        self._tied.join(stored_of)
        for connection, stored in stored_of.items():
            self._fin(connection, stored)
        self._observe(stored_of.values())
        letters = [letter for letter in letters if id(letter.message) not in unsafe]
        if letters:
            task = asyncio.create_task(self._send(letters), name=f"{self._topic} dead letters")
            self._letters[task] = letters
            task.add_done_callback(self._letters.pop)

    def _observe(self, stored: Iterable[list[Message]]) -> None:
        now_ns = time.time_ns()
        ages_s = [(now_ns - message.timestamp_ns) * 1e-9 for messages in stored for message in messages]
        if ages_s:
            self._metrics.observe("message_age_seconds", *ages_s, topic=self._topic)
            self._metrics.observe("batch_messages", len(ages_s), topic=self._topic)

    def _fin(self, connection: NsqConnection, messages: list[Message]) -> None:
        if messages:
            self._host.finish(connection, messages)
            self._metrics.add("messages_finished_total", len(messages), topic=self._topic)

    # -- dead letters

    async def _send(self, letters: list[_Letter]) -> None:
        by_connection: dict[NsqConnection, list[_Letter]] = {}
        for letter in letters:
            by_connection.setdefault(letter.connection, []).append(letter)
        while by_connection:
            connection, theirs = by_connection.popitem()
            kept = await self._dead_letters.publish(
                connection.address, self._topic, [(letter.message, letter.rejected) for letter in theirs]
            )
            # What is not sent yet: all that is left to do for whoever cancels this.
            letters[:] = [letter for others in by_connection.values() for letter in others]
            if kept is not None:
                _log.counted(
                    "error",
                    "consumer.message.kept",
                    by=("topic",),
                    adds=("messages",),
                    topic=self._topic,
                    messages=len(kept.messages),
                    error=kept.error,
                    again_s=KEPT_AGAIN_S,
                )
                self._return(connection, kept.messages, KEPT_AGAIN_S)
                not_sent = {id(message) for message in kept.messages}
                theirs = [letter for letter in theirs if id(letter.message) not in not_sent]
            sent_of: MessagesOf = {connection: [letter.message for letter in theirs]}
            self._tied.join(sent_of)
            for each, messages in sent_of.items():
                self._fin(each, messages)
            for _, message, rejected in theirs:
                self._metrics.add("dead_letters_total", 1, topic=self._topic, reason=rejected.reason)
                _log.counted(
                    "warning",
                    "consumer.message.dead_lettered",
                    by=("topic", "reason"),
                    topic=self._topic,
                    message=message.id,
                    reason=rejected.reason,
                    detail=rejected.detail,
                )


def _refused(batch: _Batch, refused: Mapping[int, str]) -> list[_Letter]:
    if not refused:
        return []
    dead_before = {id(letter.message) for letter in batch.letters}
    return [
        _Letter(arrival.connection, message, Rejected(DeadLetterReason.REFUSED_BY_STORE, refused[id(message)]))
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
