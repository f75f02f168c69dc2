"""Records to a digest's body (pure): order, grouping, counts, trimming to a size.

The body is a function of the snapshot, its head and the configuration; nothing here asks the clock. Each record's value
goes in as the raw bytes it was published as. The list is cut where the body would outgrow its limit; the totals stay
exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from nsqdigest.store.head import Head

_encode = msgspec.json.encode
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_ENVELOPE_BYTES = 1024
"""Room kept for everything but records and names."""


class Names(NamedTuple):
    """Where a digest comes from and goes to."""

    route: str
    timeline: str
    sink: str


@lru_cache(maxsize=256)
def rfc3339(instant_ms: int) -> str:
    moment = datetime.fromtimestamp(instant_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{instant_ms % 1000:03d}Z"


class Builder:
    """Takes records newest first until one does not fit any more."""

    def __init__(self, head: Head, names: Names, max_body_bytes: int, group: Sequence[str] = ()) -> None:
        self._head = head
        self._names = tuple(map(_encode, names))
        self._group = tuple(group)
        self._room_bytes = max_body_bytes - _ENVELOPE_BYTES - sum(map(len, self._names))
        self._groups: dict[bytes, list[bytes]] = {}
        self._shown = 0
        self._is_full = False

    @property
    def is_full(self) -> bool:
        return self._is_full

    def add(self, key: bytes, timestamp_ms: int, value: bytes) -> None:
        if self._is_full:
            return
        record = b'{"key":%s,"timestamp":%d,"value":%s}' % (_encode(key.decode()), timestamp_ms, value)
        group = _group_of(value, self._group) if self._group else b""
        cost = len(record) + 1
        if group not in self._groups:
            cost += len(group) + len(b'{"group":,"records":[]},')
        if cost > self._room_bytes:
            self._is_full = True
            return
        self._room_bytes -= cost
        self._groups.setdefault(group, []).append(record)
        self._shown += 1

    def body(self, first_ms: int, last_ms: int) -> bytes:
        """With the timestamps of the oldest and the newest of all its records."""
        head, (route, timeline, sink) = self._head, self._names
        if self._group:
            groups = (
                b'{"group":%s,"records":[%s]}' % (group, b",".join(records)) for group, records in self._groups.items()
            )
            shown = b'"groups":[%s]' % b",".join(groups)
        else:
            shown = b'"records":[%s]' % b",".join(self._groups.get(b"", []))
        return (
            b'{"type":"digest","timestamp":"%s","data":{"id":"%s","route":%s,"timeline":%s,"sink":%s,"iteration":%d,'
            b'"first":%d,"last":%d,"total":%d,"shown":%d,"superseded":%d,"dropped":{"capacity":%d},%s,'
            b'"next_earliest":"%s"}}'
        ) % (
            rfc3339(head.opened_ms).encode(), head.id.encode(), route, timeline, sink, head.iteration,
            first_ms, last_ms, head.total, self._shown, head.superseded, head.dropped_capacity, shown,
            rfc3339(head.next_earliest_ms).encode(),
        )  # fmt: skip


def _group_of(value: bytes, path: tuple[str, ...]) -> bytes:
    """The field as JSON; null where it is not there, or is no text, number, true or false."""
    try:
        # Field by field: what else stands in the value may hold numbers that only its receiver can read.
        raw: Any = value
        for name in path:
            raw = _fields_of(raw)[name]
        found: Any = msgspec.json.decode(raw)
    except (KeyError, msgspec.DecodeError):
        found = None
    return _encode(found if isinstance(found, str | int | float | bool) else None)
