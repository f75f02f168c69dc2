"""What the store promises, in plain Python: timelines with a set of records, a frozen digest, a schedule and a lease.

The model knows nothing of scripts and of Redis. A method does what the script of its name promises to do and returns
what that answers; `contents` is the whole of it as the keys of one partition. Its `now_ms` comes from outside.

What is asserted in here is what model and scripts could get wrong together: a set that is opened is the newest
`capacity` of the newest records by key among all that was filed since the last open, in whatever order and batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from support.store import EXEMPT_MS, SCHEDULE, Claim, Opened, Rec, Scripts

Records = dict[bytes, tuple[float, bytes]]
"""Timestamp and value by key."""
HALF = 0.5
"""An end is so much newer than its timestamp says."""
Place = tuple[str, bytes]
"""Route and timeline."""


class Policy(NamedTuple):
    """All delays in ms; `after` by iteration, the last for all later ones."""

    immediate: bool
    minimum_ms: int
    increment_ms: int
    maximum_ms: int
    after_ms: tuple[int, ...]
    capacity: int
    merges: bool = False
    """A digest left over takes in what came since, under a new id."""

    @property
    def merge_capacity(self) -> int:
        return self.capacity if self.merges else 0

    def beginning(self, now_ms: int) -> tuple[int, int]:
        """Base and bound."""
        return (now_ms, now_ms) if self.immediate else (now_ms + self.minimum_ms, now_ms + self.maximum_ms)

    def earliest_next_ms(self, now_ms: int) -> list[int]:
        return [now_ms + delay_ms for delay_ms in self.after_ms]

    def after(self, iteration: int, told_ms: int, now_ms: int) -> tuple[int, int]:
        """Base and bound after a digest that told its receiver `told_ms` as the earliest instant of the next."""
        base_ms = max(told_ms, now_ms + self.after_ms[min(iteration, len(self.after_ms)) - 1])
        return base_ms, max(base_ms, now_ms + self.maximum_ms)


@dataclass
class Digest:
    id: str
    records: Records
    opened_ms: int
    superseded: int
    over_capacity: int
    next_earliest_ms: int
    since_ms: int
    """Since when it is tried, also under an earlier id (merged) or this time only (revived); `tries` likewise."""
    attempts: int = 0
    tries: int = 0
    cancelled: int = 0
    is_followed_at_once: bool = False
    """An urgent record came while it was under way."""


class Dead(NamedTuple):
    route: str
    since_ms: int
    details: bytes
    records: Records


class Hold(NamedTuple):
    """Base and bound as they were before a snooze moved them, or 0."""

    kind: str
    until_ms: int
    since_ms: int
    base_ms: int
    bound_ms: int
    by: str

    @property
    def text(self) -> bytes:
        return " ".join(map(str, self)).encode()


@dataclass
class Timeline:
    base_ms: int
    bound_ms: int
    score_ms: int
    """Where it stands in the waiting set: never after it is due."""
    records: Records = field(default_factory=dict)
    lease: tuple[int, str] | None = None
    """Until when, and whose."""
    digest: Digest | None = None
    iteration: int | None = None
    closed: str = ""
    superseded: int = 0
    over_capacity: int = 0
    filed: list[Rec] = field(default_factory=list)
    """All that was accepted since the last open, in order."""
    cancelled: int = 0
    is_join: bool = True
    """False: a record was taken out since the last open, and left a place that others had been refused."""

    def due_ms(self, increment_ms: int) -> int:
        return min(self.base_ms + increment_ms * len(self.records), self.bound_ms)

    def wait(self, base_ms: int, bound_ms: int, increment_ms: int) -> None:
        self.lease, self.base_ms, self.bound_ms = None, base_ms, bound_ms
        self.score_ms = self.due_ms(increment_ms)


def is_own(timeline: bytes) -> bool:
    """Is it the one of a revived digest?"""
    return timeline.startswith(b"\x01")


def is_end(timestamp_ms: float) -> bool:
    return timestamp_ms % 1 != 0


def newest_first(records: Records) -> list[bytes]:
    return sorted(records, key=lambda key: (-records[key][0], key))


def joined(filed: Sequence[Rec], capacity: int) -> Records:
    """What is to be left of them, by the definition of it."""
    best: Records = {}
    for record in filed:
        best[record.key] = max(best.get(record.key, (-1, b"")), (record.timestamp_ms, record.value))
    return {key: best[key] for key in newest_first(best)[:capacity]}


def united(into: Records, records: Records, capacity: int) -> tuple[Records, int, int]:
    """Both, and how many of them met their key there, and how many were too many."""
    both = into | {key: max(record, into.get(key, record)) for key, record in records.items()}
    kept = {key: both[key] for key in newest_first(both)[:capacity]}
    return kept, len(into) + len(records) - len(both), len(both) - len(kept)


class Model:
    """One partition."""

    def __init__(self, policies: Mapping[str, Policy], most_timelines: int, remembered: int) -> None:
        self.policies = dict(policies)
        self.most_timelines = most_timelines
        self.remembered = remembered
        self.forgotten = 0
        """How many keys the last digest that ended made its timeline forget."""
        self.timelines: dict[Place, Timeline] = {}
        self.memories: dict[Place, dict[bytes, float]] = {}
        self.ends: dict[Place, dict[bytes, float]] = {}
        """By letter and key the newest end, as lua/lib/cancel.lua has them."""
        self.holds: dict[Place, Hold] = {}
        self.dead: dict[str, Dead] = {}
        self.agenda: dict[str, int] = {}
        """By route an instant before which nothing of it is due; only claim puts it off."""
        self.ledgers: dict[str, Counter[str]] = {route: Counter() for route in policies}
        self.ever_counted = False

    def count(self, route: str, name: str, by: int) -> None:
        self.ledgers[route][name] += by

    def put_down(self, route: str, due_ms: int) -> None:
        self.agenda[route] = min(due_ms, self.agenda.get(route, due_ms))

    def strike_out(self, route: str) -> None:
        """Nothing of it waits any more."""
        if not any(of == route and timeline.lease is None for (of, _), timeline in self.timelines.items()):
            self.agenda.pop(route, None)

    def owned(self, claim: Claim) -> Timeline | None:
        """The timeline of the claim, if it is still leased under it."""
        of = self.timelines.get((claim.route, claim.timeline))
        return of if of is not None and of.lease is not None and of.lease[1] == claim.token else None

    # -- add

    def add(
        self, route: str, records: Sequence[Rec], now_ms: int, *, has_ends: bool = False
    ) -> tuple[dict[str, int], list[int]]:
        """Its counters, and the numbers of the timelines that begin and are due at once."""
        counts: Counter[str] = Counter()
        due_at_once = []
        second = {record.timeline for record in records if record.repeat or record.urgent or record.muted or has_ends}
        # Timelines as they first appear, those with a possible repeat or an urgent record last.
        names = sorted(dict.fromkeys(record.timeline for record in records), key=lambda name: name in second)
        for number, name in enumerate(names, 1):
            is_known = (route, name) in self.timelines
            theirs = [of for of in records if of.timeline == name]
            urgent = self._add_to((route, name), theirs, now_ms, counts, has_ends=has_ends)
            of = self.timelines.get((route, name))
            if of is not None and (urgent if is_known else of.score_ms <= now_ms):
                due_at_once.append(number)
        counts["added"] = sum(counts.values()) - counts["repeated"] - counts["taken out"]
        counts["cancelled"] += counts.pop("taken out", 0)
        del counts["kept"], counts["muted"]
        return {name: count for name, count in counts.items() if count}, due_at_once

    def _add_to(
        self, place: Place, records: Sequence[Rec], now_ms: int, counts: Counter[str], *, has_ends: bool
    ) -> bool:
        """Whether an urgent record made it due at once."""
        muted = sum(record.muted for record in records)
        counts["muted"] += muted
        self.count(place[0], "added", muted)
        self.count(place[0], "dropped:muted", muted)
        records = [record for record in records if not record.muted]
        if not records:
            return False
        route, policy = place[0], self.policies[place[0]]
        known = self.timelines.get(place)
        if known is None and len(self.timelines) >= self.most_timelines:
            counts["over_timelines"] += len(records)
            self.count(route, "added", len(records))
            self.count(route, "dropped:timelines", len(records))
            return False
        of = known or Timeline(*policy.beginning(now_ms), score_ms=0)
        before, is_urgent = len(of.records), False
        if has_ends:
            records = [
                record._replace(timestamp_ms=record.timestamp_ms + HALF * bool(record.end)) for record in records
            ]
        for record in records:
            taken_out = 0
            if has_ends:
                what, taken_out = self._meet_ends(place, of, record)
                is_filed = not what
                what = what or self._file(of, record, policy.capacity)
                if is_filed and not record.end and of.records.get(record.key) == (record.timestamp_ms, record.value):
                    self._forget(self.ends[place], record.key, (b"a", b"e"))
                told_before = record.repeat and not record.end and not taken_out
                of.cancelled += taken_out + (what == "cancelled" and not told_before)
            else:
                what = "duplicates" if self._was_shown(place, record) else self._file(of, record, policy.capacity)
            counts[what] += 1
            counts["taken out"] += taken_out
            self.count(route, "dropped:cancelled", taken_out)
            if what != "repeated":
                self.count(route, "added", 1)
            is_loser = of.records.get(record.key) != (record.timestamp_ms, record.value)
            is_urgent |= record.urgent and not is_loser and what not in {"repeated", "duplicates", "cancelled"}
            # The next digest tells what lost; a possible repeat that loses may have been told before.
            if what in {"superseded", "over_capacity"} and not (is_loser and record.repeat):
                setattr(of, what, getattr(of, what) + 1)
            reason = {
                "superseded": "superseded", "over_capacity": "dropped:capacity", "duplicates": "dropped:duplicate",
                "repeated": "repeated", "cancelled": "dropped:cancelled",
            }.get(what)  # fmt: skip
            if reason:
                self.count(route, reason, 1)
        self.count(route, "open", len(of.records) - before)
        became_due = is_urgent and (known is not None or bool(of.records)) and self._make_urgent(route, of)
        if known is not None and of.lease is None and len(of.records) < before:
            of.score_ms = min(of.score_ms, of.due_ms(policy.increment_ms))
            self.put_down(route, of.due_ms(policy.increment_ms))
        if known is None and of.records:
            of.score_ms = of.due_ms(policy.increment_ms)
            self.timelines[place] = of
            self.ever_counted = True
            self.put_down(route, of.score_ms)
        return became_due

    def _make_urgent(self, route: str, of: Timeline) -> bool:
        """Whether it became due by that."""
        if of.digest is not None:
            of.digest.is_followed_at_once = True
            return False
        if (of.base_ms, of.bound_ms) == (EXEMPT_MS, EXEMPT_MS):
            return False
        of.base_ms = of.bound_ms = EXEMPT_MS
        if of.lease is not None:
            return False
        of.score_ms = EXEMPT_MS
        self.put_down(route, EXEMPT_MS)
        return True

    def _was_shown(self, place: Place, record: Rec) -> bool:
        """It may be a repeat, and the digest under way or the memory has it at least as new."""
        of = self.timelines.get(place)
        shown = of.digest.records if of is not None and of.digest else {}
        shown_ms = max(shown.get(record.key, (-1, b""))[0], self.memories.get(place, {}).get(record.key, -1))
        return record.repeat and record.timestamp_ms <= shown_ms

    def _meet_ends(self, place: Place, of: Timeline, record: Rec) -> tuple[str, int]:  # noqa: PLR0912 - a table of cases
        """Of a route whose records may end others: what becomes of it ("": it is filed), and how many records it takes
        out of the open set."""
        key, own, ends = record.key, record.timestamp_ms, self.ends.setdefault(place, {})
        under_way = self.timelines[place].digest if place in self.timelines else None
        seen = [self.memories.get(place, {}).get(key, -1)]
        seen += [under_way.records[key][0]] if under_way and key in under_way.records else []
        shown = max(seen) if max(seen) >= 0 else None
        open_ms = of.records[key][0] if key in of.records else None
        known = {letter: ends[letter + key] for letter in (b"o", b"a", b"e") if letter + key in ends}
        known = {letter: at for letter, at in known.items() if shown is None or at > shown}
        letter = max(known, key=lambda letter: known[letter], default=b"")
        last_end = known[letter] if letter else None

        def write(letter: bytes, at: float) -> None:
            self._forget(ends, key)
            ends[letter + key] = at

        if letter == b"a" and open_ms is None and last_end is not None:
            letter = b"o"
            write(letter, last_end)
        fires = not is_end(shown) if shown is not None else letter == b"o"  # so the receiver may believe
        if shown is not None and own <= shown:
            return ("duplicates" if record.repeat else "superseded"), 0
        if not is_end(own) and (last_end is None or own > last_end):
            if last_end is None and shown is None and open_ms is not None and is_end(open_ms):
                write(b"o", open_ms)
            return "", 0
        if not is_end(own):
            if open_ms is None:
                return "cancelled", 0
            if fires or not is_end(open_ms):
                return "superseded", 0
            write(b"e", last_end or own)
            return "cancelled", self._take_out(of, key)
        if (last_end is not None and own < last_end) or (open_ms is not None and open_ms > own):
            return "superseded", 0
        is_silent = record.end == 24
        if open_ms is not None and is_end(open_ms):
            write(b"o" if letter in {b"", b"o"} else b"a", own)
        elif fires and not is_silent:
            write(b"o", own)
        elif open_ms is None and not is_silent and shown is None and letter != b"e":
            write(b"a", own)
        else:
            write(b"e", own)
            if open_ms is None and own == last_end:
                return "repeated", 0
            return "cancelled", self._take_out(of, key)
        return "", 0

    @staticmethod
    def _forget(ends: dict[bytes, float], key: bytes, letters: Sequence[bytes] = (b"o", b"a", b"e")) -> None:
        for letter in letters:
            ends.pop(letter + key, None)

    @staticmethod
    def _take_out(of: Timeline, key: bytes) -> int:
        of.filed = [record for record in of.filed if record.key != key]
        of.is_join = False
        return 1 if of.records.pop(key, None) else 0

    @staticmethod
    def _file(of: Timeline, record: Rec, capacity: int) -> str:
        """Files it, and answers in which counter it shows (added goes without saying)."""
        new = (record.timestamp_ms, record.value)
        present = of.records.get(record.key)
        if new == present:
            return "repeated"
        of.filed.append(record)
        if present is not None:
            of.records[record.key] = max(new, present)
            return "superseded"
        of.records[record.key] = new
        if len(of.records) <= capacity:
            return "kept"
        del of.records[newest_first(of.records)[-1]]
        return "over_capacity"

    # -- schedule

    def claim(
        self, budgets: Sequence[int], asked: Sequence[tuple[str, int, int]], token: str, lease_ms: int, now_ms: int
    ) -> tuple[list[Claim], int | None]:
        """The claims, and when the next is due; `asked`: route, number of its budget, increment."""
        left, claims, following = list(budgets), [], []
        for route, budget, increment_ms in asked:
            mine = {name: of for (at, name), of in self.timelines.items() if at == route and of.lease is None}
            looked_at = left[budget - 1] > 0
            for name, of in sorted(mine.items(), key=lambda item: (item[1].score_ms, item[0])):
                due_ms = of.due_ms(increment_ms)
                assert of.score_ms <= due_ms
                if not looked_at or of.score_ms > now_ms:
                    continue
                if due_ms > now_ms:
                    of.score_ms = due_ms
                elif left[budget - 1] > 0:
                    left[budget - 1] -= 1
                    of.lease, of.base_ms, of.bound_ms = (now_ms + lease_ms, token), due_ms, due_ms
                    claims.append(Claim(route, name, due_ms, token))
            waiting = [of.score_ms for of in mine.values() if of.lease is None]
            following += waiting
            self.agenda.pop(route, None)
            if waiting:
                self.agenda[route] = min(waiting)
        return claims, min(following, default=None)

    def maintenance(self, limit: int, now_ms: int) -> int:
        returned = 0
        for route in self.policies:
            out = sorted(
                (of.lease[0], name)
                for (at, name), of in self.timelines.items()
                if at == route and of.lease is not None and of.lease[0] <= now_ms
            )[:limit]
            for _, name in out:
                self._return(route, self.timelines[route, name])
            returned += len(out)
        return returned

    def claim_again(self, token: str, lease_ms: int, now_ms: int) -> list[Claim]:
        """What a claim with this token took."""
        mine = [(place, of) for place, of in self.timelines.items() if of.lease is not None and of.lease[1] == token]
        for _, of in mine:
            of.lease = (now_ms + lease_ms, token)
        return [Claim(route, name, of.base_ms, token) for (route, name), of in mine]

    def _return(self, route: str, of: Timeline) -> None:
        """Waiting again, due when it was before: claim left that instant as base and bound."""
        of.lease, of.score_ms = None, of.base_ms
        self.put_down(route, of.score_ms)

    # -- a digest

    def open(self, claim: Claim, new_id: str, next_earliest_ms: Sequence[int], now_ms: int) -> Opened | str:
        of = self.owned(claim)
        if of is None:
            return "stale"
        if of.digest is None and not of.records:
            assert not of.filed or not of.is_join, "what was filed is gone"
            del self.timelines[claim.route, claim.timeline]
            return "empty"
        word = "again"
        if of.digest is None or (of.records and self.policies[claim.route].merges):
            word = "opened" if of.digest is None else "merged"
            of.iteration = (of.iteration or 0) + (of.digest is None)
            next_ms = next_earliest_ms[min(of.iteration, len(next_earliest_ms)) - 1]
            of.digest = self._begin_digest(claim.route, of, Digest(new_id, {}, now_ms, 0, 0, next_ms, now_ms))
        digest, iteration = of.digest, of.iteration or 0
        return Opened(
            word, now_ms, digest.id, digest.opened_ms, iteration, len(digest.records), digest.superseded,
            digest.over_capacity, digest.next_earliest_ms, digest.since_ms, digest.attempts, digest.tries,
            digest.cancelled,
        )  # fmt: skip

    def _begin_digest(self, route: str, of: Timeline, digest: Digest) -> Digest:
        """With the records of the open set, and those of a digest left over whose place it takes."""
        capacity, former = self.policies[route].capacity, of.digest
        assert not of.is_join or of.records == joined(of.filed, capacity), "add is no join"
        digest.cancelled = of.cancelled + (former.cancelled if former else 0)
        of.cancelled, of.is_join = 0, True
        digest.records, superseded, over = united(former.records if former else {}, of.records, capacity)
        digest.superseded, digest.over_capacity = of.superseded + superseded, of.over_capacity + over
        if former is not None:
            digest.superseded += former.superseded
            digest.over_capacity += former.over_capacity
            digest.since_ms, digest.tries = former.since_ms, former.tries
        self.count(route, "open", -len(of.records))
        self.count(route, "snapshots", len(digest.records) - (len(former.records) if former else 0))
        self.count(route, "superseded", superseded)
        self.count(route, "dropped:capacity", over)
        of.records, of.filed, of.superseded, of.over_capacity = {}, [], 0, 0
        return digest

    def renew(self, claim: Claim, lease_ms: int, now_ms: int) -> str:
        of = self.owned(claim)
        if of is None:
            return "stale"
        of.lease = (now_ms + lease_ms, claim.token)
        return "renewed"

    def fail(self, claim: Claim, again_ms: int, posts: int) -> str:
        of = self.owned(claim)
        if of is None:
            return "stale"
        of.wait(again_ms, again_ms, 0)
        self.put_down(claim.route, of.score_ms)
        if of.digest:
            of.digest.attempts += posts
            of.digest.tries += posts
        return "waiting"

    def close(self, claim: Claim, digest_id: str, after_ms: tuple[int, int], *, is_remembered: bool) -> str:
        word, digest = self._end_digest(claim, digest_id, after_ms)
        if digest is None:
            return word
        self.count(claim.route, "delivered", len(digest.records))
        if is_remembered:
            self._remember(claim, digest)
        return "closed"

    def _remember(self, claim: Claim, digest: Digest, *, died: bool = False) -> None:
        """No receiver saw the ends of a digest that died."""
        place = claim.route, claim.timeline
        memory = self.memories.get(place, {})
        for key, (timestamp_ms, _) in digest.records.items():
            if not (died and is_end(timestamp_ms)):
                memory[key] = max(memory.get(key, -1), timestamp_ms)
        if memory:
            self.memories[place] = memory
        over = sorted(memory, key=lambda key: (-memory[key], key))[self.remembered :]
        self.forgotten = len(over)
        for key in over:
            del memory[key]

    def bury(
        self,
        claim: Claim,
        digest_id: str,
        after_ms: tuple[int, int],
        details: bytes,
        now_ms: int,
        *,
        is_remembered: bool,
    ) -> tuple[str, int | None]:
        word, digest = self._end_digest(claim, digest_id, after_ms)
        if digest is None:
            return word, None
        self.count(claim.route, "buried", len(digest.records))
        self.dead[digest_id] = Dead(claim.route, now_ms, details, digest.records)
        if is_remembered:
            self._remember(claim, digest, died=True)
        return "buried", len(self.dead)

    def _end_digest(self, claim: Claim, digest_id: str, after_ms: tuple[int, int]) -> tuple[str, Digest | None]:
        """The digest that is under way no more, if there was one to end; else why not."""
        there = self.timelines.get((claim.route, claim.timeline))
        if there is not None and there.closed == digest_id:
            return "already", None
        of = self.owned(claim)
        if of is None or of.digest is None or of.digest.id != digest_id:
            return "stale", None
        digest, of.digest, of.closed = of.digest, None, digest_id
        self.forgotten = 0
        if digest.is_followed_at_once:
            after_ms = EXEMPT_MS, EXEMPT_MS
        of.wait(*after_ms, self.policies[claim.route].increment_ms)
        self.put_down(claim.route, of.score_ms)
        self.count(claim.route, "snapshots", -len(digest.records))
        return "", digest

    # -- operators

    def drop_dead(self, digest_id: str) -> tuple[str, int | None]:
        if digest_id not in self.dead:
            return "unknown", None
        route, _, _, records = self.dead.pop(digest_id)
        self.count(route, "buried", -len(records))
        self.count(route, "deleted", len(records))
        return "dropped", len(records)

    def revive(self, digest: Digest, iteration: int, place: Place) -> tuple[str, int | None]:
        """`digest` is what was buried but for its records, which are taken from the dead store; `place` its own."""
        own = self.timelines.get(place)
        if own is not None and own.digest:
            return "already", None
        if digest.id not in self.dead:
            return "unknown", None
        digest.records = self.dead.pop(digest.id).records
        self.timelines[place] = Timeline(EXEMPT_MS, EXEMPT_MS, EXEMPT_MS, digest=digest, iteration=iteration)
        self.put_down(place[0], EXEMPT_MS)
        self.ever_counted = True
        self.count(place[0], "buried", -len(digest.records))
        self.count(place[0], "snapshots", len(digest.records))
        return "revived", len(digest.records)

    def delete(self, place: Place) -> tuple[str, int | None]:
        self.memories.pop(place, None)
        self.ends.pop(place, None)
        of = self.timelines.pop(place, None)
        if of is None:
            return "unknown", None
        self.strike_out(place[0])
        in_snapshot = len(of.digest.records) if of.digest else 0
        self.count(place[0], "open", -len(of.records))
        self.count(place[0], "snapshots", -in_snapshot)
        self.count(place[0], "deleted", len(of.records) + in_snapshot)
        return "deleted", len(of.records) + in_snapshot

    def flush(self, place: Place, now_ms: int) -> str:
        of = self.timelines.get(place)
        if of is None:
            return "unknown"
        if of.lease is not None:
            return "leased"
        if of.bound_ms > now_ms:
            of.base_ms, of.bound_ms = min(of.base_ms, now_ms), now_ms
            of.score_ms = of.base_ms
            self.put_down(place[0], of.score_ms)
        return "due"

    def hold(self, place: Place, kind: str, until_ms: int, now_ms: int, most: int) -> list[str]:
        """`kind`: "" ends what there is."""
        over = [at for at, each in self.holds.items() if at != place and each.until_ms <= now_ms]
        had = self.holds.get(place)
        before = had.kind if had is not None and had.until_ms > now_ms else ""
        if kind == "" == before:
            return ["unknown"]
        if kind and len(self.holds.keys() - {place}) - len(over) >= most:
            return ["full"]
        of = self.timelines.get(place)
        waits = of is not None and of.lease is None
        moved = (0, 0)
        if of is not None and waits:
            if before == "snooze" and had is not None:
                as_moved = max(had.base_ms, had.until_ms), max(had.bound_ms, had.until_ms)
                if had.base_ms > 0 and (of.base_ms, of.bound_ms) == as_moved:
                    of.base_ms, of.bound_ms = had.base_ms, had.bound_ms
            if kind == "snooze":
                moved = of.base_ms, of.bound_ms
                of.base_ms, of.bound_ms = max(of.base_ms, until_ms), max(of.bound_ms, until_ms)
            if "snooze" in {kind, before}:
                of.score_ms = min(of.base_ms, of.bound_ms)
                self.put_down(place[0], of.score_ms)
        for at in over:
            del self.holds[at]
        if kind:
            self.holds[place] = Hold(kind, until_ms, now_ms, *moved, "ada")
        else:
            del self.holds[place]
        return ["held" if kind else "ended", before]

    def rescore(
        self, route: str, timelines: Sequence[tuple[bytes, str, int, int]], increment_ms: int, now_ms: int
    ) -> tuple[int, int]:
        """How many are due sooner, and later. Each: name, the digest that ended last as the caller saw it, base and
        bound."""
        sooner = later = 0
        for name, ended, base_ms, bound_ms in timelines:
            of = self.timelines.get((route, name))
            if of is None or of.lease is not None or of.digest or of.closed != ended:
                continue
            before_ms = of.due_ms(increment_ms)
            if before_ms <= now_ms or of.bound_ms <= EXEMPT_MS:
                continue
            of.base_ms, of.bound_ms = base_ms, bound_ms
            if of.due_ms(increment_ms) < now_ms:
                of.base_ms = of.bound_ms = now_ms
            due_ms = of.due_ms(increment_ms)
            of.score_ms = min(of.score_ms, due_ms)
            self.put_down(route, due_ms)
            sooner, later = sooner + (due_ms < before_ms), later + (due_ms > before_ms)
        return sooner, later

    def adopt(self, place: Place, to: str) -> tuple[str, int | None]:
        of = self.timelines.pop(place, None)
        if of is None:
            return "unknown", None
        self.strike_out(place[0])
        iteration = (of.iteration or 0) - bool(of.digest)
        instants = (EXEMPT_MS, EXEMPT_MS) if of.digest and of.digest.is_followed_at_once else (of.base_ms, of.bound_ms)
        new = Timeline(*instants, instants[0], iteration=iteration)
        target = self.timelines.setdefault((to, place[1]), new)
        if target is new:
            self.put_down(to, new.score_ms)
        shown, held, before = of.digest.records if of.digest else {}, len(target.records), dict(target.records)
        capacity = max(len(target.records) + len(shown) + len(of.records), 1)
        target.records, met, _ = united(target.records, shown, capacity)
        same = sum(before.get(key) == record for key, record in shown.items())
        same += sum(target.records.get(key) == record for key, record in of.records.items())
        target.records, met_too, _ = united(target.records, of.records, capacity)
        met, moved = met - same, len(shown) + len(of.records)
        target.records, _, over = united(target.records, {}, self.policies[to].capacity)
        target.filed += [Rec(place[1], key, *record) for part in (shown, of.records) for key, record in part.items()]
        target.superseded += met + met_too + of.superseded + (of.digest.superseded if of.digest else 0)
        target.cancelled += of.cancelled + (of.digest.cancelled if of.digest else 0)
        target.is_join &= of.is_join
        target.over_capacity += over + of.over_capacity + (of.digest.over_capacity if of.digest else 0)
        if (memory := self.memories.pop(place, None)) is not None:
            theirs = self.memories.setdefault((to, place[1]), {})
            theirs |= {key: max(stamp, theirs.get(key, -1)) for key, stamp in memory.items()}
        if (ends := self.ends.pop(place, None)) is not None:
            of_target = self.ends.setdefault((to, place[1]), {})
            of_target |= {key: max(stamp, of_target.get(key, -1)) for key, stamp in ends.items()}
        if (hold := self.holds.pop(place, None)) is not None:
            self.holds.setdefault((to, place[1]), hold)
        self.count(place[0], "dropped:adopted", moved)
        self.count(place[0], "open", -len(of.records))
        self.count(place[0], "snapshots", -len(shown))
        self.count(to, "added", moved - same)
        self.count(to, "open", len(target.records) - held)
        self.count(to, "superseded", met + met_too)
        self.count(to, "dropped:capacity", over)
        return "adopted", moved

    def audit(self) -> tuple[int, dict[str, tuple[int, dict[str, int]]]]:
        def ledger(route: str) -> dict[str, int]:
            return {name: number for name, number in self.ledgers[route].items() if number}

        there = Counter(route for route, _ in self.timelines)
        return len(self.timelines), {route: (there[route], ledger(route)) for route in self.policies}

    def recount(self, place: Place) -> list[int]:
        of = self.timelines.get(place)
        if of is None:
            return [0, -1, 0, 0, 0, 0, 0]
        in_snapshot = len(of.digest.records) if of.digest else 0
        there = len(of.records)
        return [1, there, there, there, in_snapshot, in_snapshot, in_snapshot]

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
            put(store.key("schedule", route), name, SCHEDULE.pack(of.base_ms, of.bound_ms, len(of.records)))
            if of.lease is None:
                put(store.key("waiting", route), name, of.score_ms)
            else:
                put(store.key("leased", route), name, of.lease[0])
                put(store.key("tokens", route), name, of.lease[1].encode())
            put_records(store.key("set", route, name), store.key("values", route, name), of.records)
            for letter, lost in ((b"s", of.superseded), (b"c", of.over_capacity), (b"x", of.cancelled)):
                if lost:
                    put(store.key("losses", route), letter + name, b"%d" % lost)
            if head := self._head(of):
                put(store.key("heads", route), name, head)
            if of.digest:
                put_records(
                    store.key("digest", route, name), store.key("digest-values", route, name), of.digest.records
                )
        for kind, remembered in (("shown", self.memories), ("ends", self.ends)):
            for (route, name), entries in remembered.items():
                keys[store.key(kind, route, name)] = {key: -timestamp_ms for key, timestamp_ms in entries.items()}
        for (route, name), hold in self.holds.items():
            put(store.key("holds"), route.encode() + b":" + name, hold.text)
        self._put_dead(store, put, put_records)
        for route, counters in self.ledgers.items():
            keys[store.key("ledger", route)] = {name.encode(): b"%d" % number for name, number in counters.items()}
        agenda = {store.key("waiting", route): due_ms for route, due_ms in self.agenda.items()}
        keys |= {store.key("agenda"): agenda} if agenda else {}
        if self.ever_counted:
            keys[store.key("count")] = b"%d" % len(self.timelines)
        return keys

    def _put_dead(
        self, store: Scripts, put: Callable[..., None], put_records: Callable[[bytes, bytes, Records], None]
    ) -> None:
        for digest_id, (_, since_ms, details, records) in self.dead.items():
            put(store.key("dead"), digest_id.encode(), since_ms)
            put(store.key("dead:details"), digest_id.encode(), details)
            put_records(store.key("dead-set", digest_id), store.key("dead-values", digest_id), records)

    @staticmethod
    def _head(of: Timeline) -> bytes:
        head: dict[str, object] = {}
        if of.iteration is not None:
            head["iteration"] = of.iteration
        if of.closed:
            head["closed"] = of.closed
        if of.digest:
            head |= {
                "id": of.digest.id, "opened": of.digest.opened_ms, "total": len(of.digest.records),
                "superseded": of.digest.superseded, "capacity": of.digest.over_capacity,
                "next": of.digest.next_earliest_ms, "since": of.digest.since_ms,
                "attempts": of.digest.attempts, "tries": of.digest.tries,
            }  # fmt: skip
            if of.digest.cancelled:
                head["cancelled"] = of.digest.cancelled
            if of.digest.is_followed_at_once:
                head["urgent"] = 1
        return "".join(f" {name}={value}" for name, value in head.items()).encode()
