"""Dead digests as lines of JSON, for `dead export`, and back, for `dead drop --exported`.

    {"id": …, "died": …, "reason": …, "status": …, "cause": …, "answer": …, "attempts": …, "digest": {…}, "missing": 0}

Invariants:
- `digest` is the document that a receiver gets of a route without a group, with all of its records: no limit of the
  sink cuts it.
- A line is written page by page. Memory does not grow with the number of digests, nor with the records of one.
- `missing` counts the records that were not found. A line that does not have all of its records permits no drop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.delivery.digest import Names, document, encoded, rfc3339, span_of, texts_of

if TYPE_CHECKING:
    from nsqdigest.store.dead import Dead, DeadStore

_PLACE = b"\0"
"""Stands for the records. No JSON has this byte."""


class _Data(msgspec.Struct, frozen=True):
    total: int
    records: list[msgspec.Raw]


class _Digest(msgspec.Struct, frozen=True):
    data: _Data


class Exported(msgspec.Struct, frozen=True):
    """A line, as far as a drop needs it."""

    id: str
    missing: int
    digest: _Digest

    @property
    def is_whole(self) -> bool:
        return not self.missing and len(self.digest.data.records) == self.digest.data.total


class Line:
    """The line of one digest."""

    def __init__(self, store: DeadStore, dead: Dead) -> None:
        self._store = store
        self._dead = dead
        self.missing = 0
        """Records that were not found; known with the last part."""

    async def parts(self) -> AsyncIterator[bytes]:
        dead, details, head = self._dead, self._dead.details, self._dead.details.head
        names = encoded(Names(details.route, details.timeline, details.sink))
        span = span_of(*await self._store.span_ms(dead))
        before, after = document(head, names, span, head.total, b'"records":[%s]' % _PLACE).split(_PLACE)
        about = {
            "id": dead.id, "died": rfc3339(dead.since_ms), "reason": details.reason,
            "status": details.status or None, "cause": details.cause, "answer": details.answer,
            "attempts": head.attempts,
        }  # fmt: skip
        yield msgspec.json.encode(about)[:-1] + b',"digest":' + before
        written = 0
        async for page in self._store.pages(dead):
            if page:
                yield (b"," if written else b"") + b",".join(texts_of(page))
                written += len(page)
        self.missing = head.total - written
        yield after + b',"missing":%d}\n' % self.missing


def read(lines: Iterable[bytes]) -> Iterator[Exported]:
    """Raises NsqdigestError for a line that `line_of` did not write, or that was cut off."""
    for number, line in enumerate(lines, 1):
        try:
            yield msgspec.json.decode(line, type=Exported)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise NsqdigestError(
                f"line {number} is no line of `nsqdigest dead export`, or its end is missing; nothing was dropped"
            ) from None
