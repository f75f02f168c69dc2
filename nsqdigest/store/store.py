"""The store: timelines and their digests in one namespace of Redis. It owns the connections; its parts do the work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from nsqdigest.base.errors import StoreError
from nsqdigest.store.acknowledged import AcknowledgedCounts
from nsqdigest.store.dead import DeadStore
from nsqdigest.store.digests import Digests
from nsqdigest.store.figures import StoreFigures
from nsqdigest.store.holds import Holds
from nsqdigest.store.namespace import Namespace
from nsqdigest.store.operations import Operations
from nsqdigest.store.timelines import Timelines
from nsqdigest.store.upkeep import Upkeep

if TYPE_CHECKING:
    from nsqdigest.config import Redis as RedisSettings
    from nsqdigest.store.route import StoreRoute
    from nsqdigest.store.servers.facts import ServerFacts, StoreFacts


class Store:
    def __init__(
        self,
        settings: RedisSettings,
        routes: Iterable[StoreRoute],
        timeline_limit: int,
        connections: int = 16,
        *,
        dead_digests: int = 10_000,
    ) -> None:
        self._by_name = by_name = {route.name: route for route in routes}
        """Also those of earlier configurations: what is under way of them ends as it began."""
        self.routes = list(by_name)
        """Those of the present configuration."""
        self.namespace = Namespace(settings, connections)
        self.clock = self.namespace.clock
        self.acknowledged = AcknowledgedCounts()
        self.holds = Holds(self.namespace)
        self.timelines = Timelines(self.namespace, by_name, timeline_limit, self.acknowledged, self.holds)
        self.digests = Digests(self.namespace, by_name)
        self.dead = DeadStore(self.namespace, dead_digests)
        self.operations = Operations(self.namespace)
        self.upkeep = Upkeep(self.namespace, self.operations, by_name, self.holds)
        self.figures = StoreFigures(self.namespace, self.operations, by_name)

    async def start(self) -> StoreFacts:
        """Opens the namespace to serve. Raises where going on would do harm."""
        facts = await self.namespace.open_to_serve(self.routes)
        try:
            await self.holds.read()
        except StoreError as error:
            if not error.is_damage:
                raise
            # Damaged keys of holds stop no daemon: it reads them again, and logs what fails.
        return facts

    def change(self, routes: Iterable[StoreRoute], timeline_limit: int, *, dead_digests: int, connections: int) -> None:
        """From now on it serves these routes with these limits."""
        after = {route.name: route for route in routes}
        self.upkeep.forget_census([name for name, route in after.items() if self._by_name.get(name) != route])
        self._by_name.update(after)
        self.routes = list(after)
        self.timelines.set_limit(timeline_limit)
        self.dead.set_limit(dead_digests)
        self.digests.routes_changed()
        self.figures.routes_changed()
        self.namespace.allow(connections)
        self.namespace.needs_check.set()  # which also writes that this daemon has these routes

    async def look(self) -> list[ServerFacts]:
        """Checks while it runs what `start` checked, and that all is there that Redis acknowledged: `acknowledged` and
        `namespace.epochs` hold the result."""
        servers = await self.namespace.check_again(self.routes)
        await self.timelines.compare_acknowledged()
        return servers

    async def close(self, within_s: float) -> None:
        """Waits for calls under way, no longer than `within_s`, then closes the connections."""
        await self.namespace.close(within_s)
