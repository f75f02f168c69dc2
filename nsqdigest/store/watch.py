"""Watches the store while the daemon runs: has it the same layout and servers, and everything that it acknowledged?

It checks a few times per lease, and as soon as a server did not answer as it should. Invariants:

- Lost records and partitions are logged and counted, and the daemon goes on: stopping would bring nothing back, and NSQ
  delivers again whatever was not finished.
- A layout that is gone is written again. No digest id is used twice over this: ids are not drawn from Redis.
- Where Redis has become what a start would refuse (another layout, another appendfsync), nothing is written until it is
  fit again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base import log, tasks
from nsqdigest.base.errors import NsqdigestError, StoreError
from nsqdigest.store.figures import Figures, pause_s
from nsqdigest.store.holds import KNOWN_WITHIN_S
from nsqdigest.store.route import ORPHAN, orphan_remedy

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.store.servers.facts import ServerFacts
    from nsqdigest.store.store import Store

_log = log.get("store")

_DAMAGE_LOGGED_EVERY_S = 60.0
_RETRY_S = 0.5
_HOLDS_EVERY_S = 0.8 * KNOWN_WITHIN_S


class Loss(NamedTuple):
    """What Redis lost, as far as this daemon can tell."""

    at_s: float
    """Unix time: when it was found last."""
    records: int = 0
    """That it had acknowledged to this daemon, at most: some of them had been delivered."""
    partitions: int = 0
    """That were emptied."""


class StoreWatch:
    def __init__(
        self, store: Store, metrics: Metrics, every_s: float, on_store_back: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._metrics = metrics
        self.every_s = every_s
        self._on_store_back = on_store_back
        self._servers: dict[str, ServerFacts] = {}
        self._epochs: list[str] = []
        self._unfit = ""
        self.figures = Figures()
        """As of the last read."""
        self.loss: Loss | None = None
        """Of this daemon's time."""
        self._orphans_logged: set[str] = set()
        self.tasks = tasks.Tasks()

    def start(self, servers: list[ServerFacts]) -> None:
        self._servers = {server.name: server for server in servers}
        self._epochs = self._store.namespace.epochs
        self.tasks.start(self._run(), "store watch")
        self.tasks.start(self._count(), "store figures")
        self.tasks.start(self._read_holds(), "holds")

    @property
    def version(self) -> str:
        """Of the servers, as they were found last; "" before the first time."""
        return ", ".join(sorted({server.version for server in self._servers.values()}))

    async def stop(self) -> None:
        await self.tasks.stop()

    async def _run(self) -> None:
        is_failing = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.every_s):
                    await self._store.namespace.needs_check.wait()
            self._store.namespace.needs_check.clear()
            try:
                await self._look()
                if is_failing:
                    self._on_store_back()
                is_failing = False
            except StoreError as error:
                is_failing = True
                self._log_damage(error)
                # Intake and scheduler log everything else. The pause is for a server that refuses at once.
                self._store.namespace.needs_check.set()
                await asyncio.sleep(_RETRY_S)

    async def _count(self) -> None:
        """At its own pace, however often the figures are asked for. Where Redis fails, the last figures remain."""
        while True:
            places = len(self._store.routes) * self._store.namespace.partitions
            try:
                self.figures = await self._store.figures.read(self._store.routes, self._store.clock.now_ms())
                self._warn_of_orphans()
            except StoreError as error:
                self._log_damage(error)
            await asyncio.sleep(pause_s(places, self.every_s))

    async def _read_holds(self) -> None:
        """At a pace of their own, however many figures there are and whatever becomes of these: operators were told
        that all daemons know a hold, and its end, within KNOWN_WITHIN_S."""
        while True:
            await asyncio.sleep(min(_HOLDS_EVERY_S, self.every_s))
            try:
                await self._store.holds.read()
            except StoreError as error:
                self._log_damage(error)

    def _log_damage(self, error: StoreError) -> None:
        """Logs damaged keys, since neither intake nor scheduler may ever use them."""
        if error.is_damage:
            self._metrics.add("store_errors_total", reason=error.reason)
            _log.counted(
                "error",
                "store.damaged",
                by=(),
                every_s=_DAMAGE_LOGGED_EVERY_S,
                error=error,
                hint="something else wrote to keys of the namespace: until that is mended losses and gauges are blind",
            )

    def _warn_of_orphans(self) -> None:
        self._orphans_logged &= self.figures.orphans.keys()  # one that came back may be taken away again
        for route in sorted(set(self.figures.orphans) - self._orphans_logged):
            self._orphans_logged.add(route)
            _log.warning(
                "store.route.orphan",
                route=route,
                records=self.figures.orphans[route],
                hint=f"{ORPHAN}: {orphan_remedy(route)}",
            )

    async def _look(self) -> None:
        try:
            servers = await self._store.look()
        except StoreError:
            raise
        except NsqdigestError as error:
            if str(error) != self._unfit:
                _log.error("store.unfit", error=error)
            self._unfit = str(error)
            return
        if self._unfit:
            _log.info("store.fit_again")
        self._unfit = ""
        for route, records in self._store.acknowledged.take_lost().items():
            self._metrics.add("store_records_lost_total", records, route=route)
            _log.error(
                "store.data_lost",
                what="records",
                route=route,
                records=records,
                hint="Redis had acknowledged them (those delivered before are among them): see redis.durability, and "
                "what happened to Redis",
            )
            self._lost(records=records)
        for route, keys in self._store.digests.take_forgotten().items():
            self._metrics.add("store_keys_forgotten_total", keys, route=route)
        for partition, (was, now) in enumerate(zip(self._epochs, self._store.namespace.epochs, strict=True)):
            if was != now:
                self._metrics.add("store_partitions_lost_total")
                _log.error(
                    "store.data_lost",
                    what="partition",
                    partition=partition,
                    hint="it was emptied: what waited in it is gone",
                )
                self._lost(partitions=1)
        self._epochs = self._store.namespace.epochs
        self._compare(servers)

    def _lost(self, records: int = 0, partitions: int = 0) -> None:
        before = self.loss or Loss(0.0)
        self.loss = Loss(time.time(), before.records + records, before.partitions + partitions)

    def _compare(self, servers: list[ServerFacts]) -> None:
        for server in servers:
            before = self._servers.get(server.name)
            self._servers[server.name] = server
            if before is None or (before.run_id, before.replication_id) != (server.run_id, server.replication_id):
                what = "new" if before is None else "restarted" if before.run_id != server.run_id else "promoted"
                self._metrics.add("store_server_changes_total")
                _log.info("store.server_changed", server=server.name, what=what, run_id=server.run_id)
