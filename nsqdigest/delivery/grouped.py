"""The body of a digest whose records are grouped by a field of their events (pure).

    "groups": [{"group": "TimeoutError", "count": 17, "records": [...]}, ...]

Invariants:
- `count` is of all records of the group in the digest, also of those that the body has no room for. So every record is
  looked at, whatever is full.
- Groups stand in the order of their newest record. A group of which no record is shown is listed as long as such
  groups need no more than an eighth of the body; the records of those that are not listed are what the counts lack of
  `total`.
- The body depends on the records and their order, not on the pages in which they come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from nsqdigest.delivery.digest import Builder, Names, document, encoded, room_bytes, span_of, texts_of
from nsqdigest.delivery.fields import raw_at
from nsqdigest.store.head import Head
from nsqdigest.store.record import StoredRecord

_encode = msgspec.json.encode
_GROUP_BYTES = len(b'{"group":,"count":1000000,"records":[]},')
_OF_ROOM_FOR_COUNTS = 8


class _Group:
    __slots__ = ("count", "texts")

    def __init__(self) -> None:
        self.count = 0
        self.texts: list[bytes] = []


class GroupedBuilder:
    """Takes records newest first, all of them: what does not fit any more is counted."""

    is_full = False

    def __init__(self, head: Head, names: Names, max_body_bytes: int, group: tuple[str, ...]) -> None:
        self._head = head
        self._names = encoded(names)
        self._path = group
        self._room_bytes = max(0, room_bytes(self._names, max_body_bytes))
        """Below 0 where groups were listed after the last record that fit."""
        self._counts_bytes = self._room_bytes // _OF_ROOM_FOR_COUNTS
        self._groups: dict[bytes, _Group] = {}
        """By the field, as JSON."""
        self._shown: list[_Group] = []
        """Of each record that is shown."""
        self._is_cut = False
        self._is_listed = True
        """Whether every group so far is listed."""

    def add(self, records: Sequence[StoredRecord]) -> None:
        texts = [b""] * len(records) if self._is_cut or not records else texts_of(records)
        for text, (_, _, value) in zip(texts, records, strict=True):
            name = group_of(value, self._path)
            group = self._groups.get(name)
            if not self._is_cut:
                group = self._show(name, group, text)
            elif group is None:
                group = self._list(name)
            if group is not None:
                group.count += 1

    def _show(self, name: bytes, group: _Group | None, text: bytes) -> _Group | None:
        cost = len(text) + 1 + (0 if group is not None else len(name) + _GROUP_BYTES)
        if cost > self._room_bytes:
            self._is_cut = True
            return group or self._list(name)
        if group is None:
            group = self._groups[name] = _Group()
        self._room_bytes -= cost
        group.texts.append(text)
        self._shown.append(group)
        return group

    def _list(self, name: bytes) -> _Group | None:
        """Without a record, where there is room for that."""
        cost = len(name) + _GROUP_BYTES
        if not self._is_listed or cost > self._counts_bytes:
            self._is_listed = False
            return None
        self._counts_bytes -= cost
        self._room_bytes -= cost
        group = self._groups[name] = _Group()
        return group

    def body(self, first_ms: int, last_ms: int) -> bytes:
        while self._room_bytes < 0:
            self._room_bytes += len(self._shown.pop().texts.pop()) + 1
        groups = [
            b'{"group":%s,"count":%d,"records":[%s]}' % (name, group.count, b",".join(group.texts))
            for name, group in self._groups.items()
        ]
        lists = b'"groups":[%s]' % b",".join(groups)
        return document(self._head, self._names, span_of(first_ms, last_ms), len(self._shown), lists)


def builder_of(head: Head, names: Names, max_body_bytes: int, group: tuple[str, ...]) -> Builder | GroupedBuilder:
    return GroupedBuilder(head, names, max_body_bytes, group) if group else Builder(head, names, max_body_bytes)


def group_of(value: bytes, path: tuple[str, ...]) -> bytes:
    """The field as JSON; null where it is not there, or is no text, number, true or false."""
    try:
        found: Any = msgspec.json.decode(raw_at(value, path))
    except (KeyError, msgspec.DecodeError):
        found = None
    return _encode(found if isinstance(found, str | int | float | bool) else None)
