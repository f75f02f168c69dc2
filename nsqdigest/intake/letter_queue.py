"""The dead letters of one topic on their way: for each connection one after another, in parts of bounded size.

Invariants:
- A message in here is neither finished nor given back. It leaves once: finished when nsqd acknowledged its letter, else
  given back, whatever happens to the task that sends it.
- Nothing is encoded before its turn: what is larger than a part waits as the bytes that came.
- Where a publish failed without an answer of nsqd, the others of that connection go back, too: waiting in line behind
  its time-outs they would come again while they are still in here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nsqdigest.base import log
from nsqdigest.base.errors import PublishError
from nsqdigest.base.metrics import Metrics
from nsqdigest.intake.letters import DeadLetters, Kept, Letter
from nsqdigest.nsq.connection import NsqConnection

if TYPE_CHECKING:
    from nsqdigest.nsq.frames import Message

KEPT_AGAIN_S = 30.0
"""A message that can neither be stored nor dead-lettered comes again after about so long."""
PART_LETTERS = 200
PART_BYTES = 256 * 1024
"""Of bodies. Encoding a part takes about a millisecond, and nothing else runs meanwhile."""

_log = log.get("consumer")


class MessageOwner(Protocol):
    """Who answers nsqd. Nothing here may wait; what raises has told nsqd nothing yet."""

    def give_back(
        self, connection: NsqConnection, messages: Sequence[Message], about_s: float | None = None
    ) -> None: ...

    def finish(self, connection: NsqConnection, messages: list[Message]) -> None: ...


class _Line(NamedTuple):
    """What waits for one connection, and the task that sends it."""

    letters: list[Letter]
    task: asyncio.Task[None]


class LetterQueue:
    def __init__(self, topic: str, dead_letters: DeadLetters, metrics: Metrics, owner: MessageOwner) -> None:
        self._topic = topic
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._owner = owner
        self._lines: dict[NsqConnection, _Line] = {}
        self.held_bytes = 0
        """Of bodies."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [line.task for line in self._lines.values()]

    def put(self, connection: NsqConnection, letters: Sequence[Letter], group: asyncio.TaskGroup) -> None:
        """The group owns the task that sends them."""
        self.held_bytes += _bytes_of(letters)
        if connection in self._lines:
            self._lines[connection].letters.extend(letters)
            return
        waiting = list(letters)
        task = group.create_task(self._send_all(connection, waiting), name=f"{self._topic} dead letters")
        self._lines[connection] = _Line(waiting, task)

    def give_back_all(self) -> None:
        for connection, line in self._lines.items():
            self._give_back(connection, line.letters)

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
        kept = await self._dead_letters.publish(connection.address, self._topic, part)
        not_sent = set() if kept is None else set(map(id, kept.messages))
        sent = [letter for letter in part if id(letter.message) not in not_sent]
        if sent:
            self._owner.finish(connection, [letter.message for letter in sent])
            self._metrics.add("messages_finished_total", len(sent), topic=self._topic)
            for letter in sent:
                self._report(letter)
        self._forget(waiting, sent)
        if kept is not None:
            self._keep(connection, kept, waiting)

    def _keep(self, connection: NsqConnection, kept: Kept, waiting: list[Letter]) -> None:
        """Gives back what could not be sent: after an answer of nsqd that alone, without one everything."""
        was_answered = isinstance(kept.error, PublishError) and bool(kept.error.code)
        not_sent = set(map(id, kept.messages))
        going = [letter for letter in waiting if not was_answered or id(letter.message) in not_sent]
        _log.counted(
            "error",
            "consumer.message.kept",
            by=("topic",),
            adds=("messages",),
            topic=self._topic,
            messages=len(going),
            error=kept.error,
            again_s=KEPT_AGAIN_S,
        )
        self._owner.give_back(connection, [letter.message for letter in going], KEPT_AGAIN_S)
        self._forget(waiting, going)

    def _forget(self, waiting: list[Letter], going: Sequence[Letter]) -> None:
        self.held_bytes -= _bytes_of(going)
        gone = set(map(id, going))
        waiting[:] = [letter for letter in waiting if id(letter) not in gone]

    def _give_back(self, connection: NsqConnection, waiting: list[Letter]) -> None:
        if waiting:
            self._owner.give_back(connection, [letter.message for letter in waiting])
            self._forget(waiting, list(waiting))

    def _report(self, letter: Letter) -> None:
        rejected = letter.rejected
        self._metrics.add("dead_letters_total", 1, topic=self._topic, reason=rejected.reason)
        _log.counted(
            "warning",
            "consumer.message.dead_lettered",
            by=("topic", "reason"),
            topic=self._topic,
            message=letter.message.id,
            reason=rejected.reason,
            detail=rejected.detail,
        )


def _bytes_of(letters: Sequence[Letter]) -> int:
    return sum(len(letter.message.body) for letter in letters)


def _size_of_part(waiting: Sequence[Letter]) -> int:
    """How many of the first ones make a part: one at least."""
    size_bytes = 0
    for count, letter in enumerate(waiting[:PART_LETTERS]):
        size_bytes += len(letter.message.body)
        if count and size_bytes > PART_BYTES:
            return count
    return min(len(waiting), PART_LETTERS)
