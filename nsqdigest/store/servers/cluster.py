"""A Cluster: the server of each slot, by the map that its servers keep.

The map of a server that says `cluster_state:ok` wins; where none says so, the map of any server that answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, cast

from redis.exceptions import AskError

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.config import Address, redis_urls
from nsqdigest.config.tls_files import TlsClient
from nsqdigest.store.servers.base import DiscoveredServers, error_of, unanswered
from nsqdigest.store.servers.node import Node

_SINGLE_URL = "write redis:// instead of redis+cluster:// in redis.url"


class Cluster(DiscoveredServers):
    def __init__(
        self, url: redis_urls.RedisUrl, connections: int, timeout_s: float, tls: TlsClient | None = None
    ) -> None:
        super().__init__(connections)
        self._url, self._timeout_s, self._tls = url, timeout_s, tls
        self._nodes: dict[Address, Node] = {}
        self._slots: dict[int, Node] = {}

    async def server_for(self, slot: int) -> Node:
        await self._refreshed()
        node = self._slots.get(slot)
        if node is None:
            self._is_stale = True
            raise StoreError("redis-clusterdown", f"no server of the Cluster has slot {slot}", Applied.NO)
        return node

    async def primaries(self) -> list[Node]:
        self._is_stale = True
        await self._refreshed()
        return list(dict.fromkeys(self._slots.values()))

    async def mark_stale(self, node: Node) -> None:
        self._is_stale = True
        node.renew_connections()

    async def redirected(self, asked: Node, slot: int, to: AskError, *, for_good: bool) -> Node:
        """After MOVED the map is read again before the next call."""
        node = self._node(Address(to.host or _host_of(asked), to.port))
        if for_good:
            self._slots[slot] = node
            self._is_stale = True
        return node

    def _node(self, address: Address) -> Node:
        if address not in self._nodes:
            url = self._url.of_server(address)
            self._nodes[address] = Node(
                str(address), url, self._connections, self._timeout_s, tls=self._tls, address=address
            )
        return self._nodes[address]

    async def _discover(self) -> None:
        asked = [self._node(address) for address in dict.fromkeys((*self._url.servers, *self._nodes))]
        found: dict[int, Address] = {}
        is_well = False
        troubles: dict[Node, StoreError] = {}
        async with aclosing(self._answers_of(asked, [[b"CLUSTER", b"INFO"], [b"CLUSTER", b"SLOTS"]])) as answers:
            async for node, answer in answers:
                slots = _slots(node, answer)
                if slots is None:
                    if not isinstance(answer, Exception) and "cluster support disabled" in str(answer[1]):
                        raise StoreError("redis-mode", f"{node} is not a server of a Cluster", Applied.NO, _SINGLE_URL)
                    troubles[node] = error_of(answer)
                    continue
                is_well = _is_well(answer)
                if is_well or not found:
                    found = slots
                if is_well:
                    break
        if not found:
            raise unanswered("redis-cluster", "no server of the Cluster answers", troubles)
        self._slots = {slot: self._node(address) for slot, address in found.items()}
        if is_well:
            for address in self._nodes.keys() - {*self._url.servers, *found.values()}:
                self._forget(self._nodes.pop(address))

    def _all_nodes(self) -> Iterable[Node]:
        return self._nodes.values()


def _host_of(node: Node) -> str:
    assert node.address is not None
    return node.address.host


def _is_well(answer: list[Any] | Exception) -> bool:
    return isinstance(answer, list) and isinstance(answer[0], bytes) and b"cluster_state:ok" in answer[0]


def _slots(asked: Node, answer: list[Any] | Exception) -> dict[int, Address] | None:
    """The address of each slot, as this server sees it. None: the answer has another form."""
    try:
        slots: dict[int, Address] = {}
        for first, last, (name, port, *_), *_ in cast("list[Any]", answer)[1]:
            host = name.decode() if name else ""
            address = Address(_host_of(asked) if host in ("", "?") else host, int(port))
            slots.update(dict.fromkeys(range(first, last + 1), address))
        return slots
    except (TypeError, ValueError, LookupError, AttributeError):
        return None
