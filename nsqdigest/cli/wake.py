"""`nsqdigest wake`: a timeline is snoozed or muted no more."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.holding import WORDS
from nsqdigest.cli.operating import TEXT, json_option, note_unused, shown
from nsqdigest.cli.places import route_option, routes_of

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.store.holds import Hold


@click.command("wake", short_help="End a snooze or a mute.")
@click.argument("timeline", type=TEXT)
@config_option
@route_option
@json_option
def command(timeline: str, path: Path | None, route: str, as_json: bool) -> None:
    """End a snooze or a mute of a timeline before its time.

    What a snooze held back is due as its policy says; where that instant has come it goes out within some 15 seconds.

    Exit code 0: it is ended; 1: the timeline is neither snoozed nor muted; 69: Redis is out of reach.

    \b
    Example:
      nsqdigest wake user:42
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    hold = resolver.run(_wake(config, timeline, route))
    if as_json:
        click.echo(encoded({"route": hold.route, "timeline": hold.timeline, "ended": hold.kind.value}))
    else:
        click.echo(f"route {printable(hold.route)}, timeline {shown(hold.timeline)}: not {WORDS[hold.kind]} any more")


async def _wake(config: Config, timeline: str, route: str) -> Hold:
    from nsqdigest.store.access import operating
    from nsqdigest.store.holds import Holds

    async with operating(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        if route:
            (await routes_of(namespace, config)).require(route)
        holds = Holds(namespace)
        found = [hold for hold in await holds.read() if hold.timeline == timeline and route in ("", hold.route)]
        if len(found) > 1:
            names = ", ".join(printable(hold.route) for hold in found)
            raise click.UsageError(f"it is snoozed or muted in {len(found)} routes: {names}; choose one with --route")
        if not found or (await holds.end(found[0].route, timeline)).kind is None:
            raise NsqdigestError(f"the timeline {shown(timeline)} is neither snoozed nor muted; see `nsqdigest holds`")
        return found[0]
