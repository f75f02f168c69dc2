"""The mutants command: every mutant fits the package, and it tells what the tests notice from what they do not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.keeper import is_running, kept
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]

# A package of one rule, its test, and mutants of each kind.
RULES = "def double(number):\n    return number + number  # twice\n"
TEST = """
import os, pathlib, time
from nsqdigest.rules import double

def test_double():
    if os.environ.get("SLOW"):
        pathlib.Path(os.environ["SLOW"]).write_text(str(os.getpid()))
        time.sleep(600)
    assert double(3) == 6
"""
LIST = """
from scripts.mutants.mutant import Mutant

def mutant(name, old, new, **more):
    return Mutant(name=name, file="rules.py", old=old, new=new, rule="doubles", tests=("tests/test_rules.py",), **more)

MUTANTS = (
    mutant("wrong", "number + number", "number"),
    mutant("other way", "number + number", "2 * number"),
    mutant("other way, argued", "number + number", "2 * number", argued="it is the same"),
    mutant("not python", "number + number", "number +"),
)
"""
CONFTEST = """
from hypothesis import settings

settings.register_profile("first-failure")
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "scripts" / "mutants", tmp_path / "scripts" / "mutants")
    for name, text in {
        "nsqdigest/__init__.py": "", "nsqdigest/rules.py": RULES, "tests/test_rules.py": TEST,
        "tests/conftest.py": CONFTEST, "scripts/mutants/known_defects.py": LIST,
        "scripts/mutants/modules.py": "TESTS = {}\n", "scripts/mutants/argued.toml": "",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    return tmp_path


def mutants(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.mutants", *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_every_mutant_fits_the_package() -> None:
    listed = mutants(ROOT, "--list", "--sample", "3")
    assert (listed.returncode, listed.stderr) == (0, "")
    suites = {line.partition(":")[0] for line in listed.stdout.splitlines()}
    assert {"backoff", "intake.rdy", "lua", "delivery/claim"} <= suites


def test_a_suite_stands_for_all_whose_names_go_on_from_it(tree: Path) -> None:
    for name in ("one", "two"):
        (tree / "nsqdigest" / "lua" / "side").mkdir(parents=True, exist_ok=True)
        (tree / "nsqdigest" / "lua" / "side" / f"{name}.lua").write_text("return 1 < 2\n")
    listed = mutants(tree, "--list", "lua")
    assert {line.split()[0].rpartition(":")[0] for line in listed.stdout.splitlines()} == {
        "lua:side/one:script:1", "lua:side/two:script:1",
    }  # fmt: skip
    assert "there is no suite 'lu'" in mutants(tree, "lu").stderr


def test_each_verdict_and_that_a_survivor_fails_the_run(tree: Path) -> None:
    done = mutants(tree)
    table = done.stdout.split("\nverdict", 1)[1]
    for verdict, name in (
        ("caught", "wrong"), ("survived", "other way"), ("survived, argued", "other way, argued"),
        ("broken", "not python"),
    ):  # fmt: skip
        assert any(
            line.startswith(f"{verdict:16}") and line[18:].startswith(f"{name:17}") for line in table.splitlines()
        ), table
    assert done.returncode == 1


def test_a_run_of_caught_and_argued_ones_passes(tree: Path) -> None:
    done = mutants(tree, "--only", "wrong", "--only", "other way, argued")
    assert done.returncode == 0
    assert "2 mutants" in done.stdout


def test_a_list_that_does_not_fit_runs_nothing(tree: Path) -> None:
    (tree / "nsqdigest" / "rules.py").write_text(RULES.replace("number + number", "2 * number"))
    done = mutants(tree)
    assert (done.returncode, done.stdout) == (2, "")
    assert "wrong: in rules.py its text is 0 times and not once: number + number" in done.stderr


def test_tests_that_fail_anyway_catch_nothing(tree: Path) -> None:
    (tree / "nsqdigest" / "rules.py").write_text(RULES.replace("# twice", "+ 1"))
    done = mutants(tree, "--only", "wrong")
    assert done.returncode == 2
    assert "the tests fail without any mutant" in done.stderr


def test_generated_mutants_meet_the_tests_that_reach_them(tree: Path) -> None:
    (tree / "nsqdigest" / "rules.py").write_text(
        "HALVES = range(0, 2, 1)\n\n\ndef double(number):\n    return number * len(HALVES)\n\n\n"
        "def triple(number):\n    return number * 3\n"
    )
    (tree / "scripts" / "mutants" / "modules.py").write_text('TESTS = {"rules": ("tests/test_rules.py",)}\n')
    (tree / "scripts" / "mutants" / "argued.toml").write_text(
        '[[argued]]\nmodule = "rules"\nwhy = "nobody calls it"\nmutants = ["triple: 3 -> 4", "module: 1 -> 2"]\n'
    )
    done = mutants(tree, "rules")
    for row in (
        "caught            rules:double:5:return-none",
        "caught            rules:module:1:plus-one ",
        "does not load     rules:module:1:minus-one#3",
        "survived          rules:triple:9:minus-one",
        "survived, argued  rules:triple:9:plus-one",
    ):
        assert any(line.startswith(row) for line in done.stdout.splitlines()), done.stdout
    assert "no test reaches it" in done.stdout
    assert done.returncode == 1
    assert mutants(tree, "rules", "--only", "rules:double:5:return-none").returncode == 0
    assert len(mutants(tree, "rules", "--list", "--sample", "3").stdout.splitlines()) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ended_in_the_middle_it_ends_what_it_started(tree: Path, number: signal.Signals) -> None:
    told = tree / "pid"
    process = kept(subprocess.Popen(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-m", "scripts.mutants"],
        cwd=tree, env={**os.environ, "SLOW": str(told)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ))  # fmt: skip
    wait_until(lambda: told.exists() and told.read_text(), 60, "a run to begin")
    process.send_signal(number)
    assert process.wait(PATIENCE_S) == (-signal.SIGKILL if number is signal.SIGKILL else 130)
    wait_until(lambda: not is_running(int(told.read_text())), what="the run to be gone")
