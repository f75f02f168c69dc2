"""Records to a digest's body (pure): order, counts, trimming to a size. `grouped` has that of a route with a group.

The body is a function of the snapshot, its head and the configuration; nothing here asks the clock. Each record's value
goes in as the raw bytes it was published as. The list is cut where the body would outgrow its limit; the totals stay
exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from nsqdigest.store.head import Head
from nsqdigest.store.record import Columns, StoredRecord

_encode = msgspec.json.encode
_encoded_once = lru_cache(maxsize=1024)(_encode)
"""For the names of routes and sinks, which are few."""
_PLAIN = bytes(set(range(0x20, 0x7F)) - set(b'"\\'))
"""Stand in JSON as they are: printable ASCII without quotation marks and backslashes."""
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


def _is_plain(text: bytes) -> bool:
    return not text.translate(None, _PLAIN)


def texts_of(records: Sequence[StoredRecord]) -> list[bytes]:
    if _is_plain(b"".join([key for key, _, _ in records])):
        return [_RECORD % record for record in records]
    return [
        b'{"key":%s,"timestamp":%d,"value":%s}' % (_encode(key.decode()), timestamp_ms, value)
        for key, timestamp_ms, value in records
    ]


Opened = tuple[int, int, int]
"""Iteration, and the instants at which it was opened and before which nothing comes."""
Counts = tuple[int, int, int, int, int]
"""Total, shown, superseded, dropped for capacity, cancelled."""


def document(head: Head, names: EncodedNames, span_ms: tuple[bytes, bytes], shown: int, lists: bytes) -> bytes:
    """`span_ms`: the timestamps of the oldest and the newest of all its records, as text. `lists`: the field that holds
    the records, of which so many are shown."""
    route, timeline, sink = names
    opened = head.iteration, head.opened_ms, head.next_earliest_ms
    counts = head.total, shown, head.superseded, head.dropped_capacity, head.dropped_cancelled
    return _form(route, sink, opened, counts, b"%s") % (head.id.encode(), timeline, *span_ms, lists)


@lru_cache(maxsize=1024)
def _form(route: bytes, sink: bytes, opened: Opened, counts: Counts, lists: bytes) -> bytes:
    """The document with places for all in which digests differ that were opened together, and those of `lists`."""
    iteration, opened_ms, next_earliest_ms = opened
    *counts_of_all, cancelled = counts
    before = b'{"type":"digest","timestamp":"%s","data":{"id":"' % rfc3339(opened_ms).encode()
    between = b',"sink":%s,"iteration":%d,' % (sink, iteration)
    behind = b',"next_earliest":"%s"}}' % rfc3339(next_earliest_ms).encode()
    also_dropped = b',"cancelled":%d' % cancelled if cancelled else b""
    form = b'"total":%d,"shown":%d,"superseded":%d,"dropped":{"capacity":%d%s},'
    counted = form % (*counts_of_all, also_dropped)
    return (
        before + b'%s","route":' + _without_places(route) + b',"timeline":%s' + _without_places(between)
        + b'"first":%s,"last":%s,' + counted + lists + behind
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
    timestamps = records.usual_timestamps()
    if timestamps is None or None in values or not _is_plain(b"".join(keys)):
        return None
    digest_id, iteration, opened_ms, total, superseded, dropped, next_earliest_ms, *_, cancelled = head
    opened, counts = (iteration, opened_ms, next_earliest_ms), (total, len(keys), superseded, dropped, cancelled)
    form = _usual_form(names.route, names.sink, opened, counts)
    parts: list[Any] = [digest_id.encode(), _encode(names.timeline), timestamps[-1], timestamps[0], *keys, *keys, *keys]
    parts[4::3], parts[5::3], parts[6::3] = keys, timestamps, values
    body = form % tuple(parts)
    # All but the records of a document is longer than what Builder keeps beside the envelope.
    return body if len(body) <= max_body_bytes - _ENVELOPE_BYTES else None


@lru_cache(maxsize=256)
def _usual_form(route: str, sink: str, opened: Opened, counts: Counts) -> bytes:
    _, shown, *_ = counts
    records = b",".join([_RECORD.replace(b"%d", b"%s")] * shown)
    return _form(_encoded_once(route), _encoded_once(sink), opened, counts, b'"records":[%s]' % records)


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
