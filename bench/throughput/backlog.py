"""The events that every lane reads: JSON of one exact size over 10,000 timelines, the same for the same seed.

They are made and published in blocks, in nsqd's binary form of MPUB: count (4), then per message size (4) and body.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

TIMELINES = 10_000
SEED = 20_000
MOST_BLOCK_BYTES = 4 * 1024 * 1024
"""Below nsqd's default limit of a request's body, 5 MiB."""

_HEAD = (
    b'{"id":"e%09d","user":{"id":"u%05d"},"service":"checkout","level":"error",'
    b'"message":"payment was refused by the bank","attempt":2,"stack":"'
)
_TAIL = b'"}'
_STACK = b"checkout.py:212 pay / gateway.py:88 charge / bank.py:41 post / "
SMALLEST_EVENT_BYTES = len(_HEAD % (0, 0)) + len(_TAIL)


def blocks(events: int, event_bytes: int) -> Iterator[bytes]:
    if event_bytes < SMALLEST_EVENT_BYTES:
        raise ValueError(f"an event has at least {SMALLEST_EVENT_BYTES} bytes")
    draw = random.Random(SEED)
    padding = event_bytes - SMALLEST_EVENT_BYTES
    prefix = struct.pack(">I", event_bytes) + _HEAD
    suffix = (_STACK * (padding // len(_STACK) + 1))[:padding] + _TAIL
    per_block = MOST_BLOCK_BYTES // (4 + event_bytes)
    for first in range(0, events, per_block):
        numbers = range(first, min(first + per_block, events))
        users = draw.choices(range(TIMELINES), k=len(numbers))
        bodies = [prefix % (number, user) + suffix for number, user in zip(numbers, users, strict=True)]
        yield struct.pack(">I", len(bodies)) + b"".join(bodies)
