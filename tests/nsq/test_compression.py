"""snappy and deflate as stages over bytes: what comes out is what went in, and nothing is believed."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import pytest
from msgspec.structs import astuple

from nsqdigest.base.errors import ProtocolError
from nsqdigest.nsq.compression import PIECE_BYTES, Deflate, Snappy, Stage, stage_of
from nsqdigest.nsq.frames import FrameSplitter, FrameType, Message, frame, message_frame
from nsqdigest.nsq.negotiation import Negotiated

pytestmark = pytest.mark.unit

BEGIN = b"\xff\x06\x00\x00sNaPpY"
RANDOM = random.Random(4150).randbytes(300_000)
TEXTS = [b"OK", b"x", RANDOM, b"so much of the same " * 50_000, RANDOM[:70_000] + b"\0" * 70_000]

Make = Callable[[], Stage]


def deflate() -> Deflate:
    return Deflate(6)


@pytest.fixture(params=[Snappy, deflate], ids=["snappy", "deflate"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


def decoded(stage: Stage, data: bytes) -> bytes:
    return b"".join(stage.decode(data))


def test_each_write_is_complete_for_the_peer(make: Make) -> None:
    here, there = make(), make()
    for text in TEXTS:
        assert decoded(there, here.encode(text)) == text


def test_what_repeats_becomes_shorter(make: Make) -> None:
    assert len(make().encode(b"so much of the same " * 1_000)) < 2_000


def test_nothing_is_nothing(make: Make) -> None:
    here, there = make(), make()
    assert decoded(there, here.encode(b"")) == b""
    assert decoded(there, here.encode(b"x")) == b"x"


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 11, 100, 4_096, 65_537])
def test_however_the_bytes_are_cut_the_same_comes_out(make: Make, step: int) -> None:
    here, there = make(), make()
    text = b"".join(TEXTS) if step > 11 else RANDOM[:3_000] + b"x" * 3_000
    packed = here.encode(text) + here.encode(b"end")
    assert b"".join(decoded(there, packed[at : at + step]) for at in range(0, len(packed), step)) == text + b"end"


def test_what_unfolds_to_much_comes_in_bounded_pieces(make: Make) -> None:
    text = b"\0" * (8 << 20)
    pieces = list(make().decode(make().encode(text)))
    assert b"".join(pieces) == text
    assert max(map(len, pieces)) <= PIECE_BYTES


def test_a_bomb_is_refused_before_it_takes_memory(make: Make) -> None:
    """A gibibyte of nothing in a mebibyte: its first four bytes cannot be the size of a frame."""
    bomb = make().encode(b"\0" * (64 << 20)) if make is Snappy else _deflated_zeros(1 << 30)
    stage, splitter = make(), FrameSplitter()
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="a frame of 0 bytes"):
            list(map(splitter.feed, stage.decode(bomb)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(bomb) + 6 * PIECE_BYTES


def _deflated_zeros(size_bytes: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    # After a full flush a block stands for itself, so that it can be repeated.
    block = packer.compress(b"\0" * (1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return block * (size_bytes >> 20)


def test_frames_come_through_as_they_were(make: Make) -> None:
    messages = [Message(b"%016d" % number, number, 1, RANDOM[:number]) for number in range(0, 5_000, 37)]
    stream = b"".join(map(message_frame, messages)) + frame(FrameType.RESPONSE, b"OK")
    here, there, splitter = make(), make(), FrameSplitter()
    packed = here.encode(stream)
    seen: list[Message] = []
    for at in range(0, len(packed), 1_000):
        for piece in there.decode(packed[at : at + 1_000]):
            seen += splitter.feed(piece)[0]
    assert list(map(astuple, seen)) == list(map(astuple, messages))


# -- deflate


def test_deflate_is_bare_as_nsqd_has_it() -> None:
    assert zlib.decompressobj(-15).decompress(deflate().encode(b"hello")) == b"hello"


def test_the_level_is_the_one_that_was_agreed_on() -> None:
    assert Deflate(0).encode(b"x" * 1_000).count(b"x") == 1_000
    assert len(Deflate(9).encode(b"x" * 1_000)) < 50


@pytest.mark.parametrize("data", [b"\x07", b"\xff" * 10, b"HTTP/1.1 400", zlib.compress(b"x")])
def test_what_is_not_deflate_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="what came is not deflate"):
        decoded(deflate(), data)


def test_a_stream_of_deflate_that_ends_is_refused() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    with pytest.raises(ProtocolError, match="the deflate stream ended"):
        decoded(deflate(), packer.compress(b"x") + packer.flush())


# -- snappy


def chunk(kind: int, data: bytes) -> bytes:
    return bytes([kind]) + len(data).to_bytes(3, "little") + data


def test_snappy_is_the_framing_format_and_begins_once() -> None:
    here = Snappy()
    written = here.encode(b"hello") + here.encode(b"again")
    assert written.count(BEGIN) == 1
    assert bytes(cramjam.snappy.decompress(written)) == b"helloagain"


def test_chunks_that_may_be_skipped_are_skipped() -> None:
    body = bytes(cramjam.snappy.compress(b"hello"))[len(BEGIN) :]
    stream = BEGIN + chunk(0xFE, b"\0" * 100) + body + chunk(0x80, b"?") + BEGIN + body + chunk(0xFE, b"")
    assert decoded(Snappy(), stream) == b"hellohello"


def test_a_wrong_checksum_is_refused() -> None:
    packed = bytearray(Snappy().encode(b"hello"))
    packed[-1] ^= 1
    with pytest.raises(ProtocolError, match=r"what came is not snappy: .*checksum"):
        decoded(Snappy(), bytes(packed))


@pytest.mark.parametrize("data", [b"\0\0\0\6", b"HTTP", b"\xff\7\0\0", b"\xff\6\0\0sNaPpZ", frame(0, b"OK")])
def test_a_stream_that_begins_with_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="its stream begins with other bytes"):
        decoded(Snappy(), data)


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        (b"\x02\x01\x00\x00", "of kind 0x02, which may not be skipped"),
        (b"\x7f\x01\x00\x00", "of kind 0x7f, which may not be skipped"),
        (b"\x00\xff\xff\xff", "of kind 0x00 with 16777215 bytes"),
        (b"\x01\x05\x00\x01", "of kind 0x01 with 65541 bytes"),
        (b"\x01\x03\x00\x00", "of kind 0x01 with 3 bytes"),
        (b"\x00\x04\x00\x00", "of kind 0x00 with 4 bytes"),
        (b"\xfe\xff\xff\xff", "of kind 0xfe with 16777215 bytes"),
        (b"\xff\x05\x00\x00", "of kind 0xff with 5 bytes"),
    ],
)
def test_a_chunk_that_none_can_be_is_refused_by_its_head_alone(rest: bytes, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        decoded(Snappy(), BEGIN + rest)


@pytest.mark.parametrize("size", [b"\x81\x80\x04", b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x80\x80\x80\x80\x00"])
def test_a_chunk_that_says_it_holds_too_much_is_refused_before_it_is_unpacked(size: bytes) -> None:
    with pytest.raises(ProtocolError, match="would hold more than 65536 bytes"):
        decoded(Snappy(), BEGIN + chunk(0x00, b"\0\0\0\0" + size))


def test_a_chunk_whose_size_breaks_off_is_refused() -> None:
    with pytest.raises(ProtocolError, match="would hold more than 65536 bytes"):
        decoded(Snappy(), BEGIN + chunk(0x00, b"\0\0\0\0\x80"))


# -- which


def test_the_stage_is_the_one_that_nsqd_agreed_to() -> None:
    assert stage_of(Negotiated()) is None
    assert isinstance(stage_of(Negotiated(snappy=True)), Snappy)
    assert isinstance(stage_of(Negotiated(deflate=True)), Deflate)
