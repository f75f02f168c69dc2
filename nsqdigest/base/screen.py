"""Lines for a terminal (pure): within its width, in the colours that commands share."""

from __future__ import annotations

import textwrap
import unicodedata

WIDTH_OF_A_PIPE = 0
"""Nothing is broken over several lines, so that a line can be searched for."""

BOLD, DIM, GREEN, YELLOW, RED = "1", "2", "32", "33", "31"

_NARROWEST = 40


def painted(text: str, paint: str, colour: bool) -> str:
    return f"\x1b[{paint}m{text}\x1b[0m" if colour else text


def wrapped(text: str, begin: str, margin: str, width: int) -> list[str]:
    """The lines of a text that begins behind `begin` and goes on behind `margin`."""
    if not width:
        return [begin + text]
    return textwrap.wrap(
        text, max(width, _NARROWEST), initial_indent=begin, subsequent_indent=margin,
        break_long_words=False, break_on_hyphens=False,
    ) or [begin.rstrip()]  # fmt: skip


def columns(text: str) -> int:
    """That it takes on a terminal: some characters are two wide, and a mark stands on the one before it."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(each) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in text
    )


def padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))
