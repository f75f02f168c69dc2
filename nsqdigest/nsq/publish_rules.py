"""What a publisher decides, without a socket (pure): commands and their size, which nsqd next, what a refusal means.

nsqd takes a command whole or not at all, and never says beforehand how large a message (`--max-msg-size`) or the body
of a command (`--max-body-size`) may be. So what is known of an nsqd begins with its defaults, and a refusal that names
another limit corrects it. What no nsqd would take is refused here: each refusal of nsqd costs the connection, and a
line break in a topic would be a command of its own.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from nsqdigest.base.errors import Applied, NsqdRefused, PublishError

if TYPE_CHECKING:
    from nsqdigest.config import Address

MAX_BODY_BYTES = 5 << 20
"""nsqd's default for `--max-body-size`: of all that follows the size of an MPUB."""

_COUNT_BYTES = 4
_SIZE_BYTES = 4
_SIZE = struct.Struct(">I")
_TOPIC = re.compile(r"(?=.{1,64}\Z)[.a-zA-Z0-9_-]+(#ephemeral)?")
_TOO_BIG = re.compile(r"too big (\d+) > (\d+)")
_PERHAPS_APPLIED = frozenset(("E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"))
"""nsqd began to queue and failed; of an MPUB a part may be there."""

Link = TypeVar("Link")


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


# -- commands


def count_of_next(bodies: Sequence[bytes], start: int, max_body_bytes: int, delay_ms: int = 0) -> int:
    """How many bodies, from `start` on, go with the next command: as many as an MPUB holds; delayed ones go alone."""
    if delay_ms:
        return 1
    size_bytes = _COUNT_BYTES
    for number in range(start, len(bodies)):
        size_bytes += _SIZE_BYTES + len(bodies[number])
        if size_bytes > max_body_bytes:
            return max(1, number - start)
    return len(bodies) - start


def command_of(topic: str, bodies: Sequence[bytes], delay_ms: int = 0) -> bytes:
    """PUB for one, so that a single large one is measured by `--max-msg-size` alone; MPUB for more; DPUB with a
    delay."""
    name = topic.encode()
    if len(bodies) == 1:
        (body,) = bodies
        head = b"DPUB %s %d\n" % (name, delay_ms) if delay_ms else b"PUB %s\n" % name
        return b"".join((head, _SIZE.pack(len(body)), body))
    parts = [_SIZE.pack(len(bodies))]
    for body in bodies:
        parts += (_SIZE.pack(len(body)), body)
    size_bytes = sum(map(len, parts))
    return b"".join((b"MPUB %s\n" % name, _SIZE.pack(size_bytes), *parts))


# -- what a refusal means


def learned_max_body_bytes(error: NsqdRefused, count: int) -> int | None:
    """The limit that a refusal of an MPUB of so many messages names: split by it, they can go."""
    if error.code != "E_BAD_BODY" or count < 2:
        return None
    found = _TOO_BIG.search(str(error))
    return int(found[2]) if found else None


def refusal(error: NsqdRefused, where: str, topic: str) -> PublishError:
    """nsqd's own words, and the remedy."""
    applied = Applied.AMBIGUOUS if error.code in _PERHAPS_APPLIED else Applied.NO
    remedy = _remedy(error, topic)
    said = f"{where} refused a publish to {topic}: {error}"
    return PublishError(f"{said}; {remedy}" if remedy else said, code=error.code, applied=applied)


def _remedy(error: NsqdRefused, topic: str) -> str:
    too_big = _TOO_BIG.search(str(error))
    if too_big and error.code == "E_BAD_MESSAGE":
        return f"start that nsqd with --max-msg-size={too_big[1]} or more, or publish smaller messages"
    if too_big and error.code == "E_BAD_BODY":
        return f"start that nsqd with --max-body-size={too_big[1]} or more, or publish fewer at once"
    if "out of range" in str(error):
        return "start that nsqd with a larger --max-req-timeout, or delay for less"
    if error.code in ("E_UNAUTHORIZED", "E_AUTH_FIRST", "E_AUTH_FAILED"):
        return f"let nsqd's auth server allow this client to publish to {topic}, and look at nsq.auth_secret"
    return ""


# -- where to


def in_order(addresses: Iterable[Address], rests_until_s: Mapping[Address, float], now_s: float) -> list[Address]:
    """As the file names them, each once; those that failed and rest come last, the one that is tried soonest first."""
    named = list(dict.fromkeys(addresses))
    ready = [address for address in named if rests_until_s.get(address, 0.0) <= now_s]
    return ready + sorted(
        (address for address in named if rests_until_s.get(address, 0.0) > now_s), key=rests_until_s.__getitem__
    )


def least_busy(under_way: Mapping[Link, int]) -> Link | None:
    """The connection with the fewest publishes under way, the oldest of equals."""
    return min(under_way, key=under_way.__getitem__, default=None)
