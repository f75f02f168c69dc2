"""A random walk over all scripts that change something, in which any call may stop before any of its writes.

A `Walk` plays stories. In each of them daemons, nsqd and operators do what they do, in a random order. A call that was
cut off is made again as its caller would make it, at once, later or never; upkeep comes in between. At the end every
call goes through, all that waits goes out, and the story checks what is left:

- every event that was acknowledged is in a digest that a receiver got, in a dead digest, or was superseded by a newer
  one of its key that is; or an operator removed it;
- an id is one set of records for ever, each with its own value, and no record is shown under two ids without a reason;
- nothing is left that belongs to no timeline and no dead digest, and each ledger says what is there.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import redis

from support.cutting_off import CutOff, Interruptible
from support.store import KINDS_THAT_STAY, LEASE_MS, NOW_MS, Claim, End, Opened, Rec, inconsistencies

T = TypeVar("T")

ROUTES = ("r", "new")
TIMELINES = (b"t", b"u")
KEYS = (b"a", b"b", b"c")
HOUR_MS = 3_600_000
STEPS = 30
CUT_SHARE = 0.3
MOST_WRITES = (5, 10, 30)
MOST_ROUNDS = 40


class Found(AssertionError):
    """What a story found. Its message has the seed of the story and the calls in it."""


class _TwoCuts(Exception):
    """An open was cut off between its two RENAMEs. After it an add of an older event of a key was cut off before it
    took its value back: the older value stands in the place of the newer one. Two commands have to fail, each at one
    place, so this is counted and not mended."""


@dataclass
class Walk:
    """`seen` counts stories, cuts, events, and what happened how often."""

    client: redis.Redis
    seen: Counter[str] = field(default_factory=Counter)

    def play(self, seed: int) -> None:
        story = _Story(self.client, random.Random(seed), self.seen)
        try:
            story.play()
        except _TwoCuts:
            self.seen["an older value after two cuts"] += 1
        except Exception as error:
            calls = "\n".join(story.told)
            raise Found(f"seed {seed}: {type(error).__name__}: {error}\n{calls}") from error
        self.seen["stories"] += 1


@dataclass
class _Delivery:
    claim: Claim
    opened: Opened
    is_sent: bool


class _Story:
    def __init__(self, client: redis.Redis, rng: random.Random, seen: Counter[str]) -> None:
        client.flushall()
        self.store, self.rng, self.seen = Interruptible(client), rng, seen
        self.is_cutting = True
        self.merge_capacity = rng.choice([0, 0, 10])
        self.has_ends = rng.random() < 0.2
        self.told: list[str] = []
        self.events: dict[bytes, tuple[bytes, bytes, int]] = {}
        """Timeline, key and timestamp by value."""
        self.filed: set[bytes] = set()
        self.unacknowledged: list[tuple[str, list[Rec]]] = []
        self.half_opened: set[bytes] = set()
        """Timelines of opens that were cut off."""
        self.half_filed: set[bytes] = set()
        """Values of adds that were cut off."""
        self.claims: list[Claim] = []
        self.deliveries: list[_Delivery] = []
        self.bodies: dict[str, frozenset[bytes]] = {}
        """By id the values that a daemon read; those in `sent` a receiver got."""
        self.sent: set[str] = set()
        self.removed: set[bytes] = set()
        """Values that an operator removed."""
        self.moved: set[bytes] = set()
        """Timelines of which a record may be shown under two ids."""
        self.asked: list[Callable[[], Any]] = []
        """Calls of operators that were cut off, to be made again."""
        self.cursors: defaultdict[str, bytes] = defaultdict(lambda: b"all")
        self.minted = 0

    def mint(self, what: str) -> str:
        self.minted += 1
        return f"{what}-{self.minted}"

    def tell(self, *words: object) -> None:
        self.told.append(" ".join(map(str, words)))

    def call(self, what: str, make: Callable[[], T]) -> T:
        """Makes a call, which may be cut off."""
        writes = None
        if self.is_cutting and self.rng.random() < CUT_SHARE:
            writes = self.rng.randrange(self.rng.choice(MOST_WRITES))
            self.store.cut_off_after(writes)
        self.seen["calls"] += 1
        try:
            answer = make()
        except CutOff:
            self.seen["cuts"] += 1
            self.seen[f"cut off: {what.split(maxsplit=1)[0]}"] += 1
            self.tell(what, "CUT OFF after", writes)
            raise
        finally:
            self.store.cut_off_never()
        self.tell(what, "->", answer)
        return answer

    def tried(self, what: str, make: Callable[[], T], *, again: float = 0.5) -> T | None:
        """The same, and made again at once by some callers. None: it was cut off, and the caller is gone."""
        while True:
            try:
                return self.call(what, make)
            except CutOff:
                if self.rng.random() >= again:
                    return None

    # -- the story

    def play(self) -> None:
        acts = [
            (self.add, 6), (self.redeliver, 3), (self.claim, 5), (self.open, 6), (self.finish, 6), (self.upkeep, 3),
            (self.adopt, 1), (self.revive, 1), (self.drop, 0.5), (self.operate, 1), (self.ask_again, 1),
        ]  # fmt: skip
        chosen = self.rng.choices([act for act, _ in acts], [weight for _, weight in acts], k=STEPS)
        for act in chosen:
            self.store.now_ms = (self.store.now_ms or 0) + self.rng.choice([0, 1, 50, LEASE_MS + 1])
            act()
        self.is_cutting = False
        self.tell("-- nothing is cut off any more")
        for act in self.asked:
            act()
        self.go_on()
        self.check()

    def add(self) -> None:
        route = self.rng.choice(ROUTES)
        records = []
        for _ in range(self.rng.randrange(1, 4)):
            timeline, key = self.rng.choice(TIMELINES), self.rng.choice(KEYS)
            timestamp_ms, value = NOW_MS + self.rng.randrange(6), self.mint("event").encode()
            self.events[value] = timeline, key, timestamp_ms
            records.append(Rec(timeline, key, timestamp_ms, value, urgent=self.rng.random() < 0.1))
        self.seen["events"] += len(records)
        self.file(route, records)

    def file(self, route: str, records: list[Rec]) -> None:
        wait_ms = self.rng.choice([0, 0, 20])
        try:
            self.call(
                f"add {route} {[record[:6] for record in records]}",
                lambda: self.store.add(*records, route=route, base_ms=(self.store.now_ms or 0) + wait_ms),
            )
            self.filed |= {record.value for record in records}
        except CutOff:
            self.half_filed |= {record.value for record in records}
            self.unacknowledged.append((route, [record._replace(repeat=True) for record in records]))

    def redeliver(self) -> None:
        if self.unacknowledged:
            route, records = self.unacknowledged.pop(self.rng.randrange(len(self.unacknowledged)))
            self.file(route, records)

    def claim(self) -> None:
        token, routes = self.mint("token"), [(route, 1, 0) for route in ROUTES]
        try:
            claimed = self.call("claim", lambda: self.store.claim([self.rng.randrange(1, 4)], routes, token))
        except CutOff:
            if self.rng.random() < 0.5:
                return
            again = self.tried("claim_again", lambda: self.store.claim_again(token, ROUTES))
            if again is None:
                return
            claimed = again
        self.claims += claimed.claims

    def open(self) -> None:
        some = self.rng.sample(self.claims, min(len(self.claims), self.rng.randrange(1, 4)))
        self.claims = [claim for claim in self.claims if claim not in some]
        openings = [(claim, self.mint("digest")) for claim in dict.fromkeys(some)]
        if not openings:
            return
        capacity = self.merge_capacity
        before = self.seen["cut off: open"]
        opened = self.tried(
            f"open {openings}", lambda: self.store.open_many(openings, merge_capacity=capacity), again=0.6
        )
        if self.seen["cut off: open"] > before:
            self.half_opened |= {claim.timeline for claim, _ in openings}
        for (claim, _), answer in zip(openings, opened or [], strict=False):
            if isinstance(answer, Opened):
                self.read(claim, answer, is_sent=self.rng.random() < 0.7)
            elif answer == "burying":
                self.bury_again(claim)
            elif answer == "reviving":
                self.revive_again(claim)
            elif answer not in {"stale", "empty"}:
                raise AssertionError(answer)

    def bury_again(self, claim: Claim) -> None:
        """As `Digests.open` does."""
        digest_id = self.store.head(claim.timeline, claim.route)[b"id"].decode()
        ending = self.store.burying(claim, digest_id, base_ms=self.store.now_ms or 0, details=b"")
        self.tried(f"bury again {digest_id}", lambda: self.store.finish(ending))

    def revive_again(self, claim: Claim) -> None:
        """As `Digests.open` does."""
        _, digest_id, timeline = claim.timeline.decode().split("\x01")
        self.tried(f"revive again {digest_id}", lambda: self.store.revive(digest_id, timeline.encode(), claim.route))

    def read(self, claim: Claim, opened: Opened, *, is_sent: bool) -> None:
        index, values = self.store.keys("digest digest-values", claim.route, claim.timeline)
        rows: Any = self.store.client.zrange(index, 0, -1, withscores=True)
        texts = self.store.command("HMGET", values, *(key for key, _ in rows))
        timeline = claim.timeline.rpartition(b"\x01")[2]
        assert len(rows) == opened.total, f"{opened.id} says {opened.total}, and has {len(rows)}"
        for (key, score), value in zip(rows, texts, strict=True):
            assert value is not None, f"{opened.id}: the value of {key!r} is lost"
            *of, timestamp_ms = self.events[value]
            # An add that was cut off may have left the value of a newer event in the place of an older one.
            if timestamp_ms < -score and value in self.half_filed and timeline in self.half_opened:
                raise _TwoCuts
            is_own = timestamp_ms == -score or (timestamp_ms > -score and value in self.half_filed)
            assert (*of, is_own) == (timeline, key, True), f"{opened.id}: {key!r} {int(-score)} with {value!r}"
        body = frozenset(texts)
        assert self.bodies.setdefault(opened.id, body) == body, f"{opened.id} is another digest now"
        if is_sent:
            self.sent.add(opened.id)
        self.deliveries.append(_Delivery(claim, opened, is_sent))
        self.seen["digests"] += 1

    def finish(self) -> None:
        some = self.rng.sample(self.deliveries, min(len(self.deliveries), self.rng.randrange(1, 4)))
        self.deliveries = [each for each in self.deliveries if each not in some]
        endings: list[End] = []
        for each in some:
            base_ms = (self.store.now_ms or 0) + self.rng.choice([0, 20])
            memory_ms = 0 if each.claim.timeline.startswith(b"\x01") else 600_000
            if each.is_sent and self.rng.random() < 0.7:
                endings.append(self.store.closing(each.claim, each.opened.id, base_ms=base_ms, remember_ms=memory_ms))
            elif self.rng.random() < 0.5:
                endings.append(self.store.failing(each.claim, base_ms, is_retry=self.rng.random() < 0.3))
            else:
                endings.append(
                    self.store.burying(
                        each.claim, each.opened.id, base_ms=base_ms, remember_ms=memory_ms,
                        details=each.claim.route.encode() + b" " + each.claim.timeline,
                    )
                )  # fmt: skip
        if endings:
            words = [(end.kind, end.claim.route, end.claim.timeline, end.digest_id) for end in endings]
            self.tried(f"finish {words}", lambda: self.store.finish(*endings), again=0.6)

    # -- upkeep

    def upkeep(self) -> None:
        cursors = dict(self.cursors)
        done = self.tried("maintenance", lambda: self.store.maintained(ROUTES, cursors=cursors))
        if done is None:
            return
        for route in ROUTES:
            self.cursors[route], is_off = done.more.get(route, (b"0", False))
            if is_off:
                self.mend(route)
        if done.miscounted:
            self.tried("census", lambda: self.store.census(ROUTES))
        self.tried("turn", self.store.turn)

    def mend(self, route: str) -> None:
        """As `Upkeep` does."""
        kept = {each.decode() for each in self.store.command("HKEYS", self.store.key("dead:details"))}
        for digest_id in set(self.dead()) - kept:
            self.tried(f"drop_dead {digest_id}, of which a name is left", partial(self.store.drop_dead, digest_id, ""))
        buried = sum(self.store.command("ZCARD", self.store.key("dead-set", each)) for each in self.dead(route))
        self.tried(f"mend {route}", lambda: self.store.mend(self.store.schedules(route), route, buried))

    def dead(self, route: str = "") -> list[str]:
        """The ids of dead digests, those of a route only if it is named."""
        details = self.store.command("HGETALL", self.store.key("dead:details"))
        ids = self.store.command("ZRANGE", self.store.key("dead"), 0, -1)
        return [each.decode() for each in ids if not route or details.get(each, b"").split(b" ")[0].decode() == route]

    # -- operators

    def ask_again(self) -> None:
        if self.asked:
            self.asked.pop(self.rng.randrange(len(self.asked)))()

    def operator(self, what: str, make: Callable[[], object]) -> None:
        """An operator's call. If it is cut off, most operators make it again."""
        try:
            self.call(what, make)
        except CutOff:
            if self.rng.random() < 0.8:
                self.asked.append(lambda: self.operator(what, make))

    def adopt(self) -> None:
        route, timeline = self.rng.choice(ROUTES), self.rng.choice(TIMELINES)
        to = ROUTES[1 - ROUTES.index(route)]
        self.moved.add(timeline)

        def adopt() -> object:
            # A copy that is cut off may leave the value of a newer record in the place of an older one.
            self.half_filed |= {value for value, (of, _, _) in self.events.items() if of == timeline}
            return self.store.adopt(timeline, to, route)

        self.operator(f"adopt {timeline!r} {route}->{to}", adopt)

    def some_dead(self) -> tuple[str, str, bytes] | None:
        """Id, route and timeline of a dead digest, by its details."""
        ids = self.dead()
        if not ids:
            return None
        digest_id = self.rng.choice(ids)
        details = self.store.command("HGET", self.store.key("dead:details"), digest_id)
        if details is None:
            return digest_id, "", b""
        route, _, timeline = details.partition(b" ")
        return digest_id, route.decode(), timeline.rpartition(b"\x01")[2]

    def revive(self) -> None:
        if (found := self.some_dead()) is not None and found[1]:
            digest_id, route, timeline = found
            self.operator(f"revive {digest_id}", lambda: self.store.revive(digest_id, timeline, route))

    def drop(self) -> None:
        if (found := self.some_dead()) is not None:
            digest_id, route, timeline = found
            self.removed |= self.bodies.get(digest_id, frozenset())
            self.operator(f"drop_dead {digest_id}", lambda: self.store.drop_dead(digest_id, route, timeline=timeline))

    def operate(self) -> None:
        route, timeline, now_ms = self.rng.choice(ROUTES), self.rng.choice(TIMELINES), self.store.now_ms or 0
        what = self.rng.choice(["flush", "delete", "snooze", "wake", "rescore"])
        if what == "flush":
            self.operator(f"flush {timeline!r}", lambda: self.store.flush(timeline, route))
        elif what == "delete":
            self.operator(f"delete {timeline!r}", lambda: self.delete(timeline, route))
        elif what == "rescore":
            asked = (timeline, "", now_ms + 10, now_ms + 10)
            self.operator(f"rescore {timeline!r}", lambda: self.store.rescore(asked, route=route, remember="policy"))
        else:
            kind, until_ms = ("snooze", now_ms + 100) if what == "snooze" else ("", 0)
            self.operator(
                f"{what} {timeline!r}", lambda: self.store.hold(timeline, kind, until_ms, by="ada", route=route)
            )

    def delete(self, timeline: bytes, route: str) -> object:
        self.moved.add(timeline)
        self.removed |= {value for value, (of, _, _) in self.events.items() if of == timeline}
        return self.store.delete(timeline, route)

    # -- the end

    def go_on(self) -> None:
        """All that waits goes out."""
        for _ in range(MOST_ROUNDS):
            self.store.now_ms = (self.store.now_ms or 0) + LEASE_MS + HOUR_MS
            self.claims, self.deliveries = [], []
            while self.unacknowledged:
                self.redeliver()
            self.upkeep()
            claimed = self.store.claim([500], [(route, 1, 0) for route in ROUTES], self.mint("token")).claims
            for claim in claimed:
                self.deliver(claim)
            if not claimed and not any(self.store.schedules(route) for route in ROUTES):
                self.upkeep()
                self.upkeep()
                return
        raise AssertionError("timelines never come to an end")

    def deliver(self, claim: Claim) -> None:
        opened = self.store.open(claim, self.mint("digest"), merge_capacity=self.merge_capacity)
        self.tell("open", claim, "->", opened)
        if opened == "burying":
            self.bury_again(claim)
        elif opened == "reviving":
            self.revive_again(claim)
        elif isinstance(opened, Opened):
            self.read(claim, opened, is_sent=True)
            memory_ms = 0 if claim.timeline.startswith(b"\x01") else 600_000
            word = self.store.close(claim, opened.id, base_ms=self.store.now_ms or 0, remember_ms=memory_ms)
            assert word == "closed", word
        else:
            assert opened == "empty", opened

    def check(self) -> None:
        contents: dict[bytes, Any] = dict(self.store.contents())
        for name, texts in contents.items():
            if b"dead-values:" in name:  # the value of an add that was cut off went along, without a record
                own = contents.get(name.replace(b"dead-values:", b"dead-set:"), {})
                contents[name] = {
                    key: value for key, value in texts.items() if key in own or value not in self.half_filed
                }
        assert (wrong := inconsistencies(self.store.tag, contents)) == [], wrong
        kinds = {name.split(b":")[2] for name in contents} - {b"holds"}
        assert kinds <= KINDS_THAT_STAY, kinds
        details = self.store.command("HKEYS", self.store.key("dead:details"))
        dead = {each.decode() for each in details}
        assert dead == set(self.dead()), f"details of {sorted(dead)}, and {sorted(self.dead())} are listed"
        for route in ROUTES:
            unfinished = self.store.unfinished(route)
            assert not unfinished, f"the ledger of {route} is not exact: {unfinished}"
            buried = sum(self.store.command("ZCARD", self.store.key("dead-set", each)) for each in self.dead(route))
            assert self.store.ledger(route).get("buried", 0) == buried, f"{route}: {buried} records are dead"
        self.check_events(dead)

    def check_events(self, dead: set[str]) -> None:
        sets = {each for each in dead if self.store.command("EXISTS", self.store.key("dead-set", each))}
        kept = {value for each in self.sent | sets for value in self.bodies[each]} | self.removed
        newest: dict[tuple[bytes, bytes], int] = {}
        for value in kept:
            timeline, key, timestamp_ms = self.events[value]
            newest[timeline, key] = max(newest.get((timeline, key), 0), timestamp_ms)
        lost = [
            value for value in self.filed - kept if newest.get(self.events[value][:2], 0) < self.events[value][2]
        ]  # fmt: skip
        assert not lost, f"lost: {[(value, *self.events[value]) for value in lost]}"
        if not self.merge_capacity:
            times = Counter(value for each in self.sent for value in self.bodies[each])
            twice = [
                value for value, count in times.items()
                if count > 1 and self.events[value][0] not in self.moved and value not in self.half_filed
            ]  # fmt: skip
            assert not twice, f"shown under two ids: {twice}"
