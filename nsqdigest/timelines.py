"""The store: timelines in Redis, one typed method for each Lua script. The only caller of scripts.

Always so:
- Every change of state is one script, atomic, in one hash slot; every key it touches is declared.
- Nothing here tries again: a lost reply is an ambiguous error and its caller decides. (A script that Redis does not
  have is loaded and sent once more: it was not run.)
- A call, once sent, is never cancelled: whoever awaited it may go, the call runs to its end and its connection stays
  clean.
- Whatever comes out of the driver is translated to `StoreError`.
- Instants are integer milliseconds of Redis' clock; only the timestamps of records are microseconds, so that what nsqd
  took in within a millisecond keeps its order.

Key names and packing are `layout`'s.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import hiredis
from redis import asyncio as redis_asyncio
from redis import exceptions as redis_errors
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from nsqdigest import scripts
from nsqdigest.errors import StoreError, StoreMismatch, Unreachable
from nsqdigest.layout import RECORDS_PER_CALL, Keys, in_order, pack_batch
from nsqdigest.policy import Schedule

if TYPE_CHECKING:
    from nsqdigest.config import Redis as RedisSettings
    from nsqdigest.events import Record

SCHEMA = 1
DEAD_DIGESTS_KEPT = 10_000
_MEMORY_PER_CAPACITY = 2


class RoutePlan(NamedTuple):
    """What the store must know of a route."""

    name: str
    capacity: int
    increment_ms: int
    dedupe_window_ms: int


class Added(NamedTuple):
    added: int
    superseded: int
    over_capacity: int
    over_timelines: int
    duplicates: int
    repeated: int
    due_at_once: int


class Claim(NamedTuple):
    partition: int
    route: str
    timeline: str
    due_ms: int
    token: str


class Claimed(NamedTuple):
    claims: list[Claim]
    next_due_ms: int | None


class Opened(NamedTuple):
    """A digest under way: what is stored beside its snapshot."""

    again: bool
    attempt: int
    id: str
    opened_ms: int
    iteration: int
    total: int
    first_ms: int
    last_ms: int
    superseded: int
    over_capacity: int
    next_earliest_ms: int


class NotOpened(StrEnum):
    STALE = "stale"
    EMPTY = "empty"


class Answer(StrEnum):
    """What became of a call that a token guards."""

    DONE = "done"
    ALREADY = "already"
    STALE = "stale"


_ANSWERS = {
    b"closed": Answer.DONE,
    b"buried": Answer.DONE,
    b"waiting": Answer.DONE,
    b"renewed": Answer.DONE,
    b"already": Answer.ALREADY,
    b"stale": Answer.STALE,
}


class StoredRecord(NamedTuple):
    key: bytes
    timestamp_ms: int
    value: bytes


@dataclass(frozen=True, slots=True)
class ServerFacts:
    version: str
    role: str
    maxmemory_policy: str
    maxmemory_bytes: int
    persistent: bool

    def warnings(self) -> list[str]:
        said = []
        if self.maxmemory_policy != "noeviction":
            said.append(
                f"maxmemory-policy is {self.maxmemory_policy}: Redis may throw away events that are not delivered yet; "
                "set maxmemory-policy noeviction"
            )
        if not self.persistent:
            said.append(
                "neither append-only file nor snapshots are on: a restart of Redis loses what waits; set appendonly yes"
            )
        if not self.maxmemory_bytes:
            said.append(
                "maxmemory is not set: a flood of timelines could take all of the machine's memory; set maxmemory"
            )
        return said


class RedisClock:
    """Redis' clock as seen from here between replies, never ahead of it but for drift.

    A reply was stamped before it arrived, so each gives a lower bound and the highest lately heard is the best. A
    clock that was set back shows as a bound far below, and is followed.
    """

    _DRIFT_MS_PER_MS = 0.0005
    _SET_BACK_MS = 1000

    def __init__(self) -> None:
        self._ahead_ms: float | None = None
        self._heard_ms = 0.0

    def heard(self, redis_now_ms: int) -> None:
        now_ms = time.monotonic() * 1000
        ahead_ms = redis_now_ms - now_ms
        if self._ahead_ms is not None:
            best_ms = self._ahead_ms - (now_ms - self._heard_ms) * self._DRIFT_MS_PER_MS
            if ahead_ms < best_ms < ahead_ms + self._SET_BACK_MS:
                ahead_ms = best_ms
        self._ahead_ms, self._heard_ms = ahead_ms, now_ms

    def now_ms(self) -> int:
        if self._ahead_ms is None:
            raise StoreError("redis-connection", "the clock of Redis was not read yet")
        return int(time.monotonic() * 1000 + self._ahead_ms)


class Timelines:
    def __init__(
        self, settings: RedisSettings, routes: Iterable[RoutePlan], timeline_limit: int, connections: int = 16
    ) -> None:
        self._settings = settings
        self._partitions = settings.partitions or 1
        self._limit_per_partition = -(-timeline_limit // self._partitions)
        self._plans = {plan.name: plan for plan in routes}
        self._tags = [f"{{{settings.namespace}:{partition}}}:".encode() for partition in range(self._partitions)]
        self._keys = {
            (partition, route): Keys(tag, route) for partition, tag in enumerate(self._tags) for route in self._plans
        }
        timeout_s = settings.timeout_ms / 1000
        self._pool = redis_asyncio.BlockingConnectionPool.from_url(
            settings.url,
            max_connections=connections,
            timeout=timeout_s,
            protocol=2,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            socket_timeout=timeout_s,
            socket_connect_timeout=min(timeout_s, 2.0),
            socket_keepalive=True,
            health_check_interval=0,
            client_name="nsqdigest",
        )
        self._under_way: set[asyncio.Task[list[Any]]] = set()
        self.clock = RedisClock()
        self.epoch = ""

    @property
    def partitions(self) -> int:
        return self._partitions

    # -- start and end

    async def start(self) -> ServerFacts:
        """Looks at the server, and agrees with it on the layout. Raises where going on would do harm."""
        info: dict[str, str] = {}
        clock, *sections = await self._send(
            [[b"TIME"], *([b"INFO", s] for s in (b"server", b"replication", b"memory", b"persistence"))]
        )
        for section in sections:
            text = section.decode() if isinstance(section, bytes) else ""
            for line in text.splitlines():
                name, _, value = line.partition(":")
                info[name] = value
        self.clock.heard(int(clock[0]) * 1000 + int(clock[1]) // 1000)
        facts = ServerFacts(
            version=info.get("redis_version", "unknown"),
            role=info.get("role", "unknown"),
            maxmemory_policy=info.get("maxmemory_policy", "noeviction"),
            maxmemory_bytes=int(info.get("maxmemory", "0")),
            persistent=info.get("aof_enabled") == "1" or await self._saves_snapshots(),
        )
        if facts.role == "slave":
            raise Unreachable(f"redis.url names a replica ({self._settings.shown_url}); name its primary")
        stored = await self._run("hello", [self._tags[0] + b"layout"], [SCHEMA, self._partitions, uuid4().hex])
        schema, partitions, epoch = (int(stored[0]), int(stored[1]), stored[2].decode())
        if schema != SCHEMA:
            raise StoreMismatch(
                f'the namespace "{self._settings.namespace}" in Redis has layout {schema}, this version writes '
                f"{SCHEMA}: run the version that wrote it until it is drained, or choose another redis.namespace"
            )
        if partitions != self._partitions:
            raise StoreMismatch(
                f'the namespace "{self._settings.namespace}" in Redis was made with redis.partitions = {partitions}, '
                f"the file says {self._partitions}: write {partitions}, or choose another redis.namespace"
            )
        self.epoch = epoch
        return facts

    async def _saves_snapshots(self) -> bool:
        try:
            answer = (await self._send([[b"CONFIG", b"GET", b"save"]]))[0]
        except StoreError:
            return True  # not allowed to ask: no reason to alarm anyone
        return isinstance(answer, list) and len(answer) > 1 and bool(answer[1])

    async def close(self, within_s: float) -> None:
        """Lets what was sent come to its end, within reason, then closes the connections."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=within_s)
        await self._pool.disconnect()

    # -- intake

    def partition_of(self, route: str, timeline: bytes) -> int:
        return 0 if self._partitions == 1 else zlib.crc32(timeline, zlib.crc32(route.encode())) % self._partitions

    async def add(self, route: str, partition: int, records: Sequence[Record], first: Schedule) -> Added:
        """At most RECORDS_PER_CALL records of one route and partition."""
        plan = self._plans[route]
        keys, batch = pack_batch(self._keys[partition, route], records)
        tag_keys = self._keys[partition, route]
        answer = await self._run(
            "add",
            [tag_keys.waiting, tag_keys.schedules, tag_keys.ledger, tag_keys.losses, tag_keys.timelines, *keys],
            [
                b"",
                plan.capacity,
                plan.increment_ms,
                first.base_ms,
                first.bound_ms,
                self._limit_per_partition,
                tag_keys.name_from,
                *batch,
            ],
        )
        self.clock.heard(answer[0])
        added, superseded, over_capacity, over_timelines, duplicates, repeated, due_at_once = answer[1:]
        return Added(added, superseded, over_capacity, over_timelines, duplicates, repeated, len(due_at_once))

    # -- schedule

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

    async def maintenance(self, partition: int, routes: Sequence[str]) -> int:
        keys = self._route_keys(partition, routes)
        return int((await self._run("maintenance", keys, [b"", RECORDS_PER_CALL]))[0])

    async def release(self, partition: int, routes: Sequence[str], token: str) -> int:
        """What a claim took whose answer nobody heard. Answers how many timelines came back."""
        return int((await self._run("release", self._route_keys(partition, routes), [token]))[0])

    def _route_keys(self, partition: int, routes: Sequence[str]) -> list[bytes]:
        of_routes = (self._keys[partition, route] for route in routes)
        return [key for of in of_routes for key in (of.waiting, of.leased, of.tokens, of.schedules)]

    # -- a digest

    async def open(
        self, claim: Claim, lease_ms: int, new_id: str, next_earliest_ms: Sequence[int]
    ) -> Opened | NotOpened:
        of, name = self._of(claim)
        answer = await self._run(
            "open",
            [of.leased, of.tokens, of.schedules, of.losses, of.ledger, of.timelines, of.head + name, of.index + name,
             of.values + name, of.snapshot + name, of.snapshot_values + name],
            [b"", name, claim.token, lease_ms, new_id, *next_earliest_ms],
        )  # fmt: skip
        word = answer[0]
        if word == b"stale":
            return NotOpened.STALE
        if word == b"empty":
            return NotOpened.EMPTY
        self.clock.heard(answer[1])
        opened_ms, iteration, total, first_us, last_us, *counts_and_next = (int(float(told)) for told in answer[4:])
        return Opened(
            word == b"again",
            answer[2],
            answer[3].decode(),
            opened_ms,
            iteration,
            total,
            first_us // 1000,
            last_us // 1000,
            *counts_and_next,
        )

    async def page(self, claim: Claim, opened: Opened, start: int, count: int) -> list[StoredRecord | None] | None:
        """Records of the snapshot from a place on, `count` or a few less, newest first; None where a value is gone;
        None at all: not ours any more."""
        of, name = self._of(claim)
        head, size, members = await self._send(
            [
                [b"HGET", of.head + name, b"id"],
                [b"ZCARD", of.snapshot + name],
                [b"ZRANGE", of.snapshot + name, start, start + count - 1, b"WITHSCORES"],
            ]
        )
        if head != opened.id.encode() or size != opened.total or len(members) != 2 * min(count, opened.total - start):
            return None
        if not members:
            return []
        rows = in_order(members, is_last=start + count >= opened.total)
        values = (await self._send([[b"HMGET", of.snapshot_values + name, *(key for key, _ in rows)]]))[0]
        return [
            None if value is None else StoredRecord(key, timestamp_us // 1000, value)
            for (key, timestamp_us), value in zip(rows, values, strict=True)
        ]

    async def renew(self, claim: Claim, lease_ms: int) -> Answer:
        of, name = self._of(claim)
        return self._answer(await self._run("renew", [of.leased, of.tokens], [b"", name, claim.token, lease_ms]))

    async def close_digest(self, claim: Claim, digest_id: str, after: Schedule) -> Answer:
        of, name = self._of(claim)
        plan = self._plans[claim.route]
        answer = await self._run(
            "close",
            [of.waiting, of.leased, of.tokens, of.schedules, of.ledger, of.head + name, of.index + name,
             of.snapshot + name, of.snapshot_values + name, of.memory + name],
            [name, claim.token, digest_id, after.base_ms, after.bound_ms, plan.increment_ms, plan.dedupe_window_ms,
             _MEMORY_PER_CAPACITY * plan.capacity],
        )  # fmt: skip
        return self._answer(answer)

    async def fail(self, claim: Claim, again_ms: int) -> Answer:
        return await self._wait_until(claim, again_ms, attempts_back=0)

    async def defer(self, claim: Claim, again_ms: int, *, after_open: bool) -> Answer:
        return await self._wait_until(claim, again_ms, attempts_back=int(after_open))

    async def _wait_until(self, claim: Claim, instant_ms: int, attempts_back: int) -> Answer:
        of, name = self._of(claim)
        keys = [of.waiting, of.leased, of.tokens, of.schedules, of.head + name, of.index + name]
        return self._answer(await self._run("fail", keys, [name, claim.token, instant_ms, attempts_back]))

    async def bury(self, claim: Claim, digest_id: str, after: Schedule, details: bytes) -> Answer:
        of, name = self._of(claim)
        plan = self._plans[claim.route]
        tag = self._tags[claim.partition]
        identity = digest_id.encode()
        answer = await self._run(
            "bury",
            [of.waiting, of.leased, of.tokens, of.schedules, of.ledger, of.head + name, of.index + name,
             of.snapshot + name, of.snapshot_values + name,
             tag + b"dead", tag + b"dead:details", tag + b"di:" + identity, tag + b"dv:" + identity],
            [b"", name, claim.token, digest_id, after.base_ms, after.bound_ms, plan.increment_ms, details],
        )  # fmt: skip
        return self._answer(answer)

    async def dead_over_limit(self, partition: int, limit: int = DEAD_DIGESTS_KEPT) -> list[tuple[str, bytes]]:
        """The oldest dead digests beyond the limit: id and details as buried."""
        tag = self._tags[partition]
        count = (await self._send([[b"ZCARD", tag + b"dead"]]))[0]
        if count <= limit:
            return []
        ids = (await self._send([[b"ZRANGE", tag + b"dead", 0, min(count - limit, RECORDS_PER_CALL) - 1]]))[0]
        details = (await self._send([[b"HMGET", tag + b"dead:details", *ids]]))[0]
        return [(identity.decode(), detail or b"") for identity, detail in zip(ids, details, strict=True)]

    async def drop_dead(self, partition: int, digest_id: str, route: str) -> int:
        """Answers how many records went with it."""
        tag, identity = self._tags[partition], digest_id.encode()
        keys = [
            tag + b"dead",
            tag + b"dead:details",
            tag + b"di:" + identity,
            tag + b"dv:" + identity,
            tag + b"c:" + route.encode(),
        ]
        answer = await self._run("drop_dead", keys, [digest_id])
        return int(answer[1]) if answer[0] == b"dropped" else 0

    # -- reading

    async def ledger(self, route: str) -> dict[str, int]:
        """The counters of a route over all partitions."""
        total: dict[str, int] = {}
        answers = await self._send([[b"HGETALL", self._keys[p, route].ledger] for p in range(self._partitions)])
        for flat in answers:
            for field, value in zip(flat[::2], flat[1::2], strict=True):
                total[field.decode()] = total.get(field.decode(), 0) + int(value)
        return total

    # -- below

    def _of(self, claim: Claim) -> tuple[Keys, bytes]:
        return self._keys[claim.partition, claim.route], claim.timeline.encode()

    @staticmethod
    def _answer(answer: list[Any]) -> Answer:
        return _ANSWERS[answer[0]]

    async def _run(self, name: str, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]) -> list[Any]:
        script = scripts.load(name)
        command = [b"EVALSHA", script.sha, len(keys), *keys, *arguments]
        try:
            return (await self._send([command], script))[0]  # type: ignore[no-any-return]
        except StoreError as error:
            if error.reason != "redis-noscript":
                raise
        await self._send([[b"SCRIPT", b"LOAD", script.text]])
        return (await self._send([command], script))[0]  # type: ignore[no-any-return]

    async def _send(
        self, commands: Sequence[Sequence[bytes | str | int]], script: scripts.Script | None = None
    ) -> list[Any]:
        """One round trip on one connection. Its own task: the caller may be cancelled, the call may not."""
        task = asyncio.ensure_future(self._exchange(commands, script))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[list[Any]]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: nobody may be waiting for it any more

    async def _exchange(
        self, commands: Sequence[Sequence[bytes | str | int]], script: scripts.Script | None
    ) -> list[Any]:
        try:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        except Exception as error:
            raise scripts.translate(error, script) from error
        clean = False
        try:
            await connection.send_packed_command([_pack(command) for command in commands], check_health=False)
            answers = []
            failure: redis_errors.ResponseError | None = None
            for _ in commands:
                try:
                    answers.append(await connection.read_response())
                except redis_errors.ResponseError as error:
                    failure = failure or error
            clean = True
            if failure is not None:
                raise failure
            return answers
        except Exception as error:
            raise scripts.translate(error, script) from error
        finally:
            if not clean:
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)


def _pack(command: Sequence[bytes | str | int]) -> bytes:
    return hiredis.pack_command(tuple(command))  # type: ignore[arg-type,no-any-return]


def ledger_balances(counters: Mapping[str, int]) -> bool:
    dropped = sum(value for field, value in counters.items() if field.startswith("dropped:"))
    there = sum(
        counters.get(field, 0) for field in ("open", "snapshots", "delivered", "superseded", "buried", "deleted")
    )
    return counters.get("added", 0) == there + dropped
