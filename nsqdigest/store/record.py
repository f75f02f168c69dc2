"""A record, as the store takes it and as it returns it (pure)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from nsqdigest.store.schedule import instant_ms


class Record(msgspec.Struct, gc=False):
    """One event in one timeline of one route. `possible_repeat`: it may have been stored, even delivered, before.
    `is_urgent`: its timeline becomes due at once, whatever its policy.
    `source`: what the caller made it from; the store never looks at it."""

    route: int
    timeline: bytes
    key: bytes
    timestamp_us: int
    value: bytes
    possible_repeat: bool
    source: object = None
    is_urgent: bool = False


def timestamp_ms(score: bytes) -> int:
    """A record's score is minus its timestamp in microseconds."""
    try:
        return -int(score) // 1000
    except ValueError:  # Redis writes the largest with an exponent
        return -instant_ms(score) // 1000


class StoredRecord(NamedTuple):
    key: bytes
    timestamp_ms: int
    value: bytes
