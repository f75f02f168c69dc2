"""snappy and deflate as stages over bytes: `encode` before a write, `decode` after a read (pure).

Invariants:
- One `encode` is one write, complete for the peer: nothing stays behind in the compressor.
- `decode` yields whatever is complete, in pieces of bounded size: bytes that unfold a thousandfold take no more memory
  than one piece, and the caller can refuse the rest after the first. It has to take all pieces before the next call.
- Checksums are verified, and a stream of another format raises ProtocolError.

nsqd's deflate is bare (RFC 1951), flushed after each write; its snappy is the framing format, of which this cuts chunks
and bounds them, and cramjam (the extra `snappy`) does the rest.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from nsqdigest.base.errors import ProtocolError
from nsqdigest.nsq.negotiation import Negotiated

PIECE_BYTES = 512 * 1024


class Stage(Protocol):
    def encode(self, data: bytes) -> bytes: ...

    def decode(self, data: bytes) -> Iterator[bytes]: ...


def stage_of(negotiated: Negotiated) -> Stage | None:
    if negotiated.snappy:
        return Snappy()
    return Deflate(negotiated.deflate_level) if negotiated.deflate else None


class Deflate:
    def __init__(self, level: int) -> None:
        self._packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS)

    def encode(self, data: bytes) -> bytes:
        return self._packer.compress(data) + self._packer.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> Iterator[bytes]:
        unpacker = self._unpacker
        is_more = True
        while is_more:
            try:
                piece = unpacker.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise ProtocolError(f"what came is not deflate: {error}") from None
            data = unpacker.unconsumed_tail
            # A piece of full length may not be all: the rest of it is inside zlib and needs no further input.
            is_more = bool(data) or len(piece) == PIECE_BYTES
            if piece:
                yield piece
            if unpacker.eof:
                raise ProtocolError("the deflate stream ended, and the connection did not")


_COMPRESSED, _PLAIN, _FIRST_SKIPPABLE, _IDENTIFIER = 0x00, 0x01, 0x80, 0xFF
_STREAM_BEGINS = b"\xff\x06\x00\x00sNaPpY"
_CHECKSUM_BYTES = 4
_CHUNK_HOLDS_BYTES = 1 << 16
"""Unpacked, in one chunk: the format's limit."""
_LARGEST_CHUNK_BYTES = _CHECKSUM_BYTES + 32 + _CHUNK_HOLDS_BYTES + _CHUNK_HOLDS_BYTES // 6
"""That many bytes, packed, when nothing in them repeats."""


class Snappy:
    def __init__(self) -> None:
        cramjam: Any = importlib.import_module("cramjam")
        self._pack = cramjam.snappy.compress
        self._unpack = cramjam.snappy.decompress
        self._broken: type[Exception] = cramjam.DecompressionError
        self._rest = b""
        self._has_begun_to_write = self._has_begun_to_read = False

    def encode(self, data: bytes) -> bytes:
        if not data:
            return b""
        packed = bytes(self._pack(data))
        if self._has_begun_to_write:
            return packed[len(_STREAM_BEGINS) :]
        self._has_begun_to_write = True
        return packed

    def decode(self, data: bytes) -> Iterator[bytes]:
        buffer = self._rest + data if self._rest else data
        start = position = unpacked_bytes = 0
        while len(buffer) - position >= 4:
            kind = buffer[position]
            size = int.from_bytes(buffer[position + 1 : position + 4], "little")
            self._check(kind, size)
            following = position + 4 + size
            if following > len(buffer):
                break
            if kind in (_COMPRESSED, _PLAIN):
                holds = size - _CHECKSUM_BYTES if kind == _PLAIN else _unpacked_bytes(buffer, position + 8, following)
                if unpacked_bytes + holds > PIECE_BYTES:
                    yield self._unpacked(buffer[start:position], unpacked_bytes)
                    start, unpacked_bytes = position, 0
                unpacked_bytes += holds
            else:
                if unpacked_bytes:
                    yield self._unpacked(buffer[start:position], unpacked_bytes)
                if kind == _IDENTIFIER and buffer[position:following] != _STREAM_BEGINS:
                    raise ProtocolError("what came is not snappy: its stream begins with other bytes")
                start, unpacked_bytes = following, 0
            position = following
        self._rest = buffer[position:]
        if unpacked_bytes:
            yield self._unpacked(buffer[start:position], unpacked_bytes)

    def _check(self, kind: int, size: int) -> None:
        """By the head of a chunk alone, before its bytes are there."""
        if not self._has_begun_to_read and (kind, size) != (_IDENTIFIER, 6):
            raise ProtocolError("what came is not snappy: its stream begins with other bytes")
        self._has_begun_to_read = True
        largest = {_COMPRESSED: _LARGEST_CHUNK_BYTES, _PLAIN: _CHECKSUM_BYTES + _CHUNK_HOLDS_BYTES, _IDENTIFIER: 6}
        if kind not in largest and kind < _FIRST_SKIPPABLE:
            raise ProtocolError(f"a snappy chunk of kind {kind:#04x}, which may not be skipped")
        smallest = {_COMPRESSED: _CHECKSUM_BYTES + 1, _PLAIN: _CHECKSUM_BYTES, _IDENTIFIER: 6}.get(kind, 0)
        if not smallest <= size <= largest.get(kind, _LARGEST_CHUNK_BYTES):
            raise ProtocolError(f"a snappy chunk of kind {kind:#04x} with {size} bytes")

    def _unpacked(self, chunks: bytes, unpacked_bytes: int) -> bytes:
        try:
            return bytes(self._unpack(_STREAM_BEGINS + chunks, output_len=unpacked_bytes))
        except self._broken as error:
            raise ProtocolError(f"what came is not snappy: {error}") from None


def _unpacked_bytes(buffer: bytes, position: int, end: int) -> int:
    """The unpacked size in the head of a compressed chunk: seven bits a byte, the lowest first."""
    size = 0
    for shift in range(0, 21, 7):
        if position == end:
            break
        byte = buffer[position]
        size |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            if size <= _CHUNK_HOLDS_BYTES:
                return size
            break
    raise ProtocolError(f"a snappy chunk that would hold more than {_CHUNK_HOLDS_BYTES} bytes")
