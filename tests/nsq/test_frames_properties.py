"""Any frames, cut in any way, come out as they went in; any bytes at all give frames or a ProtocolError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from nsqdigest.base.errors import ProtocolError
from nsqdigest.nsq.frames import KEPT_BODY_BYTES, FrameSplitter, FrameType, Message, frame, message_frame

pytestmark = pytest.mark.property

messages = st.builds(
    Message,
    id=st.binary(min_size=16, max_size=16),
    timestamp_ns=st.integers(-(2**63), 2**63 - 1),
    attempts=st.integers(0, 2**16 - 1),
    body=st.binary(max_size=300),
)
others = st.tuples(st.sampled_from([int(FrameType.RESPONSE), int(FrameType.ERROR)]), st.binary(max_size=300))


def encoded(item: Message | tuple[int, bytes]) -> bytes:
    return message_frame(item) if isinstance(item, Message) else frame(*item)


@given(st.lists(st.one_of(messages, others), max_size=12), st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    items: list[Message | tuple[int, bytes]], sizes: list[int]
) -> None:
    stream = b"".join(encoded(item) for item in items)
    splitter = FrameSplitter()
    seen_messages: list[Message] = []
    seen_others: list[tuple[int, bytes]] = []
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        new_messages, new_others = splitter.feed(stream[position : position + size])
        seen_messages += new_messages
        seen_others += new_others
        position += size
        turn += 1
    assert list(map(astuple, seen_messages)) == [astuple(item) for item in items if isinstance(item, Message)]
    assert seen_others == [item for item in items if not isinstance(item, Message)]
    assert splitter.held_bytes == 0


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_any_bytes_give_frames_or_a_protocol_error(pieces: list[bytes]) -> None:
    splitter = FrameSplitter()
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            splitter.feed(piece)


@given(st.lists(st.binary(max_size=2_000), max_size=20))
def test_what_is_held_is_never_more_than_one_frame_and_one_read(pieces: list[bytes]) -> None:
    splitter = FrameSplitter()
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            splitter.feed(piece)
            assert splitter.held_bytes <= KEPT_BODY_BYTES + 34
