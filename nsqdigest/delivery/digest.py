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
from nsqdigest.store.record import Columns, StoredRecord

_encode = msgspec.json.encode
_encoded_once = lru_cache(maxsize=1024)(_encode)
"""For the names of routes and sinks, which are few."""
_is_plain = re.compile(rb"[ !#-\[\]-~]*").fullmatch
"""Stands in JSON as it is: printable ASCII without quotation marks and backslashes."""
_RECORD = b'{"key":"%s","timestamp":%d,"value":%s}'
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
"""As JSON."""


def encoded(names: Names) -> EncodedNames:
    route, timeline, sink = names
    return _encoded_once(route), _encode(timeline), _encoded_once(sink)


def room_bytes(names: EncodedNames, max_body_bytes: int) -> int:
    """What is left for records where all else has its place."""
    return max_body_bytes - _ENVELOPE_BYTES - sum(map(len, names))


def texts_of(records: Sequence[StoredRecord]) -> list[bytes]:
    if _is_plain(b"".join([key for key, _, _ in records])):
        return [_RECORD % record for record in records]
    return [
        b'{"key":%s,"timestamp":%d,"value":%s}' % (_encode(key.decode()), timestamp_ms, value)
        for key, timestamp_ms, value in records
    ]


def document(head: Head, names: EncodedNames, span_ms: tuple[bytes, bytes], shown: int, lists: bytes) -> bytes:
    """`span_ms`: the timestamps of the oldest and the newest of all its records, as text. `lists`: the field that holds
    the records, of which so many are shown."""
    route, timeline, sink = names
    instants_ms = head.opened_ms, head.next_earliest_ms
    form = _form(route, sink, head.iteration, instants_ms, head.dropped_cancelled)
    counts = head.total, shown, head.superseded, head.dropped_capacity
    return form % (head.id.encode(), timeline, *span_ms, *counts, lists)


@lru_cache(maxsize=1024)
def _form(route: bytes, sink: bytes, iteration: int, instants_ms: tuple[int, int], cancelled: int) -> bytes:
    """The document with places for all in which digests differ that were opened together."""
    opened_ms, next_earliest_ms = instants_ms
    before = b'{"type":"digest","timestamp":"%s","data":{"id":"' % rfc3339(opened_ms).encode()
    between = b',"sink":%s,"iteration":%d,' % (sink, iteration)
    behind = b',"next_earliest":"%s"}}' % rfc3339(next_earliest_ms).encode()
    also_dropped = b',"cancelled":%d' % cancelled if cancelled else b""
    return (
        before + b'%s","route":' + _without_places(route) + b',"timeline":%s' + _without_places(between)
        + b'"first":%s,"last":%s,"total":%d,"shown":%d,"superseded":%d,"dropped":{"capacity":%d'
        + also_dropped + b"},%s" + behind
    )  # fmt: skip


def span_of(first_ms: int, last_ms: int) -> tuple[bytes, bytes]:
    return b"%d" % first_ms, b"%d" % last_ms


def _without_places(text: bytes) -> bytes:
    """Stands in a form as it is."""
    return text.replace(b"%", b"%%")


def usual_body(head: Head, names: Names, records: Columns, max_body_bytes: int) -> bytes | None:
    """The body that Builder makes, in one go: of records that are all there, have plain keys and usual timestamps, and
    fit. None: there are others."""
    keys, _, values = records
    count, timestamps = len(keys), records.usual_timestamps()
    if timestamps is None or None in values or not _is_plain(b"".join(keys)):
        return None
    columns: list[bytes | None] = [None] * (3 * count)
    columns[::3], columns[1::3], columns[2::3] = keys, timestamps, values
    texts = _records_form(count) % tuple(columns)
    encoded_names = encoded(names)
    if len(texts) + 1 > room_bytes(encoded_names, max_body_bytes) - _LIST_BYTES:
        return None
    return document(head, encoded_names, (timestamps[-1], timestamps[0]), count, b'"records":[%s]' % texts)


@lru_cache(maxsize=256)
def _records_form(count: int) -> bytes:
    return b",".join([_RECORD.replace(b"%d", b"%s")] * count)


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
        return document(self._head, self._names, span_of(first_ms, last_ms), len(self._texts), lists)
