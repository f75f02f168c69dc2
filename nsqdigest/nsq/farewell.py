"""Ends subscribed connections in an order that loses nothing: CLS and what may come behind it, then what was sent.

Closing right after a REQ would leave messages to nsqd's msg_timeout: it does not requeue on disconnect. An nsqd that
answers nothing holds nobody up: each of both steps has its time, and all connections take it side by side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from nsqdigest.base import tasks

if TYPE_CHECKING:
    from nsqdigest.nsq.connection import NsqConnection

FAREWELL_S = 1.0
"""nsqd gets so long to answer CLS, and to read the rest, when nothing else is waited for."""


async def part_from(connections: Sequence[NsqConnection]) -> None:
    """What comes meanwhile has to be given back. It may be cancelled anywhere and begun again."""
    await _side_by_side(connection.say_goodbye() for connection in connections)
    await _side_by_side(connection.hang_up() for connection in connections if connection.is_open)


async def _side_by_side(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs them until the time is over; then, or when it is cancelled itself, cancels them and waits for their end."""
    ends = [asyncio.create_task(work) for work in works]
    try:
        if ends:
            await asyncio.wait(ends, timeout=FAREWELL_S)
    finally:
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


async def part_slowly(connection: NsqConnection) -> None:
    """Of one connection, while all else goes on: nothing comes any more, and what came is finished here as usual. What
    is not by then, nsqd takes back."""
    await _side_by_side([connection.say_goodbye()])
    await tasks.until(lambda: not (connection.in_flight and connection.is_open), connection.msg_timeout_s)
    await part_from([connection])
    connection.close("the file does not name it any more")
