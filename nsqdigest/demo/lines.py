"""Lines of the demo (pure): text in styles, cut where the terminal ends, and the page of those written so far.

Invariants:
- Text is cleaned to printable characters of one column each, so that the length of a line is its width.
- A line that shows a raw event knows its number: the digest that has the event may take the line away.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from nsqdigest.base.screen import BOLD, CYAN, DIM, GREEN, RED, YELLOW, painted

MOST_KEPT = 5_000

Part = str | tuple[str, str]
"""Text, or a style and text."""
Runs = tuple[tuple[str, str], ...]
"""Style and text, in order. "" is the usual style."""

PAINTS = {
    "dim": DIM, "bold": BOLD, "daemon": YELLOW, "good": GREEN, "bad": RED, "digest": CYAN,
    "fatal": f"{BOLD};{RED}", "error": RED, "warning": YELLOW,
}  # fmt: skip
"""Of each style, for a terminal."""
_ASCII = str.maketrans({
    "┌": "+", "│": "|", "└": "+", "─": "-", "→": ">", "▶": ">", "·": "-", "…": "~",
    "▁": ".", "▂": ":", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "#", "█": "@",
})  # fmt: skip


class Line(NamedTuple):
    runs: Runs
    event: int = 0
    """The number of the raw event that it shows; 0: it shows none."""


def laid(parts: Sequence[Part], width: int) -> Runs:
    """Cleaned, and cut to the width."""
    runs: list[tuple[str, str]] = []
    room = width
    for part in parts:
        style, text = part if isinstance(part, tuple) else ("", part)
        text = clean(text)
        if len(text) > room:
            text = text[: max(0, room - 1)] + "…"[:room]
        room -= len(text)
        if text:
            runs.append((style, text))
    return tuple(runs)


def on_terminal(runs: Runs, *, colour: bool) -> str:
    return "".join(painted(text, PAINTS.get(style, ""), colour and style in PAINTS) for style, text in runs).rstrip()


def in_ascii(text: str) -> str:
    return text.translate(_ASCII)


def wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(clean(text), width) or [""]


def clean(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character.isprintable() and unicodedata.east_asian_width(character) not in "WF" else "?"
        for character in text
    )


class Page:
    """The lines written so far, and the header above them."""

    def __init__(self) -> None:
        self.header: Sequence[Runs] = ()
        self.lines: deque[Line] = deque(maxlen=MOST_KEPT)

    def last(self, rows: int) -> list[Line]:
        return list(self.lines)[-rows:] if rows > 0 else []

    def take_away(self, events: Collection[int]) -> int:
        """Removes the lines that show these events. Returns how many there were."""
        kept = [line for line in self.lines if line.event not in events]
        removed = len(self.lines) - len(kept)
        if removed:
            self.lines.clear()
            self.lines.extend(kept)
        return removed
