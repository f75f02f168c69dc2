"""Posts to one receiver, over a few connections that are kept open.

Invariants:
- There are never more connections than `connections`, connecting and closing ones included. Posts beyond that wait in
  line, and their time-out runs meanwhile.
- The connection that was idle last is used first, so that those that are not needed end.
- A post ends within its time-out, give or take one tick, whatever the receiver does. One timer watches all of them, and
  only while there is something to watch.
- Redirects, cookies, proxies and compressed answers are nobody's business here.
- A post that is cancelled ends its connection, or leaves the line. `close` ends everything and waits for its end.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from nsqdigest.base import tasks, tls
from nsqdigest.base.host_names import is_ip
from nsqdigest.base.http.answer import Response
from nsqdigest.base.http.connection import IDLE_FOR_S, Connection, State
from nsqdigest.base.http.errors import Closed, ConnectFailed, Overdue, TlsFailed
from nsqdigest.base.http.target import Target, head_of, header_lines, path_of, target_of

__all__ = ["Client", "Resolve", "Response"]

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a name and a port to the IP addresses that may be connected to, the best first."""

_READ_BYTES = 64 * 1024
_NEXT_ADDRESS_AFTER_S = 0.25
_LONGEST_TICK_S = 0.1
_SHORTEST_TICK_S = 0.01
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class _InLine(NamedTuple):
    """A post that waits for a connection (the result), or for the right to make one (None)."""

    place: asyncio.Future[Connection | None]
    until_s: float


class Client:
    """To be made in the loop that uses it. Raises ValueError for a URL or a header that cannot be sent."""

    def __init__(
        self,
        url: str,
        *,
        connections: int,
        timeout_s: float,
        connect_timeout_s: float,
        headers: Mapping[str, str] = _NO_HEADERS,
        ssl_context: ssl.SSLContext | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._target = target_of(url)
        self._host_lines = head_of(self._target, headers)
        self._start = f"POST {self._target.path} HTTP/1.1\r\n{self._host_lines}"
        self._most = connections
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._tls = (ssl_context or tls.client_context()) if self._target.tls else None
        self._resolve = resolve
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._line: deque[_InLine] = deque()
        self._places = 0
        """Connections that are open or being made."""
        self._connecting: set[asyncio.Timeout] = set()
        self._tick_s = min(_LONGEST_TICK_S, max(_SHORTEST_TICK_S, timeout_s / 10))
        self._timer: asyncio.TimerHandle | None = None
        self._guarded_tick = tasks.guarded(self._tick, f"watch over the posts to {self._target}")
        self._ticking = False
        self._closed = False
        self._empty: asyncio.Future[None] | None = None

    @property
    def target(self) -> Target:
        return self._target

    @property
    def open_connections(self) -> int:
        return self._places

    async def post(
        self,
        body: bytes,
        headers: Iterable[tuple[str, str]] = (),
        *,
        path: str | None = None,
        fresh: bool = False,
        timeout_s: float | None = None,
    ) -> Response:
        """Raises `PostFailed`. `fresh`: on a connection that has served no post; for after a `StaleConnection`.

        `timeout_s` in place of the client's own.
        """
        until_s = self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
        return await self.post_until(until_s, body, header_lines(headers), path, fresh)

    async def post_until(
        self, until_s: float, body: bytes, lines: str, path: str | None = None, fresh: bool = False
    ) -> Response:
        """The same with header lines as `header_line` makes them, until an instant by the loop's clock."""
        start = self._start if path is None else f"POST {path_of(path)} HTTP/1.1\r\n{self._host_lines}"
        head = f"{start}{lines}content-length: {len(body)}\r\n\r\n".encode()
        if not self._ticking:
            self._begin_to_tick()
        connection = None if fresh else self._take_idle()
        while connection is None or connection.state is not State.IDLE:
            connection = await self._acquire(until_s, fresh)
        answer = connection.send(head, body, until_s)
        try:
            return await answer
        except asyncio.CancelledError:
            connection.give_up(answer)
            raise

    async def close(self) -> None:
        """Posts that are under way fail with `Closed`. May be called again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        reason = self._is_closed()
        while self._line:
            place = self._line.popleft().place
            if not place.done():
                place.set_exception(reason)
        for scope in self._connecting:
            if not scope.expired():
                scope.reschedule(self._loop.time())
        for connection in self._connections.copy():
            connection.abort(reason)
        if self._places:
            if self._empty is None:
                self._empty = self._loop.create_future()
            await asyncio.shield(self._empty)

    def _is_closed(self) -> Closed:
        return Closed(f"the client of {self._target} was closed")

    # -- connections

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.state is State.IDLE:
                if not connection.is_stale(self._loop.time()):
                    return connection
                connection.abort()
        return None

    async def _acquire(self, until_s: float, fresh: bool) -> Connection | None:
        """An idle connection or a new one; None or one that has just ended: call again."""
        if self._closed:
            raise self._is_closed()
        if not fresh and (connection := self._take_idle()) is not None:
            return connection
        if self._places < self._most:
            self._places += 1
            return await self._connect(until_s)
        if fresh and self._idle:
            self._idle.pop(0).abort()
        connection = await self._wait_in_line(until_s)
        if connection is None:
            return await self._connect(until_s)
        if fresh and connection.posts:
            connection.abort()
        return connection

    async def _wait_in_line(self, until_s: float) -> Connection | None:
        """None: a place is ours, a connection has to be made."""
        place: asyncio.Future[Connection | None] = self._loop.create_future()
        self._line.append(_InLine(place, until_s))
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._hand_back(place.result())
            raise

    def _hand_back(self, connection: Connection | None) -> None:
        if connection is None:
            self._free_place()
        elif connection.state is State.IDLE:
            self.on_idle(connection)

    def _next_in_line(self) -> asyncio.Future[Connection | None] | None:
        while self._line:
            place = self._line.popleft().place
            if not place.done():
                return place
        return None

    def _free_place(self) -> None:
        if not self._closed and (place := self._next_in_line()) is not None:
            place.set_result(None)
            return
        self._places -= 1
        if not self._places and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def on_idle(self, connection: Connection) -> None:
        if self._closed:
            connection.abort()
        elif self._line and (place := self._next_in_line()) is not None:
            place.set_result(connection)
        else:
            self._idle.append(connection)

    def on_lost(self, connection: Connection) -> None:
        if connection not in self._connections:
            return  # `_connect` has the place
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        self._free_place()

    async def _connect(self, until_s: float) -> Connection:
        """The caller has a place. It becomes the connection's, or is given up again."""
        connection: Connection | None = None
        try:
            connection = await self._connect_in_time(until_s)
        finally:
            if connection is None or connection.is_lost:
                self._free_place()
            else:
                self._connections.add(connection)
        if connection.state is not State.IDLE:
            raise connection.unasked() or Closed(f"{self._target} closed the connection before it answered")
        return connection

    async def _connect_in_time(self, until_s: float) -> Connection:
        now_s = self._loop.time()
        connect_until_s = now_s + self._connect_timeout_s
        scope = asyncio.timeout_at(min(until_s, connect_until_s))
        self._connecting.add(scope)
        try:
            async with scope:
                return await self._connect_to_any()
        except TimeoutError as error:
            if self._closed:
                raise self._is_closed() from None
            if not scope.expired():
                raise ConnectFailed(f"cannot connect to {self._target}: {_reason(error)}") from None
            if until_s < connect_until_s:
                raise Overdue(f"no connection to {self._target} in time") from None
            raise ConnectFailed(f"no connection to {self._target} within {self._connect_timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise TlsFailed(
                f"TLS with {self._target} failed: {tls.failure(error, self._target.server_name).cause}"
            ) from None
        except OSError as error:
            raise ConnectFailed(f"cannot connect to {self._target}: {_reason(error)}") from None
        finally:
            self._connecting.discard(scope)

    async def _connect_to_any(self) -> Connection:
        target = self._target
        if self._resolve is None:
            return await self._connect_to(target.host)
        addresses = await self._resolve(target.host, target.port)
        failure: OSError = OSError(f"{target.host} has no address that may be connected to")
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                # One that swallows packets must not take the time of the others.
                async with asyncio.timeout(self._connect_timeout_s / len(addresses) if left > 1 else None):
                    return await self._connect_to(address)
            except OSError as error:
                failure = error
        raise failure

    async def _connect_to(self, host: str) -> Connection:
        """The lists of asyncio: names are looked up by the loop, addresses of both kinds are tried side by side."""
        transport, connection = await self._loop.create_connection(
            partial(Connection, self, str(self._target), self._buffer),
            host,
            self._target.port,
            ssl=self._tls,
            server_hostname=self._target.server_name if self._tls is not None else None,
            happy_eyeballs_delay=None if is_ip(host) else _NEXT_ADDRESS_AFTER_S,
        )
        if self._closed or transport.is_closing():
            connection.abort()
        return connection

    # -- the watch

    def _begin_to_tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ticking = True
        self._timer = self._loop.call_later(self._tick_s, self._guarded_tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        self._end_overdue_waits(now_s)
        for connection in tuple(self._connections):
            connection.check(now_s, bool(self._line))
        if self._line or self._connecting or len(self._idle) < self._places:
            self._begin_to_tick()
            return
        self._ticking = False
        if self._idle:
            first_s = min(connection.since_s for connection in self._idle)
            self._timer = self._loop.call_at(first_s + IDLE_FOR_S + self._tick_s, self._guarded_tick)

    def _end_overdue_waits(self, now_s: float) -> None:
        if not any(until_s <= now_s for _, until_s in self._line):
            return
        for place, until_s in self._line:
            if until_s <= now_s and not place.done():
                place.set_exception(Overdue(f"no free connection to {self._target} in time"))
        self._line = deque(each for each in self._line if not each.place.done())


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return error.strerror or "the name cannot be looked up"
    if error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or "the connection was closed"
