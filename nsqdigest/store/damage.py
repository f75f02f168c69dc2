"""Damaged keys: where a key of one route has another type, a script that works on several routes stops there.

So each of them is given a call of its own then, and the damaged route stops no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nsqdigest.base.errors import StoreError

T = TypeVar("T")


async def one_by_one(
    routes: Sequence[str], work: Callable[[Sequence[str]], Awaitable[T]]
) -> tuple[list[T], dict[str, StoreError]]:
    """Work on several routes, in one call unless some of them are damaged. Returns what each call returned, and why
    damaged routes have none. Raises what is no route's fault."""
    try:
        return [await work(routes)], {}
    except StoreError as error:
        if not error.is_damage:
            raise
        if len(routes) == 1:
            return [], {routes[0]: error}
    done, damaged = list[T](), dict[str, StoreError]()
    for route in routes:
        some, failed = await one_by_one([route], work)
        done += some
        damaged |= failed
    return done, damaged
