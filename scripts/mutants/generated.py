"""The generated mutants: what operators.py finds in the modules of modules.py, and lua_operators.py in the scripts.

argued.toml is the table of those that may survive, each with the reason; one that fits no mutant is out of date.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from pathlib import Path

from scripts.mutants import lua_operators, lua_scripts, modules, operators
from scripts.mutants.job import PACKAGE
from scripts.mutants.mutant import Mutant, StaleList
from scripts.mutants.operators import Change, names_of

ARGUED = Path(__file__).parent / "argued.toml"


def suites(root: Path) -> list[str]:
    return [*modules.TESTS, *lua_scripts.suites(root)]


def mutants_of(suite: str, root: Path, argued: Path = ARGUED) -> list[Mutant]:
    file, tests, changes = _parts_of(suite, root)
    reasons = _reasons(suite, argued)
    if unknown := reasons.keys() - {str(change) for change in changes}:
        listed = "\n".join(f"  {each}" for each in sorted(unknown))
        raise StaleList(f"{argued.name} argues for mutants that {file} does not have (any more):\n{listed}")
    is_python = file.endswith(".py")
    return [
        Mutant(
            name=name, file=file, old=change.old, new=change.new, rule=str(change), tests=tests,
            argued=reasons.get(str(change), ""), at=change.start,
            lines=range(change.line, change.last_line + 1) if is_python else None,
        )
        for name, change in zip(names_of(suite, changes), changes, strict=True)
    ]  # fmt: skip


def _parts_of(suite: str, root: Path) -> tuple[str, tuple[str, ...], list[Change]]:
    """The file below the package, its tests, and the ways to break it."""
    if suite.startswith(lua_scripts.PREFIX):
        file, tests, find = lua_scripts.file_of(suite), lua_scripts.tests_of(suite, root), lua_operators.changes_of
    else:
        file, tests, find = f"{suite.replace('.', '/')}.py", modules.TESTS[suite], operators.changes_of
    return file, tests, find((root / PACKAGE / file).read_text("utf-8"))


def sampled(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """So many of them, in their order."""
    chosen = set(random.Random(seed).sample(range(len(mutants)), min(size, len(mutants))))
    return [mutant for place, mutant in enumerate(mutants) if place in chosen]


def _reasons(suite: str, path: Path) -> dict[str, str]:
    """Why a change may survive. One reason may be that of several."""
    entries = tomllib.loads(path.read_text("utf-8")).get("argued", [])
    return {text: entry["why"] for entry in entries if entry["module"] == suite for text in entry["mutants"]}
