"""Data moves one way: pure modules know nothing of the world, and nothing imports what stands above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsqdigest

PACKAGE = Path(nsqdigest.__file__).parent

DECISIONS = (
    "audit",
    "backoff",
    "bodies",
    "delivery",
    "digest",
    "events",
    "layout",
    "losses",
    "policy",
    "rdy",
    "sink_state",
    "store_types",
    "templates",
)
TRANSPORT = tuple(f"transport.{name}" for name in ("compression", "directory", "frames", "negotiation", "publishing"))
DOCTOR = ("doctor.findings", "doctor.judgements", "doctor.report", "doctor.running")
PURE = (*DECISIONS, "counted", "errors", "hosts", "ids", "sinks.base", *TRANSPORT, *DOCTOR)
THE_WORLD = {
    "aiohttp", "asyncio", "click", "concurrent", "logging", "nsq", "os", "random", "redis", "secrets", "selectors",
    "signal", "socket", "ssl", "subprocess", "threading", "time", "tornado",
}  # fmt: skip

# From the bottom up. A module may import what stands on its own level or below it. What is named nowhere does IO.
IO = 2
LEVELS = {
    **dict.fromkeys(("", "counted", "errors", "hosts", "ids", "log", "log_writer"), 0),
    **dict.fromkeys((*DECISIONS, "metric_table", "metrics"), 1),
    **dict.fromkeys((*TRANSPORT, *DOCTOR, "transport.tls", "sinks.base", "config"), 1),
    **dict.fromkeys(("daemon", "demo"), 3),
    "cli": 4,
}


def modules() -> dict[str, Path]:
    """All of the package by their names within it; the package itself is ""."""
    found: dict[str, Path] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def statements(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import that can run; those under TYPE_CHECKING never do."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for other in node.orelse:
                yield from statements(other)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from statements(node)


def imported(module: str) -> set[str]:
    """What a module imports, by full name; of our own the module, whichever way it is written."""
    names: set[str] = set()
    for statement in statements(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(statement, ast.Import):
            names.update(alias.name for alias in statement.names)
            continue
        source = statement.module or ""
        for alias in statement.names:
            whole = f"{source}.{alias.name}"
            names.add(whole if whole.removeprefix("nsqdigest.") in MODULES else source)
    return names


def own(names: set[str]) -> set[str]:
    return {name.removeprefix("nsqdigest").removeprefix(".") for name in names if name.split(".")[0] == "nsqdigest"}


def reached(module: str) -> set[str]:
    """The module and everything of ours that it imports, and that imports in turn, packages on the way included."""
    seen: set[str] = set()
    ahead = [module]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += own(imported(name))
            if "." in name:
                ahead.append(name.rpartition(".")[0])
    return seen


def level_of(module: str) -> int:
    """Of the longest name that is listed: a module stands where its package stands, unless it is listed itself."""
    name = module
    while name not in LEVELS and "." in name:
        name = name.rpartition(".")[0]
    return LEVELS.get(name, IO)


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_imports_nothing_of_the_world(module: str) -> None:
    assert {name for name in imported(module) if name.split(".")[0] in THE_WORLD} == set()


@pytest.mark.parametrize("module", PURE)
def test_nor_does_anything_of_ours_that_it_imports(module: str) -> None:
    found = {
        f"{within or 'nsqdigest'} imports {name}"
        for within in reached(module)
        for name in imported(within)
        if name.split(".")[0] in THE_WORLD
    }
    assert found == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_imports_what_stands_above_it(module: str) -> None:
    above = {name for name in own(imported(module)) if level_of(name) > level_of(module)}
    assert above == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_is_in_the_package_only_for_a_test(module: str) -> None:
    assert {name.split(".")[0] for name in imported(module)} & {"pytest", "hypothesis", "support", "tests"} == set()


def test_what_is_named_here_exists() -> None:
    assert {*PURE, *LEVELS} <= set(MODULES)


def test_an_import_in_a_function_is_seen_and_one_for_types_is_not() -> None:
    tree = ast.parse(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import redis\ndef f():\n    import time\n"
    )
    names = [alias.name for statement in statements(tree) for alias in statement.names]
    assert names == ["TYPE_CHECKING", "time"]
