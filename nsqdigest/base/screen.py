"""Lines for a terminal (pure): within its width, in the colours that commands share."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Collection, Sequence

WIDTH_OF_A_PIPE = 0
"""Nothing is broken over several lines, so that a line can be searched for."""

BOLD, DIM = "1", "2"
GREEN, YELLOW, RED, CYAN = "38;5;28", "38;5;130", "38;5;160", "38;5;30"
"""Dark ones of the 256 colours, which can be read on black and on white; a yellow of the 16 cannot be read on white."""

_NARROWEST = 40
_NARROWEST_COLUMN = 12
_BETWEEN = "  "


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


def cut(text: str, width: int) -> str:
    if columns(text) <= width:
        return text
    kept = ""
    for character in text:
        if columns(kept + character) >= width:
            break
        kept += character
    return f"{kept}…"


Rows = Sequence[Sequence[str]]


def table(
    headings: Sequence[str], rows: Rows, *, right: Collection[int] = (), flexible: Collection[int] = (), width: int = 0
) -> list[str]:
    """`right`: the columns of numbers. Where it would be wider than `width` (0: however wide), the flexible columns are
    cut; where that is not enough, each row is a block of lines that begins with its first cell, without empty cells and
    zeros."""
    widths = [max(map(columns, column)) for column in zip(headings, *rows, strict=True)]
    if width and not _fit(widths, flexible, width):
        return [line for row in rows for line in _block(headings, row, width)]
    cells = [[cut(cell, most) for cell, most in zip(row, widths, strict=True)] for row in (headings, *rows)]
    return [
        _BETWEEN.join(
            " " * (most - columns(cell)) + cell if place in right else padded(cell, most)
            for place, (cell, most) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _fit(widths: list[int], flexible: Collection[int], width: int) -> bool:
    """Makes the widest flexible column narrower until all fit. Returns whether they do."""
    while sum(widths) + len(_BETWEEN) * (len(widths) - 1) > width:
        widest = max(flexible, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _NARROWEST_COLUMN:
            return False
        widths[widest] -= 1
    return True


def _block(headings: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    margin = max(map(columns, headings[1:])) + 4
    facts = list(zip(headings[1:], row[1:], strict=True))
    shown = [(heading, cell) for heading, cell in facts if cell not in ("", "0")] or facts[:1]
    lines = wrapped(row[0], "", "  ", width)
    for heading, cell in shown:
        lines += wrapped(cell, f"  {padded(heading, margin - 2)}", " " * margin, width)
    return lines
