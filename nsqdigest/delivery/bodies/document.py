"""A digest's JSON, read back (pure). The events stay raw: most bodies show few of them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class Record(msgspec.Struct):
    key: str
    timestamp: int
    """In ms."""
    value: msgspec.Raw


class Group(msgspec.Struct):
    group: Any
    """Text, a number, true, false or null."""
    count: int
    """Of all its records in the digest."""
    records: list[Record]


class Dropped(msgspec.Struct):
    capacity: int
    cancelled: int = 0
    """The JSON has it where it is not 0."""


class Data(msgspec.Struct):
    id: str
    route: str
    timeline: str
    sink: str
    iteration: int
    first: int
    last: int
    total: int
    shown: int
    superseded: int
    dropped: Dropped
    next_earliest: str
    records: list[Record] = []
    groups: list[Group] | None = None

    @property
    def newest(self) -> list[Record]:
        """All that are shown, the newest first, also where they are grouped."""
        if self.groups is None:
            return self.records
        return sorted((each for group in self.groups for each in group.records), key=lambda each: -each.timestamp)

    @property
    def next_earliest_s(self) -> int:
        return int(datetime.fromisoformat(self.next_earliest).timestamp())


class Digest(msgspec.Struct):
    type: str
    timestamp: str
    data: Data


read = msgspec.json.Decoder(Digest).decode
