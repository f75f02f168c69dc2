"""Names to addresses, in such a way that a slow name delays only its own callers, and never the exit.

Invariants:
- Each name is looked up in a thread of its own. Callers of the same name share one look-up while it runs; a later call
  looks up again: nothing is cached.
- Threads are bounded; names beyond the bound wait in line. Names of nsqds have a bound of their own (`NSQDS`), because
  anybody who reaches a nsqlookupd can announce them, and so have the hosts that come from events (`TARGETS`); other
  names come from the file, and share the loop's.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from nsqdigest.base import threads
from nsqdigest.base.host_names import is_ip

T = TypeVar("T")

MOST_NSQDS = 32
MOST_TARGETS = 32
MOST_OTHERS = 64

Found = list[tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int]]]
"""As `socket.getaddrinfo` returns it."""


class _Query(NamedTuple):
    host: str | None
    port: int | str | None
    family: int
    kind: int
    protocol: int
    flags: int


class Resolver:
    """Looks up names of one kind. Independent of event loops, so that any loop may use it."""

    def __init__(self, most: int) -> None:
        self._lock = threading.RLock()
        self._free = most
        self._under_way: dict[_Query, Future[Found]] = {}
        self._waiting: deque[_Query] = deque()

    async def look_up(
        self,
        host: str | None,
        port: int | str | None,
        *,
        family: int = 0,
        kind: int = 0,
        protocol: int = 0,
        flags: int = 0,
    ) -> Found:
        """Raises `socket.gaierror`, also for text that cannot be a name."""
        query = _Query(host, port, family, kind, protocol, flags)
        if not host or is_ip(host):
            return _ask(query)
        with self._lock:
            found = self._under_way.get(query)
            if found is None:
                found = self._under_way[query] = Future()
                found.set_running_or_notify_cancel()
                found.add_done_callback(partial(self._ended, query))
                if self._free:
                    self._begin(query)
                else:
                    self._waiting.append(query)
        return await asyncio.wrap_future(found)

    def _begin(self, query: _Query) -> None:
        self._free -= 1
        threads.settle(self._under_way[query], partial(_ask, query), f"resolver of {query.host}")

    def _ended(self, query: _Query, _: Future[Found]) -> None:
        with self._lock:
            del self._under_way[query]
            self._free += 1
            if self._waiting:
                self._begin(self._waiting.popleft())


def _ask(query: _Query) -> Found:
    try:
        return socket.getaddrinfo(*query)  # type: ignore[return-value]
    except UnicodeError as error:
        raise socket.gaierror(socket.EAI_NONAME, f"it cannot be a name: {error}") from error


NSQDS = Resolver(MOST_NSQDS)
TARGETS = Resolver(MOST_TARGETS)


class Loop(asyncio.SelectorEventLoop):
    """asyncio's, with our look-up of names: redis-py, aiohttp and other clients look names up through their loop."""

    def __init__(self) -> None:
        super().__init__()
        self._resolver = Resolver(MOST_OTHERS)

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        return await self._resolver.look_up(host, port, family=family, kind=type, protocol=proto, flags=flags)


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in such a loop."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)
