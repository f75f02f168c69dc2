"""Records of a set by their place, the newest first, be it open, a digest's or dead. Reads only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from nsqdigest.store.packing import RECORDS_PER_CALL, first_page, next_page
from nsqdigest.store.record import StoredRecord, shown_keys, timestamp_ms

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace


async def newest_records(
    namespace: Namespace, partition: int, index: bytes, values: bytes, most: int
) -> list[StoredRecord]:
    """At most RECORDS_PER_CALL."""
    if most <= 0:
        return []
    _, records = await records_at(namespace, partition, (index, values), 0, min(most, RECORDS_PER_CALL))
    return records


async def pages(
    namespace: Namespace, partition: int, of: tuple[bytes, bytes], total: int
) -> AsyncIterator[list[StoredRecord]]:
    """The records of a set of `total`, the newest first; a page has about as many bytes as one read should have."""
    start = seen_bytes = 0
    count = first_page(total)
    while start < total:
        read, page = await records_at(namespace, partition, of, start, count)
        if not read:
            return
        yield page
        start += read
        seen_bytes += sum(len(record.value) for record in page)
        count = next_page(start, seen_bytes, total - start)


async def span_ms(namespace: Namespace, partition: int, index: bytes) -> tuple[int, int]:
    """The timestamps of the oldest and the newest record; 0 if there is none."""
    newest, oldest = await namespace.send(
        partition, [[b"ZRANGE", index, 0, 0, b"WITHSCORES"], [b"ZRANGE", index, -1, -1, b"WITHSCORES"]]
    )
    first_ms, last_ms = (timestamp_ms(flat[1]) if flat else 0 for flat in (oldest, newest))
    return first_ms, last_ms


async def records_at(
    namespace: Namespace, partition: int, of: tuple[bytes, bytes], start: int, count: int
) -> tuple[int, list[StoredRecord]]:
    """How many places were read, and the records there without those whose value is gone (it was superseded meanwhile,
    or lost). `of`: the keys of the set's index and values."""
    index, values = of
    (flat,) = await namespace.send(partition, [[b"ZRANGE", index, start, start + count - 1, b"WITHSCORES"]])
    keys = flat[::2]
    if not keys:
        return 0, []
    (texts,) = await namespace.send(partition, [[b"HMGET", values, *keys]])
    found = zip(shown_keys(keys), flat[1::2], texts, strict=True)
    return len(keys), [
        StoredRecord(key, timestamp_ms(score), value) for key, score, value in found if value is not None
    ]
