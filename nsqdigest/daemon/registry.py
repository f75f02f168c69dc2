"""Makes this daemon known to the others of its namespace, and knows those: for status and the page, and for a changed
policy.

Invariants:
- It checks in seldom, at instants that are drawn, and never on the way of an event or a digest.
- Where Redis fails, what was known remains until it is too old; nothing else comes of it.
- A daemon that ends in order says goodbye; one that was killed is forgotten after `KNOWN_FOR_MS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

from nsqdigest import __version__
from nsqdigest.base import log, tasks
from nsqdigest.base.errors import NsqdigestError
from nsqdigest.store.daemons import KNOWN_FOR_MS, Daemons, Known, Told

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace

_EVERY_S = (15.0, 20.0)
GOODBYE_WITHIN_S = 0.5

_log = log.get("daemon")


class Registry:
    def __init__(
        self,
        namespace: Callable[[], Namespace],
        config_hash: Callable[[], str],
        policies: Callable[[], Mapping[str, str]],
        uniform: Callable[[float, float], float],
    ) -> None:
        """`namespace`, `config_hash`, `policies`: of the configuration in force."""
        self._namespace = namespace
        self._config_hash = config_hash
        self._policies = policies
        self._uniform = uniform
        self.id = uuid4().hex
        self._started_ms = int(time.time() * 1000)
        self._known: list[Known] = []
        self._known_at_s = 0.0
        self._changed = asyncio.Event()
        self.is_known = False
        """Whether Redis may have an entry of this one."""
        self.tasks = tasks.Tasks()

    def start(self) -> None:
        self.tasks.start(self._run(), "registry of daemons")

    async def stop(self, *, says_goodbye: bool) -> None:
        await self.tasks.stop()
        if self.is_known and says_goodbye:
            self.is_known = False
            with contextlib.suppress(NsqdigestError, TimeoutError):
                async with asyncio.timeout(GOODBYE_WITHIN_S):
                    await Daemons(self._namespace()).say_goodbye(self.id)

    async def _run(self) -> None:
        while True:
            try:
                self.is_known = True
                self._known = await Daemons(self._namespace()).check_in(self.id, self.own)
                self._known_at_s = time.monotonic()
            except NsqdigestError as error:
                _log.debug("daemon.registry.failed", error=error)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._uniform(*_EVERY_S)):
                    await self._changed.wait()

    def tell(self) -> None:
        """Another configuration is in force: checks in at once."""
        self._changed.set()

    @property
    def own(self) -> Told:
        return Told(
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            config_hash=self._config_hash(),
            started_ms=self._started_ms,
            policies=dict(self._policies()),
        )

    def all(self) -> list[tuple[Known, bool]]:
        """Those that ran lately, each with whether it is this one, which is always there."""
        is_fresh = time.monotonic() - self._known_at_s < KNOWN_FOR_MS / 1000
        others = [(each, False) for each in self._known if is_fresh and each.id != self.id]
        seen_ms = next((each.seen_ms for each in self._known if each.id == self.id), self._started_ms)
        return [(Known(self.id, seen_ms, self.own), True), *others]
