"""`nsqdigest dead replay` and `dead drop`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import EXIT_NO
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.dead_shared import Filters, dead_store, filters, selection
from nsqdigest.cli.operating import (
    MOST_LISTED,
    TEXT,
    confirm,
    json_option,
    limit_option,
    note_unused,
    shown,
    yes_option,
)
from nsqdigest.cli.places import routes_of

if TYPE_CHECKING:
    from nsqdigest.cli.places import Routes
    from nsqdigest.config import Config
    from nsqdigest.store.dead import DeadStore
    from nsqdigest.store.dead_selection import Selection
    from nsqdigest.store.dead_work import Handled
    from nsqdigest.store.namespace import Namespace

_IN_WORDS = {
    "replayed": "is sent again under its id",
    "already": "was sent again before, and is on its way",
    "dropped": "is dropped",
    "unknown": "is not dead: it was delivered, replayed or dropped, or never was",
    "orphan": "stays: the file has no such route, so nobody would deliver it",
    "values-lost": "stays: Redis lost the values of its records, so there is nothing to send; drop it",
    "not-whole": "stays: the file does not hold all of its records; name its id to drop it all the same",
}


@click.command("replay")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=TEXT)
@config_option
@click.option("--all", "is_all", is_flag=True, help="All of them, or all that the options below select.")
@filters
@limit_option(MOST_LISTED, "With --all: at most so many, those longest dead first.")
@json_option
def replay_command(
    *,
    ids: tuple[str, ...],
    path: Path | None,
    is_all: bool,
    wanted: Filters,
    limit: int,
    as_json: bool,
) -> None:
    """Send dead digests again.

    Each goes out under the id and with the records that it always had, due now, whatever its timeline does meanwhile;
    its age and tries begin again. A receiver that has seen the id knows that it is a repetition. With --limit 1 you can
    try a receiver before all of them go out.

    Exit code 0: each is sent again; 1: one is not, and it says why; 69: Redis is out of reach.

    \b
    Examples:
      nsqdigest dead replay 01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10
      nsqdigest dead replay --all --sink hook --reason too-old
    """
    _refuse_unclear(ids, is_all, wanted)
    config = load_config(path)
    from nsqdigest.base import resolver

    work = _work(config, ids, wanted, limit, replays=True, yes=True, as_json=as_json)
    _end(resolver.run(work), as_json=as_json)


@click.command("drop")
@click.argument("ids", metavar="[ID]...", nargs=-1, type=TEXT)
@config_option
@click.option("--all", "is_all", is_flag=True, help="All of them, or all that the options below select.")
@filters
@limit_option(MOST_LISTED, "With --all: at most so many, those longest dead first.")
@click.option(
    "--exported", type=click.Path(path_type=Path), metavar="FILE", help="Those that `dead export` wrote to this file."
)
@yes_option
@json_option
def drop_command(
    *,
    ids: tuple[str, ...],
    path: Path | None,
    is_all: bool,
    wanted: Filters,
    limit: int,
    exported: Path | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Drop dead digests for good. Their records count as deleted.

    To keep a copy, export them first: --exported drops exactly the digests that the file holds, whole. What died since
    then stays.

    Exit code 0: each is dropped; 1: one is not, or you answered no; 2: there is no terminal to ask
    at; 69: Redis is out of reach.

    \b
    Examples:
      nsqdigest dead drop 01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10
      nsqdigest dead drop --all --older-than 30d --yes
      nsqdigest dead drop --exported dead.jsonl
    """
    if exported is None:
        _refuse_unclear(ids, is_all, wanted)
    elif ids or is_all or wanted.are_any:
        raise click.UsageError("--exported names the digests; leave out ids, --all and filters")
    config = load_config(path)
    from nsqdigest.base import resolver

    not_whole: list[Handled] | None = None
    if exported is not None:
        ids, not_whole = _read_exported(exported)
    work = _work(config, ids, wanted, limit, replays=False, yes=yes, as_json=as_json, not_whole=not_whole)
    _end(resolver.run(work), as_json=as_json)


def _read_exported(file: Path) -> tuple[tuple[str, ...], list[Handled]]:
    """The ids of the digests that the file has whole, and the others as they are answered."""
    from nsqdigest.delivery.exported import read
    from nsqdigest.store.dead_work import Handled, Result

    try:
        with file.open("rb") as lines:
            found = {each.id: each.is_whole for each in read(lines)}
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{printable(str(file))}: {getattr(error, 'strerror', None) or error}") from None
    whole = tuple(each for each, is_whole in found.items() if is_whole)
    return whole, [Handled(each, Result.NOT_WHOLE, None) for each, is_whole in found.items() if not is_whole]


def _refuse_unclear(ids: Sequence[str], is_all: bool, wanted: Filters) -> None:
    if ids and (is_all or wanted.are_any):
        raise click.UsageError("name ids, or select with --all and its filters; not both")
    if not ids and not is_all:
        what = "add --all to take all that the filters select" if wanted.are_any else "name ids, or write --all"
        raise click.UsageError(what)


async def _work(
    config: Config,
    ids: Sequence[str],
    wanted: Filters,
    limit: int,
    *,
    replays: bool,
    yes: bool,
    as_json: bool,
    not_whole: Sequence[Handled] | None = None,
) -> list[Handled]:
    """`not_whole`: of a file, whose other digests are `ids`; None: no file is given."""
    from nsqdigest.store.access import now_ms
    from nsqdigest.store.dead_work import DeadWork

    done = list(not_whole or ())
    if not as_json:
        for handled in done:
            click.echo(_line(handled))
    async with _operating(config) as (namespace, store, routes):
        work = DeadWork(store, routes.configured)
        if ids or not_whole is not None:
            if not replays:
                await _confirm_named(store, ids, yes=yes)
            each_one = work.named(ids, replays=replays)
        else:
            at_ms = await now_ms(namespace)
            chosen = await selection(namespace, config, wanted, at_ms)
            if not replays:
                await _confirm_all(store, chosen, limit, yes=yes)
            each_one = work.selected(chosen, at_ms, limit, replays=replays)
        async for handled in each_one:
            done.append(handled)
            if not as_json:
                click.echo(_line(handled))
        _note_undelivered(done, routes)
        if not ids and not_whole is None and len(done) == limit:
            click.echo("stopped at --limit; there may be more", err=True)
    return done


@asynccontextmanager
async def _operating(config: Config) -> AsyncIterator[tuple[Namespace, DeadStore, Routes]]:
    from nsqdigest.store.access import operating

    async with operating(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        yield namespace, dead_store(namespace, config), await routes_of(namespace, config)


async def _confirm_named(store: DeadStore, ids: Sequence[str], *, yes: bool) -> None:
    """Nobody is asked about digests that are not there."""
    if not yes:
        there = sum([await store.find(each) is not None for each in set(ids)])
        if there:
            confirm(f"Drop {counted(there, 'dead digest')} for good?", yes=yes)


async def _confirm_all(store: DeadStore, wanted: Selection, limit: int, *, yes: bool) -> None:
    from nsqdigest.store import dead_selection

    if not yes:
        there = (await dead_selection.newest(store, wanted, 1)).total
        if there:
            confirm(f"Drop {counted(min(there, limit), 'dead digest')} for good?", yes=yes)


def _line(handled: Handled) -> str:
    where = ""
    if handled.dead is not None:
        details = handled.dead.details
        records = f", {counted(handled.records, 'record')}" if handled.records else ""
        where = f" (route {printable(details.route)}, timeline {shown(details.timeline)}{records})"
    return f"{printable(handled.id)} {_IN_WORDS[handled.result]}{where}"


def _note_undelivered(done: Sequence[Handled], routes: Routes) -> None:
    """Once for each route whose digests are due and that no daemon has."""
    replayed = {handled.dead.route for handled in done if handled.result == "replayed" and handled.dead is not None}
    for name in sorted(replayed):
        if why := routes.why_undelivered(name):
            click.echo(f"route {printable(name)}: {why}", err=True)


def _end(done: Sequence[Handled], *, as_json: bool) -> None:
    if as_json:
        answers = [
            {
                "id": handled.id, "result": handled.result,
                "route": handled.dead.route if handled.dead else None,
                "timeline": handled.dead.details.timeline if handled.dead else None,
                "records": handled.records,
            }
            for handled in done
        ]  # fmt: skip
        click.echo(encoded(answers))
    else:
        results = Counter(handled.result for handled in done)
        sums = ", ".join(f"{number:,} {result}" for result, number in results.items())
        click.echo(f"{counted(len(done), 'digest')}: {sums}" if done else "no dead digest was selected")
    if not all(handled.result.is_done for handled in done):
        raise SystemExit(EXIT_NO)
