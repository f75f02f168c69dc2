"""One Redis server: its connections, and one exchange on one of them.

Nothing is sent again here. An error that the server returned is an answer like others; an error on the way there or
back is raised as the driver raised it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from redis import asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from nsqdigest.store.servers.connection import READ_BYTES, Connection, Parser
from nsqdigest.store.servers.resp import encode

if TYPE_CHECKING:
    from nsqdigest.config import Address
    from nsqdigest.store.servers.resp import Command

_CONNECT_S = 2.0


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
            socket_read_size=READ_BYTES,
            health_check_interval=0,
            client_name="nsqdigest",
            parser_class=Parser,
            **({} if url.startswith("unix://") else {"socket_keepalive": True}),  # of TCP alone
        )
        """It makes connections. (To lend and take one back, as it does that, costs as much as an exchange.)"""
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(connections)
        self._idle: list[Connection] = []
        self._made: list[Connection] = []
        self._generation = 0
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
        await self._wait_for_free()
        connection = self._idle.pop() if self._idle else self._make()
        is_clean = False
        try:
            if connection.generation != self._generation or not connection.is_ready:
                connection.generation = self._generation  # read before its name is resolved
                await connection.connect()
            # A script's call, and what reads a digest, come encoded.
            packed = [each if isinstance(each, bytes) else encode(each) for each in commands]
            answers = await connection.exchange(packed)
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

    def _make(self) -> Connection:
        connection = Connection(self._driver.make_connection(), self._timeout_s)  # type: ignore[no-untyped-call]
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
