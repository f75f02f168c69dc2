"""What single servers, Sentinels and Clusters have in common: `Servers` finds the server of a hash slot.

`DiscoveredServers` is for the kinds that have to ask for it. Invariants:

- What is known is used until it is marked stale: a connection broke, an answer did not come, a server said that it is
  not the primary. The next call then waits for one refresh, which all calls of that moment share. So a failover costs
  one failed call for each that was under way, and no call is sent to two servers.
- A refresh is never cancelled (redis-py may ignore it); cancelling a waiter leaves the refresh running.
- A server that the last refresh no longer names is forgotten; its connections close when its last call has ended.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import AskError

from nsqdigest.base import tasks
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.resp import Command
from nsqdigest.store.servers.translation import translate

_CLUSTER_URL = "write redis+cluster:// instead of redis:// in redis.url"
DISCOVERY_S = 1.0
"""How long a Sentinel, or a server of the Cluster, has for its answer."""


class Servers(ABC):
    only: Node | None = None
    """The server that has every slot for good, where there is one: nobody has to be asked for it."""

    @abstractmethod
    async def server_for(self, slot: int) -> Node:
        """The server that has this hash slot. Raises `StoreError` where it is not known."""

    @abstractmethod
    async def primaries(self) -> list[Node]:
        """All primaries as they are now: refreshes first."""

    @abstractmethod
    async def mark_stale(self, node: Node) -> None:
        """`node` did not answer as the server it should be: refreshes before the next call."""

    async def redirected(self, asked: Node, slot: int, to: AskError, *, for_good: bool) -> Node:
        """The server to which `asked` sends a call on. `for_good`: MOVED, so later calls follow."""
        raise StoreError("redis-mode", f"{asked} is a server of a Cluster", Applied.NO, _CLUSTER_URL)

    @abstractmethod
    def allow(self, connections: int) -> None:
        """To each server, at least so many."""

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a call is under way to any server, whoever waits for it."""

    @abstractmethod
    async def close(self) -> None: ...


class DiscoveredServers(Servers):
    """What Sentinels and Cluster share: one refresh for all who need it, and the tasks that it leaves behind."""

    def __init__(self, connections: int) -> None:
        self._connections = connections
        self._is_stale = True
        self._refresh_under_way: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        """Questions that nobody waits for any more, and servers that are being forgotten."""

    @abstractmethod
    async def _discover(self) -> None:
        """Asks the servers. Raises `StoreError` where it could not: what was known stays, and stays stale."""

    async def _refreshed(self) -> None:
        """Returns at once where nothing is stale; otherwise waits for the refresh."""
        if self._is_stale and self._refresh_under_way is None:
            self._refresh_under_way = asyncio.create_task(self._refresh(), name="who is primary")
        if self._refresh_under_way is not None:
            await tasks.outlasting(self._refresh_under_way)

    async def _refresh(self) -> None:
        self._is_stale = False  # first: what is marked stale meanwhile may be what this finds
        try:
            await self._discover()
        except BaseException as error:
            self._is_stale = True
            if isinstance(error, Exception) and not isinstance(error, StoreError):
                raise StoreError("redis-unknown", f"looking for servers: {error!r}", Applied.NO) from error
            raise
        finally:
            self._refresh_under_way = None

    async def _answers_of(
        self, nodes: Iterable[Node], commands: Sequence[Command]
    ) -> AsyncGenerator[tuple[Node, list[Any] | Exception], None]:
        """Yields answers in the order in which they come. Questions that are still open afterwards run to their end."""
        waiting = {asyncio.create_task(_ask(node, commands), name=f"look at {node}"): node for node in nodes}
        for task in waiting:
            self._let_run(task)
        until_s = time.monotonic() + DISCOVERY_S
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            done, _ = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield waiting.pop(task), task.result()
        for node in waiting.values():
            yield node, TimeoutError(f"no answer within {DISCOVERY_S:g} s")

    def allow(self, connections: int) -> None:
        self._connections = max(self._connections, connections)
        for node in self._all_nodes():
            node.allow(connections)

    @property
    def is_busy(self) -> bool:
        return any(node.is_busy for node in self._all_nodes())

    async def close(self) -> None:
        if self._refresh_under_way is not None:
            self._refresh_under_way.cancel()
            await asyncio.gather(self._refresh_under_way, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._all_nodes()))
        if self._background:
            await asyncio.wait(self._background, timeout=DISCOVERY_S)

    def _let_run(self, task: asyncio.Task[Any]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _forget(self, node: Node) -> None:
        self._let_run(asyncio.create_task(node.retire(), name=f"forget {node}"))

    @abstractmethod
    def _all_nodes(self) -> Iterable[Node]: ...


async def _ask(node: Node, commands: Sequence[Command]) -> list[Any] | Exception:
    try:
        return await node.exchange(commands)
    except Exception as error:
        return error


def error_of(answer: list[Any] | Exception) -> StoreError:
    """Why an answer cannot be used."""
    error = answer if isinstance(answer, Exception) else next((a for a in answer if isinstance(a, Exception)), None)
    return StoreError("redis-protocol", "it answered something else") if error is None else translate(error)


def unanswered(reason: str, what: str, troubles: Mapping[Node, StoreError]) -> StoreError:
    """The error for a discovery that failed. It has a remedy if all troubles have the same."""
    remedies = {trouble.remedy for trouble in troubles.values()}
    remedy = remedies.pop() if len(remedies) == 1 else ""
    texts = sorted(f"{node}: {trouble.what if remedy else trouble}" for node, trouble in troubles.items())
    return StoreError(reason, f"{what}: {'; '.join(texts)}", Applied.NO, remedy)
