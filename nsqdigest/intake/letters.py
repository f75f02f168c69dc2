"""Dead letters: messages that can never succeed, published with the reason to a topic of the nsqd they came from.

A letter is one JSON object. Its body is base64, whole up to 700 KiB (so that the letter fits nsqd's default limit of
1 MiB), always with the whole body's length and hash.

Invariant: a message may be finished only after nsqd acknowledged its letter; `publish` returns the others.

Comes from `letter_queue`; goes to `nsq.publisher`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from nsqdigest.base.errors import NsqdigestError, PublishError
from nsqdigest.nsq.frames import CutMessage

if TYPE_CHECKING:
    from nsqdigest.base.reasons import DeadLetterReason
    from nsqdigest.config import Address
    from nsqdigest.nsq.frames import Message
    from nsqdigest.nsq.publisher import Publisher

BODY_BYTES = 700 * 1024
_SHORTER_BODIES = (BODY_BYTES, 40 * 1024, 1024, 0)


class Whole(NamedTuple):
    """Of a body of which only the beginning was kept."""

    length: int
    sha256: str


class Letter(NamedTuple):
    message: Message
    reason: DeadLetterReason
    detail: str
    whole: Whole | None = None
    """None: the message still has its whole body."""


def shortened(message: Message) -> Whole:
    """Cuts the message's body to what a letter holds. Returns the facts of the whole body."""
    whole = Whole(message.length, message.sha256) if isinstance(message, CutMessage) else _whole(message.body)
    message.body = message.body[:BODY_BYTES]
    return whole


def _whole(body: bytes) -> Whole:
    return Whole(len(body), hashlib.sha256(body).hexdigest())


class Unsent(NamedTuple):
    """Messages whose letters are not acknowledged: they must not be finished."""

    messages: list[Message]
    error: NsqdigestError
    """Of the last of them."""


class DeadLetters:
    def __init__(self, publisher: Publisher, topic: str, channel: str) -> None:
        self._publisher = publisher
        self.topic = topic
        self._channel = channel

    async def publish(self, nsqd: Address, topic: str, letters: Sequence[Letter]) -> Unsent | None:
        """None: nsqd acknowledged all of them."""
        if not self.topic:
            error = NsqdigestError('nsq.dead_letter_topic is "": nowhere to put a message that can never succeed')
            return Unsent([letter.message for letter in letters], error)
        try:
            await self._publisher.publish(nsqd, self.topic, [self.encoded(nsqd, topic, letter) for letter in letters])
            return None
        except PublishError as error:
            if error.code != "E_BAD_MESSAGE":
                return Unsent([letter.message for letter in letters[error.acknowledged :]], error)
            # nsqd accepts or refuses a batch as a whole: one letter that is too large stops the others.
            return await self._publish_one_by_one(nsqd, topic, letters[error.acknowledged :])
        except NsqdigestError as error:
            return Unsent([letter.message for letter in letters], error)

    async def _publish_one_by_one(self, nsqd: Address, topic: str, letters: Sequence[Letter]) -> Unsent | None:
        unsent: list[Message] = []
        last_error: NsqdigestError | None = None
        for letter in letters:
            try:
                await self._publish_alone(nsqd, topic, letter)
            except NsqdigestError as error:
                unsent.append(letter.message)
                last_error = error
        return None if last_error is None else Unsent(unsent, last_error)

    async def _publish_alone(self, nsqd: Address, topic: str, letter: Letter) -> None:
        """With less and less of the body, where nsqd allows only smaller messages."""
        for body_bytes in _SHORTER_BODIES:
            try:
                await self._publisher.publish(nsqd, self.topic, [self.encoded(nsqd, topic, letter, body_bytes)])
            except PublishError as error:
                if error.code != "E_BAD_MESSAGE" or body_bytes == _SHORTER_BODIES[-1]:
                    raise
            else:
                return

    def encoded(self, nsqd: Address, topic: str, letter: Letter, body_bytes: int = BODY_BYTES) -> bytes:
        message, reason, detail, whole = letter
        length, sha256 = whole or _whole(message.body)
        return msgspec.json.encode(
            {
                "reason": reason,
                "detail": detail,
                "topic": topic,
                "channel": self._channel,
                "id": message.id.decode("ascii", "backslashreplace"),
                "timestamp": message.timestamp_ns,
                "attempts": message.attempts,
                "nsqd": str(nsqd),
                "body": base64.b64encode(message.body[:body_bytes]).decode(),
                "length": length,
                "sha256": sha256,
            }
        )
