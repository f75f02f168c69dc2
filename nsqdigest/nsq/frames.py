"""NSQ V2 framing: bytes to frames and back, without a socket (pure).

A frame is `size (4) | type (4) | data`, size counting type and data. A message frame's data is
`timestamp ns (8) | attempts (2) | id (16) | body`. The splitter takes whatever a read returned and returns all complete
frames of it in one pass, messages apart from the rest: that pass is the hot path of the daemon. Bytes come from
`connection` (or `compression`); messages go to the connection's receiver.

Invariants:
- A bound holds before memory is taken: a size beyond it raises as soon as the size field is there.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from nsqdigest.base.errors import ProtocolError


class FrameType(IntEnum):
    RESPONSE = 0
    ERROR = 1
    MESSAGE = 2


HEARTBEAT = b"_heartbeat_"
MESSAGE_OVERHEAD_BYTES = 26
"""Timestamp, attempts and id, which come before the body."""

MAX_FRAME_BYTES = 64 << 20
"""A message may be as large as nsqd's operator allows (1 MiB by default); beyond this a frame is garbage."""

_HEADER = struct.Struct(">ii")
_MESSAGE = struct.Struct(">iiqH16s")
_SMALLEST_FRAME = 4


class Message(msgspec.Struct, gc=False, eq=False):
    """One message as nsqd sent it; equal to itself alone. `id` and `timestamp_ns` together identify it: ids alone
    collide."""

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes


class FrameSplitter:
    """Bytes in, as they come; complete frames out, in order of arrival within each kind."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._rest = b""
        self._more: list[bytes] = []
        self._held_bytes = 0
        """Of a frame that has begun and is not complete."""
        self._wanted_bytes = _HEADER.size

    def feed(self, data: bytes) -> tuple[list[Message], list[tuple[int, bytes]]]:
        """Messages, and all other frames as (type, data). Raises ProtocolError where a frame cannot be one."""
        buffer = self._with_what_is_held(data) if self._rest else data
        if buffer is None:
            return [], []
        end = len(buffer)
        position, wanted = 0, _HEADER.size
        limit = self._max_frame_bytes
        messages: list[Message] = []
        others: list[tuple[int, bytes]] = []
        add_message = messages.append
        unpack_message = _MESSAGE.unpack_from
        message_type, known_types = int(FrameType.MESSAGE), (int(FrameType.RESPONSE), int(FrameType.ERROR))
        timestamp_ns, attempts, message_id = 0, 0, b""
        while (there := end - position) >= _HEADER.size:
            if there >= _MESSAGE.size:  # one look for both, since nearly all frames are messages
                size, frame_type, timestamp_ns, attempts, message_id = unpack_message(buffer, position)
            else:
                size, frame_type = _HEADER.unpack_from(buffer, position)
            if not _SMALLEST_FRAME <= size <= limit:
                raise ProtocolError(f"a frame of {size} bytes: between {_SMALLEST_FRAME} and {limit} can be one")
            following = position + 4 + size
            if following > end:
                if frame_type != message_type and frame_type not in known_types:
                    raise _unknown(frame_type)  # now: the rest of it need not be waited for
                wanted = following - position
                break
            if frame_type == message_type:
                if size < 4 + MESSAGE_OVERHEAD_BYTES:
                    raise ProtocolError(f"a message frame of {size} bytes: too short for its own header")
                add_message(Message(message_id, timestamp_ns, attempts, buffer[position + 34 : following]))
            elif frame_type in known_types:
                others.append((frame_type, buffer[position + 8 : following]))
            else:
                raise _unknown(frame_type)
            position = following
        self._rest = buffer[position:]
        self._held_bytes, self._wanted_bytes = end - position, wanted
        return messages, others

    def _with_what_is_held(self, data: bytes) -> bytes | None:
        """None: no complete frame yet. A large frame comes in many reads, which are joined once, when the last is
        there."""
        self._held_bytes += len(data)
        if self._held_bytes < self._wanted_bytes:
            self._more.append(data)
            return None
        if not self._more:
            return self._rest + data
        whole = b"".join((self._rest, *self._more, data))
        self._more.clear()
        return whole


def _unknown(frame_type: int) -> ProtocolError:
    return ProtocolError(f"a frame of type {frame_type}: 0 (response), 1 (error) and 2 (message) are known")


def frame(frame_type: int, data: bytes) -> bytes:
    """A frame as nsqd sends it (for servers: the embedded one, and tests)."""
    return _HEADER.pack(4 + len(data), frame_type) + data


def message_frame(message: Message) -> bytes:
    data_size = 4 + MESSAGE_OVERHEAD_BYTES + len(message.body)
    return (
        _MESSAGE.pack(data_size, FrameType.MESSAGE, message.timestamp_ns, message.attempts, message.id) + message.body
    )


def refused_id(detail: str) -> bytes:
    """The id in nsqd's refusal of a FIN, REQ or TOUCH: `FIN 0d3f… failed ID not in flight`."""
    words = detail.split(" ", 2)
    return words[1].encode() if len(words) > 1 else b""
