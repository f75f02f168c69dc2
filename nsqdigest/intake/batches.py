"""Group commits of one topic: what arrived is decoded, written to the store, and its result handed to the owner.

Invariants:
- All messages that came in during a write are the next batch, and they are decoded while the reply is awaited: small
  batches when traffic is low, large ones under load. A batch ends at `batch_size`, and when decoding takes too long.
- A batch belongs to one configuration: it is decoded and written by the same routes.
- The owner gets the result of each batch once. A message that nsqd has no answer for when the batch's task ends goes
  back, once, whatever raises and whenever the task is cancelled.
- A failed batch is one failure, not one per message; an outage dead-letters nothing, however many attempts it costs.
- A write that was sent is not taken back: cancelling its task only means that nobody waits for the store's answer.
- A message that nsqd hands over a second time (attempts above 1) is a message like others, marked as a possible repeat:
  to store it twice changes nothing, and nsqd may refuse the second FIN. It is rare, since nothing is asked for while
  something is overdue.

Comes from `consumer`, which decides how much may arrive; decoded by `decoding`, written by `writer`; goes back to
`consumer` as a `BatchResult`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsqdigest.base import log
from nsqdigest.intake.batch import Arrival, Batch, BatchResult

if TYPE_CHECKING:
    from nsqdigest.base.errors import StoreError
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.intake.decoding import Decoder
    from nsqdigest.intake.writer import StoreWriter
    from nsqdigest.nsq.connection import NsqConnection
    from nsqdigest.nsq.frames import Message
    from nsqdigest.store.servers.facts import RedisClock

CONCURRENT_WRITES = 2

_log = log.get("consumer")


class Line(NamedTuple):
    """The routes of a topic in one configuration, as they decode a batch and write it."""

    decoder: Decoder
    writer: StoreWriter
    clock: RedisClock


class _Work(NamedTuple):
    batch: Batch
    writer: StoreWriter
    """Of the routes that decoded it."""


class BatchOwner(Protocol):
    """Answers nsqd. Nothing here may wait; where it raises, nsqd has no answer yet."""

    def on_batch_result(self, result: BatchResult) -> None: ...

    def give_back(self, connection: NsqConnection, messages: Sequence[Message]) -> None: ...


class Batches:
    def __init__(
        self,
        topic: str,
        batch_size: int,
        *,
        line: Line,
        metrics: Metrics,
        owner: BatchOwner,
    ) -> None:
        self._topic = topic
        self._batch_size = batch_size
        self._line = line
        self._metrics = metrics
        self._owner = owner
        self._inbox: deque[Arrival] = deque()
        self._inbox_filled = asyncio.Event()
        self._decoded: _Work | None = None
        """Decoded, and waiting for a write to end."""
        self._writes: dict[asyncio.Task[None], _Work] = {}

    def change(self, batch_size: int, line: Line) -> None:
        """From the next batch on: one that is decoded is written by the routes that decoded it."""
        self._batch_size, self._line = batch_size, line

    def uses_other_than(self, line: Line) -> bool:
        """Whether a batch of another line is not stored yet."""
        return any(work.writer is not line.writer for work in self._works())

    def put(self, arrival: Arrival) -> None:
        self._inbox.append(arrival)
        self._inbox_filled.set()

    def is_overdue(self, now_s: float) -> bool:
        """Whether something here was held for so long that nsqd takes it back, or will soon."""
        return any(now_s >= arrival.repeat_at_s for arrival in self._held())

    def _held(self) -> Iterator[Arrival]:
        return chain(self._inbox, *(work.batch.arrivals for work in self._works()))

    def _works(self) -> list[_Work]:
        """Decoded and not stored yet."""
        return [*self._writes.values(), *([] if self._decoded is None else [self._decoded])]

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """The writes that were begun."""
        return list(self._writes)

    # -- batch after batch

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                if not self._inbox:
                    self._inbox_filled.clear()
                    await self._inbox_filled.wait()
                line = self._line
                batch, left = line.decoder.decode(self._next_batch(), line.clock.now_ms())
                self._inbox.extendleft(reversed(left))
                self._decoded = _Work(batch, line.writer)
                while len(self._writes) >= CONCURRENT_WRITES:
                    await asyncio.wait(self._writes, return_when=asyncio.FIRST_COMPLETED)
                work, self._decoded = self._decoded, None
                if work is not None:
                    write = group.create_task(self._write(*work), name=f"{self._topic} batch")
                    self._writes[write] = work
                    write.add_done_callback(self._writes.pop)
                # The write begins before the next batch is decoded, and the readers have a turn.
                await asyncio.sleep(0)

    def _next_batch(self) -> list[Arrival]:
        """Up to `batch_size` messages, oldest first, without those that nsqd has taken back meanwhile."""
        room = self._batch_size
        now_s = time.monotonic()
        taken: list[Arrival] = []
        while self._inbox and room > 0:
            arrival = self._inbox.popleft()
            if now_s >= arrival.expired_at_s:
                self._drop_expired(arrival)
                continue
            messages = arrival.messages
            if len(messages) > room:
                self._inbox.appendleft(arrival._replace(messages=messages[room:]))
                arrival = arrival._replace(messages=messages[:room])
            room -= len(arrival.messages)
            taken.append(arrival)
        return taken

    def _drop_expired(self, arrival: Arrival) -> None:
        connection, count = arrival.connection, len(arrival.messages)
        connection.forget_in_flight(count)
        self._metrics.add("messages_expired_total", count, topic=self._topic)
        _log.counted(
            "warning",
            "consumer.message.held_too_long",
            by=("topic", "nsqd"),
            adds=("messages",),
            topic=self._topic,
            messages=count,
            nsqd=str(connection.address),
            msg_timeout_s=connection.msg_timeout_s,
        )

    # -- one batch

    async def _write(self, batch: Batch, writer: StoreWriter) -> None:
        try:
            await self._write_and_answer(batch, writer)
        except BaseException:
            self._give_back(batch)  # what has no answer yet
            raise

    async def _write_and_answer(self, batch: Batch, writer: StoreWriter) -> None:
        try:
            now_s = time.monotonic()
            if any(now_s >= arrival.repeat_at_s for arrival in batch.arrivals):
                # Since it was decoded the process stood still, or the writes before it took their time.
                for record in batch.records:
                    record.possible_repeat = True
            written = await writer.write(batch.records, batch.now_ms)
            if written.failure is not None:
                self._report_failure(written.failure, len(written.not_stored))
            self._owner.on_batch_result(batch.conclude(written, time.monotonic()))
        except Exception as error:
            _log.error("consumer.commit.bug", topic=self._topic, error=error, exc_info=error)
            # Counted like a failure of the store: otherwise its messages would come back at once, again and again.
            self._owner.on_batch_result(batch.fail())

    def _report_failure(self, failure: StoreError, messages: int) -> None:
        _log.warning(
            "consumer.store.failed",
            topic=self._topic,
            messages=messages,
            reason=failure.reason,
            applied=failure.applied,
            error=failure,
        )

    # -- the end

    def give_back_waiting(self) -> None:
        """Gives back what no write was begun for: the inbox, and the batch that waits for a write to end."""
        if self._decoded is not None:
            self._give_back(self._decoded.batch)
            self._decoded = None
        while self._inbox:
            arrival = self._inbox.popleft()
            self._owner.give_back(arrival.connection, arrival.messages)

    def abandon(self) -> list[asyncio.Task[None]]:
        """Gives back at once all that has no answer, also what is being written. Returns the cancelled tasks, whose end
        the caller awaits."""
        self.give_back_waiting()
        for work in self._writes.values():
            self._give_back(work.batch)
        under_way = self.under_way
        for task in under_way:
            task.cancel()
        return under_way

    def _give_back(self, batch: Batch) -> None:
        for connection, messages in batch.unanswered():
            self._owner.give_back(connection, messages)
