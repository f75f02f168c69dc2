"""What one run does, in a process of its own that was forked from one where the libraries are loaded already: it tests
a copy of the package, and ends with pytest's exit code.

The copy comes first on the path, for this process and for those that tests start. What tests print goes to a file in
the copy's folder, and so does, where `watched` is asked for, which test reached which lines of that module.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import pytest

PACKAGE = "nsqdigest"
OUTPUT = "output.txt"
REACH = "reach.json"
NOT_THE_COPY = 98
NOT_LOADED = 99

# Every run imports them; that of the copy itself, and of pytest's plugins, is each run's own.
PRELOADED = ("pytest", "hypothesis", "redis.asyncio", "msgspec", "aiohttp.web", "tornado.iostream", "cramjam", "click")

_PYTEST = (
    "-x", "-q", "--no-header", "--tb=line", "-p", "no:randomly", "-p", "no:cacheprovider",
    "-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
)  # fmt: skip
_NOT_INHERITED = ("NSQDIGEST_TEST_INSTALLED", "NSQDIGEST_PROVE", "PYTHONHOME", "PYTEST_ADDOPTS")


class Job(NamedTuple):
    root: Path
    folder: Path
    """Has the copy."""
    module: str
    """Is loaded first: whether it can be is no question to the tests."""
    tests: Sequence[str]
    only: Sequence[str] | None
    """Of the tests these, in this order."""
    watched: bool


def run(job: Job) -> None:
    folder = job.folder
    os.setsid()  # a group of its own, which can be ended as a whole
    _end_with_the_command()
    _redirect(folder / OUTPUT)
    os.chdir(job.root)
    for name in _NOT_INHERITED:
        os.environ.pop(name, None)
    os.environ |= {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "first-failure",
    }
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(folder))
    plugins: list[object] = [] if job.only is None else [_Chosen(job.only)]
    try:
        if job.watched:
            plugins.append(_Watch(folder, job.module))
        package = importlib.import_module(PACKAGE)
        if folder.resolve() not in Path(str(package.__file__)).resolve().parents:
            print(f"the tests would not run against the copy in {folder}, but against {package.__file__}")
            _end(NOT_THE_COPY)
        importlib.import_module(job.module)
    except Exception:
        traceback.print_exc(limit=-1)
        _end(NOT_LOADED)
    _end(pytest.main([*_PYTEST, f"--basetemp={folder}/tmp", *job.tests], plugins=plugins))


def _end_with_the_command() -> None:
    """Whatever ended the command (SIGKILL, too), this run ends with it, and so do the servers in its group."""
    command = multiprocessing.parent_process()
    assert command is not None

    def wait() -> None:
        command.join()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="end-with-the-command", daemon=True).start()


def _redirect(path: Path) -> None:
    nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for from_file, to_file in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(from_file, to_file)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # whatever a mutant left running in this process


class _Chosen:
    """Runs these tests, in this order."""

    def __init__(self, ids: Sequence[str]) -> None:
        self._places = {name: place for place, name in enumerate(ids)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._places), key=lambda item: self._places[item.nodeid]
        )


class _Watch:
    """Records which lines of one module are reached at import, and which by each test, and how long that took."""

    def __init__(self, folder: Path, module: str) -> None:
        self._file = str(folder.joinpath(*module.split(".")).with_suffix(".py"))
        self._path = folder / REACH
        self._lines: set[int] = set()
        self._tests: dict[str, tuple[float, list[int]]] = {}
        self._at_import = self._lines
        self._trace(self._global)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        began_s = time.monotonic()
        self._lines = set()
        self._trace(self._global)
        result = yield
        self._tests[item.nodeid] = time.monotonic() - began_s, sorted(self._lines)
        return result

    def pytest_sessionfinish(self) -> None:
        self._trace(None)
        self._path.write_text(json.dumps({"import": sorted(self._at_import), "tests": self._tests}), "utf-8")

    def _global(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._local(frame, event, argument) if frame.f_code.co_filename == self._file else None

    def _local(self, frame: FrameType, event: str, argument: object) -> Any:
        self._lines.add(frame.f_lineno)
        return self._local

    @staticmethod
    def _trace(function: Any) -> None:
        sys.settrace(function)
        threading.settrace(function)
