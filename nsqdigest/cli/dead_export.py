"""`nsqdigest dead export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import EXIT_NO
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, load_config
from nsqdigest.cli.dead_shared import Filters, dead_store, filters, selection
from nsqdigest.cli.operating import MOST_LISTED, limit_option, note_unused

if TYPE_CHECKING:
    from nsqdigest.config import Config


@click.command("export")
@config_option
@filters
@limit_option(MOST_LISTED, "At most so many, those longest dead first.")
def export_command(path: Path | None, wanted: Filters, limit: int) -> None:
    """Write dead digests to stdout, whole: a line of JSON for each.

    A line has why the digest died and, as "digest", the document that its receiver gets, with all of its records.
    Nothing is changed. `dead drop --exported FILE` then drops exactly the digests that the file holds.

    Exit code 0: each digest is written whole; 1: Redis no longer has some of the records; 69: Redis is out of reach.

    \b
    Examples:
      nsqdigest dead export > dead.jsonl
      nsqdigest dead export --sink hook --older-than 7d > old.jsonl
      nsqdigest dead drop --exported dead.jsonl
    """
    config = load_config(path)
    from nsqdigest.base import resolver

    written, missing = resolver.run(_export(config, wanted, limit))
    click.echo(f"{counted(written, 'dead digest')} exported", err=True)
    if written == limit:
        click.echo("stopped at --limit; there may be more", err=True)
    if missing:
        click.echo(f"{counted(missing, 'record')} missing: Redis no longer has them", err=True)
        raise SystemExit(EXIT_NO)


async def _export(config: Config, wanted: Filters, limit: int) -> tuple[int, int]:
    """Returns how many digests were written, and how many of their records were not there."""
    from nsqdigest.delivery import exported
    from nsqdigest.store import dead_selection
    from nsqdigest.store.access import now_ms
    from nsqdigest.store.namespace import reading

    stdout = sys.stdout.buffer
    written = missing = 0
    async with reading(config.redis, config.source) as namespace:
        note_unused(namespace, config.redis.namespace)
        store, at_ms = dead_store(namespace, config), await now_ms(namespace)
        chosen = await selection(namespace, config, wanted, at_ms)
        async for page in dead_selection.oldest_first(store, chosen, at_ms):
            for dead in page[: limit - written]:
                line = exported.Line(store, dead)
                async for part in line.parts():
                    stdout.write(part)
                written += 1
                missing += line.missing
            if written == limit:
                break
    stdout.flush()
    return written, missing
