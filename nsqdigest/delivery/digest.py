"""Records to a digest's body (pure): order, grouping, counts, trimming to a size.

The body is a function of the snapshot, what was stored beside it, and the configuration; nothing here asks the clock.
Each record's value goes in as the raw bytes it was published as. The list is cut where the body would outgrow its
limit; the totals stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from nsqdigest.store.record import Head

_encode = msgspec.json.encode
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_ENVELOPE_BYTES = 1024
"""Room kept for everything but records and names."""


def rfc3339(instant_ms: int) -> str:
    moment = datetime.fromtimestamp(instant_ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{instant_ms % 1000:03d}Z"


class Builder:
    """Takes records newest first until one does not fit any more."""

    def __init__(self, facts: Head, max_body_bytes: int, group: Sequence[str] = ()) -> None:
        self._facts = facts
        self._group = tuple(group)
        self._room_bytes = (
            max_body_bytes
            - _ENVELOPE_BYTES
            - len(_encode(facts.timeline))
            - len(_encode(facts.route))
            - len(facts.sink)
        )
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

    def body(self) -> bytes:
        facts = self._facts
        if self._group:
            groups = (
                b'{"group":%s,"records":[%s]}' % (group, b",".join(records)) for group, records in self._groups.items()
            )
            shown = b'"groups":[%s]' % b",".join(groups)
        else:
            shown = b'"records":[%s]' % b",".join(self._groups.get(b"", []))
        before = {
            "id": facts.id, "route": facts.route, "timeline": facts.timeline, "sink": facts.sink,
            "iteration": facts.iteration,
            "first": facts.first_ms, "last": facts.last_ms, "total": facts.total, "shown": self._shown,
            "superseded": facts.superseded, "dropped": {"capacity": facts.dropped_capacity},
        }  # fmt: skip
        return b'{"type":"digest","timestamp":"%s","data":{%s,%s,"next_earliest":"%s"}}' % (
            rfc3339(facts.opened_ms).encode(), _encode(before)[1:-1], shown, rfc3339(facts.next_earliest_ms).encode(),
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
