"""`nsqdigest check`: the file alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsqdigest.base.errors import ConfigError
from nsqdigest.cli import config_option, file_argument, load_config

if TYPE_CHECKING:
    from nsqdigest.config import Config


@click.command("check")
@config_option
@file_argument
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
def command(path: Path | None, file: Path | None, as_json: bool) -> None:
    """Check a configuration for mistakes, without connecting to anything.

    Shows every mistake at once, each with its line and the remedy. Exit code 0: there is none; 78: there is one.

    \b
    Example:
      nsqdigest check nsqdigest.toml
    """
    try:
        config = load_config(path, file)
    except ConfigError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"ok": False, "problems": [each.as_json() for each in error.problems], "warnings": []}))
        raise SystemExit(error.exit_code) from None
    if as_json:
        click.echo(json.dumps({"ok": True, "problems": [], "warnings": [each.as_json() for each in config.warnings]}))
        return
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{config.source}: ok: {summary(config)}")


def summary(config: Config) -> str:
    topics = {route.topic for route in config.routes}
    return (
        f"{_count(len(config.routes), 'route')} over {_count(len(topics), 'topic')} "
        f"to {_count(len(config.sinks), 'sink')}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
