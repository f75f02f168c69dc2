"""Group commits of one topic: what arrived is decoded, filed in the store, and finished.

Always so:
- FIN only after Redis acknowledged the write, or after nsqd acknowledged the dead letter. Everything else is given
  back.
- Whatever came in while a write was under way is the next batch, and it is decoded while the reply is awaited: small
  batches when it is quiet, large ones under load.
- A failed batch is one failure, not one per message; an outage dead-letters nothing, however many attempts it costs.
- A write is never cancelled: it ends with the store's answer or its time-out.

How much may arrive, and where a message goes back to, is the consumer's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from nsqdigest import log
from nsqdigest.dead_letters import DeadLetters
from nsqdigest.errors import StoreError
from nsqdigest.events import Record, Rejected, Router
from nsqdigest.layout import calls_of
from nsqdigest.metrics import Metrics
from nsqdigest.policy import Plan
from nsqdigest.timelines import Added, Timelines
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


class FiledRoute(NamedTuple):
    """Where a route's number leads."""

    name: str
    plan: Plan


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
        self._routes = routes
        self._store = store
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._host = host
        self._inbox: deque[Arrival] = deque()
        self._inbox_filled = asyncio.Event()
        self._decoded: list[Arrival] = []
        """What waits, decoded, for a write to end."""
        self._writes: dict[asyncio.Task[None], _Batch] = {}
        self._letters: set[asyncio.Task[None]] = set()
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
        for batch in self._writes.values():
            self._give_back(batch.arrivals)
        for task in self._letters:
            task.cancel()
        await asyncio.gather(*self._letters, return_exceptions=True)

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
            self._host.give_back(arrival.connection, arrival.messages)

    # -- a batch

    def _take(self) -> list[Arrival]:
        """Up to `batch_size` messages, oldest first. What nsqd has taken back meanwhile is let go unprocessed."""
        room = self._batch_size
        now_s = time.monotonic()
        taken: list[Arrival] = []
        while self._inbox and room > 0:
            arrival = self._inbox.popleft()
            connection, messages = arrival.connection, arrival.messages
            if now_s - arrival.received_s >= connection.msg_timeout_s:
                connection.let_go(len(messages))
                self._metrics.add("messages_expired_total", len(messages), topic=self._topic)
                _log.warning(
                    "consumer.message.held_too_long",
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
        for arrival in arrivals:
            connection = arrival.connection
            held_long = _is_held_long(arrival, now_s)
            for message in arrival.messages:
                taken = records_of(message, now_ms, held_long or message.attempts > 1, add_record)
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
        return _Batch(arrivals, records, owners, letters)

    async def _commit(self, batch: _Batch) -> None:
        now_s = time.monotonic()
        if any(_is_held_long(arrival, now_s) for arrival in batch.arrivals):
            # Since it was decoded the process stood still, or the writes before it took their time.
            for record in batch.records:
                record.possible_repeat = True
        try:
            unsafe, failure = await self._file(batch)
        except Exception as error:
            _log.error("consumer.commit.bug", topic=self._topic, error=error, exc_info=error)
            # To be on the safe side nothing of it counts as stored, and it steps back like from a failure of the store.
            unsafe = {id(message) for arrival in batch.arrivals for message in arrival.messages}
            failure = StoreError("bug", f"{type(error).__name__}: {error}")
        if self._is_abandoned:
            return
        rejected = {id(letter.message) for letter in batch.letters}
        stored_of: dict[NsqConnection, list[Message]] = {}  # one write each: a small send costs as much as a large one
        for connection, messages, _, _ in batch.arrivals:
            stored = messages
            if unsafe or rejected:
                stored = [message for message in messages if id(message) not in unsafe and id(message) not in rejected]
                self._host.give_back(connection, [message for message in messages if id(message) in unsafe])
            stored_of.setdefault(connection, []).extend(stored)
        for connection, stored in stored_of.items():
            self._fin(connection, stored)
        letters = [letter for letter in batch.letters if id(letter.message) not in unsafe]
        if letters:
            task = asyncio.create_task(self._send(letters), name=f"{self._topic} dead letters")
            self._letters.add(task)
            task.add_done_callback(self._letters.discard)
        if failure is not None:
            _log.warning(
                "consumer.store.failed",
                topic=self._topic,
                messages=len(unsafe),
                reason=failure.reason,
                applied=failure.applied,
                error=failure,
            )
        verdict = Verdict.FAILED if failure else Verdict.STORED if batch.records else Verdict.NOT_ASKED
        by_epoch: dict[int, int] = {}
        for arrival in batch.arrivals:
            by_epoch[arrival.epoch] = by_epoch.get(arrival.epoch, 0) + len(arrival.messages)
        self._host.heard(verdict, by_epoch)

    def _fin(self, connection: NsqConnection, messages: list[Message]) -> None:
        if messages:
            connection.fin(messages)
            self._metrics.add("messages_finished_total", len(messages), topic=self._topic)

    async def _file(self, batch: _Batch) -> tuple[set[int], StoreError | None]:
        """Writes a batch to the store. Answers which messages (by identity) are not safe there, and why."""
        unsafe: set[int] = set()
        failure: StoreError | None = None
        due_at_once = 0
        for number, partition, records, owners in self._groups(batch):
            route = self._routes[number]
            start = 0
            for call in calls_of(records):
                if failure is None:
                    try:
                        first = route.plan.beginning(self._store.clock.now_ms())
                        added = await self._store.add(route.name, partition, call, first)
                        due_at_once += added.due_at_once
                        self._count(route.name, added)
                    except StoreError as error:
                        failure = error
                if failure is not None:
                    unsafe.update(id(owner) for owner in owners[start : start + len(call)])
                start += len(call)
        if due_at_once:
            self._host.timeline_is_due()
        return unsafe, failure

    def _groups(self, batch: _Batch) -> Iterable[tuple[int, int, list[Record], list[Message]]]:
        """By route and partition."""
        if len(self._routes) == 1 and self._store.partitions == 1:
            return [(next(iter(self._routes)), 0, batch.records, batch.owners)] if batch.records else []
        groups: dict[tuple[int, int], tuple[list[Record], list[Message]]] = {}
        for record, owner in zip(batch.records, batch.owners, strict=True):
            partition = self._store.partition_of(self._routes[record.route].name, record.timeline)
            records, owners = groups.setdefault((record.route, partition), ([], []))
            records.append(record)
            owners.append(owner)
        return [(route, partition, *lists) for (route, partition), lists in groups.items()]

    def _count(self, route: str, added: Added) -> None:
        self._metrics.add("records_added_total", added.added, route=route)
        for reason, count in (
            ("superseded", added.superseded),
            ("capacity", added.over_capacity),
            ("timelines", added.over_timelines),
            ("duplicate", added.duplicates),
            ("repeated", added.repeated),
        ):
            if count:
                self._metrics.add("records_not_kept_total", count, route=route, reason=reason)
        if added.over_timelines:
            _log.error(
                "consumer.timelines.limit_reached",
                route=route,
                records_dropped=added.over_timelines,
                hint="raise limits.timelines, or look for a timeline template that names too many",
            )

    # -- dead letters

    async def _send(self, letters: list[_Letter]) -> None:
        by_connection: dict[NsqConnection, list[_Letter]] = {}
        for letter in letters:
            by_connection.setdefault(letter.connection, []).append(letter)
        while by_connection:
            connection, theirs = by_connection.popitem()
            try:
                kept = await self._dead_letters.publish(
                    connection.address, self._topic, [(letter.message, letter.rejected) for letter in theirs]
                )
            except asyncio.CancelledError:
                for waiting, held in [(connection, theirs), *by_connection.items()]:
                    self._host.give_back(waiting, [letter.message for letter in held])
                raise
            if kept is not None:
                _log.error(
                    "consumer.message.kept",
                    topic=self._topic,
                    messages=len(kept.messages),
                    error=kept.error,
                    again_s=KEPT_AGAIN_S,
                )
                self._host.give_back(connection, kept.messages, KEPT_AGAIN_S)
                not_sent = {id(message) for message in kept.messages}
                theirs = [letter for letter in theirs if id(letter.message) not in not_sent]
            self._fin(connection, [letter.message for letter in theirs])
            for _, message, rejected in theirs:
                self._metrics.add("dead_letters_total", 1, topic=self._topic, reason=rejected.reason)
                _log.warning(
                    "consumer.message.dead_lettered",
                    topic=self._topic,
                    message=message.id,
                    reason=rejected.reason,
                    detail=rejected.detail,
                )


def possible_repeat_after_s(connection: NsqConnection) -> float:
    """A message held for so long may be handed over again before we finish it, so it is looked for among what was
    shown."""
    return connection.msg_timeout_s * _POSSIBLE_REPEAT_FRACTION


def _is_held_long(arrival: Arrival, now_s: float) -> bool:
    return now_s - arrival.received_s >= possible_repeat_after_s(arrival.connection)
