"""The bytes of incomplete frames, over all connections of a daemon (pure).

Invariant: when they are more than `most_bytes`, the connection that waits longest for the end of its frame has to end.
A frame comes whole within moments, so an honest nsqd is never the first for long.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

MOST_BYTES = 32 << 20
"""32 of the largest messages at a time, one on each connection."""


class HeldFrames(Generic[T]):
    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: dict[T, int] = {}
        """In the order in which the frames began."""
        self._sum_bytes = 0

    def hold(self, owner: T, held_bytes: int, *, is_new: bool) -> T | None:
        """Notes what an owner holds now. `is_new`: of another frame than before. Returns the owner that has to end."""
        before_bytes = self._held.pop(owner, 0) if is_new else self._held.get(owner, 0)
        self._sum_bytes += held_bytes - before_bytes
        if held_bytes:
            self._held[owner] = held_bytes
        return next(iter(self._held)) if self._sum_bytes > self._most_bytes else None
