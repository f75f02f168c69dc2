"""A record, as the store takes it and as it returns it (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from nsqdigest.store.schedule import instant_ms

End = int
"""Whether a record ends the record of its key, as lua/intake/add.lua takes it: the silent one never shows itself."""
NO_END, AN_END, A_SILENT_END = 0, 8, 24


class Record(msgspec.Struct, gc=False):
    """One event in one timeline of one route. `possible_repeat`: it may have been stored, even delivered, before.
    `is_urgent`: its timeline becomes due at once, whatever its policy.
    `source`: what the caller made it from; the store never looks at it.
    `end`: whether it ends the record of its key. `zone`: the one that it names for its timeline."""

    route: int
    timeline: bytes
    key: bytes
    timestamp_us: int
    value: bytes
    possible_repeat: bool
    source: object = None
    is_urgent: bool = False
    end: End = NO_END
    zone: str = ""


_REVERSED = bytes.maketrans(b"0123456789abcdef", b"fedcba9876543210")
_IS_REVERSED = b"\xff"
"""It begins no text in UTF-8, so no key that a route reads from the events."""


def stored_key(key: bytes) -> bytes:
    """A message's own key as Redis has it. Redis orders records with equal timestamps by key, the smallest first. These
    keys ascend as messages arrive, so their digits are reversed: the latest arrival is first, as the newest record."""
    return _IS_REVERSED + key.translate(_REVERSED)


def shown_keys(keys: Sequence[bytes]) -> list[bytes]:
    """Keys as Redis has them, as everyone else knows them."""
    return [key[1:].translate(_REVERSED) if key[:1] == _IS_REVERSED else key for key in keys]


_USUAL_SCORE_BYTES = len(b"-1700000000123456")


def timestamp_ms(score: bytes) -> int:
    """A record's score is minus its timestamp in microseconds."""
    try:
        return -int(score) // 1000
    except ValueError:  # Redis writes the largest with an exponent
        return -instant_ms(score) // 1000


_as_stored = tuple.__new__
"""A StoredRecord of a tuple: its own way of being made is most of what reading a record costs."""


class StoredRecord(NamedTuple):
    key: bytes
    timestamp_ms: int
    value: bytes


class Columns(NamedTuple):
    """Records as Redis returned them, newest first. A value is None where Redis lost it."""

    keys: list[bytes]
    scores: list[bytes]
    values: list[bytes | None]

    def records(self) -> list[StoredRecord | None]:
        found = zip(self.keys, map(timestamp_ms, self.scores), self.values, strict=True)
        return [None if record[2] is None else _as_stored(StoredRecord, record) for record in found]

    def usual_timestamps(self) -> tuple[bytes, ...] | None:
        """In milliseconds, as text: where all scores are minus sixteen digits, as those of this century are."""
        text, count = b"".join(self.scores), len(self.scores)
        # None has more than 17 characters: Redis writes no more of a double that is an integer.
        are_long = len(text) == _USUAL_SCORE_BYTES * count == _USUAL_SCORE_BYTES * text.count(b"-")
        if are_long and text.replace(b"-", b"").isdigit():
            return _milliseconds_in(count)(text)
        return None


@lru_cache(maxsize=256)
def _milliseconds_in(count: int) -> Callable[[bytes], tuple[Any, ...]]:
    """Finds them in so many usual scores: all digits but the last three. (Slices of each would cost ten times that.)"""
    return Struct(f"x{_USUAL_SCORE_BYTES - 4}s3x" * count).unpack
