"""The bytes of every command that is sent to nsqd.

Names, magic and the rare commands are pynsq's (`nsq.protocol`). The four that carry the traffic are put together here,
whole batches at a time: for 500 messages pynsq's FIN takes 300 µs in place of 5, its REQ 650 in place of 70, and its
MPUB copies everything before for each further body (5 MiB: 55 ms in place of 0.7).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nsq import protocol

MAGIC_V2: bytes = protocol.MAGIC_V2
NOP: bytes = protocol.nop()
CLS = b"CLS\n"

_FIN: bytes = protocol.FIN + b" "
_BETWEEN_FINS: bytes = protocol.NL + _FIN
_REQ: bytes = protocol.REQ + b" %s %d" + protocol.NL
_PUB: bytes = protocol.PUB + b" %s" + protocol.NL
_MPUB: bytes = protocol.MPUB + b" %s" + protocol.NL
_SIZE = struct.Struct(">I")


# -- one at a time


def identify(facts: Mapping[str, Any]) -> bytes:
    command: bytes = protocol.identify(facts)
    return command


def auth(secret: str) -> bytes:
    command: bytes = protocol.auth(secret.encode())
    return command


def sub(topic: str, channel: str) -> bytes:
    command: bytes = protocol.subscribe(topic, channel)
    return command


def rdy(count: int) -> bytes:
    command: bytes = protocol.ready(count)
    return command


# -- many in one write


def fin(message_ids: Sequence[bytes]) -> bytes:
    return _FIN + _BETWEEN_FINS.join(message_ids) + protocol.NL if message_ids else b""


def req(delays_ms: Iterable[tuple[bytes, int]]) -> bytes:
    """Of messages by their ids, each with its own delay."""
    return b"".join([_REQ % each for each in delays_ms])


def publish(topic: str, bodies: Sequence[bytes]) -> bytes:
    """PUB for one body, so that nsqd measures a single large one by `--max-msg-size` alone; MPUB for more."""
    name = topic.encode()
    if len(bodies) == 1:
        (body,) = bodies
        return b"".join((_PUB % name, _SIZE.pack(len(body)), body))
    parts = [_SIZE.pack(len(bodies))]
    for body in bodies:
        parts += (_SIZE.pack(len(body)), body)
    size_bytes = sum(map(len, parts))
    return b"".join((_MPUB % name, _SIZE.pack(size_bytes), *parts))
