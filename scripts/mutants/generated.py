"""The generated mutants: what operators.py finds in the modules of modules.py, and which of it may survive.

argued.toml is the table of those that may survive, each with the reason; one that fits no mutant is out of date.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from pathlib import Path

from scripts.mutants.modules import TESTS
from scripts.mutants.mutant import Mutant, StaleList
from scripts.mutants.operators import changes_of, names_of

ARGUED = Path(__file__).parent / "argued.toml"


def mutants_of(module: str, package: Path, argued: Path = ARGUED) -> list[Mutant]:
    file = f"{module.replace('.', '/')}.py"
    changes = changes_of((package / file).read_text("utf-8"))
    reasons = _reasons(module, argued)
    if unknown := reasons.keys() - {str(change) for change in changes}:
        listed = "\n".join(f"  {each}" for each in sorted(unknown))
        raise StaleList(f"{argued.name} argues for mutants that {file} does not have (any more):\n{listed}")
    return [
        Mutant(
            name=name, file=file, old=change.old, new=change.new, rule=str(change), tests=TESTS[module],
            argued=reasons.get(str(change), ""), at=change.start, lines=range(change.line, change.last_line + 1),
        )
        for name, change in zip(names_of(module, changes), changes, strict=True)
    ]  # fmt: skip


def sampled(mutants: Sequence[Mutant], size: int, seed: int) -> list[Mutant]:
    """So many of them, in their order."""
    chosen = set(random.Random(seed).sample(range(len(mutants)), min(size, len(mutants))))
    return [mutant for place, mutant in enumerate(mutants) if place in chosen]


def _reasons(module: str, path: Path) -> dict[str, str]:
    """Why a change may survive. One reason may be that of several."""
    entries = tomllib.loads(path.read_text("utf-8")).get("argued", [])
    return {text: entry["why"] for entry in entries if entry["module"] == module for text in entry["mutants"]}
