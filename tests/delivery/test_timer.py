"""scheduler.py in simulated time, beside a store and a courier that are told what to do: the instants of its looks and
claims, what it asks for, and what it hands on. What it does with a real Redis is in tests/integration."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
from nsqdigest.delivery.attempt import NO_EPOCH, DeliveryRoute, Lease, Outlet

from nsqdigest.backoff import Controller, Curve, State
from nsqdigest.base import log
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.base.log_counts import Repeats
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery import attempt, timer
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.answers import Claim, Claimed, Maintained, Mended
from nsqdigest.store.schedule import Plan
from support.settings import POLICY, ROUTE, SINK
from support.simulated import BEGAN_S, Time, simulated

pytestmark = pytest.mark.unit

NOTHING = Maintained(0, 0, 0, 0, ())
MOST_LOOKS = 500


def now_s() -> float:
    """Since the test began."""
    return round(Time.monotonic() - BEGAN_S, 3)


async def at(instant_s: float) -> None:
    """The test goes on behind whatever happens at that instant."""
    await asyncio.sleep(BEGAN_S + instant_s - Time.monotonic() + 1e-4)


class Asked(NamedTuple):
    at_s: float
    partition: int
    routes: list[tuple[str, int]]
    budgets: list[int]
    reserved: list[int]
    """Of each sink, while it was asked."""


@dataclass
class ToldStore:
    """Timelines with an instant each, by partition and route."""

    partitions: int = 1
    due: dict[tuple[int, str, str], float] = field(default_factory=dict)
    looks: list[tuple[float, int]] = field(default_factory=list)
    claims: list[Asked] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    claims_at_a_time: int = 0
    most_at_a_time: int = 0
    maintained: list[tuple[float, int, list[str], int]] = field(default_factory=list)
    released: list[tuple[float, int, list[str], str]] = field(default_factory=list)
    look_errors: dict[int, list[StoreError | None]] = field(default_factory=dict)
    claim_errors: list[StoreError | None] = field(default_factory=list)
    finds: list[Maintained] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    takes_s: dict[str, float] = field(default_factory=dict)
    hangs_in: set[int] = field(default_factory=set)
    posts: list[Outlet] = field(default_factory=list)
    dead: None = None

    @property
    def digests(self) -> ToldStore:
        return self

    @property
    def upkeep(self) -> ToldStore:
        return self

    @property
    def clock(self) -> ToldStore:
        return self

    def now_ms(self) -> int:
        return round(Time.monotonic() * 1000)

    def put(self, name: str, at_s: float = 0.0, route: str = "r", partition: int = 0) -> None:
        self.due[partition, route, name] = BEGAN_S + at_s

    def _of(self, partition: int, routes: Sequence[str]) -> list[tuple[int, tuple[int, str, str]]]:
        found = [(round(1000 * due_s), key) for key, due_s in self.due.items() if key[0] == partition]
        return sorted(each for each in found if each[1][1] in routes)

    async def agenda(self, partition: int, within_ms: int) -> dict[str, int]:
        self.looks.append((now_s(), partition))
        assert len(self.looks) < MOST_LOOKS, "it looks again and again"
        await asyncio.sleep(self.takes_s.get("agenda", 0))
        errors = self.look_errors.get(partition, [])
        if errors and (error := errors.pop(0)) is not None:
            raise error
        agenda: dict[str, int] = {}
        for due_ms, (_, route, _) in self._of(partition, ["r", "s", "unknown"]):
            if due_ms <= self.now_ms() + within_ms:
                agenda.setdefault(route, due_ms)
        return agenda

    async def claim(
        self, partition: int, routes: Sequence[tuple[str, int]], budgets: Sequence[int], lease_ms: int, token: str
    ) -> Claimed:
        reserved = [post.reserved for post in self.posts]
        self.claims.append(Asked(now_s(), partition, list(routes), list(budgets), reserved))
        self.tokens.append(token)
        self.claims_at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self.claims_at_a_time)
        await asyncio.sleep(self.takes_s.get("claim", 0))
        if partition in self.hangs_in:
            await asyncio.sleep(3600)
        self.claims_at_a_time -= 1
        if self.claim_errors and (error := self.claim_errors.pop(0)) is not None:
            raise error
        left, taken = list(budgets), []
        for name, number in routes:
            for due_ms, key in self._of(partition, [name]):
                if due_ms <= self.now_ms() and left[number]:
                    left[number] -= 1
                    taken.append(Claim(partition, name, key[2], due_ms, token))
                    del self.due[key]
        rest = self._of(partition, [name for name, _ in routes])
        return Claimed(taken, rest[0][0] if rest else None)

    async def release(self, partition: int, routes: Sequence[str], token: str) -> int:
        self.released.append((now_s(), partition, list(routes), token))
        return self.returns.pop(0) if self.returns else 0

    async def maintain(self, partition: int, routes: Sequence[str], lease_ms: int) -> Maintained:
        self.maintained.append((now_s(), partition, list(routes), lease_ms))
        await asyncio.sleep(self.takes_s.get("maintenance", 0))
        return self.finds.pop(0) if self.finds else NOTHING


class Carried(NamedTuple):
    at_s: float
    route: str
    name: str
    left_s: float
    epoch: int


@dataclass
class ToldCourier:
    """Carries for so long."""

    takes_s: float = 0.0
    carried: list[Carried] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    made_with: tuple[Any, ...] = ()

    async def carry(self, claim: Claim, route: DeliveryRoute, lease: Lease, epoch: int) -> None:
        assert route.settings.name == claim.route
        self.carried.append(Carried(now_s(), claim.route, claim.timeline, round(lease.left_s, 6), epoch))
        await asyncio.sleep(self.takes_s)
        self.ended.append(claim.timeline)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.carried]


class Stage(NamedTuple):
    store: ToldStore
    courier: ToldCourier
    posts: list[Outlet]
    metrics: Metrics
    windows: list[tuple[float, float]]
    scheduler: Scheduler
    backs: list[float]

    def looks(self, partition: int = 0) -> list[float]:
        return [at_s for at_s, of in self.store.looks if of == partition]

    def asked(self) -> list[tuple[float, list[str]]]:
        """When, and of which routes."""
        return [(asked.at_s, sorted(name for name, _ in asked.routes)) for asked in self.store.claims]


MakeStage = Callable[..., Stage]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> MakeStage:
    monkeypatch.setattr(timer, "time", Time())
    monkeypatch.setattr(attempt, "time", Time())
    carrying = ToldCourier()

    def told_courier(*arguments: Any) -> ToldCourier:
        carrying.made_with = arguments
        return carrying

    monkeypatch.setattr(timer, "Courier", told_courier)

    def stage(
        *, interval_s: float = 30, lease_s: float = 60, batch: int = 100, limit: int = 8, partitions: int = 1,
        sinks: int = 1, draw: float | None = 0.0,
    ) -> Stage:  # fmt: skip
        """Routes r and s: with two sinks, each has its own. It draws `draw`, or else the highest."""
        store, metrics, windows, backs = ToldStore(partitions), Metrics(), [], []

        def uniform(low: float, high: float) -> float:
            windows.append((low, high))
            return high if draw is None else draw

        curve = Curve(2.5, 100.0, jitter="none")
        posts = [
            Outlet(replace(SINK, name=name), None, Controller(limit, curve, lambda low, _: low, slow_start=False))  # type: ignore[arg-type]
            for name in ("out", "other")[:sinks]
        ]
        store.posts = posts
        routes = {
            name: DeliveryRoute(replace(ROUTE, name=name), Plan(POLICY), posts[number % sinks])
            for number, name in enumerate(("r", "s"))
        }
        settings = SchedulerSettings(interval_ms=round(1000 * interval_s), lease_ms=round(1000 * lease_s), batch=batch)
        made = Scheduler(
            settings, routes, store, metrics, uniform, on_store_back=lambda: backs.append(now_s())  # type: ignore[arg-type]
        )  # fmt: skip
        return Stage(store, carrying, posts, metrics, windows, made, backs)

    return stage


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """How often a line was written."""
    monkeypatch.setattr(log, "_repeats", Repeats())
    caplog.set_level(logging.DEBUG, "nsqdigest")

    def times(event: str) -> int:
        return [record.getMessage() for record in caplog.records].count(event)

    return times


def failure(applied: Applied = Applied.NO) -> StoreError:
    return StoreError("redis-timeout", "as told", applied)


# -- when it looks


@simulated
async def test_idle_timers_look_together_at_the_daemons_own_instants(make: MakeStage) -> None:
    stage = make(partitions=2, draw=17.0)
    assert stage.windows == [(0, 30.0)]
    stage.scheduler.start()
    await at(90)
    assert stage.looks(0) == stage.looks(1) == [0, 7, 37, 67]


@simulated
async def test_all_routes_are_claimed_of_once_in_a_lease_and_it_is_maintained_four_times(make: MakeStage) -> None:
    stage = make(interval_s=5)
    stage.scheduler.start()
    await at(125)
    assert stage.asked() == [(0.0, ["r", "s"]), (60.0, ["r", "s"]), (120.0, ["r", "s"])]
    assert [at_s for at_s, *_ in stage.store.maintained] == [15.0 * number for number in range(9)]
    assert {(of, tuple(routes), lease_ms) for _, of, routes, lease_ms in stage.store.maintained} == {
        (0, ("r", "s"), 60_000)
    }


@simulated
async def test_what_becomes_due_is_claimed_at_its_very_instant(make: MakeStage) -> None:
    stage = make(interval_s=20)
    stage.store.put("at once")
    stage.store.put("soon", 4.5)
    stage.scheduler.start()
    await at(5)
    stage.store.put("later", 15.25, route="s")
    stage.store.put("last", 17)
    stage.store.put("of a route that was taken out", 5, route="unknown")
    stage.scheduler.poke()
    await at(25)
    assert [(each.at_s, each.name) for each in stage.courier.carried] == [
        (0, "at once"),
        (4.5, "soon"),
        (15.25, "later"),
        (17, "last"),
    ]
    assert stage.asked() == [(0, ["r", "s"]), (4.5, ["r"]), (15.25, ["s"]), (17, ["r"])]
    assert set(stage.looks()) == {0, 4.5, 5, 15.25, 17, 20}


@simulated
async def test_a_claims_answer_says_when_there_is_more(make: MakeStage) -> None:
    stage = make(interval_s=20)
    stage.store.put("soon", 4.5)
    stage.scheduler.start()
    await at(5)
    assert stage.looks() == [0, 4.5, 4.5]
    assert stage.courier.names == ["soon"]


@pytest.mark.parametrize(("limit", "at_s"), [(1, 3), (2, 20)])
@simulated
async def test_who_found_a_sink_full_hears_of_its_room_and_nobody_of_more_room(
    make: MakeStage, limit: int, at_s: float
) -> None:
    stage = make(limit=limit, partitions=2, interval_s=20)
    stage.courier.takes_s = 3
    stage.store.put("a")
    stage.scheduler.start()
    await at(21)
    assert stage.looks(1)[:2] == [0, at_s]


@simulated
async def test_nobody_wakes_for_what_its_sink_has_no_room_for(make: MakeStage) -> None:
    stage = make(interval_s=20, sinks=2)
    stage.scheduler.start()
    await at(1)
    stage.posts[0].history.stopped("gone", 0.0)
    stage.store.put("a", 5)
    stage.store.put("b", 12, route="s")
    stage.scheduler.poke()
    await at(20)
    assert stage.looks() == [0, 1, 12, 12, 20]
    assert stage.asked() == [(0, ["r", "s"]), (12, ["s"])]
    assert stage.store.claims[1].routes == [("s", 0)]
    assert stage.store.claims[1].budgets == [8]
    assert stage.courier.names == ["b"]


@simulated
async def test_a_sink_that_is_full_is_asked_for_again_when_it_has_room_and_not_before(make: MakeStage) -> None:
    stage = make(limit=2, partitions=2, lease_s=3600)
    stage.courier.takes_s = 3
    for number in range(5):
        stage.store.put(f"t{number}", number / 1000)
    stage.store.put("other", 4, partition=1)
    await at(0.01)
    stage.scheduler.start()
    await at(1)
    assert stage.posts[0].active == 2
    assert [asked.budgets for asked in stage.store.claims[:2]] == [[1], [1]]
    await at(30)
    assert stage.posts[0].active == 0
    assert stage.posts[0].reserved == 0
    assert sorted(stage.courier.names) == ["other", "t0", "t1", "t2", "t3", "t4"]
    # The other partition's timer heard of the room, too.
    assert len(stage.looks(1)) >= 4
    assert len(stage.store.looks) < 40
    assert not stage.scheduler._work


# -- what it asks for


@simulated
async def test_what_a_claim_may_bring_is_reserved_until_its_answer(make: MakeStage) -> None:
    stage = make(limit=7, partitions=2, sinks=2, batch=3)
    stage.store.takes_s = {"claim": 0.02}
    stage.scheduler.start()
    await at(1)
    first, second = stage.store.claims
    assert (first.at_s, first.partition, first.budgets, first.reserved) == (0, 0, [3, 3], [3, 3])
    assert (second.at_s, second.partition, second.budgets, second.reserved) == (0.02, 1, [3, 3], [3, 3])
    assert sorted(first.routes) == [("r", 0), ("s", 1)]
    assert stage.store.most_at_a_time == 1
    assert [post.reserved for post in stage.posts] == [0, 0]
    assert None not in stage.store.tokens
    assert len(set(stage.store.tokens)) == 2


@simulated
async def test_a_claim_that_hangs_holds_up_the_others_for_a_tenth_of_a_second_and_keeps_its_share(
    make: MakeStage,
) -> None:
    stage = make(limit=7, partitions=3)
    stage.store.hangs_in = {0}
    stage.scheduler.start()
    await at(1)
    assert [(asked.at_s, asked.partition, asked.budgets, asked.reserved) for asked in stage.store.claims] == [
        (0, 0, [3], [3]), (0.1, 1, [2], [5]), (0.1, 2, [2], [5]),
    ]  # fmt: skip
    stage.scheduler.tasks[0].cancel()
    await at(1.1)
    assert stage.posts[0].reserved == 0


@simulated
async def test_another_route_comes_first_each_time(make: MakeStage) -> None:
    stage = make(limit=1, lease_s=3600)
    for number in range(4):
        stage.store.put(f"r{number}")
        stage.store.put(f"s{number}", route="s")
    stage.scheduler.start()
    await at(20)
    orders = [[name for name, _ in asked.routes] for asked in stage.store.claims if len(asked.routes) == 2]
    assert orders[:4] == [["s", "r"], ["r", "s"], ["s", "r"], ["r", "s"]]
    assert [name[0] for name in stage.courier.names[:4]] == ["s", "r", "s", "r"]


@simulated
async def test_a_paused_route_is_left_out_and_its_resumption_wakes_all(make: MakeStage) -> None:
    stage = make(partitions=2)
    stage.scheduler.pause_route("r")
    stage.store.put("a")
    stage.store.put("b", partition=1)
    stage.scheduler.start()
    await at(2)
    assert {name for asked in stage.store.claims for name, _ in asked.routes} == {"s"}
    stage.scheduler.pause_route("s")
    stage.scheduler.resume_route("r")
    await at(3)
    assert [(each.at_s, each.name) for each in stage.courier.carried] == [(2, "a"), (2, "b")]
    assert [asked.routes for asked in stage.store.claims[2:]] == [[("r", 0)]] * 2


@simulated
async def test_what_was_claimed_is_carried_with_the_lease_that_is_left_and_the_epoch_of_the_question(
    make: MakeStage,
) -> None:
    stage = make()
    controller = stage.posts[0].controller
    controller.pause(0.0)
    controller.resume(0.0)
    epoch = controller.decision.epoch
    stage.store.takes_s = {"claim": 1.5}
    stage.courier.takes_s = 10
    stage.store.put("a")
    stage.scheduler.start()
    await at(1)
    stage.scheduler.pause_sink("out")  # while the answer is awaited
    assert controller.decision.epoch != epoch
    await at(2)
    assert stage.courier.carried == [Carried(1.5, "r", "a", 58.5, epoch)]
    assert stage.posts[0].active == 1
    store, lease_ms, metrics, _, sink_decided = stage.courier.made_with
    assert (store, lease_ms, metrics) == (stage.store, 60_000, stage.metrics)
    assert sink_decided == stage.scheduler._sink_decided


# -- a sink that is down


@simulated
async def test_a_sink_is_probed_when_its_backoff_ends_with_one_of_two_that_did_not_fail_last(make: MakeStage) -> None:
    stage = make(interval_s=60, lease_s=3600, partitions=2)
    controller, health = stage.posts[0].controller, stage.posts[0].health
    stage.courier.takes_s = 100
    stage.store.takes_s = {"claim": 0.05}
    stage.scheduler.start()
    await at(1)
    assert controller.failed(controller.decision.epoch, Time.monotonic())
    stage.scheduler._sink_decided(stage.posts[0])
    health.failed_last = "r", "a"
    for name in ("a", "b", "c"):
        stage.store.put(name)
    before = len(stage.store.claims)
    await at(7)
    epoch = controller.decision.epoch
    probes = stage.store.claims[before:]
    assert (probes[0].at_s, probes[0].budgets) == (6, [2])
    assert controller.decision.state is State.PROBING
    assert stage.metrics.total("sink_backoff_decisions_total") == 2  # both were told
    assert sorted((each.name, each.epoch) for each in stage.courier.carried) == [("a", NO_EPOCH), ("b", epoch)]
    assert controller.decision.wake_at_s == pytest.approx(BEGAN_S + 6 + 3600)
    assert stage.posts[0].active == 2


@simulated
async def test_an_operators_word_about_a_sink_is_told_and_looked_after_at_once(
    make: MakeStage, said: Callable[[str], int]
) -> None:
    stage = make(sinks=2)
    stage.scheduler.start()
    await at(1)
    assert not stage.scheduler.resume_sink("other")
    assert stage.looks() == [0]
    assert stage.scheduler.pause_sink("other")
    assert not stage.scheduler.pause_sink("other")
    await at(2)
    assert stage.looks() == [0, 1]
    assert [post.controller.decision.state for post in stage.posts] == [State.FLOWING, State.PAUSED]
    assert said("scheduler.sink.paused") == 1
    assert stage.metrics.value("sink_backoff_decisions_total", sink="other", state="paused", reason="paused") == 1
    assert stage.scheduler.resume_sink("other")
    await at(3)
    assert stage.posts[1].controller.decision.state is not State.PAUSED
    assert 2 in stage.looks()


# -- Redis fails


@simulated
async def test_redis_that_fails_is_asked_ever_more_seldom_and_its_return_is_told_once(
    make: MakeStage, said: Callable[[str], int]
) -> None:
    stage = make(interval_s=60, partitions=2, draw=None)
    stage.store.look_errors = {0: [failure() for _ in range(6)], 1: [None, *(failure() for _ in range(2))]}
    stage.scheduler.start()
    await at(0.2)
    stage.scheduler._timers[1].poked.set()  # it fails a little later
    await at(0.3)
    timers = stage.scheduler._timers
    assert timers[1].failing_since_s == pytest.approx(BEGAN_S + 0.2001)
    since_s = stage.scheduler.failing_since_s
    assert since_s == timers[0].failing_since_s == BEGAN_S
    await at(4)
    assert stage.looks(1) == pytest.approx([0, 0.2, 0.6, 1.6])
    assert stage.backs == []
    await at(30)
    # A pause of 0.1 s, then what was drawn: the windows' upper ends.
    steps_s = [0.4, 1.0, 2.8, 5.1, 5.1, 5.1]
    assert stage.looks(0)[:7] == pytest.approx([sum(steps_s[:number]) for number in range(7)])
    assert [high for low, high in stage.windows if low == 100] == [300, 300, 900, 900, 2700, 5000, 5000, 5000]
    assert stage.backs == pytest.approx([19.5])
    assert stage.scheduler.failing_since_s is None
    assert (said("scheduler.store.failed"), said("scheduler.store.back")) == (1, 1)
    assert stage.metrics.value("store_errors_total", reason="redis-timeout") == 8


@simulated
async def test_what_pokes_while_redis_fails_does_not_make_it_asked_at_once(make: MakeStage) -> None:
    stage = make(draw=None)
    stage.store.look_errors = {0: [failure()]}
    stage.scheduler.start()
    await at(0.05)
    stage.scheduler.poke()
    await at(0.3)
    assert stage.looks() == pytest.approx([0, 0.1])


@simulated
async def test_a_claim_whose_answer_got_lost_is_released_once_an_interval_until_something_came_back(
    make: MakeStage, said: Callable[[str], int]
) -> None:
    stage = make(interval_s=5, draw=0.0)
    stage.store.claim_errors = [failure(Applied.AMBIGUOUS)]
    stage.store.returns = [0, 0, 3]
    stage.scheduler.start()
    await at(7)
    stage.scheduler.poke()  # no reason to ask more often
    await at(60)
    token = stage.store.tokens[0]
    assert [released[1:] for released in stage.store.released] == [(0, ["r", "s"], token)] * 3
    at_s = [released[0] for released in stage.store.released]
    assert at_s == [0.1, 7, 15]
    assert said("scheduler.claim.released") == 1
    assert stage.posts[0].reserved == 0


@simulated
async def test_a_claim_that_may_still_come_is_released_until_its_lease_would_be_over(
    make: MakeStage, said: Callable[[str], int]
) -> None:
    stage = make(interval_s=5)
    stage.store.claim_errors = [failure(Applied.AMBIGUOUS), failure(Applied.NO), None]
    stage.scheduler.start()
    await at(200)
    at_s = [released[0] for released in stage.store.released]
    assert at_s == [0.1, *range(10, 61, 5)]
    assert {released[3] for released in stage.store.released} == {stage.store.tokens[0]}
    assert said("scheduler.claim.released") == 0
    assert stage.scheduler._timers[0].unheard == []


@simulated
async def test_what_maintenance_puts_right_is_counted_and_said(make: MakeStage, said: Callable[[str], int]) -> None:
    stage = make()
    stage.store.finds = [NOTHING, Maintained(2, 3, 4, -1, (Mended("r", 1), Mended("s", 2)))]
    stage.scheduler.start()
    await at(10)
    assert said("scheduler.lease.ran_out") == said("scheduler.store.repaired") == 0
    await at(50)
    assert said("scheduler.lease.ran_out") == 1
    assert said("scheduler.store.repaired") == 4
    kinds = {"instant": 3, "timeline": 4, "count": 1, "ledger": 2}
    assert {kind: stage.metrics.value("store_repairs_total", kind=kind) for kind in kinds} == kinds


# -- the end


@simulated
async def test_a_drain_waits_for_what_is_carried_until_its_instant_and_then_cuts_it_off(make: MakeStage) -> None:
    stage = make()
    stage.store.put("a")
    stage.courier.takes_s = 100
    stage.scheduler.start()
    await at(1)
    assert stage.posts[0].active == 1
    until_s = Time.monotonic() + 7
    await stage.scheduler.drain(until_s)
    assert Time.monotonic() == pytest.approx(until_s)
    assert stage.posts[0].active == 0
    assert stage.courier.ended == []
    assert stage.looks()[-1] < 1.1
    assert not stage.scheduler._work


@simulated
async def test_a_drain_whose_instant_has_passed_waits_for_nothing(make: MakeStage) -> None:
    stage = make()
    stage.store.put("a")
    stage.courier.takes_s = 100
    stage.scheduler.start()
    await at(1)
    await stage.scheduler.drain(Time.monotonic() - 1)
    assert now_s() == 1
    assert stage.posts[0].active == 0


@simulated
async def test_a_drain_ends_as_soon_as_what_is_carried_has_and_without_any_at_once(make: MakeStage) -> None:
    stage = make()
    stage.store.put("a")
    stage.courier.takes_s = 3
    stage.scheduler.start()
    await at(1)
    await stage.scheduler.drain(Time.monotonic() + 7)
    assert now_s() == pytest.approx(3)
    assert stage.courier.ended == ["a"]
    await stage.scheduler.drain(Time.monotonic() + 7)
    assert now_s() == pytest.approx(3)


@pytest.mark.parametrize("in_time_s", [5, -1])
@simulated
async def test_a_drain_waits_for_a_claim_until_its_instant_and_then_cuts_it_off(
    make: MakeStage, in_time_s: float
) -> None:
    stage = make()
    stage.store.hangs_in = {0}
    stage.scheduler.start()
    await at(1)
    await stage.scheduler.drain(Time.monotonic() + in_time_s)
    assert now_s() == 1 + max(0, in_time_s)
    assert all(task.done() for task in stage.scheduler.tasks)
    assert stage.posts[0].reserved == 0


@simulated
async def test_what_a_claim_brings_while_it_drains_is_still_carried(make: MakeStage) -> None:
    stage = make()
    stage.store.takes_s = {"claim": 1}
    stage.courier.takes_s = 2
    stage.store.put("a")
    stage.scheduler.start()
    await at(0.5)
    await stage.scheduler.drain(Time.monotonic() + 10)
    assert now_s() == pytest.approx(3)
    assert stage.courier.ended == ["a"]
    assert len(stage.store.claims) == 1


@pytest.mark.parametrize("what", ["maintenance", "agenda"])
@simulated
async def test_who_drains_claims_nothing_more(make: MakeStage, what: str) -> None:
    stage = make()
    stage.store.takes_s = {what: 1}
    stage.store.put("a")
    stage.scheduler.start()
    await at(0.5)
    await stage.scheduler.drain(Time.monotonic() + 10)
    assert now_s() == pytest.approx(1)
    assert stage.store.claims == []
    assert len(stage.store.looks) == (what == "agenda")


@simulated
async def test_a_sink_of_several_routes_is_one_post(make: MakeStage) -> None:
    both = make()
    assert both.scheduler.posts == both.posts
    stage = make(sinks=2)
    assert stage.scheduler.posts == stage.posts
    assert [stage.scheduler._post(post.name) for post in stage.posts] == stage.posts
