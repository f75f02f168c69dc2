"""Digests as delivery uses them: which timelines are due, claims on them, and the digest of each claim from open to
close.

A call with a token that is no longer valid changes nothing and returns `stale`. Instants are integer milliseconds of
Redis' clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsqdigest.store.answers import ANSWERS, Answer, Claim, Claimed, NotOpened, Opened
from nsqdigest.store.damage import one_by_one
from nsqdigest.store.record import StoredRecord
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule

if TYPE_CHECKING:
    from nsqdigest.store.keys import Keys
    from nsqdigest.store.namespace import Namespace

_MEMORY_PER_CAPACITY = 2


class Digests:
    def __init__(self, namespace: Namespace, plans: Mapping[str, StoreRoute]) -> None:
        self._namespace = namespace
        self._plans = plans
        self.clock = namespace.clock
        self.partitions = namespace.partitions

    # -- schedule

    async def agenda(self, partition: int, within_ms: int) -> dict[str, int]:
        """Of which routes something may be due by now or so soon, and when at the earliest."""
        horizon_ms = self.clock.now_ms() + within_ms
        (seconds, microseconds), flat = await self._namespace.send_together(
            partition,
            [
                [b"TIME"],
                [b"ZRANGEBYSCORE", self._namespace.tags[partition] + b"agenda", b"-inf", horizon_ms, b"WITHSCORES"],
            ],
        )
        self.clock.heard(int(seconds) * 1000 + int(microseconds) // 1000)
        from_name = len(self._namespace.tags[partition] + b"waiting:")
        return {
            waiting[from_name:].decode(): int(float(due)) for waiting, due in zip(flat[::2], flat[1::2], strict=True)
        }

    async def claim(
        self,
        partition: int,
        routes: Sequence[tuple[str, int]],
        budgets: Sequence[int],
        lease_ms: int,
        token: str | None = None,
    ) -> Claimed:
        """Takes what is due. Each route draws on the budget whose number stands beside it.

        With a token of its own the caller can `release` what a claim took whose answer got lost.
        """
        token = token or uuid4().hex
        keys = self._route_keys(partition, [route for route, _ in routes])
        answer = await self._namespace.run(
            partition,
            "claim",
            keys,
            [b"", lease_ms, token, len(budgets), *budgets,
             *chain.from_iterable((budget + 1, self._plans[route].increment_ms) for route, budget in routes)],
        )  # fmt: skip
        self.clock.heard(answer[0])
        claims = [
            Claim(partition, routes[number - 1][0], timeline.decode(), int(float(due)), token)
            for number, timeline, due in zip(answer[2::3], answer[3::3], answer[4::3], strict=True)
        ]
        return Claimed(claims, int(float(answer[1])) if answer[1] else None)

    async def release(self, partition: int, routes: Sequence[str], token: str) -> int:
        """What a claim took whose answer nobody heard. Returns how many timelines came back. Those of a damaged route
        are left to their lease."""

        async def release_of(some: Sequence[str]) -> int:
            return int((await self._namespace.run(partition, "release", self._route_keys(partition, some), [token]))[0])

        return sum((await one_by_one(routes, release_of))[0])

    def _route_keys(self, partition: int, routes: Sequence[str]) -> list[bytes]:
        of_routes = (self._namespace.keys(partition, route) for route in routes)
        own = [key for of in of_routes for key in (of.waiting, of.leased, of.tokens, of.schedules)]
        return [*own, self._namespace.tags[partition] + b"agenda"]

    # -- a digest

    async def open(
        self, claim: Claim, lease_ms: int, new_id: str, next_earliest_ms: Sequence[int]
    ) -> Opened | NotOpened:
        of, name = self._of(claim)
        plan = self._plans[claim.route]
        answer = await self._namespace.run(
            claim.partition,
            "open",
            of.of(name),
            [b"", name, claim.token, lease_ms, new_id, plan.capacity if plan.merges else 0, *next_earliest_ms],
            durable=True,
        )  # fmt: skip
        word = answer[0]
        if word == b"stale":
            return NotOpened.STALE
        if word == b"empty":
            return NotOpened.EMPTY
        if word == b"burying":
            await self._bury_again(claim, answer[1].decode(), int(answer[2]))
            return NotOpened.STALE
        self.clock.heard(answer[1])
        opened_ms, iteration, total, first_us, last_us, *others = (int(float(told)) for told in answer[3:])
        return Opened(
            word == b"again",
            answer[2].decode(),
            opened_ms,
            iteration,
            total,
            first_us // 1000,
            last_us // 1000,
            *others,
        )

    async def page(self, claim: Claim, opened: Opened, start: int, count: int) -> list[StoredRecord | None] | None:
        """`count` records of the snapshot from `start` on, newest first, of equal timestamps by key. A record is None
        if Redis lost its value. Returns None if the digest is no longer there.

        An id is never used again, and its snapshot is frozen: where it is the same before the first read and after the
        last one, nothing changed between them.
        """
        of, name = self._of(claim)
        head, size, members = await self._namespace.send(
            claim.partition,
            [
                [b"HGET", of.head + name, b"id"],
                [b"ZCARD", of.snapshot + name],
                [b"ZRANGE", of.snapshot + name, start, start + count - 1, b"WITHSCORES"],
            ],
        )
        if head != opened.id.encode() or size != opened.total or len(members) != 2 * min(count, opened.total - start):
            return None
        if not members:
            return []
        keys, scores = members[::2], members[1::2]
        values, id_after = await self._namespace.send(
            claim.partition, [[b"HMGET", of.snapshot_values + name, *keys], [b"HGET", of.head + name, b"id"]]
        )
        if id_after != head:
            return None
        return [
            None if value is None else StoredRecord(key, -int(float(score)) // 1000, value)
            for key, score, value in zip(keys, scores, values, strict=True)
        ]

    async def renew(self, claim: Claim, lease_ms: int) -> Answer:
        of, name = self._of(claim)
        return self._answer(
            await self._namespace.run(claim.partition, "renew", of.of(name), [b"", name, claim.token, lease_ms])
        )

    async def close_digest(self, claim: Claim, digest_id: str, after: Schedule) -> Answer:
        of, name = self._of(claim)
        plan = self._plans[claim.route]
        answer = await self._namespace.run(
            claim.partition,
            "close",
            of.of(name),
            [name, claim.token, digest_id, after.base_ms, after.bound_ms, plan.increment_ms, *self._memory(claim)],
        )  # fmt: skip
        return self._answer(answer)

    async def fail(self, claim: Claim, again_ms: int) -> Answer:
        """A post ended without success: it counts as an attempt."""
        return await self._wait_until(claim, again_ms, posts=1)

    async def defer(self, claim: Claim, again_ms: int) -> Answer:
        """Nothing was posted, or its sink is gone: no attempt is counted."""
        return await self._wait_until(claim, again_ms, posts=0)

    async def _wait_until(self, claim: Claim, instant_ms: int, *, posts: int) -> Answer:
        of, name = self._of(claim)
        return self._answer(
            await self._namespace.run(claim.partition, "fail", of.of(name), [name, claim.token, instant_ms, posts])
        )

    async def bury(self, claim: Claim, digest_id: str, after: Schedule, details: bytes) -> Answer:
        of, name = self._of(claim)
        plan = self._plans[claim.route]
        answer = await self._namespace.run(
            claim.partition,
            "bury",
            [*of.of(name), *self._namespace.dead_keys[claim.partition].of(digest_id)],
            [b"", name, claim.token, digest_id, after.base_ms, after.bound_ms, plan.increment_ms,
             *self._memory(claim), details],
        )  # fmt: skip
        return self._answer(answer)

    async def _bury_again(self, claim: Claim, digest_id: str, next_earliest_ms: int) -> None:
        """Ends what a bury that was cut off began; its details are in the dead store already."""
        await self.bury(claim, digest_id, Schedule(next_earliest_ms, next_earliest_ms), b"")

    # -- below

    def _memory(self, claim: Claim) -> tuple[int, int]:
        """How long (ms) and how much the timeline remembers of its digest; of a revived one the first end told it."""
        plan = self._plans[claim.route]
        return 0 if claim.is_revived else plan.dedupe_window_ms, _MEMORY_PER_CAPACITY * plan.capacity

    def _of(self, claim: Claim) -> tuple[Keys, bytes]:
        return self._namespace.keys(claim.partition, claim.route), claim.timeline.encode()

    @staticmethod
    def _answer(answer: list[Any]) -> Answer:
        return ANSWERS[answer[0]]
