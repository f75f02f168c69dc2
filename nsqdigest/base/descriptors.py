"""The file descriptors of this process: how many are in use, and one that is kept for the worst case."""

from __future__ import annotations

import errno
import os
import resource
from typing import NamedTuple

EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""The numbers of errors that say that the process, or the machine, cannot open one more."""
MOST_USED_RATIO = 0.9
"""Above this share of its limit somebody should look at a process."""
_OPEN_ONES = "/proc/self/fd"


class Used(NamedTuple):
    open: int
    limit: int

    @property
    def ratio(self) -> float:
        return self.open / self.limit

    @property
    def is_trouble(self) -> bool:
        return self.ratio > MOST_USED_RATIO


def used() -> Used | None:
    """Return how many descriptors are open; None if the system does not say, or sets no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit in (0, resource.RLIM_INFINITY):
        return None
    try:
        return Used(len(os.listdir(_OPEN_ONES)) - 1, limit)  # the listing has one itself
    except OSError as error:
        return Used(limit, limit) if error.errno in EXHAUSTED else None


class Spare:
    """A descriptor that is open for nothing, so that it can be given away if no other is left."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def keep(self) -> bool:
        """Return whether it is kept from now on: False if no descriptor is free."""
        if self._descriptor is None:
            try:
                self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
        return True

    def give(self) -> bool:
        """Free it for the next call that opens something. Return whether there was one."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return False
        os.close(descriptor)
        return True
