"""One Redis server: its connections, and one exchange on one of them.

Nothing is sent again here. An error that the server returned is an answer like others; an error on the way there or
back is raised as the driver raised it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

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


class Node:
    def __init__(
        self, name: str, url: str, connections: int, timeout_s: float, *, address: Address | None = None
    ) -> None:
        self.name = name
        """Where it is, for messages."""
        self.address = address
        self._pool = redis_asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=connections,
            timeout=timeout_s,
            protocol=2,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_timeout=timeout_s,
            socket_connect_timeout=min(timeout_s, _CONNECT_S),
            health_check_interval=0,
            client_name="nsqdigest",
            parser_class=_Parser,
            **({} if url.startswith("unix://") else {"socket_keepalive": True}),  # of TCP alone
        )
        self._timeout_s = timeout_s
        self._generation = 0
        self._generation_of: WeakKeyDictionary[AbstractConnection, int] = WeakKeyDictionary()
        self._users = 0
        self._is_retired = False

    def __str__(self) -> str:
        return self.name

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
        generation = self._generation  # read before a connection is made, which resolves its name after this
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        is_clean = False
        try:
            if self._generation_of.setdefault(connection, generation) != self._generation:
                await self._reconnect(connection)
            # A script's call, and what reads a digest, come encoded.
            packed = [each if isinstance(each, bytes) else encode(each) for each in commands]
            try:
                async with asyncio.timeout(self._timeout_s):
                    await _write(connection, packed)
                async with asyncio.timeout(self._timeout_s):
                    answers = await _answers_of(connection, len(packed))
            except TimeoutError:
                raise redis_errors.TimeoutError(f"no answer within {self._timeout_s:g} s") from None
            is_clean = True
            return answers
        finally:
            if not is_clean:
                self._generation_of.pop(connection, None)
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def _reconnect(self, connection: AbstractConnection) -> None:
        self._generation_of[connection] = self._generation
        await connection.disconnect(nowait=True)
        await connection.connect()  # type: ignore[no-untyped-call]

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
        with suppress(redis_errors.RedisError, OSError):  # of a server that does not answer: the connection is gone
            await self._pool.disconnect()


class _Parser(DefaultParser):  # type: ignore[misc, valid-type]
    """The driver's, with a way to read all answers of an exchange in one go: its own takes three coroutines each."""

    async def answers(self, count: int) -> list[Any]:
        """The next ones; a refused command's is an error."""
        found: list[Any] = []
        while len(found) < count:
            answer = self._reader.gets()
            if answer is NOT_ENOUGH_DATA:
                await self.read_from_socket()
            elif isinstance(answer, redis_errors.ConnectionError):
                raise answer
            else:
                found.append(answer)
        return found


# Not by the driver's own methods: before Python 3.12 they make a task for every write, and they have a timer for each
# answer.


async def _write(connection: AbstractConnection, packed: Sequence[bytes]) -> None:
    try:
        connection._writer.writelines(packed)  # type: ignore[union-attr]
        await connection._writer.drain()  # type: ignore[union-attr]
    except OSError as error:
        raise redis_errors.ConnectionError(f"the connection broke: {error}") from error


async def _answers_of(connection: AbstractConnection, count: int) -> list[Any]:
    try:
        return await connection._parser.answers(count)  # type: ignore[attr-defined,no-any-return]
    except OSError as error:
        raise redis_errors.ConnectionError(f"the connection broke: {error}") from error
