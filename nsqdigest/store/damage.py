"""Damaged keys: a script that works on several routes stops where a key of one of them has another type.

Each route then gets a call of its own, so that the damaged one stops no other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nsqdigest.base.errors import StoreError

T = TypeVar("T")


async def one_by_one(
    routes: Sequence[str], work: Callable[[Sequence[str]], Awaitable[T]]
) -> tuple[list[T], dict[str, StoreError]]:
    """Works on several routes, in one call unless one of them is damaged. Returns the result of each call, and the
    error of each damaged route. Raises every other error."""
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
