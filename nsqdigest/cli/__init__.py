"""The commands, one module each. Here: what they share, and how an error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsqdigest import __version__
from nsqdigest.base.errors import ConfigError, NsqdigestError
from nsqdigest.base.shown import printable
from nsqdigest.base.words import listed, nearest

if TYPE_CHECKING:
    from nsqdigest.config import Config

_COMMANDS = (
    "init", "check", "try", "preview", "simulate", "doctor", "test-sink", "run", "status", "timelines", "show",
    "explain", "flush", "snooze", "mute", "wake", "holds", "delete", "adopt", "dead", "pause", "resume", "audit",
    "demo", "completion", "help",
)  # fmt: skip
_OTHERWISE = {
    "version": "write `nsqdigest --version`",
    "start": 'did you mean "run"?',
    "validate": 'did you mean "check"?',
}
"""What users of other programs type."""
_OF_COMMANDS = ("-c", "--config", "--json")
"""Options that most commands have."""


def unknown_command(word: str, ctx: click.Context) -> click.UsageError:
    guess = nearest(word, _COMMANDS)
    hint = _OTHERWISE.get(word.lower()) or (f'did you mean "{guess}"?' if guess else f"there are {listed(_COMMANDS)}")
    return click.UsageError(f'there is no command "{word}"; {hint}', ctx)


@contextlib.contextmanager
def _printable_errors() -> Iterator[None]:
    """A mistake on the command line repeats an argument, which may be a name that others chose."""
    try:
        yield
    except click.ClickException as error:
        error.message = "\n".join(map(printable, error.message.split("\n")))  # type: ignore[misc]
        raise


class _Commands(click.Group):
    """Imports a command's module only when it is asked for: `check` need not wait for what only `run` needs."""

    def make_context(self, *words: Any, **options: Any) -> click.Context:
        with _printable_errors():
            return super().make_context(*words, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _printable_errors():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS and not args[0].startswith("-"):
            raise unknown_command(args[0], ctx)
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            meant = nearest(error.option_name, _OF_COMMANDS)
            if not meant:
                raise
            written = f"{meant} FILE" if meant in ("-c", "--config") else meant
            raise click.UsageError(f"options stand behind the command: nsqdigest COMMAND {written}", ctx) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        module = cmd_name.replace("-", "_") + ("_" if iskeyword(cmd_name) else "")
        command: click.Command = import_module(f"nsqdigest.cli.{module}").command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, "-V", "--version", prog_name="nsqdigest")
def cli() -> None:
    """Events from NSQ, gathered in Redis, delivered as digests.

    \b
    See all of it at work:                   nsqdigest demo
    Write a configuration to begin with:     nsqdigest init
    Check it for mistakes:                   nsqdigest check
    See what becomes of an event:            nsqdigest try < event.json
    See what a sink would be sent:           nsqdigest preview --sample
    See when a policy sends digests:         nsqdigest simulate --rate 20/h
    Test every service that it names:        nsqdigest doctor
    Send a sample digest through a sink:     nsqdigest test-sink hook
    Run the daemon:                          nsqdigest run
    See whether all is well:                 nsqdigest status
    See the timelines:                       nsqdigest timelines
    See all of one:                          nsqdigest show user:42
    See why it is due when it is due:        nsqdigest explain user:42
    Deliver it now:                          nsqdigest flush user:42
    Delete it:                               nsqdigest delete user:42
    Let nothing of it out for a while:       nsqdigest snooze user:42 --for 2h
    Keep nothing of it for a while:          nsqdigest mute user:42 --for 7d
    End that:                                nsqdigest wake user:42
    See what is snoozed or muted:            nsqdigest holds
    Take over those of a renamed route:      nsqdigest adopt old-name --to new
    See what could not be delivered:         nsqdigest dead list
    Pause a topic, a route or a sink:        nsqdigest pause topic events
    Resume it:                               nsqdigest resume topic events
    See what became of every record:         nsqdigest audit
    Complete commands in this shell:         eval "$(nsqdigest completion bash)"
    Show the help of a command:              nsqdigest help check
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


def load_config(path: Path | None, file: Path | None = None, *, without_secrets: bool = False) -> Config:
    from nsqdigest import config
    from nsqdigest.delivery.sinks.table import KINDS

    if path is not None and file is not None and path != file:
        raise click.UsageError(f"two configurations are named, {path} and {file}; name one")
    path = path or file
    return config.load(config.find(path, os.environ), os.environ, KINDS, without_secrets=without_secrets)


def main() -> None:
    """The program. Errors that are ours end in a message and their exit code, never in a traceback."""
    try:
        cli(prog_name="nsqdigest")
    except ConfigError as error:
        for problem in error.problems:
            click.echo(printable(str(problem)), err=True)
        sys.exit(error.exit_code)
    except NsqdigestError as error:
        _echo_error(f"nsqdigest: {error}")
        sys.exit(error.exit_code)


def _echo_error(text: str) -> None:
    """In whole words on a terminal; one line elsewhere."""
    from shutil import get_terminal_size

    from nsqdigest.base.screen import WIDTH_OF_A_PIPE, wrapped

    width = get_terminal_size().columns if sys.stderr.isatty() else WIDTH_OF_A_PIPE
    click.echo("\n".join(wrapped(printable(text), "", "  ", width)), err=True)
