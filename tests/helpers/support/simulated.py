"""Simulated time: a loop in which time passes only while nothing can run, and then at once. A test of minutes takes
milliseconds, and instants are exact.

For parts that wait for nothing but tasks and timers: what comes through a socket takes real time.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

BEGAN_S = 1000.0
_WALL_CLOCK_S = 1_700_000_000.0


class Time:
    """Stands for the module `time`: `monkeypatch.setattr(scheduler, "time", Time())`."""

    @staticmethod
    def monotonic() -> float:
        return asyncio.get_running_loop().time()

    perf_counter = monotonic

    def time(self) -> float:
        return _WALL_CLOCK_S + self.monotonic()

    def time_ns(self) -> int:
        return round(self.time() * 1e9)


class _Selector(selectors.DefaultSelector):
    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing is left that could ever run"
            self.passed_s += timeout
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._waits = _Selector()
        super().__init__(self._waits)

    def time(self) -> float:
        return BEGAN_S + self._waits.passed_s


def simulated(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs the test from `BEGAN_S` on."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(test(*arguments, **named))

    return run
