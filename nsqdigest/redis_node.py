"""One Redis server: its connections, and one exchange on one of them.

Nothing here tries again and nothing is judged: what the server refused is an answer like others, and what went wrong on
the way comes out as the driver raised it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
from redis import asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

Command = Sequence[bytes | str | int]

_CONNECT_S = 2.0


class Node:
    def __init__(self, name: str, url: str, connections: int, timeout_s: float) -> None:
        self.name = name
        """Where it is, for messages."""
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

    def __str__(self) -> str:
        return self.name

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """One round trip. Answers stand in the order of the commands; one that was refused has its error there."""
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        is_clean = False
        try:
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
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def let_go(self) -> None:
        """Closes the connections that nobody uses: the next ones ask anew where the server is, and who."""
        await self._pool.disconnect(inuse_connections=False)

    async def close(self) -> None:
        await self._pool.disconnect()


def _pack(command: Command) -> bytes:
    return hiredis.pack_command(tuple(command))  # type: ignore[arg-type,no-any-return]
