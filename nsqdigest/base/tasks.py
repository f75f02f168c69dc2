"""Tasks and timers of the daemon's parts: an exception in one of them ends the daemon, loudly.

A task that nobody awaits keeps its exception to itself, and an exception of a timer goes to the loop's log: the part
has ended and the daemon looks alive. Whatever is begun here reports its exception to the loop's exception handler, as
the end of a part; the daemon's handler (`Failures`) logs it and wakes `Daemon.watch`. A task whose exception is an
answer that somebody awaits does not belong here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from nsqdigest.base import log

_log = log.get("daemon")

_PART = "nsqdigest_part"
"""In the context of the loop's exception handler: the name of the part that ended."""


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_ended)
    return task


def guarded(callback: Callable[[], None], name: str) -> Callable[[], None]:
    """For `call_later` and its like."""

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
    """The daemon's own handler of what no other code handles."""

    def __init__(self) -> None:
        self._first: Failure | None = None
        self._came = asyncio.Event()

    def listen(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._handle)

    async def first_of(self, parts: Iterable[asyncio.Task[None]]) -> Failure:
        """Of these tasks, or of anything else that reports here. Logged already."""
        came = asyncio.create_task(self._came.wait(), name="failures")
        try:
            ended, _ = await asyncio.wait([came, *parts], return_when=asyncio.FIRST_COMPLETED)
        finally:
            came.cancel()
        if self._first is None:  # who raised has reported by now
            self._note(Failure(ended.pop().get_name(), None))
        assert self._first is not None
        return self._first

    def _handle(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if _PART not in context:
            # Of a library, about one of its connections or futures: no part of the daemon has ended with it.
            _log.error("daemon.loop.error", what=context.get("message", ""), error=error, exc_info=error)
            return
        self._note(Failure(context[_PART], None if error is None else _cause_of(error)))

    def _note(self, failure: Failure) -> None:
        _log.error("daemon.part.ended", part=failure.part, error=failure.error, exc_info=failure.error)
        self._first = self._first or failure
        self._came.set()


def _cause_of(error: BaseException) -> BaseException:
    """What a group of one holds."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
