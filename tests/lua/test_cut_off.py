"""Every script, cut off after each of its writes: what healthy daemons do then strands nothing, loses nothing, and the
ledger is exact, or says that it is not until it is.

A story prepares a partition, calls one script (which is cut off), and the caller asks again or is gone. Then daemons do
what they always do: maintenance, claims, opens, closes; nsqd hands over again what was not finished.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis

from support.cutting_off import CutOff, Interruptible
from support.store import KINDS_THAT_STAY, LEASE_MS, NOW_MS, Claim, Opened, Rec, inconsistencies

pytestmark = pytest.mark.script

HOUR_MS = 3_600_000
T, U, V = b"t", b"u", b"v"
ROUTES = ("r", "new")
MOST_WRITES = 60


def recs(timeline: bytes, *keys: bytes, at_ms: int = NOW_MS, repeat: bool = False) -> list[Rec]:
    return [Rec(timeline, key, at_ms, b"value of " + key, repeat) for key in keys]


@dataclass
class World:
    """A partition, what went into it, and what receivers were shown of it."""

    store: Interruptible
    filed: set[tuple[bytes, bytes]] = field(default_factory=set)
    shown: dict[str, set[tuple[bytes, bytes, int]]] = field(default_factory=dict)
    ids: int = 0

    def add(self, *records: Rec, route: str = "r", capacity: int = 100, limit: int = 1000) -> None:
        self.filed |= {(record.timeline, record.key) for record in records}
        self.store.add(*records, route=route, base_ms=self.store.now_ms or 0, capacity=capacity, limit=limit)

    def claim(self, timeline: bytes, route: str = "r", token: str = "token") -> Claim:
        claims = self.store.claim(routes=[(route, 1, 0)], token=token).claims
        return next(claim for claim in claims if claim.timeline == timeline)

    def new_id(self) -> str:
        self.ids += 1
        return f"id-{self.ids}"

    def open(self, claim: Claim, merge_capacity: int = 0) -> Opened | str:
        return self.store.open(claim, self.new_id(), merge_capacity=merge_capacity)

    def open_all(self, claims: list[Claim]) -> list[Opened | str]:
        return self.store.open_many([(claim, self.new_id()) for claim in claims])

    def finish_all(self, opened: list[tuple[Claim, Opened]]) -> None:
        """One is delivered, one failed, one is buried."""
        store, ends = self.store, []
        for claim, digest in opened:
            if claim.timeline == T:
                ends.append(store.closing(claim, digest.id, base_ms=NOW_MS))
            elif claim.timeline == U:
                ends.append(store.failing(claim, NOW_MS + 5))
            else:
                ends.append(store.burying(claim, digest.id, base_ms=NOW_MS))
        store.finish(*ends)

    def send(self, claim: Claim, opened: Opened) -> None:
        """One id, one set of records, whole; none of it shown before under another id."""
        index, values = self.store.keys("digest digest-values", claim.route, claim.timeline)
        rows: Any = self.store.client.zrange(index, 0, -1, withscores=True)
        keys, timeline = [key for key, _ in rows], claim.timeline.rpartition(b"\x01")[2]
        assert self.store.command("HMGET", values, *keys) == [b"value of " + key for key in keys]
        records = {(timeline, key, int(score)) for key, score in rows}
        assert len(records) == opened.total
        assert self.shown.setdefault(opened.id, records) == records
        for other, theirs in self.shown.items():
            assert other == opened.id or not records & theirs, "shown under two ids"

    def close(self, claim: Claim, opened: Opened, base_ms: int) -> str:
        return self.store.close(claim, opened.id, base_ms=base_ms)

    def go_on(self, details: bytes = b"{}") -> None:
        """What daemons do, until nothing is left of any timeline. `details`: of a burial that is done again."""
        store, cursors = self.store, defaultdict[str, bytes](lambda: b"0")
        for _ in range(40):
            store.now_ms = (store.now_ms or 0) + LEASE_MS + HOUR_MS
            done = store.maintained(ROUTES, cursors=cursors, longest_ms=HOUR_MS, longest_lease_ms=LEASE_MS)
            for route in ROUTES:
                cursors[route], is_off = done.more.get(route, (b"0", False))
                if is_off:
                    self.mend(route)
            if done.miscounted:
                store.census(ROUTES)
            claims = store.claim(routes=[(route, 1, 0) for route in ROUTES]).claims
            for claim in claims:
                self.deliver(claim, details)
            if not (claims or done.more or done.miscounted or any(store.schedules(route) for route in ROUTES)):
                return
        raise AssertionError("timelines never come to an end")

    def mend(self, route: str) -> None:
        store = self.store
        ids = store.command("ZRANGE", store.key("dead"), 0, -1) if route == "r" else []
        buried = sum(store.command("ZCARD", store.key("dead-set", digest_id.decode())) for digest_id in ids)
        assert store.mend(store.schedules(route), route, buried)[0] == "mended"

    def deliver(self, claim: Claim, details: bytes = b"{}") -> None:
        opened = self.open(claim)
        if opened == "burying":
            digest_id = self.store.head(claim.timeline, claim.route)[b"id"].decode()
            word, _ = self.store.bury(claim, digest_id, details=details)
            assert word in {"buried", "waiting"}  # it goes on if its details were not kept yet
        elif opened == "reviving":
            _, digest_id, timeline = claim.timeline.decode().split("\x01")
            assert self.store.revive(digest_id, timeline.encode(), claim.route)[0] == "revived"
        elif isinstance(opened, Opened):
            self.send(claim, opened)
            assert self.close(claim, opened, self.store.now_ms or 0) == "closed"

    def is_sound(self) -> None:
        contents = self.store.contents()
        assert inconsistencies(self.store.tag, contents) == []
        kinds = {name.split(b":")[2] for name in contents}
        assert kinds <= KINDS_THAT_STAY


@dataclass(frozen=True)
class Story:
    prepare: Callable[[World], Any]
    call: Callable[[World, Any], Any]
    """With what `prepare` returned."""
    again: Callable[[World, Any], Any] | None = None
    """What its caller does about the error, where that is not the same call."""
    ends: Callable[[World], set[tuple[bytes, bytes]]] = lambda _: set()
    """Records that need not be shown: deleted, dead."""
    is_of_an_operator: bool = False
    """Who is told that it failed, and asks again at once."""
    must_ask_again: bool = False
    """Nobody but its caller can bring it to its end: an operator, or nsqd with a message that was not finished."""


def at(world: World, later_ms: int) -> None:
    world.store.now_ms = (world.store.now_ms or 0) + later_ms


# -- intake


def add_batch(world: World, repeat: bool) -> None:
    new = [*recs(T, b"b", b"a", repeat=repeat), *recs(U, b"c", repeat=repeat), *recs(V, b"v", repeat=repeat)]
    world.add(*new, capacity=5)


def add_urgent(world: World, repeat: bool) -> None:
    new = [*recs(T, b"b", b"a", repeat=repeat), *recs(V, b"v", repeat=repeat)]
    world.add(*(record._replace(urgent=True) for record in new), *recs(U, b"c", repeat=repeat), capacity=5)


def known_timelines(world: World) -> None:
    world.add(*recs(T, b"a", at_ms=NOW_MS - 1), *recs(V, b"1", b"2", b"3", b"4", at_ms=NOW_MS - 5))


def one_under_way(world: World) -> None:
    world.add(*recs(T, b"out"), *recs(U, b"waits"))
    world.send(claim := world.claim(T), opened := world.store.opened(claim, world.new_id()))
    assert opened.total == 1


def shown_before(world: World) -> None:
    """A newer record under the same key was delivered, and its timeline is forgotten: a repeat of an older one is a
    duplicate."""
    world.add(*recs(U, b"c", at_ms=NOW_MS + 1), limit=1)
    world.deliver(world.claim(U))
    world.deliver(world.claim(U))
    assert not world.store.schedules("r")


def add_older(world: World, repeat: bool) -> None:
    world.add(*recs(U, b"c", repeat=repeat), limit=1)


def one_shown(world: World) -> None:
    """As above, and its digest is still under way."""
    world.add(*recs(U, b"c", at_ms=NOW_MS + 1), limit=1)
    world.send(claim := world.claim(U), world.store.opened(claim, world.new_id()))


def add_older_when_full(world: World) -> None:
    world.add(*recs(T, b"a"), limit=1)
    add_older(world, repeat=True)


ADD = {
    "add: new timelines": lambda _: None,
    "add: known timelines": known_timelines,
    "add: beside a digest under way": one_under_way,
}

# -- delivery


def two_due(world: World) -> None:
    world.add(*recs(T, b"a", b"b"), *recs(U, b"c"))
    world.store.add(*recs(V, b"later"), bound_ms=NOW_MS + HOUR_MS, increment_ms=1000)
    world.filed.add((V, b"later"))


def leased(world: World) -> Claim:
    world.add(*recs(T, b"a", b"b"))
    return world.claim(T)


def opened(world: World) -> tuple[Claim, Opened]:
    claim = leased(world)
    digest = world.store.opened(claim, world.new_id())
    world.send(claim, digest)
    world.add(*recs(T, b"newer"))
    return claim, digest


def leased_several(world: World) -> list[Claim]:
    """Of two routes: fresh ones, one left over, and one without records."""
    claim = delivered(world)
    world.add(*recs(U, b"c"), *recs(V, b"v"))
    world.add(*recs(T, b"new"), route="new")
    claims = world.store.claim(routes=[(route, 1, 0) for route in ROUTES]).claims
    world.store.opened(next(each for each in claims if each.timeline == V), world.new_id())
    return [claim, *claims]


def opened_several(world: World) -> list[tuple[Claim, Opened]]:
    world.add(*recs(T, b"a", b"b"), *recs(U, b"c"), *recs(V, b"v"))
    claims = world.store.claim().claims
    both = [(claim, world.store.opened(claim, world.new_id())) for claim in claims]
    for claim, digest in both:
        world.send(claim, digest)
    world.add(*recs(T, b"newer"))
    return both


def urgent_meanwhile(world: World) -> tuple[Claim, Opened]:
    both = opened(world)
    world.add(*(record._replace(urgent=True) for record in recs(T, b"urgent")))
    return both


def dead_records_of_v(world: World) -> set[tuple[bytes, bytes]]:
    return {(V, key) for key in (b"v",) if world.store.command("ZCARD", world.store.key("dead"))}


def left_over(world: World) -> Claim:
    """A digest whose delivery failed, and newer records. Nobody was shown it."""
    claim = leased(world)
    world.store.opened(claim, world.new_id())
    world.add(*recs(T, b"newer", at_ms=NOW_MS + 1), *recs(T, b"a", at_ms=NOW_MS + 5))
    world.store.fail(claim, NOW_MS)
    return world.claim(T, token="other")


def delivered(world: World) -> Claim:
    claim, digest = opened(world)
    world.close(claim, digest, NOW_MS)
    claim = world.claim(T)
    digest = world.store.opened(claim, world.new_id())
    world.send(claim, digest)
    world.close(claim, digest, NOW_MS)
    return world.claim(T)


def ran_out(world: World) -> None:
    opened(world)
    world.add(*recs(U, b"c"))
    world.claim(U)
    at(world, LEASE_MS + 1)


def nowhere(world: World) -> None:
    two_due(world)
    world.store.command("ZREM", world.store.key("waiting", "r"), T, V)


def far_ahead(world: World) -> None:
    world.store.now_ms = NOW_MS + 13 * 365 * 24 * HOUR_MS
    two_due(world)
    world.claim(U)
    world.store.now_ms = NOW_MS


def buried(world: World) -> None:
    claim, digest = opened(world)
    world.store.bury(claim, digest.id)


def dead_records(world: World) -> set[tuple[bytes, bytes]]:
    ids = world.store.command("ZRANGE", world.store.key("dead"), 0, -1)
    return {(T, key) for digest_id in ids for key in world.store.dead(digest_id.decode())}


def of_an_orphan(world: World) -> tuple[Claim, Opened]:
    world.add(*recs(T, b"a", b"b"), route="r")
    claim = world.claim(T)
    digest = world.store.opened(claim, world.new_id())  # and never sent
    world.add(*recs(T, b"c"))
    return claim, digest


def urgent_orphan(world: World) -> None:
    of_an_orphan(world)
    world.add(*(record._replace(urgent=True) for record in recs(T, b"urgent")))


def both_routes(world: World) -> None:
    of_an_orphan(world)
    world.add(*recs(T, b"d"), *recs(T, b"a", at_ms=NOW_MS - 3), route="new")


def inexact(world: World) -> None:
    for writes in (3, 5):
        world.store.cut_off_after(writes)
        with pytest.raises(CutOff):
            add_batch(world, repeat=False)
    add_batch(world, repeat=True)


def miscounted(world: World) -> None:
    two_due(world)
    world.store.command("INCRBY", world.store.key("count"), 3)


STORIES = {
    **{
        name: Story(prepare, lambda w, _: add_batch(w, repeat=False), lambda w, _: add_batch(w, repeat=True),
                    must_ask_again=True)
        for name, prepare in ADD.items()
    },
    **{
        f"{name}, urgent": Story(prepare, lambda w, _: add_urgent(w, repeat=False),
                                 lambda w, _: add_urgent(w, repeat=True), must_ask_again=True)
        for name, prepare in ADD.items()
    },
    "close: an urgent record came": Story(urgent_meanwhile, lambda w, both: w.close(both[0], both[1], NOW_MS)),
    "bury: an urgent record came": Story(
        urgent_meanwhile, lambda w, both: w.store.bury(both[0], both[1].id), ends=dead_records
    ),
    "adopt: an urgent record came": Story(
        urgent_orphan, lambda w, _: w.store.adopt(T, "new"), is_of_an_operator=True
    ),
    "add: it is a duplicate when it comes again": Story(
        shown_before, lambda w, _: add_older(w, repeat=False), lambda w, _: add_older(w, repeat=True),
        must_ask_again=True,
    ),
    "add: there is no place when it comes again": Story(
        shown_before, lambda w, _: add_older(w, repeat=False), lambda w, _: add_older_when_full(w),
        ends=lambda _: {(T, b"a")}, must_ask_again=True,  # refused where the call was cut off late enough
    ),
    "add: a duplicate when it comes again, beside a digest under way": Story(
        one_shown, lambda w, _: add_older(w, repeat=False), lambda w, _: add_older(w, repeat=True),
        must_ask_again=True,
    ),
    "claim": Story(two_due, lambda w, _: w.store.claim(routes=[("r", 1, 1000)])),
    "open": Story(leased, lambda w, claim: w.open(claim)),
    "open: again": Story(opened, lambda w, both: w.open(both[0])),
    "open: merged": Story(left_over, lambda w, claim: w.open(claim, merge_capacity=10)),
    "open: merged, the oldest drop": Story(
        left_over, lambda w, claim: w.open(claim, merge_capacity=2), ends=lambda _: {(T, b"b")}
    ),
    "open: empty": Story(delivered, lambda w, claim: w.open(claim)),
    "open: several": Story(leased_several, lambda w, claims: w.open_all(claims)),
    "finish: several": Story(opened_several, lambda w, ends: w.finish_all(ends), ends=dead_records_of_v),
    "renew": Story(opened, lambda w, both: w.store.renew(both[0])),
    "close": Story(opened, lambda w, both: w.close(both[0], both[1], NOW_MS)),
    "fail": Story(opened, lambda w, both: w.store.fail(both[0], NOW_MS + 5)),
    "defer": Story(opened, lambda w, both: w.store.fail(both[0], NOW_MS + 5, 1)),
    "bury": Story(opened, lambda w, both: w.store.bury(both[0], both[1].id), ends=dead_records),
    "claim: again": Story(opened, lambda w, _: w.store.claim_again()),
    "maintenance": Story(ran_out, lambda w, _: w.store.maintained(ROUTES)),
    "maintenance: nowhere": Story(nowhere, lambda w, _: w.store.maintained(ROUTES)),
    "maintenance: far ahead": Story(
        far_ahead, lambda w, _: w.store.maintained(ROUTES, longest_ms=HOUR_MS, longest_lease_ms=LEASE_MS)
    ),
    "bring_back": Story(
        lambda w: w.store.add(*recs(T, b"a"), *recs(U, b"b"), base_ms=NOW_MS + HOUR_MS),
        lambda w, _: w.store.bring_back(HOUR_MS, latest_ms=NOW_MS + 5),
    ),
    "mend": Story(inexact, lambda w, _: w.mend("r")),
    "census": Story(miscounted, lambda w, _: w.store.census(ROUTES)),
    "hello": Story(two_due, lambda w, _: w.store.hello(routes=ROUTES)),
    "turn": Story(two_due, lambda w, _: w.store.turn()),
    "flush": Story(
        lambda w: w.store.add(*recs(T, b"a"), base_ms=NOW_MS + HOUR_MS), lambda w, _: w.store.flush(T)
    ),
    "rescore": Story(
        lambda w: w.store.add(*recs(T, b"a"), *recs(U, b"b"), base_ms=NOW_MS + HOUR_MS),
        lambda w, _: w.store.rescore(
            (T, "", NOW_MS + 5, NOW_MS + 9), (U, "", NOW_MS + 2 * HOUR_MS, NOW_MS + 2 * HOUR_MS), remember="x"
        ),
    ),
    "delete": Story(
        opened, lambda w, _: w.store.delete(T), ends=lambda _: {(T, key) for key in (b"a", b"b", b"newer")}
    ),
    "adopt": Story(of_an_orphan, lambda w, _: w.store.adopt(T, "new"), is_of_an_operator=True),
    "adopt: there is one": Story(both_routes, lambda w, _: w.store.adopt(T, "new"), is_of_an_operator=True),
    "revive": Story(buried, lambda w, _: w.store.revive("id-1"), ends=dead_records, must_ask_again=True),
    "drop_dead": Story(
        buried, lambda w, _: w.store.drop_dead("id-1"), ends=lambda _: {(T, b"a"), (T, b"b")}
    ),
}  # fmt: skip


def cut_off(world: World, story: Story, writes: int) -> tuple[bool, Any]:
    context = story.prepare(world)
    world.store.cut_off_after(writes)
    try:
        story.call(world, context)
    except CutOff:
        return True, context
    return False, context


def callers_of(story: Story) -> list[str]:
    """What may become of whoever made the call; some calls only their caller can bring to an end."""
    if story.is_of_an_operator:
        return ["asks again"]
    return ["asks again", "asks again later", *([] if story.must_ask_again else ["is gone"])]


@pytest.mark.parametrize(
    ("name", "caller"), [(name, caller) for name, story in STORIES.items() for caller in callers_of(story)]
)
def test_cut_off_after_each_write_nothing_is_stranded_or_lost(
    redis_client: redis.Redis, name: str, caller: str
) -> None:
    story = STORIES[name]
    for writes in range(MOST_WRITES):
        world = World(Interruptible(redis_client))
        was_cut_off, context = cut_off(world, story, writes)
        if was_cut_off and caller != "is gone":
            if caller == "asks again later":
                world.go_on()
            (story.again or story.call)(world, context)
        world.go_on()
        world.is_sound()
        of_digests = {record[:2] for records in world.shown.values() for record in records}
        assert world.filed - of_digests <= story.ends(world), f"lost after {writes} writes"
        redis_client.flushall()
        if not was_cut_off:
            assert writes > 0, "a script of this story writes"
            return
    raise AssertionError("more writes than expected")


@pytest.mark.parametrize("operator", ["replays it", "drops it"])
def test_a_burial_that_is_cut_off_and_a_digest_that_an_operator_saw_dead_meanwhile(
    redis_client: redis.Redis, operator: str
) -> None:
    """Who ends the burial has no details, as in `Digests._bury_again`. What was replayed goes out whole."""
    for writes in range(MOST_WRITES):
        world = World(Interruptible(redis_client))
        was_cut_off, _ = cut_off(world, STORIES["bury"], writes)
        if operator == "replays it":
            word, _ = world.store.revive("id-1")
        else:
            word, _ = world.store.drop_dead("id-1")
        world.go_on(details=b"")
        world.is_sound()
        of_digests = {record[:2] for records in world.shown.values() for record in records}
        dropped = {(T, b"a"), (T, b"b")} if word == "dropped" else set()
        assert world.filed - of_digests <= dead_records(world) | dropped, f"lost after {writes} writes"
        redis_client.flushall()
        if not was_cut_off:
            return
    raise AssertionError("more writes than expected")


BEFORE_AN_ADOPTION = {
    "open": Story(leased, lambda w, claim: w.open(claim)),
    "open: merged": Story(left_over, lambda w, claim: w.open(claim, merge_capacity=10)),
    "bury": Story(of_an_orphan, lambda w, both: w.store.bury(both[0], both[1].id)),
}


@pytest.mark.parametrize("name", BEFORE_AN_ADOPTION)
def test_an_adoption_takes_all_that_a_call_which_was_cut_off_left(redis_client: redis.Redis, name: str) -> None:
    for writes in range(MOST_WRITES):
        world = World(Interruptible(redis_client))
        was_cut_off, _ = cut_off(world, BEFORE_AN_ADOPTION[name], writes)
        world.store.adopt(T, "new")
        world.go_on()
        world.is_sound()
        of_digests = {record[:2] for records in world.shown.values() for record in records}
        assert world.filed - of_digests <= dead_records(world), f"lost after {writes} writes"
        redis_client.flushall()
        if not was_cut_off:
            return
    raise AssertionError("more writes than expected")


def test_an_adoption_takes_no_records_of_a_digest_that_was_dropped_while_its_burial_was_cut_off(
    redis_client: redis.Redis,
) -> None:
    for writes in range(MOST_WRITES):
        world = World(Interruptible(redis_client))
        was_cut_off, _ = cut_off(world, BEFORE_AN_ADOPTION["bury"], writes)
        word, _ = world.store.drop_dead("id-1")
        world.store.adopt(T, "new")
        world.go_on()
        world.is_sound()
        of_digests = {record[:2] for records in world.shown.values() for record in records}
        dropped = {(T, b"a"), (T, b"b")} if word == "dropped" else set()
        assert world.filed - of_digests <= dropped, f"lost after {writes} writes"
        redis_client.flushall()
        if not was_cut_off:
            return
    raise AssertionError("more writes than expected")


@pytest.mark.parametrize("left", ["by an add that was cut off, too", "alone"])
def test_an_adoption_that_is_cut_off_counts_once_whoever_mends_between(redis_client: redis.Redis, left: str) -> None:
    for writes in range(MOST_WRITES):
        world = World(Interruptible(redis_client))
        if left != "alone":
            world.store.cut_off_after(3)
            with pytest.raises(CutOff):
                world.store.add(*recs(T, b"a", b"d"), route="new")
        was_cut_off, _ = cut_off(world, STORIES["adopt"], writes)
        for route in ROUTES:
            world.mend(route)
        world.store.adopt(T, "new")
        if left != "alone":
            world.store.add(*recs(T, b"a", b"d", repeat=True), route="new")
        world.go_on()
        world.is_sound()
        of_digests = {record[:2] for records in world.shown.values() for record in records}
        assert world.filed <= of_digests, f"lost after {writes} writes"
        redis_client.flushall()
        if not was_cut_off:
            return
    raise AssertionError("more writes than expected")


@pytest.mark.parametrize("after", ["upkeep", "deliveries"])
def test_an_adoption_that_is_cut_off_and_not_made_again_leaves_nothing_of_no_timeline(
    redis_client: redis.Redis, after: str
) -> None:
    """Its copies are in a timeline that is known, and go out."""
    for writes in range(MOST_WRITES):
        world = World(Interruptible(redis_client))
        was_cut_off, _ = cut_off(world, STORIES["adopt"], writes)
        store = world.store
        if after == "deliveries":
            store.now_ms = NOW_MS + LEASE_MS
            store.maintained(ROUTES)
            for claim in store.claim(routes=[("new", 1, 0)]).claims:
                world.deliver(claim)
            copies = {name for name in store.contents() if name in store.keys("set values", "new", T)}
            assert not copies, f"left after {writes} writes"
        else:
            known = store.schedules("new")
            assert all(known for name in store.contents() if name in store.keys("set values heads", "new", T)), writes
        redis_client.flushall()
        if not was_cut_off:
            return
    raise AssertionError("more writes than expected")
