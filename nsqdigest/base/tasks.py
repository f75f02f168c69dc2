"""Tasks and timers of the daemon's parts: an exception in one of them is logged and ends the daemon.

A task that nobody awaits keeps its exception to itself, and an exception of a timer goes to the loop's log: the part
has ended and the daemon looks alive. So tasks are started here, and report their exceptions to the loop's exception
handler, as the end of a part; the daemon's handler (`Failures`) logs name, error and traceback and wakes
`Daemon.watch`. A task whose exception is an answer that somebody awaits does not belong here.

Each part owns its tasks (`Tasks`) and ends them at its place in the drain. One `asyncio.TaskGroup` for all would cancel
every part at the first failure, connections included, before a message could go back to nsqd.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from nsqdigest.base import log

_log = log.get("daemon")

T = TypeVar("T")

_LOOK_S = 0.02
_PART = "nsqdigest_part"
"""In the context of the loop's exception handler: the name of the part that ended."""


class Tasks:
    """The tasks of one part, which run until the part stops."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(start(work, name))

    async def stop(self) -> None:
        """Cancels them and waits for their end. May be called again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(self._tasks)


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """One task that its caller owns."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_ended)
    return task


async def until(holds: Callable[[], bool], within_s: float) -> None:
    """Until it holds, or the time is over. It looks again and again: for what is waited for seldom, so that what makes
    it hold, which happens often, tells nobody."""
    over_s = time.monotonic() + within_s
    while not holds() and time.monotonic() < over_s:  # noqa: ASYNC110  - as said above
        await asyncio.sleep(_LOOK_S)


async def outlasting(work: asyncio.Task[T]) -> T:
    """The result of work that goes on when its waiter is cancelled. What it raises after that is nobody's: `shield`
    leaves it to asyncio, which complains of it."""
    work.add_done_callback(_retrieve)
    await asyncio.wait((work,))
    return work.result()


def _retrieve(work: asyncio.Task[Any]) -> None:
    if not work.cancelled():
        work.exception()


def guarded(callback: Callable[[], None], name: str) -> Callable[[], None]:
    """The callback of a timer (`call_later`) with its exceptions reported."""

    def run() -> None:
        try:
            callback()
        except Exception as error:
            _report(asyncio.get_running_loop(), name, error)

    return run


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _report(task.get_loop(), task.get_name(), error)


def _report(loop: asyncio.AbstractEventLoop, name: str, error: BaseException) -> None:
    loop.call_exception_handler({"message": f"a part ended: {name}", "exception": error, _PART: name})


class Failure(NamedTuple):
    part: str
    error: BaseException | None
    """None: it returned."""

    def __str__(self) -> str:
        how = "it returned" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        return f"a part of the daemon ended: {self.part}: {how}"


class Failures:
    """The daemon's handler of exceptions that no other code handles."""

    def __init__(self) -> None:
        self._first: Failure | None = None
        self._has_failed = asyncio.Event()

    def listen(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle)

    async def first_of(
        self, parts: Callable[[], Iterable[asyncio.Task[None]]], others: asyncio.Event | None = None
    ) -> Failure:
        """Of these tasks, or of anything else that reports here. It is logged already. `others`: set when `parts` has
        other ones by now, and those that were watched may end."""
        others = others or asyncio.Event()
        while True:
            others.clear()
            waiting = [asyncio.create_task(event.wait(), name="failures") for event in (self._has_failed, others)]
            try:
                ended, _ = await asyncio.wait([*waiting, *parts()], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in waiting:
                    each.cancel()
            if self._first is not None or not others.is_set():
                break
        if self._first is None:  # a task that raised has reported by now, so that this one returned
            self._note(Failure(ended.pop().get_name(), None))
        assert self._first is not None
        return self._first

    def _handle(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if _PART not in context:
            # From a library, about one of its connections or futures: no part of the daemon has ended. It may come
            # thousands of times a second. The message names objects and addresses, so it cannot make the kind.
            what, kind = context.get("message", ""), _kind_of(error)
            _log.counted("error", "daemon.loop.error", by=("kind",), kind=kind, what=what, error=error, exc_info=error)
            return
        self._note(Failure(context[_PART], None if error is None else _cause_of(error)))

    def _note(self, failure: Failure) -> None:
        _log.error("daemon.part.ended", part=failure.part, error=failure.error, exc_info=failure.error)
        self._first = self._first or failure
        self._has_failed.set()


def _kind_of(error: BaseException | None) -> str:
    """The name of the system's error, such as EMFILE, or that of the exception's class."""
    name = errno.errorcode.get(error.errno or 0) if isinstance(error, OSError) else None
    return name or type(error).__name__


def _cause_of(error: BaseException) -> BaseException:
    """The exception inside groups of one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
