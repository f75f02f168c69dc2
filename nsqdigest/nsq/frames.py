"""NSQ V2 framing: bytes to frames and back, without a socket (pure).

A frame is `size (4) | type (4) | data`, size counting type and data. A message frame's data is
`timestamp ns (8) | attempts (2) | id (16) | body`. The splitter takes whatever a read returned and returns all complete
frames of it in one pass, messages apart from the rest: that pass is the hot path of the daemon. Bytes come from
`connection` (or `compression`); messages go to the connection's receiver.

Invariants:
- A bound holds before memory is taken. A response or an error beyond it raises as soon as the size field is there. Of a
  larger message the beginning is kept, and the rest is hashed and thrown away as it comes.
"""

from __future__ import annotations

import hashlib
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

KEPT_BODY_BYTES = (1 << 20) + 1
"""Of a message: more than any `limits.event` and any dead letter holds, so that a cut message is always too large."""
MAX_FRAME_BYTES = 64 << 20
"""A message may be as large as nsqd's operator allows (1 MiB by default); beyond this a frame is garbage."""
MAX_ANSWER_BYTES = 64 << 10
"""nsqd's longest answers, to IDENTIFY and AUTH, have about 500."""

_HEADER = struct.Struct(">ii")
_MESSAGE = struct.Struct(">iiqH16s")
_SMALLEST_FRAME = 4
_ANSWERS = (int(FrameType.RESPONSE), int(FrameType.ERROR))
_LARGEST_FRAME = 4 + MESSAGE_OVERHEAD_BYTES + KEPT_BODY_BYTES
"""The largest frame that is kept whole."""
_MOST_PIECES = 256
_BODY_AT = 34
"""Where the body begins in a frame of a message."""


class Message(msgspec.Struct, gc=False, eq=False):
    """One message as nsqd sent it; equal to itself alone. `id` and `timestamp_ns` together identify it: ids alone
    collide."""

    id: bytes
    timestamp_ns: int
    attempts: int
    body: bytes


class CutMessage(Message, gc=False, eq=False):
    """A message of which only the beginning of the body was kept. The hash is that of the whole body."""

    length: int
    sha256: str


class _Cutting:
    """A message that is being read and cut."""

    def __init__(self, size: int, timestamp_ns: int, attempts: int, message_id: bytes) -> None:
        self._facts = message_id, timestamp_ns, attempts
        self._length = self._left_bytes = size - 4 - MESSAGE_OVERHEAD_BYTES
        self._hash = hashlib.sha256()
        self._kept = bytearray()

    @property
    def held_bytes(self) -> int:
        return len(self._kept)

    @property
    def is_whole(self) -> bool:
        return not self._left_bytes

    def take(self, data: bytes) -> bytes:
        """Returns what is behind the message."""
        of_body = data[: self._left_bytes]
        self._left_bytes -= len(of_body)
        self._hash.update(of_body)
        self._kept += of_body[: KEPT_BODY_BYTES - len(self._kept)]
        return data[len(of_body) :]

    def message(self) -> CutMessage:
        return CutMessage(*self._facts, bytes(self._kept), self._length, self._hash.hexdigest())


class FrameSplitter:
    """Bytes in, as they come; complete frames out, in order of arrival within each kind."""

    def __init__(self) -> None:
        self._rest = b""
        self._more: list[bytes] = []
        self.held_bytes = 0
        """Of a frame that has begun and is not complete."""
        self._wanted_bytes = _HEADER.size
        self._cutting: _Cutting | None = None

    def feed(self, data: bytes) -> tuple[list[Message], list[tuple[int, bytes]]]:
        """Messages, and all other frames as (type, data). Raises ProtocolError where a frame cannot be one."""
        if self._cutting is not None:
            return self._cut_on(self._cutting, data)
        buffer = self._with_what_is_held(data) if self._rest else data
        if buffer is None:
            return [], []
        end = len(buffer)
        position, wanted = 0, _HEADER.size
        limit = _LARGEST_FRAME
        messages: list[Message] = []
        others: list[tuple[int, bytes]] = []
        add_message = messages.append
        unpack_message = _MESSAGE.unpack_from
        message_type = int(FrameType.MESSAGE)
        timestamp_ns, attempts, message_id = 0, 0, b""
        while (there := end - position) >= _HEADER.size:
            if there >= _MESSAGE.size:  # one look for both, since nearly all frames are messages
                size, frame_type, timestamp_ns, attempts, message_id = unpack_message(buffer, position)
            else:
                size, frame_type = _HEADER.unpack_from(buffer, position)
            if not _SMALLEST_FRAME <= size <= limit:
                _check_large(frame_type, size)
                if there < _MESSAGE.size:
                    wanted = _MESSAGE.size
                    break
                self._rest, self.held_bytes = b"", 0
                cutting = _Cutting(size, timestamp_ns, attempts, message_id)
                more_messages, more_others = self._cut_on(cutting, buffer[position + _BODY_AT :])
                return messages + more_messages, others + more_others
            following = position + 4 + size
            if following > end:
                if frame_type != message_type:
                    _check_answer(frame_type, size)  # now: the rest of it need not be waited for
                wanted = following - position
                break
            if frame_type == message_type:
                if size < 4 + MESSAGE_OVERHEAD_BYTES:
                    raise ProtocolError(f"a message frame of {size} bytes: too short for its own header")
                add_message(Message(message_id, timestamp_ns, attempts, buffer[position + 34 : following]))
            else:
                _check_answer(frame_type, size)
                others.append((frame_type, buffer[position + 8 : following]))
            position = following
        self._rest = buffer[position:]
        self.held_bytes, self._wanted_bytes = end - position, wanted
        return messages, others

    def _cut_on(self, cutting: _Cutting, data: bytes) -> tuple[list[Message], list[tuple[int, bytes]]]:
        data = cutting.take(data)
        if not cutting.is_whole:
            self._cutting, self.held_bytes = cutting, cutting.held_bytes
            return [], []
        self._cutting = None
        messages, others = self.feed(data)
        return [cutting.message(), *messages], others

    def _with_what_is_held(self, data: bytes) -> bytes | None:
        """None: no complete frame yet. A large frame comes in many reads, which are joined when the last is there. If
        reads are so short that each takes more memory than its bytes, they are joined sooner."""
        self.held_bytes += len(data)
        if self.held_bytes < self._wanted_bytes:
            self._more.append(data)
            if len(self._more) >= _MOST_PIECES:
                self._more = [b"".join(self._more)]
            return None
        if not self._more:
            return self._rest + data
        whole = b"".join((self._rest, *self._more, data))
        self._more.clear()
        return whole


def _check_large(frame_type: int, size: int) -> None:
    """Raises ProtocolError unless it is a message that is worth cutting."""
    if not _SMALLEST_FRAME <= size <= MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {size} bytes: between {_SMALLEST_FRAME} and {MAX_FRAME_BYTES} can be one")
    if frame_type != FrameType.MESSAGE:
        _check_answer(frame_type, size)


def _check_answer(frame_type: int, size: int) -> None:
    if frame_type not in _ANSWERS:
        raise ProtocolError(f"a frame of type {frame_type}: 0 (response), 1 (error) and 2 (message) are known")
    if size > MAX_ANSWER_BYTES:
        raise ProtocolError(f"an answer of {size} bytes: nsqd sends at most {MAX_ANSWER_BYTES}")


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
