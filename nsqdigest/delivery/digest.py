"""Records to a digest's body (pure): order, counts, trimming to a size. `grouped` has that of a route with a group.

The body is a function of the snapshot, its head and the configuration; nothing here asks the clock. Each record's value
goes in as the raw bytes it was published as. The list is cut where the body would outgrow its limit; the totals stay
exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

import msgspec

from nsqdigest.store.head import Head
from nsqdigest.store.record import StoredRecord

_encode = msgspec.json.encode
_encoded_once = lru_cache(maxsize=1024)(_encode)
"""For the names of routes and sinks, which are few."""
_is_plain = re.compile(rb"[ !#-\[\]-~]*").fullmatch
"""Stands in JSON as it is: printable ASCII without quotation marks and backslashes."""
_ENVELOPE_BYTES = 1024
"""Room kept for everything but records and names."""
_LIST_BYTES = len(b'{"group":,"records":[]},')
"""Of the envelope, too. Another number would cut a digest elsewhere when it is tried again."""


class Names(NamedTuple):
    """Where a digest comes from and goes to."""

    route: str
    timeline: str
    sink: str


@lru_cache(maxsize=256)
def rfc3339(instant_ms: int) -> str:
    moment = datetime.fromtimestamp(instant_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{instant_ms % 1000:03d}Z"


EncodedNames = tuple[bytes, bytes, bytes]


def encoded(names: Names) -> EncodedNames:
    route, timeline, sink = names
    return _encoded_once(route), _encode(timeline), _encoded_once(sink)


def room_bytes(names: EncodedNames, max_body_bytes: int) -> int:
    """What is left for records where all else has its place."""
    return max_body_bytes - _ENVELOPE_BYTES - sum(map(len, names))


def texts_of(records: Sequence[StoredRecord]) -> list[bytes]:
    if _is_plain(b"".join([key for key, _, _ in records])):
        return [b'{"key":"%s","timestamp":%d,"value":%s}' % record for record in records]
    return [
        b'{"key":%s,"timestamp":%d,"value":%s}' % (_encode(key.decode()), timestamp_ms, value)
        for key, timestamp_ms, value in records
    ]


def document(head: Head, names: EncodedNames, span_ms: tuple[int, int], shown: int, lists: bytes) -> bytes:
    """`span_ms`: the timestamps of the oldest and the newest of all its records. `lists`: the field that holds the
    records, of which so many are shown."""
    return (
        b'{"type":"digest","timestamp":"%s","data":{"id":"%s","route":%s,"timeline":%s,"sink":%s,"iteration":%d,'
        b'"first":%d,"last":%d,"total":%d,"shown":%d,"superseded":%d,"dropped":{"capacity":%d},%s,'
        b'"next_earliest":"%s"}}'
    ) % (
        rfc3339(head.opened_ms).encode(), head.id.encode(), *names, head.iteration, *span_ms, head.total,
         shown, head.superseded, head.dropped_capacity, lists, rfc3339(head.next_earliest_ms).encode(),
    )  # fmt: skip


class Builder:
    """Takes records newest first until one does not fit any more."""

    def __init__(self, head: Head, names: Names, max_body_bytes: int) -> None:
        self._head = head
        self._names = encoded(names)
        self._room_bytes = room_bytes(self._names, max_body_bytes) - _LIST_BYTES
        self._texts: list[bytes] = []
        self._is_full = False

    @property
    def is_full(self) -> bool:
        """Whether further records would change nothing."""
        return self._is_full

    def add(self, records: Sequence[StoredRecord]) -> None:
        if self._is_full or not records:
            return
        texts = texts_of(records)
        cost = sum(map(len, texts)) + len(texts)
        if cost > self._room_bytes:
            self._add_one_by_one(texts)
            return
        self._room_bytes -= cost
        self._texts += texts

    def _add_one_by_one(self, texts: Iterable[bytes]) -> None:
        for text in texts:
            cost = len(text) + 1
            if cost > self._room_bytes:
                self._is_full = True
                return
            self._room_bytes -= cost
            self._texts.append(text)

    def body(self, first_ms: int, last_ms: int) -> bytes:
        """With the timestamps of the oldest and the newest of all its records."""
        lists = b'"records":[%s]' % b",".join(self._texts)
        return document(self._head, self._names, (first_ms, last_ms), len(self._texts), lists)
