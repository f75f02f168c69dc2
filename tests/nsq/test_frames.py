"""NSQ V2 framing: what comes out does not depend on how the bytes came in, and bounds hold before memory is taken."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
from typing import Any

import pytest
from msgspec.structs import astuple
from nsq import protocol

from nsqdigest.base.errors import NsqdigestError, ProtocolError
from nsqdigest.nsq.frames import (
    HEARTBEAT,
    KEPT_BODY_BYTES,
    MAX_ANSWER_BYTES,
    MAX_FRAME_BYTES,
    MESSAGE_OVERHEAD_BYTES,
    CutMessage,
    FrameSplitter,
    FrameType,
    Message,
    frame,
    message_frame,
)

pytestmark = pytest.mark.unit

FIRST = Message(b"0000000000000001", 1_700_000_000_123_456_789, 1, b'{"user":"ada"}')
EMPTY = Message(b"0000000000000002", -1, 65_535, b"")
BINARY = Message(b"\x00\xff\n FIN 00000 \x00\x02", 2**63 - 1, 2, bytes(range(256)))
STREAM = b"".join(
    (
        frame(FrameType.RESPONSE, b"OK"),
        message_frame(FIRST),
        frame(FrameType.RESPONSE, HEARTBEAT),
        message_frame(EMPTY),
        frame(FrameType.ERROR, b"E_FIN_FAILED FIN 0 failed"),
        frame(FrameType.RESPONSE, b""),
        message_frame(BINARY),
    )
)
MESSAGES = [astuple(message) for message in (FIRST, EMPTY, BINARY)]
OTHERS = [(0, b"OK"), (0, HEARTBEAT), (1, b"E_FIN_FAILED FIN 0 failed"), (0, b"")]


def fed(*pieces: bytes) -> tuple[list[tuple[Any, ...]], list[tuple[int, bytes]]]:
    splitter = FrameSplitter()
    messages: list[tuple[Any, ...]] = []
    others: list[tuple[int, bytes]] = []
    for piece in pieces:
        new_messages, new_others = splitter.feed(piece)
        messages += map(astuple, new_messages)
        others += new_others
    assert splitter.held_bytes == 0
    return messages, others


def test_one_read_gives_all_complete_frames_messages_apart_from_the_rest() -> None:
    assert fed(STREAM) == (MESSAGES, OTHERS)


def test_a_stream_cut_in_two_at_any_byte_gives_the_same_frames() -> None:
    for cut in range(len(STREAM) + 1):
        assert fed(STREAM[:cut], STREAM[cut:]) == (MESSAGES, OTHERS), cut


@pytest.mark.parametrize("step", range(1, 40))
def test_a_stream_in_pieces_of_any_size_gives_the_same_frames(step: int) -> None:
    assert fed(*(STREAM[start : start + step] for start in range(0, len(STREAM), step))) == (MESSAGES, OTHERS)


def test_a_frame_that_is_not_complete_is_held() -> None:
    splitter = FrameSplitter()
    whole = message_frame(FIRST)
    assert splitter.feed(whole[:-1]) == ([], [])
    assert splitter.held_bytes == len(whole) - 1
    [message], others = splitter.feed(whole[-1:])
    assert (astuple(message), others) == (astuple(FIRST), [])


def test_an_empty_read_changes_nothing() -> None:
    splitter = FrameSplitter()
    splitter.feed(STREAM[:11])
    held_bytes = splitter.held_bytes
    assert splitter.feed(b"") == ([], [])
    assert splitter.held_bytes == held_bytes


def test_a_long_stream_keeps_nothing_of_what_it_handed_on() -> None:
    splitter = FrameSplitter()
    piece = message_frame(FIRST) * 1_000
    seen = 0
    for start in range(0, 100 * len(piece), len(piece) + 13):
        cut = start % len(piece)
        messages, _ = splitter.feed((piece + piece)[cut : cut + len(piece) + 13])
        seen += len(messages)
        assert splitter.held_bytes < len(message_frame(FIRST))
    assert seen > 99_000


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 3, MAX_FRAME_BYTES + 1, 2**31 - 1])
def test_a_size_that_no_frame_has_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=rf"a frame of {size} bytes: between 4 and {MAX_FRAME_BYTES}"):
        FrameSplitter().feed(struct.pack(">ii", size, 2))


def test_an_answer_as_large_as_the_limit_is_one() -> None:
    data = b"x" * (MAX_ANSWER_BYTES - 4)
    assert fed(frame(FrameType.RESPONSE, data)) == ([], [(0, data)])
    for answer in (frame(FrameType.ERROR, data + b"x"), struct.pack(">ii", MAX_FRAME_BYTES, 0)):
        with pytest.raises(ProtocolError, match="an answer of"):
            fed(answer)


def test_a_message_that_nothing_can_use_is_cut_with_the_hash_of_the_whole() -> None:
    """In pieces of any size, with frames before and behind it."""
    body = bytes(range(251)) * (3 * KEPT_BODY_BYTES // 251)
    stream = message_frame(FIRST) + message_frame(Message(b"c" * 16, 7, 2, body)) + frame(FrameType.RESPONSE, b"OK")
    expected = (b"c" * 16, 7, 2, body[:KEPT_BODY_BYTES], len(body), hashlib.sha256(body).hexdigest())
    for step in (100_003, 1 << 20, len(stream)):
        pieces = (stream[start : start + step] for start in range(0, len(stream), step))
        assert fed(*pieces) == ([astuple(FIRST), expected], [(0, b"OK")])
    at = len(message_frame(FIRST))
    for cut in range(at, at + 40):
        assert fed(stream[:cut], stream[cut:])[0][1] == expected


@pytest.mark.parametrize("more", [0, 1])
def test_a_message_is_cut_only_beyond_what_can_be_used(more: int) -> None:
    body = b"x" * (KEPT_BODY_BYTES + more)
    [message], _ = FrameSplitter().feed(message_frame(Message(b"0" * 16, 1, 1, body)))
    assert isinstance(message, CutMessage) is bool(more)
    assert message.body == body[:KEPT_BODY_BYTES]


def test_of_the_largest_message_little_is_held() -> None:
    splitter = FrameSplitter()
    splitter.feed(struct.pack(">iiqH16s", MAX_FRAME_BYTES, 2, 1, 1, b"0" * 16))
    piece = b"x" * (256 << 10)
    tracemalloc.start()
    try:
        for _ in range(200):
            splitter.feed(piece)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 << 20
    assert splitter.held_bytes == KEPT_BODY_BYTES


def test_a_size_beyond_the_limit_is_refused_before_memory_is_taken() -> None:
    splitter = FrameSplitter()
    header = struct.pack(">ii", 1 << 30, 2)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            splitter.feed(header)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 * 1024


def test_http_in_place_of_nsq_is_refused() -> None:
    with pytest.raises(ProtocolError):
        FrameSplitter().feed(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("frame_type", [-1, 3, 2**31 - 1])
def test_a_frame_type_that_is_not_known_is_refused(frame_type: int) -> None:
    with pytest.raises(ProtocolError, match=f"a frame of type {frame_type}"):
        FrameSplitter().feed(frame(frame_type, b"data"))


def test_the_type_of_a_frame_is_looked_at_before_its_data_is_waited_for() -> None:
    with pytest.raises(ProtocolError, match="a frame of type 7"):
        FrameSplitter().feed(struct.pack(">ii", MAX_FRAME_BYTES, 7))


def test_a_large_frame_in_many_reads_is_joined_once() -> None:
    """Joining at each read would copy 4 GiB here."""
    splitter = FrameSplitter()
    whole = message_frame(Message(b"0" * 16, 1, 1, b"x" * (1 << 20))) + frame(FrameType.RESPONSE, b"OK")
    pieces = [whole[start : start + 128] for start in range(0, len(whole), 128)]
    tracemalloc.start()
    try:
        for number, piece in enumerate(pieces[:-1], 1):
            assert splitter.feed(piece) == ([], [])
            assert splitter.held_bytes == number * 128
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 << 20
    messages, others = splitter.feed(pieces[-1])
    assert (len(messages[0].body), others, splitter.held_bytes) == (1 << 20, [(0, b"OK")], 0)


@pytest.mark.parametrize("size", range(MESSAGE_OVERHEAD_BYTES))
def test_a_message_frame_shorter_than_its_own_header_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match="too short for its own header"):
        FrameSplitter().feed(frame(FrameType.MESSAGE, b"x" * size))


def test_what_the_splitter_raises_is_of_this_product() -> None:
    assert issubclass(ProtocolError, NsqdigestError)


def test_the_client_library_reads_frames_and_messages_in_the_same_way() -> None:
    data = message_frame(FIRST)[4:]
    frame_type, payload = protocol.unpack_response(data)
    message = protocol.decode_message(payload)
    assert frame_type == FrameType.MESSAGE
    assert (message.id, message.timestamp, message.attempts, message.body) == (
        FIRST.id, FIRST.timestamp_ns, FIRST.attempts, FIRST.body,
    )  # fmt: skip
