"""One connection of the embedded nsqd: bytes to commands, answers to bytes, heartbeats (an asyncio protocol; no tasks).

- Everything is written in the order in which it came about, joined to one write a turn of the loop.
- What is refused early does not wait for the bytes that would follow.
- A refusal closes the connection behind its error frame, unless it is one of FIN, REQ or TOUCH.
- Every command is recorded and shown to the script before it is carried out; the script may answer in its place.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nsqdigest.demo.servers.nsqd_queues import Broker, Refusal
from nsqdigest.demo.servers.nsqd_session import Params, Session
from nsqdigest.nsq.commands import MAGIC_V2
from nsqdigest.nsq.frames import HEARTBEAT, FrameType, Message, frame, message_frame

RECORDED_COMMANDS = 10_000
"""Of a connection; older ones are forgotten, so that a long demo does not grow."""

_LONGEST_LINE_BYTES = 16 * 1024
_SIZE = struct.Struct(">i")


@dataclass(slots=True)
class Script:
    """How a test directs the server.

    `answer` returns None to let the command be carried out, bytes to send instead (b"" is silence), or a Refusal, which
    is sent, and closes the connection where nsqd would.
    """

    on_command: Callable[[Connection, str, Params], None] | None = None
    answer: Callable[[Connection, str, Params], bytes | Refusal | None] | None = None


@dataclass(slots=True, frozen=True)
class Watchers:
    """Callbacks: `changed` after all that came with one read, and after an arrival or departure."""

    opened: Callable[[Connection], None]
    closed: Callable[[Connection], None]
    changed: Callable[[], None]
    script: Script


class Connection(asyncio.Protocol):
    """`commands`: what the client sent, in order, as (name, parameters)."""

    def __init__(self, broker: Broker, watchers: Watchers) -> None:
        self.commands: deque[tuple[str, Params]] = deque(maxlen=RECORDED_COMMANDS)
        self.open = False
        self.remote_address = ""
        self._broker = broker
        self._watchers = watchers
        self._magic_seen = False
        self._ending = False
        self._frozen = False
        self._congested = False
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._last_heard = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # -- for scripts

    @property
    def identify(self) -> dict[str, Any]:
        """The client's IDENTIFY, unknown fields too."""
        return self._session.identify

    def params_of(self, command: str) -> list[Params]:
        return [params for name, params in self.commands if name == command]

    @property
    def rdy_sequence(self) -> list[int]:
        return [int(params[0]) for params in self.params_of("RDY")]

    def send_raw(self, data: bytes) -> None:
        """Any bytes, behind what was sent before."""
        if self.open and not self._ending:
            if not self._out:
                self._loop.call_soon(self._flush)
            self._out.append(data)

    def end(self) -> None:
        """Closes behind what was sent before."""
        if self.open and not self._ending:
            self._flush()
            self._ending = True
            self._transport.close()

    def abort(self) -> None:
        """Closes at once; what the socket did not take yet is lost."""
        self._ending = True
        self._transport.abort()

    def freeze(self) -> None:
        """Like SIGSTOP: the socket stays open, nothing is read or sent."""
        self._frozen = True
        self._transport.pause_reading()
        self._session.block(True)

    def thaw(self) -> None:
        self._frozen = False
        # What the client sent meanwhile lies in the socket; it is no more silent than we were.
        self._last_heard = self._loop.time()
        self._transport.resume_reading()
        self._session.block(self._congested)

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        host, port = transport.get_extra_info("peername")[:2]
        self.remote_address = f"{host}:{port}"
        self._session = Session(self._broker, self.remote_address, self._deliver)
        self.open = True
        self._watchers.opened(self)
        self._watchers.changed()

    def connection_lost(self, _: Exception | None) -> None:
        self.open = False
        for timer in self._timers.values():
            timer.cancel()
        self._session.leave()
        self._watchers.closed(self)
        self._watchers.changed()

    def pause_writing(self) -> None:
        self._congested = True
        self._session.block(True)

    def resume_writing(self) -> None:
        self._congested = False
        self._session.block(self._frozen)

    def _flush(self) -> None:
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def _send(self, frame_type: FrameType, data: bytes) -> None:
        self.send_raw(frame(frame_type, data))

    def _deliver(self, message: Message) -> None:
        self.send_raw(message_frame(message))

    # -- heartbeats

    def _start_timers(self) -> None:
        """Anew with the interval that is agreed on now; none at all when there is none."""
        for timer in self._timers.values():
            timer.cancel()
        interval_s = self._session.heartbeat_interval_s
        if interval_s > 0:
            self._timers["beat"] = self._loop.call_later(interval_s, self._beat, interval_s)
            self._timers["silence"] = self._loop.call_later(2 * interval_s, self._check_silence, 2 * interval_s)

    def _beat(self, interval_s: float) -> None:
        if not self._frozen:
            self._send(FrameType.RESPONSE, HEARTBEAT)
        self._timers["beat"] = self._loop.call_later(interval_s, self._beat, interval_s)

    def _check_silence(self, limit_s: float) -> None:
        left_s = limit_s if self._frozen else self._last_heard + limit_s - self._loop.time()
        if left_s > 0:
            self._timers["silence"] = self._loop.call_later(left_s, self._check_silence, limit_s)
        else:
            self.end()

    # -- bytes to commands

    def data_received(self, data: bytes) -> None:
        self._last_heard = self._loop.time()
        self._buffer += data
        position = 0
        while not self._ending and (following := self._step(position)) > position:
            position = following
        del self._buffer[:position]
        self._watchers.changed()

    def _step(self, position: int) -> int:
        """Carries out one command and returns where the next begins; `position` itself when it is not all there yet."""
        if not self._magic_seen:
            return self._read_magic(position)
        line_end = self._buffer.find(b"\n", position)
        if line_end < 0:
            if len(self._buffer) - position >= _LONGEST_LINE_BYTES:
                self.end()
            return position
        words = bytes(self._buffer[position:line_end]).removesuffix(b"\r").split(b" ")
        name, *parameters = (word.decode("utf-8", "backslashreplace") for word in words)
        params = tuple(parameters)
        begin = line_end + 1
        if not self._session.has_body(name):
            self._execute(name, params, b"")
            return begin
        try:
            body = self._body_at(begin, name, params)
        except Refusal as refusal:
            self.commands.append((name, params))
            self._refuse(refusal)
            return position
        if body is None:
            return position
        self._execute(name, params, body)
        return begin + _SIZE.size + len(body)

    def _read_magic(self, position: int) -> int:
        magic = bytes(self._buffer[position : position + len(MAGIC_V2)])
        if len(magic) < len(MAGIC_V2):
            return position
        if magic != MAGIC_V2:
            self._refuse(Refusal("E_BAD_PROTOCOL"))
            return position
        self._magic_seen = True
        self._start_timers()
        return position + len(MAGIC_V2)

    def _body_at(self, position: int, name: str, params: Params) -> bytes | None:
        """None while it is not all there."""
        begin = position + _SIZE.size
        size = _SIZE.unpack_from(self._buffer, position)[0] if len(self._buffer) >= begin else None
        self._session.check(name, params, size)
        if size is None or len(self._buffer) < begin + size:
            return None
        return bytes(self._buffer[begin : begin + size])

    def _execute(self, name: str, params: Params, body: bytes) -> None:
        self.commands.append((name, params))
        script = self._watchers.script
        if script.on_command is not None:
            script.on_command(self, name, params)
        instead = script.answer(self, name, params) if script.answer is not None else None
        if isinstance(instead, Refusal):
            self._refuse(instead)
        elif instead is not None:
            self.send_raw(instead)
        else:
            self._carry_out(name, params, body)

    def _carry_out(self, name: str, params: Params, body: bytes) -> None:
        try:
            response = self._session.carry_out(name, params, body)
        except Refusal as refusal:
            self._refuse(refusal)
        else:
            if response is not None:
                self._send(FrameType.RESPONSE, response)
            if name == "IDENTIFY":
                self._start_timers()
        # Also behind a refusal: what is queued may go to others.
        self._session.dispatch()

    def _refuse(self, refusal: Refusal) -> None:
        self._send(FrameType.ERROR, str(refusal).encode())
        if refusal.fatal:
            self.end()
