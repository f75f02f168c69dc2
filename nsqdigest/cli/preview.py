"""`nsqdigest preview --sample`: what a sink would be sent, from the file alone."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.cli import config_option, load_config

if TYPE_CHECKING:
    from nsqdigest.config import Config, Route


@click.command("preview")
@config_option
@click.option("--sample", "is_sample", is_flag=True, help="Of a made-up digest: nothing is connected to.")
@click.option("--route", "route_name", metavar="NAME", help="Only the digests of this route.")
@click.option("--sink", "sink_name", metavar="NAME", help="Only the digests of the routes to this sink.")
@click.option("--json", "as_json", is_flag=True, help="Answer as a JSON list; each body is a text in it.")
def command(path: Path | None, is_sample: bool, route_name: str | None, sink_name: str | None, as_json: bool) -> None:
    """Show what a sink would be sent: the body of a sample digest of each route.

    On a terminal JSON is indented and what cannot be seen is escaped; elsewhere the bytes are those that would be
    posted, one body a line where a body has one line.

    \b
    Examples:
      nsqdigest preview --sample --sink chat
      nsqdigest preview --sample --route events | curl -H content-type:application/json -d @- $URL
    """
    if not is_sample:
        raise click.UsageError("write --sample: it shows what would be sent of a made-up digest")
    config = load_config(path)
    found = [_preview(config, route) for route in _chosen(config, route_name, sink_name)]
    if as_json:
        click.echo(json.dumps([{**each, "body": each["body"].decode()} for each in found]))
        return
    for each in found:
        body = each["body"]
        head = f"route {each['route']} to sink {each['sink']}: {each['content_type']}, {len(body):,} bytes"
        click.echo(f"{head}; a sample, nothing is sent", err=True)
        click.echo(shown(body) if sys.stdout.isatty() else body)


def _chosen(config: Config, route_name: str | None, sink_name: str | None) -> list[Route]:
    for what, name, known in (
        ("route", route_name, [route.name for route in config.routes]), ("sink", sink_name, list(config.sinks)),
    ):  # fmt: skip
        if name is not None and name not in known:
            raise click.UsageError(f'there is no {what} "{name}" in {config.source}; there are {", ".join(known)}')
    chosen = [route for route in config.routes if route_name in (None, route.name) and sink_name in (None, route.sink)]
    if not chosen:
        raise click.UsageError(f"no route of {config.source} has this sink")
    return chosen


def _preview(config: Config, route: Route) -> dict[str, Any]:
    from nsqdigest.delivery.bodies.base import BodyFailed
    from nsqdigest.delivery.bodies.sample import sample_of
    from nsqdigest.delivery.sinks.table import KINDS

    settings = config.sinks[route.sink]
    posted = KINDS[settings.type].sample(settings)
    body = sample_of(route)
    try:
        body = posted.body(body) if posted.body else body
    except BodyFailed as failure:
        line = "" if failure.line is None else f", line {failure.line}"
        raise NsqdigestError(f"the template of sink {route.sink}{line}: {failure}") from None
    return {"route": route.name, "sink": route.sink, "content_type": posted.content_type, "body": body}


def shown(body: bytes) -> str:
    """For a terminal."""
    text = body.decode()
    with suppress(ValueError):  # no JSON
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else f"\\u{ord(each):04x}" for each in text)
