"""Messages that nsqd hands over again while the first hand-over is still being worked on.

nsqd does so when `msg_timeout` passes in a slow store, and when a connection is made anew. Such a message is known by
its id *and* its timestamp (two nsqds on one host share ids), it is not worked on a second time, and whatever becomes of
the first hand-over becomes of it: both are finished, or both given back, each on its own connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nsqdigest.transport.connection import NsqConnection
from nsqdigest.transport.frames import Message

MessagesOf = dict[NsqConnection, list[Message]]


class Again(NamedTuple):
    first: Message
    connection: NsqConnection
    message: Message


def firsts(messages: list[Message]) -> dict[tuple[bytes, int], Message]:
    """By what a message is known by; of several hand-overs, which stand in the order of their coming, the first."""
    return {(message.id, message.timestamp_ns): message for message in reversed(messages)}


class Tied:
    """Which hand-overs wait for the fate of another. Each first one leaves by `join`, whatever its fate."""

    def __init__(self) -> None:
        self._again: dict[int, list[Again]] = {}
        """By the identity of the first hand-over, which lives as long as it is worked on."""

    def tie(self, known: Iterable[Again]) -> None:
        for again in known:
            self._again.setdefault(id(again.first), []).append(again)

    def join(self, messages_of: MessagesOf) -> None:
        """Adds to messages that end now those that are tied to them. On one connection nsqd knows only the last
        hand-over, so one word ends both."""
        if not self._again:
            return
        for connection, messages in list(messages_of.items()):
            for message in list(messages):
                for again in self._again.pop(id(message), ()):
                    if again.connection is connection:
                        connection.let_go(1)
                    else:
                        messages_of.setdefault(again.connection, []).append(again.message)
