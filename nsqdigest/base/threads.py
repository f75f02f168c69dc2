"""Blocking work in threads that nothing joins.

asyncio's own threads are few, shared by everything, and joined at the end of the program: a file or a name server that
hangs takes them from the others and delays the exit. So each blocking call gets a thread of its own here, or each file
one; the caller bounds how many it starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


def start(work: Callable[[], T], name: str) -> Future[T]:
    """The future cannot be cancelled and ends with the work. `asyncio.wrap_future` waits for it; a waiter may leave."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()
    settle(done, work, name)
    return done


def settle(done: Future[T], work: Callable[[], T], name: str) -> None:
    """The same for a future that was made before, and is running."""
    try:
        threading.Thread(target=partial(_run, done, work), name=name, daemon=True).start()
    except RuntimeError as error:  # the machine has no more
        done.set_exception(error)


class Worker:
    """A thread that does one thing after the other: to start one costs more than most things that it is to do.

    It begins with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_there = False

    def start(self, work: Callable[[], T]) -> Future[T]:
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()
        if not self._is_there:
            try:
                threading.Thread(target=self._work_on, name=self._name, daemon=True).start()
            except RuntimeError as error:  # the machine has no more
                done.set_exception(error)
                return done
            self._is_there = True
        self._works.put(partial(_run, done, work))
        return done

    def stop(self) -> None:
        """It ends when it has done what it was given. Later work begins another one."""
        if self._is_there:
            self._is_there = False
            self._works.put(None)
            self._works = SimpleQueue()

    def _work_on(self) -> None:
        works = self._works
        while (work := works.get()) is not None:
            work()


def _run(done: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(result)
