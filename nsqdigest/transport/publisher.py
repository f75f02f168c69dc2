"""Publishes to nsqds, each batch acknowledged before the call returns.

One connection per nsqd, made when first needed and made anew after it broke. Nothing is sent twice by itself: a
publish whose answer was lost raises, and its caller decides (dead letters: the message is requeued and comes again).
"""

from __future__ import annotations

import asyncio

from nsq import protocol as nsq

from nsqdigest.config import Address
from nsqdigest.errors import ConnectionLost, NsqdigestError, NsqdRefused, ProtocolError
from nsqdigest.transport.connection import ConnectionOptions, NsqConnection
from nsqdigest.transport.frames import Message

ACKNOWLEDGED_WITHIN_S = 10.0


class Publisher:
    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._connections: dict[Address, NsqConnection] = {}
        self._opening: dict[Address, asyncio.Lock] = {}

    async def publish(self, address: Address, topic: str, bodies: list[bytes]) -> None:
        """All bodies at once, or none (nsqd takes an MPUB whole)."""
        connection = await self._connection(address)
        command = nsq.pub(topic, bodies[0]) if len(bodies) == 1 else nsq.mpub(topic, bodies)
        try:
            async with asyncio.timeout(ACKNOWLEDGED_WITHIN_S):
                await connection.request(command)
        except TimeoutError:
            # Its answer may still come and would be taken for the next one's: this connection is of no use any more.
            connection.close(f"no acknowledgement within {ACKNOWLEDGED_WITHIN_S:g} s")
            raise ConnectionLost(f"nsqd at {address} did not acknowledge a publish to {topic}") from None

    async def _connection(self, address: Address) -> NsqConnection:
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or not connection.is_open:
                connection = NsqConnection(address, self._options, self)
                await connection.open()
                self._connections[address] = connection
            return connection

    async def close(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close("the publisher ends")
            await connection.hang_up()

    # -- as a Receiver: a publishing connection gets no messages, and its failures reach whoever waits for an answer

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        raise ProtocolError(
            f"nsqd at {connection.address} sent {len(messages)} messages to a connection that never subscribed"
        )

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        pass

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
