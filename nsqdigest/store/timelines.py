"""The store: timelines in Redis, one typed method for each Lua script. The only caller of scripts.

Invariants:
- Every change of state is one script, atomic, in one hash slot; every key it touches is declared.
- Nothing here tries again, and no call is cancelled once it was sent (redis_client.py): what fails is a `StoreError`,
  and the caller decides.
- Instants are integer milliseconds of Redis' clock; only the timestamps of records are microseconds, so that what nsqd
  took in within a millisecond keeps its order.

Key names are `keys`', packing is `packing`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from nsqdigest.base.errors import Applied, StoreError, StoreMismatch, Unreachable
from nsqdigest.store.acknowledged import Losses
from nsqdigest.store.answers import (
    ANSWERS,
    Added,
    Answer,
    Claim,
    Claimed,
    Maintained,
    NotOpened,
    Opened,
    RoutePlan,
    WrongTypes,
)
from nsqdigest.store.damage import one_by_one
from nsqdigest.store.dead import DeadStore
from nsqdigest.store.figures import StoreFigures
from nsqdigest.store.keys import SCHEMA, Keys, mismatch, partition_limit
from nsqdigest.store.operations import Operators
from nsqdigest.store.packing import pack_batch
from nsqdigest.store.partitions import Partitions
from nsqdigest.store.record import StoredRecord
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.servers.client import RedisClient
from nsqdigest.store.servers.facts import ServerFacts, StoreFacts
from nsqdigest.store.servers.rights import Rights
from nsqdigest.store.upkeep import Upkeep

if TYPE_CHECKING:
    from nsqdigest.config import Redis as RedisSettings
    from nsqdigest.store.record import Record

_MEMORY_PER_CAPACITY = 2


class Timelines:
    def __init__(
        self,
        settings: RedisSettings,
        routes: Iterable[RoutePlan],
        timeline_limit: int,
        connections: int = 16,
        *,
        dead_digests: int = 10_000,
    ) -> None:
        self._settings = settings
        self._partitions = settings.partition_count
        self._plans = {plan.name: plan for plan in routes}
        self._client = RedisClient(settings, connections)
        self._at = Partitions(settings.namespace, self._partitions, self._client)
        self._limit_per_partition = partition_limit(timeline_limit, self._partitions)
        self._tags, self._run, self._send = self._at.tags, self._at.run, self._at.send
        self._keys = {
            (partition, route): self._at.keys(partition, route)
            for partition in range(self._partitions)
            for route in self._plans
        }
        self.dead = DeadStore(self._at, dead_digests)
        self.operators = Operators(self._at)
        self._upkeep = Upkeep(self._at, self.operators, self._plans)
        self.figures = StoreFigures(self._at, self.operators)
        self.clock = self._client.clock
        self.epochs: list[str] = []
        """Of each partition: a random word, written when it was empty. Another one: it was emptied since."""
        self.losses = Losses()

    @property
    def partitions(self) -> int:
        return self._partitions

    @property
    def routes(self) -> list[str]:
        return list(self._plans)

    def tell_requests(self, on_request: Callable[[str, float], None]) -> None:
        """Tells of each script from now on how many seconds its answer took."""
        self._client.on_request = on_request

    # -- start and end

    async def start(self) -> StoreFacts:
        """Looks at the servers, and agrees with them on the layout. Raises where going on would do harm."""
        servers = await self._client.facts()
        await self._ask_for_rights()
        self.epochs = await self._agree_all()
        return StoreFacts(servers, self._client.warnings(servers))

    async def _ask_for_rights(self) -> None:
        """Before anything is written. A right that is missing would stop a script half-way, at some later time."""
        needed = Rights.needed_by(self._settings)
        missing = needed.missing(await self._at.refused(needed.commands) or ())
        if missing is not None:
            raise StoreError("redis-auth", f"user {needed.user} {missing.detail}; {missing.remedy}", Applied.NO)

    async def look(self) -> list[ServerFacts]:
        """Like `start`, while it runs: is all there that Redis acknowledged? `losses` and `epochs` tell.

        What a start refuses is refused here too: nothing is written until a look finds the store fit again.
        """
        try:
            servers = await self._client.facts()
            self.epochs = await self._agree_all()
        except (Unreachable, StoreMismatch) as error:
            self._at.unfit = str(error)
            raise
        self._at.unfit = ""
        await asyncio.gather(*(self._count_again(partition) for partition in range(self._partitions)))
        return servers

    async def _count_again(self, partition: int) -> None:
        known = [(route, self.losses.known(route, partition)) for route in self._plans]
        known = [(route, when_sent) for route, when_sent in known if when_sent.records]
        if not known:
            return  # nothing was acknowledged, so nothing is lost
        answers = await self._send(
            partition, [[b"HGET", self._keys[partition, route].ledger, b"added"] for route, _ in known]
        )
        for (route, when_sent), answer in zip(known, answers, strict=True):
            self.losses.found(route, partition, when_sent, int(answer or 0))

    @property
    def doubted(self) -> asyncio.Event:
        """Set when Redis should be looked at: it did not answer as it should, or has lost something."""
        return self._client.doubted

    async def _agree_all(self) -> list[str]:
        # The first one alone: where the namespace has another layout, nothing is written into the others.
        first = await self._agree(0)
        return [first, *await asyncio.gather(*(self._agree(partition) for partition in range(1, self._partitions)))]

    async def _agree(self, partition: int) -> str:
        """The layout that the partition has, or has from now on. Returns its epoch."""
        tag = self._tags[partition]
        routes = self._plans if partition == 0 else ()  # operators look there
        arguments: list[bytes | str | int] = [b"", SCHEMA, self._partitions, uuid4().hex, *routes]
        stored = await self._client.run(tag, "hello", [tag + b"layout", tag + b"routes"], arguments)
        schema, partitions, epoch = (int(stored[0]), int(stored[1]), stored[2].decode())
        if refusal := mismatch(self._settings.namespace, schema, partitions, self._partitions):
            raise StoreMismatch(refusal)
        return str(epoch)

    async def close(self, within_s: float) -> None:
        """Lets what was sent come to its end, within reason, then closes the connections."""
        await self._client.close(within_s)

    # -- intake

    def partition_of(self, timeline: bytes) -> int:
        return self._at.of(timeline)

    async def add(self, route: str, partition: int, records: Sequence[Record], first: Schedule) -> Added:
        """At most RECORDS_PER_CALL records of one route and partition."""
        plan = self._plans[route]
        keys, batch = pack_batch(self._keys[partition, route], records)
        of = self._keys[partition, route]
        known = self.losses.known(route, partition)
        answer = await self._run(
            partition,
            "add",
            [*of.fixed, *keys],
            [b"", plan.capacity, plan.increment_ms, first.base_ms, first.bound_ms, self._limit_per_partition,
             of.name_from, *batch],
            must_last=True,
        )  # fmt: skip
        self.clock.heard(answer[0])
        added, superseded, over_capacity, over_timelines, duplicates, repeated, due_at_once, counted = answer[1:]
        if self.losses.acknowledged(route, partition, known, counted - added, counted):
            self.doubted.set()
        return Added(added, superseded, over_capacity, over_timelines, duplicates, repeated, len(due_at_once))

    # -- schedule

    async def agenda(self, partition: int, within_ms: int) -> dict[str, int]:
        """Of which routes something may be due by now or so soon, and when at the earliest."""
        horizon_ms = self.clock.now_ms() + within_ms
        (seconds, microseconds), flat = await self._at.send_together(
            partition,
            [
                [b"TIME"],
                [b"ZRANGEBYSCORE", self._tags[partition] + b"agenda", b"-inf", horizon_ms, b"WITHSCORES"],
            ],
        )
        self.clock.heard(int(seconds) * 1000 + int(microseconds) // 1000)
        from_name = len(self._tags[partition] + b"waiting:")
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
        answer = await self._run(
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

    async def maintenance(self, partition: int, routes: Sequence[str], lease_ms: int) -> Maintained:
        """`lease_ms`: of whoever claims; a longer one was given by a clock that was ahead."""
        return await self._upkeep.maintain(partition, routes, lease_ms)

    async def release(self, partition: int, routes: Sequence[str], token: str) -> int:
        """What a claim took whose answer nobody heard. Returns how many timelines came back. Those of a damaged route
        are left to their lease."""

        async def release_of(some: Sequence[str]) -> int:
            return int((await self._run(partition, "release", self._route_keys(partition, some), [token]))[0])

        return sum((await one_by_one(routes, release_of))[0])

    def _route_keys(self, partition: int, routes: Sequence[str]) -> list[bytes]:
        of_routes = (self._keys[partition, route] for route in routes)
        own = [key for of in of_routes for key in (of.waiting, of.leased, of.tokens, of.schedules)]
        return [*own, self._tags[partition] + b"agenda"]

    # -- a digest

    async def open(
        self, claim: Claim, lease_ms: int, new_id: str, next_earliest_ms: Sequence[int]
    ) -> Opened | NotOpened:
        of, name = self._of(claim)
        plan = self._plans[claim.route]
        answer = await self._run(
            claim.partition,
            "open",
            of.of(name),
            [b"", name, claim.token, lease_ms, new_id, plan.capacity if plan.merges else 0, *next_earliest_ms],
            must_last=True,
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
        head, size, members = await self._send(
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
        values, id_after = await self._send(
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
        return self._answer(await self._run(claim.partition, "renew", of.of(name), [b"", name, claim.token, lease_ms]))

    async def close_digest(self, claim: Claim, digest_id: str, after: Schedule) -> Answer:
        of, name = self._of(claim)
        plan = self._plans[claim.route]
        answer = await self._run(
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
            await self._run(claim.partition, "fail", of.of(name), [name, claim.token, instant_ms, posts])
        )

    async def bury(self, claim: Claim, digest_id: str, after: Schedule, details: bytes) -> Answer:
        of, name = self._of(claim)
        plan = self._plans[claim.route]
        answer = await self._run(
            claim.partition,
            "bury",
            [*of.of(name), *self._at.dead[claim.partition].of(digest_id)],
            [b"", name, claim.token, digest_id, after.base_ms, after.bound_ms, plan.increment_ms,
             *self._memory(claim), details],
        )  # fmt: skip
        return self._answer(answer)

    async def _bury_again(self, claim: Claim, digest_id: str, next_earliest_ms: int) -> None:
        """Ends what a bury that was cut off began; its details are in the dead store already."""
        await self.bury(claim, digest_id, Schedule(next_earliest_ms, next_earliest_ms), b"")

    # -- reading

    async def ledger(self, route: str) -> dict[str, int]:
        """The counters of a route over all partitions."""
        total: dict[str, int] = {}
        answers = await asyncio.gather(
            *(self._send(p, [[b"HGETALL", self._keys[p, route].ledger]]) for p in range(self._partitions))
        )
        for (flat,) in answers:
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                total[field.decode()] = total.get(field.decode(), 0) + int(value)
        return total

    async def wrong_types(self, route: str, partition: int, timeline: bytes) -> WrongTypes:
        """Keys that hold another type than theirs: those that an add shares with its neighbours, and its own."""
        of = self._keys[partition, route]
        shared = {of.waiting: b"zset", of.schedules: b"hash", of.ledger: b"hash", of.losses: b"hash",
                  of.timelines: b"string", of.agenda: b"zset"}  # fmt: skip
        own = {of.index: b"zset", of.values: b"hash", of.snapshot: b"zset", of.memory: b"zset"}
        wanted = shared | {prefix + timeline: kind for prefix, kind in own.items()}
        types = await self._send(partition, [[b"TYPE", key] for key in wanted])
        wrong = [
            (key, f"{key.decode()} is a {found.decode()}, not a {kind.decode()}")
            for (key, kind), found in zip(wanted.items(), types, strict=True)
            if found not in (kind, b"none")
        ]
        return WrongTypes(
            [said for key, said in wrong if key in shared], [said for key, said in wrong if key not in shared]
        )

    # -- below

    def _memory(self, claim: Claim) -> tuple[int, int]:
        """How long (ms) and how much the timeline remembers of its digest; of a revived one the first end told it."""
        plan = self._plans[claim.route]
        return 0 if claim.is_revived else plan.dedupe_window_ms, _MEMORY_PER_CAPACITY * plan.capacity

    def _of(self, claim: Claim) -> tuple[Keys, bytes]:
        return self._keys[claim.partition, claim.route], claim.timeline.encode()

    @staticmethod
    def _answer(answer: list[Any]) -> Answer:
        return ANSWERS[answer[0]]
