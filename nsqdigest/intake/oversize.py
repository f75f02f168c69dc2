"""Messages larger than limits.event: taken out of an arrival before it waits for a write.

Invariants:
- Of such a message no more is held than a letter holds, and OVERSIZE_BYTES in all.
- A message beyond that goes back to nsqd, and `is_full` holds until half of the room is free again.

Comes from `consumer`, which sends the letters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqdigest.intake.batch import Arrival, BatchResult, Verdict
from nsqdigest.intake.bodies import too_large
from nsqdigest.intake.letters import BODY_BYTES, Letter, shortened

if TYPE_CHECKING:
    from nsqdigest.intake.letter_queue import LetterQueue
    from nsqdigest.nsq.frames import Message

OVERSIZE_BYTES = 16 << 20


class Oversize:
    def __init__(self, event_bytes: int, letters: LetterQueue) -> None:
        self.event_bytes = event_bytes
        self._letters = letters
        self._is_full = False

    @property
    def is_full(self) -> bool:
        """Whether oversize messages had to go back, and the letters before them still take up the room."""
        self._is_full &= self._letters.held_bytes > OVERSIZE_BYTES // 2
        return self._is_full

    def take_out(self, arrival: Arrival) -> tuple[Arrival, BatchResult]:
        """The arrival without its oversize messages, and what becomes of those."""
        left_bytes = OVERSIZE_BYTES - self._letters.held_bytes
        others: list[Message] = []
        letters: list[Letter] = []
        beyond: list[Message] = []
        for message in arrival.messages:
            size_bytes = len(message.body)
            if size_bytes <= self.event_bytes:
                others.append(message)
            elif min(size_bytes, BODY_BYTES) > left_bytes:
                beyond.append(message)
            else:
                whole = shortened(message)
                why = too_large(whole.length, self.event_bytes)
                letters.append(Letter(message, why.reason, why.detail, whole))
                left_bytes -= len(message.body)
        self._is_full |= bool(beyond)
        result = BatchResult(Verdict.NOT_ASKED, {arrival.epoch: len(letters) + len(beyond)})
        if letters:
            result.letters.append((arrival.connection, letters))
        if beyond:
            result.give_back.append((arrival.connection, beyond))
        return arrival._replace(messages=others), result
