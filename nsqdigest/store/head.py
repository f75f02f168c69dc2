"""The head of a digest: what Redis keeps beside its records, by field name (pure).

Redis holds it as one line of text, ` iteration=3 closed=… id=… opened=…` (lua/lib/head.lua writes it). A field that
this version does not know is ignored here and kept there, so daemons of two versions may work side by side.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

# The order in which this version writes the fields: to match it is quicker than to look for each.
_BEFORE_ID = re.compile(rb" iteration=(\d+)(?: closed=\S+)?").fullmatch
_BEHIND_ID = re.compile(
    rb"opened=(\d+) total=(\d+) superseded=(\d+) capacity=(\d+) next=(\d+) since=(\d+) attempts=(\d+) tries=(\d+)"
).match
_ZONE = re.compile(rb"(?: |^)zone=(\S+)").search
_BURYING = re.compile(rb" burying=(\S+)").search
_CANCELLED = re.compile(rb" cancelled=(\d+)").search
_FIELDS = (
    b"iteration", b"opened", b"total", b"superseded", b"capacity", b"next", b"since", b"attempts", b"tries",
    b"cancelled",
)  # fmt: skip


def zone_of(head: bytes | None) -> str:
    """The zone of a timeline, where its events name one."""
    found = _ZONE(head) if head else None
    return found[1].decode("utf-8", "replace") if found else ""


def burying_id(head: bytes | None) -> bytes:
    """The id of a digest on its way to the dead store, which a call that was cut off left there; b"": there is none."""
    found = _BURYING(head) if head else None
    return found[1] if found else b""


class Head(NamedTuple):
    """`attempts` and `opened_ms` are of this id, and part of what its receiver sees. `tries` and `since_ms` decide when
    there have been enough: a merge keeps them, a revival begins them anew. Both count posts that ended."""

    id: str
    iteration: int
    opened_ms: int
    total: int
    """Records in this digest."""
    superseded: int
    dropped_capacity: int
    next_earliest_ms: int
    since_ms: int
    attempts: int
    tries: int
    dropped_cancelled: int = 0

    @property
    def attempt(self) -> int:
        """The number of the next post."""
        return self.attempts + 1

    @classmethod
    def parse(cls, text: bytes) -> Head:
        before, _, own = text.partition(b" id=")
        digest_id, _, behind = own.partition(b" ")
        match, numbers = _BEFORE_ID(before), _numbers_behind_id(behind)
        if match and digest_id and numbers:
            return _as_head(cls, (digest_id.decode(), int(match[1]), *numbers))
        fields = dict(field.split(b"=", 1) for field in text.split())
        iteration, *others = (int(fields.get(name, b"0")) for name in _FIELDS)
        return cls(fields[b"id"].decode(), iteration, *others)


_as_head = tuple.__new__
"""Of a tuple: its own way of being made costs as much as all else here."""


@lru_cache(maxsize=256)
def _numbers_behind_id(text: bytes) -> tuple[int, ...]:
    """Of digests that were opened together most are the same. () where this version did not write them."""
    match = _BEHIND_ID(text)
    if not match:
        return ()
    cancelled = _CANCELLED(text)
    return (*map(int, match.groups()), int(cancelled[1]) if cancelled else 0)


def opened_of(digest_id: str) -> int | None:
    """When a digest was opened first, which its id says. None: it is no id of ours."""
    digits = digest_id.replace("-", "")
    try:
        return int(digits[:12], 16) if len(digits) == 32 and digits[12] == "7" else None
    except ValueError:
        return None
