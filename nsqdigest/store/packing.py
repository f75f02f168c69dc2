"""Cuts records into calls and packs them for lua/intake/add.lua; sizes the pages of a digest (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from nsqdigest.store.keys import Keys
from nsqdigest.store.record import Record

RECORDS_PER_CALL = 500
BYTES_PER_CALL = 1 << 20
_FIRST_PAGE_RECORDS = 16
_LENGTHS = [length.to_bytes(2, "big") for length in range(4097)]
"""Packed lengths: of keys (limits.key is 4 KiB at most), and of the records of one timeline in a batch."""
_FLAGS = (b"\x00", b"\x01")


def pack_batch(keys: Keys, records: Sequence[Record]) -> tuple[list[bytes], list[bytes | int]]:
    """Returns the keys of the batch's timelines, and the last arguments of add.lua: from the number of timelines of its
    first kind on."""
    plain: dict[bytes, list[Record]] = {}
    with_repeats: dict[bytes, list[Record]] = {record.timeline: [] for record in records if record.possible_repeat}
    for record in records:
        timeline = record.timeline
        theirs = plain.get(timeline)
        if theirs is not None:
            theirs.append(record)
        elif timeline in with_repeats:
            with_repeats[timeline].append(record)
        else:
            plain[timeline] = [record]
    declared: list[bytes] = []
    packed: list[bytes] = []
    values: list[bytes] = []
    index, hash_of_values = keys.index, keys.values
    for timeline, theirs in (*plain.items(), *with_repeats.items()):
        is_plain = timeline not in with_repeats
        declared += (index + timeline, hash_of_values + timeline)
        if not is_plain:
            declared += (keys.snapshot + timeline, keys.memory + timeline)
        packed.append(_LENGTHS[len(theirs)])
        for record in theirs:
            key = record.key
            score = b"%017d" % -record.timestamp_us
            if not is_plain:
                packed.append(_FLAGS[record.possible_repeat])
            packed += (_LENGTHS[len(key)], key, score)
            values.append(record.value)
    return declared, [len(plain), b"".join(packed), *values]


def calls_of(records: Sequence[Record]) -> list[Sequence[Record]]:
    """Splits records into calls of at most RECORDS_PER_CALL and BYTES_PER_CALL; a single record may be bigger."""
    calls: list[Sequence[Record]] = []
    start = size = 0
    for position, record in enumerate(records):
        if position > start and (position - start == RECORDS_PER_CALL or size + len(record.value) > BYTES_PER_CALL):
            calls.append(records[start:position])
            start, size = position, 0
        size += len(record.value)
    if start < len(records):
        calls.append(records[start:])
    return calls


def first_page(total: int) -> int:
    return min(total, _FIRST_PAGE_RECORDS)


def next_page(records_seen: int, bytes_seen: int, left: int) -> int:
    """How many records the next page may have, by the average size of those before."""
    average = max(1, bytes_seen // max(1, records_seen))
    return max(1, min(left, RECORDS_PER_CALL, BYTES_PER_CALL // average))
