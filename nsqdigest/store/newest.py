"""The newest records of a set, be it open, a digest's or dead. Reads only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.record import StoredRecord
from nsqdigest.store.schedule import instant_ms

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace


async def newest_records(
    namespace: Namespace, partition: int, index: bytes, values: bytes, most: int
) -> list[StoredRecord]:
    """Of one set of records, without those whose value is gone (it was superseded meanwhile, or lost)."""
    last = min(most, RECORDS_PER_CALL) - 1
    if last < 0:
        return []
    (flat,) = await namespace.send(partition, [[b"ZRANGE", index, 0, last, b"WITHSCORES"]])
    if not flat:
        return []
    (texts,) = await namespace.send(partition, [[b"HMGET", values, *flat[::2]]])
    return [
        StoredRecord(key, -instant_ms(score) // 1000, value)  # a score is minus the timestamp in microseconds
        for key, score, value in zip(flat[::2], flat[1::2], texts, strict=True)
        if value is not None
    ]
