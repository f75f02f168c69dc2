"""Generated mutants: what is broken and how, under which name, and what may be argued."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.tree import ROOT, load

pytestmark = pytest.mark.unit

if TYPE_CHECKING:
    from scripts.mutants import generated, lua_operators, lua_scripts, mutant, operators
else:
    generated = load("scripts.mutants.generated")
    lua_operators, lua_scripts = load("scripts.mutants.lua_operators"), load("scripts.mutants.lua_scripts")
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
        ("x = State.A, State.B, Other.C", [
            ("other-member", "State.A", "State.B"), ("other-member", "State.B", "State.A"),
        ]),
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
    for name in generated.suites(ROOT):
        for each in generated.sampled(generated.mutants_of(name, ROOT), 20, 0):
            text = (ROOT / "nsqdigest" / each.file).read_bytes()
            assert each.at is not None
            changed = mutant.applied(each, ROOT / "nsqdigest")
            if each.file.endswith(".py"):
                compile(changed, each.file, "exec")
            behind = len(text) - each.at - len(each.old.encode())
            assert changed.encode() == text[: each.at] + each.new.encode() + text[len(text) - behind :]


def test_every_suite_has_mutants_and_tests_that_are_there() -> None:
    for name in generated.suites(ROOT):
        found = generated.mutants_of(name, ROOT)
        assert len(found) > 5, name
        assert all((ROOT / test).is_file() for test in found[0].tests)


def test_a_sample_is_the_same_for_the_same_seed_and_keeps_the_order() -> None:
    mutants = generated.mutants_of("delivery.digest", ROOT)
    some = generated.sampled(mutants, 5, 1)
    assert some == generated.sampled(mutants, 5, 1) != generated.sampled(mutants, 5, 2)
    assert [each for each in mutants if each in some] == some
    assert generated.sampled(mutants, 10_000, 1) == mutants


def test_an_argument_for_nothing_is_an_error_of_the_table(tmp_path: Path) -> None:
    table = tmp_path / "argued.toml"
    table.write_text('[[argued]]\nmodule = "delivery.digest"\nwhy = "x"\nmutants = ["rfc3339: 3 -> 4"]\n')
    with pytest.raises(mutant.StaleList, match="  rfc3339: 3 -> 4"):
        generated.mutants_of("delivery.digest", ROOT, table)


# -- scripts


def broken_lua(text: str) -> list[tuple[str, str, str]]:
    return [(change.operator, change.old, change.new) for change in lua_operators.changes_of(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("local a = b < c", [("boundary", "<", "<="), ("opposite", "<", ">=")]),
        ("local a = b == c and d", [("opposite", "==", "~="), ("and-or", "and", "or")]),
        ("local a = not b", [("drop-not", "not", "")]),
        ("local a = 7", [("minus-one", "7", "(6)"), ("plus-one", "7", "8")]),
        ("local a = 1e6", [("double", "1e6", "(2 * 1e6)")]),
        ("local a = b - c", [("arithmetic", "-", "+")]),
        ("local a = -c", [("drop-minus", "-", "")]),
        ("local a = math.min(b, c)", [("other-function", "min", "max")]),
        ("if a then\n  b = c\nend", [("negate", "a", "not (a)"), ("drop-assignment", "b = c", "do end")]),
        ("a[1], b = c\nlocal d", [
            ("drop-assignment", "a[1], b = c", "do end"), ("minus-one", "1", "(0)"), ("plus-one", "1", "2"),
        ]),
        ("local x = y\nf(a)\nlocal z", [("drop-call", "f(a)", "do end")]),
        ("redis.call('HSET', a, b, c)", [
            ("drop-call", "redis.call('HSET', a, b, c)", "do end"), ("swap", "a, b", "b, a"), ("swap", "b, c", "c, b"),
        ]),
        ("local x = f(a,\n  b.c)", [("swap", "a,\n  b.c", "b.c,\n  a")]),
        ("local x = f(a, '-inf', 'LT')", [
            ("swap", "a, '-inf'", "'-inf', a"), ("swap", "'-inf', 'LT'", "'LT', '-inf'"), ("flag", "'-inf'", "'+inf'"),
            ("flag", "'LT'", "'GT'"),
        ]),
        ("local x = { 'open', 'added:late' }", [
            ("other-word", "'open'", "'added:late'"), ("other-word", "'added:late'", "'open'"),
        ]),
        ("local function f(a, b)\n  return a\nend", [("return-nil", "return a", "return nil")]),
        ("local x = '1 < 2' -- and 3 < 4\n--[[ 5 ]]", []),
    ],
)  # fmt: skip
def test_what_is_broken_of_a_script_and_how(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert sorted(broken_lua(text)) == sorted(expected)


def test_a_change_of_a_script_says_in_which_function_and_line_and_counts_places_in_bytes() -> None:
    text = "-- µs\nlocal function f()\n  if a then\n    b(1)\n  end\nend\nb(2)\n"
    found = [change for change in lua_operators.changes_of(text) if change.operator == "plus-one"]
    assert [(change.line, str(change)) for change in found] == [(4, "f: b(1): 1 -> 2"), (7, "script: b(2): 2 -> 3")]
    assert [text.encode()[change.start : change.start + 1] for change in found] == [b"1", b"2"]


def test_the_tests_of_a_script_are_its_own_first_and_the_model_last(tmp_path: Path) -> None:
    for path, text in {
        "nsqdigest/lua/lib/deep.lua": "", "nsqdigest/lua/lib/shared.lua": "-- @include lib/deep.lua\n",
        "nsqdigest/lua/side/one.lua": "-- @include lib/shared.lua\n", "nsqdigest/lua/side/two.lua": "",
        "tests/lua/test_one.py": "store.one()", "tests/lua/test_both.py": "store.one(), store.two()",
    }.items():  # fmt: skip
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    last = (lua_scripts.CUT_OFF, lua_scripts.MODEL)
    assert lua_scripts.suites(tmp_path) == ["lua:lib/deep", "lua:lib/shared", "lua:side/one", "lua:side/two"]
    assert lua_scripts.tests_of("lua:side/two", tmp_path) == ("tests/lua/test_both.py", *last)
    for suite in ("lua:side/one", "lua:lib/shared", "lua:lib/deep"):
        assert lua_scripts.tests_of(suite, tmp_path) == ("tests/lua/test_one.py", "tests/lua/test_both.py", *last)
