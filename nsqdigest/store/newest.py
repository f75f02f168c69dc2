"""Records of a set by their place, the newest first, be it open, a digest's or dead. Reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.record import StoredRecord, timestamp_ms

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
    found = zip(keys, flat[1::2], texts, strict=True)
    return len(keys), [
        StoredRecord(key, timestamp_ms(score), value) for key, score, value in found if value is not None
    ]
