"""One connection to a receiver: one post at a time, its answer, and what is left of the answer's body.

Invariants:
- Nothing here waits or owns a timer: `Client` calls `check` with the time, and that ends what is overdue.
- The status decides: a success is reported as soon as the headers are complete; otherwise the first bytes of the body
  are awaited, `BODY_WITHIN_S` at the most, because they say why.
- Of a body no more than `DRAIN_BYTES` is read within `DRAIN_WITHIN_S`; then the connection ends.
- A connection serves another post only after a complete answer, to a post that was sent whole, with nothing behind it.
- However it ends, `on_lost` is called once, and a post that is under way gets its answer or its error before that.
"""

from __future__ import annotations

import asyncio
import ssl
from enum import Enum, auto
from typing import Protocol

from nsqdigest.base.http.answer import BEGINNING_BYTES, AnswerReader, Response
from nsqdigest.base.http.errors import Closed, NoHttp, Overdue, PostFailed, StaleConnection

PIECE_BYTES = 64 * 1024
"""What a large post is written in, so that the transport's buffer holds little more than its own high water."""
BODY_WITHIN_S = 1.0
DRAIN_BYTES = 64 * 1024
DRAIN_WITHIN_S = 1.0
DRAIN_WHILE_OTHERS_WAIT_S = 0.1
IDLE_FOR_S = 15.0
"""What is idle for longer is closed: a firewall on the way may have forgotten it."""


class State(Enum):
    IDLE = auto()
    BUSY = auto()
    DRAINING = auto()
    """The post has its answer; the rest of the body is still read."""
    CLOSED = auto()


class Owner(Protocol):
    def on_idle(self, connection: Connection) -> None: ...

    def on_lost(self, connection: Connection) -> None: ...


class Connection(asyncio.BufferedProtocol):
    def __init__(self, owner: Owner, where: str, buffer: memoryview) -> None:
        self._owner = owner
        self._where = where
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._answer: asyncio.Future[Response] | None = None
        self._unsent = memoryview(b"")
        self._paused = False
        self._unasked = b""
        self.state = State.IDLE
        self.posts = 0
        self.since_s = self._loop.time()
        """Since when it is idle or draining."""
        self._until_s = 0.0

    @property
    def is_lost(self) -> bool:
        """Whether its end was reported."""
        return self._transport is None

    def unasked(self) -> NoHttp | None:
        """Why a new connection is of no use, where the receiver speaks first."""
        return NoHttp("it speaks before it is asked", self._unasked) if self._unasked else None

    # -- a post

    def send(self, head: bytes, body: bytes, until_s: float) -> asyncio.Future[Response]:
        """Only when it is idle. The future may be cancelled; `give_up` then ends the connection."""
        assert self.state is State.IDLE
        assert self._transport is not None
        answer = self._answer = self._loop.create_future()
        self.state = State.BUSY
        self.posts += 1
        self._until_s = until_s
        self._reader.begin()
        if len(body) <= PIECE_BYTES:
            self._transport.write(head + body)
        else:
            self._unsent = memoryview(body)
            self._transport.write(head)
            self._send_more()
        return answer

    def give_up(self, answer: asyncio.Future[Response]) -> None:
        """Nobody waits for this answer any more. It may have come meanwhile, and another post be under way."""
        if self._answer is answer:
            self.abort()
        elif not answer.cancelled():
            answer.exception()  # looked at, so that nobody reports it as lost

    def _send_more(self) -> None:
        while self._unsent and not self._paused and self._transport is not None:
            piece, self._unsent = self._unsent[:PIECE_BYTES], self._unsent[PIECE_BYTES:]
            self._transport.write(piece)

    def _is_sent(self) -> bool:
        return not self._unsent and self._transport is not None and not self._transport.get_write_buffer_size()

    # -- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._send_more()

    def get_buffer(self, sizehint: int) -> memoryview:
        """One buffer serves all connections of a client: it is read before another can be filled. `data_received` would
        make the kernel map 256 KiB for each read."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._on_data(bytes(self._buffer[:nbytes]))

    def _on_data(self, data: bytes) -> None:
        if self.state is State.CLOSED:
            return
        if self.state is State.IDLE:  # nobody asked; most often a 408 before it closes the connection
            self._unasked = data[:BEGINNING_BYTES]
            self.abort()
            return
        reader = self._reader
        try:
            reader.feed(data)
        except NoHttp as error:
            self._fail(error)
            return
        if reader.complete:
            self._complete()
        elif reader.surplus:
            self._respond()
            self.abort()
        elif reader.status:
            self._go_on()

    def connection_lost(self, error: Exception | None) -> None:
        self.state = State.CLOSED
        if self._answer is not None and self._reader.status:
            self._respond()
        else:
            self._settle(self._why_lost(error))
        self._reader.release()
        self._unsent = memoryview(b"")
        self._transport = None
        self._owner.on_lost(self)

    def _why_lost(self, error: Exception | None) -> PostFailed:
        if isinstance(error, ssl.SSLError):
            return Closed(f"{self._where} ended the connection: TLS failed")
        how = "broke off" if error is not None else "closed"
        if self._reader.begun:
            return Closed(f"{self._where} {how} the connection within the headers of its answer")
        kind = StaleConnection if self.posts > 1 else Closed
        return kind(f"{self._where} {how} the connection before it answered")

    # -- how far the answer is

    def _complete(self) -> None:
        reader = self._reader
        reusable = reader.keep_alive and not reader.surplus and self._is_sent()
        self._respond(reusable)
        if not reusable:
            self.abort()
            return
        self.state = State.IDLE
        self.since_s = self._loop.time()
        self._owner.on_idle(self)

    def _go_on(self) -> None:
        """The headers are complete, the body is not."""
        reader = self._reader
        if self.state is State.BUSY:
            if 200 <= reader.status < 300 or len(reader.kept) >= BEGINNING_BYTES:
                self._respond()
                self._drain()
            elif not reader.body_bytes:
                self._until_s = min(self._until_s, self._loop.time() + BODY_WITHIN_S)
        if reader.body_bytes > DRAIN_BYTES:
            self._respond()
            self.abort()

    def _drain(self) -> None:
        self.state = State.DRAINING
        self.since_s = self._loop.time()
        self._until_s = self.since_s + DRAIN_WITHIN_S

    def check(self, now_s: float, others_wait: bool) -> None:
        """Ends what has lasted too long."""
        if self.state is State.BUSY and now_s >= self._until_s:
            if self._reader.status:
                self._respond()
                self.abort()
            else:
                self._fail(Overdue(f"no answer from {self._where} in time"))
        elif self.state is State.DRAINING:
            allowed_s = DRAIN_WHILE_OTHERS_WAIT_S if others_wait else DRAIN_WITHIN_S
            if now_s >= self.since_s + allowed_s:
                self.abort()
        elif self.state is State.IDLE and self.is_stale(now_s):
            self.abort()

    def is_stale(self, now_s: float) -> bool:
        return now_s - self.since_s > IDLE_FOR_S

    # -- the end

    def abort(self, reason: PostFailed | None = None) -> None:
        """`connection_lost` follows at once. Nothing that matters is in a buffer; TLS is not bidden goodbye."""
        if self.state is State.CLOSED:
            return
        self.state = State.CLOSED
        if reason is not None:
            self._settle(reason)
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, error: PostFailed) -> None:
        self.abort(error)

    def _respond(self, reusable: bool = False) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_result(self._reader.response(reusable))

    def _settle(self, error: PostFailed) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(error)
