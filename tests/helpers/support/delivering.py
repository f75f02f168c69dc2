"""Delivery without its timers: a test says what is claimed, and it is opened, read, sent and concluded.

`Delivering` works on a real store as well as on `ToldDigests`, a store that a test tells what to do, for tests in
simulated time. `simulate` puts simulated time into all modules of delivery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import pytest

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.errors import StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery import claims, conclusions, delivery, finisher, opener, outlet, paced, timer
from nsqdigest.delivery.conclusions import Conclusions
from nsqdigest.delivery.delivery import Delivery, DeliveryRoute
from nsqdigest.delivery.opener import Opener
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.store.answers import Claim, Ended, NotOpened
from nsqdigest.store.dead import OverLimit
from nsqdigest.store.digests import Ending, Opening
from nsqdigest.store.head import Head
from nsqdigest.store.record import Columns, StoredRecord
from nsqdigest.store.schedule import Plan
from support.settings import POLICY, ROUTE, SINK
from support.simulated import BEGAN_S, Time
from support.waiting import until

LEASE_MS = 60_000
NOW_MS = round(1000 * BEGAN_S)
HEAD = Head(
    id="digest", iteration=1, opened_ms=NOW_MS, total=2, superseded=0, dropped_capacity=0,
    next_earliest_ms=NOW_MS + 60_000, since_ms=NOW_MS, attempts=0, tries=0,
)  # fmt: skip
RECORD = StoredRecord(b"k", 1_700_000_000_000, b'{"g":1}')
DAMAGE = StoreError("redis-script", "WRONGTYPE, as told")


def simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (claims, conclusions, delivery, finisher, opener, outlet, paced, timer):
        monkeypatch.setattr(module, "time", Time())


def now_s() -> float:
    """Since a simulated test began."""
    return round(asyncio.get_running_loop().time() - BEGAN_S, 3)


def names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def failure(reason: str = "redis-timeout") -> StoreError:
    return StoreError(reason, "as told")


class ToldSink:
    """Accepts all, unless told otherwise."""

    def __init__(self) -> None:
        self.sent: list[OutgoingDigest] = []
        self.sent_s: list[float] = []
        self.outcomes: list[Outcome | BaseException] = []
        """Of the next ones."""
        self.outcome: Outcome | BaseException = Outcome(Verdict.DELIVERED)
        self.takes_s = 0.0
        self.before: Callable[[], Awaitable[object]] | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.at_a_time = self.most_at_a_time = 0

    @property
    def timelines(self) -> list[str]:
        return [digest.timeline for digest in self.sent]

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.sent.append(digest)
        self.sent_s.append(asyncio.get_running_loop().time() - BEGAN_S)
        self.at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        try:
            if self.before is not None:
                await self.before()
            await self.may_answer.wait()
            if self.takes_s:
                await asyncio.sleep(self.takes_s)
        finally:
            self.at_a_time -= 1
        outcome = self.outcomes.pop(0) if self.outcomes else self.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def close(self) -> None: ...


class ToldBulkSink(ToldSink):
    def __init__(self, at_once: int = 10, at_once_bytes: int = 1 << 20) -> None:
        super().__init__()
        self.at_once = at_once
        self.at_once_bytes = at_once_bytes
        self.batches: list[list[str]] = []

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        self.batches.append([digest.timeline])
        return await super().deliver(digest)

    async def deliver_all(self, digests: Sequence[OutgoingDigest]) -> Sequence[Outcome]:
        self.batches.append([digest.timeline for digest in digests])
        return [await super(ToldBulkSink, self).deliver(digest) for digest in digests]


class Call(NamedTuple):
    at_s: float
    name: str
    arguments: tuple[Any, ...]


def columns_of(records: Sequence[StoredRecord | None]) -> Columns:
    """As Redis returns them. None: a record whose value is lost."""
    there = [record or (b"lost", 0, None) for record in records]
    return Columns(
        [key for key, _, _ in there], [b"%d" % (-1000 * timestamp_ms) for _, timestamp_ms, _ in there],
        [value for _, _, value in there],
    )  # fmt: skip


class NoHolds:
    is_any_snoozed = False

    def put_off_ms(self, _route: str, _timeline: str) -> None:
        return None


@dataclass
class ToldDigests:
    """Stands for `store.digests`: every timeline has two records, unless told otherwise."""

    partitions: int = 1
    heads: dict[str, Head | NotOpened] = field(default_factory=dict)
    records: dict[str, Sequence[StoredRecord | None] | None] = field(default_factory=dict)
    damaged: dict[str, set[str]] = field(default_factory=dict)
    """By call, the timelines at which it breaks off."""
    fails: dict[str, list[StoreError | None]] = field(default_factory=dict)
    exempt_damage: dict[int, StoreError] = field(default_factory=dict)
    """By call, what becomes of the next ones."""
    takes_s: dict[str, float] = field(default_factory=dict)
    per_call: dict[str, int] = field(default_factory=dict)
    """By call, how many it does; the others follow later."""
    ended: dict[str, Ended] = field(default_factory=dict)
    renews: list[bool] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def now_ms(self) -> int:
        return round(1000 * asyncio.get_running_loop().time())

    async def _call(self, name: str, timelines: Collection[str], *arguments: Any) -> None:
        self.calls.append(Call(now_s(), name, arguments))
        await asyncio.sleep(self.takes_s.get(name, 0))
        errors = self.fails.get(name, [])
        if errors and (error := errors.pop(0)) is not None:
            raise error
        if self.damaged.get(name, set()).intersection(timelines):
            raise DAMAGE

    def called(self, name: str) -> list[tuple[float, tuple[Any, ...]]]:
        return [(at_s, arguments) for at_s, called, arguments in self.calls if called == name]

    def head(self, timeline: str) -> Head | NotOpened:
        records = self.records.get(timeline) or (RECORD, RECORD)
        return self.heads.get(timeline, HEAD._replace(id=f"id of {timeline}", total=len(records)))

    async def open(
        self, partition: int, openings: Sequence[Opening], next_earliest_ms: Mapping[str, Sequence[int]]
    ) -> list[Head | NotOpened]:
        names = [opening.claim.timeline for opening in openings]
        await self._call("open", names, partition, openings, next_earliest_ms)
        most = self.per_call.get("open", len(names))
        return [self.head(name) if place < most else NotOpened.LATER for place, name in enumerate(names)]

    async def read(self, partition: int, digests: Sequence[tuple[Claim, Head]]) -> list[Columns | None]:
        names = [claim.timeline for claim, _ in digests]
        await self._call("read", names, partition, names)
        found = [self.records.get(name, (RECORD, RECORD)) for name in names]
        return [None if records is None else columns_of(records) for records in found]

    async def page(self, claim: Claim, head: Head, start: int, count: int) -> Sequence[StoredRecord | None] | None:
        await self._call("page", [claim.timeline], claim.timeline, start, count)
        records = self.records.get(claim.timeline, (RECORD, RECORD))
        return None if records is None else records[start : start + count]

    async def oldest_ms(self, claim: Claim) -> int:
        await self._call("oldest", [claim.timeline], claim.timeline)
        oldest = (self.records.get(claim.timeline) or (RECORD,))[-1]
        return oldest.timestamp_ms if oldest else 1

    async def renew(self, claim: Claim, lease_ms: int) -> bool:
        await self._call("renew", [claim.timeline], claim.timeline, lease_ms)
        return self.renews.pop(0) if self.renews else True

    async def finish(self, partition: int, endings: Sequence[Ending]) -> list[Ended]:
        names = [ending.claim.timeline for ending in endings]
        await self._call("finish", names, partition, endings)
        most = self.per_call.get("finish", len(names))
        return [self.ended.get(name, Ended.DONE) if place < most else Ended.LATER for place, name in enumerate(names)]

    def endings(self) -> list[Ending]:
        return [ending for _, (_, endings) in self.called("finish") for ending in endings]

    def finished(self) -> list[list[tuple[str, str]]]:
        """Of each call the kinds and timelines."""
        return [
            [(ending.kind, ending.claim.timeline) for ending in endings] for _, (_, endings) in self.called("finish")
        ]

    def all_finished(self) -> list[tuple[str, str]]:
        return sorted(each for call in self.finished() for each in call)


class ToldDead:
    """Nothing is over the limit, unless told so: digests with the number of their records."""

    def __init__(self) -> None:
        self.over: list[Any] = []
        self.records: dict[str, int] = {}
        self.dropped: list[str] = []
        self.fails = 0

    async def over_limit(self, partition: int, passed: int, most: int) -> OverLimit:
        if self.fails:
            self.fails -= 1
            raise failure()
        found, self.over = self.over[:most], self.over[most:]
        return OverLimit(found, 0)

    async def drop_over_limit(self, old: Any) -> int:
        self.dropped.append(old.id)
        return self.records[old.id]


class Delivering:
    """One outlet for each sink, and routes that lead to them: route r to the first, unless told otherwise."""

    def __init__(
        self,
        digests: Any,
        dead: Any = None,
        *,
        sinks: Mapping[str, Any] | None = None,
        routes: Mapping[str, str] | None = None,
        limit: int = 8,
        group: str = "",
        plan: Plan | None = None,
        highest: bool = False,
        lease_ms: int = LEASE_MS,
        **settings: Any,
    ) -> None:
        self.digests, self.metrics = digests, Metrics()
        self.dead = cast(Any, dead or ToldDead())
        self.windows: list[tuple[float, float]] = []
        self.decided: list[str] = []
        self.ended: list[str] = []
        self.highest, self.lease_ms = highest, lease_ms
        self.sinks = dict(sinks) if sinks else {"out": ToldSink()}
        chosen = replace(SINK, concurrency=limit, **settings)
        self.outlets = {
            name: Outlet(
                replace(chosen, name=name), sink,
                Controller(limit, Curve(5.0, 100.0, jitter="none"), lambda low, _: low, slow_start=False),
            )
            for name, sink in self.sinks.items()
        }  # fmt: skip
        first = next(iter(self.outlets))
        self.routes = {
            name: DeliveryRoute(replace(ROUTE, name=name, group=group), plan or Plan(POLICY), self.outlets[sink])
            for name, sink in (routes or {"r": first}).items()
        }
        self.conclusions = Conclusions(
            digests, self.dead, self.metrics, self._uniform, on_decision=self._on_decision, on_end=self._on_end
        )
        self.opener = Opener(digests, lease_ms, self._uniform, self.conclusions)
        for each in self.outlets.values():
            each.start(self.opener.render, self.conclusions, self.metrics)

    def _uniform(self, low: float, high: float) -> float:
        self.windows.append((low, high))
        return high if self.highest else low

    def _on_decision(self, outlet: Outlet) -> None:
        self.decided.append(outlet.name)
        outlet.on_decision()

    def _on_end(self, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            self.ended.append(each.claim.timeline)
            each.outlet.held -= 1

    @property
    def sink(self) -> Any:
        return next(iter(self.sinks.values()))

    @property
    def outlet(self) -> Outlet:
        return next(iter(self.outlets.values()))

    def deliveries(
        self, claims: Sequence[Claim], lease_ms: int | None = None, epoch: int | None = None
    ) -> list[Delivery]:
        """As if just claimed."""
        made = []
        for claim in claims:
            route = self.routes[claim.route]
            route.outlet.held += 1
            until_s = asyncio.get_running_loop().time() + (lease_ms or self.lease_ms) / 1000
            made.append(
                Delivery(claim, route, until_s, route.outlet.controller.decision.epoch if epoch is None else epoch)
            )
        return made

    def claims(self, *timelines: str, route: str = "r", partition: int = 0) -> list[Claim]:
        """Of a told store."""
        return [Claim(partition, route, name, NOW_MS - 5000, "token") for name in timelines]

    async def open(self, *timelines: str, lease_ms: int | None = None, epoch: int | None = None) -> list[Delivery]:
        """Of a told store: what is claimed is opened, and waits for its senders."""
        made = self.deliveries(self.claims(*timelines), lease_ms, epoch)
        await self.opener.open(0, made)
        return made

    async def carry(self, *timelines: str, lease_ms: int | None = None, epoch: int | None = None) -> list[Delivery]:
        """The same until all is concluded."""
        made = await self.open(*timelines, lease_ms=lease_ms, epoch=epoch)
        await self.quiet()
        return made

    async def quiet(self) -> None:
        await until(lambda: self.held == 0, 10, "all to be concluded")

    @property
    def held(self) -> int:
        return sum(each.held for each in self.outlets.values())

    def step_back(self, name: str = "") -> None:
        """As after a failure of this sink."""
        outlet = self.outlets[name] if name else self.outlet
        assert outlet.controller.failed(outlet.controller.decision.epoch, asyncio.get_running_loop().time())
        self._on_decision(outlet)

    async def stop(self) -> None:
        for each in self.outlets.values():
            await each.stop()
        for of_partition in self.conclusions.finishers:
            await of_partition.stop()
