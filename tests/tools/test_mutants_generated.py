"""Generated mutants: what is broken and how, under which name, and what may be argued."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.tree import ROOT, load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from scripts.mutants import generated, modules, mutant, operators
else:
    generated, modules = load("scripts.mutants.generated"), load("scripts.mutants.modules")
    mutant, operators = load("scripts.mutants.mutant"), load("scripts.mutants.operators")


def broken(text: str) -> list[tuple[str, str, str]]:
    return [(change.operator, change.old, change.new) for change in operators.changes_of(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a < b", [("opposite", "a < b", "(a >= b)"), ("boundary", "a < b", "(a <= b)")]),
        ("a is b", [("opposite", "a is b", "(a is not b)")]),
        ("a < b == c", [
            ("opposite", "a < b == c", "(a < b != c)"), ("boundary", "a < b == c", "(a <= b == c)"),
            ("opposite", "a < b == c", "(a >= b == c)"),
        ]),
        ("a and b", [("and-or", "a and b", "(a or b)")]),
        ("not a", [("drop-not", "not a", "(a)")]),
        ("if a: b", [("negate", "a", "(not a)")]),
        ("if a and b: c", [("and-or", "a and b", "(a or b)")]),
        ("x = a if b else c", [("negate", "b", "(not b)")]),
        ("x = [a for a in b if c]", [("negate", "c", "(not c)")]),
        ("x = 7", [("minus-one", "7", "(6)"), ("plus-one", "7", "8")]),
        ("x = 0.5", [("double", "0.5", "1.0")]),
        ("x = True", [("flip", "True", "False")]),
        ("a + b", [("arithmetic", "a + b", "(a - b)")]),
        ("min(a, b)", [("drop-call", "min(a, b)", "pass"), ("other-function", "min", "max")]),
        ("x = f(a, b, c)", [("swap", "f(a, b, c)", "(f(b, a, c))")]),
        ("await f()", [("drop-call", "await f()", "pass")]),
        ("x = await asyncio.shield(y)", [("drop-shield", "asyncio.shield(y)", "(y)")]),
        ("self.a = b", [("drop-assignment", "self.a = b", "pass")]),
        ("a += b", [("drop-assignment", "a += b", "pass")]),
        ("def f():\n    return a", [("return-none", "return a", "return None")]),
        ("raise a", [("drop-raise", "raise a", "pass")]),
        ("for a in b:\n    break", [("drop-break", "break", "pass")]),
        ("try: a\nexcept E:\n    b\n    c", [("handle-nothing", "b\n    c", "raise")]),
    ],
)  # fmt: skip
def test_what_is_broken_and_how(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert sorted(broken(text)) == sorted(expected)


@pytest.mark.parametrize(
    "text",
    [
        "x = a",
        "import a, b",
        "assert 1 < 2",
        "x = f'{1 + 1}'",
        "'a %d' % x",
        "x = zip(a, strict=True)",
        "@dataclass(frozen=True)\nclass A:\n    a: Sequence[1]",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "if TYPE_CHECKING:\n    x = 1",
        "def f():\n    return None",
        "class A:\n    def __init__(self):\n        self.a = b",
    ],
)
def test_what_nobody_may_rely_on_is_left_alone(text: str) -> None:
    assert broken(text) == []


def test_a_log_line_may_be_missing_but_what_it_says_is_left_alone() -> None:
    assert broken("_log.info('a.b', count=len(x) + 1)") == [("drop-call", "_log.info('a.b', count=len(x) + 1)", "pass")]


def test_a_name_says_where_and_counts_what_would_be_the_same() -> None:
    changes = operators.changes_of("class A:\n    def f(self):\n        x = 1, 1\n")
    assert operators.names_of("m", changes) == [
        "m:A.f:3:minus-one", "m:A.f:3:plus-one", "m:A.f:3:minus-one#2", "m:A.f:3:plus-one#2",
    ]  # fmt: skip


def test_a_generated_mutant_is_python_and_changes_its_place_only() -> None:
    package = ROOT / "nsqdigest"
    for name in modules.TESTS:
        text = (package / f"{name.replace('.', '/')}.py").read_bytes()
        for each in generated.sampled(generated.mutants_of(name, package), 20, 0):
            assert each.at is not None
            changed = mutant.applied(each, package)
            compile(changed, each.file, "exec")
            behind = len(text) - each.at - len(each.old.encode())
            assert changed.encode() == text[: each.at] + each.new.encode() + text[len(text) - behind :]


def test_every_module_has_mutants_and_tests_that_are_there() -> None:
    for name, tests in modules.TESTS.items():
        assert len(generated.mutants_of(name, ROOT / "nsqdigest")) > 20
        assert all((ROOT / test).is_file() for test in tests)


def test_a_sample_is_the_same_for_the_same_seed_and_keeps_the_order() -> None:
    mutants = generated.mutants_of("delivery.digest", ROOT / "nsqdigest")
    some = generated.sampled(mutants, 5, 1)
    assert some == generated.sampled(mutants, 5, 1) != generated.sampled(mutants, 5, 2)
    assert [each for each in mutants if each in some] == some
    assert generated.sampled(mutants, 10_000, 1) == mutants


def test_an_argument_for_nothing_is_an_error_of_the_table(tmp_path: Path) -> None:
    table = tmp_path / "argued.toml"
    table.write_text('[[argued]]\nmodule = "delivery.digest"\nwhy = "x"\nmutants = ["rfc3339: 3 -> 4"]\n')
    with pytest.raises(mutant.StaleList, match="  rfc3339: 3 -> 4"):
        generated.mutants_of("delivery.digest", ROOT / "nsqdigest", table)
