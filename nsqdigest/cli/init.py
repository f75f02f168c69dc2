"""`nsqdigest init`: a configuration to begin with."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click

from nsqdigest.base.errors import EXIT_NO, NsqdigestError

_STDOUT = "-"
_MODE = 0o640
"""Of the service's group: the file may come to hold what not everybody should read."""


class NotWritten(NsqdigestError):
    exit_code = EXIT_NO


@click.command("init", short_help="Write a configuration to begin with.")
@click.argument("file", required=False, default="nsqdigest.toml")
@click.option("--all", "every_option", is_flag=True, help="With every option, its default and what it does.")
def command(file: str, every_option: bool) -> None:
    """Write a configuration to begin with, with comments, to FILE: nsqdigest.toml, or - for stdout.

    It works as it is where nsqd and Redis run on this machine. A file that is there already stays as it is.

    Exit code 0: written; 1: it is there already, or cannot be written.

    \b
    Examples:
      nsqdigest init
      nsqdigest init --all -
    """
    from nsqdigest.config import example, starter
    from nsqdigest.delivery.sinks.table import KINDS

    text = (example if every_option else starter).text(KINDS)
    if file == _STDOUT:
        click.echo(text, nl=False)
        return
    _write(Path(file), text)
    click.echo(_next_steps(file))


def _write(path: Path, text: str) -> None:
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    except FileExistsError:
        remedy = "move it away, name another, or print one: nsqdigest init -"
        raise NotWritten(f"{path} is there already, and stays as it is; {remedy}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise NotWritten(f"{path} cannot be written: {why}; name another, or print it: nsqdigest init -") from None
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise NotWritten(f"{path} cannot be written: {error.strerror}; make room, or name another") from None


def _next_steps(file: str) -> str:
    is_default = file == "nsqdigest.toml"
    name = "" if is_default else f" {shlex.quote(file)}"
    option = "" if is_default else f" -c{name}"
    steps = (
        ("look at it", "nsqd, Redis, and the topic, timeline and sink of the route"),
        ("check it", f"nsqdigest check{name}"),
        ("try an event", f'echo \'{{"user": "ada"}}\' | nsqdigest try{option}'),
        ("test the servers", f"nsqdigest doctor{name}"),
        ("run the daemon", f"nsqdigest run{name}"),
    )
    return "\n".join([f"{file} is written. Next:", *(f"  {what:<16}  {how}" for what, how in steps)])
