"""The rooms of the package and what each may import: the rule that CONTRIBUTING.md has in one line.

    base, config, nsq | store, intake | delivery, admin, daemon, audit | doctor | trial | demo, cli:
    import from your left only

What `|` parts do not know each other. A type is imported from where it is made, so an import for types counts like any
other. `backoff.py` stands in base, `consumer.py` in intake.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import nsqdigest

pytestmark = pytest.mark.unit

PACKAGE = Path(nsqdigest.__file__).parent

RULE = "base, config, nsq | store, intake | delivery, admin, daemon, audit | doctor | trial | demo, cli"
GROUPS = [group.split(" | ") for group in RULE.split(", ")]
PLACE = {room: place for place, group in enumerate(GROUPS) for room in group}
ROOM_OF_FILE = {"": "base", "backoff": "base", "consumer": "intake", "__main__": "cli"}
"""Of what stands beside the rooms."""

PURE = (
    "admin.guard", "admin.screen", "admin.views", "audit.ledger", "audit.report", "backoff",
    "base.allowed_hosts", "base.calendar", "base.conditions", "base.dropping", "base.errors", "base.findings",
    "base.host_names", "base.http.public_addresses",
    "base.local_time", "base.log_counts", "base.moments", "base.quiet_hours", "base.reasons", "base.screen",
    "base.shown", "base.templates", "base.words", "daemon.history", "daemon.routes", "daemon.verdict",
    "delivery.bodies.base", "delivery.bodies.checking", "delivery.bodies.document", "delivery.bodies.encoding",
    "delivery.bodies.filters", "delivery.bodies.formats", "delivery.bodies.message", "delivery.bodies.sample",
    "delivery.bodies.sandbox", "delivery.bodies.slack", "delivery.bodies.teams", "delivery.bodies.template",
    "delivery.bodies.terminal", "delivery.bodies.texts", "delivery.bodies.values", "delivery.bodies.work",
    "delivery.digest", "delivery.fields", "delivery.grouped", "delivery.hosts", "delivery.ids",
    "delivery.mail.addresses", "delivery.mail.addressing", "delivery.mail.answers", "delivery.mail.compose",
    "delivery.mail.content", "delivery.mail.fragment", "delivery.mail.html", "delivery.mail.mime",
    "delivery.mail.reading", "delivery.mail.text", "delivery.sink_state", "delivery.sinks.base", "delivery.targets",
    "delivery.verdicts", "demo.account", "demo.header", "demo.lines", "demo.picture", "doctor.findings",
    "doctor.judgements", "doctor.report", "doctor.running", "intake.batch", "intake.bodies", "intake.late_answers",
    "intake.letter_reading", "intake.names", "intake.oversize", "intake.rdy", "intake.routing", "intake.shapes",
    "intake.timestamps", "nsq.compression", "nsq.directory", "nsq.frames", "nsq.negotiation", "nsq.publish_rules",
    "store.acknowledged", "store.answers", "store.explanation", "store.head", "store.keys", "store.packing",
    "store.record", "store.route", "store.schedule", "trial.events", "trial.hints", "trial.report", "trial.simulation",
    "trial.simulator", "trial.streams", "trial.trial",
)  # fmt: skip
THE_WORLD = {
    "aiohttp", "asyncio", "click", "concurrent", "logging", "nsq", "os", "random", "redis", "secrets", "selectors",
    "signal", "socket", "ssl", "subprocess", "threading", "time", "tornado",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """All of the package by their names within it; the package itself is ""."""
    found: dict[str, Path] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room_of(module: str) -> str:
    first = module.partition(".")[0]
    return ROOM_OF_FILE.get(first, first)


def statements(tree: ast.AST, *, for_types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import, in a function too; those under TYPE_CHECKING, which never run, where they are asked for."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING") and not for_types:
            for other in node.orelse:
                yield from statements(other, for_types=for_types)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            yield from statements(node, for_types=for_types)


def imported(module: str, *, for_types: bool = False) -> set[str]:
    """What a module imports, by full name; of our own the module, whichever way it is written."""
    names: set[str] = set()
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for statement in statements(tree, for_types=for_types):
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


def may_import(room: str, other: str) -> bool:
    return room == other or PLACE[other] < PLACE[room]


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


def test_every_module_stands_in_a_room() -> None:
    assert {room_of(module) for module in MODULES} == set(PLACE)


@pytest.mark.parametrize("room", PLACE)
def test_a_room_imports_from_its_left_only_types_included(room: str) -> None:
    wrong = {
        f"{module} imports {name}"
        for module in MODULES
        if room_of(module) == room
        for name in own(imported(module, for_types=True))
        if not may_import(room, room_of(name))
    }
    assert wrong == set()


def test_the_rule_is_the_one_that_contributors_read() -> None:
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text("utf-8")
    assert RULE in " ".join(text.split())


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_is_in_the_package_only_for_a_test(module: str) -> None:
    assert {name.split(".")[0] for name in imported(module)} & {"pytest", "hypothesis", "support", "tests"} == set()


def test_what_is_named_here_exists() -> None:
    assert set(PURE) <= set(MODULES)


def test_an_import_in_a_function_is_seen_and_one_for_types_where_it_is_asked_for() -> None:
    tree = ast.parse(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import redis\ndef f():\n    import time\n"
    )

    def names(*, for_types: bool) -> list[str]:
        return [alias.name for found in statements(tree, for_types=for_types) for alias in found.names]

    assert names(for_types=False) == ["TYPE_CHECKING", "time"]
    assert names(for_types=True) == ["TYPE_CHECKING", "redis", "time"]
