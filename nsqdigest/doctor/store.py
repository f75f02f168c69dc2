"""Examines Redis: servers, layout of the namespace, rights of the user, orphans, daemons, clock. Writes nothing.

It reads each fact by itself rather than to open the namespace, since every one of them is a finding. The check of the
rights runs none of the commands (lua/reading/rights.lua).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nsqdigest import __version__
from nsqdigest.base.errors import StoreError, Unreachable
from nsqdigest.base.findings import Finding
from nsqdigest.config import redis_urls
from nsqdigest.daemon.status import config_hash
from nsqdigest.doctor import judgements
from nsqdigest.doctor.reach import try_to_reach
from nsqdigest.store.daemons import Daemons
from nsqdigest.store.namespace import Namespace
from nsqdigest.store.operations import Operations
from nsqdigest.store.servers.rights import Rights

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.config.model import Address

_CONNECTIONS = 8
_USUAL_PORT = 6379
_ANSWER_WITHIN_MS = 3000
"""The time-out of one answer, where redis.timeout is longer."""


class StoreExaminer:
    def __init__(self, config: Config) -> None:
        self._source = config.source
        self._config_hash = config_hash(config)
        self._routes = {route.name for route in config.routes}
        settings = config.redis
        self._settings = replace(settings, timeout_ms=min(settings.timeout_ms, _ANSWER_WITHIN_MS))
        self._url = redis_urls.read(settings.url)
        self._namespace = Namespace(self._settings, _CONNECTIONS, read_only=True)
        self.pids_here: list[int] = []
        """The daemons that run on this machine, once `look` has found them."""

    async def look(self) -> list[Finding]:
        named = asyncio.create_task(self._named_servers())
        try:
            return [*await self._servers(), *await named]
        finally:
            named.cancel()
            await self._namespace.close(0)

    async def _servers(self) -> list[Finding]:
        where = self._settings.shown_url
        try:
            if self._url.kind == "single" and (host := (parts := urlsplit(self._settings.url)).hostname):
                await try_to_reach(host, parts.port or _USUAL_PORT)
            servers = await self._namespace.facts()
        except (StoreError, Unreachable) as error:
            found = [judgements.of_failed_store(where, error, self._source)]
            if isinstance(error, StoreError) and error.reason == "redis-auth":
                with contextlib.suppress(StoreError):  # the same once more, if the login failed
                    found.append(await self._rights())
            return found
        judged = [judgements.of_server(facts, self._url.kind, self._settings) for facts in servers]
        others = (
            ("clock", self._clock()), ("rights", self._rights()), ("namespace", self._layout()),
        )  # fmt: skip
        single, several = await asyncio.gather(
            asyncio.gather(*(self._or_failed(what, look) for what, look in others)), self._several()
        )
        return [*(finding for each in judged for finding in each), *single, *several]

    async def _or_failed(self, what: str, look: Awaitable[Finding]) -> Finding:
        try:
            return await look
        except StoreError as error:
            return judgements.of_failed_store(what, error, self._source)

    # -- one thing each

    async def _layout(self) -> Finding:
        layout = await self._namespace.stored_layout()
        return judgements.of_layout(self._settings.namespace, layout, self._namespace.partitions)

    async def _clock(self) -> Finding:
        """The clock that is furthest off: each partition uses the clock of its server."""
        apart_s = await asyncio.gather(*(self._clock_of(partition) for partition in range(self._namespace.partitions)))
        return judgements.of_clock(max(apart_s, key=abs))

    async def _clock_of(self, partition: int) -> float:
        before_s = time.time()
        ((seconds, microseconds),) = await self._namespace.send(partition, [[b"TIME"]])
        middle_s = (before_s + time.time()) / 2
        return int(seconds) + int(microseconds) / 1e6 - middle_s

    async def _rights(self) -> Finding:
        needed = Rights.needed_by(self._settings)
        return judgements.of_rights(needed, await self._namespace.refused(needed.commands))

    async def _several(self) -> list[Finding]:
        """Those of which there may be none."""
        try:
            orphans = judgements.of_orphans(await Operations(self._namespace).orphans(self._routes))
            daemons = await Daemons(self._namespace).read(self._namespace.clock.now_ms())
            here = socket.gethostname()
            self.pids_here = [each.told.pid for each in daemons if each.told.host == here and each.told.pid > 0]
            return orphans + judgements.of_daemons(daemons, __version__, self._config_hash)
        except StoreError as error:
            return [judgements.of_failed_store("orphans", error, self._source)]

    # -- those that the URL names

    async def _named_servers(self) -> list[Finding]:
        """Sentinels, or servers of the Cluster: the absence of one has no effect until others are away, too."""
        found = await asyncio.gather(*(self._named(address) for address in self._url.servers))
        return [finding for finding in found if finding is not None]

    async def _named(self, address: Address) -> Finding | None:
        try:
            await try_to_reach(address.host, address.port)
        except Unreachable as error:
            return judgements.of_named_server(str(address), self._url.kind, str(error))
        return None
