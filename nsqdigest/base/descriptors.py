"""The file descriptors of this process: how many are in use, and how many may be."""

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
