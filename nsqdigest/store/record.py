"""The nouns that go into the store and come out of it: a record, and the head of a digest (pure)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Record(msgspec.Struct, gc=False):
    """One event in one timeline of one route, its timestamp in microseconds. `possible_repeat`: it may have been
    filed, even delivered, before. `source`: what the caller made it from; the store never looks at it."""

    route: int
    timeline: bytes
    key: bytes
    timestamp_us: int
    value: bytes
    possible_repeat: bool
    source: object = None


class StoredRecord(NamedTuple):
    key: bytes
    timestamp_ms: int
    value: bytes


class Head(NamedTuple):
    """What a digest is beside its records."""

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
    over_capacity: int
