"""`nsqdigest mute`: keep nothing of a timeline for a while."""

from __future__ import annotations

from pathlib import Path

import click

from nsqdigest.cli import config_option
from nsqdigest.cli.holding import begin
from nsqdigest.cli.operating import TEXT, Duration, confirm, json_option, shown, yes_option
from nsqdigest.cli.places import route_option


@click.command("mute", short_help="Keep nothing of a timeline for a while.")
@click.argument("timeline", type=TEXT)
@config_option
@route_option
@click.option("--for", "for_ms", type=Duration(), required=True, metavar="DURATION", help="How long: 30m, 2h, 7d.")
@click.option("--by", type=TEXT, default="", metavar="NAME", help="Who says so. Default: SUDO_USER, else USER.")
@yes_option
@json_option
def command(*, timeline: str, path: Path | None, route: str, for_ms: int, by: str, yes: bool, as_json: bool) -> None:
    """Keep nothing of a timeline for a while: its events are finished and counted, and never delivered.

    What stands in the timeline already goes out as it would. `nsqdigest wake` ends it. All daemons know it within 5
    seconds, also after a restart. `audit` and the metric records_not_kept_total count what is not kept as "muted".

    Exit code 0: done; 1: there is no such timeline or route, or you answered no; 2: no duration, or no terminal to ask
    at; 69: Redis is out of reach.

    \b
    Examples:
      nsqdigest mute user:42 --for 7d
      nsqdigest mute host:test-3 --route alerts --for 1d --by ada
    """
    from nsqdigest.store.holds import HoldKind

    confirm(f"Keep no event of the timeline {shown(timeline)} until then?", yes=yes)
    begin(timeline, path, route, kind=HoldKind.MUTE, for_ms=for_ms, by=by, as_json=as_json)
