"""`nsqdigest delete`: one timeline, or all of an orphan route, with all that they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.operating import TEXT, confirm, json_option, note_unused, shown, yes_option
from nsqdigest.cli.places import digest_option, look_at, routes_of

if TYPE_CHECKING:
    from nsqdigest.config import Config


class _Deleted(NamedTuple):
    route: str
    timeline: str
    """"": all of the route."""
    timelines: int
    records: int
    was_leased: bool = False
    dead: int = 0
    """Dead digests of the route, which stay."""


@click.command("delete", short_help="Delete a timeline, or an orphan route.")
@click.argument("timeline", required=False, type=TEXT)
@config_option
@click.option(
    "--route", type=TEXT, default="", metavar="ROUTE", help="Of this route. Without TIMELINE: all of an orphan route."
)
@digest_option
@yes_option
@json_option
def command(*, timeline: str | None, path: Path | None, route: str, digest_id: str, yes: bool, as_json: bool) -> None:
    """Delete a timeline with all that it holds: its records are never delivered.

    A digest that is being delivered at this moment may still arrive. The next event of a deleted timeline begins it
    anew. With --route alone, all timelines of a route that the file does not have any more are deleted; to keep them,
    see `nsqdigest adopt`.

    Exit code 0: it is deleted; 1: there is none, or you answered no; 2: there is no terminal to ask
    at; 69: Redis is out of reach.

    \b
    Examples:
      nsqdigest delete user:42
      nsqdigest delete --route old-name --yes
    """
    if timeline is None and (not route or digest_id):
        raise click.UsageError("name a timeline; or, with --route alone, an orphan route to delete all of it")
    config = load_config(path)
    from nsqdigest.base import resolver

    work = _delete_route(config, route, yes) if timeline is None else _delete(config, timeline, route, digest_id, yes)
    deleted = resolver.run(work)
    if as_json:
        click.echo(
            encoded(
                {
                    "route": deleted.route, "timeline": deleted.timeline or None, "timelines": deleted.timelines,
                    "records": deleted.records, "dead_digests_left": deleted.dead,
                }
            )
        )  # fmt: skip
        return
    what = (
        f", timeline {shown(deleted.timeline)}" if deleted.timeline else f": {counted(deleted.timelines, 'timeline')}"
    )
    click.echo(f"route {printable(deleted.route)}{what} deleted, with {counted(deleted.records, 'record')}")
    if deleted.was_leased:
        click.echo("a daemon was delivering it: that digest may still arrive")
    if deleted.dead:
        click.echo(
            f"{counted(deleted.dead, 'dead digest')} of this route stay: nsqdigest dead drop --all --route "
            f"{printable(deleted.route)}"
        )


async def _delete(config: Config, timeline: str, route: str, digest_id: str, yes: bool) -> _Deleted:
    from nsqdigest.store.access import operating
    from nsqdigest.store.operations import Operations

    async with operating(config.redis, config.source) as namespace:
        place, known, *_ = await look_at(namespace, config, timeline, route, digest_id)
        there = known.records + (known.digest.total if known.digest else 0) if known else 0
        what = f"the timeline {shown(place.shown)} of route {printable(place.route)}"
        confirm(f"Delete {what} with {counted(there, 'record')}?", yes=yes)
        was_leased = known is not None and known.state == "leased"
        records = await Operations(namespace).delete(place.route, place.name)
        if records is None:
            raise NsqdigestError(f"the timeline {shown(timeline)} was delivered and forgotten meanwhile")
        return _Deleted(place.route, place.shown, 1, records, was_leased)


async def _delete_route(config: Config, route: str, yes: bool) -> _Deleted:
    from nsqdigest.store import dead_selection
    from nsqdigest.store.access import operating
    from nsqdigest.store.dead import DeadStore
    from nsqdigest.store.operations import Operations

    async with operating(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        operations, routes = Operations(namespace), await routes_of(namespace, config)
        routes.refuse_unless_orphan(route, "delete")
        counts = await operations.counts(route)
        there = counts.open_records + counts.snapshot_records
        confirm(
            f"Delete all {counted(counts.timelines, 'timeline')} of the orphan route {printable(route)} with "
            f"{counted(there, 'record')}?",
            yes=yes,
        )
        timelines = records = 0
        async for step in operations.delete_all(route):
            timelines, records = timelines + step.timelines, records + step.records
        store = DeadStore(namespace, config.limits.dead_digests)
        dead = await dead_selection.newest(store, dead_selection.Selection(route=route), 1)
        return _Deleted(route, "", timelines, records, dead=dead.total)
