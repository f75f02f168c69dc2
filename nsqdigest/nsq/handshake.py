"""From an address to a usable connection: connect, IDENTIFY, TLS, compression, AUTH, in nsqd's order.

Invariants:
- After each upgrade nsqd sends OK inside of it, and only then the next begins. Until the last upgrade is done, frames
  are read exactly, byte for byte: no byte of one layer is ever read in another.
- It ends in a usable connection, or in one error with place, cause and remedy; then no socket is left open.
- Heartbeats are answered: nsqd asks another server for AUTH, which may be slow. A flood of them ends the handshake.

`negotiation` judges the answers, `tls` explains failures of TLS; the result goes to `connection`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError
from tornado.netutil import Resolver
from tornado.tcpclient import TCPClient

import nsqdigest
from nsqdigest.base.errors import ConnectionLost, ProtocolError
from nsqdigest.base.resolver import NSQDS
from nsqdigest.config import Address
from nsqdigest.nsq import commands, negotiation, tls
from nsqdigest.nsq.compression import Stage, stage_of
from nsqdigest.nsq.frames import HEARTBEAT, MAX_ANSWER_BYTES, FrameSplitter, FrameType
from nsqdigest.nsq.negotiation import ConnectionOptions, Negotiated

HANDSHAKE_TIMEOUT_S = 5.0
"""All steps before AUTH."""
AUTH_TIMEOUT_S = 10.0
"""nsqd gives its own auth server 5 s, and may have several to ask."""
MOST_HEARTBEATS = 1000
"""Before the last answer. The shortest interval that nsqd takes is a second; servers of tests send them faster."""
READ_BYTES = 256 * 1024
MOST_UNREAD_BYTES = 4 * READ_BYTES
TLS_READ_BYTES = 16 * 1024
"""One record of TLS, the most that one read brings."""
_OK = b"OK"


@dataclass(frozen=True, slots=True)
class Established:
    """`splitter` and `frames` hold whatever came behind the last answer, inside the compression."""

    stream: IOStream
    negotiated: Negotiated
    stage: Stage | None
    splitter: FrameSplitter
    frames: list[tuple[int, bytes]]
    round_trip_s: float
    """From IDENTIFY to its answer."""

    @property
    def tls_version(self) -> str:
        return (self.stream.socket.version() or "") if isinstance(self.stream, SSLIOStream) else ""


async def shake_hands(address: Address, options: ConnectionOptions) -> Established:
    handshake = _Handshake(address, options)
    within_s = HANDSHAKE_TIMEOUT_S
    try:
        async with asyncio.timeout(within_s):
            stream, negotiated = await handshake.begin()
        if negotiated.auth_required:
            within_s = AUTH_TIMEOUT_S
            async with asyncio.timeout(within_s):
                await handshake.authenticate()
        return handshake.established(stream, negotiated)
    except BaseException as error:
        handshake.close()
        if isinstance(error, TimeoutError):
            raise ConnectionLost(f"nsqd at {address} did not answer within {within_s:g} s ({handshake.step})") from None
        real = getattr(error, "real_error", None) or error
        has_ended = isinstance(real, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        if isinstance(real, ssl.SSLError) and not has_ended and options.tls is not None:
            raise tls.explain(real, options.tls, address.host, f"nsqd at {address}") from error
        if isinstance(error, OSError | StreamClosedError):
            raise ConnectionLost(f"nsqd at {address}: {cause(error)} ({handshake.step})") from error
        raise


def cause(error: BaseException) -> str:
    """The socket's own reason, where tornado wrapped it."""
    real = getattr(error, "real_error", None) or error
    if isinstance(real, StreamClosedError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "it closed the connection"
    return getattr(real, "strerror", None) or str(real) or type(real).__name__


async def refused_in_the_clear(established: Established, options: ConnectionOptions, within_s: float) -> None:
    """Sends a NOP and raises NsqdRefused where nsqd refuses it. An nsqd that requires TLS refuses the first command
    after IDENTIFY; a NOP has no other answer."""
    stream, stage = established.stream, established.stage
    frames = established.frames
    try:
        await stream.write(stage.encode(commands.NOP) if stage is not None else commands.NOP)
        async with asyncio.timeout(within_s):
            while True:
                for frame_type, payload in frames:
                    if frame_type == FrameType.ERROR:
                        raise negotiation.refusal(payload, options)
                data = await stream.read_bytes(READ_BYTES, partial=True)
                pieces = stage.decode(data) if stage is not None else [data]
                frames = [frame for piece in pieces for frame in established.splitter.feed(piece)[1]]
    except TimeoutError:
        return
    except StreamClosedError as error:
        raise ConnectionLost(f"nsqd: {cause(error)} after IDENTIFY") from error


class _Names(Resolver):
    """Our resolver of nsqds' names, as tornado wants it."""

    async def resolve(
        self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[tuple[int, Any]]:
        found = await NSQDS.look_up(host, port, family=family, kind=socket.SOCK_STREAM)
        return [(family_found, address) for family_found, _, _, _, address in found]


class _Handshake:
    def __init__(self, address: Address, options: ConnectionOptions) -> None:
        self.step = "connect"
        self._address = address
        self._where = f"nsqd at {address}"
        self._options = options
        self._stream: IOStream | None = None
        self._stage: Stage | None = None
        self._splitter = FrameSplitter()
        self._frames: deque[tuple[int, bytes]] = deque()
        self._round_trip_s = 0.0
        self._heartbeats = 0

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    async def begin(self) -> tuple[IOStream, Negotiated]:
        stream = await self._connect()
        negotiated = await self._identify()
        negotiation.check(self._options, negotiated, self._where)
        if negotiated.tls_v1:
            stream = await self._begin_tls(stream)
        if negotiated.compression != "none":
            await self._begin_compression(negotiated)
        return stream, negotiated

    async def authenticate(self) -> None:
        self.step = "AUTH"
        assert self._options.auth_secret is not None
        await self._write(commands.auth(self._options.auth_secret.reveal()))
        frame_type, payload = await self._frame()
        if frame_type == FrameType.ERROR:
            raise negotiation.refusal(payload, self._options)

    def established(self, stream: IOStream, negotiated: Negotiated) -> Established:
        return Established(stream, negotiated, self._stage, self._splitter, list(self._frames), self._round_trip_s)

    # -- the steps

    async def _connect(self) -> IOStream:
        client = TCPClient(_Names())
        stream = await client.connect(self._address.host, self._address.port, max_buffer_size=MOST_UNREAD_BYTES)
        self._stream = stream
        stream.set_nodelay(True)
        stream.read_chunk_size = READ_BYTES
        return stream

    async def _identify(self) -> Negotiated:
        self.step = "IDENTIFY"
        assert self._stream is not None
        facts = negotiation.identity(self._options, socket.gethostname(), f"nsqdigest/{nsqdigest.__version__}")
        began_s = time.monotonic()
        await self._stream.write(commands.MAGIC_V2 + commands.identify(facts))
        frame_type, payload = await self._frame()
        self._round_trip_s = time.monotonic() - began_s
        if frame_type == FrameType.ERROR:
            raise negotiation.refusal(payload, self._options)
        return negotiation.parse(payload, self._where)

    async def _begin_tls(self, stream: IOStream) -> IOStream:
        self.step = "TLS"
        assert self._options.tls is not None
        try:
            self._address.host.encode("idna")  # `start_tls` does this too, and leaks the socket where it fails
        except UnicodeError as error:
            raise ConnectionLost(f"{self._where}: its name cannot be used for TLS: {error}") from None
        try:
            beginning = stream.start_tls(False, self._options.tls.context, server_hostname=self._address.host)
        except ValueError:  # the stream has bytes left
            raise ProtocolError(f"{self._where} sent more bytes in the clear where TLS was to begin") from None
        self._stream = None  # its socket belongs to the new stream, which closes it where this fails
        self._stream = encrypted = await beginning
        encrypted.read_chunk_size = TLS_READ_BYTES
        await self._expect_ok()
        return encrypted

    async def _begin_compression(self, negotiated: Negotiated) -> None:
        self.step = negotiated.compression
        self._stage = stage_of(negotiated)
        await self._expect_ok()

    async def _expect_ok(self) -> None:
        frame_type, payload = await self._frame()
        if frame_type == FrameType.ERROR:
            raise negotiation.refusal(payload, self._options)
        if payload != _OK:
            raise ProtocolError(f"{self._where} answered {payload[:64]!r} where {self.step} was to begin")

    # -- bytes

    async def _write(self, data: bytes) -> None:
        assert self._stream is not None
        await self._stream.write(self._stage.encode(data) if self._stage is not None else data)

    async def _frame(self) -> tuple[int, bytes]:
        """The next response or error."""
        while True:
            frame_type, payload = await (self._frame_as_it_is() if self._stage is None else self._unpacked_frame())
            if frame_type not in (FrameType.RESPONSE, FrameType.ERROR):
                raise ProtocolError(f"{self._where} sent a frame of type {frame_type} before anything was asked for")
            if (frame_type, payload) != (FrameType.RESPONSE, HEARTBEAT):
                return frame_type, payload
            self._heartbeats += 1
            if self._heartbeats > MOST_HEARTBEATS:
                raise ProtocolError(f"{self._where} sent {self._heartbeats} heartbeats and no answer ({self.step})")
            await self._write(commands.NOP)

    async def _frame_as_it_is(self) -> tuple[int, bytes]:
        assert self._stream is not None
        beginning = await self._stream.read_bytes(4)
        if other := negotiation.spoken_instead(beginning):
            raise ProtocolError(f"{self._where}: {other}")
        size = int.from_bytes(beginning, "big", signed=True)
        if not 4 <= size <= MAX_ANSWER_BYTES:
            raise ProtocolError(f"{self._where} began with a frame of {size} bytes: is it an nsqd?")
        data = await self._stream.read_bytes(size)
        return int.from_bytes(data[:4], "big", signed=True), data[4:]

    async def _unpacked_frame(self) -> tuple[int, bytes]:
        assert self._stream is not None
        assert self._stage is not None
        while not self._frames:
            for piece in self._stage.decode(await self._stream.read_bytes(READ_BYTES, partial=True)):
                messages, others = self._splitter.feed(piece)
                if messages:
                    raise ProtocolError(f"{self._where} sent a message before anything was asked for")
                self._frames += others
        return self._frames.popleft()
