"""Of which scripts mutants are generated, and which tests should catch them: found by what the folders hold.

A suite is `lua:delivery/claim`, by the file below lua/. The tests of a script are its own (tests/lua/test_claim.py),
every other one in tests/lua that calls it, those of scripts that are cut off in the middle, and last the model of the
store, which takes a minute and knows everything. Those of a shared piece are the tests of all scripts that include it.
"""

from __future__ import annotations

import re
from pathlib import Path

PREFIX = "lua:"
CUT_OFF = "tests/lua/test_cut_off.py"
MODEL = "tests/store/test_store_model.py"
_INCLUDE = re.compile(r"^--\s*@include\s+(\S+)", re.MULTILINE)


def suites(root: Path) -> list[str]:
    scripts = root / "nsqdigest" / "lua"
    return [f"{PREFIX}{path.relative_to(scripts).with_suffix('')}" for path in sorted(scripts.rglob("*.lua"))]


def file_of(suite: str) -> str:
    """Below the package."""
    return f"lua/{suite.removeprefix(PREFIX)}.lua"


def tests_of(suite: str, root: Path) -> tuple[str, ...]:
    wanted = f"{suite.removeprefix(PREFIX)}.lua"
    scripts = root / "nsqdigest" / "lua"
    names = [
        path.stem
        for path in sorted(scripts.rglob("*.lua"))
        if wanted in _included(scripts, str(path.relative_to(scripts)), set()) and path.parent.name != "lib"
    ]
    own = [f"tests/lua/test_{name}.py" for name in names]
    texts = {str(path.relative_to(root)): path.read_text("utf-8") for path in sorted(root.glob("tests/lua/test_*.py"))}
    calls = re.compile(rf"\.(?:{'|'.join(names)})\(")
    others = [path for path, text in texts.items() if calls.search(text) and path != CUT_OFF]
    return tuple(dict.fromkeys((*(path for path in own if path in texts), *others, CUT_OFF, MODEL)))


def _included(scripts: Path, file: str, seen: set[str]) -> set[str]:
    """The file itself and all that it includes."""
    if file not in seen:
        seen.add(file)
        for other in _INCLUDE.findall((scripts / file).read_text("utf-8")):
            _included(scripts, other, seen)
    return seen
