"""Runs the tests against a copy of the package: as it is, or with one mutant in it.

A run is a process group of its own, which is ended as a whole, servers included, whatever ended the run: its verdict,
its time or Ctrl-C.
"""

from __future__ import annotations

import enum
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scripts.mutants.mutant import Mutant, applied

PACKAGE = "nsqdigest"
RUN_TIMEOUT_S = 900.0
END_TIMEOUT_S = 5.0
# Without the working folder on the path, where the tree's own package would come first.
_PYTHON = (sys.executable, "-P")
_PYTEST = ("-m", "pytest", "-x", "-q", "--no-header", "--tb=line", "-p", "no:randomly", "-p", "no:cacheprovider")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TOLD = re.compile(r"^(?:FAILED|ERROR|E  ) .*", re.MULTILINE)
_LUA_DOES_NOT_LOAD = "Error compiling script"


class Outcome(enum.StrEnum):
    CAUGHT = "caught"
    SURVIVED = "survived"
    ARGUED = "survived, argued"
    BROKEN = "broken"


class Verdict(NamedTuple):
    mutant: Mutant
    outcome: Outcome
    took_s: float
    detail: str


class Interrupted(Exception):
    """This run was ended from outside."""


class Runner:
    """The package is taken as it is now, whatever is edited meanwhile."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept = tempfile.TemporaryDirectory(prefix="mutants-")
        self._copy(root, Path(self._kept.name))
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False

    def end(self) -> None:
        """Ends all that is running, and lets nothing begin."""
        with self._lock:
            self._is_over = True
            running = list(self._running)
        for process in running:
            _end_group(process)

    def close(self) -> None:
        self._kept.cleanup()

    # -- runs

    def baseline(self, tests: Sequence[str]) -> str:
        """What fails with the package as it is; nothing: ''."""
        with tempfile.TemporaryDirectory(prefix="mutants-") as name:
            folder = self._copy_to_break(Path(name))
            code, output = self._python(folder, [*_PYTEST, f"--basetemp={folder}/tmp", *tests])
        return "" if code == 0 else "\n".join(_TOLD.findall(output)) or _last_line(output)

    def judge(self, mutant: Mutant) -> Verdict:
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutants-") as name:
            folder = self._copy_to_break(Path(name))
            path = folder / PACKAGE / mutant.file
            path.write_text(applied(mutant, folder / PACKAGE), "utf-8")
            if path.suffix == ".py":
                module = ".".join((PACKAGE, *Path(mutant.file).with_suffix("").parts))
                code, output = self._python(folder, ["-c", f"import {module}"])
                if code:
                    return Verdict(mutant, Outcome.BROKEN, time.monotonic() - began_s, _last_line(output))
            code, output = self._python(folder, [*_PYTEST, f"--basetemp={folder}/tmp", *mutant.tests])
        took_s = time.monotonic() - began_s
        if code == 0:
            outcome = Outcome.ARGUED if mutant.argued else Outcome.SURVIVED
            return Verdict(mutant, outcome, took_s, mutant.argued)
        if _LUA_DOES_NOT_LOAD in output:
            return Verdict(mutant, Outcome.BROKEN, took_s, _LUA_DOES_NOT_LOAD)
        found = _FAILED.search(output)
        # 1: a test failed; anything else but running out of time is no verdict about the mutant.
        if code not in {1, _OUT_OF_TIME}:
            return Verdict(mutant, Outcome.BROKEN, took_s, f"pytest ended with {code}: {_last_line(output)}")
        return Verdict(mutant, Outcome.CAUGHT, took_s, found.group(1) if found else _last_line(output))

    @staticmethod
    def _copy(from_folder: Path, to_folder: Path) -> None:
        shutil.copytree(from_folder / PACKAGE, to_folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))

    def _copy_to_break(self, folder: Path) -> Path:
        self._copy(Path(self._kept.name), folder)
        code, output = self._python(folder, ["-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"])
        if code or folder.resolve() not in Path(output.strip()).resolve().parents:
            raise RuntimeError(f"the tests would not run against the copy in {folder}, but against {output.strip()}")
        return folder

    def _python(self, folder: Path, arguments: Sequence[str]) -> tuple[int, str]:
        left_out = {"NSQDIGEST_TEST_INSTALLED", "NSQDIGEST_PROVE", "PYTHONHOME", "PYTEST_ADDOPTS"}
        environment = {name: value for name, value in os.environ.items() if name not in left_out}
        environment |= {
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_PROFILE": "first-failure",
        }
        with self._lock:
            if self._is_over:
                raise Interrupted
            process = subprocess.Popen(
                [*_PYTHON, *arguments], cwd=self._root, env=environment, text=True, errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        try:
            output, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return _OUT_OF_TIME, f"not done after {RUN_TIMEOUT_S:g} s"
        finally:
            _end_group(process)
            with self._lock:
                self._running.discard(process)
        if self._is_over:
            raise Interrupted
        return process.returncode, output


_OUT_OF_TIME = 1000


def _end_group(process: subprocess.Popen[str]) -> None:
    """The run and every server it started. Of a run that ended by itself there is nothing left, as a rule."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_TIMEOUT_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "(no output)"
