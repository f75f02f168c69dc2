"""A single server: the one that redis.url names has every slot."""

from __future__ import annotations

from nsqdigest.store.servers.base import Servers
from nsqdigest.store.servers.node import Node


class SingleServer(Servers):
    def __init__(self, node: Node) -> None:
        self.only = self._node = node

    async def server_for(self, slot: int) -> Node:
        return self._node

    async def primaries(self) -> list[Node]:
        return [self._node]

    async def mark_stale(self, node: Node) -> None:
        # Its name, or the address behind it, may lead to another server by now.
        node.renew_connections()

    def allow(self, connections: int) -> None:
        self._node.allow(connections)

    @property
    def is_busy(self) -> bool:
        return self._node.is_busy

    async def close(self) -> None:
        await self._node.close()
