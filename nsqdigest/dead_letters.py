"""Messages that can never succeed: to the dead-letter topic of the nsqd they came from, with the reason.

The letter is one JSON object whose body is base64, whole up to 700 KiB (so that the letter fits nsqd's default limit
of 1 MiB), always with the whole body's length and hash. Only after nsqd acknowledged it may the message be finished.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nsqdigest.errors import NsqdigestError, PublishError

if TYPE_CHECKING:
    from nsqdigest.config import Address
    from nsqdigest.events import Rejected
    from nsqdigest.transport.frames import Message
    from nsqdigest.transport.publisher import Publisher

BODY_BYTES = 700 * 1024
_SHORTER_BODIES = (BODY_BYTES, 40 * 1024, 1024, 0)


class Kept(NamedTuple):
    """Messages whose letters could not be sent: they must not be finished."""

    messages: list[Message]
    error: NsqdigestError


class DeadLetters:
    def __init__(self, publisher: Publisher, topic: str, channel: str) -> None:
        self._publisher = publisher
        self._topic = topic
        self._channel = channel

    async def publish(self, nsqd: Address, topic: str, letters: Sequence[tuple[Message, Rejected]]) -> Kept | None:
        """None: all of them are safe. Otherwise which are not, and (of the last of them) why."""
        if not self._topic:
            error = NsqdigestError('nsq.dead_letter_topic is "": nowhere to put a message that can never succeed')
            return Kept([message for message, _ in letters], error)
        try:
            await self._publisher.publish(nsqd, self._topic, [self.letter(nsqd, topic, *letter) for letter in letters])
            return None
        except PublishError as error:
            if error.code != "E_BAD_MESSAGE":
                return Kept([message for message, _ in letters[error.acknowledged :]], error)
            # nsqd takes a batch whole or not at all, and one letter too large for it spoils the others' way.
            return await self._publish_one_by_one(nsqd, topic, letters[error.acknowledged :])
        except NsqdigestError as error:
            return Kept([message for message, _ in letters], error)

    async def _publish_one_by_one(
        self, nsqd: Address, topic: str, letters: Sequence[tuple[Message, Rejected]]
    ) -> Kept | None:
        kept: list[Message] = []
        last_error: NsqdigestError | None = None
        for message, why in letters:
            try:
                await self._publish_alone(nsqd, topic, message, why)
            except NsqdigestError as error:
                kept.append(message)
                last_error = error
        return None if last_error is None else Kept(kept, last_error)

    async def _publish_alone(self, nsqd: Address, topic: str, message: Message, why: Rejected) -> None:
        """With less and less of the body, where nsqd allows only smaller messages."""
        for body_bytes in _SHORTER_BODIES:
            try:
                await self._publisher.publish(nsqd, self._topic, [self.letter(nsqd, topic, message, why, body_bytes)])
            except PublishError as error:
                if error.code != "E_BAD_MESSAGE" or body_bytes == _SHORTER_BODIES[-1]:
                    raise
            else:
                return

    def letter(
        self, nsqd: Address, topic: str, message: Message, rejected: Rejected, body_bytes: int = BODY_BYTES
    ) -> bytes:
        return msgspec.json.encode(
            {
                "reason": rejected.reason,
                "detail": rejected.detail,
                "topic": topic,
                "channel": self._channel,
                "id": message.id.decode("ascii", "backslashreplace"),
                "timestamp": message.timestamp_ns,
                "attempts": message.attempts,
                "nsqd": str(nsqd),
                "body": base64.b64encode(message.body[:body_bytes]).decode(),
                "length": len(message.body),
                "sha256": hashlib.sha256(message.body).hexdigest(),
            }
        )
