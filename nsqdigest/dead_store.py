"""The dead store: digests that were buried, each whole and under its id, in the partition of its timeline.

Always so:
- What is dead stays until it is revived, dropped, or the oldest beyond the limit. The ledger counts it as buried.
- A revived digest goes out as it was: same id, same records, same totals. From the moment it is revived it is a
  timeline of its own (`layout.own_timeline`) and no part of this store, until it is delivered or buried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from nsqdigest.digest import Facts
from nsqdigest.layout import RECORDS_PER_CALL, own_timeline, partition_limit

if TYPE_CHECKING:
    from nsqdigest.partitions import Partitions

T = TypeVar("T")
_ABSENT: Mapping[type, Any] = {str: "", int: 0}


def _of_any_version(kind: type[T], written: Mapping[str, Any]) -> T:
    """A tuple of texts and numbers as another version may have written it: fields that this one does not know are
    passed over, those that the other did not know are empty."""
    return kind(**{name: written.get(name, _ABSENT[of]) for name, of in get_type_hints(kind).items()})


class Details(NamedTuple):
    """Why a digest died, and all that is required to send it again."""

    facts: Facts
    reason: str
    detail: str
    attempts: int

    def encode(self) -> bytes:
        return msgspec.json.encode({**self._asdict(), "facts": self.facts._asdict()})

    @classmethod
    def decode(cls, text: bytes) -> Details:
        written: dict[str, Any] = msgspec.json.decode(text)
        facts = _of_any_version(Facts, written["facts"])
        return cls(facts, written["reason"], written.get("detail", ""), written.get("attempts", 0))


def route_and_total(text: bytes | None) -> tuple[str, int | None]:
    """Of which route a dead digest is, and how many records it had; "" and None where its details are unreadable."""
    try:
        facts = Details.decode(text or b"").facts
    except (msgspec.MsgspecError, TypeError, KeyError):
        return "", None
    return facts.route, facts.total


class Dead(NamedTuple):
    partition: int
    since_ms: int
    details: Details

    @property
    def id(self) -> str:
        return self.details.facts.id

    @property
    def route(self) -> str:
        return self.details.facts.route


class Revival(StrEnum):
    REVIVED = "revived"
    ALREADY = "already"
    """It is on its way since an earlier call."""
    UNKNOWN = "unknown"


class DeadStore:
    def __init__(self, partitions: Partitions, limit: int) -> None:
        self._at = partitions
        self._limit_per_partition = partition_limit(limit, partitions.count)

    async def page(self, partition: int, start: int, count: int = RECORDS_PER_CALL) -> list[Dead]:
        """Of one partition, those longest dead first."""
        keys = self._at.dead[partition]
        last = start + min(count, RECORDS_PER_CALL) - 1
        (flat,) = await self._at.send(partition, [[b"ZRANGE", keys.dead, start, last, b"WITHSCORES"]])
        if not flat:
            return []
        (texts,) = await self._at.send(partition, [[b"HMGET", keys.details, *flat[::2]]])
        # One without its details was revived or dropped between the two reads.
        return [
            Dead(partition, int(float(since_ms)), Details.decode(text))
            for since_ms, text in zip(flat[1::2], texts, strict=True)
            if text is not None
        ]

    async def find(self, digest_id: str) -> Dead | None:
        return next(
            filter(None, await asyncio.gather(*(self._look(p, digest_id) for p in range(self._at.count)))), None
        )

    async def _look(self, partition: int, digest_id: str) -> Dead | None:
        keys = self._at.dead[partition]
        since_ms, text = await self._at.send(
            partition, [[b"ZSCORE", keys.dead, digest_id], [b"HGET", keys.details, digest_id]]
        )
        return None if since_ms is None or text is None else Dead(partition, int(float(since_ms)), Details.decode(text))

    async def revive(self, dead: Dead) -> Revival:
        """Due now, whatever its timeline does meanwhile. Its age and its tries begin again, its attempts go on."""
        facts, of = dead.details.facts, self._at.keys(dead.partition, dead.route)
        own = own_timeline(facts.id, facts.timeline).encode()
        answer = await self._at.run(
            dead.partition,
            "revive",
            [*of.of(own), *self._at.dead[dead.partition].of(facts.id)],
            [b"", facts.id, own, dead.details.attempts, facts.opened_ms, facts.iteration, facts.superseded,
             facts.over_capacity, facts.next_earliest_ms],
        )  # fmt: skip
        return Revival(answer[0].decode())

    async def drop(self, partition: int, digest_id: str, route: str) -> int:
        """Answers how many records went with it."""
        keys = [*self._at.dead[partition].of(digest_id), self._at.keys(partition, route).ledger]
        answer = await self._at.run(partition, "drop_dead", keys, [digest_id])
        return int(answer[1]) if answer[0] == b"dropped" else 0

    async def over_limit(self, partition: int) -> list[Dead]:
        """Those longest dead beyond the limit."""
        (count,) = await self._at.send(partition, [[b"ZCARD", self._at.dead[partition].dead]])
        over = count - self._limit_per_partition
        return await self.page(partition, 0, over) if over > 0 else []
