"""Loads the Lua scripts, with their includes spliced in.

A script's text depends on its files alone, so its hash is the same in every daemon of a version, and two versions side
by side each run their own. A line that reads `-- @include lib/x.lua` is replaced by that file, which may include more;
each file is spliced once, where it is first needed. The line numbers of a Lua error are mapped back through the splice.

Scripts are in folders by side (lua/intake, lua/delivery …); no two have the same name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

_LIBRARY = "lib"
_INCLUDE = re.compile(r"^--\s*@include\s+(\S+)\s*$")
_LINE_IN_ERROR = re.compile(r"(?:user_script|f_[0-9a-f]{40}):(\d+)")

Place = tuple[str, int]
"""A file below lua/, and a line of it."""


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    text: bytes
    sha: bytes
    origin: tuple[Place, ...]
    """Where each line of the text comes from."""

    def locate(self, error_text: str) -> str:
        """The text of an error with its line mapped to the file it comes from."""

        def place(match: re.Match[str]) -> str:
            line = int(match.group(1))
            if not 1 <= line <= len(self.origin):
                return match.group(0)
            file, file_line = self.origin[line - 1]
            return f"lua/{file}:{file_line}"

        return _LINE_IN_ERROR.sub(place, error_text)


@cache
def files() -> dict[str, str]:
    """The file of each script below lua/, by the script's name."""
    folders = (folder for folder in _root().iterdir() if folder.is_dir() and folder.name != _LIBRARY)
    found = ((folder.name, file.name) for folder in folders for file in folder.iterdir() if file.name.endswith(".lua"))
    return {file.removesuffix(".lua"): f"{folder}/{file}" for folder, file in sorted(found)}


def names() -> list[str]:
    return sorted(files())


def only_reads(name: str) -> bool:
    return files()[name].startswith("reading/")


@cache
def load(name: str) -> Script:
    lines: list[str] = []
    origin: list[Place] = []
    for line, place in _spliced(files()[name], set()):
        lines.append(line)
        origin.append(place)
    text = "\n".join(lines).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode(), tuple(origin))


def _spliced(file: str, seen: set[str]) -> Iterator[tuple[str, Place]]:
    """The lines of a file, each include replaced by the lines of its file unless these are there already."""
    seen.add(file)
    for number, line in enumerate((_root() / file).read_text("utf-8").splitlines(), 1):
        include = _INCLUDE.match(line)
        if include is None:
            yield line, (file, number)
        elif include.group(1) not in seen:
            yield from _spliced(include.group(1), seen)


def _root() -> Traversable:
    return resources.files("nsqdigest") / "lua"
