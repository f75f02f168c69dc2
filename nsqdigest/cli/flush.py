"""`nsqdigest flush`: a timeline is delivered now, whatever its policy says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.operating import TEXT, json_option, shown, span
from nsqdigest.cli.places import digest_option, look_at, route_option

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.store.inspection import Place


@click.command("flush", short_help="Deliver a timeline now.")
@click.argument("timeline", type=TEXT)
@config_option
@route_option
@digest_option
@json_option
def command(timeline: str, path: Path | None, route: str, digest_id: str, as_json: bool) -> None:
    """Deliver a timeline now, whatever its policy or a retry says.

    It becomes due at once, and a running daemon delivers it within scheduler.interval. A paused or refusing sink still
    holds it back. One that is snoozed is refused: `nsqdigest wake` ends that.

    Exit code 0: it is due, or being delivered already, or has nothing to deliver; 1: there is no such timeline; 69:
    Redis is out of reach.

    \b
    Example:
      nsqdigest flush user:42
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    place, state, why = resolver.run(_flush(config, timeline, route, digest_id))
    if as_json:
        answer = {"route": place.route, "timeline": place.shown, "state": state, "undelivered": why or None}
        click.echo(encoded(answer))
        return
    what = f"route {printable(place.route)}, timeline {shown(place.shown)}"
    if state == "leased":
        click.echo(f"{what}: a daemon is delivering it already")
    elif state == "idle":
        click.echo(f"{what}: nothing to deliver, it got nothing new since its last digest")
    elif why:
        click.echo(f"{what}: due now, but {why}")
    else:
        within = span(config.scheduler.interval_ms)
        click.echo(f"{what}: due now; a daemon delivers it within {within}, unless its sink is paused or in trouble")


async def _flush(config: Config, timeline: str, route: str, digest_id: str) -> tuple[Place, str, str]:
    """The timeline, its state from now on, and why nobody delivers it."""
    from nsqdigest.cli.holding import in_words, snooze_of
    from nsqdigest.store.access import operating
    from nsqdigest.store.operations import Flushed, Operations

    async with operating(config.redis, config.source) as namespace:
        place, known, _, routes = await look_at(namespace, config, timeline, route, digest_id)
        if known is not None and known.state == "idle":
            return place, known.state, ""  # flushed, it would be forgotten, and its next event would not be held back
        if hold := await snooze_of(namespace, place.route, place.name):
            raise NsqdigestError(
                f"the timeline {shown(timeline)} is {in_words(*hold)}: nsqdigest wake {shown(timeline)} ends that"
            )
        flushed = await Operations(namespace).flush(place.route, place.name)
        if flushed is Flushed.UNKNOWN:
            raise NsqdigestError(f"the timeline {shown(timeline)} has just been delivered and forgotten")
        return place, flushed, routes.why_undelivered(place.route)
