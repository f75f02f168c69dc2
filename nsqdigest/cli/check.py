"""`nsqdigest check`: the file alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsqdigest.base.errors import ConfigError, Mistake
from nsqdigest.base.words import counted
from nsqdigest.cli import config_option, file_argument, load_config

if TYPE_CHECKING:
    from nsqdigest.config import Config


@click.command("check", short_help="Check a configuration for mistakes, connecting to nothing.")
@config_option
@file_argument
@click.option(
    "--no-secrets",
    is_flag=True,
    help="Accept env:, file: and files of [nsq.tls] that are not on this machine; check all the rest.",
)
@click.option("--json", "as_json", is_flag=True, help="Answer as one JSON object.")
def command(path: Path | None, file: Path | None, no_secrets: bool, as_json: bool) -> None:
    """Check a configuration for mistakes, without connecting to anything.

    Shows every mistake at once, each with its line and the remedy. Exit code 0: there is none; 78: there is one.

    --no-secrets is for a machine that must not have the secrets, as one that checks pull requests. What is there is
    checked all the same.

    \b
    Examples:
      nsqdigest check nsqdigest.toml
      nsqdigest check nsqdigest.toml --no-secrets
    """
    try:
        config = load_config(path, file, without_secrets=no_secrets)
    except ConfigError as error:
        if not as_json:
            raise
        click.echo(json.dumps(_as_json(error.problems, (), () if no_secrets else None)))
        raise SystemExit(error.exit_code) from None
    if as_json:
        click.echo(json.dumps(_as_json((), config.warnings, config.not_at_hand if no_secrets else None)))
        return
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)
    for each in config.not_at_hand:
        click.echo(f"not checked: {each}", err=True)
    click.echo(f"{config.source}: ok: {summary(config)}")


def _as_json(
    problems: Sequence[Mistake], warnings: Sequence[Mistake], not_checked: Sequence[Mistake] | None
) -> dict[str, Any]:
    """`not_checked`: None without --no-secrets."""
    answer: dict[str, Any] = {
        "ok": not problems,
        "problems": [each.as_json() for each in problems],
        "warnings": [each.as_json() for each in warnings],
    }
    return answer if not_checked is None else answer | {"not_checked": [each.as_json() for each in not_checked]}


def summary(config: Config) -> str:
    topics = {route.topic for route in config.routes}
    return (
        f"{counted(len(config.routes), 'route')} over {counted(len(topics), 'topic')} "
        f"to {counted(len(config.sinks), 'sink')}"
    )
