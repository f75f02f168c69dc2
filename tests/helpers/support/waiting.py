"""Waiting for a condition, with a deadline. Tests never sleep for luck: they say what they wait for.

A predicate returns something true if the condition holds, and the wait returns that. An exception of a predicate is
not swallowed: a condition that cannot be read is a failure, not a wait.

A wait ends as soon as its condition holds, so patience costs a test that passes nothing. It is `PATIENCE_S` for every
wait, because a busy machine may need many times what a quiet one needs. A caller names a time only if the condition
takes longer even on a quiet machine: a shorter time than `PATIENCE_S` has no effect. A test of how long something
takes compares two durations of the same run, or uses simulated time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, overload

T = TypeVar("T")

PATIENCE_S = 60.0
FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.05


class NotInTime(AssertionError):
    """The condition did not hold before its deadline."""


def _pauses(timeout_s: float) -> Iterator[float]:
    """Pauses that grow up to a limit and end at the deadline. After the last one there is one more look."""
    deadline_s = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while (left_s := deadline_s - time.monotonic()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


def _not_in_time(what: str, timeout_s: float, last: object) -> NotInTime:
    return NotInTime(f"waited {timeout_s:g} s for {what}; at last it was {last!r}")


def wait_until(predicate: Callable[[], T], timeout_s: float = 0.0, what: str = "the condition") -> T:
    """Waits until the predicate is true, and returns its result."""
    timeout_s = max(timeout_s, PATIENCE_S)
    answer = predicate()
    for pause_s in _pauses(timeout_s):
        if answer:
            return answer
        time.sleep(pause_s)
        answer = predicate()
    if answer:
        return answer
    raise _not_in_time(what, timeout_s, answer)


@overload
async def until(predicate: Callable[[], Awaitable[T]], timeout_s: float = ..., what: str = ...) -> T: ...
@overload
async def until(predicate: Callable[[], T], timeout_s: float = ..., what: str = ...) -> T: ...
async def until(predicate: Callable[[], Any], timeout_s: float = 0.0, what: str = "the condition") -> Any:
    """The same without blocking the loop. The predicate may be a coroutine function."""
    timeout_s = max(timeout_s, PATIENCE_S)

    async def look() -> Any:
        answer = predicate()
        return await answer if isinstance(answer, Awaitable) else answer

    answer = await look()
    for pause_s in _pauses(timeout_s):
        if answer:
            return answer
        await asyncio.sleep(pause_s)
        answer = await look()
    if answer:
        return answer
    raise _not_in_time(what, timeout_s, answer)
