"""The line of each key of a TOML document (pure): the standard parser keeps values and no places.

The text has passed the standard parser. Every key of every table, inline or not, and every element of every array gets
the path that leads to it through the parsed document. This reader is laxer than TOML where that costs nothing (newlines
in inline tables, which later versions of TOML allow).
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from collections.abc import Mapping

KeyPath = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t]*")
_FILLING = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_KEY = re.compile(r"[A-Za-z0-9_-]+|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")
# The long forms first: """ would else be an empty string and a quote. Before the closing three may stand two more.
_STRING = re.compile(
    r"\"\"\"(?:[^\\]|\\.)*?\"{3,5}(?!\")|'''.*?'{3,5}(?!')|\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}#\n]*")


def locate(text: str) -> dict[KeyPath, int]:
    """Returns path to line; the first line is 1."""
    return _Walk(text).document()


def line_of(lines: Mapping[KeyPath, int], path: KeyPath) -> int:
    """The line of a key; of something that is not there, the line of the innermost table that would hold it."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return 1


class _Walk:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[KeyPath, int] = {}
        self._elements: dict[KeyPath, int] = {}
        """How many [[tables]] each array of tables has so far."""

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_FILLING)
        while self._position < len(self._text):
            if self._next() == "[":
                table = self._header()
            else:
                self._key_and_value(table)
            self._skip(_FILLING)
        return self._lines

    def _next(self) -> str:
        return self._text[self._position : self._position + 1]

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            raise ValueError(f"not TOML at character {self._position}")
        self._position = match.end()
        return match.group()

    def _line(self) -> int:
        return bisect_right(self._newlines, self._position - 1) + 1

    def _key(self) -> list[str]:
        """A key, dotted or not, and the blanks after it."""
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            name = self._skip(_KEY)
            names.append(tomllib.loads(f"key = {name}")["key"] if name[0] in "\"'" else name)
            self._skip(_SPACE)
            if self._next() != ".":
                return names
            self._position += 1

    def _header(self) -> KeyPath:
        line = self._line()
        is_array = self._text.startswith("[[", self._position)
        self._position += 2 if is_array else 1
        *outer, last = self._key()
        self._position += 2 if is_array else 1
        path: KeyPath = ()
        for name in outer:
            path = (*path, name)
            self._lines.setdefault(path, line)
            if elements := self._elements.get(path):
                path = (*path, elements - 1)
        path = (*path, last)
        if is_array:
            self._lines.setdefault(path, line)
            element = self._elements.get(path, 0)
            self._elements[path] = element + 1
            path = (*path, element)
        # A table may have been implied by one of its own tables further up: its own header is where people look.
        self._lines[path] = line
        return path

    def _key_and_value(self, table: KeyPath) -> None:
        line = self._line()
        path = table
        for name in self._key():
            path = (*path, name)
            self._lines.setdefault(path, line)
        self._position += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        first = self._next()
        if first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        elif first in ('"', "'"):
            self._skip(_STRING)
        else:
            self._skip(_PLAIN)

    def _array(self, path: KeyPath) -> None:
        self._position += 1
        index = 0
        self._skip(_FILLING)
        while self._next() != "]":
            self._lines[(*path, index)] = self._line()
            self._value((*path, index))
            index += 1
            self._separator()
        self._position += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._position += 1
        self._skip(_FILLING)
        while self._next() != "}":
            self._key_and_value(path)
            self._separator()
        self._position += 1

    def _separator(self) -> None:
        self._skip(_FILLING)
        if self._next() == ",":
            self._position += 1
            self._skip(_FILLING)
