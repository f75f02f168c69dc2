"""One connection to one nsqd: handshake, bulk reads, joined writes, heartbeats, silence noticed.

Always so:
- One read takes whatever is there and hands all its messages on as one list; the reader never waits for whoever gets
  them.
- Heartbeats are answered here, by the reader, each with the RDY that is wanted: a RDY that got lost cannot stall us.
- Silence for two heartbeat intervals ends the connection: a stopped nsqd sends no error.
- The handshake reads exactly frame by frame, so that nothing of what follows an upgrade is swallowed.
- However it ends, `on_closed` is called once, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from nsq import protocol as nsq
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient

import nsqdigest
from nsqdigest import log
from nsqdigest.config import Address
from nsqdigest.errors import ConnectionLost, NsqdigestError, NsqdRefused, ProtocolError
from nsqdigest.transport.frames import HEARTBEAT, MAGIC_V2, FrameSplitter, FrameType, Message, fin_all

_log = log.get("connection")

READ_BYTES = 256 * 1024
OUTPUT_BUFFER_BYTES = 64 * 1024
OUTPUT_BUFFER_TIMEOUT_MS = 25
"""What nsqd may hold back on a quiet topic; its own smallest allowed value."""
HANDSHAKE_TIMEOUT_S = 5.0
_RESPONSE_LIMIT_BYTES = 1 << 20
_MAX_FRAME_BYTES = 64 << 20
"""A message may be as large as nsqd's operator allows (1 MiB by default); beyond this a frame is garbage."""
_NOT_FATAL = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    heartbeat_interval_ms: int
    msg_timeout_ms: int = 0
    """0: what nsqd has."""


class Receiver(Protocol):
    """Who gets what a subscribed connection reads. Nothing here may wait."""

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None: ...

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        """nsqd did not take a FIN, REQ or TOUCH; the connection goes on."""

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None: ...


class NsqConnection:
    def __init__(self, address: Address, options: ConnectionOptions, receiver: Receiver) -> None:
        self.address = address
        self.in_flight = 0
        self.rdy = 0
        self.max_rdy = 2500
        self.msg_timeout_s = 60.0
        self.subscribed = False
        self.closing = False
        self._options = options
        self._receiver = receiver
        self._stream: IOStream | None = None
        self._reader: asyncio.Task[None] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._silence_s = 2 * options.heartbeat_interval_ms / 1000
        self._last_read_s = 0.0
        self._answers: deque[asyncio.Future[bytes]] = deque()
        self._closed = asyncio.Event()
        self._reason: NsqdigestError | None = None

    @property
    def is_open(self) -> bool:
        return self._reader is not None and self._reason is None

    # -- beginning

    async def open(self) -> dict[str, Any]:
        """Connects and introduces us. Answers what nsqd said about itself."""
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                self._stream = await TCPClient().connect(
                    self.address.host, self.address.port, max_buffer_size=2 * _MAX_FRAME_BYTES
                )
                if self._reason is not None:  # closed while it was connecting
                    self._stream.close()
                    raise self._reason
                self._stream.set_nodelay(True)
                self._stream.read_chunk_size = READ_BYTES
                await self._stream.write(MAGIC_V2 + nsq.identify(self._identity()))
                facts = _facts(await self._handshake_answer())
        except TimeoutError:
            raise self._end(
                ConnectionLost(f"nsqd at {self.address} did not answer within {HANDSHAKE_TIMEOUT_S:g} s")
            ) from None
        except (OSError, StreamClosedError) as error:
            raise self._end(ConnectionLost(f"nsqd at {self.address}: {_cause(error)}")) from error
        except ValueError as error:
            raise self._end(
                ProtocolError(f"nsqd at {self.address} answered IDENTIFY with something else: is it an nsqd?")
            ) from error
        except NsqdigestError as error:
            raise self._end(error) from error
        except asyncio.CancelledError:
            self._end(ConnectionLost("closed while connecting"))
            raise
        self.max_rdy = facts.get("max_rdy_count", self.max_rdy)
        self.msg_timeout_s = facts.get("msg_timeout", 60_000) / 1000
        self._last_read_s = time.monotonic()
        self._reader = asyncio.create_task(self._read(), name=f"nsqd {self.address} reader")
        self._watch_silence()
        return facts

    async def subscribe(self, topic: str, channel: str) -> None:
        await self.request(nsq.subscribe(topic, channel))
        self.subscribed = True

    def _identity(self) -> dict[str, Any]:
        hostname = socket.gethostname()
        identity = {
            "client_id": hostname.split(".")[0],
            "hostname": hostname,
            "user_agent": f"nsqdigest/{nsqdigest.__version__}",
            "feature_negotiation": True,
            "heartbeat_interval": self._options.heartbeat_interval_ms,
            "output_buffer_size": OUTPUT_BUFFER_BYTES,
            "output_buffer_timeout": OUTPUT_BUFFER_TIMEOUT_MS,
        }
        if self._options.msg_timeout_ms:
            identity["msg_timeout"] = self._options.msg_timeout_ms
        return identity

    async def _handshake_answer(self) -> bytes:
        assert self._stream is not None
        size = int.from_bytes(await self._stream.read_bytes(4), "big", signed=True)
        if not 4 <= size <= _RESPONSE_LIMIT_BYTES:
            raise ProtocolError(f"nsqd at {self.address} began with a frame of {size} bytes: is it an nsqd?")
        data = await self._stream.read_bytes(size)
        if int.from_bytes(data[:4], "big") == FrameType.ERROR:
            raise _refusal(data[4:])
        return data[4:]

    # -- commands

    def set_rdy(self, count: int) -> None:
        self.rdy = count
        self._write(nsq.ready(count))

    def fin(self, messages: list[Message]) -> None:
        self.in_flight -= len(messages)
        self._write(fin_all([message.id for message in messages]))

    def requeue(self, delays_ms: Iterable[tuple[Message, int]]) -> None:
        commands = [b"REQ %s %d\n" % (message.id, delay_ms) for message, delay_ms in delays_ms]
        self.in_flight -= len(commands)
        self._write(b"".join(commands))

    def let_go(self, count: int) -> None:
        """Messages that nsqd has taken back by itself: neither finished nor requeued."""
        self.in_flight -= count

    async def request(self, command: bytes) -> bytes:
        """Sends a command that nsqd answers, and answers that. Answers come in the order of requests."""
        if not self.is_open:
            raise self._reason or ConnectionLost(f"nsqd at {self.address}: not connected")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._write(command)
        return await answer

    def _write(self, data: bytes) -> None:
        if data and self._stream is not None and self._reason is None:
            try:
                self._stream.write(data)
            except StreamClosedError as error:
                self._end(ConnectionLost(f"nsqd at {self.address}: {_cause(error)}"))

    # -- reading

    async def _read(self) -> None:
        assert self._stream is not None
        splitter = FrameSplitter(_MAX_FRAME_BYTES)
        reason: NsqdigestError = ConnectionLost(f"nsqd at {self.address}: its reader ended")
        try:
            while True:
                data = await self._stream.read_bytes(READ_BYTES, partial=True)
                if self._reason is not None:
                    return  # ended while this waited to be looked at (a paused process): its messages are nsqd's again
                self._last_read_s = time.monotonic()
                messages, others = splitter.feed(data)
                if messages:
                    self.in_flight += len(messages)
                    self._receiver.on_messages(self, messages)
                for frame_type, payload in others:
                    self._take(frame_type, payload)
        except (OSError, StreamClosedError) as error:
            reason = ConnectionLost(f"nsqd at {self.address}: {_cause(error)}")
        except (ProtocolError, NsqdRefused) as error:
            reason = error
        except Exception as error:
            _log.error("connection.reader.bug", nsqd=str(self.address), error=error, exc_info=error)
            reason = ConnectionLost(f"nsqd at {self.address}: {type(error).__name__} while handing on what it sent")
        finally:
            self._end(reason)

    def _take(self, frame_type: int, payload: bytes) -> None:
        if frame_type == FrameType.RESPONSE:
            if payload == HEARTBEAT:
                self._write(nsq.nop() if self.closing or not self.subscribed else nsq.nop() + nsq.ready(self.rdy))
            elif self._answers:
                _answer(self._answers.popleft(), payload)
            else:
                raise ProtocolError(f"nsqd at {self.address} answered what nobody asked: {payload[:64]!r}")
            return
        error = _refusal(payload)
        if payload.startswith(_NOT_FATAL):
            self._receiver.on_refused(self, error)
            return
        if self._answers:
            waiting = self._answers.popleft()
            if not waiting.done():
                waiting.set_exception(error)
        raise error

    def _watch_silence(self) -> None:
        quiet_s = time.monotonic() - self._last_read_s
        if quiet_s >= self._silence_s:
            self._end(ConnectionLost(f"nsqd at {self.address} has been silent for {quiet_s:.1f} s, two heartbeats"))
        elif self._reason is None:
            loop = asyncio.get_running_loop()
            self._silence = loop.call_later(self._silence_s - quiet_s, self._watch_silence)

    # -- end

    async def say_goodbye(self) -> None:
        """CLS: no new messages; what is in flight can still be finished or requeued. Returns on CLOSE_WAIT or the
        end."""
        self.closing = True
        if self.is_open:
            await self.request(b"CLS\n")

    async def hang_up(self) -> None:
        """Shuts the writing side once all is written, reads to the end, closes. Nothing said before is lost."""
        if self._stream is not None and self.is_open:
            try:
                await self._stream.write(b"")
                self._stream.socket.shutdown(socket.SHUT_WR)
            except (OSError, StreamClosedError):
                self.close("hung up")
        await self._closed.wait()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def close(self, why: str) -> None:
        self._end(ConnectionLost(f"nsqd at {self.address}: {why}"))

    async def closed(self) -> NsqdigestError:
        await self._closed.wait()
        assert self._reason is not None
        return self._reason

    def _end(self, reason: NsqdigestError) -> NsqdigestError:
        if self._reason is not None:
            return self._reason
        self._reason = reason
        if self._silence is not None:
            self._silence.cancel()
        if self._stream is not None:
            self._stream.close()
        while self._answers:
            waiting = self._answers.popleft()
            if not waiting.done():
                waiting.set_exception(reason)
        self._closed.set()
        self._receiver.on_closed(self, reason)
        return reason


def _answer(waiting: asyncio.Future[bytes], payload: bytes) -> None:
    if not waiting.done():
        waiting.set_result(payload)


def _facts(payload: bytes) -> dict[str, Any]:
    """What nsqd said about itself; ValueError where that is not what one says."""
    facts = json.loads(payload)
    if not isinstance(facts, dict):
        raise ValueError("not an object")
    if not all(type(facts.get(name, 1)) is int and facts.get(name, 1) > 0 for name in ("max_rdy_count", "msg_timeout")):
        raise ValueError("limits that are no numbers")
    return facts


def _refusal(payload: bytes) -> NsqdRefused:
    code, _, detail = payload.decode("utf-8", "replace").partition(" ")
    return NsqdRefused(code, detail)


def _cause(error: BaseException) -> str:
    """The socket's own reason, where tornado wrapped it."""
    real = getattr(error, "real_error", None) or error
    if isinstance(real, StreamClosedError):
        return "it closed the connection"
    return getattr(real, "strerror", None) or str(real) or type(real).__name__
