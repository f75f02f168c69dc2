"""Bytes of a hostile or broken peer, through the compression and the splitter: frames or a ProtocolError, in bounds.

Streams are drawn as they should be and then broken: bytes changed, cut out, put in twice. In a normal run each test
tries 200 of them, with HYPOTHESIS_PROFILE=deep 4,000.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.errors import ProtocolError
from nsqdigest.nsq.compression import PIECE_BYTES, Deflate, Snappy, Stage
from nsqdigest.nsq.frames import KEPT_BODY_BYTES, FrameSplitter, FrameType, Message, frame, message_frame
from support.fuzzing import times

pytestmark = pytest.mark.property

FUZZED = times(2)

Make = Callable[[], Stage]


def deflate() -> Deflate:
    return Deflate(1)


STAGES = pytest.mark.parametrize("make", [Snappy, deflate], ids=["snappy", "deflate"])

texts = st.binary(max_size=300) | st.builds(
    lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(1, 3_000)
)
messages = st.builds(
    Message, st.binary(min_size=16, max_size=16), st.integers(0, 2**63 - 1), st.integers(0, 65_535), texts
)
frames = messages.map(message_frame) | st.builds(frame, st.sampled_from(list(FrameType)), texts)
cuts = st.lists(st.integers(1, 500), min_size=1, max_size=10)
injuries = st.lists(
    st.tuples(st.sampled_from(["change", "cut", "twice"]), st.integers(0, 2**16), st.integers(1, 255)), max_size=4
)


def injured(stream: bytes, wounds: list[tuple[str, int, int]]) -> bytes:
    for kind, place, amount in wounds:
        at = place % (len(stream) + 1)
        if kind == "change":
            stream = stream[:at] + bytes([(byte + amount) % 256 for byte in stream[at : at + 1]]) + stream[at + 1 :]
        elif kind == "cut":
            stream = stream[:at] + stream[at + amount :]
        else:
            stream = stream[: at + amount] + stream[at:]
    return stream


def pieces_of(stream: bytes, sizes: list[int]) -> Iterator[bytes]:
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        yield stream[position : position + size]
        position, turn = position + size, turn + 1


@FUZZED
@given(st.lists(frames, max_size=8), injuries, cuts)
def test_a_broken_stream_gives_frames_or_a_protocol_error(
    stream: list[bytes], wounds: list[tuple[str, int, int]], sizes: list[int]
) -> None:
    splitter = FrameSplitter()
    with contextlib.suppress(ProtocolError):
        for piece in pieces_of(injured(b"".join(stream), wounds), sizes):
            for message in splitter.feed(piece)[0]:
                assert len(message.id) == 16
            assert splitter.held_bytes <= KEPT_BODY_BYTES + 34


@STAGES
@FUZZED
@given(st.lists(texts, max_size=8), cuts)
def test_what_was_written_is_read_however_it_is_cut(make: Make, written: list[bytes], sizes: list[int]) -> None:
    here, there = make(), make()
    packed = b"".join(here.encode(text) for text in written)
    assert b"".join(b"".join(there.decode(piece)) for piece in pieces_of(packed, sizes)) == b"".join(written)


@STAGES
@FUZZED
@given(st.lists(texts, max_size=8), injuries, cuts)
def test_a_broken_compression_gives_bounded_pieces_or_a_protocol_error(
    make: Make, written: list[bytes], wounds: list[tuple[str, int, int]], sizes: list[int]
) -> None:
    here, there = make(), make()
    packed = injured(b"".join(here.encode(text) for text in written), wounds)
    with contextlib.suppress(ProtocolError):
        for piece in pieces_of(packed, sizes):
            for unpacked in there.decode(piece):
                assert 0 < len(unpacked) <= PIECE_BYTES


@FUZZED
@given(st.lists(st.integers(0, 3_000), max_size=8), injuries)
def test_snappy_never_hands_on_what_was_not_written(sizes: list[int], wounds: list[tuple[str, int, int]]) -> None:
    """Its checksums see to that: whole writes may be missing or come twice, none is another."""
    written = [b"<%d:%s>" % (number, b"x" * size) for number, size in enumerate(sizes)]
    here = Snappy()
    packed = injured(b"".join(here.encode(text) for text in written), wounds)
    seen: list[bytes] = []
    with contextlib.suppress(ProtocolError):
        seen += Snappy().decode(packed)
    assert {text + b">" for text in b"".join(seen).split(b">")[:-1]} <= set(written)


@FUZZED
@given(st.lists(st.binary(max_size=64), max_size=8))
def test_deflate_agrees_with_zlib_on_what_is_deflate(pieces: list[bytes]) -> None:
    ours, theirs = deflate(), zlib.decompressobj(-15)
    for piece in pieces:
        try:
            expected = theirs.decompress(piece)
        except zlib.error:
            with pytest.raises(ProtocolError):
                list(ours.decode(piece))
            return
        if theirs.eof:
            with pytest.raises(ProtocolError):
                list(ours.decode(piece))
            return
        assert b"".join(ours.decode(piece)) == expected
