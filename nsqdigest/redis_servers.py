"""Which server has a partition: the one that is named, the primary that Sentinels know, or those of a Cluster.

- What is known is used until it is doubted: a connection broke, an answer did not come, a server said that it is not
  the one. A doubt costs the next call one look, which all calls of that moment share; so a failover costs one failed
  call for each that was under way, and no call is ever sent to two servers because of a doubt.
- Nothing of it is cancelled (a cancelled call of the driver may go on as if it were not): who waits may go.
- Sentinels are believed by the highest epoch among the answers of a majority of those named. A server of a Cluster is
  believed when it says that the Cluster is well; when none does, whoever answers.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from redis.exceptions import AskError

from nsqdigest import scripts
from nsqdigest.config import Address, redis_urls
from nsqdigest.errors import Applied, StoreError
from nsqdigest.redis_node import Command, Node

if TYPE_CHECKING:
    from nsqdigest.config import Redis as RedisSettings

_NO_CLUSTER_URL = "write redis+cluster:// instead of redis:// in redis.url"
_NO_CLUSTER = "is not a server of a Cluster: write redis:// instead of redis+cluster:// in redis.url"
_LOOK_S = 1.0
"""What a Sentinel, or a server of the Cluster, gets to say who is who."""


class Servers(ABC):
    @abstractmethod
    async def of(self, slot: int) -> Node:
        """The server to ask about this hash slot. Raises `StoreError` where nobody knows."""

    @abstractmethod
    async def primaries(self) -> list[Node]:
        """As they are now: who asks this wants to know, so what is known is doubted."""

    @abstractmethod
    async def doubt(self, node: Node) -> None:
        """It did not answer as the one it should be."""

    async def redirected(self, asked: Node, slot: int, to: AskError, *, for_good: bool) -> Node:
        raise StoreError("redis-mode", f"{asked} is a server of a Cluster: {_NO_CLUSTER_URL}", Applied.NO)

    @abstractmethod
    async def close(self) -> None: ...


def servers_of(settings: RedisSettings, connections: int) -> Servers:
    url = redis_urls.read(settings.url)
    timeout_s = settings.timeout_ms / 1000
    if url.kind == "sentinel":
        return _Sentinels(url, connections, timeout_s)
    if url.kind == "cluster":
        return _Cluster(url, connections, timeout_s)
    return _Single(Node(settings.shown_url, url.text, connections, timeout_s))


class _Single(Servers):
    def __init__(self, node: Node) -> None:
        self._node = node

    async def of(self, slot: int) -> Node:
        return self._node

    async def primaries(self) -> list[Node]:
        return [self._node]

    async def doubt(self, node: Node) -> None:
        # Its name, or the address behind it, may lead to another server by now.
        await node.let_go()

    async def close(self) -> None:
        await self._node.close()


class _Looking(Servers):
    """What Sentinels and Cluster share: a look that all who need it wait for, and an end of what it began."""

    def __init__(self) -> None:
        self._is_doubted = True
        self._look_under_way: asyncio.Task[None] | None = None
        self._asked: set[asyncio.Task[list[Any] | Exception]] = set()

    @abstractmethod
    async def _look(self) -> None:
        """Finds out anew. Raises `StoreError` where it could not: what was known stays, and stays doubted."""

    async def _sure(self) -> None:
        if self._is_doubted and self._look_under_way is None:
            self._look_under_way = asyncio.create_task(self._look_once(), name="who is primary")
        if self._look_under_way is not None:
            await asyncio.shield(self._look_under_way)

    async def _look_once(self) -> None:
        self._is_doubted = False  # before it: a doubt that comes meanwhile may be about what it finds
        try:
            await self._look()
        except BaseException:
            self._is_doubted = True
            raise
        finally:
            self._look_under_way = None

    async def _answers(
        self, nodes: Iterable[Node], commands: Sequence[Command]
    ) -> AsyncGenerator[tuple[Node, list[Any] | Exception], None]:
        """As they come. Those that are late, or that nobody waits for any more, come to an end of their own."""
        waiting = {asyncio.create_task(_ask(node, commands), name=f"look at {node}"): node for node in nodes}
        for task in waiting:
            self._asked.add(task)
            task.add_done_callback(self._asked.discard)
        until_s = time.monotonic() + _LOOK_S
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            done, _ = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield waiting.pop(task), task.result()
        for node in waiting.values():
            yield node, TimeoutError(f"no answer within {_LOOK_S:g} s")

    async def close(self) -> None:
        if self._look_under_way is not None:
            self._look_under_way.cancel()
            await asyncio.gather(self._look_under_way, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._all_nodes()))
        if self._asked:
            await asyncio.wait(self._asked, timeout=_LOOK_S)

    @abstractmethod
    def _all_nodes(self) -> Iterable[Node]: ...


async def _ask(node: Node, commands: Sequence[Command]) -> list[Any] | Exception:
    try:
        return await node.exchange(commands)
    except Exception as error:
        return error


def _what(answer: list[Any] | Exception) -> str:
    """Why an answer is none."""
    error = answer if isinstance(answer, Exception) else next((a for a in answer if isinstance(a, Exception)), None)
    return "it answered something else" if error is None else str(scripts.translate(error))


class _Sentinels(_Looking):
    def __init__(self, url: redis_urls.RedisUrl, connections: int, timeout_s: float) -> None:
        super().__init__()
        self._url, self._connections, self._timeout_s = url, connections, timeout_s
        look_s = min(timeout_s, _LOOK_S)
        self._sentinels = [Node(f"sentinel {at}", url.of_sentinel(at), 2, look_s) for at in url.servers]
        self._primaries: dict[Address, Node] = {}
        self._primary: Node | None = None

    async def of(self, slot: int) -> Node:
        await self._sure()
        assert self._primary is not None
        return self._primary

    async def primaries(self) -> list[Node]:
        self._is_doubted = True
        return [await self.of(0)]

    async def doubt(self, node: Node) -> None:
        if node is self._primary:
            self._is_doubted = True
        await node.let_go()

    async def _look(self) -> None:
        heard: list[tuple[int, Address]] = []
        down: set[Address] = set()
        troubles: list[str] = []
        # Both, in this order: while the one who leads a failover ends it, MASTER still tells of the old primary.
        words = (b"GET-MASTER-ADDR-BY-NAME", b"MASTER")
        commands: list[Command] = [[b"SENTINEL", word, self._url.name] for word in words]
        async with aclosing(self._answers(self._sentinels, commands)) as answers:
            async for sentinel, answer in answers:
                if isinstance(answer, Exception) or not all(isinstance(told, list) for told in answer):
                    troubles.append(f"{sentinel}: {_what(answer)}")
                    continue
                (host, port), told = answer
                fields = dict(zip(told[::2], told[1::2], strict=False))
                address = Address(host.decode(), int(port))
                heard.append((int(fields[b"config-epoch"]), address))
                if (host, port) == (fields[b"ip"], fields[b"port"]) and b"o_down" in fields[b"flags"].split(b","):
                    down.add(address)
                if len(heard) > len(self._sentinels) // 2:
                    break
        if not heard:
            name = self._url.name
            raise StoreError(
                "redis-sentinel", f'no Sentinel knows a primary "{name}": {"; ".join(sorted(troubles))}', Applied.NO
            )
        _, address = max(heard)
        if address in down:
            # Not tried: should it come back now, it may be empty and not know yet that it is to be a replica.
            raise StoreError("redis-sentinel", f"the Sentinels hold {address} for down and have no other", Applied.NO)
        if address not in self._primaries:
            self._primaries[address] = Node(
                str(address), self._url.of_server(address), self._connections, self._timeout_s
            )
        self._primary = self._primaries[address]

    def _all_nodes(self) -> Iterable[Node]:
        return (*self._sentinels, *self._primaries.values())


class _Cluster(_Looking):
    def __init__(self, url: redis_urls.RedisUrl, connections: int, timeout_s: float) -> None:
        super().__init__()
        self._url, self._connections, self._timeout_s = url, connections, timeout_s
        self._nodes: dict[Address, Node] = {}
        self._slots: dict[int, Node] = {}

    async def of(self, slot: int) -> Node:
        await self._sure()
        node = self._slots.get(slot)
        if node is None:
            self._is_doubted = True
            raise StoreError("redis-clusterdown", f"no server of the Cluster has slot {slot}", Applied.NO)
        return node

    async def primaries(self) -> list[Node]:
        self._is_doubted = True
        await self._sure()
        return list(dict.fromkeys(self._slots.values()))

    async def doubt(self, node: Node) -> None:
        self._is_doubted = True
        await node.let_go()

    async def redirected(self, asked: Node, slot: int, to: AskError, *, for_good: bool) -> Node:
        """`for_good`: MOVED. The map is read anew before the next call; this one knows its way already."""
        node = self._node(Address(to.host or self._address_of(asked).host, to.port))
        if for_good:
            self._slots[slot] = node
            self._is_doubted = True
        return node

    def _node(self, address: Address) -> Node:
        if address not in self._nodes:
            self._nodes[address] = Node(str(address), self._url.of_server(address), self._connections, self._timeout_s)
        return self._nodes[address]

    def _address_of(self, node: Node) -> Address:
        return next(address for address, each in self._nodes.items() if each is node)

    async def _look(self) -> None:
        asked = [self._node(address) for address in dict.fromkeys((*self._url.servers, *self._nodes))]
        found: dict[int, Node] = {}
        troubles: list[str] = []
        async with aclosing(self._answers(asked, [[b"CLUSTER", b"INFO"], [b"CLUSTER", b"SLOTS"]])) as answers:
            async for node, answer in answers:
                if isinstance(answer, Exception) or not isinstance(answer[1], list):
                    if not isinstance(answer, Exception) and "cluster support disabled" in str(answer[1]):
                        raise StoreError("redis-mode", f"{node} {_NO_CLUSTER}", Applied.NO)
                    troubles.append(f"{node}: {_what(answer)}")
                    continue
                is_well = isinstance(answer[0], bytes) and b"cluster_state:ok" in answer[0]
                if is_well or not found:
                    found = self._read_slots(node, answer[1])
                if is_well:
                    break
        if not found:
            raise StoreError(
                "redis-cluster", f"no server of the Cluster answers: {'; '.join(sorted(troubles))}", Applied.NO
            )
        self._slots = found

    def _read_slots(self, asked: Node, ranges: list[Any]) -> dict[int, Node]:
        own_host = self._address_of(asked).host
        slots: dict[int, Node] = {}
        for first, last, primary, *_ in ranges:
            host = primary[0].decode() if primary[0] else ""
            node = self._node(Address(own_host if host in ("", "?") else host, int(primary[1])))
            slots.update(dict.fromkeys(range(first, last + 1), node))
        return slots

    def _all_nodes(self) -> Iterable[Node]:
        return self._nodes.values()
