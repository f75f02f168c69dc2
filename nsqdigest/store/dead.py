"""The dead store: digests that were buried, each whole and under its id, in the partition of its timeline.

Invariants:
- A dead digest stays until it is revived, is dropped, or is the oldest beyond the limit. The ledger counts its records
  as buried.
- Details that no version of nsqdigest wrote are `Unreadable`. Such a digest can neither be sent nor dropped, since its
  route is not known. Lists leave it out, and `audit` reports it.
- A revived digest goes out as it was: same id, same records, same totals. A revival makes it a timeline of its own
  (`keys.own_timeline`), which leaves the dead store until it is delivered or buried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from nsqdigest.store.head import Head
from nsqdigest.store.keys import own_timeline, partition_limit
from nsqdigest.store.newest import newest_records, pages, span_ms
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.schedule import instant_ms

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.record import StoredRecord

T = TypeVar("T")
_LOOKED_BEYOND = 16
"""How many more details are read than are to be dropped, since some may be unreadable."""
_ABSENT: Mapping[type, Any] = {str: "", int: 0}


class Unreadable(ValueError):
    """Details of a dead digest that no version of nsqdigest wrote."""


def _of_any_version(kind: type[T], written: Mapping[str, Any]) -> T:
    """Reads a tuple of texts and numbers that another version may have written: skips fields that this version does not
    know, and leaves those empty that the other version did not know."""
    fields = {name: (written.get(name, _ABSENT[of]), of) for name, of in get_type_hints(kind).items()}
    for name, (value, of) in fields.items():
        if type(value) is not of:
            raise Unreadable(f"{name} is not of the type {of.__name__}")
    return kind(**{name: value for name, (value, _) in fields.items()})


class _Beside(NamedTuple):
    """The fields of `Details` beside `head`."""

    route: str
    timeline: str
    sink: str
    reason: str
    cause: str
    answer: str
    status: int


class Details(NamedTuple):
    """Why a digest was buried, and everything that is required to send it again."""

    head: Head
    route: str
    timeline: str
    sink: str
    reason: str
    cause: str
    """Our own words for the last failure."""
    answer: str = ""
    """The receiver's last words."""
    status: int = 0
    """The code of that answer, of HTTP or SMTP; 0 if it gave none."""

    def encode(self) -> bytes:
        # A receiver's answer, or a library's error, may hold halves of characters.
        texts = {name: getattr(self, name).encode("utf-8", "backslashreplace").decode() for name in ("cause", "answer")}
        return msgspec.json.encode({**self._asdict(), "head": self.head._asdict(), **texts})

    @classmethod
    def decode(cls, text: bytes) -> Details:
        try:
            written: dict[str, Any] = msgspec.json.decode(text)
            head = _of_any_version(Head, written.pop("head"))
            written.setdefault("answer", written.pop("detail", ""))  # of a version that kept both in one text
            beside = _of_any_version(_Beside, written)
        except (msgspec.MsgspecError, TypeError, KeyError, AttributeError) as error:
            raise Unreadable(str(error)) from error
        if not beside.route:
            raise Unreadable("they do not name its route")
        return cls(head, *beside)


def route_and_total(text: bytes | None) -> tuple[str, int | None]:
    """The route of a dead digest, and how many records it had; "" and None where its details are unreadable."""
    try:
        details = Details.decode(text or b"")
    except Unreadable:
        return "", None
    return details.route, details.head.total


class Dead(NamedTuple):
    partition: int
    since_ms: int
    details: Details

    @property
    def id(self) -> str:
        return self.details.head.id

    @property
    def route(self) -> str:
        return self.details.route


class Entry(NamedTuple):
    """A place in the dead store. `dead`: None where its details are unreadable."""

    id: str
    since_ms: int
    dead: Dead | None


class Revival(StrEnum):
    REVIVED = "revived"
    ALREADY = "already"
    """An earlier call revived it; it is being delivered."""
    UNKNOWN = "unknown"


def _dead(partition: int, digest_id: bytes, since_ms: bytes, text: bytes | None) -> Dead | None:
    """Returns None where it was revived or dropped between two reads, or its details are unreadable."""
    if text is None:
        return None
    try:
        details = Details.decode(text)
    except Unreadable:
        return None
    return Dead(partition, instant_ms(since_ms), details) if details.head.id.encode() == digest_id else None


class OverLimit(NamedTuple):
    """Some of the dead digests beyond the limit."""

    found: list[Dead]
    unreadable: int
    """How many stood between and before them whose details are unreadable: these stay."""


async def revive(namespace: Namespace, partition: int, route: str, own: bytes, head: Head) -> Revival:
    """Makes a dead digest due now, as a timeline of its own."""
    answer = await namespace.run(
        partition,
        "revive",
        [*namespace.keys[partition, route].of(own), *namespace.dead_keys[partition].of(head.id)],
        [b"", head.id, own, head.attempts, head.opened_ms, head.iteration, head.superseded, head.dropped_capacity,
         head.next_earliest_ms, head.dropped_cancelled],
    )  # fmt: skip
    return Revival(answer[0].decode())


class DeadStore:
    def __init__(self, namespace: Namespace, limit: int) -> None:
        self._namespace = namespace
        self.set_limit(limit)

    def set_limit(self, limit: int) -> None:
        self._limit_per_partition = partition_limit(limit, self._namespace.partitions)

    async def page(self, partition: int, start: int, count: int = RECORDS_PER_CALL) -> list[Dead]:
        """Of one partition, those longest dead first. Fewer than `count` where details are unreadable."""
        keys = self._namespace.dead_keys[partition]
        last = start + min(count, RECORDS_PER_CALL) - 1
        (flat,) = await self._namespace.send(partition, [[b"ZRANGE", keys.dead, start, last, b"WITHSCORES"]])
        if not flat:
            return []
        (texts,) = await self._namespace.send(partition, [[b"HMGET", keys.details, *flat[::2]]])
        each = map(_dead, repeat(partition), flat[::2], flat[1::2], texts)
        return [dead for dead in each if dead is not None]

    async def page_between(self, partition: int, from_ms: int, until_ms: int, offset: int = 0) -> list[Entry]:
        """Of one partition, those that died in this time, both instants included; those longest dead first."""
        keys = self._namespace.dead_keys[partition]
        (flat,) = await self._namespace.send(
            partition,
            [[b"ZRANGEBYSCORE", keys.dead, from_ms, until_ms, b"WITHSCORES", b"LIMIT", offset, RECORDS_PER_CALL]],
        )
        if not flat:
            return []
        (texts,) = await self._namespace.send(partition, [[b"HMGET", keys.details, *flat[::2]]])
        return [
            Entry(digest_id.decode("utf-8", "replace"), instant_ms(since), _dead(partition, digest_id, since, text))
            for digest_id, since, text in zip(flat[::2], flat[1::2], texts, strict=True)
        ]

    @property
    def partitions(self) -> int:
        return self._namespace.partitions

    async def sizes(self) -> list[int]:
        """How many digests are dead, by partition."""
        answers = await asyncio.gather(
            *(
                self._namespace.send(partition, [[b"ZCARD", keys.dead]])
                for partition, keys in enumerate(self._namespace.dead_keys)
            )
        )
        return [count for (count,) in answers]

    async def records(self, dead: Dead, most: int) -> list[StoredRecord]:
        """Its newest ones."""
        index, values = self._namespace.dead_keys[dead.partition].of_digest(dead.id)
        return await newest_records(self._namespace, dead.partition, index, values, most)

    def pages(self, dead: Dead) -> AsyncIterator[list[StoredRecord]]:
        """All of its records, the newest first, without those whose value is gone."""
        keys = self._namespace.dead_keys[dead.partition].of_digest(dead.id)
        return pages(self._namespace, dead.partition, keys, dead.details.head.total)

    async def span_ms(self, dead: Dead) -> tuple[int, int]:
        """The timestamps of its oldest and its newest record."""
        index, _ = self._namespace.dead_keys[dead.partition].of_digest(dead.id)
        return await span_ms(self._namespace, dead.partition, index)

    async def find(self, digest_id: str) -> Dead | None:
        return next(
            filter(None, await asyncio.gather(*(self._look(p, digest_id) for p in range(self._namespace.partitions)))),
            None,
        )

    async def _look(self, partition: int, digest_id: str) -> Dead | None:
        keys = self._namespace.dead_keys[partition]
        since_ms, text = await self._namespace.send(
            partition, [[b"ZSCORE", keys.dead, digest_id], [b"HGET", keys.details, digest_id]]
        )
        return None if since_ms is None else _dead(partition, digest_id.encode(), since_ms, text)

    async def revive(self, dead: Dead) -> Revival:
        """Makes the digest due now, independently of its timeline. Age and tries begin again, attempts go on."""
        return await revive(self._namespace, dead.partition, dead.route, self._own(dead), dead.details.head)

    @staticmethod
    def _own(dead: Dead) -> bytes:
        return own_timeline(dead.id, dead.details.timeline).encode()

    async def drop(self, dead: Dead) -> int | None:
        """Returns how many records were dropped. None: no such digest is dead."""
        return await self._drop(dead, b"")

    async def drop_over_limit(self, old: Dead) -> int:
        """The same, unless others dropped enough since it was found: then it drops nothing."""
        return await self._drop(old, self._limit_per_partition) or 0

    async def _drop(self, dead: Dead, may_stay: bytes | int) -> int | None:
        of, own = self._namespace.keys[dead.partition, dead.route], self._own(dead)
        revived = of.snapshot + own, of.snapshot_values + own
        keys = [*self._namespace.dead_keys[dead.partition].of(dead.id), of.ledger, *revived]
        answer = await self._namespace.run(dead.partition, "drop_dead", keys, [dead.id, may_stay])
        return int(answer[1]) if answer[0] == b"dropped" else None

    async def over_limit(self, partition: int, passed: int, most: int) -> OverLimit:
        """At most so many of those beyond the limit, the longest dead first. `passed`: so many stand before them whose
        details are unreadable, as earlier pages found."""
        (count,) = await self._namespace.send(partition, [[b"ZCARD", self._namespace.dead_keys[partition].dead]])
        over = min(count - self._limit_per_partition, most)
        found, start = list[Dead](), passed
        while not found and over > 0 and start < count:
            step = min(over + _LOOKED_BEYOND, RECORDS_PER_CALL)
            found += await self.page(partition, start, step)
            start += step
        return OverLimit(found[: max(0, over)], max(0, min(start, count) - passed - len(found)))
