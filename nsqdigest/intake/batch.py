"""A batch and what became of it (pure): the nouns between `consumer`, `batches`, `decoding` and `writer`.

Invariant: every message of a batch that nsqd has no answer for yet stands in exactly one list of the batch's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.intake.letters import Letter

if TYPE_CHECKING:
    from nsqdigest.intake.writer import WriteResult
    from nsqdigest.nsq.connection import NsqConnection
    from nsqdigest.nsq.frames import Message
    from nsqdigest.store.record import Record

_POSSIBLE_REPEAT_FRACTION = 0.75

T = TypeVar("T")
Group: TypeAlias = "tuple[NsqConnection, list[Message]]"


class Arrival(NamedTuple):
    """The messages of one read: of one connection, in one epoch of the controller."""

    connection: NsqConnection
    messages: list[Message]
    epoch: int
    received_s: float

    def is_held_long(self, now_s: float) -> bool:
        return now_s - self.received_s >= possible_repeat_after_s(self.connection)


def possible_repeat_after_s(connection: NsqConnection) -> float:
    """A message that was held for so long may be handed over again before it is finished. So its records are marked as
    possible repeats, and the store compares them with what was delivered."""
    return connection.msg_timeout_s * _POSSIBLE_REPEAT_FRACTION


class Verdict(StrEnum):
    """What a batch shows about the store."""

    STORED = "stored"
    FAILED = "failed"
    NOT_ASKED = "not-asked"
    """It had only dead letters, or events that no route takes."""


@dataclass(slots=True)
class BatchResult:
    """What became of a batch. A group is taken out of its list when nsqd has its answer (`one_by_one`); a group that is
    left goes back."""

    verdict: Verdict
    messages_by_epoch: dict[int, int]
    finish: list[Group] = field(default_factory=list)
    give_back: list[Group] = field(default_factory=list)
    letters: list[tuple[NsqConnection, list[Letter]]] = field(default_factory=list)
    late: list[Arrival] = field(default_factory=list)
    """Arrivals that are answered when their msg_timeout is nearly over: nsqd may refuse the answer."""
    is_timeline_due: bool = False

    def unanswered(self) -> Iterator[Group]:
        """All that is left, each group taken out as the iteration passes it."""
        for connection, letters in one_by_one(self.letters):
            yield connection, [letter.message for letter in letters]
        yield from one_by_one(self.finish)
        yield from one_by_one(self.give_back)


class Batch:
    """Decoded arrivals, on their way to the store."""

    __slots__ = ("arrivals", "letters", "records", "result")

    def __init__(self, arrivals: list[Arrival]) -> None:
        self.arrivals = arrivals
        self.records: list[Record] = []
        self.letters: dict[Message, Letter] = {}
        self.result = BatchResult(
            Verdict.FAILED,
            messages_by_epoch(arrivals),
            give_back=[(arrival.connection, arrival.messages) for arrival in arrivals],
        )
        """Until its write has ended, the result of a write that never ends: all goes back."""

    def conclude(self, written: WriteResult, now_s: float) -> None:
        """Sets the result of a write that has ended."""
        result = BatchResult(
            _verdict(self.records, written),
            self.result.messages_by_epoch,
            late=[arrival for arrival in self.arrivals if arrival.is_held_long(now_s)],
            is_timeline_due=written.timelines_due > 0,
        )
        finish: dict[NsqConnection, list[Message]] = {}
        give_back: dict[NsqConnection, list[Message]] = {}
        letters: dict[NsqConnection, list[Letter]] = {}
        all_stored = not (written.not_stored or written.refused or self.letters)
        for connection, messages, _, _ in self.arrivals:
            if all_stored:
                finish.setdefault(connection, []).extend(messages)
                continue
            for message in messages:
                if message in written.not_stored:
                    give_back.setdefault(connection, []).append(message)
                elif (letter := self._letter_of(message, written)) is not None:
                    letters.setdefault(connection, []).append(letter)
                else:
                    finish.setdefault(connection, []).append(message)
        # By connection: a small command costs as much as a large one.
        result.finish, result.give_back, result.letters = (
            list(finish.items()),
            list(give_back.items()),
            list(letters.items()),
        )
        self.result = result

    def fail(self) -> None:
        """Sets the result after a mistake of the program: what has no answer yet goes back."""
        unanswered = list(self.result.unanswered())
        self.result = BatchResult(Verdict.FAILED, self.result.messages_by_epoch, give_back=unanswered)

    def _letter_of(self, message: Message, written: WriteResult) -> Letter | None:
        letter = self.letters.get(message)
        if letter is None and message in written.refused:
            return Letter(message, DeadLetterReason.REFUSED_BY_STORE, written.refused[message])
        return letter


def messages_by_epoch(arrivals: Iterable[Arrival]) -> dict[int, int]:
    """How many messages of each epoch."""
    counts: dict[int, int] = {}
    for arrival in arrivals:
        counts[arrival.epoch] = counts.get(arrival.epoch, 0) + len(arrival.messages)
    return counts


def one_by_one(items: list[T]) -> Iterator[T]:
    """Takes each item out of the list after it was handled: an item whose handling raises stays in."""
    while items:
        yield items[-1]
        items.pop()


def _verdict(records: Iterable[Record], written: WriteResult) -> Verdict:
    if written.failure is not None:
        return Verdict.FAILED
    is_any_stored = any(record.source not in written.refused for record in records)
    return Verdict.STORED if is_any_stored else Verdict.NOT_ASKED
