"""From the name that an operator types to one timeline of one route; and what is to be known of its route."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.moments import instant, span
from nsqdigest.base.shown import printable
from nsqdigest.cli.operating import TEXT, note_unused, require_known, shown

if TYPE_CHECKING:
    from nsqdigest.base.quiet_hours import QuietHours
    from nsqdigest.config import Config
    from nsqdigest.store.inspection import Inspector, Known, Place
    from nsqdigest.store.namespace import Namespace

route_option = click.option("--route", type=TEXT, default="", metavar="ROUTE", help="Of this route.")
digest_option = click.option(
    "--digest",
    "digest_id",
    type=TEXT,
    default="",
    metavar="ID",
    help="Its digest that `dead replay` sent again, by its id.",
)


class Routes:
    """The routes of the file, and those that daemons had once."""

    def __init__(self, config: Config, seen_ms: dict[str, int], now_ms: int) -> None:
        """`seen_ms`: when a daemon that has the route last checked in."""
        self._config = config
        self._now_ms = now_ms
        self.seen_ms = seen_ms
        self.configured = [route.name for route in config.routes]
        self.orphans = sorted(set(seen_ms) - set(self.configured))
        self.all = [*self.configured, *self.orphans]

    def chosen(self, name: str) -> list[str]:
        """This route, or all where none is named."""
        if not name:
            return self.all
        self.require(name)
        return [name]

    def require(self, name: str) -> None:
        require_known("route", name, self.all, f"{self._config.source} or Redis")

    def increment_ms(self, name: str) -> int:
        """0 for an orphan: no policy is known, and nobody postpones its timelines."""
        return next(
            (
                self._config.policies[route.policy].increment_delay_ms
                for route in self._config.routes
                if route.name == name
            ),
            0,
        )

    def quiet_of(self, name: str) -> QuietHours | None:
        """None for an orphan, too."""
        from nsqdigest.store.schedule import quiet_of

        policies = (self._config.policies[route.policy] for route in self._config.routes if route.name == name)
        return next(map(quiet_of, policies), None)

    def sink_of(self, name: str) -> str:
        """ "" for an orphan."""
        return next((route.sink for route in self._config.routes if route.name == name), "")

    def is_served(self, name: str) -> bool:
        """Whether a daemon that has it checked in lately. It does so four times per lease."""
        return self._now_ms - self.seen_ms.get(name, 0) <= self._config.scheduler.lease_ms

    def why_undelivered(self, name: str) -> str:
        """Why nobody delivers what is due of this route; "" where a daemon is there for it."""
        if name not in self.configured:
            return (
                f"{self._config.source} has no route {shown(name)}, so nobody delivers it: write the route again, or "
                "see `nsqdigest adopt --help`"
            )
        if not self.is_served(name):
            since = f"since {instant(self.seen_ms[name])}" if self.seen_ms.get(name) else "yet"
            return f"no daemon with this route has checked in {since}: it goes out when one runs"
        return ""

    def refuse_unless_orphan(self, name: str, verb: str) -> None:
        self.require(name)
        if name in self.configured:
            raise NsqdigestError(
                f"route {shown(name)} is in {self._config.source}: its daemons would go on filling it. To {verb} all "
                "of it, take it out of the file and reload the daemons; a single timeline is named by its name"
            )
        if self.is_served(name):
            age_ms, lease_ms = self._now_ms - self.seen_ms[name], self._config.scheduler.lease_ms
            raise NsqdigestError(
                f"a daemon that has the route {shown(name)} checked in {span(max(0, age_ms))} ago, and would go on "
                f"filling it: stop it, or give it this file, and try again in {span(lease_ms - age_ms + 1000)}"
            )


async def routes_of(namespace: Namespace, config: Config) -> Routes:
    from nsqdigest.store.access import now_ms
    from nsqdigest.store.operations import Operations

    return Routes(config, await Operations(namespace).routes(), await now_ms(namespace))


class Looked(NamedTuple):
    """A timeline that was found by its name."""

    place: Place
    known: Known | None
    """None: it has gone since."""
    inspector: Inspector
    routes: Routes


async def look_at(namespace: Namespace, config: Config, timeline: str, route: str, digest_id: str) -> Looked:
    """Raises like `chosen_place`."""
    from nsqdigest.store.inspection import Inspector

    note_unused(namespace, config.redis.namespace)
    inspector, routes = Inspector(namespace), await routes_of(namespace, config)
    place = await chosen_place(inspector, routes, timeline, route, digest_id)
    return Looked(
        place,
        await inspector.look(place, routes.increment_ms(place.route), routes.quiet_of(place.route)),
        inspector,
        routes,
    )


async def chosen_place(inspector: Inspector, routes: Routes, timeline: str, route: str, digest_id: str) -> Place:
    """Raises NsqdigestError where there is none, and a usage error where there are several."""
    found = await inspector.find(timeline, routes.chosen(route), digest_id)
    if len(found) > 1:
        raise click.UsageError(
            f"{len(found)} routes have a timeline {shown(timeline)}: "
            f"{', '.join(printable(place.route) for place in found)}; choose one with --route"
        )
    if not found:
        what = (
            f"revived digest {shown(digest_id)} of the timeline {shown(timeline)}"
            if digest_id
            else (f"timeline {shown(timeline)}")
        )
        where = f"in route {shown(route)}" if route else "in any route"
        raise NsqdigestError(
            f"there is no {what} {where}; `nsqdigest timelines --name TEXT` lists those with a text in their name. One "
            "that was delivered and got nothing new is forgotten"
        )
    return found[0]
