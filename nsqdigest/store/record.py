"""A record, as it goes into the store and as it comes out (pure)."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Record(msgspec.Struct, gc=False):
    """One event in one timeline of one route, its timestamp in microseconds. `possible_repeat`: it may have been
    filed, even delivered, before."""

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
