"""A terminal that a program writes to: what can be seen on it after each write, its alternate screen and its history.

It knows what the display of the demo sends, and refuses any other sequence, so that nothing it cannot draw goes by.
"""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[(?P<private>\??)(?P<numbers>[0-9;]*)(?P<kind>[A-Za-z])")


class Terminal:
    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.history: list[str] = []
        """Rows that have left the usual screen at its top."""
        self.is_alternate = False
        self.shows_cursor = True
        self._usual = self._blank()
        self._screen = self._usual
        self._row = self._column = 0
        self._region = (0, rows - 1)
        self._rest = ""

    @property
    def shown(self) -> list[str]:
        return ["".join(row).rstrip() for row in self._screen]

    def resize(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._screen = self._blank()
        if not self.is_alternate:
            self._usual = self._screen
        self._region = (0, rows - 1)
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        text = self._rest + text
        place = 0
        while place < len(text):
            if text[place] != "\x1b":
                self._put(text[place])
                place += 1
                continue
            match = _SEQUENCE.match(text, place)
            if match is None:
                assert len(text) - place < 16, f"no sequence: {text[place : place + 20]!r}"
                break  # it goes on with the next write
            self._obey(match["private"] + match["kind"], match["numbers"])
            place = match.end()
        self._rest = text[place:]

    def _blank(self) -> list[list[str]]:
        return [[" "] * self.columns for _ in range(self.rows)]

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._column = 0  # as a tty in its usual mode writes it
            self._line_feed()
        else:
            assert character.isprintable(), repr(character)
            assert self._column < self.columns, f"wider than the terminal: {self.shown[self._row]}"
            self._screen[self._row][self._column] = character
            self._column += 1

    def _line_feed(self) -> None:
        top, bottom = self._region
        if self._row < bottom:
            self._row += 1
            return
        gone = self._screen.pop(top)
        if not self.is_alternate:
            self.history.append("".join(gone).rstrip())
        self._screen.insert(bottom, [" "] * self.columns)

    def _obey(self, kind: str, numbers: str) -> None:
        values = [int(number or 0) for number in numbers.split(";")]
        if kind == "H":
            row, column = [*values, 1][:2] if numbers else (1, 1)
            self._row, self._column = min(row, self.rows) - 1, min(column, self.columns) - 1
        elif kind == "J" and values == [2]:
            self._screen[:] = self._blank()
        elif kind == "K" and values == [0]:
            self._screen[self._row][self._column :] = [" "] * (self.columns - self._column)
        elif kind == "r":
            self._region = (values[0] - 1, values[1] - 1) if numbers else (0, self.rows - 1)
            self._row = self._column = 0
        elif kind in ("?h", "?l") and values[0] in (7, 25, 1049):
            self._set(values[0], kind == "?h")
        else:
            assert kind == "m", f"unknown: {numbers}{kind}"

    def _set(self, mode: int, is_on: bool) -> None:
        if mode == 25:
            self.shows_cursor = is_on
        elif mode == 1049 and is_on != self.is_alternate:
            self.is_alternate = is_on
            self._screen = self._blank() if is_on else self._usual
            self._row, self._column = (0, 0) if is_on else (self._row_of_usual, 0)

    @property
    def _row_of_usual(self) -> int:
        """Below what stands there."""
        return min(self.rows - 1, sum(1 for row in self._usual if "".join(row).strip()))
