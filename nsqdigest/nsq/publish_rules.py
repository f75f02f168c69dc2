"""The decisions of a publisher (pure): how much goes in one command, to which nsqd, and what a refusal means.

nsqd accepts a command whole or not at all, and never tells beforehand how large a message (`--max-msg-size`) or the
body of a command (`--max-body-size`) may be. So the publisher begins with nsqd's defaults, and a refusal that names
another limit corrects them. Whatever no nsqd accepts is refused here: each refusal by nsqd costs the connection, and a
line break in a topic would be a command of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from nsqdigest.base.errors import Applied, NsqdRefused, PublishError

if TYPE_CHECKING:
    from nsqdigest.config import Address

MAX_BODY_BYTES = 5 << 20
"""nsqd's default for `--max-body-size`: of all that follows the size of an MPUB."""

_COUNT_BYTES = 4
_SIZE_BYTES = 4
_TOPIC = re.compile(r"(?=.{1,64}\Z)[.a-zA-Z0-9_-]+(#ephemeral)?")
_TOO_BIG = re.compile(r"too big (\d+) > (\d+)")
_CODE = re.compile(r"E_[A-Z_]{1,40}")
_PERHAPS_APPLIED = frozenset(("E_PUB_FAILED", "E_MPUB_FAILED"))
"""nsqd failed while it queued: it may have a part of an MPUB."""
_OF_ONE_COMMAND = frozenset(("E_BAD_TOPIC", "E_BAD_MESSAGE", "E_BAD_BODY", "E_UNAUTHORIZED"))
"""Refusals that say nothing of the other commands."""

C = TypeVar("C")


# -- before anything is sent


def refuse_what_no_nsqd_takes(topic: str, bodies: Sequence[bytes]) -> None:
    if not _TOPIC.fullmatch(topic):
        raise PublishError(
            f"E_BAD_TOPIC: {topic[:80]!r} cannot be the name of a topic: it has 1 to 64 of a-z A-Z 0-9 . _ -",
            code="E_BAD_TOPIC",
            applied=Applied.NO,
        )
    for number, body in enumerate(bodies):
        if not body:
            raise PublishError(
                f"E_BAD_MESSAGE: message {number} of {len(bodies)} for {topic} is empty: nsqd takes none",
                code="E_BAD_MESSAGE",
                applied=Applied.NO,
            )


# -- how many at once


def count_of_next(bodies: Sequence[bytes], start: int, max_body_bytes: int) -> int:
    """How many bodies, from `start` on, go with the next command: as many as an MPUB holds."""
    size_bytes = _COUNT_BYTES
    for number in range(start, len(bodies)):
        size_bytes += _SIZE_BYTES + len(bodies[number])
        if size_bytes > max_body_bytes:
            return max(1, number - start)
    return len(bodies) - start


class Part(NamedTuple):
    """The messages of one command, by their numbers."""

    topic: str
    numbers: Sequence[int]


def parts_of(
    messages: Sequence[tuple[str, bytes]], numbers: Iterable[int], max_body_bytes: int, max_shared_bytes: int
) -> list[Part]:
    """The commands for these messages (topic and body): one for a topic where all fit in. What is larger than
    `max_shared_bytes` goes alone, so that its refusal is not that of others, and last: what stands behind a refused
    command has to be sent again."""
    by_topic: dict[str, list[int]] = {}
    alone: list[Part] = []
    for number in numbers:
        topic, body = messages[number]
        if len(body) > max_shared_bytes:
            alone.append(Part(topic, (number,)))
        else:
            by_topic.setdefault(topic, []).append(number)
    parts: list[Part] = []
    for topic, theirs in by_topic.items():
        bodies = [messages[number][1] for number in theirs]
        start = 0
        while start < len(theirs):
            count = count_of_next(bodies, start, max_body_bytes)
            parts.append(Part(topic, theirs[start : start + count]))
            start += count
    return parts + alone


# -- refusals


def is_of_one_command(error: NsqdRefused) -> bool:
    return error.code in _OF_ONE_COMMAND


def learned_max_shared_bytes(error: NsqdRefused, count: int) -> int | None:
    """Which messages may still share a command, after nsqd found one of `count` too large: those within the limit that
    it names, or none where it names none. None: that was not the reason."""
    if error.code != "E_BAD_MESSAGE" or count < 2:
        return None
    found = _TOO_BIG.search(str(error))
    return int(found[2]) if found else 0


def learned_max_body_bytes(error: NsqdRefused, count: int) -> int | None:
    """The limit that nsqd names when it refuses an MPUB of `count` messages; None where splitting cannot help."""
    if error.code != "E_BAD_BODY" or count < 2:
        return None
    found = _TOO_BIG.search(str(error))
    return int(found[2]) if found else None


def refusal(error: NsqdRefused, where: str, topic: str) -> PublishError:
    """With nsqd's own text, and the remedy."""
    applied = Applied.AMBIGUOUS if error.code in _PERHAPS_APPLIED else Applied.NO
    remedy = _remedy(error, topic)
    refused, then = f"{where} refused a publish to {topic}", f"; {remedy}" if remedy else ""
    code = error.code if _CODE.fullmatch(error.code) else "with a code that is not known"
    return PublishError(
        f"{refused}: {error}{then}", code=error.code, cause=f"{refused}: {code}{then}", answer=error.detail,
        applied=applied,
    )  # fmt: skip


def _remedy(error: NsqdRefused, topic: str) -> str:
    too_big = _TOO_BIG.search(str(error))
    if too_big and error.code == "E_BAD_MESSAGE":
        return f"start that nsqd with --max-msg-size={too_big[1]} or more, or publish smaller messages"
    if too_big and error.code == "E_BAD_BODY":
        return f"start that nsqd with --max-body-size={too_big[1]} or more, or publish fewer at once"
    if error.code in ("E_UNAUTHORIZED", "E_AUTH_FIRST", "E_AUTH_FAILED"):
        return f"permit this client at nsqd's auth server to publish to {topic}, and check nsq.auth_secret"
    return ""


# -- where to


def in_order(addresses: Iterable[Address], retry_at_s: Mapping[Address, float], now_s: float) -> list[Address]:
    """As the file names them, each once; those that wait for a retry come last, by the time of their retry."""
    named = list(dict.fromkeys(addresses))
    ready = [address for address in named if retry_at_s.get(address, 0.0) <= now_s]
    return ready + sorted(
        (address for address in named if retry_at_s.get(address, 0.0) > now_s), key=retry_at_s.__getitem__
    )


def least_busy(under_way: Mapping[C, int]) -> C | None:
    """The connection with the fewest publishes under way, the oldest of equals."""
    return min(under_way, key=under_way.__getitem__, default=None)
