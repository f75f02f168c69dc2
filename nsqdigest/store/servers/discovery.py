"""Which server has a partition: the one that is named, the primary that Sentinels know, or those of a Cluster.

- What is known is used until it is doubted: a connection broke, an answer did not come, a server said that it is not
  the one. A doubt costs the next call one look, which all calls of that moment share; so a failover costs one failed
  call for each that was under way, and no call is ever sent to two servers because of a doubt.
- Nothing of it is cancelled (a cancelled call of the driver may go on as if it were not): who waits may go.
- Sentinels are believed by the highest epoch among the answers of a majority of those named; fewer answers are none: a
  split may have left them with the old primary. A server of a Cluster is believed when it says that the Cluster is
  well; when none does, whoever answers.
- A server that the last look no longer names is forgotten, and its connections are closed when its last call has ended.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from redis.exceptions import AskError

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.config import Address, redis_urls
from nsqdigest.store.servers.node import Command, Node
from nsqdigest.store.servers.translation import translate

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
        node.doubt()

    async def close(self) -> None:
        await self._node.close()


class _Looking(Servers):
    """What Sentinels and Cluster share: a look that all who need it wait for, and an end of what it began."""

    def __init__(self) -> None:
        self._is_doubted = True
        self._look_under_way: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[Any]] = set()
        """Questions that nobody waits for any more, and servers that are being forgotten."""

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
        except BaseException as error:
            self._is_doubted = True
            if isinstance(error, Exception) and not isinstance(error, StoreError):
                raise StoreError("redis-unknown", f"looking for servers: {error!r}", Applied.NO) from error
            raise
        finally:
            self._look_under_way = None

    async def _answers(
        self, nodes: Iterable[Node], commands: Sequence[Command]
    ) -> AsyncGenerator[tuple[Node, list[Any] | Exception], None]:
        """As they come. Those that are late, or that nobody waits for any more, come to an end of their own."""
        waiting = {asyncio.create_task(_ask(node, commands), name=f"look at {node}"): node for node in nodes}
        for task in waiting:
            self._ends_by_itself(task)
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
        if self._ending:
            await asyncio.wait(self._ending, timeout=_LOOK_S)

    def _ends_by_itself(self, task: asyncio.Task[Any]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    def _forget(self, node: Node) -> None:
        self._ends_by_itself(asyncio.create_task(node.retire(), name=f"forget {node}"))

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
    return "it answered something else" if error is None else str(translate(error))


class _Sentinels(_Looking):
    def __init__(self, url: redis_urls.RedisUrl, connections: int, timeout_s: float) -> None:
        super().__init__()
        self._url, self._connections, self._timeout_s = url, connections, timeout_s
        look_s = min(timeout_s, _LOOK_S)
        self._sentinels = [Node(f"sentinel {at}", url.of_sentinel(at), 2, look_s) for at in url.servers]
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
        node.doubt()

    async def _look(self) -> None:
        heard: list[_Named] = []
        troubles: list[str] = []
        # Both, in this order: while the one who leads a failover ends it, MASTER still tells of the old primary.
        words = (b"GET-MASTER-ADDR-BY-NAME", b"MASTER")
        commands: list[Command] = [[b"SENTINEL", word, self._url.name] for word in words]
        async with aclosing(self._answers(self._sentinels, commands)) as answers:
            async for sentinel, answer in answers:
                named = _named_primary(answer)
                if named is None:
                    troubles.append(f"{sentinel}: {_what(answer)}")
                    continue
                heard.append(named)
                if self._is_majority(heard):
                    break
        if not self._is_majority(heard):
            count = f"{len(heard)} of {len(self._sentinels)} Sentinels name"
            raise StoreError(
                "redis-sentinel",
                f'{count} a primary "{self._url.name}", a majority has to: {"; ".join(sorted(troubles))}',
                Applied.NO,
            )
        address = max(heard).address
        if any(named.is_down for named in heard if named.address == address):
            # Not tried: should it come back now, it may be empty and not know yet that it is to be a replica.
            raise StoreError("redis-sentinel", f"the Sentinels hold {address} for down and have no other", Applied.NO)
        primary = self._primary
        if primary is None or primary.address != address:
            url = self._url.of_server(address)
            self._primary = Node(str(address), url, self._connections, self._timeout_s, address=address)
            if primary is not None:
                self._forget(primary)

    def _is_majority(self, heard: list[_Named]) -> bool:
        return 2 * len(heard) > len(self._sentinels)

    def _all_nodes(self) -> Iterable[Node]:
        return self._sentinels if self._primary is None else (*self._sentinels, self._primary)


class _Named(NamedTuple):
    """The primary, as a Sentinel knows it."""

    epoch: int
    address: Address
    is_down: bool


def _named_primary(answer: list[Any] | Exception) -> _Named | None:
    """None: it named none, or answered something else."""
    try:
        (host, port), told = cast("list[Any]", answer)
        fields = dict(zip(told[::2], told[1::2], strict=True))
        is_told_of = (host, port) == (fields[b"ip"], fields[b"port"])
        is_down = is_told_of and b"o_down" in fields[b"flags"].split(b",")
        return _Named(int(fields[b"config-epoch"]), Address(host.decode(), int(port)), is_down)
    except (TypeError, ValueError, LookupError, AttributeError):
        return None


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
        node.doubt()

    async def redirected(self, asked: Node, slot: int, to: AskError, *, for_good: bool) -> Node:
        """`for_good`: MOVED. The map is read anew before the next call; this one knows its way already."""
        node = self._node(Address(to.host or _host_of(asked), to.port))
        if for_good:
            self._slots[slot] = node
            self._is_doubted = True
        return node

    def _node(self, address: Address) -> Node:
        if address not in self._nodes:
            url = self._url.of_server(address)
            self._nodes[address] = Node(str(address), url, self._connections, self._timeout_s, address=address)
        return self._nodes[address]

    async def _look(self) -> None:
        asked = [self._node(address) for address in dict.fromkeys((*self._url.servers, *self._nodes))]
        found: dict[int, Address] = {}
        is_well = False
        troubles: list[str] = []
        async with aclosing(self._answers(asked, [[b"CLUSTER", b"INFO"], [b"CLUSTER", b"SLOTS"]])) as answers:
            async for node, answer in answers:
                slots = _slots(node, answer)
                if slots is None:
                    if not isinstance(answer, Exception) and "cluster support disabled" in str(answer[1]):
                        raise StoreError("redis-mode", f"{node} {_NO_CLUSTER}", Applied.NO)
                    troubles.append(f"{node}: {_what(answer)}")
                    continue
                is_well = _is_well(answer)
                if is_well or not found:
                    found = slots
                if is_well:
                    break
        if not found:
            raise StoreError(
                "redis-cluster", f"no server of the Cluster answers: {'; '.join(sorted(troubles))}", Applied.NO
            )
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
    """Who has which slot, as this server sees it. None: it answered something else."""
    try:
        slots: dict[int, Address] = {}
        for first, last, (name, port, *_), *_ in cast("list[Any]", answer)[1]:
            host = name.decode() if name else ""
            address = Address(_host_of(asked) if host in ("", "?") else host, int(port))
            slots.update(dict.fromkeys(range(first, last + 1), address))
        return slots
    except (TypeError, ValueError, LookupError, AttributeError):
        return None
