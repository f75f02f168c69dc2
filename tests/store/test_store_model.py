"""The timelines beside a model of them: whatever is called in whatever order, Redis holds what the model holds.

Two partitions with daemons, workers, a receiver and an operator. After every step all keys of the database are compared
with the model (support/store_model.py), so that nothing leaks, a snapshot stays frozen, a ledger is exact and what
happens in one partition changes nothing in the other. Beside that, at each step that it concerns:

- a replay, in whatever pieces and order, moves no set and no schedule; a stale worker changes not a byte, nor does a
  call that Redis refuses;
- one id is one digest for ever, whoever reads it and when, even after Redis was put back to an earlier state;
- a digest is closed only when the receiver has it, with all its records; a buried one is in the dead store;
- at the end a healthy worker empties everything in three rounds, and nothing is left but ledgers, memories, the dead.

The scripts are told the time, which jumps and goes back. Stale workers keep their claims for ever and use them.
Some of it is rare by chance, so rules come that play a whole story; `LEAST` says how often each thing must have
happened, so that the test cannot go hollow.
"""

from __future__ import annotations

import copy
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from support.servers import RedisServer
from support.store import NOW_MS, Claim, Rec, Watch, head_of, inconsistencies, own_timeline
from support.store_model import Digest, Model, Policy, is_own
from support.wire import Saved, Wire, WiredScripts

pytestmark = pytest.mark.property

T = TypeVar("T")

EXAMPLES = 1500
STEPS = 10
REMEMBERED = 4
MOST_TIMELINES = 5
MOST_WORKERS = 12
MOST_TRIES = 3
MOST_HOLDS = 2
LEASE_MS = 1000
MEMORY_MS = 3_600_000  # Redis' own clock lets it go, so it is to outlast the run
ROUTES = ("r", "s")

# How often each thing happens in a run, at least; it was three times as often and more when this was written.
LEAST = {
    "examples": EXAMPLES, "added": 7000, "superseded": 900, "over_capacity": 800, "over_timelines": 600,
    "duplicates": 200, "repeated": 1600,
    "lost reply of add": 240, "redelivered": 240, "replayed": 480, "refused: maxmemory": 70, "refused: READONLY": 70,
    "refused: WRONGTYPE": 70, "claimed": 6000, "lost reply of claim": 20, "lease ran out": 300, "opened": 3000,
    "again": 800, "merged": 90, "empty": 2200, "renewed": 15, "sent": 3400, "sent again": 500, "closed": 2500,
    "failed": 200, "deferred": 90, "buried": 450, "already": 250, "stale": 700, "put back": 250, "dropped": 140,
    "revived": 110, "deleted": 50, "adopted": 70, "audited": 60, "flush: due": 20, "flush: leased": 70,
    "cancelled": 250, "forgotten: shown": 30, "forgotten: ends": 30, "hold: held": 120, "hold: ended": 8,
    "rescored": 10,
}  # fmt: skip

POLICIES = [
    Policy(True, minimum_ms=20, increment_ms=7, maximum_ms=50, after_ms=(20, 40), capacity=2),
    Policy(False, minimum_ms=5, increment_ms=7, maximum_ms=30, after_ms=(5,), capacity=3, merges=True),
    Policy(True, minimum_ms=0, increment_ms=0, maximum_ms=0, after_ms=(0,), capacity=1),
    Policy(False, minimum_ms=20, increment_ms=1, maximum_ms=2000, after_ms=(1, 20, 5), capacity=2, merges=True),
]
NAMES = [b"t", b"t:v", b"\xc3\xbc{}", b"r:t"]
KEYS = [b"a", b"B", b"\xff", b"k:1"]
VALUES = [b"a", b"B", b"a\x00", b"\xff"]


def record_of(byte: int, place: int) -> Rec:
    """A byte for a record: cheap to draw, and hypothesis makes it smaller as it likes."""
    value = VALUES[(byte >> 6 & 1) + 2 * (place % 2)]
    rare = byte >> 2 & 15  # one key, with one timestamp
    return Rec(
        NAMES[byte & 3], KEYS[byte >> 2 & 3], NOW_MS + (byte >> 4 & 3), value, byte > 127, urgent=rare == 15,
        muted=rare == 14,
    )  # fmt: skip


batches = st.binary(min_size=1, max_size=6).map(lambda drawn: [record_of(byte, at) for at, byte in enumerate(drawn)])
partitions = st.integers(0, 1)
routes = st.sampled_from(ROUTES)
delays = st.sampled_from([0, 1, 20, 2000])
ACTS = st.sampled_from(["open", "open", "send", "close", "bury", "wrong id", "fail", "defer", "renew"])
FORGOTTEN = ((), ("shown",), ("ends",), ("shown", "ends"))
numbers = st.integers(0, 5039)  # divisible by many: which one of several


class Body(NamedTuple):
    """What a receiver gets of a digest."""

    id: str
    opened_ms: int
    iteration: int
    total: int
    superseded: int
    over_capacity: int
    next_earliest_ms: int
    records: Mapping[bytes, tuple[float, bytes]]
    cancelled: int


@dataclass
class Worker:
    part: Part
    claim: Claim
    attempts: int = 0
    tries: int = 0
    body: Body | None = None
    """What it read when it opened."""


@dataclass
class Part:
    store: WiredScripts
    model: Model
    filed: list[tuple[str, list[Rec]]]
    """The batches so far."""


class Moment(NamedTuple):
    """Redis as it was, to be put back."""

    saved: list[Saved]
    models: list[Model]


def without_zeros(contents: dict[bytes, Any]) -> dict[bytes, Any]:
    """A counter of a ledger that is 0 says what one says that is not there. The order of a head's fields says nothing,
    and its anchor only what the caller of rescore did."""
    found = dict(contents)
    for name, value in contents.items():
        if b":ledger:" in name:
            found[name] = {field: number for field, number in value.items() if number != b"0"}
        elif b":heads:" in name:
            heads = {timeline: head_of(head) for timeline, head in value.items()}
            found[name] = {timeline: head for timeline, head in heads.items() if {*head} != {b"anchor"}}
            for head in heads.values():
                head.pop(b"anchor", None)
    return {name: value for name, value in found.items() if value}


class TimelinesBesideModel(RuleBasedStateMachine):
    client: ClassVar[redis.Redis]
    wire: ClassVar[Wire]
    is_watched: ClassVar[bool]
    seen: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.wire.commands([("FLUSHALL",), ("CONFIG", "SET", "maxmemory", "0")])
        self.now_ms = NOW_MS
        self.parts: list[Part] = []
        self.workers: list[Worker] = []
        self.bodies: dict[str, Body] = {}
        """Of every digest that anyone ever read."""
        self.received: set[str] = set()
        self.minted = 0
        self.moment: Moment | None = None
        self.watch = Watch(self.client) if self.is_watched else None

    @initialize(drawn=st.tuples(st.sampled_from(POLICIES), st.sampled_from(POLICIES)))
    def begin(self, drawn: tuple[Policy, Policy]) -> None:
        policies = dict(zip(ROUTES, drawn, strict=True))
        for partition in range(2):
            store = WiredScripts(self.client, self.wire, partition=partition)
            store.watch = self.watch
            self.parts.append(Part(store, Model(policies, MOST_TIMELINES, REMEMBERED), []))
        self.time_passes(0)
        self.saw("examples")

    def saw(self, what: str, times: int = 1) -> None:
        self.seen[what] += times

    def mint(self, what: str) -> str:
        """Never the same: ids and tokens are the daemon's, not of Redis."""
        self.minted += 1
        return f"{what}-{self.minted}"

    def dump(self) -> dict[bytes, bytes]:
        return self.parts[0].store.dump()

    # -- intake

    def file(self, part: Part, route: str, records: list[Rec], *, has_ends: bool = False) -> None:
        policy = part.model.policies[route]
        base_ms, bound_ms = policy.beginning(self.now_ms)
        expected, due_at_once = part.model.add(route, records, self.now_ms, has_ends=has_ends)
        answer = part.store.add(
            *records, route=route, capacity=policy.capacity, increment_ms=policy.increment_ms, base_ms=base_ms,
            bound_ms=bound_ms, limit=MOST_TIMELINES, ends=(MEMORY_MS, 1000) if has_ends else None,
        )  # fmt: skip
        assert (answer.counts, answer.due_at_once) == (expected, due_at_once)
        assert answer.counted == part.model.ledgers[route]["added"]
        assert answer.added + answer.repeated == len(records)
        for name, count in answer.counts.items():
            self.saw(name, count)

    @rule(partition=partitions, route=routes, records=batches)
    def add(self, partition: int, route: str, records: list[Rec]) -> None:
        part = self.parts[partition]
        self.file(part, route, records)
        part.filed.append((route, records))

    @rule(partition=partitions, route=routes, records=batches, drawn=numbers, is_silent=st.booleans())
    def add_some_that_end_others(
        self, partition: int, route: str, records: list[Rec], *, drawn: int, is_silent: bool
    ) -> None:
        """And all of it again."""
        end = 24 if is_silent else 8
        for kind in FORGOTTEN[drawn % len(FORGOTTEN)]:
            self.deliver_what_is_due(partition, route, records[:1])
            name = self.forgotten(self.parts[partition], kind, route, drawn)
            records = [record._replace(timeline=name or record.timeline) for record in records]
        records = [record._replace(end=end * (drawn >> at & 1)) for at, record in enumerate(records)]
        for batch in (records, [record._replace(repeat=True) for record in records]):
            self.file(self.parts[partition], route, batch, has_ends=True)

    def forgotten(self, part: Part, kind: str, route: str, which: int) -> bytes | None:
        """A memory of this timeline has expired, if there is one with such a memory."""
        memories = {"shown": part.model.memories, "ends": part.model.ends}[kind]
        names = sorted(name for (of, name), entries in memories.items() if of == route and entries)
        if not names:
            return None
        name = names[which % len(names)]
        del memories[route, name]
        part.store.command("DEL", part.store.key(kind, route, name))
        self.saw(f"forgotten: {kind}")
        return name

    @rule(partition=partitions, route=routes, records=batches)
    def add_whose_reply_is_lost(self, partition: int, route: str, records: list[Rec]) -> None:
        """The daemon files the batch again, and says now of each record that it may be a repeat."""
        self.add(partition, route, records)
        self.file_again(self.parts[partition], route, [record._replace(repeat=True) for record in records])
        self.saw("lost reply of add")

    @rule(which=numbers, order=numbers, cut=st.integers(0, 8), as_repeats=st.booleans())
    def redeliver(self, which: int, order: int, cut: int, as_repeats: bool) -> None:
        """Batches of long ago or just now: merged, in another order, cut somewhere else."""
        part = self.parts[which % 2]
        if not part.filed:
            self.add(which % 2, ROUTES[which % 2], [record_of(which % 256, 0), record_of(order % 256, 1)])
        route, _ = part.filed[which // 2 % len(part.filed)]
        records = [record for of, batch in part.filed[-1 - which % 5 :] for record in batch if of == route]
        again = []
        while records:
            again.append(records.pop(order % len(records))._replace(repeat=as_repeats))
        for piece in (again[:cut], again[cut:]):
            if piece:
                self.file_again(part, route, piece)
        self.saw("redelivered")

    def file_again(self, part: Part, route: str, records: list[Rec]) -> None:
        """What was filed since the last open of its timeline moves nothing but counts."""
        open_ones = [
            record
            for record in records
            if (of := part.model.timelines.get((route, record.timeline))) is not None
            and any(record[:4] == filed[:4] for filed in of.filed)
        ]
        if open_ones:
            before = self.sets_and_schedules(part)
            self.file(part, route, open_ones)
            assert self.sets_and_schedules(part) == before
            self.saw("replayed")
        if others := [record for record in records if record not in open_ones]:
            self.file(part, route, others)

    @staticmethod
    def sets_and_schedules(part: Part) -> dict[bytes, Any]:
        of_counts = tuple(part.store.key(kind, route) for kind in ("ledger", "losses") for route in ROUTES)
        return {name: value for name, value in part.store.contents().items() if name not in of_counts}

    # -- schedule

    def claims(self, part: Part, budgets: list[int], named: tuple[str, ...]) -> list[Worker]:
        token = self.mint("token")
        policies = part.model.policies
        asked = [(route, 1 + at % len(budgets), policies[route].increment_ms) for at, route in enumerate(named)]
        claims, next_ms = part.model.claim(budgets, asked, token, LEASE_MS, self.now_ms)
        answer = part.store.claim(budgets, asked, token, LEASE_MS)
        assert (answer.claims, answer.next_ms, answer.now_ms) == (claims, next_ms, self.now_ms)
        self.saw("claimed", len(claims))
        return [Worker(part, claim) for claim in claims]

    @rule(
        partition=partitions,
        budgets=st.sampled_from([[1], [3], [0, 2], [1, 1]]),
        named=st.sampled_from([("r", "s"), ("s", "r"), ("s",)]),
        reply=st.sampled_from(["heard", "heard", "lost", "lost and claimed again"]),
    )
    def claim(self, partition: int, budgets: list[int], named: tuple[str, ...], reply: str) -> None:
        part = self.parts[partition]
        claimed = self.claims(part, budgets, named)
        if reply == "heard":
            self.workers = [*self.workers, *claimed][-MOST_WORKERS:]
        elif claimed:
            self.saw("lost reply of claim")
            if reply == "lost and claimed again":
                token = claimed[0].claim.token
                again = part.store.claim_again(token, ROUTES, LEASE_MS).claims
                assert {each.timeline for each in again} == {each.claim.timeline for each in claimed}
                assert sorted(again) == sorted(part.model.claim_again(token, LEASE_MS, self.now_ms))

    @rule(limit=st.sampled_from([1, 500]))
    def maintenance(self, limit: int) -> None:
        for part in self.parts:
            returned = part.model.maintenance(limit, self.now_ms)
            assert part.store.maintenance(ROUTES, limit) == returned
            self.saw("lease ran out", returned)

    @rule(step_ms=st.sampled_from([1, 7, 20, LEASE_MS, 3_600_000, 86_400_000, -20, -3_600_000]))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms
        for part in self.parts:
            part.store.now_ms = self.now_ms

    # -- workers; a claim may be of long ago

    @rule(drawn=st.tuples(numbers, st.lists(ACTS, min_size=1, max_size=3), delays))
    def a_worker_acts(self, drawn: tuple[int, list[str], int]) -> None:
        """One argument: hypothesis takes the rule with the fewest, and of those the first by name, most often."""
        which, acts, delay_ms = drawn
        if not self.workers:
            self.deliver_what_is_due(which % 2, ROUTES[which % 2], [record_of(which % 256, 0)], ending="crash")
        for act in acts if self.workers else []:
            worker = self.workers[which % len(self.workers)]
            if act == "open":
                self.open(worker)
            elif act == "renew":
                self.renew(worker)
            elif act in {"fail", "defer"}:
                self.wait_again(worker, delay_ms, is_defer=act == "defer")
            elif worker.body is not None and act != "wrong id":
                if act != "bury":
                    self.send(worker)
                if act != "send":
                    self.end(worker, worker.body.id, is_bury=act == "bury")
            else:
                self.end(worker, "digest-0", is_bury=which % 2 == 0)

    def asked(self, ask: Callable[[], T], expected: T, word: str) -> None:
        """A call, and what it answers; a stale worker's and a second close change not a byte."""
        before = self.dump() if word in {"stale", "already"} else None
        answer = ask()
        assert answer == expected
        if before is not None:
            assert self.dump() == before
        self.saw(word)

    def open(self, worker: Worker) -> None:
        part, claim = worker.part, worker.claim
        policy, digest_id = part.model.policies[claim.route], self.mint("digest")
        table = policy.earliest_next_ms(self.now_ms)
        expected = part.model.open(claim, digest_id, table, self.now_ms)
        word = expected if isinstance(expected, str) else expected.word
        self.asked(lambda: part.store.open(claim, digest_id, table, policy.merge_capacity), expected, word)
        if isinstance(expected, str):
            return
        worker.attempts, worker.tries = expected.attempts, expected.tries
        records = part.store.snapshot(claim.timeline, claim.route)
        worker.body = Body(*expected[2:9], records=records, cancelled=expected.cancelled)
        assert len(worker.body.records) == expected.total
        # Whoever reads it and when: it is what it was.
        assert self.bodies.setdefault(worker.body.id, worker.body) == worker.body

    def send(self, worker: Worker) -> None:
        assert worker.body is not None
        if worker.body.id in self.received:
            self.saw("sent again")
        self.received.add(worker.body.id)
        self.saw("sent")

    def renew(self, worker: Worker) -> None:
        expected = worker.part.model.renew(worker.claim, LEASE_MS, self.now_ms)
        self.asked(lambda: worker.part.store.renew(worker.claim, LEASE_MS), expected, expected)

    def wait_again(self, worker: Worker, delay_ms: int, *, is_defer: bool) -> None:
        part, claim = worker.part, worker.claim
        posts = int(not is_defer)
        expected = part.model.fail(claim, self.now_ms + delay_ms, posts)
        self.asked(lambda: part.store.fail(claim, self.now_ms + delay_ms, posts), expected, expected)
        if expected == "waiting":
            self.saw("deferred" if is_defer else "failed")

    def end(self, worker: Worker, digest_id: str, *, is_bury: bool) -> None:
        part, claim = worker.part, worker.claim
        policy, body = part.model.policies[claim.route], self.bodies.get(digest_id)
        base_ms, bound_ms = policy.after(body.iteration, body.next_earliest_ms, self.now_ms) if body else (0, 0)
        # What came back from the dead is of no timeline whose redeliveries could be known by it.
        remember_ms = 0 if is_own(claim.timeline) else MEMORY_MS
        after: dict[str, int] = {
            "base_ms": base_ms, "bound_ms": bound_ms, "increment_ms": policy.increment_ms,
            "remember_ms": remember_ms, "remembered": REMEMBERED,
        }  # fmt: skip
        is_remembered = remember_ms > 0
        if is_bury:
            details = b"%s %d" % (claim.route.encode(), worker.attempts)
            buried = part.model.bury(
                claim, digest_id, (base_ms, bound_ms), details, self.now_ms, is_remembered=is_remembered
            )
            self.asked(lambda: part.store.bury(claim, digest_id, **after, details=details), buried, buried[0])
            return
        closed = part.model.close(claim, digest_id, (base_ms, bound_ms), is_remembered=is_remembered)

        def close() -> str:
            return part.store.close(claim, digest_id, **after)

        self.asked(close, closed, closed)
        if closed == "closed":
            assert digest_id in self.received
            assert part.store.forgotten == part.model.forgotten
            self.saw("keys forgotten", part.model.forgotten)

    # -- a whole story, to which single steps alone would seldom come

    @rule(
        partition=partitions,
        route=routes,
        records=batches,
        meanwhile=st.none() | batches,
        ending=st.sampled_from(
            [
                "close",
                "close twice",
                "bury",
                "fail",
                "fail",
                "defer",
                "crash",
                "too late",
                "deleted",
                "adopted",
                "flushed",
            ]
        ),
        delay_ms=delays,
    )
    def deliver_what_is_due(
        self,
        partition: int,
        route: str,
        records: list[Rec],
        *,
        meanwhile: list[Rec] | None = None,
        ending: str = "close",
        delay_ms: int = 0,
    ) -> None:
        """Filed, claimed, opened, sent; then closed, or whatever else may come."""
        self.add(partition, route, records)
        self.time_passes(2000)
        for worker in self.claims(self.parts[partition], [2], ROUTES):
            self.open(worker)
            if worker.body is not None:
                if meanwhile:
                    self.add(partition, worker.claim.route, meanwhile)
                self.finish(worker, ending, delay_ms)

    def finish(self, worker: Worker, ending: str, delay_ms: int = 0) -> None:
        """The worker stays: it may say whatever comes to its mind later, too."""
        assert worker.body is not None
        self.workers = [*self.workers, worker][-MOST_WORKERS:]
        if worker.tries >= MOST_TRIES or ending == "bury":
            self.end(worker, worker.body.id, is_bury=True)
            return
        self.send(worker)
        if ending in {"fail", "defer"}:
            self.wait_again(worker, delay_ms, is_defer=ending == "defer")
        elif ending == "too late":
            self.time_passes(LEASE_MS)
            self.maintenance(500)
        elif ending == "crash":
            self.audit(worker.part, worker.claim.route, [worker.claim.timeline])
        elif ending == "deleted":
            self.delete(worker.part, worker.claim.route, worker.claim.timeline)
        elif ending == "flushed":
            self.flush(worker.part, worker.claim.route, worker.claim.timeline)
        elif ending == "adopted":
            self.adopt(worker.part, worker.claim.route, worker.claim.timeline)
        if ending not in {"fail", "defer", "crash"}:
            for _ in range(1 + (ending == "close twice")):
                self.end(worker, worker.body.id, is_bury=False)

    # -- operators

    @rule(
        partition=partitions,
        route=routes,
        which=st.integers(0, 3),
        what=st.sampled_from(["flush", "flush", "delete", "adopt", "audit"]),
    )
    def an_operator_acts(self, partition: int, route: str, which: int, what: str) -> None:
        part = self.parts[partition]
        names = [name for of, name in part.model.timelines if of == route]
        name = sorted(names)[which % len(names)] if names else NAMES[which]
        if what == "delete":
            self.delete(part, route, name)
        elif what == "adopt":
            self.adopt(part, route, name)
        elif what == "audit":
            self.audit(part, route, [*names, b"unknown"])
        else:
            self.flush(part, route, name)

    def audit(self, part: Part, route: str, names: list[bytes]) -> None:
        assert part.store.audit(ROUTES) == part.model.audit()
        assert part.store.recount(names, route) == [part.model.recount((route, name)) for name in names]
        self.saw("audited")

    def flush(self, part: Part, route: str, name: bytes) -> None:
        expected = part.model.flush((route, name), self.now_ms)
        assert part.store.flush(name, route) == expected
        self.saw(f"flush: {expected}")
        if expected == "due":
            due_ms = part.model.timelines[route, name].due_ms(part.model.policies[route].increment_ms)
            assert due_ms <= self.now_ms

    def delete(self, part: Part, route: str, name: bytes) -> None:
        expected = part.model.delete((route, name))
        assert part.store.delete(name, route) == expected
        self.saw(expected[0])
        assert not part.store.contents().keys() & set(
            part.store.keys("set values digest digest-values shown", route, name)
        )

    def adopt(self, part: Part, route: str, name: bytes) -> None:
        to = ROUTES[1 - ROUTES.index(route)]
        expected = part.model.adopt((route, name), to)
        assert part.store.adopt(name, to, route, part.model.policies[to].capacity) == expected
        self.saw(expected[0])

    @rule(
        partition=partitions,
        route=routes,
        which=st.integers(0, 3),
        kind=st.sampled_from(["mute", "snooze", "snooze", "", ""]),
        hours=st.integers(1, 2),
    )
    def a_timeline_is_held(self, partition: int, route: str, which: int, kind: str, hours: int) -> None:
        part, name = self.parts[partition], NAMES[which]
        if not kind and part.model.holds:
            route, name = sorted(part.model.holds)[which % len(part.model.holds)]
        until_ms = self.now_ms + 3_600_000 * hours if kind else 0
        expected = part.model.hold((route, name), kind, until_ms, self.now_ms, MOST_HOLDS)
        assert part.store.hold(name, kind, until_ms, by="ada", route=route, most=MOST_HOLDS) == expected
        self.saw(f"hold: {expected[0]}")

    @rule(partition=partitions, route=routes, delay_ms=delays, knows=st.booleans())
    def a_policy_has_changed(self, partition: int, route: str, delay_ms: int, *, knows: bool) -> None:
        """Called twice; who looked too long ago changes nothing."""
        part = self.parts[partition]
        increment_ms = part.model.policies[route].increment_ms
        asked = [
            (name, of.closed if knows else "digest-0", self.now_ms + delay_ms - 20, self.now_ms + delay_ms)
            for (at, name), of in part.model.timelines.items()
            if at == route
        ]
        for _ in range(2):
            expected = part.model.rescore(route, asked, increment_ms, self.now_ms)
            assert part.store.rescore(*asked, route=route, increment_ms=increment_ms) == expected
            self.saw("rescored", sum(expected))

    @rule(which=numbers, is_revived=st.booleans())
    def a_dead_digest_is_dropped_or_revived(self, which: int, is_revived: bool) -> None:
        part = max(self.parts, key=lambda part: len(part.model.dead))
        if not part.model.dead:
            self.deliver_what_is_due(which % 2, ROUTES[which % 2], [record_of(which % 256, 0)], ending="bury")
            part = max(self.parts, key=lambda part: len(part.model.dead))
        if not part.model.dead:
            return
        digest_id = sorted(part.model.dead)[which % len(part.model.dead)]
        if is_revived:
            self.revive(part, digest_id)
        else:
            route = part.model.dead[digest_id].route
            for _ in range(2):
                expected = part.model.drop_dead(digest_id)
                assert part.store.drop_dead(digest_id, route) == expected
                self.saw(expected[0])

    def revive(self, part: Part, digest_id: str) -> None:
        dead, body = part.model.dead[digest_id], self.bodies[digest_id]
        own, attempts = own_timeline(digest_id, b"t"), int(dead.details.split()[1])
        for _ in range(2):
            digest = Digest(
                digest_id, {}, body.opened_ms, body.superseded, body.over_capacity, body.next_earliest_ms, self.now_ms,
                attempts, cancelled=body.cancelled,
            )  # fmt: skip
            expected = part.model.revive(digest, body.iteration, (dead.route, own))
            answer = part.store.revive(
                digest_id, b"t", dead.route, attempts=attempts, opened_ms=body.opened_ms, iteration=body.iteration,
                superseded=body.superseded, over_capacity=body.over_capacity, next_earliest_ms=body.next_earliest_ms,
                cancelled=body.cancelled,
            )  # fmt: skip
            assert answer == expected
            self.saw(expected[0])

    # -- what Redis may do

    @rule(
        what=st.sampled_from(["forgets the scripts", "is full", "is a replica", "has something else there"]),
        partition=partitions,
        route=routes,
        records=batches,
        ending=st.sampled_from(["close", "bury", "fail"]),
    )
    def redis_is_unwell(self, what: str, partition: int, route: str, records: list[Rec], ending: str) -> None:
        if what == "forgets the scripts":
            self.wire.command("SCRIPT", "FLUSH")
        elif what == "is full":
            # Nothing is taken in, everything goes out.
            with self.between(("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")):
                self.add_that_is_refused(partition, route, records, "maxmemory")
                self.time_passes(2000)
                for worker in self.claims(self.parts[partition], [2], ROUTES):
                    self.open(worker)
                    if worker.body is not None:
                        self.finish(worker, ending)
                self.maintenance(500)
        elif what == "is a replica":
            with self.between(("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")):
                self.add_that_is_refused(partition, route, records, "READONLY")
        else:
            part = self.parts[partition]
            key = part.store.key("values", route, b"planted")
            with self.between(("SET", key, ""), ("DEL", key)):
                planted = [record._replace(timeline=b"planted") for record in records]
                self.add_that_is_refused(partition, route, planted, "WRONGTYPE")
            there = [name for of, name in part.model.timelines if of == route]
            assert part.store.mend(there, route, part.model.ledgers[route]["buried"]) == ("mended", 0)

    @contextmanager
    def between(self, first: Sequence[bytes | str], last: Sequence[bytes | str]) -> Iterator[None]:
        self.wire.command(*first)
        try:
            yield
        finally:
            self.wire.command(*last)

    def add_that_is_refused(self, partition: int, route: str, records: list[Rec], word: str) -> None:
        """Without a record changed; what changes nothing anyway may be answered."""
        part, before = self.parts[partition], self.sets_and_schedules(self.parts[partition])
        capacity, said = part.model.policies[route].capacity, ""
        try:
            answer = part.store.add(*records, route=route, capacity=capacity, limit=2 * MOST_TIMELINES)
            assert answer.counts.keys() <= {"repeated"}
        except redis.ResponseError as error:
            said = str(error)
        assert self.sets_and_schedules(part) == before
        if said:
            assert word in said
            self.saw(f"refused: {word}")

    @rule(partition=partitions, route=routes, records=batches)
    def redis_is_put_back(self, partition: int, route: str, records: list[Rec]) -> None:
        """By a failover or to an older dump, of just now or of longer ago: what was done since is lost to Redis; what
        was sent was sent, and ids and tokens go on."""
        now = Moment(self.parts[0].store.saved(), [copy.deepcopy(part.model) for part in self.parts])
        moment, self.moment = self.moment or now, now
        self.deliver_what_is_due(partition, route, records)
        self.parts[0].store.restore(moment.saved)
        for part, model in zip(self.parts, moment.models, strict=True):
            part.model = copy.deepcopy(model)
        self.saw("put back")

    # -- always

    @invariant()
    def redis_holds_what_the_models_hold(self) -> None:
        if not self.parts:
            return
        contents = self.parts[0].store.contents()
        expected: dict[bytes, Any] = {}
        for part in self.parts:
            mine = {name: value for name, value in contents.items() if name.startswith(part.store.tag)}
            assert inconsistencies(part.store.tag, mine) == []
            expected |= part.model.contents(part.store)
        assert without_zeros(contents) == without_zeros(expected)

    def teardown(self) -> None:
        """With a healthy worker everything goes out: a digest left over, what came since, and then there is no more."""
        try:
            if self.parts:
                self.drain()
        finally:
            if self.watch is not None:
                self.watch.end()
                assert self.watch.complaints == []

    def drain(self) -> None:
        self.time_passes(10 * 86_400_000)
        self.maintenance(500)
        for part in self.parts:
            for _ in range(3):
                for worker in self.claims(part, [500], ROUTES):
                    self.open(worker)
                    if worker.body is not None:
                        self.finish(worker, "close")
                self.time_passes(10_000)
            assert part.model.timelines == {}
        self.redis_holds_what_the_models_hold()
        left = {name.split(b":")[2] for name in self.parts[0].store.contents()}
        assert left <= {b"ledger", b"count", b"shown", b"ends", b"holds", b"dead", b"dead-set", b"dead-values"}


@pytest.fixture
def wire(redis_factory: Callable[..., RedisServer]) -> Iterator[Wire]:
    """To a Redis of the test's own, which is to be full and read-only now and then."""
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket has to be short
        path = Path(folder) / "redis.sock"
        server = redis_factory("--unixsocket", str(path))
        with server.client() as client, Wire(path) as wire:
            TimelinesBesideModel.client, TimelinesBesideModel.wire = client, wire
            yield wire


def run(examples: int, *, is_watched: bool) -> Counter[str]:
    seen: Counter[str] = Counter()
    TimelinesBesideModel.is_watched, TimelinesBesideModel.seen = is_watched, seen
    runs = settings(max_examples=examples, stateful_step_count=STEPS)
    run_state_machine_as_test(TimelinesBesideModel, settings=runs)
    return seen


def shares() -> list[int]:
    """A deep run is cut into parts, so that each ends before it is taken for one that hangs."""
    deeper = settings().max_examples // settings.get_profile("normal").max_examples
    return list(range(1, 1 + max(1, min(8, deeper))))


@pytest.mark.usefixtures("wire")
@pytest.mark.parametrize("share", shares())
def test_redis_holds_what_a_model_of_timelines_holds(share: int) -> None:
    seen = run(EXAMPLES, is_watched=False)
    # Else it would have found nothing because it did nothing.
    assert not {what: seen[what] for what, least in LEAST.items() if seen[what] < least}, seen


@pytest.mark.usefixtures("wire")
def test_whatever_is_called_scripts_touch_declared_keys_only() -> None:
    seen = run(20 * len(shares()), is_watched=True)
    assert seen["closed"]
