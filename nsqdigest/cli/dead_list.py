"""`nsqdigest dead list` and `dead show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.base.moments import instant, until
from nsqdigest.base.screen import table
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.dead_shared import Filters, dead_store, filters, selection
from nsqdigest.cli.operating import (
    LONGEST_NAME,
    TEXT,
    dropped_as_json,
    facts,
    instant_as_json,
    json_option,
    limit_option,
    note_more,
    note_unused,
    record_lines,
    records_as_json,
    shown,
)
from nsqdigest.cli.terminal import look_of_stdout

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.store.dead import Dead
    from nsqdigest.store.dead_selection import Found
    from nsqdigest.store.record import StoredRecord


@click.command("list", short_help="List dead digests, the newest dead first.")
@config_option
@filters
@limit_option(50, "At most so many.")
@json_option
def list_command(
    path: Path | None,
    wanted: Filters,
    limit: int,
    as_json: bool,
) -> None:
    """List dead digests, the newest dead first.

    \b
    Examples:
      nsqdigest dead list --sink hook --reason refused
      nsqdigest dead list --json
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    found, now_ms = resolver.run(_list(config, wanted, limit))
    if as_json:
        click.echo(encoded([_as_json(dead) for dead in found.dead]))
    else:
        click.echo("\n".join(_lines(found, now_ms)))
    note_more(len(found.dead), found.total, "a higher --limit shows more, --route, --sink and --reason fewer")
    if found.unreadable:
        click.echo(
            f"{counted(found.unreadable, 'dead digest')} more with unreadable details: see nsqdigest audit --deep",
            err=True,
        )


async def _list(config: Config, wanted: Filters, limit: int) -> tuple[Found, int]:
    from nsqdigest.store import dead_selection
    from nsqdigest.store.access import now_ms
    from nsqdigest.store.namespace import reading

    async with reading(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        at_ms = await now_ms(namespace)
        chosen = await selection(namespace, config, wanted, at_ms)
        return await dead_selection.newest(dead_store(namespace, config), chosen, limit), at_ms


def _lines(found: Found, now_ms: int) -> list[str]:
    if not found.dead:
        return ["no dead digest"]
    rows = [
        (
            printable(dead.id),
            until(dead.since_ms, now_ms),
            printable(dead.route, LONGEST_NAME),
            printable(dead.details.timeline, LONGEST_NAME),
            printable(dead.details.sink, LONGEST_NAME),
            printable(dead.details.reason),
            f"{dead.details.head.attempts:,}",
            f"{dead.details.head.total:,}",
        )
        for dead in found.dead
    ]
    headings = ("id", "died", "route", "timeline", "sink", "reason", "attempts", "records")
    return [
        *table(headings, rows, right={6, 7}, flexible={2, 3, 4}, width=look_of_stdout().width),
        counted(len(rows), "dead digest"),
    ]


def _as_json(dead: Dead) -> dict[str, Any]:
    details = dead.details
    return {
        "id": dead.id,
        "route": details.route,
        "timeline": details.timeline,
        "sink": details.sink,
        "reason": details.reason,
        "attempts": details.head.attempts,
        "records": details.head.total,
        "since": instant_as_json(dead.since_ms),
    }


# -- show


@click.command("show", short_help="Show one dead digest, with its records.")
@click.argument("digest_id", metavar="ID", type=TEXT)
@config_option
@click.option(
    "--records", type=click.IntRange(0, 500), default=10, show_default=True, help="So many of its newest records."
)
@json_option
def show_command(digest_id: str, path: Path | None, records: int, as_json: bool) -> None:
    """Show one dead digest: why it was buried, what the receiver answered, and its records.

    \b
    Example:
      nsqdigest dead show 01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    dead, newest, now_ms = resolver.run(_show(config, digest_id, records))
    if as_json:
        head = dead.details.head
        answer = {
            **_as_json(dead), "status": dead.details.status or None, "cause": dead.details.cause,
            "answer": dead.details.answer, "iteration": head.iteration,
            "opened": instant_as_json(head.opened_ms), "superseded": head.superseded,
            "dropped": dropped_as_json(head), "newest": records_as_json(newest),
        }  # fmt: skip
        click.echo(encoded(answer))
    else:
        click.echo("\n".join(_show_lines(dead, newest, now_ms)))


async def _show(config: Config, digest_id: str, most: int) -> tuple[Dead, list[StoredRecord], int]:
    from nsqdigest.store.access import now_ms
    from nsqdigest.store.namespace import reading

    async with reading(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        store = dead_store(namespace, config)
        dead = await store.find(digest_id)
        if dead is None:
            raise NsqdigestError(
                f"no digest {shown(digest_id)} is dead: it was delivered, replayed or dropped, or never was; "
                "`nsqdigest dead list` has the ids"
            )
        return dead, await store.records(dead, most), await now_ms(namespace)


def _show_lines(dead: Dead, newest: list[StoredRecord], now_ms: int) -> list[str]:
    details, head = dead.details, dead.details.head
    pairs = [
        ("digest", dead.id),
        ("timeline", details.timeline),
        ("route", f"{details.route}, for sink {details.sink}"),
        (
            "died",
            f"{until(dead.since_ms, now_ms)} ({instant(dead.since_ms)}), after {counted(head.attempts, 'attempt')}",
        ),
        ("reason", f"{details.reason}: {details.cause}" if details.cause else details.reason),
        *([("it answered", details.answer)] if details.answer else []),
        ("opened", f"{instant(head.opened_ms)}, number {head.iteration:,} of its timeline"),
        (
            "records",
            f"{head.total:,}; {head.superseded:,} superseded, {head.dropped_capacity:,} dropped over capacity"
            + (f", {head.dropped_cancelled:,} cancelled" if head.dropped_cancelled else ""),
        ),
    ]
    lines = facts([(name, printable(text)) for name, text in pairs])
    if newest:
        of_all = f", the newest {len(newest):,} of {head.total:,}" if head.total > len(newest) else ""
        lines += ["", f"records{of_all}:", *record_lines(newest)]
    return [*lines, "", f"send it again: nsqdigest dead replay {printable(dead.id)}"]
