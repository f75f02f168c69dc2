"""What scripts that write pages of docs/ share: writing the files, and finding those that are stale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
Files = Callable[[], Mapping[Path, str]]


def stale(files: Files) -> list[Path]:
    return [file for file, content in files().items() if not file.exists() or file.read_text("utf-8") != content]


def main(words: Sequence[str], files: Files, target: str) -> int:
    """`target`: of the Makefile."""
    if list(words) == ["--check"]:
        old = stale(files)
        for file in old:
            print(f"{file.relative_to(DOCS.parent)} is stale: make {target}")
        return 1 if old else 0
    for file, content in files().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(content, "utf-8")
        print(f"written: {file.relative_to(DOCS.parent)}")
    return 0
