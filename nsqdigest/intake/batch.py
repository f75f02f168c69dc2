"""A batch and what became of it (pure): the nouns between `consumer`, `batches`, `decoding` and `writer`.

Invariant: once a batch has a result, every message of it that nsqd has no answer for stands in exactly one list of the
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.intake.letters import Letter

if TYPE_CHECKING:
    from nsqdigest.intake.writer import Place, WriteResult
    from nsqdigest.nsq.connection import NsqConnection
    from nsqdigest.nsq.frames import Message
    from nsqdigest.store.record import Record

Group: TypeAlias = "tuple[NsqConnection, list[Message]]"


class Arrival(NamedTuple):
    """The messages of one read: of one connection, in one epoch of the controller."""

    connection: NsqConnection
    messages: list[Message]
    epoch: int
    repeat_at_s: float
    """From this instant on nsqd may hand them over again before they are finished. So their records are marked as
    possible repeats, and the store compares them with what was delivered."""
    expired_at_s: float
    """From this instant on they are nsqd's again."""


class Verdict(StrEnum):
    """What a batch shows about the store."""

    STORED = "stored"
    FAILED = "failed"
    NOT_ASKED = "not-asked"
    """It had only dead letters, or events that no route takes."""


@dataclass(slots=True)
class BatchResult:
    """What became of a batch. The owner takes a group out of its list when nsqd has its answer; a group that is left
    goes back."""

    verdict: Verdict
    messages_by_epoch: dict[int, int]
    finish: list[Group] = field(default_factory=list)
    give_back: list[Group] = field(default_factory=list)
    letters: list[tuple[NsqConnection, list[Letter]]] = field(default_factory=list)
    late: list[Arrival] = field(default_factory=list)
    """Arrivals that are answered when their time is nearly over: nsqd may refuse the answer."""
    due: frozenset[Place] = frozenset()
    """Where a timeline began that is due at once."""

    def unanswered(self) -> Iterator[Group]:
        """Each group that is left. It is taken out when the iteration goes on: one that is not handled stays."""
        while self.letters:
            connection, letters = self.letters[-1]
            yield connection, [letter.message for letter in letters]
            self.letters.pop()
        for groups in (self.finish, self.give_back):
            while groups:
                yield groups[-1]
                groups.pop()


@dataclass(slots=True)
class Batch:
    """Decoded arrivals, on their way to the store."""

    arrivals: list[Arrival]
    now_ms: int
    """When they were decoded, by Redis' clock."""
    records: list[Record] = field(default_factory=list)
    letters: dict[Message, Letter] = field(default_factory=dict)
    result: BatchResult | None = None

    def unanswered(self) -> Iterator[Group]:
        """Of a batch whose write has not ended: everything."""
        return (self.result or self.fail()).unanswered()

    def fail(self) -> BatchResult:
        """The result of a batch that is not known to be stored: what has no answer yet goes back."""
        if self.result is None:
            left = [(arrival.connection, arrival.messages) for arrival in self.arrivals]
        else:
            left = list(self.result.unanswered())
        self.result = BatchResult(Verdict.FAILED, messages_by_epoch(self.arrivals), give_back=left)
        return self.result

    def conclude(self, written: WriteResult, now_s: float) -> BatchResult:
        """The result of a batch whose write has ended."""
        finish: dict[NsqConnection, list[Message]] = {}
        give_back: dict[NsqConnection, list[Message]] = {}
        letters: dict[NsqConnection, list[Letter]] = {}
        is_all_stored = not (written.not_stored or written.refused or self.letters)
        for arrival in self.arrivals:
            connection, messages = arrival.connection, arrival.messages
            if is_all_stored:
                finish.setdefault(connection, []).extend(messages)
                continue
            for message in messages:
                if message in written.not_stored:
                    give_back.setdefault(connection, []).append(message)
                elif letter := self._letter_of(message, written):
                    letters.setdefault(connection, []).append(letter)
                else:
                    finish.setdefault(connection, []).append(message)
        self.result = BatchResult(
            _verdict(self.records, written),
            messages_by_epoch(self.arrivals),
            # By connection: a small command costs as much as a large one.
            finish=list(finish.items()),
            give_back=list(give_back.items()),
            letters=list(letters.items()),
            late=[arrival for arrival in self.arrivals if now_s >= arrival.repeat_at_s],
            due=written.due,
        )
        return self.result

    def _letter_of(self, message: Message, written: WriteResult) -> Letter | None:
        letter = self.letters.get(message)
        if letter is None and message in written.refused:
            return Letter(message, DeadLetterReason.REFUSED_BY_STORE, written.refused[message])
        return letter


def messages_by_epoch(arrivals: Iterable[Arrival]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for arrival in arrivals:
        counts[arrival.epoch] = counts.get(arrival.epoch, 0) + len(arrival.messages)
    return counts


def _verdict(records: Iterable[Record], written: WriteResult) -> Verdict:
    if written.failure is not None:
        return Verdict.FAILED
    is_any_stored = any(record.source not in written.refused for record in records)
    return Verdict.STORED if is_any_stored else Verdict.NOT_ASKED
