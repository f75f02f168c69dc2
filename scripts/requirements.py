"""Prints requirements of pyproject.toml, one a line: `requirements.py [--lowest] GROUP…`.

A group is `runtime`, `extras`, `build` or one of [dependency-groups]. pip reads dependency groups since 25.1, and
Debian has an older one. `--lowest` turns the lower bounds of the product's own requirements (`runtime` and `extras`)
into exact versions, so that `make test-lowest` tests the bounds.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT_FILE = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lowest(requirement: str) -> str:
    name, separator, bounds = requirement.partition(">=")
    bound, _, upper = bounds.partition(",")
    if not separator or ";" in bounds or (upper and not upper.startswith("<")):
        raise SystemExit(f"requirements.py: {requirement!r} is not of the form name>=version or name>=version,<version")
    return f"{name}=={bound}"


def requirements(groups: list[str], *, at_lowest: bool) -> list[str]:
    project = tomllib.loads(PROJECT_FILE.read_text(encoding="utf-8"))
    extras: dict[str, list[str]] = project["project"]["optional-dependencies"]
    known: dict[str, list[str]] = {
        "runtime": project["project"]["dependencies"],
        "extras": [requirement for extra in extras.values() for requirement in extra],
        "build": project["build-system"]["requires"],
        **project["dependency-groups"],
    }
    own = {*known["runtime"], *known["extras"]}
    wanted = [requirement for group in groups for requirement in known[group]]
    return [lowest(each) if at_lowest and each in own else each for each in wanted]


if __name__ == "__main__":
    words = sys.argv[1:]
    print("\n".join(requirements([word for word in words if word != "--lowest"], at_lowest="--lowest" in words)))
