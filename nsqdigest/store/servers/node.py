"""One Redis server: its connections, and one exchange on one of them.

Nothing is sent again here. An error that the server returned is an answer like others; an error on the way there or
back is raised as the driver raised it, and as a `StoreError` where nothing was sent. The driver makes a connection
(name, TLS, password, database). From then on what is sent and read goes past it, whose own way takes several
coroutines, tasks and timers for each answer, and past the streams of asyncio, whose way takes three more turns of the
loop.

To cancel who waits for an exchange leaves it running: its connection serves others once it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redis import asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from nsqdigest.base import tasks
from nsqdigest.config import Address
from nsqdigest.store.servers.resp import encode
from nsqdigest.store.servers.translation import Place, translate_unconnected

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from nsqdigest.config.tls_files import TlsClient
    from nsqdigest.store.servers.resp import Command

T = TypeVar("T")

_CONNECT_S = 2.0
_LONGEST_TICK_S = 0.1
_SHORTEST_TICK_S = 0.01
_READ_BYTES = 1 << 18
"""As much as asyncio takes from a socket at a time."""
_PARSED_BYTES = 1 << 13
"""Given to hiredis at a time: with each larger answer it moves all that follows in its buffer."""
_ORDINARY = frozenset((bytes, int, list, type(None)))
"""What answers are made of that are no errors."""


class Node:
    def __init__(
        self,
        name: str,
        url: str,
        connections: int,
        timeout_s: float,
        *,
        tls: TlsClient | None = None,
        address: Address | None = None,
    ) -> None:
        """`connections`: at most so many. A call that finds all of them taken waits for one. `tls`: None for a URL
        without it."""
        self.name = name
        """Where it is, for messages."""
        self.address = address
        self._driver = redis_asyncio.ConnectionPool.from_url(
            url,
            protocol=2,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_timeout=timeout_s,
            socket_connect_timeout=min(timeout_s, _CONNECT_S),
            health_check_interval=0,
            client_name="nsqdigest",
            **({} if url.startswith("unix://") else {"socket_keepalive": True}),  # of TCP alone
        )
        """It makes connections. (To lend and take one back, as it does that, costs as much as an exchange.)"""
        self._tls = tls
        self._connect_s = min(timeout_s, _CONNECT_S)
        self._place = _place_of(self._driver.connection_kwargs, tls)
        self._timeout_s = timeout_s
        self._most = connections
        self._free = asyncio.Semaphore(connections)
        self._idle: list[_Connection] = []
        self._made: list[_Connection] = []
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._generation = 0
        self._users = 0
        self._is_retired = False
        self._background: set[asyncio.Task[Any]] = set()
        self._tick_s = min(_LONGEST_TICK_S, max(_SHORTEST_TICK_S, timeout_s / 10))
        self._timer: asyncio.TimerHandle | None = None
        """Runs while an exchange does: one watches all of them."""
        self._guarded_tick = tasks.guarded(self._tick, f"watch over the connections to {name}")

    def __str__(self) -> str:
        return self.name

    @property
    def is_busy(self) -> bool:
        """Whether an exchange is under way."""
        return self._users > 0

    def allow(self, connections: int) -> None:
        """At least so many from now on."""
        for _ in range(self._most, connections):
            self._free.release()
        self._most = max(self._most, connections)

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """One round trip. Returns one answer for each command, in their order: an error where it was refused."""
        if not commands:
            return []
        packed = cast("Sequence[bytes]", commands)
        if {*map(type, commands)} != {bytes}:  # a script's call, and what reads a digest, come encoded
            packed = [encode(command) for command in commands]
        if self._free.locked():
            await self._wait_for_free()
        else:
            await self._free.acquire()
        self._users += 1
        connection = self._idle.pop() if self._idle else self._make()
        if connection.is_fit(self._generation):
            return await self._exchange_on(connection, packed)
        # The driver may swallow a cancellation while it connects (before Python 3.12 `wait_for` does).
        return await tasks.outlasting(self._in_background(self._exchange_anew(connection, packed)))

    async def _wait_for_free(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._free.acquire()
        except TimeoutError:
            raise redis_errors.MaxConnectionsError("No connection available.") from None

    async def _exchange_anew(self, connection: _Connection, packed: Sequence[bytes]) -> list[Any]:
        """Over a connection that is made again."""
        try:
            await connection.renew(self._generation)
        except Exception as error:
            await connection.drop()
            self._give_back(connection)
            raise translate_unconnected(error, self._place, self._connect_s) from error
        return await self._exchange_on(connection, packed)

    async def _exchange_on(self, connection: _Connection, packed: Sequence[bytes]) -> list[Any]:
        wire = connection.wire
        assert wire is not None
        try:
            answers = wire.begin(packed)
            if self._timer is None:
                self._begin_to_tick()
            return await answers
        finally:
            if wire.is_busy:
                wire.on_quiet = partial(self._give_back, connection)
            else:
                self._give_back(connection)

    def _give_back(self, connection: _Connection) -> None:
        self._users -= 1
        self._idle.append(connection)
        self._free.release()
        if self._is_retired and not self._users:
            self._in_background(self._close_unused())

    def _in_background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _make(self) -> _Connection:
        by_driver = self._driver.make_connection()  # type: ignore[no-untyped-call]
        if self._tls is not None:
            by_driver.ssl_context.context = self._tls.context  # instead of one that the driver would make
        connection = _Connection(by_driver, self._buffer, self._timeout_s)
        self._made.append(connection)
        return connection

    def renew_connections(self) -> None:
        """From now on each connection is made again before its next use, which resolves the server's name again.

        The call that takes a connection does it: closing idle ones here would hit those that are taken meanwhile.
        """
        self._generation += 1

    async def retire(self) -> None:
        """Closes the connections once the calls under way have ended. No call may begin after this."""
        self._is_retired = True
        await self._close_unused()

    async def _close_unused(self) -> None:
        if not self._users:  # a call that waited for a connection may have one by now
            await self.close()

    async def close(self) -> None:
        """Ends what is under way. A connection that is being made is closed once it is there."""
        self._is_retired = True
        # Where a server does not answer, its connection is gone all the same.
        await asyncio.gather(*(connection.end() for connection in self._made), return_exceptions=True)

    # -- the watch

    def _begin_to_tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._guarded_tick)

    def _tick(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for connection in self._made:
            if connection.wire is not None:
                connection.wire.check(now_s)
        if self._users:
            self._begin_to_tick()


def _place_of(driver: Mapping[str, Any], tls: TlsClient | None) -> Place:
    """`driver`: the settings that redis-py has read from the URL."""
    host = driver.get("host", "localhost")
    at = driver["path"] if "path" in driver else str(Address(host, driver.get("port", 6379)))
    return Place(at, host, tls is not None, tls is not None and tls.has_certificate)


class _Connection:
    """One after the other, made by the driver."""

    def __init__(self, by_driver: AbstractConnection, buffer: memoryview, timeout_s: float) -> None:
        self._by_driver = by_driver
        self._buffer = buffer
        self._timeout_s = timeout_s
        self._generation = 0
        """Of the node, when the server's name was last resolved for it."""
        self.wire: _Wire | None = None
        """None: it was never made, or is closed."""

    def is_fit(self, generation: int) -> bool:
        """Whether it may be used as it is: it is of this generation, the server has not closed it, and nothing is left
        to be read."""
        wire = self.wire
        return wire is not None and self._generation == generation and wire.is_fit and not wire.is_closing()

    async def renew(self, generation: int) -> None:
        self._generation = generation
        await self.drop()
        await self._by_driver.connect()  # type: ignore[no-untyped-call]
        self.wire = _Wire(self._by_driver, self._buffer, self._timeout_s)
        if not self.wire.is_fit:
            raise redis_errors.ConnectionError("the server closed the connection at once, or spoke unasked")

    async def drop(self) -> None:
        """Closes it at once."""
        self.wire = None
        await self._by_driver.disconnect(nowait=True)

    async def end(self) -> None:
        """Returns when it is closed."""
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.cut_off()
        await self._by_driver.disconnect()


class _Wire(asyncio.BufferedProtocol):
    """A connection that the driver has made: one exchange at a time, of commands and as many answers.

    - An exchange that was begun goes on, whoever still waits for it, until its answers are there or the connection is
      lost.
    - After anything but the answers that were asked for, it serves no other exchange.
    - It neither waits nor owns a timer: the node calls `check` with the time, and that ends what is overdue.
    """

    def __init__(self, by_driver: AbstractConnection, buffer: memoryview, timeout_s: float) -> None:
        """`buffer`: may serve many, since each reads it before another can fill it."""
        transport = by_driver._writer.transport  # type: ignore[union-attr]
        self._streams = transport.get_protocol()
        """Of the driver, which waits for their end when it closes the connection."""
        self._reader = by_driver._parser._reader  # type: ignore[attr-defined]
        self.is_fit = not (by_driver._reader._buffer or by_driver._reader.at_eof())  # type: ignore[union-attr]
        """Whether it may serve an exchange. Known for each, so nobody is asked."""
        self.is_busy = False
        self._transport = transport
        self.is_closing = transport.is_closing
        """Before `connection_lost` says so: what is sent then is thrown away (before Python 3.14 its socket's number is
        watched on, whoever has it next)."""
        self._buffer = buffer
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._answers: asyncio.Future[list[Any]] | None = None
        self._found: list[Any] = []
        self._count = 0
        self._until_s = 0.0
        self.on_quiet: Callable[[], None] | None = None
        """Called when an exchange has ended whose caller is gone."""
        transport.set_protocol(self)

    def begin(self, packed: Sequence[bytes]) -> asyncio.Future[list[Any]]:
        """Sends commands. The answers are in their order, an error where a command was refused. To cancel the future
        ends no exchange."""
        answers = self._answers = self._loop.create_future()
        self.is_busy = True
        self._found, self._count = [], len(packed)
        self._until_s = self._loop.time() + self._timeout_s
        self._transport.write(b"".join(packed))
        return answers

    def cut_off(self) -> None:
        """Ends the exchange that is under way, and the connection: a transport that closes in order waits until the
        server has taken all that was sent, and with TLS for its goodbye."""
        self._fail(redis_errors.ConnectionError("the connection was closed"))

    def check(self, now_s: float) -> None:
        """Ends what has lasted too long."""
        if self.is_busy and now_s >= self._until_s:
            self._fail(redis_errors.TimeoutError(f"no answer within {self._timeout_s:g} s"))

    # -- called by the transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_busy:  # nobody asked
            self.is_fit = False
            self._transport.abort()
            return
        reader, found = self._reader, self._found
        try:
            for start in range(0, nbytes, _PARSED_BYTES):
                reader.feed(self._buffer, start, min(_PARSED_BYTES, nbytes - start))
                found += iter(reader.gets, NOT_ENOUGH_DATA)
        except Exception as error:  # it is not Redis that speaks
            self._fail(error)
            return
        if len(found) >= self._count:
            self._complete(found)

    def eof_received(self) -> None:
        self.is_fit = False

    def connection_lost(self, error: Exception | None) -> None:
        why = f"the connection broke: {error}" if error is not None else "the server closed the connection"
        self._fail(redis_errors.ConnectionError(why))
        self._streams.connection_lost(error)

    # -- the end of an exchange

    def _complete(self, found: list[Any]) -> None:
        if len(found) > self._count:
            self._fail(redis_errors.ConnectionError("the server answered more than it was asked"))
            return
        if not _ORDINARY.issuperset(map(type, found)):
            for answer in found:
                if isinstance(answer, redis_errors.ConnectionError):
                    self._fail(answer)
                    return
        self.is_fit = not self._reader.has_data()
        answers = self._ended()
        if answers is not None and not answers.done():
            answers.set_result(found)
        self._tell()

    def _fail(self, error: Exception) -> None:
        self.is_fit = False
        self._transport.abort()
        answers = self._ended()
        if answers is not None and not answers.done():
            answers.set_exception(error)
        self._tell()

    def _ended(self) -> asyncio.Future[list[Any]] | None:
        answers, self._answers = self._answers, None
        self.is_busy = False
        return answers

    def _tell(self) -> None:
        on_quiet, self.on_quiet = self.on_quiet, None
        if on_quiet is not None:
            on_quiet()
