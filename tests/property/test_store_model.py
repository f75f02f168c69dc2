"""The timelines beside a model of them: whatever is called in whatever order, Redis holds what the model holds.

The model knows nothing of scripts: per timeline a set of records, a frozen digest, a schedule and a lease. After every
step all keys of the database are compared with it, so that nothing leaks, a snapshot stays frozen and the ledger is
exact. What the model would get wrong together with the script is asserted apart: the open set is the newest `CAPACITY`
of the newest records per key that were filed since the last open, in whatever order they came (a join).

The scripts are told the time, which jumps and goes back. Stale workers keep their claims for ever and use them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from support.servers import RedisServer
from support.store import NOW_MS, SCHEDULE, Claim, Rec, Scripts, inconsistencies

EXAMPLES = 80
CAPACITY = 3
REMEMBERED = 4
LIMIT = 6
LEASE_MS = 1000
INCREMENTS_MS = {"r": 0, "s": 7}
MEMORY_MS = 3_600_000  # Redis' own clock lets it go, so it is to outlast the run

Records = dict[bytes, tuple[int, bytes]]


@dataclass
class Digest:
    id: str
    records: Records
    opened_ms: int
    superseded: int
    over_capacity: int
    next_earliest_ms: int
    attempts: int = 0


@dataclass
class Timeline:
    base_ms: int
    bound_ms: int
    score_ms: int
    """Where it stands in the waiting set: never after it is due."""
    records: Records = field(default_factory=dict)
    lease: tuple[int, str] | None = None
    digest: Digest | None = None
    iteration: int = 0
    closed: str = ""
    superseded: int = 0
    over_capacity: int = 0
    filed: list[Rec] = field(default_factory=list)
    """All that was accepted since the last open, in order."""

    def due_ms(self, increment_ms: int) -> int:
        return min(self.base_ms + increment_ms * len(self.records), self.bound_ms)

    def wait(self, base_ms: int, bound_ms: int, increment_ms: int) -> None:
        self.lease, self.base_ms, self.bound_ms = None, base_ms, bound_ms
        self.score_ms = self.due_ms(increment_ms)


def newest_first(records: Records) -> list[bytes]:
    return sorted(records, key=lambda key: (-records[key][0], key))


class Model:
    def __init__(self) -> None:
        self.timelines: dict[tuple[str, bytes], Timeline] = {}
        self.memories: dict[tuple[str, bytes], dict[bytes, int]] = {}
        self.dead: dict[str, tuple[str, int, Records]] = {}
        self.ledgers: dict[str, Counter[str]] = {route: Counter() for route in INCREMENTS_MS}
        self.fields: dict[str, set[str]] = {route: set() for route in INCREMENTS_MS}
        self.ever_counted = False

    def count(self, route: str, name: str, by: int) -> None:
        if by:
            self.ledgers[route][name] += by
            self.fields[route].add(name)

    # -- add

    def add(self, route: str, records: list[Rec], base_ms: int, bound_ms: int) -> Counter[str]:
        """What the batch does, timeline by timeline as they first appear, those with a possible repeat last."""
        counts: Counter[str] = Counter()
        repeats = {record.timeline for record in records if record.repeat}
        for timeline in sorted(dict.fromkeys(record.timeline for record in records), key=lambda name: name in repeats):
            self._add_to(
                route, timeline, [of for of in records if of.timeline == timeline], (base_ms, bound_ms), counts
            )
        counts["added"] = sum(counts.values()) - counts["repeated"]
        del counts["kept"]
        return counts

    def _add_to(
        self, route: str, name: bytes, records: list[Rec], first: tuple[int, int], counts: Counter[str]
    ) -> None:
        known = self.timelines.get((route, name))
        if known is None and len(self.timelines) >= LIMIT:
            counts["over_timelines"] += len(records)
            self.count(route, "added", len(records))
            self.count(route, "dropped:timelines", len(records))
            return
        timeline = known or Timeline(*first, score_ms=0)
        before = len(timeline.records)
        shown = timeline.digest.records if timeline.digest else {}
        memory = self.memories.get((route, name), {})
        for record in records:
            shown_ms = max(shown.get(record.key, (-1, b""))[0], memory.get(record.key, -1))
            what = "duplicates" if record.repeat and record.timestamp_ms <= shown_ms else self._file(timeline, record)
            counts[what] += 1
            if what != "repeated":
                self.count(route, "added", 1)
            if what in {"superseded", "over_capacity"}:
                setattr(timeline, what, getattr(timeline, what) + 1)
            reason = {
                "superseded": "superseded", "over_capacity": "dropped:capacity", "duplicates": "dropped:duplicate",
            }.get(what)  # fmt: skip
            if reason:
                self.count(route, reason, 1)
        self.count(route, "open", len(timeline.records) - before)
        if known is None and timeline.records:
            timeline.score_ms = timeline.due_ms(INCREMENTS_MS[route])
            self.timelines[route, name] = timeline
            self.ever_counted = True

    @staticmethod
    def _file(timeline: Timeline, record: Rec) -> str:
        """Files it, and answers in which counter it shows (added goes without saying)."""
        new = (record.timestamp_ms, record.value)
        present = timeline.records.get(record.key)
        if new == present:
            return "repeated"
        timeline.filed.append(record)
        if present is not None:
            timeline.records[record.key] = max(new, present)
            return "superseded"
        timeline.records[record.key] = new
        if len(timeline.records) <= CAPACITY:
            return "kept"
        del timeline.records[newest_first(timeline.records)[-1]]
        return "over_capacity"

    # -- the whole of it, as Redis should hold it

    def contents(self, store: Scripts) -> dict[bytes, Any]:
        keys: dict[bytes, Any] = {}

        def put(key: bytes, member: bytes, value: object) -> None:
            keys.setdefault(key, {})[member] = value

        def put_records(index: bytes, values: bytes, records: Records) -> None:
            for key, (timestamp_ms, value) in records.items():
                put(index, key, -timestamp_ms)  # its score
                put(values, key, value)

        for (route, name), of in self.timelines.items():
            put(store.key("b", route), name, SCHEDULE.pack(of.base_ms, of.bound_ms, len(of.records)))
            if of.lease is None:
                put(store.key("w", route), name, of.score_ms)
            else:
                put(store.key("l", route), name, of.lease[0])
                put(store.key("k", route), name, of.lease[1].encode())
            put_records(store.key("i", route, name), store.key("v", route, name), of.records)
            for letter, lost in ((b"s", of.superseded), (b"c", of.over_capacity)):
                if lost:
                    put(store.key("d", route), letter + name, b"%d" % lost)
            head = self._head(of)
            if head:
                keys[store.key("h", route, name)] = head
            if of.digest:
                put_records(store.key("s", route, name), store.key("x", route, name), of.digest.records)
        for (route, name), memory in self.memories.items():
            keys[store.key("m", route, name)] = {key: -timestamp_ms for key, timestamp_ms in memory.items()}
        for digest_id, (route, since_ms, records) in self.dead.items():
            put(store.key("dead"), digest_id.encode(), since_ms)
            put(store.key("dead:details"), digest_id.encode(), route.encode())
            put_records(store.key("di", digest_id), store.key("dv", digest_id), records)
        for route, counters in self.ledgers.items():
            for counter in self.fields[route]:
                put(store.key("c", route), counter.encode(), b"%d" % counters[counter])
        if self.ever_counted:
            keys[store.key("n")] = b"%d" % len(self.timelines)
        return keys

    @staticmethod
    def _head(of: Timeline) -> dict[bytes, bytes]:
        head: dict[bytes, object] = {}
        if of.iteration:
            head[b"iteration"] = of.iteration
        if of.closed:
            head[b"closed"] = of.closed
        if of.digest:
            stamps = [timestamp_ms for timestamp_ms, _ in of.digest.records.values()]
            head |= {
                b"id": of.digest.id, b"opened": of.digest.opened_ms, b"total": len(of.digest.records),
                b"first": min(stamps), b"last": max(stamps), b"superseded": of.digest.superseded,
                b"capacity": of.digest.over_capacity, b"next": of.digest.next_earliest_ms,
                b"attempts": of.digest.attempts,
            }  # fmt: skip
        return {name: str(value).encode() for name, value in head.items()}


routes = st.sampled_from(list(INCREMENTS_MS))
names = st.sampled_from([b"t", b"t:v", b"a b", b"\xc3\xbc{}", b"r:t"])
record_lists = st.lists(
    st.builds(
        Rec,
        timeline=names,
        key=st.sampled_from([b"a", b"b", b"B", b"\xff", b"k:1"]),
        timestamp_ms=st.integers(NOW_MS, NOW_MS + 4),
        value=st.sampled_from([b"", b"a", b"a\x00", b"B", b"\xc3\xa4", b"\xff"]),
        repeat=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
delays = st.sampled_from([0, 1, 5, 20, 2000])
tables = st.lists(st.integers(0, 50), min_size=1, max_size=3)


class TimelinesBesideModel(RuleBasedStateMachine):
    server_store: ClassVar[Scripts]
    seen: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.store = self.server_store
        self.store.client.flushall()
        self.store.now_ms = NOW_MS
        self.model = Model()
        self.claims: list[Claim] = []
        self.batches: list[tuple[str, list[Rec]]] = []
        self.numbers = 0

    def saw(self, what: str) -> None:
        self.seen[what] += 1
        event(what)

    def number(self, what: str) -> str:
        self.numbers += 1
        return f"{what}-{self.numbers}"

    @initialize(route=routes, records=record_lists)
    def begin(self, route: str, records: list[Rec]) -> None:
        self.add(route, records, 0, 0)

    @property
    def now_ms(self) -> int:
        assert self.store.now_ms is not None
        return self.store.now_ms

    # -- intake

    def file(self, route: str, records: list[Rec], delay_ms: int, spread_ms: int) -> None:
        base_ms, bound_ms = self.now_ms + delay_ms, self.now_ms + delay_ms + spread_ms
        known = set(self.model.timelines)
        expected = self.model.add(route, records, base_ms, bound_ms)
        answer = self.store.add(
            *records, route=route, capacity=CAPACITY, increment_ms=INCREMENTS_MS[route], base_ms=base_ms,
            bound_ms=bound_ms, limit=LIMIT,
        )  # fmt: skip
        assert answer.counts == {name: count for name, count in expected.items() if count}
        new = [of for of in self.model.timelines if of not in known]
        assert len(answer.due_at_once) == sum(self.model.timelines[of].score_ms <= self.now_ms for of in new)
        for name, count in answer.counts.items():
            self.seen[name] += count

    @rule(route=routes, records=record_lists, delay_ms=delays, spread_ms=delays)
    def add(self, route: str, records: list[Rec], delay_ms: int, spread_ms: int) -> None:
        self.file(route, records, delay_ms, spread_ms)
        self.batches.append((route, records))

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), as_repeats=st.booleans(), delay_ms=delays)
    def redeliver_in_other_batches(self, data: st.DataObject, as_repeats: bool, delay_ms: int) -> None:
        """Old batches again: merged, shuffled, cut somewhere else."""
        route, _ = data.draw(st.sampled_from(self.batches))
        mine = [record for of, records in self.batches[-4:] for record in records if of == route]
        records = [record._replace(repeat=as_repeats) for record in data.draw(st.permutations(mine))]
        cut = data.draw(st.integers(0, len(records)))
        for part in (records[:cut], records[cut:]):
            if part:
                self.file(route, part, delay_ms, 0)
        self.saw("redelivered")

    @precondition(lambda self: any(of.records for of in self.model.timelines.values()))
    @rule(as_repeats=st.booleans(), delay_ms=delays)
    def redelivering_what_is_kept_changes_nothing(self, as_repeats: bool, delay_ms: int) -> None:
        before = self.store.dump()
        for (route, name), of in self.model.timelines.items():
            shown = of.digest.records if of.digest else {}
            memory = self.model.memories.get((route, name), {})
            kept = [
                Rec(name, key, timestamp_ms, value, as_repeats)
                for key, (timestamp_ms, value) in of.records.items()
                # Such a copy of what was shown is counted as a duplicate, which the ledger shows.
                if not as_repeats or timestamp_ms > max(shown.get(key, (-1, b""))[0], memory.get(key, -1))
            ]
            if kept:
                answer = self.store.add(
                    *kept, route=route, capacity=CAPACITY, increment_ms=INCREMENTS_MS[route],
                    base_ms=self.now_ms + delay_ms, limit=LIMIT,
                )  # fmt: skip
                assert answer.counts == {"repeated": len(kept)}
        assert self.store.dump() == before

    # -- schedule

    @rule(budgets=st.lists(st.integers(0, 3), min_size=1, max_size=2), named=st.permutations(list(INCREMENTS_MS)))
    def claim(self, budgets: list[int], named: list[str]) -> None:
        self.claim_from(budgets, named)

    def claim_from(self, budgets: list[int], named: list[str]) -> list[Claim]:
        token = self.number("token")
        asked = [(route, 1 + at % len(budgets), INCREMENTS_MS[route]) for at, route in enumerate(named)]
        answer = self.store.claim(budgets, asked, token, LEASE_MS)
        left, expected, following = list(budgets), [], []
        for route, budget, increment_ms in asked:
            mine = {name: of for (at, name), of in self.model.timelines.items() if at == route and of.lease is None}
            looked_at = left[budget - 1] > 0
            for name, of in sorted(mine.items(), key=lambda item: (item[1].score_ms, item[0])):
                due_ms = of.due_ms(increment_ms)
                assert of.score_ms <= due_ms
                if not looked_at or of.score_ms > self.now_ms:
                    continue
                if due_ms > self.now_ms:
                    of.score_ms = due_ms
                elif left[budget - 1] > 0:
                    left[budget - 1] -= 1
                    of.lease, of.base_ms, of.bound_ms = (self.now_ms + LEASE_MS, token), due_ms, due_ms
                    expected.append(Claim(route, name, due_ms, token))
            following += [of.score_ms for of in mine.values() if of.lease is None]
        assert answer.claims == expected
        assert answer.next_ms == (min(following) if following else None)
        self.claims += answer.claims
        self.seen["claimed"] += len(answer.claims)
        return answer.claims

    @rule(limit=st.sampled_from([1, 500]))
    def maintenance(self, limit: int) -> None:
        returned = 0
        for route in INCREMENTS_MS:
            out = sorted(
                (of.lease[0], name)
                for (at, name), of in self.model.timelines.items()
                if at == route and of.lease is not None and of.lease[0] <= self.now_ms
            )[:limit]
            for _, name in out:
                of = self.model.timelines[route, name]
                of.lease, of.score_ms = None, of.base_ms
            returned += len(out)
        assert self.store.maintenance(list(INCREMENTS_MS), limit) == returned
        if returned:
            self.saw("lease ran out")

    @rule(step_ms=st.sampled_from([1, 7, 20, LEASE_MS, 3_600_000, 86_400_000, -20, -3_600_000]))
    def time_passes(self, step_ms: int) -> None:
        self.store.now_ms = self.now_ms + step_ms

    # -- a digest; a claim may be of long ago

    def choose(self, data: st.DataObject) -> tuple[Claim, Timeline | None]:
        """A claim, and its timeline if it is still leased under it."""
        claim = data.draw(st.sampled_from(self.claims[-12:]))
        of = self.model.timelines.get((claim.route, claim.timeline))
        return claim, of if of is not None and of.lease is not None and of.lease[1] == claim.token else None

    def said_stale(self, answer: object, before: dict[bytes, bytes]) -> None:
        assert answer == "stale"
        assert self.store.dump() == before
        self.saw("stale")

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), table=tables)
    def open(self, data: st.DataObject, table: list[int]) -> None:
        claim, of = self.choose(data)
        if of is None:
            before = self.store.dump()
            self.said_stale(self.store.open(claim, "not taken"), before)
        else:
            self.open_now(claim, of, table)

    def open_now(self, claim: Claim, of: Timeline, table: list[int]) -> None:
        digest_id = self.number("digest")
        answer = self.store.open(claim, digest_id, [self.now_ms + entry for entry in table], LEASE_MS)
        is_new = of.digest is None
        if is_new and not of.records:
            assert answer == "empty"
            del self.model.timelines[claim.route, claim.timeline]
            self.saw("forgotten")
            return
        of.lease = (self.now_ms + LEASE_MS, claim.token)
        if of.digest is None:
            best: Records = {}
            for record in of.filed:
                best[record.key] = max(best.get(record.key, (-1, b"")), (record.timestamp_ms, record.value))
            assert of.records == {key: best[key] for key in newest_first(best)[:CAPACITY]}, "add is no join"
            of.iteration += 1
            next_ms = self.now_ms + table[min(of.iteration, len(table)) - 1]
            of.digest = Digest(digest_id, of.records, self.now_ms, of.superseded, of.over_capacity, next_ms)
            of.records, of.filed, of.superseded, of.over_capacity = {}, [], 0, 0
            self.model.count(claim.route, "open", -len(of.digest.records))
            self.model.count(claim.route, "snapshots", len(of.digest.records))
        of.digest.attempts += 1
        digest, word = of.digest, "opened" if is_new else "again"
        stamps = [timestamp_ms for timestamp_ms, _ in digest.records.values()]
        assert answer == (
            word, self.now_ms, digest.attempts, digest.id, digest.opened_ms, of.iteration, len(stamps), min(stamps),
            max(stamps), digest.superseded, digest.over_capacity, digest.next_earliest_ms,
        )  # fmt: skip
        self.saw("opened" if is_new else "opened again")

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        claim, of = self.choose(data)
        before = self.store.dump()
        answer = self.store.renew(claim, LEASE_MS)
        if of is None:
            self.said_stale(answer, before)
        else:
            assert answer == "renewed"
            of.lease = (self.now_ms + LEASE_MS, claim.token)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), delay_ms=delays, take_back=st.integers(0, 1))
    def fail_or_defer(self, data: st.DataObject, delay_ms: int, take_back: int) -> None:
        claim, of = self.choose(data)
        if of is not None and of.digest and not of.digest.attempts:
            take_back = 0  # nobody defers after an open that was not
        self.wait_again(claim, of, delay_ms, take_back)

    def wait_again(self, claim: Claim, of: Timeline | None, delay_ms: int, take_back: int) -> None:
        before = self.store.dump()
        answer = self.store.fail(claim, self.now_ms + delay_ms, take_back)
        if of is None:
            self.said_stale(answer, before)
            return
        assert answer == "waiting"
        of.wait(self.now_ms + delay_ms, self.now_ms + delay_ms, 0)
        if of.digest:
            of.digest.attempts -= take_back

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), delay_ms=delays, spread_ms=delays, is_bury=st.booleans(), right_id=st.booleans())
    def close_or_bury(self, data: st.DataObject, delay_ms: int, spread_ms: int, is_bury: bool, right_id: bool) -> None:
        claim, of = self.choose(data)
        there = self.model.timelines.get((claim.route, claim.timeline))
        known = [of_id for of_id in (there and there.digest and there.digest.id, there and there.closed) if of_id]
        digest_id = data.draw(st.sampled_from(known)) if right_id and known else "digest-0"
        self.end(claim, of, digest_id, is_bury, (delay_ms, spread_ms))

    def end(self, claim: Claim, of: Timeline | None, digest_id: str, is_bury: bool, after_ms: tuple[int, int]) -> None:
        there = self.model.timelines.get((claim.route, claim.timeline))
        increment_ms = INCREMENTS_MS[claim.route]
        base_ms, bound_ms = self.now_ms + after_ms[0], self.now_ms + sum(after_ms)
        before = self.store.dump()
        if is_bury:
            answer, dead = self.store.bury(
                claim, digest_id, base_ms=base_ms, bound_ms=bound_ms, increment_ms=increment_ms,
                details=claim.route.encode(),
            )  # fmt: skip
        else:
            answer, dead = self.store.close(
                claim, digest_id, base_ms=base_ms, bound_ms=bound_ms, increment_ms=increment_ms, remember_ms=MEMORY_MS,
                remembered=REMEMBERED,
            ), None  # fmt: skip
        if there is not None and there.closed == digest_id:
            assert answer == "already"
            assert self.store.dump() == before
            self.saw("already")
            return
        if of is None or of.digest is None or of.digest.id != digest_id:
            self.said_stale(answer, before)
            return
        records = of.digest.records
        self.model.count(claim.route, "snapshots", -len(records))
        self.model.count(claim.route, "buried" if is_bury else "delivered", len(records))
        of.digest, of.closed = None, digest_id
        of.wait(base_ms, bound_ms, increment_ms)
        if is_bury:
            self.model.dead[digest_id] = (claim.route, self.now_ms, records)
            assert (answer, dead) == ("buried", len(self.model.dead))
        else:
            assert answer == "closed"
            memory = self.model.memories.setdefault((claim.route, claim.timeline), {})
            for key, (timestamp_ms, _) in records.items():
                memory[key] = max(memory.get(key, -1), timestamp_ms)
            for key in sorted(memory, key=lambda key: (-memory[key], key))[REMEMBERED:]:
                del memory[key]
        self.saw(answer)

    @rule(
        wait_ms=st.sampled_from([0, 0, 20, 2000]),
        table=tables,
        meanwhile=st.none() | record_lists,
        ending=st.sampled_from(["close", "close", "bury", "fail", "defer", "crash", "hang"]),
        delay_ms=delays,
    )
    def deliver_what_is_due(
        self, wait_ms: int, table: list[int], meanwhile: list[Rec] | None, ending: str, delay_ms: int
    ) -> None:
        """What workers do as a rule, which single steps alone would seldom come to."""
        self.time_passes(wait_ms)
        for claim in self.claim_from([2], list(INCREMENTS_MS)):
            of = self.model.timelines[claim.route, claim.timeline]
            self.open_now(claim, of, table)
            if of.digest is None:
                continue
            if meanwhile:
                self.file(claim.route, meanwhile, 0, 0)
                self.batches.append((claim.route, meanwhile))
            if ending in {"close", "bury"}:
                digest_id = of.digest.id
                for _ in range(1 + self.numbers % 2):  # now and then it is said twice
                    self.end(claim, of, digest_id, ending == "bury", (delay_ms, 0))
            elif ending in {"fail", "defer"}:
                self.wait_again(claim, of, delay_ms, int(ending == "defer"))
        if ending == "hang":
            self.time_passes(LEASE_MS)
            self.maintenance(500)

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data())
    def drop_dead(self, data: st.DataObject) -> None:
        digest_id = data.draw(st.sampled_from(sorted(self.model.dead)))
        route, _, records = self.model.dead.pop(digest_id)
        assert self.store.drop_dead(digest_id, route) == ("dropped", len(records))
        self.model.count(route, "buried", -len(records))
        self.model.count(route, "deleted", len(records))
        assert self.store.drop_dead(digest_id, route) == ("unknown", None)

    @rule()
    def redis_forgets_the_scripts(self) -> None:
        self.store.command("SCRIPT", "FLUSH")

    # -- always

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        contents = self.store.contents()
        assert contents == self.model.contents(self.store)
        assert inconsistencies(self.store.tag, contents) == []

    def teardown(self) -> None:
        """With a healthy worker all goes out in bounded steps, and nothing stays but ledgers, memories and the dead."""
        self.store.now_ms = self.now_ms + 10 * 86_400_000
        self.maintenance(500)
        for _ in range(3 * LIMIT):
            for claim in self.claim_from([500], list(INCREMENTS_MS)):
                of = self.model.timelines[claim.route, claim.timeline]
                self.open_now(claim, of, [0])
                if of.digest is not None:
                    self.end(claim, of, of.digest.id, False, (0, 0))
            if not self.model.timelines:
                break
        self.redis_holds_what_the_model_holds()
        kinds = {name.removeprefix(self.store.tag).split(b":")[0] for name in self.store.contents()}
        assert kinds <= {b"c", b"n", b"m", b"dead", b"di", b"dv"}


def test_redis_holds_what_a_model_of_timelines_holds(shared_redis: RedisServer) -> None:
    # A deep run has more of them, but ends before it is taken for one that hangs.
    longer = min(10, settings().max_examples // settings.get_profile("normal").max_examples)
    runs = settings(max_examples=EXAMPLES * max(1, longer), stateful_step_count=50)
    with shared_redis.client() as client:
        TimelinesBesideModel.server_store = Scripts(client)
        seen: Counter[str] = Counter()
        TimelinesBesideModel.seen = seen
        run_state_machine_as_test(TimelinesBesideModel, settings=runs)
    # Else it would have found nothing because it did nothing.
    for what in (
        "added", "superseded", "over_capacity", "over_timelines", "duplicates", "repeated", "redelivered", "claimed",
        "opened", "opened again", "closed", "buried", "already", "stale", "forgotten", "lease ran out",
    ):  # fmt: skip
        assert seen[what] >= runs.max_examples // 10, f"{what}: {seen}"
