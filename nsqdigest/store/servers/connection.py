"""One connection to a Redis server. The driver makes it (name, TLS, password, database); from then on what is sent and
read goes past it: its own way takes several coroutines, tasks and timers for each answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio.connection import DefaultParser

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

READ_BYTES = 1 << 13
"""Given to hiredis at a time: with each larger answer it moves all that follows in its buffer."""


class Connection:
    __slots__ = ("_by_driver", "_timeout_s", "generation")

    def __init__(self, by_driver: AbstractConnection, timeout_s: float) -> None:
        self._by_driver = by_driver
        self._timeout_s = timeout_s
        self.generation = 0
        """Of the node, when the server's name was last resolved for it."""

    @property
    def is_ready(self) -> bool:
        """Whether a call may use it as it is: the server has not closed it, and nothing is left to be read."""
        by_driver = self._by_driver
        return by_driver.is_connected and not by_driver._parser.has_something  # type: ignore[attr-defined]

    async def connect(self) -> None:
        """Anew, where it was connected."""
        await self.drop()
        await self._by_driver.connect()  # type: ignore[no-untyped-call]

    async def drop(self) -> None:
        """Closes it at once."""
        await self._by_driver.disconnect(nowait=True)

    async def end(self) -> None:
        """Returns when it is closed."""
        await self._by_driver.disconnect()

    async def exchange(self, packed: Sequence[bytes]) -> list[Any]:
        """Sends commands. Returns one answer for each, in their order: an error where it was refused. After any
        exception it must be connected anew."""
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


class Parser(DefaultParser):  # type: ignore[misc, valid-type]
    """The driver's, with a way to read all answers of an exchange in one go."""

    @property
    def has_something(self) -> bool:
        """Bytes that nobody asked for, or the end."""
        stream = self._stream
        return bool(self._reader.has_data() or stream._buffer or stream.at_eof() or stream.exception())

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
