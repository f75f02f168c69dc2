"""What the store's keys are called, and how batches and pages are cut and packed (pure).

Keys, under the hash tag `{namespace:partition}`, type first, the route's name and the user's part last:

    waiting:ROUTE   timeline scored by due (ms)      set:ROUTE:TIMELINE            key scored by -timestamp (µs)
    leased:ROUTE    timeline scored by deadline      values:ROUTE:TIMELINE         its values
    tokens:ROUTE    of the leased                    digest:ROUTE:TIMELINE         snapshot: the digest under way
    schedule:ROUTE  base, bound, records of each     digest-values:ROUTE:TIMELINE  its values
    losses:ROUTE    since the digest before          head:ROUTE:TIMELINE           iteration; snapshot's id, totals …
    ledger:ROUTE    what became of each record       shown:ROUTE:TIMELINE          memory: keys delivered lately
    agenda          waiting zset: when to look at it at the earliest
    count           how many timelines there are
    dead            id scored by when it died (ms)   dead:details, dead-set:ID, dead-values:ID
    layout          schema, partitions, epoch        routes (of partition 0)       route: when a daemon had it (ms)

A digest that was revived from the dead store is the snapshot of a timeline of its own, in the partition where it was
buried; its name begins with a control character, which no event's timeline can have, and holds the digest's id and the
name of the timeline that it came from (`own_timeline`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsqdigest.events import Record

SCHEMA = 2
RECORDS_PER_CALL = 500
BYTES_PER_CALL = 1 << 20
_FIRST_PAGE_RECORDS = 16

_LENGTHS = [length.to_bytes(2, "big") for length in range(4097)]
"""Packed: of keys (limits.key is 4 KiB at most) and of a timeline's records in a batch."""
_FLAGS = (b"\x00", b"\x01")
_OWN = "\x01"


class Keys:
    """The key names of one route in one partition, as bytes."""

    def __init__(self, tag: bytes, route: str) -> None:
        name = route.encode()
        self.waiting, self.leased, self.tokens, self.schedules, self.losses, self.ledger = (
            tag + kind + b":" + name for kind in (b"waiting", b"leased", b"tokens", b"schedule", b"losses", b"ledger")
        )
        self.timelines, self.agenda = tag + b"count", tag + b"agenda"
        self.head, self.index, self.values, self.snapshot, self.snapshot_values, self.memory = (
            tag + kind + b":" + name + b":"
            for kind in (b"head", b"set", b"values", b"digest", b"digest-values", b"shown")
        )
        self.fixed = [self.waiting, self.leased, self.tokens, self.schedules, self.losses, self.ledger,
                      self.timelines, self.agenda]  # fmt: skip
        """In the order in which each script that takes one route's has them."""
        self.name_from = len(self.index)

    def of(self, timeline: bytes) -> list[bytes]:
        """All that a script on one timeline takes, in the order of lua/lib/timeline_keys.lua."""
        kinds = (self.head, self.index, self.values, self.snapshot, self.snapshot_values, self.memory)
        return [*self.fixed, *(kind + timeline for kind in kinds)]


class DeadKeys:
    """The key names of the dead store in one partition, as bytes."""

    def __init__(self, tag: bytes) -> None:
        self.dead, self.details = tag + b"dead", tag + b"dead:details"
        self.index, self.values = tag + b"dead-set:", tag + b"dead-values:"

    def of(self, digest_id: str) -> list[bytes]:
        """All that a script on one dead digest takes, in their order."""
        name = digest_id.encode()
        return [self.dead, self.details, self.index + name, self.values + name]


def mismatch(namespace: str, schema: int, stored: int, partitions: int) -> str | None:
    """Why what is stored in a namespace must not be used by this version with so many partitions."""
    if schema != SCHEMA:
        return (
            f'the namespace "{namespace}" in Redis has layout {schema}, this version writes {SCHEMA}: run the version '
            "that wrote it until it is drained, or choose another redis.namespace"
        )
    if stored != partitions:
        return (
            f'the namespace "{namespace}" in Redis was made with redis.partitions = {stored}, the file says '
            f"{partitions}: write {stored}, or choose another redis.namespace"
        )
    return None


def partition_limit(limit: int, partitions: int) -> int:
    """How many of something each partition may have, so that `limit` fit into all of them.

    A hash spreads names unevenly: each has room for its share and six standard deviations more, so that practically
    none is full before `limit` are there.
    """
    share = limit / partitions
    return limit if partitions == 1 else min(limit, math.ceil(share + 6 * math.sqrt(share)))


def own_timeline(digest_id: str, timeline: str) -> str:
    """What a revived digest is called among the timelines."""
    return f"{_OWN}{digest_id}{_OWN}{timeline}"


def is_own(timeline: str) -> bool:
    return timeline.startswith(_OWN)


def shown_timeline(timeline: str) -> str:
    """The name to be told: of a revived digest that of the timeline it came from."""
    return timeline.split(_OWN, 2)[2] if is_own(timeline) else timeline


def pack_batch(keys: Keys, records: Sequence[Record]) -> tuple[list[bytes], list[bytes | int]]:
    """The keys of the batch's timelines, and add's arguments from the number of timelines of its first kind on."""
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
    """Splits records into what one call may carry: so many records, so many bytes (one record is always allowed)."""
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
    """How many records the next page may have, going by the size of those before."""
    average = max(1, bytes_seen // max(1, records_seen))
    return max(1, min(left, RECORDS_PER_CALL, BYTES_PER_CALL // average))
