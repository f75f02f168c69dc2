"""Sentinels: the primary that a majority of them names has every slot.

The highest config-epoch among the answers of a majority of the Sentinels in redis.url wins. Fewer answers are none: a
network split may have left the minority with the old primary.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from typing import Any, NamedTuple, cast

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.config import Address, redis_urls
from nsqdigest.config.tls_files import TlsClient
from nsqdigest.store.servers import base
from nsqdigest.store.servers.base import DiscoveredServers, error_of, unanswered
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.resp import Command


class Sentinels(DiscoveredServers):
    def __init__(
        self, url: redis_urls.RedisUrl, connections: int, timeout_s: float, tls: TlsClient | None = None
    ) -> None:
        super().__init__(connections)
        self._url, self._timeout_s, self._tls = url, timeout_s, tls
        answer_s = min(timeout_s, base.DISCOVERY_S)
        self._sentinels = [Node(f"sentinel {at}", url.of_sentinel(at), 2, answer_s, tls=tls) for at in url.servers]
        self._primary: Node | None = None

    async def server_for(self, slot: int) -> Node:
        await self._refreshed()
        assert self._primary is not None
        return self._primary

    async def primaries(self) -> list[Node]:
        self._is_stale = True
        return [await self.server_for(0)]

    async def mark_stale(self, node: Node) -> None:
        if node is self._primary:
            self._is_stale = True
        node.renew_connections()

    async def _discover(self) -> None:
        named = await self._ask_a_majority()
        address = max(named).address
        if any(each.is_down for each in named if each.address == address):
            # Not tried: should it come back now, it may be empty and not know yet that it is to be a replica.
            raise StoreError("redis-sentinel", f"the Sentinels hold {address} for down and have no other", Applied.NO)
        former = self._primary
        if former is None or former.address != address:
            url = self._url.of_server(address)
            self._primary = Node(str(address), url, self._connections, self._timeout_s, tls=self._tls, address=address)
            if former is not None:
                self._forget(former)

    async def _ask_a_majority(self) -> list[_Named]:
        named: list[_Named] = []
        troubles: dict[Node, StoreError] = {}
        # Both, in this order: while the leader of a failover completes it, its MASTER still shows the old primary.
        subcommands = (b"GET-MASTER-ADDR-BY-NAME", b"MASTER")
        commands: list[Command] = [[b"SENTINEL", subcommand, self._url.name] for subcommand in subcommands]
        async with aclosing(self._answers_of(self._sentinels, commands)) as answers:
            async for sentinel, answer in answers:
                primary = _named_primary(answer)
                if primary is None:
                    troubles[sentinel] = error_of(answer)
                    continue
                named.append(primary)
                if 2 * len(named) > len(self._sentinels):
                    return named
        count = f"{len(named)} of {len(self._sentinels)} Sentinels name"
        raise unanswered("redis-sentinel", f'{count} a primary "{self._url.name}", a majority has to', troubles)

    def _all_nodes(self) -> Iterable[Node]:
        return self._sentinels if self._primary is None else (*self._sentinels, self._primary)


class _Named(NamedTuple):
    """The primary that a Sentinel names."""

    epoch: int
    address: Address
    is_down: bool


def _named_primary(answer: list[Any] | Exception) -> _Named | None:
    """None: it named none, or the answer has another form."""
    try:
        (host, port), flat = cast("list[Any]", answer)
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        is_same = (host, port) == (fields[b"ip"], fields[b"port"])
        is_down = is_same and b"o_down" in fields[b"flags"].split(b",")
        return _Named(int(fields[b"config-epoch"]), Address(host.decode(), int(port)), is_down)
    except (TypeError, ValueError, LookupError, AttributeError):
        return None
