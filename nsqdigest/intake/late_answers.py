"""Messages that were answered when their msg_timeout was nearly over (pure): nsqd may refuse such an answer.

A refused answer counts as a failure of the epoch in which the message arrived: the store, or this process, is too slow
for what is in flight.

Comes from `consumer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqdigest.intake.batch import Arrival
    from nsqdigest.nsq.connection import NsqConnection

REMEMBERED = 5000


class LateAnswers:
    def __init__(self) -> None:
        self._epochs: dict[tuple[NsqConnection, bytes], int] = {}

    def remember(self, arrival: Arrival) -> None:
        if not arrival.connection.is_open:
            return  # nsqd cannot refuse anything there any more
        for message in arrival.messages:
            self._epochs[arrival.connection, message.id] = arrival.epoch
        while len(self._epochs) > REMEMBERED:
            del self._epochs[next(iter(self._epochs))]

    def refused(self, connection: NsqConnection, message_id: bytes) -> int | None:
        """The epoch of the message; None: it was answered in time."""
        return self._epochs.pop((connection, message_id), None)

    def forget(self, connection: NsqConnection) -> None:
        self._epochs = {key: epoch for key, epoch in self._epochs.items() if key[0] is not connection}
