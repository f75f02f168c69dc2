"""A daemon as a process: it runs until a signal, and what each signal does.

TERM, INT: drain; a second one ends the drain, or the start, at once. USR2: the state goes to the log. HUP:
the file is read again (`reload`).
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from nsqdigest.config import Config
from nsqdigest.daemon.life import Daemon

_ENDING = (signal.SIGTERM, signal.SIGINT)


async def run_until_signal(config: Config) -> None:
    """Returns after a drain; raises what ended the daemon, when it has stopped."""
    is_ending, is_urgent = asyncio.Event(), asyncio.Event()

    def on_ending_signal() -> None:
        (is_urgent if is_ending.is_set() else is_ending).set()

    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, on_ending_signal)
    daemon = Daemon(config)
    loop.add_signal_handler(signal.SIGHUP, daemon.reloads.ask)
    loop.add_signal_handler(signal.SIGUSR2, daemon.view.log_state)
    try:
        if await _run_unless(is_ending, daemon.start()):
            await _run_unless(is_ending, daemon.watch())
        if not await _run_unless(is_urgent, daemon.drain()):
            await daemon.stop()
    except BaseException:
        await daemon.stop()
        raise
    finally:
        # With the loop its handlers go: from then until the process has ended a signal would decide the exit code.
        for number in (*_ENDING, signal.SIGHUP):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


async def _run_unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Does the work; cancels it when the event comes first. Returns whether the work was done."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
