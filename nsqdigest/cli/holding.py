"""What `snooze`, `mute`, `wake` and `holds` share: whose timeline it is, who says so, and a hold in words."""

from __future__ import annotations

import getpass
import os
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.moments import instant, until
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.cli import load_config
from nsqdigest.cli.operating import instant_as_json, note_unused, shown
from nsqdigest.cli.places import routes_of

if TYPE_CHECKING:
    from pathlib import Path

    from nsqdigest.config import Config
    from nsqdigest.store.holds import Hold, HoldKind
    from nsqdigest.store.namespace import Namespace

LONGEST_MS = 366 * 86_400_000
_LONGEST_AUTHOR = 60
WORDS = {"mute": "muted", "snooze": "snoozed"}


def author(by: str) -> str:
    """Who says so: who is named, else whose terminal it is."""
    if by:
        return by[:_LONGEST_AUTHOR]
    name = os.environ.get("SUDO_USER") or os.environ.get("USER")
    try:
        name = name or getpass.getuser()
        return name.encode("utf-8", "backslashreplace").decode()[:_LONGEST_AUTHOR]  # no UTF-8 in Python: surrogates
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


async def route_of(namespace: Namespace, config: Config, timeline: str, route: str) -> str:
    """The route that is meant. A timeline need not be there yet: its next event begins it."""
    from nsqdigest.store.inspection import Inspector

    note_unused(namespace, config.redis.namespace)
    routes = await routes_of(namespace, config)
    if route:
        routes.require(route)
        return route
    if len(routes.all) == 1:
        return routes.all[0]
    names = sorted({place.route for place in await Inspector(namespace).find(timeline, routes.all, "")})
    if len(names) == 1:
        return names[0]
    if names:
        raise click.UsageError(
            f"{len(names)} routes have a timeline {shown(timeline)}: {', '.join(map(printable, names))}; choose one "
            "with --route"
        )
    raise NsqdigestError(
        f"there is no timeline {shown(timeline)} in any route; for one that is yet to come, name its route with --route"
    )


def begin(timeline: str, path: Path | None, route: str, *, kind: HoldKind, for_ms: int, by: str, as_json: bool) -> None:
    if not 0 < for_ms <= LONGEST_MS:
        raise click.UsageError("--for is a duration of up to 366 days, such as 2h or 7d")
    config = load_config(path)
    from nsqdigest.base import resolver
    from nsqdigest.store.holds import KNOWN_WITHIN_S, Hold

    hold, had = resolver.run(_begin(config, Hold(route, timeline, kind, for_ms, 0, author(by))))
    if as_json:
        click.echo(encoded(hold_as_json(hold)))
        return
    instead = f" (instead of {WORDS[had]})" if had and had != kind else ""
    click.echo(
        f"route {printable(hold.route)}, timeline {shown(hold.timeline)}: {WORDS[kind]} until "
        f"{instant(hold.until_ms)}{instead}; all daemons know it within {KNOWN_WITHIN_S}s"
    )


async def _begin(config: Config, wanted: Hold) -> tuple[Hold, HoldKind | None]:
    """`wanted`: until counts from 0, and "" may stand for its route."""
    from nsqdigest.store.access import now_ms, operating
    from nsqdigest.store.holds import Holds

    async with operating(config.redis, config.source) as namespace:
        if namespace.layout is None:
            raise NsqdigestError(
                f"no daemon has used the namespace {shown(config.redis.namespace)} of this Redis yet: start one first"
            )
        route, at_ms = await route_of(namespace, config, wanted.timeline, wanted.route), await now_ms(namespace)
        hold = wanted._replace(route=route, since_ms=at_ms, until_ms=at_ms + wanted.until_ms)
        return hold, (await Holds(namespace).begin(hold)).kind


async def hold_of(namespace: Namespace, route: str, timeline: str) -> Hold | None:
    from nsqdigest.store.holds import Holds

    holds = await Holds(namespace).read()
    return next((hold for hold in holds if (hold.route, hold.timeline) == (route, timeline)), None)


async def snooze_of(namespace: Namespace, route: str, timeline: str) -> tuple[Hold, int] | None:
    """With the present instant."""
    hold = await hold_of(namespace, route, timeline)
    return (hold, namespace.clock.now_ms()) if hold is not None and hold.kind == "snooze" else None


def hold_as_json(hold: Hold) -> dict[str, str | None]:
    return {
        "route": hold.route,
        "timeline": hold.timeline,
        "kind": hold.kind.value,
        "until": instant_as_json(hold.until_ms),
        "since": instant_as_json(hold.since_ms),
        "by": hold.by,
    }


def in_words(hold: Hold, now_ms: int) -> str:
    """`snoozed until 2026-11-19 12:00:00Z (in 2h00m), by ada`."""
    ends = f"{instant(hold.until_ms)} ({until(hold.until_ms, now_ms)})"
    return f"{WORDS[hold.kind]} until {ends}, by {printable(hold.by)}"
