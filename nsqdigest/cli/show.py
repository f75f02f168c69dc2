"""`nsqdigest show`: what the store knows of one timeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.moments import instant, until
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.holding import hold_as_json, hold_of, in_words
from nsqdigest.cli.operating import (
    TEXT,
    dropped_as_json,
    facts,
    instant_as_json,
    json_option,
    record_lines,
    records_as_json,
    shown,
)
from nsqdigest.cli.places import digest_option, look_at, route_option

if TYPE_CHECKING:
    from nsqdigest.cli.places import Routes
    from nsqdigest.config import Config
    from nsqdigest.store.head import Head
    from nsqdigest.store.holds import Hold
    from nsqdigest.store.inspection import Known, Place
    from nsqdigest.store.record import StoredRecord

_MOST_RECORDS = 500


class _Seen(NamedTuple):
    known: Known
    routes: Routes
    records: list[StoredRecord]
    digest_records: list[StoredRecord]
    revived: list[Place]
    """Digests of it that were sent again from the dead store and are not delivered yet."""
    hold: Hold | None


@click.command("show")
@click.argument("timeline", type=TEXT)
@config_option
@route_option
@digest_option
@click.option(
    "--records",
    type=click.IntRange(0, _MOST_RECORDS),
    default=10,
    show_default=True,
    help="So many of its newest records.",
)
@json_option
def command(*, timeline: str, path: Path | None, route: str, digest_id: str, records: int, as_json: bool) -> None:
    """Show what is known of one timeline.

    Its state and when it is due, its records, the digest under way and how often that was tried, and what was lost
    since the digest before. Changes nothing.

    Exit code 0: it is there; 1: there is none; 69: Redis is out of reach.

    \b
    Example:
      nsqdigest show user:42
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    seen = resolver.run(_look(config, timeline, route, digest_id, records))
    click.echo(encoded(_as_json(config, seen)) if as_json else "\n".join(_lines(config, seen)))


async def _look(config: Config, timeline: str, route: str, digest_id: str, most: int) -> _Seen:
    from nsqdigest.store.namespace import reading

    async with reading(config.redis, config.source) as namespace:
        place, known, inspector, routes = await look_at(namespace, config, timeline, route, digest_id)
        if known is None:
            raise NsqdigestError(f"the timeline {shown(timeline)} went away while it was read; try again")
        return _Seen(
            known,
            routes,
            await inspector.records(place, most),
            await inspector.digest_records(place, most) if known.digest else [],
            [] if digest_id else await inspector.revived_of(timeline, [place.route]),
            await hold_of(namespace, place.route, place.name),
        )


def _lines(config: Config, seen: _Seen) -> list[str]:
    known, place = seen.known, seen.known.place
    route = next((each for each in config.routes if each.name == place.route), None)
    pairs = [
        ("timeline", printable(place.shown)),
        ("route", f"{printable(place.route)} (sink {route.sink}, policy {route.policy})" if route else (
            f"{printable(place.route)}: an orphan, {config.source} does not have it")),
        ("state", _state(known)),
        *([] if seen.hold is None else [("held", in_words(seen.hold, known.now_ms))]),
        ("records", f"{known.records:,} open{_losses(known)}"),
        ("digests", f"{known.iteration:,} so far{f', the last one {known.last_id}' if known.last_id else ''}"),
    ]  # fmt: skip
    if known.remembered:
        pairs.append(("remembered", f"{counted(known.remembered, 'record')} delivered lately; not shown again"))
    if known.digest is not None:
        pairs += _of_digest(known)
    pairs += [("revived", f"digest {_digest_id(each)}, on its way again: --digest shows it") for each in seen.revived]
    quiet = seen.routes.quiet_of(place.route)
    is_zoned = route is not None and config.policies[route.policy].is_zoned
    if known.zone and is_zoned:
        pairs.append(("zone", known.zone))
        quiet = quiet.in_zone(known.zone) if quiet is not None else None
    if quiet is not None and (end_ms := quiet.end_ms(known.now_ms)):
        whose = "it" if is_zoned else "this route"
        pairs.append(
            ("quiet hours", f"until {instant(end_ms)}: nothing of {whose} goes out but what is urgent or flushed")
        )
    if known.state == "due" and (why := seen.routes.why_undelivered(place.route)):
        pairs.append(("not delivered", why))
    lines = facts([(name, text if name == "timeline" else printable(text)) for name, text in pairs])
    lines += _records("open records", seen.records, known.records)
    if known.digest is not None:
        lines += _records("records of the digest under way", seen.digest_records, known.digest.total)
    return lines


def _state(known: Known) -> str:
    at = f"{until(known.at_ms, known.now_ms)} ({instant(known.at_ms)})"
    if known.state is None:
        return "neither waiting nor leased: a running daemon mends that within a quarter of a lease"
    if known.state == "leased":
        return f"leased: a daemon is delivering it; its lease ends {at}"
    if known.state == "due":
        return f"due {at}"
    if known.state == "idle":
        return f"idle: nothing new since its last digest; forgotten {at} unless something comes"
    latest = f", at the latest {instant(known.bound_ms)}" if known.bound_ms > known.at_ms else ""
    return f"{known.state}: due {at}{latest}"


def _losses(of: Known | Head) -> str:
    lost = [
        (of.superseded, "superseded"), (of.dropped_capacity, "dropped over capacity"),
        (of.dropped_cancelled, "cancelled"),
    ]  # fmt: skip
    losses = ", ".join(f"{number:,} {what}" for number, what in lost if number)
    return f"; since the digest before: {losses}" if losses else ""


def _of_digest(known: Known) -> list[tuple[str, str]]:
    digest = known.digest
    assert digest is not None
    return [
        ("under way", f"digest {digest.id}, number {digest.iteration:,}, {counted(digest.total, 'record')}"
                      f"{_losses(digest)}"),
        ("", f"opened {until(digest.opened_ms, known.now_ms)} ({instant(digest.opened_ms)}), "
             f"{counted(digest.attempts, 'attempt')} so far"),
    ]  # fmt: skip


def _digest_id(place: Place) -> str:
    from nsqdigest.store.keys import own_digest_id

    return printable(own_digest_id(place.name))


def _records(heading: str, records: list[StoredRecord], total: int) -> list[str]:
    if not records:
        return []
    newest = f", the newest {len(records):,} of {total:,}" if total > len(records) else ""
    return ["", f"{heading}{newest}:", *record_lines(records)]


def _as_json(config: Config, seen: _Seen) -> dict[str, Any]:
    known, place = seen.known, seen.known.place
    digest = known.digest
    is_leased = known.state == "leased"
    return {
        "route": place.route,
        "timeline": place.shown,
        "sink": seen.routes.sink_of(place.route) or None,
        "orphan": place.route not in seen.routes.configured,
        "state": known.state,
        "due": None if is_leased else instant_as_json(known.at_ms),
        "due_in_s": None if is_leased else (known.at_ms - known.now_ms) / 1000,
        "latest_due": None if is_leased else instant_as_json(max(known.bound_ms, known.at_ms)),
        "lease_until": instant_as_json(known.at_ms) if is_leased else None,
        "hold": None if seen.hold is None else hold_as_json(seen.hold),
        "records": known.records,
        "superseded": known.superseded,
        "dropped": dropped_as_json(known),
        "iteration": known.iteration,
        "last_digest": known.last_id or None,
        "zone": known.zone or None,
        "remembered": known.remembered,
        "digest": None if digest is None else {
            "id": digest.id, "iteration": digest.iteration, "opened": instant_as_json(digest.opened_ms),
            "records": digest.total, "superseded": digest.superseded, "dropped": dropped_as_json(digest),
            "attempts": digest.attempts, "since": instant_as_json(digest.since_ms),
            "newest": records_as_json(seen.digest_records),
        },
        "revived": [_digest_id(each) for each in seen.revived],
        "newest": records_as_json(seen.records),
    }  # fmt: skip
