"""`nsqdigest preview`: what a sink would be sent."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import EXIT_NO, NsqdigestError
from nsqdigest.base.shown import printable
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.operating import TEXT, require_known

if TYPE_CHECKING:
    from nsqdigest.config import Config, Route
    from nsqdigest.delivery.preview import Preview


@click.command("preview", short_help="Show what a sink would be sent.")
@config_option
@click.argument("timeline", required=False, type=TEXT)
@click.option("--sample", "is_sample", is_flag=True, help="Of a made-up digest, from the file alone.")
@click.option("--route", "route_name", type=TEXT, metavar="ROUTE", help="Only the digests of this route.")
@click.option("--sink", "sink_name", type=TEXT, metavar="SINK", help="Only the digests of the routes to this sink.")
@click.option("--json", "as_json", is_flag=True, help="Answer as a JSON list; each body is a text in it.")
def command(
    *,
    path: Path | None,
    timeline: str | None,
    is_sample: bool,
    route_name: str | None,
    sink_name: str | None,
    as_json: bool,
) -> None:
    """Show what a sink would be sent of TIMELINE now, or of a sample. Nothing is sent, and nothing changes in Redis.

    A digest that was not opened yet has an id of zeros. On a terminal JSON is indented, of a mail the headers and the
    text are shown, and what cannot be seen is escaped; elsewhere the bytes are those that would be sent, and a line
    break.

    Exit code 0: it is shown; 1: there is nothing to deliver, or a template fails; 69: Redis is out of reach; 78: the
    file has mistakes.

    \b
    Examples:
      nsqdigest preview user:42
      nsqdigest preview --sample --sink chat
      nsqdigest preview --sample --route events | curl -H content-type:application/json -d @- $URL
      nsqdigest preview --sample --sink mail > digest.eml
    """
    if is_sample is (timeline is not None):
        raise click.UsageError("name a timeline, or write --sample")
    config = load_config(path)
    routes = _chosen(config, route_name, sink_name)
    found = _samples(config, routes) if timeline is None else _of_timeline(config, routes, timeline)
    failed = [each for each in found if each.failure is not None]
    for each in failed:
        line = getattr(each.failure, "line", None)
        at = "" if line is None else f", line {line}"
        click.echo(f"nsqdigest: the template of sink {each.sink}{at}: {each.failure}", err=True)
    _show([each for each in found if each.failure is None], as_json)
    if timeline is not None and not found:
        click.echo(f"nsqdigest: there is nothing to deliver of timeline {json.dumps(timeline)}", err=True)
    sys.exit(EXIT_NO if failed or not found else 0)


def _chosen(config: Config, route_name: str | None, sink_name: str | None) -> list[Route]:
    for what, name, known in (
        ("route", route_name, [route.name for route in config.routes]), ("sink", sink_name, list(config.sinks)),
    ):  # fmt: skip
        if name is not None:
            require_known(what, name, known, config.source)
    chosen = [route for route in config.routes if route_name in (None, route.name) and sink_name in (None, route.sink)]
    if not chosen:
        raise NsqdigestError(f"no route of {config.source} has this sink")
    return chosen


def _samples(config: Config, routes: list[Route]) -> list[Preview]:
    from nsqdigest.delivery.preview import of_sample
    from nsqdigest.delivery.sinks.table import KINDS

    return [of_sample(config, KINDS, route) for route in routes]


def _of_timeline(config: Config, routes: list[Route], timeline: str) -> list[Preview]:
    from nsqdigest.base import resolver
    from nsqdigest.delivery.preview import of_timeline
    from nsqdigest.delivery.sinks.table import KINDS
    from nsqdigest.store.namespace import reading

    async def look() -> list[Preview]:
        async with reading(config.redis, config.source) as namespace:
            found = [await of_timeline(config, KINDS, route, namespace, timeline) for route in routes]
            return [each for each in found if each is not None]

    return resolver.run(look())


def _show(found: list[Preview], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([
            {"route": each.route, "sink": each.sink, "target": each.target or None, "content_type": each.content_type,
             "body": each.body.decode()}
            for each in found
        ]))  # fmt: skip
        return
    for each in found:
        to = f", to {printable(each.target)}" if each.target else ""
        head = f"route {each.route} to sink {each.sink}{to}: {each.content_type}, {len(each.body):,} bytes"
        click.echo(f"{head}; {each.about}", err=True)
        click.echo(for_terminal(each.body, each.content_type) if sys.stdout.isatty() else each.body)


def for_terminal(body: bytes, content_type: str = "") -> str:
    """JSON indented, a mail as its reader sees it, and nothing raw that a terminal would act on."""
    from nsqdigest.delivery.bodies.base import MAIL

    if content_type == MAIL:
        from nsqdigest.delivery.mail.reading import for_people

        text = for_people(body)
    else:
        text = body.decode()
        with suppress(ValueError):  # no JSON
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return "\n".join(map(printable, text.split("\n")))
