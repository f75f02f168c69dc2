"""The names of the store's keys (pure).

Keys, under the hash tag `{namespace:partition}`, type first, the route's name and the user's part last:

    waiting:ROUTE   timeline scored by due (ms)      set:ROUTE:TIMELINE            key scored by -timestamp (µs)
    leased:ROUTE    timeline scored by deadline      values:ROUTE:TIMELINE         its values
    tokens:ROUTE    of the leased                    digest:ROUTE:TIMELINE         snapshot: the digest under way
    schedule:ROUTE  base, bound, records of each     digest-values:ROUTE:TIMELINE  its values
    heads:ROUTE     iteration; digest's id, totals … shown:ROUTE:TIMELINE          memory: keys delivered lately
    losses:ROUTE    since the digest before          ends:ROUTE:TIMELINE           keys whose newest event is an end
    ledger:ROUTE    what became of each record
    agenda          waiting zset: when to look at it at the earliest
    count           how many timelines there are
    dead            id scored by when it died (ms)   dead:details, dead-set:ID, dead-values:ID
    layout          schema, partitions, epoch        routes (of partition 0)       route: when a daemon had it (ms)
    turns           when upkeep was done (ms)        policies                      route: what it was scored by
    daemons         (of partition 0) id: when it was seen (ms), and what it tells of itself
    exempt          ROUTE:TIMELINE scored by a retry (ms) that quiet hours do not hold back
    holds           of ROUTE:TIMELINE: muted or snoozed, until when (ms), by whom

A digest that was revived from the dead store is the snapshot of a timeline of its own, in the partition where it was
buried; its name begins with a control character, which no event's timeline can have, and holds the digest's id and the
name of the timeline that it came from (`own_timeline`).
"""

from __future__ import annotations

import math

SCHEMA = 4

_OWN = "\x01"


class Keys:
    """The key names of one route in one partition, as bytes."""

    def __init__(self, tag: bytes, route: str) -> None:
        name = route.encode()
        self.of_route = [
            tag + kind + b":" + name
            for kind in (b"waiting", b"leased", b"tokens", b"schedule", b"heads", b"losses", b"ledger")
        ]
        """In the order in which every script takes them."""
        self.waiting, self.leased, self.tokens, self.schedules, self.heads, self.losses, self.ledger = self.of_route
        self.timelines, self.agenda = self.of_partition = [tag + b"count", tag + b"agenda"]
        self.fixed = [*self.of_route, *self.of_partition]
        self.index, self.values, self.snapshot, self.snapshot_values, self.memory, self.ends = (
            tag + kind + b":" + name + b":"
            for kind in (b"set", b"values", b"digest", b"digest-values", b"shown", b"ends")
        )
        self.name_from = len(self.index)
        self.to_open = self.index, self.values, self.snapshot, self.snapshot_values
        """Prefixes of the keys that lua/delivery/open.lua takes of each timeline."""
        self.of_second_kind = self.index, self.values, self.snapshot, self.memory
        """Prefixes of the keys that lua/intake/add.lua takes of each timeline of its second kind."""
        self.of_second_kind_with_ends = *self.of_second_kind, self.ends
        self.to_finish = self.snapshot, self.snapshot_values, self.memory
        """Prefixes of the keys that lua/delivery/finish.lua takes of each timeline."""

    def of(self, timeline: bytes) -> list[bytes]:
        """The keys of a script on one timeline, in the order of lua/lib/timeline_keys.lua."""
        own = self.index, self.values, self.snapshot, self.snapshot_values, self.memory
        return [*self.fixed, *(prefix + timeline for prefix in own)]


class DeadKeys:
    """The key names of the dead store in one partition, as bytes."""

    def __init__(self, tag: bytes) -> None:
        self.dead, self.details = tag + b"dead", tag + b"dead:details"
        self.index, self.values = tag + b"dead-set:", tag + b"dead-values:"

    def of_digest(self, digest_id: str) -> tuple[bytes, bytes]:
        name = digest_id.encode()
        return self.index + name, self.values + name

    def of(self, digest_id: str) -> list[bytes]:
        """The keys of a script on one dead digest, in the order in which it takes them."""
        return [self.dead, self.details, *self.of_digest(digest_id)]


def mismatch(namespace: str, schema: int, stored: int, partitions: int) -> str | None:
    """Why this version, with so many partitions, must not use what is stored in a namespace. None: it may."""
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

    A hash spreads names unevenly: each partition has room for its share and six standard deviations more, so that
    practically none is full before the limit is reached.
    """
    share = limit / partitions
    return limit if partitions == 1 else min(limit, math.ceil(share + 6 * math.sqrt(share)))


def own_timeline(digest_id: str, timeline: str) -> str:
    """The name of a revived digest among the timelines."""
    return f"{_OWN}{digest_id}{_OWN}{timeline}"


def is_own(timeline: str) -> bool:
    return timeline.startswith(_OWN)


def own_digest_id(timeline: str) -> str:
    """The id of a revived digest, by its name among the timelines; "" for any other timeline."""
    return timeline.split(_OWN, 2)[1] if is_own(timeline) else ""


def shown_timeline(timeline: str) -> str:
    """The name to show: for a revived digest, the name of the timeline it came from."""
    return timeline.split(_OWN, 2)[-1] if is_own(timeline) else timeline
