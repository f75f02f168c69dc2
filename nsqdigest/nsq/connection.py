"""One connection to one nsqd: bulk reads, joined writes, heartbeats, silence noticed. It begins in `handshake`.

Invariants:
- One read takes whatever is there and passes all its messages to the receiver as one list; the reader never waits for
  the receiver.
- Heartbeats are answered here, by the reader, once for each read, with the wanted RDY again: a RDY that got lost cannot
  stall us. A flood of them ends the connection: a few compressed bytes can hold thousands.
- nsqd has as much of the RDY that was granted as `window` says.
- Silence for two heartbeat intervals ends the connection: a stopped nsqd sends no error.
- It can be closed at any moment, also while it opens. However it ends, `on_closed` is called once, with the reason.

Bytes come from tornado's IOStream, commands from `commands`, frames from `frames`. Messages go to the receiver: the
consumer, or a publisher.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from tornado.iostream import IOStream, StreamBufferFullError, StreamClosedError

from nsqdigest.base import log, tasks
from nsqdigest.base.errors import (
    BehindRefusal,
    ConnectionLost,
    NsqdError,
    NsqdRefused,
    NsqdSilent,
    ProtocolError,
)
from nsqdigest.config import tls_files
from nsqdigest.nsq import commands, negotiation
from nsqdigest.nsq.compression import Stage
from nsqdigest.nsq.frames import HEARTBEAT, FrameType, Message
from nsqdigest.nsq.handshake import READ_BYTES, Established, cause, shake_hands
from nsqdigest.nsq.negotiation import ConnectionOptions, Negotiated
from nsqdigest.nsq.requests import Requests
from nsqdigest.nsq.window import Window

if TYPE_CHECKING:
    from nsqdigest.config import Address, Nsq
    from nsqdigest.nsq.frames import FrameSplitter

__all__ = ["ConnectionOptions", "NsqConnection", "Receiver", "options_of"]

_log = log.get("connection")

ANSWERED_WITHIN_S = 5.0
"""nsqd has so long to answer a command. Its heartbeats go on without an answer, so that silence cannot show it."""
LAST_MESSAGE_S = 0.1
"""nsqd may still hand over the one message that it held in hand when CLS came. Sent to a side that has hung up, nobody
could give it back: it would be in flight for a whole msg_timeout."""
TURN_BYTES = 256 * 1024
"""After so much a reader whose socket always has data yields to the event loop."""
UNREAD_BYTES = 32 << 20
"""Limit of bytes that nsqd has not read: twice what a publisher has in progress. FINs and REQs are a fraction of it,
unless nsqd sends more than it was asked for and reads nothing."""
MOST_HEARTBEATS = 20
"""In one interval. nsqd sends one; a few more wait in the socket after this process stood still."""
_LATE_HEARTBEAT = 1.5
_SILENT_HEARTBEATS = 2
_SLOWEST = "its frame is not complete, and all connections together hold too much of such frames"
_NOT_FATAL = (b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED")


def options_of(settings: Nsq) -> ConnectionOptions:
    """The options of every connection. Reads the files of [nsq.tls], and raises ConfigError where one is unusable."""
    return ConnectionOptions(
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        msg_timeout_ms=settings.msg_timeout_ms,
        tls=tls_files.client(settings.tls) if settings.tls is not None else None,
        compression=settings.compression,
        auth_secret=settings.auth_secret,
    )


class Receiver(Protocol):
    """Gets everything that a subscribed connection reads. No method may wait."""

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None: ...

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        """nsqd refused a FIN, REQ or TOUCH; the connection goes on."""

    def on_closed(self, connection: NsqConnection, reason: NsqdError) -> None: ...


class NsqConnection:
    def __init__(self, address: Address, options: ConnectionOptions, receiver: Receiver) -> None:
        self.address = address
        self.in_flight = 0
        self.rdy = 0
        """As granted: so many messages may be in flight."""
        self.max_rdy = Negotiated().max_rdy_count
        self.msg_timeout_s = Negotiated().msg_timeout_ms / 1000
        self.tls_version = ""
        """Such as "TLSv1.3"; "" in the clear."""
        self.message_at_s = 0.0
        self.subscribed = False
        self.closing = False
        self._options = options
        self._receiver = receiver
        self._opening: asyncio.Task[Established] | None = None
        self._stream: IOStream | None = None
        self._stage: Stage | None = None
        self._reader: asyncio.Task[None] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._window = Window(0.0, 0.0)
        self._settling: asyncio.TimerHandle | None = None
        self._guarded_settle = tasks.guarded(self._settle, f"nsqd {address} window")
        self._active_s = 0.0
        """When a message came or was answered last."""
        self._heartbeat_s = options.heartbeat_interval_ms / 1000
        self._last_read_s = 0.0
        self._held_bytes = 0
        """The bytes of a frame that is not complete."""
        self._heartbeats = 0
        """Since `_heartbeats_since_s`."""
        self._heartbeats_since_s = 0.0
        self._goodbye: asyncio.Future[bytes] | None = None
        self._requests = Requests()
        self._closed = asyncio.Event()
        self._reason: NsqdError | None = None

    @property
    def is_open(self) -> bool:
        return self._reader is not None and self._reason is None

    @property
    def is_refused(self) -> bool:
        """Whether it ended because nsqd refused a command."""
        return isinstance(self._reason, NsqdRefused)

    @property
    def is_well(self) -> bool:
        """Fit for new messages: not closing, and no heartbeat missing."""
        return self.is_open and not self.closing and self.quiet_s < _LATE_HEARTBEAT * self._heartbeat_s

    @property
    def quiet_s(self) -> float:
        """Seconds since anything was read."""
        return time.monotonic() - self._last_read_s

    # -- beginning

    async def open(self) -> Negotiated:
        """Connects and identifies. Returns nsqd's answer. Raises no exception but ours (NsqdError)."""
        established = await self._establish()
        self._stream, self._stage = established.stream, established.stage
        _leave_broken_writes_to_the_reader(self._stream)
        self._stream.max_write_buffer_size = UNREAD_BYTES
        negotiated = established.negotiated
        self.max_rdy = negotiated.max_rdy_count
        self.msg_timeout_s = negotiated.msg_timeout_ms / 1000
        self._window = Window(negotiated.output_buffer_timeout_ms / 1000, established.round_trip_s)
        self.tls_version = established.tls_version
        self._log_open(negotiated)
        self._last_read_s = time.monotonic()
        self._reader = tasks.start(self._read(established), f"nsqd {self.address} reader")
        self._watch_silence()
        return negotiated

    async def _establish(self) -> Established:
        """The handshake, as a task of its own, so that it can be ended at any step."""
        if self._closed.is_set():
            raise await self.closed()
        self._opening = asyncio.create_task(shake_hands(self.address, self._options), name=f"open {self.address}")
        try:
            established = await self._opening
        except NsqdError as error:
            self._end(error)
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if self._reason is not None and (task is None or not task.cancelling()):
                raise self._reason from None  # `close` was called while it was connecting
            self._opening.add_done_callback(_close_its_socket)  # it may have been done by then
            if isinstance(error, Exception):
                _log.error("connection.open.bug", nsqd=str(self.address), error=error, exc_info=error)
                raise self._end(ConnectionLost(f"nsqd at {self.address}: {type(error).__name__}: {error}")) from error
            self._end(ConnectionLost("closed while connecting"))
            raise
        if self._reason is not None:
            established.stream.close()
            raise self._reason
        return established

    def _log_open(self, negotiated: Negotiated) -> None:
        asked = self._options.compression
        if negotiated.compression != asked:
            _log.warning(
                "connection.compression.not_offered",
                nsqd=str(self.address),
                compression=asked,
                hint=f"it goes on without; start nsqd with --{asked}, or write another nsq.compression",
            )
        _log.debug(
            "connection.open",
            nsqd=str(self.address),
            version=negotiated.version,
            tls=self.tls_version or "none",
            compression=negotiated.compression,
        )

    async def subscribe(self, topic: str, channel: str) -> None:
        began_s = time.monotonic()
        await self.request(commands.sub(topic, channel))
        self.subscribed = True
        self.message_at_s = time.monotonic()
        self._window.note_round_trip(self.message_at_s - began_s)

    # -- commands

    def set_rdy(self, count: int) -> None:
        self.rdy = count
        self._window.grant(count)
        self._write(commands.rdy(self._window.used))
        self._watch_window()

    def fin(self, messages: list[Message]) -> None:
        self._write(commands.fin([message.id for message in messages]))
        self._answered(len(messages))

    def requeue(self, delays_ms: Iterable[tuple[Message, int]]) -> None:
        ids = [(message.id, delay_ms) for message, delay_ms in delays_ms]
        self._write(commands.req(ids))
        self._answered(len(ids))

    def _answered(self, count: int) -> None:
        self.in_flight -= count
        self._watch_window()

    def forget_in_flight(self, count: int) -> None:
        """Of messages that timed out at nsqd, which has them back: they can be neither finished nor requeued."""
        self.in_flight -= count

    async def request(self, command: bytes, within_s: float | None = None) -> bytes:
        """Sends a command that nsqd answers, and returns the answer."""
        (answer,) = await self.request_all([command], within_s)
        if isinstance(answer, NsqdError):
            raise answer
        return answer

    async def request_all(self, requests: Sequence[bytes], within_s: float | None = None) -> list[bytes | NsqdError]:
        """Sends commands in one write. Returns for each nsqd's answer, or why there is none. Answers come in the order
        of commands, so one that is late ends the connection: it would be taken for the answer to the next one."""
        within_s = ANSWERED_WITHIN_S if within_s is None else within_s
        if not self.is_open:
            raise self._reason or ConnectionLost(f"nsqd at {self.address}: not connected")
        answers = [self._requests.add() for _ in requests]
        self._write(requests[0] if len(requests) == 1 else b"".join(requests))
        try:
            async with asyncio.timeout(within_s):
                await answers[-1]
        except NsqdError:
            pass  # it is the answer
        except TimeoutError:
            # The last one is cancelled by now.
            unanswered = (
                request
                for request, answer in zip(requests, answers, strict=True)
                if answer.cancelled() or not answer.done()
            )
            verb = next(unanswered).split(maxsplit=1)[0].decode()
            self._end(ConnectionLost(f"nsqd at {self.address} did not answer {verb} within {within_s:g} s"))
        except asyncio.CancelledError:
            for answer in answers:
                answer.add_done_callback(_looked_at)
            raise
        return [self._answer_of(answer) for answer in answers]

    def _answer_of(self, answer: asyncio.Future[bytes]) -> bytes | NsqdError:
        """Of one that is done."""
        error = self._reason if answer.cancelled() else answer.exception()
        if error is None:
            return answer.result()
        assert isinstance(error, NsqdError)
        return error

    def _ask(self, command: bytes) -> asyncio.Future[bytes]:
        answer = self._requests.add()
        self._write(command)
        return answer

    def _write(self, data: bytes) -> None:
        if data and self._stream is not None and self._reason is None:
            # The end of the connection never interrupts the caller: it comes in a turn of its own.
            try:
                self._stream.write(data if self._stage is None else self._stage.encode(data))
            except StreamClosedError:
                pass  # the reader ends the connection
            except StreamBufferFullError:
                asyncio.get_running_loop().call_soon(
                    self.close, f"nsqd reads nothing: {UNREAD_BYTES >> 20} MiB wait for it"
                )

    # -- the window

    @property
    def rdy_used(self) -> int:
        """Of what was granted: the RDY that nsqd has."""
        return self._window.used

    def _watch_window(self) -> None:
        """Something came, was answered or asked for. The one timer is late rather than set anew each time."""
        self._active_s = time.monotonic()
        if self._settling is None and self._window.used != self.in_flight + 1:
            self._settle_after(self._window.patience_s)

    def _settle_after(self, wait_s: float) -> None:
        if wait_s < math.inf and not self.closing and self._reason is None:
            self._settling = asyncio.get_running_loop().call_later(wait_s, self._guarded_settle)

    def _settle(self) -> None:
        self._settling = None
        left_s = self._active_s + self._window.patience_s - time.monotonic()
        if left_s > 0:
            self._settle_after(left_s)
        elif not self.closing and self._window.settle(self.in_flight):
            self._write(commands.rdy(self._window.used))

    # -- reading

    async def _read(self, established: Established) -> None:
        stream, stage, splitter = established.stream, established.stage, established.splitter
        reason: NsqdError = ConnectionLost(f"nsqd at {self.address}: its reader ended")
        read_bytes = 0
        try:
            self._on_frames(established.frames)
            while True:
                data = await stream.read_bytes(READ_BYTES, partial=True)
                if self._reason is not None:
                    return  # it ended while this read was pending (a paused process): nsqd has these messages again
                self._last_read_s = time.monotonic()
                for piece in (data,) if stage is None else stage.decode(data):
                    self._pass_on(piece, splitter)
                    # Data that is there is read without a turn of the loop, and a little can unfold to very much.
                    read_bytes += len(piece)
                    if read_bytes >= TURN_BYTES:
                        read_bytes = 0
                        await asyncio.sleep(0)
                        if self._closed.is_set():
                            return
        except (OSError, StreamClosedError) as error:
            reason = ConnectionLost(f"nsqd at {self.address}: {cause(error)}")
        except (ConnectionLost, ProtocolError, NsqdRefused) as error:
            reason = error
        except Exception as error:
            _log.error("connection.reader.bug", nsqd=str(self.address), error=error, exc_info=error)
            reason = ConnectionLost(f"nsqd at {self.address}: {type(error).__name__} while its messages were passed on")
        finally:
            self._end(reason)

    def _pass_on(self, data: bytes, splitter: FrameSplitter) -> None:
        messages, others = splitter.feed(data)
        if splitter.held_bytes or self._held_bytes:
            self._note_held(splitter.held_bytes, is_new=bool(messages or others))
        if messages:
            if not self.subscribed:  # nothing would count or finish them
                raise ProtocolError(f"nsqd at {self.address} sent messages to a connection without a subscription")
            self.in_flight += len(messages)
            self.message_at_s = self._last_read_s
            in_flight = self.in_flight
            self._receiver.on_messages(self, messages)
            if self._window.arrived(in_flight) and not self.closing:
                self._write(commands.rdy(self._window.used))
            self._watch_window()
        if others:
            self._on_frames(others)

    def _note_held(self, held_bytes: int, *, is_new: bool) -> None:
        self._held_bytes = held_bytes
        slowest = self._options.held_frames.hold(self, held_bytes, is_new=is_new)
        if slowest is self and held_bytes:
            raise ConnectionLost(f"nsqd at {self.address}: {_SLOWEST}")
        if slowest is not None:
            slowest.close(_SLOWEST)

    def _on_frames(self, frames: list[tuple[int, bytes]]) -> None:
        heartbeats = frames.count((FrameType.RESPONSE, HEARTBEAT))
        if heartbeats:
            self._on_heartbeats(heartbeats)
        for frame_type, payload in frames:
            if payload != HEARTBEAT or frame_type != FrameType.RESPONSE:
                self._on_frame(frame_type, payload)

    def _on_heartbeats(self, count: int) -> None:
        if self._last_read_s >= self._heartbeats_since_s + self._heartbeat_s:
            self._heartbeats, self._heartbeats_since_s = 0, self._last_read_s
        self._heartbeats += count
        if self._heartbeats > MOST_HEARTBEATS:
            raise ProtocolError(
                f"nsqd at {self.address} sent {self._heartbeats} heartbeats within {self._heartbeat_s:g} s, "
                "for which one was agreed"
            )
        wants_more = self.subscribed and not self.closing
        self._write(commands.NOP + commands.rdy(self._window.used) if wants_more else commands.NOP)

    def _on_frame(self, frame_type: int, payload: bytes) -> None:
        if frame_type == FrameType.RESPONSE:
            if self._requests:
                self._requests.answer_first(payload)
            else:
                raise ProtocolError(f"nsqd at {self.address} sent an answer without a question: {payload[:64]!r}")
            return
        error = negotiation.refusal(payload, self._options)
        if payload.startswith(_NOT_FATAL):
            self._receiver.on_refused(self, error)
            return
        if self._requests:
            self._requests.answer_first(error)
        raise error

    def _watch_silence(self) -> None:
        quiet_s, silence_s = self.quiet_s, _SILENT_HEARTBEATS * self._heartbeat_s
        if quiet_s >= silence_s:
            self._end(NsqdSilent(f"nsqd at {self.address} has been silent for {quiet_s:.1f} s, two heartbeats"))
        elif self._reason is None:
            loop = asyncio.get_running_loop()
            watch = tasks.guarded(self._watch_silence, f"nsqd {self.address} silence")
            self._silence = loop.call_later(silence_s - quiet_s, watch)

    # -- end

    def cls(self) -> None:
        """No new messages; what is in flight can still be finished or requeued."""
        self.closing = True
        if self._goodbye is None and self.is_open:
            self._goodbye = self._ask(commands.CLS)
            self._goodbye.add_done_callback(_looked_at)

    async def say_goodbye(self) -> None:
        """CLS, nsqd's CLOSE_WAIT, and the message that may come behind it. The caller limits the wait: what comes
        meanwhile has to be given back."""
        self.cls()
        if self._goodbye is not None:
            await asyncio.shield(self._goodbye)  # a caller that was cancelled may wait again
            await asyncio.sleep(LAST_MESSAGE_S)

    async def hang_up(self) -> None:
        """Shuts the writing side once all is written, reads to the end, closes. No command that was sent is lost."""
        if self._stream is not None and self.is_open:
            try:
                # Shielded: tornado raises in the loop when the future of a write is cancelled.
                await asyncio.shield(self._stream.write(b""))
                # Of the socket below TLS: an SSLSocket would take its layer off, and the rest could not be read.
                socket.socket.shutdown(self._stream.socket, socket.SHUT_WR)
            except (OSError, StreamClosedError):
                self.close("hung up")
        await self._closed.wait()
        if self._reader is not None:
            await asyncio.wait([self._reader])

    def close(self, why: str) -> None:
        self._end(ConnectionLost(f"nsqd at {self.address}: {why}"))

    async def closed(self) -> NsqdError:
        await self._closed.wait()
        assert self._reason is not None
        return self._reason

    def _end(self, reason: NsqdError) -> NsqdError:
        if self._reason is not None:
            return self._reason
        self._reason = reason
        if self._held_bytes:
            self._note_held(0, is_new=True)
        for timer in (self._silence, self._settling):
            if timer is not None:
                timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._stream is not None:
            self._stream.close()
        # After a refusal nsqd reads no further: the commands behind the refused one never happened.
        is_refused = isinstance(reason, NsqdRefused)
        self._requests.fail_all(BehindRefusal(f"{reason}, in answer to another command") if is_refused else reason)
        self._closed.set()
        self._receiver.on_closed(self, reason)
        return reason


def _leave_broken_writes_to_the_reader(stream: IOStream) -> None:
    """nsqd sends the reason of a refusal and hangs up. With something of ours still unread that resets the connection;
    a write then fails before the reason was read, and would close the stream. So such writes pretend to succeed: the
    reader gets nsqd's error frame, and then the end."""
    write = stream.write_to_fd
    is_broken = False

    def write_to_fd(data: memoryview) -> int:
        nonlocal is_broken
        size_bytes = len(data)
        if not is_broken:  # TLS cannot be asked again after it failed
            try:
                return write(data)
            except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                is_broken = True
        return size_bytes

    stream.write_to_fd = write_to_fd  # type: ignore[method-assign]


def _looked_at(answer: asyncio.Future[bytes]) -> None:
    """Its failure is the connection's, which is logged there."""
    if not answer.cancelled():
        answer.exception()


def _close_its_socket(opening: asyncio.Task[Established]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().stream.close()
