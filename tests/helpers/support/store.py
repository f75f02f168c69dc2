"""The Lua scripts by themselves, against a real Redis: a blocking call for each, with the instant of the test's choice.

What a script takes and answers is spelled here from its header and not taken from nsqdigest.timelines, so that the two
check each other. A call may be watched (MONITOR): then every key it touches must be declared, and its first write must
be one that a full Redis refuses (add) or does not refuse (all others); `Watch.complaints` says what was not so.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast

import pytest
import redis

from nsqdigest.store import scripts

NOW_MS = 1_700_000_000_000
LEASE_MS = 60_000
KINDS_THAT_STAY = {
    b"ledger", b"count", b"shown", b"ends", b"exempt", b"dead", b"dead-set", b"dead-values", b"layout", b"routes",
    b"policies", b"turns", b"daemons",
}  # fmt: skip
"""Kinds of keys that are left when nothing waits any more."""
EXEMPT_MS = 1
"""Base and bound of a timeline that is due at once, whatever its policy."""
SCHEDULE = struct.Struct(">QQI")
REFUSED_WHEN_FULL = {"add"}
ROUTE_KINDS = "waiting leased tokens schedule heads losses ledger"
TIMELINE_KINDS = "set values digest digest-values shown"


class Rec(NamedTuple):
    """A record as add takes it. `repeat`: it may have been filed, even delivered, before. `urgent`: its timeline is due
    at once. `muted`: it is counted and not kept. `end`: 8: it ends the record of its key, 24: silently."""

    timeline: bytes
    key: bytes
    timestamp_ms: float
    value: bytes = b"{}"
    repeat: bool = False
    urgent: bool = False
    muted: bool = False
    end: int = 0


class Added(NamedTuple):
    now_ms: int
    added: int
    superseded: int
    over_capacity: int
    over_timelines: int
    duplicates: int
    repeated: int
    due_at_once: list[int]
    counted: int
    muted: int = 0
    cancelled: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """Those of the counters that are not 0."""
        names = (*self._fields[1:7], "cancelled")
        return {name: value for name in names if (value := getattr(self, name))}


class Claim(NamedTuple):
    route: str
    timeline: bytes
    due_ms: int
    token: str


class Claimed(NamedTuple):
    now_ms: int
    next_ms: int | None
    claims: list[Claim]

    @property
    def timelines(self) -> list[bytes]:
        return [claim.timeline for claim in self.claims]


class Maintained(NamedTuple):
    ran_out: int
    brought_back: int
    found: int
    miscounted: int
    more: dict[str, tuple[bytes, bool]]
    """By route: where its census goes on, and whether its ledger is not exact."""
    is_cut_short: bool


class Opened(NamedTuple):
    word: str
    now_ms: int
    id: str
    opened_ms: int
    iteration: int
    total: int
    superseded: int
    over_capacity: int
    next_earliest_ms: int
    since_ms: int
    attempts: int
    tries: int
    cancelled: int = 0


Head = dict[bytes, bytes]


class End(NamedTuple):
    """What became of one digest, as finish takes it."""

    kind: str
    claim: Claim
    digest_id: str
    base_ms: int
    bound_ms: int
    more: bytes | str | int
    memory: tuple[int, int] | None = None
    """How long, and how many keys at most, its route remembers: finish takes one of each route."""


def head_of(text: bytes | None) -> Head:
    """The fields of a head."""
    return dict(field.split(b"=", 1) for field in (text or b"").split())


def whole(score: float) -> Any:
    """Instants are whole milliseconds, or microseconds; the record of an end has half of one more."""
    if 2 * score != int(2 * score):
        raise ValueError(f"{score} is neither a whole number nor a half more")
    return int(score) if score == int(score) else score


def own_timeline(digest_id: str, timeline: bytes) -> bytes:
    """What a revived digest is called among the timelines."""
    return b"\x01" + digest_id.encode() + b"\x01" + timeline


def batch_of(
    records: Iterable[Rec], *, is_special: bool = False
) -> tuple[list[bytes], list[bytes], bytes, list[bytes]]:
    """Timelines of add's first kind, those of its second, the batch in its format, and the values."""
    by_timeline: dict[bytes, list[Rec]] = {}
    for record in records:
        by_timeline.setdefault(record.timeline, []).append(record)
    second = [name for name, theirs in by_timeline.items() if is_special or any(any(each[4:]) for each in theirs)]
    first = [name for name in by_timeline if name not in second]
    packed = bytearray()
    values: list[bytes] = []
    records = [record for name in (*first, *second) for record in by_timeline[name]]
    for name in (*first, *second):
        packed += struct.pack(">H", len(by_timeline[name]))
    for record in records:
        packed += struct.pack(">H", len(record.key)) + record.key + b"%017d" % -record.timestamp_ms
        values.append(record.value)
    for name in second:
        packed += bytes(
            record.repeat + 2 * record.urgent + 4 * record.muted + record.end for record in by_timeline[name]
        )
    return first, second, bytes(packed), values


class Scripts:
    """Calls scripts on one partition of one namespace. `now_ms` is what they are told; None: Redis' own clock."""

    def __init__(self, client: redis.Redis, namespace: str = "test", partition: int = 0) -> None:
        self.client = client
        self.command: Any = cast(Any, client).execute_command  # untyped in redis-py
        self.tag = f"{{{namespace}:{partition}}}:".encode()
        self.now_ms: int | None = NOW_MS
        self.watch: Watch | None = None
        self.is_sound = True
        self.forgotten = 0
        """How many keys the memories let go for want of room in the last call of finish."""

    # -- keys

    def key(self, kind: str, route: str = "", timeline: bytes | None = None) -> bytes:
        name = self.tag + kind.encode()
        if route:
            name += b":" + route.encode()
        return name if timeline is None else name + b":" + timeline

    def keys(self, kinds: str, route: str, timeline: bytes | None = None) -> list[bytes]:
        return [self.key(kind, route, timeline) for kind in kinds.split()]

    def fixed(self, route: str) -> list[bytes]:
        """In the order in which each script that takes one route's has them."""
        return [*self.keys(ROUTE_KINDS, route), self.key("count"), self.key("agenda")]

    def all_of(self, route: str, timeline: bytes) -> list[bytes]:
        """What each script on one timeline takes."""
        return [*self.fixed(route), *self.keys(TIMELINE_KINDS, route, timeline)]

    def of_many(self, claims: Sequence[Claim], kinds: str) -> tuple[list[str], list[bytes]]:
        """The routes of the claims, and what a script on many timelines takes: of each the kinds of its own."""
        routes = list(dict.fromkeys(claim.route for claim in claims))
        keys = [key for route in routes for key in self.keys(ROUTE_KINDS, route)]
        keys += [self.key("count"), self.key("agenda")]
        return routes, keys + [key for claim in claims for key in self.keys(kinds, claim.route, claim.timeline)]

    def of_routes(self, routes: Iterable[str]) -> list[bytes]:
        """What the scripts that discover timelines take."""
        kinds = "waiting leased tokens schedule"
        return [*(key for name in routes for key in self.keys(kinds, name)), self.key("agenda"), self.key("exempt")]

    # -- calls

    def run(self, name: str, keys: Sequence[bytes], arguments: Sequence[bytes | str | int]) -> Any:
        script = scripts.load(name)
        command = ("EVALSHA", script.sha, len(keys), *keys, *arguments)
        try:
            answer = self.command(*command)
        except redis.exceptions.NoScriptError:
            self.command("SCRIPT", "LOAD", script.text)
            answer = self.command(*command)
        finally:
            if self.watch is not None:
                self.watch.look(name, keys)
        return answer

    def _now(self) -> bytes:
        return b"" if self.now_ms is None else b"%d" % self.now_ms

    def add(
        self,
        *records: Rec,
        route: str = "r",
        capacity: int = 100,
        increment_ms: int = 0,
        base_ms: int = NOW_MS,
        bound_ms: int | None = None,
        limit: int = 1000,
        ends: tuple[int, int] | None = None,
        zone: tuple[str, int | str, int | str] | None = None,
        is_quiet: bool = False,
    ) -> Added:
        """`ends`: of a route whose records may end others, how long and how many ends are remembered. `zone`: of one
        whose timelines have zones, that of all these records, and base and bound of a timeline that gets it anew.
        `is_quiet`: of one with quiet hours, with an urgent record."""
        first, second, batch, values = batch_of(records, is_special=bool(ends or zone or is_quiet))
        keys = self.fixed(route)
        for timeline in first:
            keys += self.keys("set values", route, timeline)
        for timeline in second:
            keys += self.keys("set values digest shown" + " ends" * (ends is not None), route, timeline)
        name_from = len(self.key("set", route, b""))
        bound_ms = base_ms if bound_ms is None else bound_ms
        keys += [self.key("exempt")] if is_quiet else []
        kind = -(bool(ends) + 2 * bool(zone) + 4 * is_quiet) if ends or zone or is_quiet else len(first)
        numbers = [capacity, increment_ms, base_ms, bound_ms, limit, name_from, kind]
        return Added(*self.run("add", keys, [self._now(), *numbers, batch, *(ends or ()), *(zone or ()), *values]))

    def claim(
        self,
        budgets: Sequence[int] = (500,),
        routes: Sequence[tuple[str, int, int]] = (("r", 1, 0),),
        token: str = "token",
        lease_ms: int = LEASE_MS,
    ) -> Claimed:
        """`routes`: name, number of the budget from 1, increment."""
        keys = self.of_routes(name for name, _, _ in routes)
        tail = [number for _, budget, increment_ms in routes for number in (budget, increment_ms)]
        answer = self.run("claim", keys, [self._now(), lease_ms, token, len(budgets), *budgets, *tail])
        found = zip(answer[2::3], answer[3::3], answer[4::3], strict=True)
        claims = [Claim(routes[number - 1][0], timeline, due, token) for number, timeline, due in found]
        return Claimed(answer[0], int(answer[1]) if answer[1] else None, claims)

    def claim_one(self, timeline: bytes, route: str = "r", token: str = "token", increment_ms: int = 0) -> Claim:
        """The claim on this timeline, which must be due; others that are due are claimed with it."""
        claims = self.claim(routes=[(route, 1, increment_ms)], token=token).claims
        return next(claim for claim in claims if claim.timeline == timeline)

    def open(
        self,
        claim: Claim,
        new_id: str = "id-1",
        next_earliest_ms: Sequence[int] = (NOW_MS + 1000,),
        merge_capacity: int = 0,
    ) -> Opened | str:
        return self.open_many([(claim, new_id)], next_earliest_ms, merge_capacity)[0]

    def open_many(
        self,
        claims: Sequence[tuple[Claim, str]],
        next_earliest_ms: Sequence[int] = (NOW_MS + 1000,),
        merge_capacity: int = 0,
    ) -> list[Opened | str]:
        """Each claim with the id of a new digest. Of one that is not opened the word."""
        routes, keys = self.of_many([claim for claim, _ in claims], "set values digest digest-values")
        arguments: list[bytes | str | int] = [self._now(), len(routes)]
        for route in routes:
            arguments += [len(self.key("set", route, b"")), merge_capacity, len(next_earliest_ms), *next_earliest_ms]
        for claim, new_id in claims:
            arguments += [routes.index(claim.route) + 1, claim.token, 1, new_id]
        now_ms, *answers = self.run("open", keys, arguments)
        return [self._opened(now_ms, word, text) for word, text in zip(answers[::2], answers[1::2], strict=True)]

    def _opened(self, now_ms: int, word: bytes, text: bytes) -> Opened | str:
        if word not in {b"opened", b"again", b"merged"}:
            return word.decode()
        head = head_of(text)
        numbers = (
            int(head[name])
            for name in (
                b"opened",
                b"iteration",
                b"total",
                b"superseded",
                b"capacity",
                b"next",
                b"since",
                b"attempts",
                b"tries",
            )
        )
        return Opened(word.decode(), now_ms, head[b"id"].decode(), *numbers)._replace(
            cancelled=int(head.get(b"cancelled", 0))
        )

    def opened(
        self,
        claim: Claim,
        new_id: str = "id-1",
        next_earliest_ms: Sequence[int] = (NOW_MS + 1000,),
        merge_capacity: int = 0,
    ) -> Opened:
        """The same where it must open."""
        opened = self.open(claim, new_id, next_earliest_ms, merge_capacity=merge_capacity)
        if isinstance(opened, str):
            raise LookupError(opened)
        return opened

    def renew(self, claim: Claim, lease_ms: int = LEASE_MS) -> str:
        arguments: list[bytes | str | int] = [self._now(), claim.timeline, claim.token, lease_ms]
        return self._word(self.run("renew", self.all_of(claim.route, claim.timeline), arguments))

    def finish(self, *ends: End, increment_ms: int = 0) -> tuple[list[str], int]:
        """The words, and how many digests are dead now."""
        routes, keys = self.of_many([end.claim for end in ends], "digest digest-values shown")
        keys += [self.key("dead"), self.key("dead:details"), self.key("exempt")]
        for end in ends:
            if end.kind == "bury":
                keys += self.keys("dead-set dead-values", end.digest_id)
        arguments: list[bytes | str | int] = [self._now(), len(routes), len(ends)]
        for route in routes:
            memory = next((end.memory for end in ends if end.claim.route == route and end.memory), (0, 0))
            arguments += (len(self.key("digest", route, b"")), increment_ms, *memory)
        for end in ends:
            posts = end.more if end.kind in {"wait", "retry"} else 0
            arguments += [routes.index(end.claim.route) + 1, end.kind, end.claim.token, posts]
            arguments += [end.base_ms, end.bound_ms, 1, end.digest_id]
        arguments += [end.more for end in ends if end.kind == "bury"]
        words = [word.decode().partition(" ") for word in self.run("finish", keys, arguments)]
        self.forgotten = sum(int(forgotten or 0) for _, _, forgotten in words)
        has_burials = any(end.kind == "bury" for end in ends)
        return [word for word, _, _ in words], self.client.zcard(self.key("dead")) if has_burials else 0

    @staticmethod
    def closing(
        claim: Claim,
        digest_id: str = "id-1",
        *,
        base_ms: int = NOW_MS + 1000,
        bound_ms: int | None = None,
        remember_ms: int = 600_000,
        remembered: int = 200,
    ) -> End:
        bound_ms = base_ms if bound_ms is None else bound_ms
        return End("close", claim, digest_id, base_ms, bound_ms, "", (remember_ms, remembered))

    @staticmethod
    def failing(claim: Claim, again_ms: int, posts: int = 1, *, is_retry: bool = False) -> End:
        """`is_retry`: of a route with quiet hours."""
        return End("retry" if is_retry else "wait", claim, "", again_ms, again_ms, posts)

    @staticmethod
    def burying(
        claim: Claim,
        digest_id: str = "id-1",
        *,
        base_ms: int = NOW_MS + 1000,
        bound_ms: int | None = None,
        remember_ms: int = 600_000,
        remembered: int = 200,
        details: bytes = b"{}",
    ) -> End:
        bound_ms = base_ms if bound_ms is None else bound_ms
        return End("bury", claim, digest_id, base_ms, bound_ms, details, (remember_ms, remembered))

    def close(self, claim: Claim, digest_id: str = "id-1", *, increment_ms: int = 0, **how: int | None) -> str:
        ending = self.closing(claim, digest_id, **how)  # type: ignore[arg-type]
        return self.finish(ending, increment_ms=increment_ms)[0][0]

    def fail(self, claim: Claim, again_ms: int, posts: int = 1, *, is_retry: bool = False) -> str:
        return self.finish(self.failing(claim, again_ms, posts, is_retry=is_retry))[0][0]

    def bury(
        self, claim: Claim, digest_id: str = "id-1", *, increment_ms: int = 0, details: bytes = b"{}", **how: int | None
    ) -> tuple[str, int | None]:
        """The word, and how many digests are dead now if it is one of them."""
        ending = self.burying(claim, digest_id, details=details, **how)  # type: ignore[arg-type]
        (word,), dead = self.finish(ending, increment_ms=increment_ms)
        return word, dead if word == "buried" else None

    def hold(
        self, timeline: bytes, kind: str, until_ms: int = 0, *, by: str = "", route: str = "r", most: int = 1000
    ) -> list[str]:
        keys = [*self.all_of(route, timeline), self.key("holds")]
        field = route.encode() + b":" + timeline
        words = self.run("hold", keys, [self._now(), timeline, field, kind, until_ms, by, most])
        return [word.decode() for word in words]

    def holds(self) -> dict[bytes, bytes]:
        return dict(self.command("HGETALL", self.key("holds")))

    def drop_dead(
        self, digest_id: str, route: str = "r", may_stay: int | str = "", *, timeline: bytes = b"t"
    ) -> tuple[str, int | None]:
        """`route`: "" where its details are not known."""
        own = own_timeline(digest_id, timeline)
        of_route = [self.key("ledger", route), *self.keys("digest digest-values", route, own)] if route else []
        keys = [*self._dead(digest_id), *of_route]
        answer = self.run("drop_dead", keys, [digest_id, may_stay])
        return self._word(answer), answer[1] if len(answer) > 1 else None

    def maintenance(self, routes: Sequence[str] = ("r",), limit: int = 500) -> int:
        """How many leases ran out."""
        return self.maintained(routes, limit).ran_out

    def maintained(
        self,
        routes: Sequence[str] = ("r",),
        limit: int = 500,
        *,
        longest_ms: int = 1 << 50,
        increment_ms: int = 0,
        longest_lease_ms: int = 1 << 50,
        cursors: Mapping[str, bytes] | None = None,
    ) -> Maintained:
        keys = [
            *(key for name in routes for key in self.keys(ROUTE_KINDS, name)),
            self.key("count"),
            self.key("agenda"),
        ]
        of_routes = [word for name in routes for word in (longest_ms, increment_ms, (cursors or {}).get(name, b"0"))]
        answer = self.run("maintenance", keys, [self._now(), limit, longest_lease_ms, *of_routes])
        more = zip(answer[5::3], answer[6::3], answer[7::3], strict=True)
        ran_out, brought_back, found, miscounted, is_cut_short = answer[:5]
        by_route = {routes[number - 1]: (cursor, bool(off)) for number, cursor, off in more}
        return Maintained(ran_out, brought_back, found, miscounted, by_route, bool(is_cut_short))

    def mend(self, timelines: Sequence[bytes], route: str = "r", buried: int = 0) -> tuple[str, int | None]:
        """The word, and the difference."""
        keys = [*self.fixed(route), *(key for name in timelines for key in self.keys("set digest", route, name))]
        had = self.command("HGET", self.key("ledger", route), "buried") or 0
        answer = self.run("mend", keys, [buried, had, *timelines])
        return self._word(answer), answer[1] if len(answer) > 1 else None

    def rescore(
        self,
        *timelines: tuple[bytes, str, int, int],
        route: str = "r",
        increment_ms: int = 0,
        remember: str = "",
        anchor: str = "0:1",
    ) -> tuple[int, int]:
        """How many are due sooner and later. Each: its name, the id of the digest that ended last, base and bound."""
        keys = [*self.keys("waiting schedule heads", route), self.key("agenda"), self.key("policies")]
        each = [word for timeline in timelines for word in (*timeline, anchor)]
        _, sooner, later = self.run("rescore", keys, [self._now(), increment_ms, route, remember, *each])
        return sooner, later

    def census(self, routes: Sequence[str] = ("r",)) -> int:
        """By how much the count of timelines was off."""
        keys = [self.key("count"), self.key("agenda"), *(self.key("schedule", name) for name in routes)]
        return int(self.run("census", keys, [])[0])

    def claim_again(self, token: str = "token", routes: Sequence[str] = ("r",), lease_ms: int = LEASE_MS) -> Claimed:
        """What a claim with this token took, whose answer was lost."""
        return self.claim((), [(name, 0, 0) for name in routes], token, lease_ms)

    def hello(
        self, schema: int = 4, partitions: int = 1, epoch: str = "epoch", routes: Sequence[str] = ()
    ) -> list[bytes]:
        arguments: list[bytes | str | int] = [self._now(), schema, partitions, epoch, *routes]
        answer: list[bytes] = self.run("hello", [self.key("layout"), self.key("routes")], arguments)
        return answer

    def turn(self, whose: str = "daemons", lasts_ms: int = 1000) -> bool:
        return self.turn_and_ahead(whose, lasts_ms)[0]

    def turn_and_ahead(self, whose: str = "daemons", lasts_ms: int = 1000) -> tuple[bool, int]:
        """And how far ahead of now the latest turn began."""
        has_turn, _, ahead_ms = self.run("turn", [self.key("turns")], [self._now(), whose, lasts_ms])
        return bool(has_turn), ahead_ms

    def bring_back(
        self, back_ms: int, *, latest_ms: int, latest_retry_ms: int | None = None, passed: int = 0, most: int = 500
    ) -> tuple[int, int]:
        """Of route r: how many were looked at, and brought back."""
        keys = [*self.keys("waiting schedule heads", "r"), self.key("agenda")]
        retry_ms = latest_ms if latest_retry_ms is None else latest_retry_ms
        looked_at, brought = self.run("bring_back", keys, [latest_ms, retry_ms, back_ms, passed, most])
        return looked_at, brought

    def check_in(
        self, daemon_id: str = "one", text: str = "{}", known_for_ms: int = 60_000
    ) -> dict[bytes, tuple[int, bytes]]:
        """By id: when it was seen, and what it told."""
        _, *flat = self.run("check_in", [self.key("daemons")], [self._now(), daemon_id, text, known_for_ms])
        return {each: (seen, told) for each, seen, told in zip(flat[::3], flat[1::3], flat[2::3], strict=True)}

    # -- for operators

    def delete(self, timeline: bytes, route: str = "r") -> tuple[str, int | None]:
        """The word, and how many records went."""
        burying, of_dead = self._burial(timeline, route)
        keys = [*self.all_of(route, timeline), self.key("ends", route, timeline), *of_dead]
        answer = self.run("delete", keys, [timeline, burying])
        return self._word(answer), answer[1] if len(answer) > 1 else None

    def flush(self, timeline: bytes, route: str = "r", due: int | str = "") -> str:
        return self._word(self.run("flush", self.all_of(route, timeline), [self._now(), timeline, due]))

    def revive(
        self,
        digest_id: str = "id-1",
        timeline: bytes = b"t",
        route: str = "r",
        *,
        attempts: int = 1,
        opened_ms: int = NOW_MS,
        iteration: int = 1,
        superseded: int = 0,
        over_capacity: int = 0,
        next_earliest_ms: int = NOW_MS + 1000,
        cancelled: int = 0,
    ) -> tuple[str, int | None]:
        """The word, and how many records are on their way again."""
        own = own_timeline(digest_id, timeline)
        keys = [*self.all_of(route, own), *self._dead(digest_id)]
        numbers = [attempts, opened_ms, iteration, superseded, over_capacity, next_earliest_ms, cancelled]
        answer = self.run("revive", keys, [self._now(), digest_id, own, *numbers])
        return self._word(answer), answer[1] if len(answer) > 1 else None

    def adopt(self, timeline: bytes, to: str, route: str = "r", capacity: int = 100) -> tuple[str, int | None]:
        """The word, and how many records went over."""
        burying, of_dead = self._burial(timeline, route)
        keys = [*self.all_of(route, timeline), *self.all_of(to, timeline)]
        keys += [self.key("ends", each, timeline) for each in (route, to)]
        keys += [self.key("holds"), *of_dead]
        fields = [each.encode() + b":" + timeline for each in (route, to)]
        answer = self.run("adopt", keys, [timeline, capacity, *fields, self._now(), burying])
        return self._word(answer), answer[1] if len(answer) > 1 else None

    def _burial(self, timeline: bytes, route: str) -> tuple[bytes, list[bytes]]:
        """The id of a digest whose burial was cut off, and its keys in the dead store."""
        burying = self.head(timeline, route).get(b"burying", b"")
        return burying, [self.key("dead"), self.key("dead:details"), self.key("dead-values:") + burying]

    def audit(self, routes: Sequence[str] = ("r",)) -> tuple[int, dict[str, tuple[int, dict[str, int]]]]:
        """Timelines that are counted, and by route those that are there, and those counters that are not 0."""
        counted, *found = self.run(
            "audit",
            [self.key("count"), *(key for name in routes for key in self.keys("ledger schedule waiting leased", name))],
            [],
        )
        ledgers = [
            (
                there,
                {
                    field.decode(): int(value)
                    for field, value in zip(pairs[::2], pairs[1::2], strict=True)
                    if int(value)
                },
            )
            for there, _, _, *pairs in found
        ]
        return counted, dict(zip(routes, ledgers, strict=True))

    def recount(self, timelines: Sequence[bytes], route: str = "r") -> list[list[int]]:
        """The seven numbers of each."""
        keys = [
            *self.keys("waiting leased schedule heads", route),
            *(key for name in timelines for key in self.keys("set values digest digest-values", route, name)),
        ]
        numbers = self.run("recount", keys, timelines)
        return [numbers[at : at + 7] for at in range(0, len(numbers), 7)]

    def _dead(self, digest_id: str) -> list[bytes]:
        return [self.key("dead"), self.key("dead:details"), *self.keys("dead-set dead-values", digest_id)]

    @staticmethod
    def _word(answer: list[Any]) -> str:
        return str(answer[0].decode())

    # -- what is there

    def dump(self) -> dict[bytes, bytes]:
        """All of the database, byte by byte, and which keys are to expire. Of a hash the sorted fields: its DUMP is in
        the order of a table, which changes while Redis makes that larger."""
        names = sorted(self.command("KEYS", "*"))
        with self.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.dump(name)
                pipeline.pttl(name)
                pipeline.type(name)
            answers = pipeline.execute()
        found = {}
        for name, dumped, left_ms, kind in zip(names, answers[::3], answers[1::3], answers[2::3], strict=True):
            content = repr(sorted(self._hash(name).items())).encode() if kind == b"hash" else dumped
            found[name] = content + (b"" if left_ms < 0 else b" expires")
        return found

    def contents(self) -> dict[bytes, dict[bytes, bytes | int] | bytes]:
        """All of the database: hashes by field, sorted sets by member (with whole scores), strings as they are."""
        names = self.command("KEYS", "*")
        with self.client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.type(name)
            types = pipeline.execute()
            for name, kind in zip(names, types, strict=True):
                if kind == b"hash":
                    pipeline.hgetall(name)
                elif kind == b"zset":
                    pipeline.zrange(name, 0, -1, withscores=True)
                else:
                    pipeline.get(name)
            found = pipeline.execute()
        return {
            name: {member: whole(score) for member, score in value} if kind == b"zset" else value
            for name, kind, value in zip(names, types, found, strict=True)
        }

    def waiting(self, route: str = "r") -> dict[bytes, int]:
        return self._scores(self.key("waiting", route))

    def leased(self, route: str = "r") -> dict[bytes, int]:
        return self._scores(self.key("leased", route))

    def tokens(self, route: str = "r") -> dict[bytes, bytes]:
        return self._hash(self.key("tokens", route))

    def schedule(self, timeline: bytes, route: str = "r") -> tuple[int, int, int] | None:
        """Base, bound, records."""
        packed = self.command("HGET", self.key("schedule", route), timeline)
        return None if packed is None else SCHEDULE.unpack(packed)

    def schedules(self, route: str = "r") -> list[bytes]:
        """The timelines that are known."""
        return list(self._hash(self.key("schedule", route)))

    def open_set(self, timeline: bytes, route: str = "r") -> dict[bytes, tuple[int, bytes]]:
        return self._records("set values", timeline, route)

    def snapshot(self, timeline: bytes, route: str = "r") -> dict[bytes, tuple[int, bytes]]:
        return self._records("digest digest-values", timeline, route)

    def memory(self, timeline: bytes, route: str = "r") -> dict[bytes, int]:
        return {key: -score for key, score in self._scores(self.key("shown", route, timeline)).items()}

    def head(self, timeline: bytes, route: str = "r") -> dict[bytes, bytes]:
        return head_of(self.command("HGET", self.key("heads", route), timeline))

    def dead(self, digest_id: str) -> dict[bytes, tuple[int, bytes]]:
        index, values = self.keys("dead-set dead-values", digest_id)
        return self._joined(self._scores(index), self._hash(values))

    def ledger(self, route: str = "r") -> dict[str, int]:
        """Those of the counters that are not 0."""
        counters = self._hash(self.key("ledger", route))
        return {field.decode(): int(value) for field, value in counters.items() if int(value)}

    def unfinished(self, route: str = "r") -> dict[str, int]:
        """Calls that were cut off before they counted, by the field in which they would have."""
        return {field: count for field, count in self.ledger(route).items() if field.startswith("unfinished:")}

    def losses(self, route: str = "r") -> dict[bytes, int]:
        return {field: int(value) for field, value in self._hash(self.key("losses", route)).items()}

    def timeline_count(self) -> int:
        return int(self.command("GET", self.key("count")) or 0)

    def _records(self, kinds: str, timeline: bytes, route: str) -> dict[bytes, tuple[int, bytes]]:
        index, values = self.keys(kinds, route, timeline)
        return self._joined(self._scores(index), self._hash(values))

    @staticmethod
    def _joined(scores: Mapping[bytes, float], values: Mapping[bytes, bytes]) -> dict[bytes, tuple[int, bytes]]:
        if scores.keys() != values.keys():
            raise LookupError(f"an index has {sorted(scores)}, its values are of {sorted(values)}")
        return {key: (math.floor(-score), values[key]) for key, score in scores.items()}

    def _scores(self, key: bytes) -> dict[bytes, Any]:
        found: Any = self.client.zrange(key, 0, -1, withscores=True)
        return {member: whole(score) for member, score in found}

    def _hash(self, key: bytes) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.command("HGETALL", key)
        return found


# -- watching


class Watch:
    """What scripts do, as MONITOR shows it."""

    _MARK = "end of the call"
    _WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')
    _ESCAPE = re.compile(rb'\\(x[0-9a-f]{2}|[nrtab"\\])')
    _ESCAPED: ClassVar = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b'"': b'"', b"\\": b"\\"}
    _ALL_KEYS: ClassVar = {b"UNLINK", b"RENAME", b"RENAMENX", b"EXISTS"}
    _NO_KEYS: ClassVar = {b"TIME"}
    _known: ClassVar[list[tuple[set[bytes], set[bytes]]]] = []

    def __init__(self, client: redis.Redis) -> None:
        untyped = cast(Any, client)  # as these parts of redis-py are
        self._pool = untyped.connection_pool
        self._command = untyped.execute_command
        self._connection = self._pool.get_connection()
        self._connection.send_command("MONITOR")
        self._connection.read_response()
        self._writes, self._refused_when_full = self._flagged()
        self.complaints: list[str] = []
        self.touched: dict[str, set[bytes]] = {}

    def _flagged(self) -> tuple[set[bytes], set[bytes]]:
        """The commands that write, and of them those that a full Redis refuses. Asked once: the answer is long."""
        if not self._known:
            flags = {name.upper().encode(): set(entry["flags"]) for name, entry in self._command("COMMAND").items()}
            writes = {name for name, said in flags.items() if "write" in said}
            refused_when_full = {name for name, said in flags.items() if "denyoom" in said}
            if b"ZREM" not in writes or b"ZADD" not in refused_when_full:
                raise LookupError("COMMAND did not say what Redis refuses when it is full")
            self._known.append((writes, refused_when_full))
        return self._known[0]

    def end(self) -> None:
        self._connection.disconnect()
        self._pool.release(self._connection)

    def skip(self) -> None:
        """What scripts of the test's own did is not looked at."""
        for _ in self._calls():
            pass

    def look(self, name: str, declared: Sequence[bytes]) -> None:
        """To be called after each call of a script."""
        wrote = False
        for words in self._calls():
            command = words[0].upper()
            keys = self._keys(command, words[1:])
            self.touched.setdefault(name, set()).update(keys)
            for key in keys:
                if key not in declared:
                    self.complaints.append(f"{name}: {command!r} touches {key!r}, which is not declared")
            if command in self._writes and not wrote:
                wrote = True
                if (command in self._refused_when_full) != (name in REFUSED_WHEN_FULL):
                    self.complaints.append(f"{name}: its first write is {words!r}")

    def _calls(self) -> Iterator[list[bytes]]:
        """The commands that scripts sent since the last look."""
        self._command("ECHO", self._MARK)
        while True:
            line = self._connection.read_response(disable_decoding=True)
            words = [self._plain(word) for word in self._WORD.findall(line)]
            if words[0].upper() == b"ECHO" and words[1] == self._MARK.encode():
                return
            if line.split(b"]", 1)[0].endswith(b" lua"):
                yield words

    @classmethod
    def _plain(cls, word: bytes) -> bytes:
        def unescaped(match: re.Match[bytes]) -> bytes:
            code = match.group(1)
            return bytes([int(code[1:], 16)]) if code[:1] == b"x" else cls._ESCAPED[code]

        return cls._ESCAPE.sub(unescaped, word)

    def _keys(self, command: bytes, arguments: list[bytes]) -> list[bytes]:
        if command in self._NO_KEYS:
            return []
        if command in self._ALL_KEYS:
            return arguments
        return arguments[:1]


# -- what must hold whatever was called


def inconsistencies(tag: bytes, contents: Mapping[bytes, Any]) -> list[str]:
    """What is wrong among the keys of one partition: places of timelines, index against values, counts, ledgers."""
    said: list[str] = []
    by_kind: dict[bytes, dict[bytes, Any]] = {}
    for name, value in contents.items():
        kind, _, rest = name.removeprefix(tag).partition(b":")
        by_kind.setdefault(kind, {})[rest] = value

    def of(kind: bytes, rest: bytes) -> dict[bytes, Any]:
        found: dict[bytes, Any] = by_kind.get(kind, {}).get(rest, {})
        return found

    def must(holds: bool, what: str) -> None:
        if not holds:
            said.append(what)

    routes = {
        rest for kind in (b"waiting", b"leased", b"tokens", b"schedule", b"ledger") for rest in by_kind.get(kind, {})
    }
    known = 0
    for route in routes:
        waiting, leased, schedules = of(b"waiting", route), of(b"leased", route), of(b"schedule", route)
        known += len(schedules)
        must(not waiting.keys() & leased.keys(), f"{route!r}: waiting and leased: {waiting.keys() & leased.keys()}")
        must(of(b"tokens", route).keys() == leased.keys(), f"{route!r}: tokens are not of the leased")
        must(waiting.keys() | leased.keys() == schedules.keys(), f"{route!r}: schedules are not of what is there")
        for timeline, packed in schedules.items():
            records = len(of(b"set", route + b":" + timeline))
            must(SCHEDULE.unpack(packed)[2] == records, f"{route!r} {timeline!r}: its schedule does not say {records}")
        put_down = by_kind.get(b"agenda", {}).get(b"", {}).get(tag + b"waiting:" + route)
        must(
            not waiting or (put_down is not None and put_down <= min(waiting.values())),
            f"{route!r}: not in time on the agenda",
        )
        for timeline, score in waiting.items():
            must(score <= SCHEDULE.unpack(schedules[timeline])[1], f"{route!r} {timeline!r} waits beyond its bound")
        counters = {field.decode(): int(value) for field, value in of(b"ledger", route).items()}
        dropped = sum(value for field, value in counters.items() if field.startswith("dropped:"))
        ends = ("open", "snapshots", "delivered", "superseded", "buried", "deleted")
        total = dropped + sum(counters.get(field, 0) for field in ends)
        must(counters.get("added", 0) == total, f"{route!r}: the ledger does not balance: {counters}")
        for field, kind in (("open", b"set"), ("snapshots", b"digest")):
            sets = (members for rest, members in by_kind.get(kind, {}).items() if rest.startswith(route + b":"))
            must(counters.get(field, 0) == sum(map(len, sets)), f"{route!r}: the ledger's {field} is not what is there")
        for timeline in of(b"losses", route):
            must(timeline[1:] in schedules, f"{route!r}: losses of {timeline!r}, which is not known")
    must(known == int(by_kind.get(b"count", {}).get(b"", 0)), f"{known} timelines are there, not as many are counted")
    for kind, values in ((b"set", b"values"), (b"digest", b"digest-values"), (b"dead-set", b"dead-values")):
        must(
            by_kind.get(kind, {}).keys() == by_kind.get(values, {}).keys(), f"{kind!r} and {values!r} are not in pairs"
        )
        for rest, members in by_kind.get(kind, {}).items():
            must(members.keys() == of(values, rest).keys(), f"{kind!r} {rest!r} has other keys than its values")
    for kind in (b"set", b"digest"):
        for rest in by_kind.get(kind, {}):
            route, _, timeline = rest.partition(b":")
            must(timeline in of(b"schedule", route), f"{kind!r} {rest!r} is of no known timeline")
    for route, heads in by_kind.get(b"heads", {}).items():
        for timeline, text in heads.items():
            must(timeline in of(b"schedule", route), f"the head of {timeline!r} is of no known timeline")
            must(
                (b"id" in head_of(text)) == (route + b":" + timeline in by_kind.get(b"digest", {})),
                f"the head of {timeline!r} and its snapshot do not go together",
            )
            must(
                int(head_of(text).get(b"total", 0)) == len(of(b"digest", route + b":" + timeline)),
                f"the head of {timeline!r} has another total than its snapshot",
            )
    return said


@pytest.fixture
def store(redis_client: redis.Redis) -> Iterator[Scripts]:
    """Every call is watched. Ends with a look at all keys: a test that plants something wrong in the store sets
    `store.is_sound` to False."""
    scripts = Scripts(redis_client)
    scripts.watch = watch = Watch(redis_client)
    yield scripts
    watch.end()
    assert watch.complaints == []
    if scripts.is_sound:
        assert inconsistencies(scripts.tag, scripts.contents()) == []
