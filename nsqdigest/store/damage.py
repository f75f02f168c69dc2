"""Damaged keys: a script that works on several routes or digests stops where a key of one of them has another type.

What is damaged stops no other: `one_by_one` then gives each route a call of its own, `halved` divides the call until
the damaged one stands alone. `number` reads a number that something else may have written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from nsqdigest.base.errors import Applied, NsqdigestError, StoreError
from nsqdigest.base.shown import printable

Item = TypeVar("Item")
T = TypeVar("T")

ANOTHER_TYPE = StoreError("redis-script", "a key has another type")
"""Of a digest whose call went well for its neighbours."""


def number(text: bytes | int | None, key: bytes) -> int:
    """Return the number that a field of this key has; 0 if the field is not there."""
    try:
        return int(text or 0)
    except ValueError:
        found = printable(bytes(text or b"")[:40].decode("utf-8", "replace"))
        where = printable(key.decode("utf-8", "replace"))
        raise StoreError("redis-script", f'{where} has "{found}" in place of a number', Applied.NO) from None


def damaged(error: StoreError) -> NsqdigestError:
    """For a command: what an operator is to do about it."""
    return NsqdigestError(f"{error}; something else wrote to a key of this namespace, and the daemon's log names it")


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


async def halved(
    items: Sequence[Item], work: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]
) -> list[T | StoreError]:
    """`work` has one result for each item. A damaged item's is the error of the call that it was alone in. Raises every
    other error."""
    try:
        return list(await work(items))
    except StoreError as error:
        if not error.is_damage:
            raise
        if len(items) == 1:
            return [error]
    middle = len(items) // 2
    return [*await halved(items[:middle], work), *await halved(items[middle:], work)]
