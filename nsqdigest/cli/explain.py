"""`nsqdigest explain`: why a timeline goes out when it goes out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.moments import instant
from nsqdigest.base.screen import wrapped
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.cli import config_option, load_config, terminal
from nsqdigest.cli.holding import hold_of
from nsqdigest.cli.operating import TEXT, instant_as_json, json_option, shown
from nsqdigest.cli.places import digest_option, look_at, route_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsqdigest.config import Config
    from nsqdigest.store.explanation import Explanation
    from nsqdigest.store.inspection import Known

_ASK_THE_DAEMON = "`nsqdigest status` shows whether its route or sink is paused, and how its sink is"


class _Explained(NamedTuple):
    known: Known
    explanation: Explanation


@click.command("explain", short_help="Show why a timeline goes out when it goes out.")
@click.argument("timeline", type=TEXT)
@config_option
@route_option
@digest_option
@json_option
def command(*, timeline: str, path: Path | None, route: str, digest_id: str, as_json: bool) -> None:
    """Show why a timeline goes out when it goes out, with the arithmetic.

    From what Redis holds and what the file says: from when it is counted, the delays of its policy, the records that
    postpone it, its calendar, quiet hours, a snooze, or the attempts of a digest that was not delivered. Changes
    nothing, and needs no daemon.

    Exit code 0: it is there; 1: there is none; 69: Redis is out of reach.

    \b
    Examples:
      nsqdigest explain user:42
      nsqdigest explain user:42 --route alerts --json
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    found = resolver.run(_explain(config, timeline, route, digest_id))
    if as_json:
        click.echo(encoded(_as_json(found)))
        return
    look = terminal.look_of_stdout()
    terminal.write(_lines(found, look.width), look)


async def _explain(config: Config, timeline: str, route: str, digest_id: str) -> _Explained:
    from nsqdigest.store.explanation import Terms, explain
    from nsqdigest.store.namespace import reading

    async with reading(config.redis, config.source) as namespace:
        place, known, _, routes = await look_at(namespace, config, timeline, route, digest_id)
        if known is None:
            raise NsqdigestError(f"the timeline {shown(timeline)} went away while it was read; try again")
        of = next((each for each in config.routes if each.name == place.route), None)
        terms = None if of is None else Terms(config.policies[of.policy], config.sinks[of.sink])
        hold = await hold_of(namespace, place.route, place.name)
        why = routes.why_undelivered(place.route) if of is not None else ""
        return _Explained(known, explain(known, terms, hold, [why] if why else []))


def _lines(found: _Explained, width: int) -> Iterator[str]:
    known, explanation = found
    place = known.place
    yield from wrapped(f"{printable(place.shown)}, of route {printable(place.route)}", "", "  ", width)
    yield from wrapped(explanation.sentence, "", "  ", width)
    if explanation.reasons:
        yield ""
    for reason in explanation.reasons:
        at = "" if reason.at_ms is None else instant(reason.at_ms)
        begin = f"  {at:<20}  "
        yield from wrapped(reason.text, begin, " " * (len(begin) if width >= 60 else 6), width)
    if explanation.due_ms is not None and known.now_ms - explanation.due_ms >= 1000:
        yield ""
        yield from wrapped(_ASK_THE_DAEMON, "", "  ", width)


def _as_json(found: _Explained) -> dict[str, Any]:
    known, explanation = found
    due_ms = explanation.due_ms
    return {
        "route": known.place.route,
        "timeline": known.place.shown,
        "state": known.state,
        "due": None if due_ms is None else instant_as_json(due_ms),
        "due_in_s": None if due_ms is None else (due_ms - known.now_ms) / 1000,
        "sentence": explanation.sentence,
        "reasons": [
            {"text": reason.text, "at": None if reason.at_ms is None else instant_as_json(reason.at_ms)}
            for reason in explanation.reasons
        ],
    }
