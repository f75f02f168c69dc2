"""`nsqdigest timelines`: which timelines there are, those that are due first, at the front."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nsqdigest.base.moments import until
from nsqdigest.base.screen import table
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.holding import WORDS
from nsqdigest.cli.operating import (
    LONGEST_NAME,
    TEXT,
    instant_as_json,
    json_option,
    limit_option,
    note_more,
    note_unused,
    require_known,
)
from nsqdigest.cli.places import route_option, routes_of
from nsqdigest.cli.terminal import look_of_stdout

if TYPE_CHECKING:
    from nsqdigest.cli.places import Routes
    from nsqdigest.config import Config
    from nsqdigest.store.holds import Hold
    from nsqdigest.store.listing import Listed, Listing, Wanted

_STATES = ("idle", "waiting", "due", "retrying", "leased")


@click.command("timelines", short_help="List timelines, those due first.")
@config_option
@route_option
@click.option("--sink", type=TEXT, default="", metavar="SINK", help="Of routes to this sink.")
@click.option("--name", type=TEXT, default="", metavar="TEXT", help="With this text in their name.")
@click.option("--state", "states", type=click.Choice(_STATES), multiple=True, help="In this state; may be repeated.")
@click.option("--revived", is_flag=True, help="Only digests that `dead replay` sent again.")
@limit_option(50, "At most so many.")
@json_option
def command(
    *,
    path: Path | None,
    route: str,
    sink: str,
    name: str,
    states: tuple[str, ...],
    revived: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List timelines: those being delivered, then those that are due first.

    \b
    waiting   gathers records until it is due
    due       its time has come, and no daemon has taken it: its sink is
              paused or in trouble, or no daemon runs
    retrying  a digest of it was not delivered, and is tried again
    leased    a daemon is delivering it
    idle      was delivered, and got nothing new: it is forgotten when its
              next digest could go out

    \b
    Examples:
      nsqdigest timelines
      nsqdigest timelines --sink hook --state retrying --limit 200
      nsqdigest timelines --name user:42 --json
    """
    config = load_config(path)
    from nsqdigest.base import resolver
    from nsqdigest.store.listing import State, Wanted

    wanted = Wanted(name, frozenset(map(State, states)), revived)
    found = resolver.run(_list(config, route, sink, wanted, limit))
    listing = found.listing
    if as_json:
        click.echo(encoded([_as_json(each, found) for each in listing.timelines]))
    else:
        click.echo("\n".join(_lines(found)))
    note_more(len(listing.timelines), listing.total, "a higher --limit shows more, --route, --name and --state fewer")


class _Found(NamedTuple):
    listing: Listing
    routes: Routes
    now_ms: int
    holds: Mapping[tuple[str, str], Hold]
    """By route and timeline."""

    def held_as(self, listed: Listed) -> str:
        """ "" where it is neither snoozed nor muted."""
        hold = self.holds.get((listed.route, listed.name))
        return "" if hold is None else WORDS[hold.kind]

    def due_ms(self, listed: Listed) -> int:
        """A snoozed timeline may come up before its end, and is put off then."""
        hold = self.holds.get((listed.route, listed.name))
        is_put_off = hold is not None and hold.kind == "snooze" and listed.state != "leased"
        return max(listed.at_ms, hold.until_ms) if hold is not None and is_put_off else listed.at_ms


async def _list(config: Config, route: str, sink: str, wanted: Wanted, limit: int) -> _Found:
    from nsqdigest.store.access import now_ms
    from nsqdigest.store.holds import Holds
    from nsqdigest.store.listing import Lister
    from nsqdigest.store.namespace import reading

    if sink:
        require_known("sink", sink, config.sinks, config.source)
    async with reading(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        routes = await routes_of(namespace, config)
        names = [each for each in routes.chosen(route) if sink in ("", routes.sink_of(each))]
        at_ms = await now_ms(namespace)
        increments_ms = {each: routes.increment_ms(each) for each in names}
        lister = Lister(namespace, increments_ms, at_ms, {each: routes.quiet_of(each) for each in names})
        holds = {(hold.route, hold.timeline): hold for hold in await Holds(namespace).read()}
        return _Found(await lister.first(limit, wanted), routes, at_ms, holds)


def _lines(found: _Found) -> list[str]:
    listing, routes, now_ms, _ = found
    if not listing.timelines:
        return ["no timeline"]
    rows = [
        (
            printable(each.shown, LONGEST_NAME) + (" (revived)" if each.is_revived else ""),
            printable(each.route, LONGEST_NAME) + ("" if each.route in routes.configured else " (orphan)"),
            each.state.value,
            ("lease ends " if each.state == "leased" else "")
            + until(found.due_ms(each), now_ms)
            + (f" ({held})" if (held := found.held_as(each)) else ""),
            f"{each.records:,}",
            "" if each.digest is None else f"{_attempts(each)}: {printable(each.digest.id)}",
        )
        for each in listing.timelines
    ]
    states = [f"{sum(each.state == state for each in listing.timelines):,} {state}" for state in reversed(_STATES)]
    of_states = ", ".join(text for text in states if not text.startswith("0 "))
    headings = ("timeline", "route", "state", "due", "records", "digest under way")
    lines = table(headings, rows, right={4}, flexible={0, 1, 5}, width=look_of_stdout().width)
    return [*lines, f"{counted(len(listing.timelines), 'timeline')}: {of_states}"]


def _attempts(listed: Listed) -> str:
    assert listed.digest is not None
    return f"{counted(listed.digest.total, 'record')}, {counted(listed.digest.attempts, 'attempt')}"


def _as_json(listed: Listed, found: _Found) -> dict[str, Any]:
    routes, now_ms = found.routes, found.now_ms
    is_leased = listed.state == "leased"
    return {
        "route": listed.route,
        "timeline": listed.shown,
        "state": listed.state,
        "revived": listed.is_revived,
        "orphan": listed.route not in routes.configured,
        "due": None if is_leased else instant_as_json(found.due_ms(listed)),
        "due_in_s": None if is_leased else (found.due_ms(listed) - now_ms) / 1000,
        "lease_until": instant_as_json(listed.at_ms) if is_leased else None,
        "held": found.held_as(listed) or None,
        "records": listed.records,
        "digest": listed.digest_id or None,
        "digest_records": listed.digest.total if listed.digest else 0,
        "attempts": listed.digest.attempts if listed.digest else 0,
    }
