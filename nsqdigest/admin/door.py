"""The connections of the HTTP server: how many there are, how long one may wait, how much one may send.

    waiting ── its head is there ──▶ reading the body ── it is there ──▶ answering ── answered ──▶ waiting

Invariants:
- There are never more than `MOST` connections. A new one takes the place of the one that has waited longest, or is
  closed if all are answering. A connection that reads a body still waits: only a whole request keeps its place.
- `KEPT` places never answer anything but health and metrics. So whoever opens thousands of connections, or begins
  requests and does not go on, keeps nobody out, and the daemon has descriptors left for nsqd, Redis and receivers.
- A connection that waits ends after `IDLE_S`, and `HEAD_WITHIN_S` after the first byte of a request whose head is not
  complete. The gate bounds the time of a body. An answer that is not read ends with `IDLE_S`.
- Between two requests nobody sends more than `MOST_BYTES`: what is sent ahead is not kept.

It stands between the event loop and aiohttp's own protocol, which it hands everything on to. `listener` accepts.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, auto
from typing import cast

from nsqdigest.base.reasons import HttpRefusal as Reason

MOST = 128
KEPT = 8
IDLE_S = 75.0
HEAD_WITHIN_S = 10.0
MOST_BYTES = 96 * 1024

OnClosed = Callable[[Reason], None]


class _Phase(Enum):
    IDLE = auto()
    HEAD = auto()
    """Bytes of a request came, and not all of its head."""
    BODY = auto()
    ANSWERING = auto()


class Door:
    def __init__(self, inner: Callable[[], asyncio.Protocol], on_closed: OnClosed) -> None:
        """`inner` makes the protocol that answers; `on_closed` learns of each connection that was closed for a
        reason."""
        self._inner = inner
        self._on_closed = on_closed
        self._waiting: OrderedDict[_Connection, float] = OrderedDict()
        """Each with the time of the event loop since when it waits, the one that has waited longest first."""
        self._busy: set[_Connection] = set()
        """Connections that answer anything but health and metrics."""
        self._all: dict[asyncio.BaseTransport, _Connection] = {}

    def __call__(self) -> asyncio.Protocol:
        """A protocol for a new connection: what `create_server` asks for."""
        return _Connection(self, self._inner())

    def __len__(self) -> int:
        return len(self._all)

    # -- from the requests

    def head_is_there(self, transport: asyncio.BaseTransport | None) -> None:
        if connection := self._of(transport):
            connection.reads_body()

    def begins(self, transport: asyncio.BaseTransport | None, *, is_health: bool) -> bool:
        """The request is whole. Returns whether it may be answered: False if the places for its kind are taken."""
        connection = self._of(transport)
        if connection is None:
            return True  # it ended meanwhile, and takes no place
        if not is_health:
            if len(self._busy) >= MOST - KEPT:
                return False
            self._busy.add(connection)
        self._waiting.pop(connection, None)
        connection.begins()
        return True

    def ends(self, transport: asyncio.BaseTransport | None) -> None:
        if connection := self._of(transport):
            self._busy.discard(connection)
            self._wait(connection)
            connection.expect(IDLE_S)

    def _of(self, transport: asyncio.BaseTransport | None) -> _Connection | None:
        return self._all.get(transport) if transport is not None else None

    # -- from the connections

    def opened(self, connection: _Connection) -> bool:
        """Returns whether there is room."""
        if len(self._all) >= MOST:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                self._on_closed(Reason.TOO_MANY_CONNECTIONS)
                return False
            self.closes(oldest, Reason.TOO_MANY_CONNECTIONS)
        self._all[connection.transport] = connection
        self._wait(connection)
        return True

    def closes(self, connection: _Connection, reason: Reason | None) -> None:
        self.forget(connection)
        connection.transport.abort()
        if reason is not None:
            self._on_closed(reason)

    def gives_way(self, after_s: float) -> bool:
        """Close the connection that has waited longest, if it has for `after_s`, so that its descriptor is free in the
        next turn of the event loop. Return whether it was closed."""
        oldest = next(iter(self._waiting), None)
        if oldest is None or asyncio.get_running_loop().time() - self._waiting[oldest] < after_s:
            return False
        self.closes(oldest, Reason.TOO_MANY_CONNECTIONS)
        return True

    def forget(self, connection: _Connection) -> None:
        self._all.pop(connection.transport, None)
        self._waiting.pop(connection, None)
        self._busy.discard(connection)

    def _wait(self, connection: _Connection) -> None:
        self._waiting[connection] = asyncio.get_running_loop().time()
        self._waiting.move_to_end(connection)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, door: Door, inner: asyncio.Protocol) -> None:
        self._door = door
        self._inner = inner
        self._is_let_in = False
        self._phase = _Phase.IDLE
        self._received = 0
        self._timer: asyncio.TimerHandle | None = None

    # -- from the door

    def reads_body(self) -> None:
        self._phase, self._received = _Phase.BODY, 0
        self._stop_timer()

    def begins(self) -> None:
        self._phase = _Phase.ANSWERING

    def expect(self, within_s: float) -> None:
        self._phase = _Phase.IDLE
        self._start_timer(within_s)

    # -- from the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._is_let_in = self._door.opened(self)
        if not self._is_let_in:
            self.transport.abort()
            return
        self._inner.connection_made(transport)
        self._start_timer(HEAD_WITHIN_S)

    def data_received(self, data: bytes) -> None:
        if not self._is_let_in:
            return
        self._received += len(data)
        if self._received > MOST_BYTES:
            self._door.closes(self, Reason.TOO_MUCH)
            return
        if self._phase is _Phase.IDLE:
            self._phase = _Phase.HEAD
            self._start_timer(HEAD_WITHIN_S)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._is_let_in else None

    def pause_writing(self) -> None:
        if self._is_let_in:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._is_let_in:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._is_let_in:
            self._is_let_in = False
            self._door.forget(self)
            self._inner.connection_lost(exc)

    # -- time

    def _start_timer(self, within_s: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(within_s, self._is_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_late(self) -> None:
        self._door.closes(self, Reason.TOO_SLOW if self._phase is _Phase.HEAD else None)
