"""Two daemons on one store, their clocks behind Redis' and each by another lag. Whatever they do, in whatever order,
and whatever becomes of their calls, this holds after every step:

- a. every record of the ledger is in exactly one place, and every event that was acknowledged is somewhere, or
  something newer under its key is;
- b. one id is one digest and one body, whoever reads it, in whatever pages, and an event is in one of them;
- c. every timeline's schedule says how many records it has, and it never waits beyond its bound;
- d. no digest is opened before the instant that the one before told its receiver;
- e. the agenda is never later than what waits;
- f. a timeline either waits or is leased;
- g. at the end healthy daemons deliver everything, and nothing but ledgers, memories and the dead is left.

Where a script was cut off between two writes, a, c, e and f hold again at the end, when daemons have mended what it
left; nothing is lost or shown twice even so.

The daemons are real stores (`Timelines` with its pages, dead store and operators), and nothing predicts what they
return; test_store_model.py beside this one does that for the scripts. Calls get lost on their way there or back,
batches come again cut and shuffled, operators step in, and Redis is put back to an earlier state as a failover does.
What is given up then is told (`Losses`), never anything else.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from nsqdigest.base.errors import StoreError
from nsqdigest.config import Policy
from nsqdigest.store import namespace
from nsqdigest.store.answers import Claim, NotOpened
from nsqdigest.store.dead import Dead, Details
from nsqdigest.store.head import Head
from nsqdigest.store.keys import is_own
from nsqdigest.store.record import Record, StoredRecord
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan, Schedule
from nsqdigest.store.store import Store
from support.servers import RedisServer
from support.settings import POLICY
from support.store import KINDS_THAT_STAY, NOW_MS, head_of, inconsistencies
from support.store_daemons import Account, Daemon, Event, Fate, Key, TimedClient, TimedNamespace, World, newest_held
from support.stores import bury_digest, close_digest, defer_digest, fail_digest, open_digest
from support.wire import Saved, Wire, WiredScripts

pytestmark = pytest.mark.property

T = TypeVar("T")

EXAMPLES = 100
STEPS = 15
LEASE_MS = 1000
ROOMY, NARROW = "r", "s"
ROUTES = {ROOMY: 1000, NARROW: 2}
LIMIT = 1000
MEMORY_MS = 3_600_000  # Redis' own clock lets it go, so it is to outlast the run
MOST_WORKERS = 8
POLICIES = [
    replace(POLICY, immediate=True, minimum_delay_ms=50, increment_delay_ms=7, maximum_delay_ms=80),
    replace(POLICY, immediate=False, minimum_delay_ms=5, increment_delay_ms=7, maximum_delay_ms=30),
    replace(POLICY, immediate=True, minimum_delay_ms=0, increment_delay_ms=0, maximum_delay_ms=0),
    replace(POLICY, immediate=False, minimum_delay_ms=20, maximum_delay_ms=2000, growth="exponential", growth_steps=3),
]
NAMES = [b"t", b"t:v", b"\xc3\xbc{}", b"r:t"]
KEYS = [b"a", b"B", b"\xc3\xbc", b"k:1"]

# How often each thing happens in a run, at least (by far): else it would have found nothing because it did nothing.
LEAST = {
    "examples": EXAMPLES, "added": 200, "superseded": 20, "dropped_duplicate": 3, "repeated": 2, "came again": 5,
    "unheard": 10, "not sent": 3, "claimed": 100, "opened": 60, "again": 3, "open: empty": 20, "read": 60, "sent": 60,
    "buried": 1, "put back": 15, "delete": 1, "adopt": 1, "flush": 1,
}  # fmt: skip

# A byte is a record: its timeline, its key and its timestamp.
batches = st.tuples(st.sampled_from(list(ROUTES)), st.binary(min_size=1, max_size=5))
numbers = st.integers(0, 5039)  # divisible by many: which one of several
fates = st.sampled_from([Fate.HEARD] * 6 + [Fate.UNHEARD] * 2 + [Fate.NOT_SENT, Fate.CUT_OFF])
acts = st.sampled_from(["open", "read", "read", "send", "close", "close", "bury", "fail", "defer", "renew", "crash"])


@dataclass
class Worker:
    daemon: Daemon
    claim: Claim
    opened: Head | None = None
    pages: list[StoredRecord] = field(default_factory=list)
    is_sent: bool = False


class Moment(NamedTuple):
    """Redis as it was, to be put back, and what it had acknowledged by then."""

    saved: list[Saved]
    acknowledged: set[bytes]


class DaemonsBesideAnAccount(RuleBasedStateMachine):
    client: ClassVar[redis.Redis]
    wire: ClassVar[Wire]
    url: ClassVar[str]
    loop: ClassVar[asyncio.AbstractEventLoop]
    seen: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.wire.command("FLUSHALL")
        self.world = World()
        self.account = Account(ROOMY)
        self.stores = [WiredScripts(self.client, self.wire, partition=partition) for partition in range(2)]
        self.daemons: list[Daemon] = []
        self.workers: list[Worker] = []
        self.plans: dict[str, Plan] = {}
        self.unheard: list[Event] = []
        """Not acknowledged yet: they come again."""
        self.flushed: set[tuple[str, bytes]] = set()
        self.moment: Moment | None = None
        self.cut_off_after = -1
        """Below 0: no script of this example is cut off."""
        self.minted = 0

    @initialize(
        policies=st.tuples(st.sampled_from(POLICIES), st.sampled_from(POLICIES)),
        lags=st.tuples(st.sampled_from([0, 3]), st.sampled_from([0, 40, 3000])),
        merges=st.booleans(),
        cut_off_after=st.integers(-12, 12),
    )
    def begin(self, policies: tuple[Policy, Policy], lags: tuple[int, int], merges: bool, cut_off_after: int) -> None:
        self.cut_off_after = cut_off_after
        routes = []
        for (route, capacity), policy in zip(ROUTES.items(), policies, strict=True):
            self.plans[route] = Plan(policy)
            routes.append(StoreRoute(route, capacity, policy.increment_delay_ms, MEMORY_MS, merges and route == NARROW))
        self.daemons = [Daemon(self.world, self.url, routes, LIMIT, lag_ms) for lag_ms in lags]
        for daemon in self.daemons:
            self.wait(daemon.store.start())
        self.saw("examples")

    def saw(self, what: str, times: int = 1) -> None:
        self.seen[what] += times

    def wait(self, work: Awaitable[T]) -> T:
        return self.loop.run_until_complete(_of(work))

    def asked(self, work: Awaitable[T], fate: Fate = Fate.HEARD) -> T | None:
        """The answer, unless nobody heard it."""
        if fate is Fate.CUT_OFF:
            fate = Fate.UNHEARD if self.cut_off_after < 0 else fate
            self.cut_off_after += self.cut_off_after >= 0  # another one each time
        self.world.fate, self.world.writes = fate, self.cut_off_after % 13
        try:
            return self.wait(work)
        except StoreError:
            if fate is Fate.HEARD:
                raise
            self.saw(f"{fate}")
            return None
        finally:
            self.world.fate = Fate.HEARD

    def mint(self, what: str) -> str:
        self.minted += 1
        return f"{what}-{self.minted}"

    # -- intake

    @rule(which=numbers, batch=batches, fate=fates)
    def add(self, which: int, batch: tuple[str, bytes], fate: Fate) -> None:
        route, drawn = batch
        events = []
        for byte in drawn:
            value = self.mint("e").encode()
            at_us = 1000 * (NOW_MS + (byte >> 4 & 7))
            event = Event(route, Record(0, NAMES[byte & 3], KEYS[byte >> 2 & 3], at_us, value, False))
            self.account.events[value] = event
            events.append(event)
        self.put(self.daemons[which % 2], events, fate)

    @rule(which=numbers, order=numbers, cut=st.integers(0, 4), fate=fates, of_all=st.booleans())
    def events_come_again(self, which: int, order: int, cut: int, fate: Fate, of_all: bool) -> None:
        """What nobody heard to be stored; or whatever else, finished or not. Cut anywhere, in any order."""
        coming = (
            list(self.account.events.values())[-1 - which % 12 :] if of_all or not self.unheard else [*self.unheard]
        )
        again = []
        while coming:
            event = coming.pop(order % len(coming))
            event.record.possible_repeat = True
            again.append(event)
        for route in ROUTES:
            theirs = [event for event in again if event.route == route]
            for piece in (theirs[:cut], theirs[cut:]):
                self.put(self.daemons[which % 2], piece, fate)
        self.saw("came again", len(again))

    def put(self, daemon: Daemon, events: list[Event], fate: Fate) -> None:
        for partition in range(2):
            theirs = [each for each in events if daemon.store.timelines.partition_of(each.record.timeline) == partition]
            if not theirs:
                continue
            route = theirs[0].route
            first = self.plans[route].beginning(daemon.clock.now_ms())
            added = self.asked(
                daemon.store.timelines.add(route, partition, [each.record for each in theirs], first), fate
            )
            if added is None:
                self.unheard += [each for each in theirs if each not in self.unheard]
                continue
            for name in ("added", "superseded", "dropped_capacity", "dropped_duplicate", "repeated"):
                self.saw(name, getattr(added, name))
            for each in theirs:
                each.is_acknowledged = True
            self.unheard = [each for each in self.unheard if not each.is_acknowledged]

    # -- schedule

    @rule(which=numbers, budgets=st.sampled_from([[1, 1], [3, 0], [0, 3], [500, 500]]), fate=fates, by=st.booleans())
    def claim(self, which: int, budgets: list[int], fate: Fate, by: bool) -> None:
        daemon, partition = self.daemons[which % 2], which // 2 % 2
        routes = list(ROUTES)
        if by:
            looked_at = self.wait(daemon.store.digests.agenda(partition, 0))
            assert all(due_ms <= daemon.clock.now_ms() for due_ms in looked_at.values())
            routes = [route for route in ROUTES if route in looked_at]
        if routes:
            self.workers = [*self.workers, *self.claims(daemon, partition, routes, budgets, fate)][-MOST_WORKERS:]

    def claims(
        self, daemon: Daemon, partition: int, routes: list[str], budgets: list[int], fate: Fate = Fate.HEARD
    ) -> list[Worker]:
        token = self.mint("token")
        asked = [(route, list(ROUTES).index(route)) for route in routes]
        claimed = self.asked(daemon.store.digests.claim(partition, asked, budgets, LEASE_MS, token), fate)
        if claimed is None:
            if self.minted % 2:
                again = self.asked(daemon.store.digests.claim_again(partition, routes, LEASE_MS, token))
                return [Worker(daemon, claim) for claim in again or ()]
            return []
        for claim in claimed.claims:
            assert claim.due_ms <= self.world.now_ms
        self.saw("claimed", len(claimed.claims))
        return [Worker(daemon, claim) for claim in claimed.claims]

    @rule(which=numbers, fate=fates)
    def maintenance(self, which: int, fate: Fate) -> None:
        for partition in range(2):
            returned = self.asked(
                self.daemons[which % 2].store.upkeep.maintain(partition, list(ROUTES), LEASE_MS), fate
            )
            self.saw("lease ran out", returned.ran_out if returned else 0)

    @rule(step_ms=st.sampled_from([1, 7, 20, 60, LEASE_MS, 3_600_000, 86_400_000]))
    def time_passes(self, step_ms: int) -> None:
        self.world.now_ms += step_ms

    # -- workers; a claim may be of long ago

    @rule(which=numbers, what=st.lists(acts, min_size=1, max_size=4), fate=fates)
    def a_worker_acts(self, which: int, what: list[str], fate: Fate) -> None:
        for act in what:
            if self.workers:
                self.act(self.workers[which % len(self.workers)], act, which, fate)

    def act(self, worker: Worker, act: str, which: int = 1, fate: Fate = Fate.HEARD) -> None:
        store, claim, opened = worker.daemon.store, worker.claim, worker.opened
        again_ms = worker.daemon.clock.now_ms() + which % 100
        if act == "open":
            self.open(worker, fate)
        elif act == "renew":
            self.asked(store.digests.renew(claim, LEASE_MS), fate)
        elif act == "crash":
            self.workers.remove(worker)
        elif act == "defer":
            self.asked(defer_digest(store, claim, again_ms), fate)
        elif opened is None:
            return
        elif act == "read":
            self.read(worker, 1 + which % 3)
        elif act == "send" and opened.id in self.account.bodies:
            self.send(worker, opened)
        elif act == "fail":
            self.asked(fail_digest(store, claim, again_ms), fate)
        elif act == "close" and worker.is_sent:
            self.asked(close_digest(store, claim, opened.id, self.after(worker, opened)), fate)
        elif act == "bury" and opened.id in self.account.bodies:
            self.bury(worker, opened, fate)

    def open(self, worker: Worker, fate: Fate) -> None:
        store, claim = worker.daemon.store, worker.claim
        place = claim.route, claim.timeline.encode()
        head = self.head(claim)
        table = self.plans[claim.route].earliest_next_ms(worker.daemon.clock.now_ms())
        opened = self.asked(open_digest(store, claim, self.mint("digest"), table), fate)
        worker.opened, worker.pages, worker.is_sent = None, [], False
        if opened is None or isinstance(opened, NotOpened):
            self.saw(f"open: {opened}")
            return
        self.saw("again" if head.get(b"id") == opened.id.encode() else "opened")
        worker.opened = opened
        self.account.opened(opened)
        before = self.account.digests.get(head.get(b"closed", b"").decode())
        if b"id" not in head and before is not None and place not in self.flushed:
            assert self.world.now_ms >= before.next_earliest_ms, "a digest before its time"
        self.flushed.discard(place)

    def head(self, claim: Claim) -> dict[bytes, bytes]:
        store = self.stores[claim.partition]
        return head_of(self.wire.command("HGET", store.key("heads", claim.route), claim.timeline.encode()))

    def read(self, worker: Worker, count: int) -> None:
        """One page; the last one shows the whole."""
        assert worker.opened is not None
        page = self.wait(worker.daemon.store.digests.page(worker.claim, worker.opened, len(worker.pages), count))
        if page is None:
            self.saw("page: gone")
            worker.opened, worker.pages = None, []
            return
        worker.pages += [record for record in page if record is not None]
        assert None not in page
        if len(worker.pages) >= worker.opened.total:
            self.account.read(worker.opened.id, tuple(worker.pages))
            worker.pages = []
            self.saw("read")

    def send(self, worker: Worker, opened: Head) -> None:
        self.account.received((worker.claim.route, worker.claim.shown_timeline.encode()), opened.id)
        worker.is_sent = True
        self.saw("sent")

    def after(self, worker: Worker, opened: Head) -> Schedule:
        now_ms = worker.daemon.clock.now_ms()
        if is_own(worker.claim.timeline):
            return Schedule(now_ms, now_ms)
        after = self.plans[worker.claim.route].after_digest(opened.iteration, now_ms)
        base_ms = max(after.base_ms, opened.next_earliest_ms)
        return Schedule(base_ms, max(base_ms, after.bound_ms))

    def bury(self, worker: Worker, opened: Head, fate: Fate) -> None:
        claim = worker.claim
        details = Details(opened, claim.route, claim.shown_timeline, "out", "too-old", "").encode()
        self.asked(bury_digest(worker.daemon.store, claim, opened.id, self.after(worker, opened), details), fate)
        # Its records are in no memory: what comes again of them is new.
        for record in self.account.bodies[opened.id]:
            self.account.events[record.value].may_come_twice = True
        self.saw("buried")

    # -- a whole story, to which single steps alone would seldom come

    @rule(
        which=numbers, batch=batches, meanwhile=st.none() | batches, fate=fates,
        ending=st.sampled_from(["close", "close", "bury", "fail", "crash", "too late", "deleted", "put back"]),
    )  # fmt: skip
    def deliver_what_is_due(
        self, which: int, batch: tuple[str, bytes], meanwhile: tuple[str, bytes] | None, fate: Fate, ending: str
    ) -> None:
        self.add(which, batch, Fate.HEARD)
        self.time_passes(3_600_000)
        for worker in self.claims(self.daemons[which % 2], which // 2 % 2, list(ROUTES), [2, 2]):
            self.workers = [*self.workers, worker][-MOST_WORKERS:]
            self.deliver(worker, which, meanwhile, ending, fate)

    def deliver(self, worker: Worker, which: int, meanwhile: tuple[str, bytes] | None, ending: str, fate: Fate) -> None:
        self.act(worker, "open")
        if meanwhile:
            self.add(which + 1, meanwhile, fate)
        self.read_all(worker, 1 + which % 3)
        self.act(worker, "send")
        if ending == "too late":
            self.time_passes(LEASE_MS)
            self.maintenance(which + 1, Fate.HEARD)
        elif ending == "deleted":
            self.an_operator_acts(which, "delete", fate)
        elif ending == "put back":
            self.redis_is_put_back(which)
        ending = "close" if ending in {"too late", "deleted", "put back"} else ending
        if worker in self.workers:
            self.act(worker, ending, which, fate)

    def read_all(self, worker: Worker, count: int) -> None:
        while worker.opened is not None and worker.opened.id not in self.account.bodies:
            self.read(worker, count)

    # -- operators

    @rule(which=numbers, what=st.sampled_from(["flush", "delete", "adopt"]), fate=fates)
    def an_operator_acts(self, which: int, what: str, fate: Fate) -> None:
        operators = self.daemons[which % 2].store.operations
        route, name = list(ROUTES)[which // 2 % 2], NAMES[which % 4]
        fate = Fate.UNHEARD if fate is Fate.CUT_OFF else fate  # who is told that it failed asks again
        if what == "flush":
            self.asked(operators.flush(route, name.decode()), fate)
            self.flushed.add((route, name))
        elif what == "delete":
            self.asked(operators.delete(route, name.decode()), fate)
            for event in self.account.of_timeline(route, name):
                event.may_be_gone = event.may_come_twice = True
        else:
            # The narrow one has dropped some, so it is not asked any more where they are.
            self.asked(operators.adopt_some(which // 4 % 2, NARROW, ROOMY, ROUTES[ROOMY], most=2), fate)
            self.flushed |= {(ROOMY, each) for each in NAMES}
        self.saw(what)

    @rule(which=numbers, is_revived=st.booleans(), fate=fates)
    def a_dead_digest_is_dropped_or_revived(self, which: int, is_revived: bool, fate: Fate) -> None:
        store = self.daemons[which % 2].store
        if not self.dead(store):
            self.deliver_what_is_due(which, (ROOMY, bytes([which % 256])), None, Fate.HEARD, "bury")
        if not (dead := self.dead(store)):
            return
        one = dead[which % len(dead)]
        fate = Fate.UNHEARD if fate is Fate.CUT_OFF else fate  # as above
        assert self.wait(store.dead.find(one.id)) == one
        if is_revived:
            self.asked(store.dead.revive(one), fate)
            self.saw("revived")
        else:
            self.account.ended((one.route, one.details.timeline.encode()), one.id)
            self.asked(store.dead.drop(one), fate)
            self.saw("dropped")

    def dead(self, store: Store) -> list[Dead]:
        return [each for partition in range(2) for each in self.wait(store.dead.page(partition, 0))]

    # -- what Redis may do

    @rule(which=numbers)
    def redis_is_put_back(self, which: int) -> None:
        """By a failover, to as it was at an earlier call of this: what was done since is lost to Redis, and each daemon
        that had heard of it says how much."""
        acknowledged = {value for value, event in self.account.events.items() if event.is_acknowledged}
        now = Moment(self.stores[0].saved(), acknowledged)
        moment, self.moment = self.moment, now
        if moment is None:
            return
        self.stores[0].restore(moment.saved)
        for value, event in self.account.events.items():
            event.is_acknowledged = event.is_acknowledged and value in moment.acknowledged
            event.may_come_twice = True
        for daemon in self.daemons:
            lost = self.lost_to(daemon)
            self.wait(daemon.store.look())
            assert daemon.store.acknowledged.take_lost() == lost or self.world.was_cut_off
        self.saw("put back")

    def lost_to(self, daemon: Daemon) -> dict[str, int]:
        """By what it had heard and what the ledgers say now."""
        lost: Counter[str] = Counter()
        for partition, store in enumerate(self.stores):
            for route in ROUTES:
                added = int(self.wire.command("HGET", store.key("ledger", route), "added") or 0)
                lost[route] += max(0, daemon.store.acknowledged.known[route, partition].records - added)
        return {route: count for route, count in lost.items() if count}

    # -- always

    @invariant()
    def nothing_is_lost_stranded_or_counted_wrong(self) -> None:
        contents: dict[bytes, Any] = self.stores[0].contents()
        held: dict[Key, int] = {}
        for store in self.stores:
            mine = {name: value for name, value in contents.items() if name.startswith(store.tag)}
            if not self.world.was_cut_off:
                assert inconsistencies(store.tag, mine) == []
            held |= newest_held(store.tag, mine)
        assert self.account.missing(held) == []
        for daemon in self.daemons:
            assert self.world.was_cut_off or daemon.store.acknowledged.take_lost() == {}, "a loss that is none"

    def teardown(self) -> None:
        try:
            if self.daemons:
                self.drain()
        finally:
            for daemon in self.daemons:
                self.wait(daemon.store.close(5))

    def drain(self) -> None:
        """A digest left over, what came since, what was revived; then there is nothing more."""
        self.put_all_again()
        daemon = self.daemons[0]
        for _ in range(6):
            self.time_passes(10 * 86_400_000)
            for partition in range(2):
                self.wait(daemon.store.upkeep.maintain(partition, list(ROUTES), LEASE_MS))
                for worker in self.claims(daemon, partition, list(ROUTES), [500, 500]):
                    self.act(worker, "open")
                    self.read_all(worker, 3)
                    self.act(worker, "send")
                    self.act(worker, "close")
        self.world.was_cut_off = False
        self.nothing_is_lost_stranded_or_counted_wrong()
        left = {name.split(b":")[2] for name in self.stores[0].contents()}
        allowed = KINDS_THAT_STAY
        assert left <= allowed, left - allowed

    def put_all_again(self) -> None:
        for route in ROUTES:
            theirs = [event for event in self.unheard if event.route == route]
            for event in theirs:
                event.record.possible_repeat = True
            self.put(self.daemons[0], theirs, Fate.HEARD)
        assert not self.unheard


async def _of(work: Awaitable[T]) -> T:
    return await work


@pytest.fixture
def machine(redis_factory: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """On a Redis of the test's own, which is emptied and put back. Yields what it has seen."""
    monkeypatch.setattr(namespace, "RedisClient", TimedClient)
    monkeypatch.setattr("nsqdigest.store.store.Namespace", TimedNamespace)
    of = DaemonsBesideAnAccount
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:  # the path of a socket has to be short
        path = Path(folder) / "redis.sock"
        server = redis_factory("--unixsocket", str(path))
        with server.client() as client, Wire(path) as wire:
            of.client, of.wire, of.url, of.loop, of.seen = client, wire, server.url, runner.get_loop(), Counter()
            yield of.seen


def shares() -> list[int]:
    """A deep run is cut into parts, so that each ends before it is taken for one that hangs."""
    deeper = settings().max_examples // settings.get_profile("normal").max_examples
    return list(range(1, 1 + max(1, min(8, deeper))))


@pytest.mark.parametrize("share", shares())
def test_whatever_daemons_do_nothing_is_lost_shown_twice_or_stranded(share: int, machine: Counter[str]) -> None:
    run_state_machine_as_test(
        DaemonsBesideAnAccount, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS)
    )
    assert not {what: machine[what] for what, least in LEAST.items() if machine[what] < least}, machine
