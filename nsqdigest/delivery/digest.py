"""Records to a digest's body (pure): order, grouping, counts, trimming to a size.

The body is a function of the snapshot, its head and the configuration; nothing here asks the clock. Each record's value
goes in as the raw bytes it was published as. The list is cut where the body would outgrow its limit; the totals stay
exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from nsqdigest.store.head import Head
from nsqdigest.store.record import StoredRecord

_encode = msgspec.json.encode
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encoded_once = lru_cache(maxsize=1024)(_encode)
"""For the names of routes and sinks, which are few."""
_is_plain = re.compile(rb"[ !#-\[\]-~]*").fullmatch
"""Stands in JSON as it is: printable ASCII without quotation marks and backslashes."""
_ENVELOPE_BYTES = 1024
"""Room kept for everything but records and names."""
_GROUP_BYTES = len(b'{"group":,"records":[]},')


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

    def __init__(self, head: Head, names: Names, max_body_bytes: int, group: tuple[str, ...] = ()) -> None:
        self._head = head
        route, timeline, sink = names
        self._names = _encoded_once(route), _encode(timeline), _encoded_once(sink)
        self._group = group
        self._room_bytes = max_body_bytes - _ENVELOPE_BYTES - sum(map(len, self._names))
        self._groups: dict[bytes, list[bytes]] = {}
        """Their records by their field. Without grouping all are of one."""
        self._shown = 0
        self._is_full = False

    @property
    def is_full(self) -> bool:
        return self._is_full

    def add(self, records: Sequence[StoredRecord]) -> None:
        if self._is_full or not records:
            return
        if _is_plain(b"".join([key for key, _, _ in records])):
            texts = [b'{"key":"%s","timestamp":%d,"value":%s}' % record for record in records]
        else:
            texts = [
                b'{"key":%s,"timestamp":%d,"value":%s}' % (_encode(key.decode()), timestamp_ms, value)
                for key, timestamp_ms, value in records
            ]
        if self._group:
            self._add_one_by_one(texts, [group_of(value, self._group) for _, _, value in records])
            return
        cost = sum(map(len, texts)) + len(texts) + (0 if b"" in self._groups else _GROUP_BYTES)
        if cost > self._room_bytes:
            self._add_one_by_one(texts, repeat(b""))
            return
        self._room_bytes -= cost
        self._groups.setdefault(b"", []).extend(texts)
        self._shown += len(texts)

    def _add_one_by_one(self, texts: Iterable[bytes], groups: Iterable[bytes]) -> None:
        for text, group in zip(texts, groups, strict=False):
            cost = len(text) + 1
            if group not in self._groups:
                cost += len(group) + _GROUP_BYTES
            if cost > self._room_bytes:
                self._is_full = True
                return
            self._room_bytes -= cost
            self._groups.setdefault(group, []).append(text)
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


def group_of(value: bytes, path: tuple[str, ...]) -> bytes:
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
