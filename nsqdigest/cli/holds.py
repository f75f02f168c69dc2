"""`nsqdigest holds`: which timelines are snoozed or muted, until when, and by whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.moments import instant, until
from nsqdigest.base.screen import table
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.holding import WORDS, hold_as_json
from nsqdigest.cli.operating import LONGEST_NAME, json_option, note_unused
from nsqdigest.cli.places import route_option, routes_of
from nsqdigest.cli.terminal import look_of_stdout

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.store.holds import Hold


@click.command("holds", short_help="List what is snoozed or muted.")
@config_option
@route_option
@json_option
def command(path: Path | None, route: str, as_json: bool) -> None:
    """List the timelines that are snoozed or muted, those that end first at the front.

    \b
    Examples:
      nsqdigest holds
      nsqdigest holds --route alerts --json
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    holds, now_ms = resolver.run(_list(config, route))
    if as_json:
        click.echo(encoded([hold_as_json(hold) for hold in holds]))
        return
    click.echo("\n".join(_lines(holds, now_ms)))


async def _list(config: Config, route: str) -> tuple[list[Hold], int]:
    from nsqdigest.store.access import now_ms
    from nsqdigest.store.holds import Holds
    from nsqdigest.store.namespace import reading

    async with reading(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        names = (await routes_of(namespace, config)).chosen(route)
        at_ms = await now_ms(namespace)
        found = [hold for hold in await Holds(namespace).read() if hold.route in names]
        return sorted(found, key=lambda hold: (hold.until_ms, hold.route, hold.timeline)), at_ms


def _lines(holds: list[Hold], now_ms: int) -> list[str]:
    if not holds:
        return ["nothing is snoozed or muted"]
    rows = [
        (
            printable(hold.timeline, LONGEST_NAME),
            printable(hold.route, LONGEST_NAME),
            WORDS[hold.kind],
            f"{instant(hold.until_ms)}, {until(hold.until_ms, now_ms)}",
            instant(hold.since_ms),
            printable(hold.by, LONGEST_NAME),
        )
        for hold in holds
    ]
    headings = ("timeline", "route", "is", "until", "since", "by")
    lines = table(headings, rows, flexible={0, 1, 5}, width=look_of_stdout().width)
    return [*lines, counted(len(holds), "timeline")]
