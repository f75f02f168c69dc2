"""How a command writes to its output: for a terminal, for a pipe, and for one that cannot show every character."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from typing import NamedTuple

import click

from nsqdigest.base.screen import WIDTH_OF_A_PIPE


class Look(NamedTuple):
    colour: bool
    width: int


def look_of_stdout() -> Look:
    is_terminal = sys.stdout.isatty()
    colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Look(colour, shutil.get_terminal_size().columns if is_terminal else WIDTH_OF_A_PIPE)


def shows(characters: str) -> bool:
    """Whether the output's encoding has them."""
    try:
        characters.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return os.environ.get("TERM") != "dumb"


def write(lines: Iterable[str], look: Look) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    text = "\n".join(lines)
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), color=look.colour)
