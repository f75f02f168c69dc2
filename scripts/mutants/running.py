"""Runs the tests against a copy of the package: as it is, or with one mutant in it.

A run is a process group of its own, which is ended as a whole, servers included, whatever ended the run: its verdict,
its time or Ctrl-C.
"""

from __future__ import annotations

import enum
import json
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

from scripts.mutants import job
from scripts.mutants.job import PACKAGE, Job
from scripts.mutants.mutant import Mutant, applied

RUN_TIMEOUT_S = 900.0
END_TIMEOUT_S = 5.0
_OUT_OF_TIME = 1000
# Of a run whose tests are known: how much longer they may take than they took while they were watched, which slows them
# down several times, and what the rest of it may take.
_TIMES_SLOWER = 2
_START_TIMEOUT_S = 20.0
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_TOLD = re.compile(r"^(?:FAILED|ERROR|E  ) .*", re.MULTILINE)
_LUA_DOES_NOT_LOAD = "Error compiling script"


class Outcome(enum.StrEnum):
    CAUGHT = "caught"
    SURVIVED = "survived"
    ARGUED = "survived, argued"
    BROKEN = "broken"
    NOT_LOADED = "does not load"


class Verdict(NamedTuple):
    mutant: Mutant
    outcome: Outcome
    took_s: float
    detail: str


class Interrupted(Exception):
    """This run was ended from outside."""


class Reach(NamedTuple):
    """What of one module its tests reach."""

    at_import: frozenset[int]
    tests: dict[str, tuple[float, frozenset[int]]]
    """Of each test: how many seconds it took, and the lines."""

    def tests_of(self, lines: range) -> list[str]:
        """Those that reach one of these lines, the quickest first. What runs at import is met by all of them, also by
        those that only look at a table."""
        wanted = frozenset(lines)
        found = {
            name: took_s
            for name, (took_s, reached) in self.tests.items()
            if reached & wanted or self.at_import & wanted
        }
        return sorted(found, key=lambda name: found[name])

    def took_s(self, tests: Sequence[str]) -> float:
        return sum(self.tests[name][0] for name in tests)


class Runner:
    """The package is taken as it is now, whatever is edited meanwhile."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept = tempfile.TemporaryDirectory(prefix="mutants-")
        self._copy(root, Path(self._kept.name))
        self._lock = threading.Lock()
        self._running: set[ForkServerProcess] = set()
        self._is_over = False
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["scripts.mutants.job", *job.PRELOADED])

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
            code, output = self._run(self._copied(Path(name)), PACKAGE, tests)
        return "" if code == 0 else _what_failed(output)

    def reach(self, file: str, tests: Sequence[str]) -> Reach | str:
        """What these tests reach of this file of the package as it is; or what fails."""
        with tempfile.TemporaryDirectory(prefix="mutants-") as name:
            folder = self._copied(Path(name))
            code, output = self._run(folder, _module(file), tests, watched=True)
            if code:
                return _what_failed(output)
            found = json.loads((folder / job.REACH).read_text("utf-8"))
        return Reach(
            frozenset(found["import"]),
            {test: (took_s, frozenset(lines)) for test, (took_s, lines) in found["tests"].items()},
        )

    def judge(self, mutant: Mutant, reach: Reach | None = None) -> Verdict:
        """With `reach`: by the tests that reach its lines."""
        began_s = time.monotonic()
        tests, only, timeout_s = mutant.tests, None, RUN_TIMEOUT_S
        if reach is not None and mutant.lines is not None:
            only = reach.tests_of(mutant.lines)
            tests = tuple(dict.fromkeys(name.partition("::")[0] for name in only))
            timeout_s = _START_TIMEOUT_S + _TIMES_SLOWER * reach.took_s(only)
            if not only:
                return Verdict(mutant, _survival(mutant), 0, mutant.argued or "no test reaches it")
        with tempfile.TemporaryDirectory(prefix="mutants-") as name:
            folder = self._copied(Path(name))
            path = folder / PACKAGE / mutant.file
            path.write_text(applied(mutant, folder / PACKAGE), "utf-8")
            module = _module(mutant.file) if path.suffix == ".py" else PACKAGE
            code, output = self._run(folder, module, tests, only, timeout_s=timeout_s)
        return _verdict(mutant, code, output, time.monotonic() - began_s)

    @staticmethod
    def _copy(from_folder: Path, to_folder: Path) -> None:
        shutil.copytree(from_folder / PACKAGE, to_folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))

    def _copied(self, folder: Path) -> Path:
        self._copy(Path(self._kept.name), folder)
        return folder

    def _run(
        self, folder: Path, module: str, tests: Sequence[str], only: Sequence[str] | None = None, *,
        watched: bool = False, timeout_s: float = RUN_TIMEOUT_S,
    ) -> tuple[int, str]:  # fmt: skip
        of = Job(self._root, folder, module, tests, only, watched)
        process = self._context.Process(target=job.run, args=(of,))
        with self._lock:
            if self._is_over:
                raise Interrupted
            process.start()
            self._running.add(process)
        try:
            process.join(timeout_s)
            code = process.exitcode
        finally:
            _end_group(process)
            with self._lock:
                self._running.discard(process)
        if self._is_over:
            raise Interrupted
        path = folder / job.OUTPUT
        output = path.read_text("utf-8", "replace") if path.exists() else ""
        if code == job.NOT_THE_COPY:
            raise RuntimeError(output.strip())
        return (_OUT_OF_TIME, f"not done after {timeout_s:.0f} s") if code is None else (code, output)


def _module(file: str) -> str:
    return ".".join((PACKAGE, *Path(file).with_suffix("").parts))


def _end_group(process: ForkServerProcess) -> None:
    """The run and every server it started. Of a run that ended by itself there is nothing left, as a rule."""
    assert process.pid is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        process.join(END_TIMEOUT_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


def _survival(mutant: Mutant) -> Outcome:
    return Outcome.ARGUED if mutant.argued else Outcome.SURVIVED


def _verdict(mutant: Mutant, code: int, output: str, took_s: float) -> Verdict:
    if code == 0:
        return Verdict(mutant, _survival(mutant), took_s, mutant.argued)
    if code == job.NOT_LOADED or _LUA_DOES_NOT_LOAD in output:
        # Nobody means to write one by hand; of the generated ones some are such.
        outcome = Outcome.BROKEN if mutant.at is None else Outcome.NOT_LOADED
        return Verdict(mutant, outcome, took_s, _last_line(output))
    found = _FAILED.search(output)
    # 1: a test failed; 2: a file of tests did not load. Else only running out of time says anything about the mutant.
    if code not in {1, _OUT_OF_TIME} and not (code == 2 and found):
        return Verdict(mutant, Outcome.BROKEN, took_s, f"pytest ended with {code}: {_last_line(output)}")
    return Verdict(mutant, Outcome.CAUGHT, took_s, found.group(1) if found else _last_line(output))


def _what_failed(output: str) -> str:
    return "\n".join(_TOLD.findall(output)) or _last_line(output)


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "(no output)"
