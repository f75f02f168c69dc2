"""`nsqdigest snooze`: let nothing of a timeline out for a while."""

from __future__ import annotations

from pathlib import Path

import click

from nsqdigest.cli import config_option
from nsqdigest.cli.holding import begin
from nsqdigest.cli.operating import TEXT, Duration, json_option
from nsqdigest.cli.places import route_option


@click.command("snooze", short_help="Let nothing of a timeline out for a while.")
@click.argument("timeline", type=TEXT)
@config_option
@route_option
@click.option("--for", "for_ms", type=Duration(), required=True, metavar="DURATION", help="How long: 30m, 2h, 7d.")
@click.option("--by", type=TEXT, default="", metavar="NAME", help="Who says so. Default: SUDO_USER, else USER.")
@json_option
def command(*, timeline: str, path: Path | None, route: str, for_ms: int, by: str, as_json: bool) -> None:
    """Let nothing of a timeline out for a while: its digests wait until the end.

    What comes meanwhile is gathered, and goes out in one digest at the end. Neither an urgent event nor `flush` breaks
    a snooze; `nsqdigest wake` ends it. A digest that a daemon is delivering at this moment may still arrive. All
    daemons know it within 5 seconds, also after a restart.

    Exit code 0: done; 1: there is no such timeline or route; 2: no duration; 69: Redis is out of
    reach.

    \b
    Examples:
      nsqdigest snooze user:42 --for 2h
      nsqdigest snooze oncall:db --route alerts --for 30m --by ada
    """
    from nsqdigest.store.holds import HoldKind

    begin(timeline, path, route, kind=HoldKind.SNOOZE, for_ms=for_ms, by=by, as_json=as_json)
