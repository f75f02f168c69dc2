"""A record, and the head of a digest, as the store takes and returns them (pure)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Record(msgspec.Struct, gc=False):
    """One event in one timeline of one route. `possible_repeat`: it may have been stored, even delivered, before."""

    route: int
    timeline: bytes
    key: bytes
    timestamp_us: int
    value: bytes
    possible_repeat: bool


class StoredRecord(NamedTuple):
    key: bytes
    timestamp_ms: int
    value: bytes


class Head(NamedTuple):
    """A digest without its records."""

    id: str
    route: str
    timeline: str
    sink: str
    iteration: int
    opened_ms: int
    next_earliest_ms: int
    first_ms: int
    last_ms: int
    total: int
    superseded: int
    dropped_capacity: int
