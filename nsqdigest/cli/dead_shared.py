"""What the commands on dead digests share: the filters, and from them a selection."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nsqdigest.base.reasons import BuryReason
from nsqdigest.cli.operating import TEXT, Duration, shown
from nsqdigest.cli.places import routes_of

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.store.dead import DeadStore
    from nsqdigest.store.dead_selection import Selection
    from nsqdigest.store.namespace import Namespace

_REASONS = [reason.value for reason in BuryReason]
_OPTIONS = (
    click.option("--route", type=TEXT, default="", metavar="ROUTE", help="Of this route."),
    click.option("--sink", type=TEXT, default="", metavar="SINK", help="That were for this sink."),
    click.option("--reason", type=click.Choice(_REASONS), default=None, help="Buried for this reason."),
    click.option("--timeline", type=TEXT, default="", metavar="TIMELINE", help="Of this timeline."),
    click.option("--older-than", type=Duration(), default=None, metavar="DURATION", help='Dead for so long: "7d".'),
)


class Filters(NamedTuple):
    route: str
    sink: str
    reason: str | None
    timeline: str
    older_than: int | None
    """In ms."""

    @property
    def are_any(self) -> bool:
        return self != Filters("", "", None, "", None)


def filters(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that the function gets as one argument, `wanted`."""

    @functools.wraps(function)
    def with_filters(*args: Any, **options: Any) -> Any:
        wanted = Filters(*(options.pop(name) for name in Filters._fields))
        return function(*args, wanted=wanted, **options)

    decorated: Callable[..., Any] = with_filters
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


async def selection(namespace: Namespace, config: Config, wanted: Filters, now_ms: int) -> Selection:
    """Raises NsqdigestError where nobody knows the route."""
    from nsqdigest.store.dead_selection import Selection

    if wanted.route:
        (await routes_of(namespace, config)).require(wanted.route)
    if wanted.sink and wanted.sink not in config.sinks:
        _note_unknown_sink(config, wanted.sink)
    before_ms = 0 if wanted.older_than is None else now_ms - wanted.older_than
    return Selection(wanted.route, wanted.sink, wanted.reason or "", wanted.timeline, before_ms)


def _note_unknown_sink(config: Config, sink: str) -> None:
    """No error: a sink that was taken out of the file may have left dead digests behind."""
    from nsqdigest.base.words import nearest

    near = nearest(sink, config.sinks)
    hint = f"; did you mean {shown(near)}?" if near else ""
    click.echo(f"{config.source} has no sink {shown(sink)}{hint}", err=True)


def dead_store(namespace: Namespace, config: Config) -> DeadStore:
    from nsqdigest.store.dead import DeadStore

    return DeadStore(namespace, config.limits.dead_digests)
