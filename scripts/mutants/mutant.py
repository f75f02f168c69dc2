"""What a mutant is, and how it comes into a copy of the package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class StaleList(Exception):
    """A mutant does not fit the package any more; the list is to be mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    file: str
    """Below the package."""
    old: str
    """Occurs in the file exactly once, unless `at` says where it is meant."""
    new: str
    rule: str
    """What holds no more."""
    tests: tuple[str, ...]
    """Arguments for pytest: files that should catch it, the quickest first."""
    argued: str = ""
    """Why it may survive."""
    at: int | None = None
    """Where in the file `old` begins, in bytes."""
    lines: range | None = None
    """What of the file `old` takes up. With them only the tests run that reach one of these lines."""


def applied(mutant: Mutant, package: Path) -> str:
    """The text of its file with the mutant in it."""
    path = package / mutant.file
    if not path.is_file():
        raise StaleList(f"{mutant.name}: there is no {mutant.file}")
    if mutant.old == mutant.new:
        raise StaleList(f"{mutant.name}: it changes nothing")
    if mutant.at is not None:
        return _replaced_at(mutant, path.read_bytes(), mutant.at)
    text = path.read_text("utf-8")
    if (times := text.count(mutant.old)) != 1:
        first_line = mutant.old.strip().splitlines()[0]
        raise StaleList(f"{mutant.name}: in {mutant.file} its text is {times} times and not once: {first_line}")
    return text.replace(mutant.old, mutant.new)


def _replaced_at(mutant: Mutant, text: bytes, at: int) -> str:
    old = mutant.old.encode()
    if text[at : at + len(old)] != old:
        raise StaleList(f"{mutant.name}: {mutant.file} has been edited meanwhile")
    return (text[:at] + mutant.new.encode() + text[at + len(old) :]).decode()


def check(mutants: Iterable[Mutant], package: Path) -> None:
    """Raises with all that is wrong."""
    said = []
    names: set[str] = set()
    for mutant in mutants:
        if mutant.name in names:
            said.append(f"{mutant.name}: the name is there twice")
        names.add(mutant.name)
        try:
            applied(mutant, package)
        except StaleList as error:
            said.append(str(error))
    if said:
        raise StaleList("\n".join(said))
