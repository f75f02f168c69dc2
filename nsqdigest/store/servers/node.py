"""One Redis server: its connections, and one exchange on one of them.

Nothing is sent again here. An error that the server returned is an answer like others; an error on the way there or
back is raised as the driver raised it. The driver makes a connection (name, TLS, password, database); from then on what
is sent and read goes past it: its own way takes several coroutines, tasks and timers for each answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from redis import asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.connection import DefaultParser
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from nsqdigest.store.servers.resp import encode

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from nsqdigest.config import Address
    from nsqdigest.store.servers.resp import Command

_CONNECT_S = 2.0
_READ_BYTES = 1 << 18
"""As much as asyncio takes from a socket at a time."""
_PARSED_BYTES = 1 << 13
"""Given to hiredis at a time: with each larger answer it moves all that follows in its buffer."""
_ORDINARY = frozenset((bytes, int, list, type(None)))
"""What answers are made of that are no errors."""


class Node:
    def __init__(
        self, name: str, url: str, connections: int, timeout_s: float, *, address: Address | None = None
    ) -> None:
        """`connections`: at most so many. A call that finds all of them taken waits for one."""
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
            socket_read_size=_PARSED_BYTES,
            health_check_interval=0,
            client_name="nsqdigest",
            parser_class=_Parser,
            **({} if url.startswith("unix://") else {"socket_keepalive": True}),  # of TCP alone
        )
        """It makes connections. (To lend and take one back, as it does that, costs as much as an exchange.)"""
        self._timeout_s = timeout_s
        self._most = connections
        self._free = asyncio.Semaphore(connections)
        self._idle: list[_Connection] = []
        self._made: list[_Connection] = []
        self._generation = 0
        self._users = 0
        self._is_retired = False

    def __str__(self) -> str:
        return self.name

    def allow(self, connections: int) -> None:
        """At least so many from now on."""
        for _ in range(self._most, connections):
            self._free.release()
        self._most = max(self._most, connections)

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """One round trip. Returns one answer for each command, in their order: an error where it was refused."""
        self._users += 1
        try:
            return await self._exchange(commands)
        finally:
            self._users -= 1
            if self._is_retired and not self._users:
                await self.close()

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        await self._wait_for_free()
        connection = self._idle.pop() if self._idle else self._make()
        is_clean = False
        try:
            packed = cast("Sequence[bytes]", commands)
            if {*map(type, commands)} != {bytes}:  # a script's call, and what reads a digest, come encoded
                packed = [encode(command) for command in commands]
            answers = await connection.exchange(packed, self._generation)
            is_clean = True
            return answers
        finally:
            if not is_clean:
                await connection.drop()
            self._idle.append(connection)
            self._free.release()

    async def _wait_for_free(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._free.acquire()
        except TimeoutError:
            raise redis_errors.MaxConnectionsError("No connection available.") from None

    def _make(self) -> _Connection:
        connection = _Connection(self._driver.make_connection(), self._timeout_s)  # type: ignore[no-untyped-call]
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
        if not self._users:
            await self.close()

    async def close(self) -> None:
        # Where a server does not answer, its connection is gone all the same.
        await asyncio.gather(*(connection.end() for connection in self._made), return_exceptions=True)


class _Connection:
    __slots__ = ("_by_driver", "_generation", "_timeout_s")

    def __init__(self, by_driver: AbstractConnection, timeout_s: float) -> None:
        self._by_driver = by_driver
        self._timeout_s = timeout_s
        self._generation = 0
        """Of the node, when the server's name was last resolved for it."""

    async def drop(self) -> None:
        """Closes it at once."""
        await self._by_driver.disconnect(nowait=True)

    async def end(self) -> None:
        """Returns when it is closed."""
        await self._by_driver.disconnect()

    async def exchange(self, packed: Sequence[bytes], generation: int) -> list[Any]:
        """Sends commands, over a connection made anew where it is of an earlier generation, where the server has closed
        it, or where something is left to be read. Returns one answer for each, in their order: an error where it was
        refused. After any exception it must be dropped."""
        if self._generation != generation or not self._is_ready:
            self._generation = generation
            await self.drop()
            await self._by_driver.connect()  # type: ignore[no-untyped-call]
        writer, parser = self._by_driver._writer, self._by_driver._parser
        try:
            writer.writelines(packed)  # type: ignore[union-attr]
            if writer.transport.get_write_buffer_size():  # type: ignore[union-attr]
                async with asyncio.timeout(self._timeout_s):
                    await writer.drain()  # type: ignore[union-attr]
            async with asyncio.timeout(self._timeout_s):
                return await parser.answers(len(packed))  # type: ignore[attr-defined,no-any-return]
        except TimeoutError:
            raise redis_errors.TimeoutError(f"no answer within {self._timeout_s:g} s") from None
        except OSError as error:
            raise redis_errors.ConnectionError(f"the connection broke: {error}") from error

    @property
    def _is_ready(self) -> bool:
        by_driver = self._by_driver
        return by_driver.is_connected and not by_driver._parser.has_something  # type: ignore[attr-defined]


class _Parser(DefaultParser):  # type: ignore[misc, valid-type]
    """The driver's, with a way to read all answers of an exchange in one go."""

    @property
    def has_something(self) -> bool:
        """Bytes that nobody asked for, or the end."""
        stream = self._stream
        return bool(self._reader.has_data() or stream._buffer or stream.at_eof() or stream.exception())

    async def answers(self, count: int) -> list[Any]:
        """The next ones; a refused command's is an error."""
        found: list[Any] = []
        reader = self._reader
        while len(found) < count:
            data = await self._stream.read(_READ_BYTES)
            if not data:
                raise redis_errors.ConnectionError("the server closed the connection")
            for start in range(0, len(data), _PARSED_BYTES):
                reader.feed(data, start, min(_PARSED_BYTES, len(data) - start))
                found += iter(reader.gets, NOT_ENOUGH_DATA)
        if not _ORDINARY.issuperset(map(type, found)):
            for answer in found:
                if isinstance(answer, redis_errors.ConnectionError):
                    raise answer
        if len(found) > count:
            raise redis_errors.ConnectionError("the server answered more than it was asked")
        return found
