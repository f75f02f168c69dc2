"""One Redis server: its connections, and one exchange on one of them.

Nothing here tries again and nothing is judged: what the server refused is an answer like others, and what went wrong on
the way comes out as the driver raised it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import hiredis
from redis import asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

    from nsqdigest.config import Address

Command = Sequence[bytes | str | int]

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
            **({} if url.startswith("unix://") else {"socket_keepalive": True}),  # of TCP alone
        )
        self._doubts = 0
        self._doubts_when_made: WeakKeyDictionary[AbstractConnection, int] = WeakKeyDictionary()
        self._users = 0
        self._is_retired = False

    def __str__(self) -> str:
        return self.name

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """One round trip. Answers stand in the order of the commands; one that was refused has its error there."""
        self._users += 1
        try:
            return await self._exchange(commands)
        finally:
            self._users -= 1
            if self._is_retired and not self._users:
                await self.close()

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        doubts = self._doubts  # before a connection is made: its name is resolved, and its server asked, after this
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        is_clean = False
        try:
            if self._doubts_when_made.setdefault(connection, doubts) != self._doubts:
                await self._make_anew(connection)
            await connection.send_packed_command([_pack(command) for command in commands], check_health=False)
            answers: list[Any] = []
            for _ in commands:
                try:
                    answers.append(await connection.read_response())
                except redis_errors.ResponseError as error:
                    answers.append(error)
            is_clean = True
            return answers
        finally:
            if not is_clean:
                self._doubts_when_made.pop(connection, None)
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def _make_anew(self, connection: AbstractConnection) -> None:
        self._doubts_when_made[connection] = self._doubts
        await connection.disconnect(nowait=True)
        await connection.connect()  # type: ignore[no-untyped-call]

    def doubt(self) -> None:
        """Each connection is made anew before its next use, which asks where the server is by now, and who.

        By the call that takes it: closing the idle ones from here would hit those that are taken meanwhile.
        """
        self._doubts += 1

    async def retire(self) -> None:
        """Nobody is to use it any more: closes its connections, once the calls that are under way have ended."""
        self._is_retired = True
        if not self._users:
            await self.close()

    async def close(self) -> None:
        with suppress(redis_errors.RedisError, OSError):  # of a server that does not answer: the connection is gone
            await self._pool.disconnect()


def _pack(command: Command) -> bytes:
    return hiredis.pack_command(tuple(command))  # type: ignore[arg-type,no-any-return]
