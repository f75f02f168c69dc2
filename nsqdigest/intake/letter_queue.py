"""Sends one topic's dead letters: for each connection one part after another, each part of bounded size.

Invariants:
- A message in here is neither finished nor given back. It leaves once: finished when nsqd acknowledged its letter, else
  given back, whatever happens to the task that sends it.
- A letter is encoded when its part is sent, not before.
- Where a publish failed without an answer from nsqd, all other letters of that connection go back, too: while they
  waited for its time-outs, nsqd would hand the messages over again.

Comes from `consumer`; goes to `letters`, and back to `consumer` to finish or give back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsqdigest.base import log
from nsqdigest.base.errors import PublishError
from nsqdigest.base.metrics import Metrics
from nsqdigest.intake.letters import DeadLetters, Letter, Unsent
from nsqdigest.nsq.connection import NsqConnection

if TYPE_CHECKING:
    from nsqdigest.nsq.frames import Message

UNSENDABLE_RETRY_S = 30.0
"""A message that can be neither stored nor dead-lettered is requeued for about so long."""
PART_LETTERS = 200
PART_BYTES = 256 * 1024
"""Of bodies. Encoding a part takes about a millisecond, in which nothing else runs."""

_log = log.get("consumer")


class LetterOwner(Protocol):
    """Answers nsqd. Nothing here may wait; where it raises, nsqd has no answer yet."""

    def give_back(
        self, connection: NsqConnection, messages: Sequence[Message], about_s: float | None = None
    ) -> None: ...

    def finish(self, connection: NsqConnection, messages: list[Message]) -> None: ...


class _Line(NamedTuple):
    """Letters that wait for one connection, and the task that sends them."""

    letters: list[Letter]
    task: asyncio.Task[None]


class LetterQueue:
    def __init__(self, topic: str, dead_letters: DeadLetters, metrics: Metrics, owner: LetterOwner) -> None:
        self._topic = topic
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._owner = owner
        self._lines: dict[NsqConnection, _Line] = {}
        self._group = asyncio.TaskGroup()
        self.held_bytes = 0
        """Of bodies."""

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        return [line.task for line in self._lines.values()]

    async def run(self) -> None:
        """Until it is cancelled: owns the task of each connection's letters."""
        async with self._group:
            await asyncio.Event().wait()

    def put(self, connection: NsqConnection, letters: Sequence[Letter]) -> None:
        if connection in self._lines:
            self._lines[connection].letters.extend(letters)
        else:
            waiting = list(letters)
            task = self._group.create_task(self._send_all(connection, waiting), name=f"{self._topic} dead letters")
            self._lines[connection] = _Line(waiting, task)
        self.held_bytes += _bytes_of(letters)

    def abandon(self) -> list[asyncio.Task[None]]:
        """Gives back every message at once. Returns the cancelled tasks, whose end the caller awaits."""
        for connection, line in self._lines.items():
            self._give_back(connection, line.letters)
        under_way = self.under_way
        for task in under_way:
            task.cancel()
        return under_way

    async def _send_all(self, connection: NsqConnection, waiting: list[Letter]) -> None:
        try:
            while waiting:
                await self._send(connection, waiting)
        except Exception as error:
            _log.error("consumer.dead_letter.bug", topic=self._topic, error=error, exc_info=error)
        finally:
            self._give_back(connection, waiting)
            del self._lines[connection]

    async def _send(self, connection: NsqConnection, waiting: list[Letter]) -> None:
        part = waiting[: _size_of_part(waiting)]
        unsent = await self._dead_letters.publish(connection.address, self._topic, part)
        unsent_messages = () if unsent is None else set(unsent.messages)
        sent = [letter for letter in part if letter.message not in unsent_messages]
        if sent:
            self._owner.finish(connection, [letter.message for letter in sent])
            for letter in sent:
                self._report(letter)
        self._forget(waiting, sent)
        if unsent is not None:
            self._give_back_unsent(connection, unsent, waiting)

    def _give_back_unsent(self, connection: NsqConnection, unsent: Unsent, waiting: list[Letter]) -> None:
        """After an answer from nsqd only the unsent ones; without an answer everything that waits."""
        was_answered = isinstance(unsent.error, PublishError) and bool(unsent.error.code)
        unsent_messages = set(unsent.messages)
        going = [letter for letter in waiting if not was_answered or letter.message in unsent_messages]
        _log.counted(
            "error",
            "consumer.message.kept",
            by=("topic",),
            adds=("messages",),
            topic=self._topic,
            messages=len(going),
            error=unsent.error,
            again_s=UNSENDABLE_RETRY_S,
        )
        self._owner.give_back(connection, [letter.message for letter in going], UNSENDABLE_RETRY_S)
        self._forget(waiting, going)

    def _give_back(self, connection: NsqConnection, waiting: list[Letter]) -> None:
        if waiting:
            self._owner.give_back(connection, [letter.message for letter in waiting])
            self._forget(waiting, list(waiting))

    def _forget(self, waiting: list[Letter], going: Collection[Letter]) -> None:
        self.held_bytes -= _bytes_of(going)
        gone = {letter.message for letter in going}
        waiting[:] = [letter for letter in waiting if letter.message not in gone]

    def _report(self, letter: Letter) -> None:
        self._metrics.add("dead_letters_total", 1, topic=self._topic, reason=letter.reason)
        _log.counted(
            "warning",
            "consumer.message.dead_lettered",
            by=("topic", "reason"),
            topic=self._topic,
            message=letter.message.id,
            reason=letter.reason,
            detail=letter.detail,
        )


def _bytes_of(letters: Collection[Letter]) -> int:
    return sum(len(letter.message.body) for letter in letters)


def _size_of_part(waiting: Sequence[Letter]) -> int:
    """The number of letters, from the first on, that make a part: at least one."""
    size_bytes = 0
    for count, letter in enumerate(waiting[:PART_LETTERS]):
        size_bytes += len(letter.message.body)
        if count and size_bytes > PART_BYTES:
            return count
    return min(len(waiting), PART_LETTERS)
