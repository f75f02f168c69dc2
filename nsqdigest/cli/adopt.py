"""`nsqdigest adopt`: the timelines of an orphan route go over to another route."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import EXIT_NO
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.operating import TEXT, confirm, json_option, note_unused, require_known, yes_option
from nsqdigest.cli.places import routes_of

if TYPE_CHECKING:
    from nsqdigest.config import Config


@click.command("adopt", short_help="Move an orphan route's timelines.")
@click.argument("orphan", type=TEXT)
@click.option("--to", type=TEXT, required=True, metavar="ROUTE", help="The route of the file that takes them.")
@config_option
@yes_option
@json_option
def command(orphan: str, to: str, path: Path | None, yes: bool, as_json: bool) -> None:
    """Move the timelines of an orphan route to a route of the file.

    A route that was renamed, or taken out of the file, leaves its timelines behind: an orphan route, which nobody
    delivers. Its records join the timelines of the same names in the other route, whose policy and sink are theirs
    from then on; a record of the same key is superseded by the newer one, and what is over the policy's capacity is
    dropped and counted. A digest that was under way ends, and its records go out under a new id.

    Exit code 0: all of it moved; 1: some stayed, or you answered no; 2: there is no terminal to ask
    at; 69: Redis is out of reach.

    \b
    Example:
      nsqdigest adopt old-name --to new-name
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    timelines, records, left = resolver.run(_adopt(config, orphan, to, yes))
    if as_json:
        click.echo(encoded({"from": orphan, "to": to, "timelines": timelines, "records": records, "left": left}))
    else:
        click.echo(f"{counted(timelines, 'timeline')} with {counted(records, 'record')} moved to route {printable(to)}")
        if left:
            click.echo(
                f"{counted(left, 'timeline')} stay, each with more than 8,000 records: write the route "
                f"{printable(orphan)} into the file again until they are delivered, or `nsqdigest delete` them",
                err=True,
            )
    if left:
        raise SystemExit(EXIT_NO)


async def _adopt(config: Config, orphan: str, to: str, yes: bool) -> tuple[int, int, int]:
    """How many timelines and records moved, and how many timelines stayed."""
    from nsqdigest.store.access import operating
    from nsqdigest.store.operations import Operations

    by_name = {route.name: route for route in config.routes}
    require_known("route", to, by_name, config.source)
    target = by_name[to]
    async with operating(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        operations, routes = Operations(namespace), await routes_of(namespace, config)
        routes.refuse_unless_orphan(orphan, "adopt")
        before = await operations.counts(orphan)
        confirm(
            f"Move all {counted(before.timelines, 'timeline')} of the orphan route {printable(orphan)} with "
            f"{counted(before.open_records + before.snapshot_records, 'record')} to route {printable(to)}?",
            yes=yes,
        )
        timelines = records = 0
        capacity = config.policies[target.policy].capacity
        async for step in operations.adopt_all(orphan, to, capacity):
            timelines, records = timelines + step.timelines, records + step.records
        return timelines, records, (await operations.counts(orphan)).timelines
