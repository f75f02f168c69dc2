"""The commands, one module each. Here: what they share, and how an error becomes a message and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsqdigest import __version__
from nsqdigest.base.errors import ConfigError, NsqdigestError

if TYPE_CHECKING:
    from nsqdigest.config import Config

_COMMANDS = ("run", "check", "preview", "doctor", "audit", "demo", "pause", "resume")


class _Commands(click.Group):
    """Imports a command's module only when it is asked for: `check` need not wait for what only `run` needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            close = get_close_matches(args[0].lower(), _COMMANDS, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"there are {', '.join(_COMMANDS)}"
            ctx.fail(f'there is no command "{args[0]}"; {hint}')
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        command: click.Command = import_module(f"nsqdigest.cli.{cmd_name}").command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="nsqdigest")
def cli() -> None:
    """Events from NSQ, gathered in Redis, delivered as digests.

    \b
    Try it; it needs only a Redis on this machine:     nsqdigest demo
    Check a configuration for mistakes:                nsqdigest check nsqdigest.toml
    See what a sink would be sent:                     nsqdigest preview user:42
    Test every service that it names, nsqd to sinks:   nsqdigest doctor nsqdigest.toml
    Run the daemon:                                    nsqdigest run nsqdigest.toml
    Pause a topic, a route or a sink:                  nsqdigest pause topic events
    Resume it:                                         nsqdigest resume topic events
    See what became of every record:                   nsqdigest audit nsqdigest.toml
    """


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "-c",
        "--config",
        "path",
        # Whether it can be read is for `load_config` to say: with the remedy, and as a mistake of the file.
        type=click.Path(path_type=Path, readable=False),
        metavar="FILE",
        help="The configuration. Without it: NSQDIGEST_CONFIG, ./nsqdigest.toml, /etc/nsqdigest/nsqdigest.toml.",
    )(command)


def file_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """The configuration without -c, for the commands that are about it before all else."""
    return click.argument("file", required=False, type=click.Path(path_type=Path, readable=False))(command)


def load_config(path: Path | None, file: Path | None = None) -> Config:
    from nsqdigest import config
    from nsqdigest.delivery.sinks.table import KINDS

    if path is not None and file is not None and path != file:
        raise click.UsageError(f"two configurations are named, {path} and {file}; name one")
    path = path or file
    return config.load(config.find(path, os.environ), os.environ, KINDS)


def main() -> None:
    """The program. Errors that are ours end in a message and their exit code, never in a traceback."""
    try:
        cli(prog_name="nsqdigest")
    except ConfigError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        sys.exit(error.exit_code)
    except NsqdigestError as error:
        click.echo(f"nsqdigest: {error}", err=True)
        sys.exit(error.exit_code)
