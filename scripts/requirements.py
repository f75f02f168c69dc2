"""Prints requirements of pyproject.toml, one a line: `requirements.py [--lowest] GROUP…`.

A group is `runtime`, `build` or one of [dependency-groups]. pip knows dependency groups only since 25.1, and Debian has
an older one: so this reads them. `--lowest` turns the lower bounds of what the product itself needs (`runtime` and the
extras) into exact versions, so that what the bounds claim is what gets tested.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT_FILE = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lowest(requirement: str) -> str:
    name, separator, bound = requirement.partition(">=")
    if not separator or "," in bound or ";" in bound:
        raise SystemExit(f"requirements.py: {requirement!r} is not of the form name>=version")
    return f"{name}=={bound}"


def requirements(groups: list[str], *, at_lowest: bool) -> list[str]:
    project = tomllib.loads(PROJECT_FILE.read_text(encoding="utf-8"))
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    known: dict[str, list[str]] = {
        "runtime": project["project"]["dependencies"],
        "build": project["build-system"]["requires"],
        **project["dependency-groups"],
    }
    own = {*known["runtime"], *(requirement for extra in extras.values() for requirement in extra)}
    wanted = [requirement for group in groups for requirement in known[group]]
    return [lowest(each) if at_lowest and each in own else each for each in wanted]


if __name__ == "__main__":
    words = sys.argv[1:]
    print("\n".join(requirements([word for word in words if word != "--lowest"], at_lowest="--lowest" in words)))
