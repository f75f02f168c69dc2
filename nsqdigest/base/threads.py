"""Blocking work in threads that nothing joins.

asyncio's own threads are few, shared by everything, and joined at the end of the program: a file or a name server that
hangs takes them from the others and delays the exit. So each blocking call gets a thread of its own here; its caller
bounds how many it starts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
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

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:  # the machine has no more
        done.set_exception(error)
