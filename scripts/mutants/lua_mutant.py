"""How mutants of scripts are written down: by script or shared piece what is wrong, the rule, the text, the other text.

The tests of a script are its own file in tests/lua, and after them the model, which takes longer and knows everything.
"""

from __future__ import annotations

from pathlib import Path

from scripts.mutants.mutant import Mutant

MODEL = "tests/store/test_store_model.py"
SERVERS = "tests/lua/test_servers.py"
_SCRIPTS = Path(__file__).parents[2] / "nsqdigest" / "lua"


def of(script: str, *mutants: tuple[str, str, str, str], tests: tuple[str, ...] = ()) -> tuple[Mutant, ...]:
    """Of one script: what is wrong, the rule, the text, what stands there instead."""
    own = tests or (f"tests/lua/test_{script}.py",)
    return tuple(
        Mutant(
            name=f"{script}: {name}", file=_file_of(script), old=old, new=new, rule=rule,
            tests=own if MODEL in own else (*own, MODEL),
        )
        for name, rule, old, new in mutants
    )  # fmt: skip


def _file_of(script: str) -> str:
    """Of a script, or of a shared piece by its folder and name."""
    path = next(path for path in _SCRIPTS.rglob(f"{script}.lua"))
    return str(path.relative_to(_SCRIPTS.parent))


def lib(piece: str, *mutants: tuple[str, str, str, str], tests: tuple[str, ...]) -> tuple[Mutant, ...]:
    return of(f"lib/{piece}", *mutants, tests=tuple(f"tests/lua/test_{name}.py" for name in tests))
