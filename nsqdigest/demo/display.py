"""Where the demo's lines go: one after another into a pipe, or below a live header on a terminal.

Invariants:
- A terminal is left as it was found, with all lines in its history, whatever ends the demo: the live display uses the
  alternate screen, and `close` writes the lines again below what stood there before.
- Without a terminal, with NO_COLOR, on one that is dumb or too small, there are plain lines.
- A reader that is gone (a closed pipe) is no error here: `on_reader_gone` is called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, TextIO

from nsqdigest.demo.lines import Line, Page, Part, Runs, in_ascii, laid, on_terminal

WIDTH_OF_A_PIPE = 100
WIDEST, NARROWEST = 110, 40
LEAST_ROWS = 16
"""Of a terminal with a header: below it there has to be room for a digest."""
MOST_FRAMES = 12
_ALL_CHARACTERS = "┌│└─→▶·…▁█"
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[r\x1b[?7h\x1b[?25h\x1b[?1049l"


class Frame(NamedTuple):
    """What could be seen at one moment."""

    header: Sequence[Runs]
    lines: Sequence[Line]


class PlainDisplay:
    """Line after line. The header is kept, for a picture, and not shown."""

    def __init__(self, stream: TextIO, *, width: int = 0) -> None:
        """`width`: 0: that of the terminal."""
        self._stream = stream
        self._width = width
        self._is_terminal = stream.isatty()
        self._colour = _has_colour(stream)
        self._ascii = not _can_show(stream, _ALL_CHARACTERS)
        self._reader_is_gone = False
        self.on_reader_gone: Callable[[], None] = lambda: None
        self.page = Page()
        self.frames: list[Frame] = []

    @property
    def width(self) -> int:
        if self._width:
            return self._width
        return max(NARROWEST, min(self._size().columns, WIDEST)) if self._is_terminal else WIDTH_OF_A_PIPE

    def line(self, *parts: Part, event: int = 0) -> None:
        line = Line(laid(parts, self.width), event)
        self.page.lines.append(line)
        self._show(line)

    def set_header(self, lines: Sequence[Sequence[Part]]) -> None:
        self.page.header = [laid(line, self.width) for line in lines]

    def take_away(self, events: Collection[int]) -> int:
        """The lines of these events are of no interest any more. Returns how many there were."""
        return self.page.take_away(events)

    def keep_frame(self, rows: int) -> None:
        """For a picture."""
        if len(self.frames) < MOST_FRAMES:
            self.frames.append(Frame(tuple(self.page.header), tuple(self.page.last(rows))))

    def suspend(self) -> None:
        """Before the process stops for a while."""

    def resume(self) -> None:
        """After it."""

    def close(self) -> None:
        """Keeps the interpreter from an error at exit, about text that a closed pipe did not take."""
        if self._reader_is_gone:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def _show(self, line: Line) -> None:
        self._write(self._text(line.runs) + "\n")

    def _text(self, runs: Runs) -> str:
        return on_terminal(runs, colour=self._colour)

    def _write(self, text: str) -> None:
        try:
            if not self._reader_is_gone:
                self._stream.write(in_ascii(text) if self._ascii else text)
                self._stream.flush()
        except OSError:  # a pipe that nobody reads any more, or a terminal that was closed
            self._reader_is_gone = True
        if self._reader_is_gone:
            self.on_reader_gone()

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            size = os.terminal_size((80, 24))
        return os.terminal_size((size.columns or 80, size.lines or 24))


class LiveDisplay(PlainDisplay):
    """A header that stays, and the lines that scroll below it."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._is_open = True
        self._shown_size = self._size()
        self._used = 0
        """Rows below the header that have a line."""
        self._write(_ENTER)
        self._draw_all()

    def set_header(self, lines: Sequence[Sequence[Part]]) -> None:
        super().set_header(lines)
        if not self._is_open:
            return
        if self._has_to_be_drawn:
            self._draw_all()
        else:
            self._write(self._header_text())

    def take_away(self, events: Collection[int]) -> int:
        removed = super().take_away(events)
        if removed and self._is_open:
            self._draw_all()
        return removed

    def suspend(self) -> None:
        if self._is_open:
            self._write(_LEAVE)

    def resume(self) -> None:
        if self._is_open:
            self._write(_ENTER)
            self._draw_all()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            lines = [*(line.runs for line in self.page.lines), (), *self.page.header[:-1]]
            self._write(_LEAVE + "".join(f"{self._text(runs)}\n" for runs in lines))
        super().close()

    # -- the alternate screen

    @property
    def _has_to_be_drawn(self) -> bool:
        return self._size() != self._shown_size or self._header_rows(self._shown_size) != self._drawn_header

    def _header_rows(self, size: os.terminal_size) -> int:
        return len(self.page.header) if size.lines >= LEAST_ROWS else 0

    def _draw_all(self) -> None:
        self._shown_size = size = self._size()
        self._drawn_header = self._header_rows(size)
        lines = self.page.last(size.lines - self._drawn_header)
        self._used = len(lines)
        rows = "".join(
            f"\x1b[{self._drawn_header + row};1H{self._text(laid(line.runs, size.columns))}"
            for row, line in enumerate(lines, 1)
        )
        self._write(f"\x1b[2J\x1b[{self._drawn_header + 1};{size.lines}r{rows}{self._header_text()}")

    def _header_text(self) -> str:
        """Each row at its own place, so that where the cursor is never matters."""
        columns = self._shown_size.columns
        return "".join(
            f"\x1b[{row};1H{self._text(laid(runs, columns))}\x1b[K"
            for row, runs in enumerate(self.page.header[: self._drawn_header], 1)
        )

    def _show(self, line: Line) -> None:
        if not self._is_open:
            super()._show(line)
        elif self._has_to_be_drawn:
            self._draw_all()
        else:
            text = self._text(laid(line.runs, self._shown_size.columns))
            if self._drawn_header + self._used < self._shown_size.lines:
                self._used += 1
                self._write(f"\x1b[{self._drawn_header + self._used};1H{text}")
            else:
                self._write(f"\x1b[{self._shown_size.lines};1H\n{text}")


def display_for(stream: TextIO) -> PlainDisplay:
    if not _has_colour(stream) or not _can_show(stream, _ALL_CHARACTERS):
        return PlainDisplay(stream)
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return PlainDisplay(stream)
    return LiveDisplay(stream) if columns >= NARROWEST and rows >= LEAST_ROWS else PlainDisplay(stream)


def _has_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
