"""The one reader of files that a configuration names: secrets, templates, certificates.

Invariants:
- Only plain files are read. A pipe, a device or a folder is a problem, and nothing waits for it.
- No more than `LARGEST_BYTES` of a file get into memory.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

LARGEST_BYTES = 1 << 20


class File(NamedTuple):
    data: bytes
    mode: int
    """The bits of its permissions."""


class FileProblem(Exception):
    """A file cannot be read: what is wrong with it ("is not there") and the remedy."""

    def __init__(self, what: str, remedy: str, *, is_elsewhere: bool = False) -> None:
        """`is_elsewhere`: the file may be on another machine, or be another user's."""
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy
        self.is_elsewhere = is_elsewhere


def read(path: str | os.PathLike[str], largest_bytes: int = LARGEST_BYTES) -> File:
    """Raises FileProblem."""
    try:
        _refuse_unless_plain(os.stat(path))  # to open a device may do something
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY), "rb") as file:
            status = os.fstat(file.fileno())
            _refuse_unless_plain(status)
            data = file.read(largest_bytes + 1)
    except FileNotFoundError:
        remedy = "make it; a relative path starts at the folder of the configuration"
        raise FileProblem("is not there", remedy, is_elsewhere=True) from None
    except OSError as error:
        is_denied = isinstance(error, PermissionError)
        remedy = "make it readable for this user"
        raise FileProblem(f"cannot be read: {error.strerror}", remedy, is_elsewhere=is_denied) from None
    if len(data) > largest_bytes:
        raise FileProblem(f"is larger than {largest_bytes >> 10:,} KiB", "name a smaller file")
    return File(data, stat.S_IMODE(status.st_mode))


def _refuse_unless_plain(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FileProblem("is a folder", "name a file in it")
    if not stat.S_ISREG(status.st_mode):
        raise FileProblem("is not a plain file", "name one: no pipe, no device")
