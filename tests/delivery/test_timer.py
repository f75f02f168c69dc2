"""timer.py and claims.py in simulated time, beside a store and sinks that are told what to do: the instants of looks
and claims, what is asked for, and what is handed on."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from nsqdigest.backoff import Controller, Curve, State
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.base.reasons import Verdict
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery import outlet as outlet_module
from nsqdigest.delivery.delivery import PUT_BACK_ONLY, Delivery, DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.paced import outlet_of
from nsqdigest.delivery.sinks.base import Outcome
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.store.answers import Claim, Claimed, Ended, Maintained, Mended
from nsqdigest.store.digests import Ending
from nsqdigest.store.schedule import Plan
from support.delivering import DAMAGE, NoHolds, ToldDead, ToldDigests, ToldSink, now_s, simulate
from support.settings import HOOK, POLICY, ROUTE, SINK
from support.simulated import BEGAN_S, Time, simulated
from support.waiting import until

pytestmark = pytest.mark.unit

NOTHING = Maintained(0, 0, 0, 0, ())
MOST_LOOKS = 500


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
class ToldStore(ToldDigests):
    """Timelines with an instant each, by partition and route. What waits again is put back."""

    due: dict[tuple[int, str, str], float] = field(default_factory=dict)
    looks: list[tuple[float, int]] = field(default_factory=list)
    claims: list[Asked] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    claims_at_a_time: int = 0
    most_at_a_time: int = 0
    maintained: list[tuple[float, int, list[str], int]] = field(default_factory=list)
    turns: list[tuple[float, int, str, int]] = field(default_factory=list)
    of_others: dict[str, list[bool]] = field(default_factory=lambda: {"upkeep": [], "claim of all": []})
    """Whether another daemon has the next turns."""
    went_back: list[int] = field(default_factory=list)
    census: list[bool] = field(default_factory=list)
    """Whether it goes on."""
    turn_errors: list[StoreError] = field(default_factory=list)
    asked_again: list[tuple[float, int, list[str], str]] = field(default_factory=list)
    look_errors: dict[int, list[StoreError | None]] = field(default_factory=dict)
    claim_errors: list[StoreError | None] = field(default_factory=list)
    claim_again_errors: list[StoreError | None] = field(default_factory=list)
    damaged_routes: set[str] = field(default_factory=set)
    finds: list[Maintained] = field(default_factory=list)
    found_again: list[list[str]] = field(default_factory=list)
    """What the next ones that are asked again took, of route r."""
    hangs_in: set[int] = field(default_factory=set)
    outlets: list[Outlet] = field(default_factory=list)
    dead: Any = field(default_factory=ToldDead)
    holds: Any = field(default_factory=NoHolds)

    @property
    def digests(self) -> ToldStore:
        return self

    @property
    def upkeep(self) -> ToldStore:
        return self

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
        reserved = [outlet.reserved for outlet in self.outlets]
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
        if self.damaged_routes.intersection(name for name, _ in routes):
            raise DAMAGE
        left, taken = list(budgets), []
        for name, number in routes:
            for due_ms, key in self._of(partition, [name]):
                if due_ms <= self.now_ms() and left[number]:
                    left[number] -= 1
                    taken.append(Claim(partition, name, key[2], due_ms, token))
                    del self.due[key]
        rest = self._of(partition, [name for name, _ in routes])
        return Claimed(taken, rest[0][0] if rest else None)

    async def claim_again(self, partition: int, routes: Sequence[str], lease_ms: int, token: str) -> list[Claim]:
        self.asked_again.append((now_s(), partition, list(routes), token))
        if self.claim_again_errors and (error := self.claim_again_errors.pop(0)) is not None:
            raise error
        found = self.found_again.pop(0) if self.found_again else []
        return [Claim(partition, "r", name, self.now_ms(), token) for name in found]

    async def finish(self, partition: int, endings: Sequence[Ending]) -> list[Ended]:
        answer = await super().finish(partition, endings)
        for ending in endings:
            if ending.kind == "wait":
                self.due[partition, ending.claim.route, ending.claim.timeline] = ending.after.base_ms / 1000
        return answer

    async def has_turn(self, partition: int, work: str, routes: Sequence[str], every_ms: int) -> bool:
        self.turns.append((now_s(), partition, work, every_ms))
        if self.turn_errors:
            raise self.turn_errors.pop(0)
        return not (self.of_others[work].pop(0) if self.of_others[work] else False)

    def is_census_done(self, partition: int, routes: Sequence[str]) -> bool:
        return not self.census.pop(0) if self.census else True

    def went_back_ms(self, partition: int) -> int:
        return self.went_back.pop(0) if self.went_back else 0

    async def maintain(self, partition: int, routes: Sequence[str], lease_ms: int) -> Maintained:
        self.maintained.append((now_s(), partition, list(routes), lease_ms))
        await asyncio.sleep(self.takes_s.get("maintenance", 0))
        return self.finds.pop(0) if self.finds else NOTHING


class Stage(NamedTuple):
    store: ToldStore
    sinks: list[ToldSink]
    outlets: list[Outlet]
    metrics: Metrics
    windows: list[tuple[float, float]]
    scheduler: Scheduler
    backs: list[float]

    @property
    def sink(self) -> ToldSink:
        return self.sinks[0]

    def looks(self, partition: int = 0) -> list[float]:
        return [at_s for at_s, of in self.store.looks if of == partition]

    def asked(self) -> list[tuple[float, list[str]]]:
        """When, and of which routes."""
        return [(asked.at_s, sorted(name for name, _ in asked.routes)) for asked in self.store.claims]

    def sent(self) -> list[tuple[float, str]]:
        """When, and what, over all sinks."""
        found = [
            (round(at_s, 3), digest.timeline) for sink in self.sinks
            for at_s, digest in zip(sink.sent_s, sink.sent, strict=True)
        ]  # fmt: skip
        return sorted(found, key=lambda each: each[0])

    def names(self) -> list[str]:
        return [name for _, name in self.sent()]


MakeStage = Callable[..., Stage]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> MakeStage:
    simulate(monkeypatch)

    def stage(
        *, interval_s: float = 30, lease_s: float = 60, batch: int = 100, limit: int = 8, partitions: int = 1,
        sinks: int = 1, draw: float | None = 0.0, takes_s: float = 0.0, per_s: float = 0.0,
        paced: Sequence[str] = ("out", "other"), **settings: Any,
    ) -> Stage:  # fmt: skip
        """Routes r and s: with two sinks, each has its own. It draws `draw`, or else the highest. A send takes
        `takes_s`."""
        store, metrics, windows, backs = ToldStore(partitions), Metrics(), [], []
        told = [ToldSink() for _ in range(sinks)]
        for sink in told:
            sink.takes_s = takes_s

        def uniform(low: float, high: float) -> float:
            windows.append((low, high))
            return high if draw is None else draw

        curve = Curve(2.5, 100.0, jitter="none")
        own = replace(HOOK, own_spacing_s=1 / per_s) if per_s else SINK
        outlets = [
            outlet_of(
                replace(own if name in paced else SINK, name=name, concurrency=limit, **settings), sink,
                Controller(limit, curve, lambda low, _: low, slow_start=False),
            )
            for name, sink in zip(("out", "other"), told, strict=False)
        ]  # fmt: skip
        store.outlets = outlets
        routes = {
            name: DeliveryRoute(replace(ROUTE, name=name), Plan(POLICY), outlets[number % sinks])
            for number, name in enumerate(("r", "s"))
        }
        made = SchedulerSettings(interval_ms=round(1000 * interval_s), lease_ms=round(1000 * lease_s), batch=batch)
        scheduler = Scheduler(
            made, routes, store, metrics, uniform, on_store_back=lambda: backs.append(now_s())  # type: ignore[arg-type]
        )  # fmt: skip
        return Stage(store, told, outlets, metrics, windows, scheduler, backs)

    return stage


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
async def test_leases_that_were_given_are_not_shortened_however_often_the_file_makes_them_shorter(
    make: MakeStage,
) -> None:
    stage = make(interval_s=5)
    stage.scheduler.start()
    for at_s, lease_s in ((2, 30), (4, 16)):
        await at(at_s)
        routes = stage.scheduler._routes
        stage.scheduler.change(SchedulerSettings(interval_ms=5000, lease_ms=1000 * lease_s, batch=100), routes, ())
    await at(100)
    longest_ms = [(at_s, lease_ms) for at_s, _, _, lease_ms in stage.store.maintained]
    assert {lease_ms for at_s, lease_ms in longest_ms if at_s < 60} == {60_000}
    assert {lease_ms for at_s, lease_ms in longest_ms if at_s > 65} == {16_000}


@simulated
async def test_a_turn_that_another_daemon_has_is_left_to_it(make: MakeStage) -> None:
    stage = make(interval_s=5)
    stage.store.of_others = {
        "upkeep": [False, True, True, False, *[True] * 5],
        "claim of all": [True, True, False],
    }
    stage.store.census = [False, True]
    stage.scheduler.start()
    await at(125)
    assert [turn for turn in stage.store.turns if turn[2] == "upkeep"] == [
        (15.0 * number, 0, "upkeep", 15_000) for number in range(9)
    ]
    assert [at_s for at_s, *_ in stage.store.maintained] == [0.0, 30.0, 45.0], "at 30 its own census went on"
    assert stage.asked() == [(0.0, ["r", "s"]), (120.0, ["r", "s"])], "the first claim is of all"


@simulated
async def test_a_turn_to_claim_of_all_is_kept_until_that_was_done(make: MakeStage) -> None:
    stage = make(interval_s=5)
    stage.store.of_others["claim of all"] = [False, True]
    stage.store.look_errors = {0: [DAMAGE, DAMAGE]}
    stage.scheduler.start()
    await at(50)
    assert [turn[2] for turn in stage.store.turns].count("claim of all") == 1
    assert [routes for _, routes in stage.asked()] == [["r", "s"]]


@simulated
async def test_where_the_key_of_turns_is_damaged_every_daemon_does_the_upkeep(
    make: MakeStage, logged: Callable[[str], int]
) -> None:
    stage = make(interval_s=5)
    stage.store.turn_errors = [DAMAGE]
    stage.store.put("a", route="r")
    stage.scheduler.start()
    await at(1)
    assert [at_s for at_s, *_ in stage.store.maintained] == [0.0]
    assert stage.sent() == [(0, "a")]
    assert logged("scheduler.store.damaged") == 1


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
    stage.scheduler.wake()
    await at(25)
    assert stage.sent() == [(0, "at once"), (4.5, "soon"), (15.25, "later"), (17, "last")]
    assert stage.asked() == [(0, ["r", "s"]), (4.5, ["r"]), (15.25, ["s"]), (17, ["r"])]
    assert set(stage.looks()) == {0, 4.5, 5, 15.25, 17, 20}


@simulated
async def test_what_is_known_to_be_due_is_claimed_before_the_agenda_is_read(make: MakeStage) -> None:
    stage = make(interval_s=20, partitions=2)
    stage.scheduler.start()
    await at(5)
    stage.store.put("now", 5, route="s", partition=1)
    stage.store.takes_s["agenda"] = 3
    stage.scheduler.on_due([("s", 1)])
    await at(6)
    assert stage.sent() == [(5, "now")]
    assert stage.asked()[-1] == (5, ["s"])
    assert (stage.looks(0), set(stage.looks(1))) == ([0], {0, 5})


@simulated
async def test_a_claim_waits_for_nothing_that_is_being_opened(make: MakeStage) -> None:
    stage = make()
    stage.store.takes_s = {"open": 5}
    stage.store.put("a")
    stage.store.put("b", 1)
    stage.scheduler.start()
    await at(7)
    assert stage.sent() == [(5, "a"), (6, "b")]


@simulated
async def test_what_becomes_due_behind_the_backlog_of_another_route_gets_its_turn(make: MakeStage) -> None:
    """Without a word of intake: it is the agenda that names it."""
    stage = make(limit=1, takes_s=1, lease_s=3600)
    stage.scheduler.start()
    await at(1)
    for number in range(100):
        stage.store.put(f"r{number}", 1)
        stage.store.put(f"s{number}", 3.5, route="s")
    stage.scheduler.on_due([("r", 0)])
    await at(14.5)
    turns = [name[0] for name in stage.names()]
    assert set(turns[:3]) == {"r"}
    assert 4 <= turns[3:].count("s") <= 6


@simulated
async def test_a_claims_answer_says_when_there_is_more(make: MakeStage) -> None:
    stage = make(interval_s=20)
    stage.store.put("soon", 4.5)
    stage.scheduler.start()
    await at(5)
    assert set(stage.looks()) == {0, 4.5}
    assert stage.names() == ["soon"]


@pytest.mark.parametrize(("limit", "at_s"), [(1, 3), (2, 20)])
@simulated
async def test_who_found_a_sink_full_hears_of_its_room_and_nobody_of_more_room(
    make: MakeStage, limit: int, at_s: float
) -> None:
    stage = make(limit=limit, partitions=2, interval_s=20, takes_s=3)
    stage.store.put("a")
    stage.scheduler.start()
    await at(21)
    assert stage.looks(1)[:2] == [0, at_s]


@simulated
async def test_nobody_wakes_for_what_its_sink_has_no_room_for(make: MakeStage) -> None:
    stage = make(interval_s=20, sinks=2)
    stage.scheduler.start()
    await at(1)
    stage.outlets[0].history.stopped("gone", 0.0)
    stage.store.put("a", 5)
    stage.store.put("b", 12, route="s")
    stage.scheduler.wake()
    await at(20)
    assert set(stage.looks()) == {0, 1, 12, 20}
    assert stage.asked() == [(0, ["r", "s"]), (12, ["s"])]
    assert stage.store.claims[1].routes == [("s", 0)]
    assert stage.store.claims[1].budgets == [8]
    assert stage.names() == ["b"]


@simulated
async def test_a_sink_that_is_full_is_asked_for_again_when_it_has_room_and_not_before(make: MakeStage) -> None:
    stage = make(limit=2, partitions=2, lease_s=3600, takes_s=3)
    for number in range(5):
        stage.store.put(f"t{number}", number / 1000)
    stage.store.put("other", 4, partition=1)
    await at(0.01)
    stage.scheduler.start()
    await at(1)
    assert stage.outlets[0].held == 2
    assert [asked.budgets for asked in stage.store.claims[:2]] == [[1], [1]]
    await at(30)
    assert stage.outlets[0].held == 0
    assert stage.outlets[0].reserved == 0
    assert sorted(stage.names()) == ["other", "t0", "t1", "t2", "t3", "t4"]
    # The other partition's timer heard of the room, too.
    assert len(stage.looks(1)) >= 4
    assert len(stage.store.looks) < 40


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
    assert [outlet.reserved for outlet in stage.outlets] == [0, 0]
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
    next(iter(stage.scheduler.tasks)).cancel()
    await at(1.1)
    assert stage.outlets[0].reserved == 0


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
    assert [name[0] for name in stage.names()[:4]] == ["s", "r", "s", "r"]


@simulated
async def test_a_paused_route_is_left_out_and_its_resumption_wakes_all(make: MakeStage) -> None:
    stage = make(partitions=2)
    stage.scheduler.pause_route("r")
    stage.store.put("a")
    stage.store.put("b", partition=1)
    stage.scheduler.start()
    await at(2)
    assert {name for asked in stage.store.claims for name, _ in asked.routes} == {"s"}
    assert stage.scheduler.pause_route("s")
    assert stage.scheduler.resume_route("r")
    await at(3)
    assert stage.sent() == [(2, "a"), (2, "b")]
    assert [asked.routes for asked in stage.store.claims[2:]] == [[("r", 0)]] * 2


@simulated
async def test_what_was_claimed_has_the_lease_that_is_left_and_the_epoch_of_the_question(
    make: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make()
    controller = stage.outlets[0].controller
    controller.pause(0.0)
    controller.resume(0.0)
    epoch = controller.decision.epoch
    opened: list[tuple[float, str, float, int]] = []
    really_open = stage.scheduler._opener.open

    async def watched(partition: int, claimed: Sequence[Delivery]) -> None:
        opened.extend((now_s(), each.claim.timeline, round(each.lease_left_s, 6), each.epoch) for each in claimed)
        await really_open(partition, claimed)

    monkeypatch.setattr(stage.scheduler._opener, "open", watched)
    stage.store.takes_s = {"claim": 1.5}
    stage.store.put("a")
    stage.scheduler.start()
    await at(1)
    stage.scheduler.pause_sink("out")  # while the answer is awaited
    assert controller.decision.epoch != epoch
    await at(2)
    assert opened == [(1.5, "a", 58.5, epoch)]
    # It was claimed before the sink was paused: it goes back unsent.
    assert stage.sink.sent == []
    assert stage.store.finished() == [[("wait", "a")]]
    assert stage.outlets[0].held == 0


@simulated
async def test_room_that_was_only_reserved_is_anothers_at_once(make: MakeStage) -> None:
    """Partition 1 has something due and sees no room, since a claim of partition 0 is under way. That one brings
    nothing: another daemon was quicker."""
    stage = make(limit=1, partitions=2)
    stage.scheduler.start()
    await at(1)
    stage.store.takes_s = {"claim": 0.05}
    stage.store.put("taken", 1)
    stage.scheduler._timers[0].woken.set()
    await at(1.02)
    stage.store.due.clear()
    stage.store.put("a", 1, partition=1)
    stage.scheduler._timers[1].woken.set()
    await at(2)
    ((at_s, name),) = stage.sent()
    assert name == "a"
    assert 1.1 <= at_s < 1.11


@simulated
async def test_claims_of_one_route_after_the_other_share_one_budget(make: MakeStage) -> None:
    stage = make(limit=1, interval_s=5, takes_s=1)
    stage.store.put("a")
    stage.store.put("b", route="s")
    stage.store.claim_errors = [DAMAGE]
    stage.scheduler.start()
    await at(0.5)
    assert [asked.budgets for asked in stage.store.claims[:3]] == [[1], [1], [0]]
    assert stage.outlets[0].held == 1


@simulated
async def test_a_claim_for_several_sinks_is_asked_for_again_though_one_of_them_had_no_room_left(
    make: MakeStage,
) -> None:
    stage = make(limit=1, sinks=2, interval_s=5)
    stage.store.put("a")
    stage.store.put("b", route="s")
    stage.store.claim_errors = [DAMAGE, None, failure(Applied.AMBIGUOUS)]
    stage.scheduler.start()
    await at(0.05)
    lost = [each.token for each in stage.scheduler._timers[0].claims.lost]
    assert sorted(map(str, lost)) == sorted(map(str, stage.store.tokens[:3]))


@simulated
async def test_bodies_that_waited_and_went_out_are_room_for_every_partition(
    make: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_module, "READY_BYTES", 1)
    stage = make(limit=2, partitions=2, takes_s=3)
    stage.outlets[0]._pace.per_s = 30  # so that one more is claimed ahead
    for number in range(4):
        stage.store.put(f"a{number}")
    stage.scheduler.start()
    await at(1)
    assert stage.outlets[0].held == 4  # two are sent, and those that wait have enough bytes
    stage.store.put("b", partition=1)
    stage.scheduler.wake()
    await at(2)
    assert stage.names() == ["a0", "a1"]
    await at(20)
    assert "b" in stage.names()
    assert stage.sent()[-1][0] <= 6


@simulated
async def test_what_is_claimed_and_not_concluded_is_bounded_however_much_is_due(make: MakeStage) -> None:
    stage = make(limit=4, lease_s=3600, takes_s=0.01)
    for number in range(1000):
        stage.store.put(f"t{number}")
    held: list[int] = []
    stage.scheduler.start()
    while len(stage.sink.sent) < 1000:
        await asyncio.sleep(0.005)
        held.append(stage.outlets[0].held)
        stage.store.looks.clear()
    # 400 a second go out: a tenth of a second's work may lie ready.
    assert max(held) <= 4 + 0.1 * 400 * 1.2
    assert max(held) > 8
    await at(30)
    assert stage.outlets[0].held == stage.outlets[0].reserved == stage.outlets[0].ready_bytes == 0


@simulated
async def test_partitions_share_a_sinks_room(make: MakeStage) -> None:
    stage = make(limit=4, partitions=4, lease_s=3600, takes_s=1)
    for partition in range(4):
        for number in range(20):
            stage.store.put(f"{partition}-{number}", partition=partition)
    stage.scheduler.start()
    await at(7.5)
    shares = [sum(name.startswith(f"{partition}-") for name in stage.names()) for partition in range(4)]
    assert sum(shares) == 32
    assert max(shares) - min(shares) <= 3


@simulated
async def test_a_route_whose_keys_are_damaged_stops_no_other_and_is_not_asked_for_again_and_again(
    make: MakeStage, logged: Callable[[str], int]
) -> None:
    stage = make(interval_s=5)
    stage.store.damaged_routes = {"r"}
    stage.store.put("bad")
    stage.store.put("good", route="s")
    stage.scheduler.start()
    await at(21)
    assert stage.names() == ["good"]
    assert len(stage.store.claims) < 20
    assert logged("scheduler.store.damaged") >= 1
    stage.store.damaged_routes = set()
    await at(30)
    assert stage.names() == ["good", "bad"]
    assert stage.scheduler.failing_since_s is None


@simulated
async def test_a_digest_that_is_due_alone_costs_seven_calls(make: MakeStage) -> None:
    """Look, claim, open, read, finish; and the look, twice, whether there is more."""
    stage = make()
    stage.scheduler.start()
    await at(1)
    looks, claims = len(stage.store.looks), len(stage.store.claims)
    stage.store.put("a", 1)
    stage.scheduler.wake()
    await at(2)
    assert stage.sent() == [(1.0, "a")]
    calls = [call.name for call in stage.store.calls]
    assert calls == ["open", "read", "finish"]
    assert len(stage.store.claims) - claims == 1
    assert len(stage.store.looks) - looks <= 2


# -- a sink that is down


@simulated
async def test_a_sink_is_probed_when_its_backoff_ends_with_one_of_two_that_did_not_fail_last(
    make: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make(interval_s=60, lease_s=3600, partitions=2)
    controller, health = stage.outlets[0].controller, stage.outlets[0].health
    stage.sink.may_answer.clear()
    opened: list[tuple[str, int]] = []
    really_open = stage.scheduler._opener.open

    async def watched(partition: int, claimed: Sequence[Delivery]) -> None:
        opened.extend((each.claim.timeline, each.epoch) for each in claimed)
        await really_open(partition, claimed)

    monkeypatch.setattr(stage.scheduler._opener, "open", watched)
    stage.store.takes_s = {"claim": 0.05}
    stage.scheduler.start()
    await at(1)
    assert controller.failed(controller.decision.epoch, Time.monotonic())
    stage.scheduler._on_decision(stage.outlets[0])
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
    assert sorted(opened) == [("a", PUT_BACK_ONLY), ("b", epoch)]
    assert controller.decision.wake_at_s == pytest.approx(BEGAN_S + 6 + 3600)
    # Only the probe is sent; the other one went back, and nothing more is claimed meanwhile.
    assert (stage.names(), stage.outlets[0].held) == (["b"], 1)
    assert stage.store.finished() == [[("wait", "a")]]
    assert len(probes) == 1
    stage.sink.may_answer.set()
    await at(8)
    assert sorted(stage.names()) == ["a", "b", "c"]


@simulated
async def test_what_is_due_while_a_sink_is_down_is_not_claimed_until_its_backoff_ends(make: MakeStage) -> None:
    stage = make(lease_s=3600)
    stage.sink.outcomes = [Outcome(Verdict.UNAVAILABLE, "503")]
    stage.store.put("a")
    stage.scheduler.start()
    await at(1)
    claims = len(stage.store.claims)
    for number in range(5):
        stage.store.put(f"b{number}", 1)
    stage.scheduler.wake()
    await at(4)
    assert len(stage.store.claims) == claims
    await at(7)
    assert len(stage.sink.sent) == 7
    assert stage.sent()[1][0] == 5.0


@simulated
async def test_an_operators_word_about_a_sink_is_told_and_looked_after_at_once(
    make: MakeStage, logged: Callable[[str], int]
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
    assert [outlet.controller.decision.state for outlet in stage.outlets] == [State.FLOWING, State.PAUSED]
    assert logged("scheduler.sink.paused") == 1
    assert stage.metrics.value("sink_backoff_decisions_total", sink="other", state="paused", reason="paused") == 1
    assert stage.scheduler.resume_sink("other")
    await at(3)
    assert stage.outlets[1].controller.decision.state is not State.PAUSED
    assert 2 in stage.looks()


# -- Redis fails


@simulated
async def test_redis_that_fails_is_asked_ever_more_seldom_and_its_return_is_told_once(
    make: MakeStage, logged: Callable[[str], int]
) -> None:
    stage = make(interval_s=60, partitions=2, draw=None)
    stage.store.look_errors = {0: [failure() for _ in range(6)], 1: [None, *(failure() for _ in range(2))]}
    stage.scheduler.start()
    await at(0.2)
    stage.scheduler._timers[1].woken.set()  # it fails a little later
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
    assert (logged("scheduler.store.failed"), logged("scheduler.store.back")) == (1, 1)
    assert stage.metrics.value("store_errors_total", reason="redis-timeout") == 8


@simulated
async def test_what_pokes_while_redis_fails_does_not_make_it_asked_at_once(make: MakeStage) -> None:
    stage = make(draw=None)
    stage.store.look_errors = {0: [failure()]}
    stage.scheduler.start()
    await at(0.05)
    stage.scheduler.wake()
    await at(0.3)
    assert stage.looks() == pytest.approx([0, 0.1])


@simulated
async def test_while_redis_ends_no_digest_one_is_tried_now_and_then_until_one_is_ended(
    make: MakeStage, logged: Callable[[str], int]
) -> None:
    stage = make(limit=4, draw=None)
    for number in range(1000):
        stage.store.put(f"t{number}")
    stage.store.fails["finish"] = [failure() for _ in range(10_000)]
    stage.scheduler.start()
    await at(3)
    sent = len(stage.sink.sent)
    stage.store.looks.clear()
    await at(59)
    assert len(stage.sink.sent) == sent, "nothing is claimed while ends fail"
    assert stage.scheduler.failing_since_s is not None
    assert logged("scheduler.store.failed") == 1
    await at(60 + 600)
    trials = [at_s for at_s, _ in stage.sent()[sent:]]
    assert 4 <= len(trials) <= 9
    assert [later - earlier > 60 for earlier, later in pairwise(trials)] == [True] * (len(trials) - 1)
    stage.store.looks.clear()
    stage.store.fails.clear()
    while len(stage.sink.sent) < sent + len(trials) + 100:
        await asyncio.sleep(1)
        stage.store.looks.clear()
    assert now_s() < 60 + 600 + 400
    assert stage.scheduler.failing_since_s is None


@simulated
async def test_ends_that_failed_are_no_trouble_where_nothing_is_due(make: MakeStage) -> None:
    stage = make(draw=None)
    stage.store.put("only")
    stage.store.fails["finish"] = [failure() for _ in range(100)]
    stage.scheduler.start()
    await at(50)
    assert stage.scheduler.failing_since_s is not None
    await at(120)
    assert stage.scheduler.failing_since_s is None


@simulated
async def test_what_maintenance_puts_right_is_counted_and_logged(make: MakeStage, logged: Callable[[str], int]) -> None:
    stage = make()
    stage.store.finds = [NOTHING, Maintained(2, 3, 4, -1, (Mended("r", 1), Mended("s", 2)))]
    stage.scheduler.start()
    await at(10)
    assert logged("scheduler.lease.ran_out") == logged("scheduler.store.repaired") == 0
    await at(50)
    assert logged("scheduler.lease.ran_out") == 1
    assert logged("scheduler.store.repaired") == 4
    kinds = {"instant": 3, "timeline": 4, "count": 1, "ledger": 2}
    assert {kind: stage.metrics.value("store_repairs_total", kind=kind) for kind in kinds} == kinds


@simulated
async def test_what_a_claim_took_whose_answer_was_lost_is_asked_for_once_an_interval_until_it_comes(
    make: MakeStage, logged: Callable[[str], int]
) -> None:
    stage = make(interval_s=5, draw=0.0)
    stage.store.claim_errors = [failure(Applied.AMBIGUOUS)]
    stage.store.found_again = [[], [], ["a", "b", "c"]]
    stage.scheduler.start()
    await at(7)
    stage.scheduler.wake()  # no reason to ask more often
    await at(60)
    token = stage.store.tokens[0]
    assert [asked[1:] for asked in stage.store.asked_again] == [(0, ["r", "s"], token)] * 3
    assert [asked[0] for asked in stage.store.asked_again] == [0.1, 7, 15]
    assert logged("scheduler.claim.found") == 1
    assert stage.sent() == [(15, "a"), (15, "b"), (15, "c")]
    assert stage.outlets[0].reserved == stage.outlets[0].held == 0


@simulated
async def test_a_claim_that_may_still_come_is_asked_for_until_its_lease_would_be_over(
    make: MakeStage, logged: Callable[[str], int]
) -> None:
    stage = make(interval_s=5)
    stage.store.claim_errors = [failure(Applied.AMBIGUOUS), failure(Applied.NO), None]
    stage.scheduler.start()
    await at(200)
    assert [asked[0] for asked in stage.store.asked_again] == [0.1, *range(10, 61, 5)]
    assert {asked[3] for asked in stage.store.asked_again} == {stage.store.tokens[0]}
    assert logged("scheduler.claim.found") == 0
    assert stage.scheduler._timers[0].claims.lost == []


@simulated
async def test_what_came_of_one_lost_claim_goes_out_though_another_is_still_not_answered(make: MakeStage) -> None:
    stage = make(interval_s=5)
    stage.store.claim_errors = [failure(Applied.AMBIGUOUS), failure(Applied.AMBIGUOUS)]
    stage.store.found_again = [[], ["a"], ["b"]]
    stage.store.claim_again_errors = [None, None, failure(Applied.AMBIGUOUS)]
    stage.scheduler.start()
    await at(60)
    assert sorted(stage.names()) == ["a", "b"]
    assert stage.outlets[0].held == 0
    assert stage.scheduler._timers[0].claims.lost == []


@simulated
async def test_what_a_claim_took_before_a_later_call_of_it_failed_is_asked_for(make: MakeStage) -> None:
    """One route is damaged, so each is claimed of by its own call: the first takes something, the second one fails."""
    stage = make(interval_s=5)
    stage.store.put("a")
    stage.store.put("b", route="s")
    stage.store.claim_errors = [DAMAGE, None, failure(Applied.NO)]
    stage.scheduler.start()
    await at(0.05)
    assert len(stage.store.claims) == 3
    assert [lost.token for lost in stage.scheduler._timers[0].claims.lost] == stage.store.tokens[:2]
    stage.store.found_again = [["a"]]
    await at(20)
    assert sorted(stage.names())[0] == "a"
    assert stage.outlets[0].held == 0


# -- the end


@simulated
async def test_a_drain_waits_for_what_is_being_sent_until_its_instant_and_then_cuts_it_off(make: MakeStage) -> None:
    stage = make(timeout_ms=100_000, lease_s=600, takes_s=100)
    stage.store.put("a")
    stage.scheduler.start()
    await at(1)
    assert stage.outlets[0].held == 1
    until_s = Time.monotonic() + 7
    await stage.scheduler.drain(until_s)
    assert Time.monotonic() == pytest.approx(until_s)
    assert stage.outlets[0].sending == 0
    assert stage.store.finished() == []
    assert stage.looks()[-1] < 1.1
    assert all(task.done() for task in stage.scheduler.tasks)


@simulated
async def test_a_drain_whose_instant_has_passed_waits_for_nothing(make: MakeStage) -> None:
    stage = make(timeout_ms=100_000, lease_s=600, takes_s=100)
    stage.store.put("a")
    stage.scheduler.start()
    await at(1)
    await stage.scheduler.drain(Time.monotonic() - 1)
    assert now_s() == 1
    assert stage.outlets[0].sending == 0


@pytest.mark.parametrize("partition", [0, 1, 2])
@simulated
async def test_a_drain_ends_as_soon_as_the_last_send_of_any_partition_is_concluded(
    make: MakeStage, partition: int
) -> None:
    stage = make(partitions=3, takes_s=3)
    stage.store.takes_s = {"finish": 0.5}
    stage.store.put("a", partition=partition)
    stage.scheduler.start()
    await at(1)
    await stage.scheduler.drain(Time.monotonic() + 70)
    assert now_s() == pytest.approx(3.5)
    assert stage.store.finished() == [[("close", "a")]]
    await stage.scheduler.drain(Time.monotonic() + 7)
    assert now_s() == pytest.approx(3.5)


@simulated
async def test_neither_an_end_nor_a_drain_waits_for_the_longest_dead_to_be_dropped(
    make: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = make(max_attempts=1, takes_s=1)
    stage.sink.outcome = Outcome(Verdict.REFUSED, "400")

    async def slow(*_: int) -> None:
        await asyncio.sleep(2)

    monkeypatch.setattr(stage.store.dead, "over_limit", slow)
    stage.store.put("a")
    stage.scheduler.start()
    await at(0.5)
    await stage.scheduler.drain(Time.monotonic() + 70)
    assert now_s() == pytest.approx(1)


@simulated
async def test_what_waits_for_a_sender_goes_back_when_it_drains_and_what_is_sent_goes_on(make: MakeStage) -> None:
    stage = make(limit=2, takes_s=3)
    stage.outlets[0]._pace.per_s = 100
    for number in range(8):
        stage.store.put(f"t{number}")
    stage.scheduler.start()
    await at(1)
    assert stage.outlets[0].held == 8
    await stage.scheduler.drain(Time.monotonic() + 70)
    assert now_s() == pytest.approx(3)
    assert stage.names() == ["t0", "t1"]
    back, sent = stage.store.finished()
    assert back == [("wait", f"t{number}") for number in range(2, 8)]
    assert sorted(sent) == [("close", "t0"), ("close", "t1")]
    assert stage.outlets[0].held == 0


@simulated
async def test_what_waits_goes_back_at_once_when_it_drains_though_a_server_hangs(make: MakeStage) -> None:
    stage = make(limit=2, takes_s=30, partitions=2)
    stage.outlets[0]._pace.per_s = 100
    for number in range(4):
        stage.store.put(f"t{number}")
    stage.scheduler.start()
    await at(1)
    stage.store.hangs_in = {1}
    stage.store.put("late", 1, partition=1)
    stage.scheduler.on_due([("r", 1)])
    await at(2)
    await stage.scheduler.drain(Time.monotonic() + 5)
    assert stage.store.finished() == [[("wait", "t2"), ("wait", "t3")]]
    assert [at_s for at_s, _ in stage.store.called("finish")] == [2]
    assert now_s() == pytest.approx(7)


@simulated
async def test_a_drain_ends_in_time_though_redis_does_not_answer(make: MakeStage) -> None:
    stage = make(takes_s=1)
    stage.store.put("a")
    stage.scheduler.start()
    await at(0.5)
    stage.store.takes_s = {"finish": 3600}
    await stage.scheduler.drain(Time.monotonic() + 7)
    assert now_s() == pytest.approx(7.5, abs=0.01)


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
    assert stage.outlets[0].reserved == 0


@pytest.mark.parametrize(("in_time_s", "sent"), [(5, ["a"]), (2, [])])
@simulated
async def test_a_drain_waits_for_what_is_being_opened_until_its_instant_and_then_cuts_it_off(
    make: MakeStage, in_time_s: float, sent: list[str]
) -> None:
    stage = make()
    stage.store.takes_s = {"open": 4}
    stage.store.put("a")
    stage.scheduler.start()
    await at(1)
    await stage.scheduler.drain(Time.monotonic() + in_time_s)
    assert now_s() == pytest.approx(1 + min(3, in_time_s))
    assert stage.names() == sent
    await at(10)
    assert stage.names() == sent


@simulated
async def test_what_a_claim_brings_while_it_drains_is_still_sent_where_a_sender_is_free(make: MakeStage) -> None:
    stage = make(takes_s=2)
    stage.store.takes_s = {"claim": 1}
    stage.store.put("a")
    stage.scheduler.start()
    await at(0.5)
    await stage.scheduler.drain(Time.monotonic() + 10)
    assert now_s() == pytest.approx(3)
    assert stage.store.finished() == [[("close", "a")]]
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
async def test_a_drain_before_any_start_ends_at_once(make: MakeStage) -> None:
    stage = make()
    await stage.scheduler.drain(Time.monotonic() + 10)
    assert now_s() == 0


@simulated
async def test_a_sink_of_several_routes_is_one_outlet(make: MakeStage) -> None:
    both = make()
    assert both.scheduler.outlets == both.outlets
    stage = make(sinks=2)
    assert stage.scheduler.outlets == stage.outlets
    assert [stage.scheduler._outlet(outlet.name) for outlet in stage.outlets] == stage.outlets


@simulated
@pytest.mark.parametrize("state", [State.BACKOFF, State.PAUSED])
async def test_what_a_lost_claim_took_goes_back_where_its_sink_has_stepped_back_meanwhile(
    make: MakeStage, state: State
) -> None:
    stage = make(interval_s=1, draw=None)
    stage.store.claim_errors = [StoreError("redis-timeout", "as told", Applied.AMBIGUOUS)]
    stage.store.found_again = [["a", "b"]]
    stage.store.put("a")
    await at(0.05)
    controller = stage.outlets[0].controller
    stage.scheduler.start()
    await at(0.06)
    if state is State.PAUSED:
        stage.scheduler.pause_sink("out")
    else:
        controller.failed(controller.decision.epoch, asyncio.get_running_loop().time())
    assert controller.decision.state is state
    await until(lambda: bool(stage.store.asked_again), 10, "the lost claim to be asked for again")
    await at(now_s() + 0.01)
    assert controller.decision.state is state
    assert stage.outlets[0].held == 0
    assert stage.store.finished() == [[("wait", "a"), ("wait", "b")]]
    assert stage.sink.sent == []


# -- a sink with a rate


@simulated
async def test_a_rate_spaces_the_sends_and_claims_each_just_before_its_turn(make: MakeStage) -> None:
    stage = make(per_s=0.5, interval_s=30)
    for name in ("a", "b", "c", "d"):
        stage.store.put(name)
    stage.scheduler.start()
    await at(7)
    assert stage.sent() == [(0.0, "a"), (2.0, "b"), (4.0, "c"), (6.0, "d")]
    opened = [at_s for at_s, _ in stage.store.called("open")]
    assert opened == pytest.approx([0.0, 1.9, 3.9, 5.9], abs=0.001)
    assert [sum(asked.budgets) for asked in stage.store.claims] == [1] * len(stage.store.claims)
    assert stage.store.tokens == [] or all(stage.store.tokens)


@simulated
async def test_with_a_rate_nothing_is_asked_while_there_is_no_room_and_nothing_to_send(make: MakeStage) -> None:
    stage = make(per_s=1, interval_s=10)
    stage.store.put("a")
    stage.scheduler.start()
    await at(40)
    assert stage.names() == ["a"]
    assert len(stage.store.looks) < 10


@simulated
async def test_a_rate_of_many_a_second_claims_several_at_a_time(make: MakeStage) -> None:
    stage = make(per_s=100, limit=4)
    for number in range(50):
        stage.store.put(f"t{number}")
    stage.scheduler.start()
    await at(2)
    sent_s = [at_s for at_s, _ in stage.sent()]
    assert len(sent_s) == 50
    assert min(later - earlier for earlier, later in itertools.pairwise(sent_s)) >= 0.0099
    assert sent_s[-1] == pytest.approx(0.49, abs=0.05)
    assert max(sum(asked.budgets) for asked in stage.store.claims) <= 11
    assert len(stage.store.claims) < 30


@simulated
async def test_a_slow_answer_does_not_slow_a_rate_down_until_all_senders_wait(make: MakeStage) -> None:
    stage = make(per_s=1, limit=3, takes_s=2.5)
    for number in range(6):
        stage.store.put(f"t{number}")
    stage.scheduler.start()
    await at(8)
    assert [at_s for at_s, _ in stage.sent()] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@simulated
async def test_the_probe_of_a_paced_sink_waits_for_its_turn_too(make: MakeStage) -> None:
    stage = make(per_s=0.2, takes_s=0.01)
    stage.sinks[0].outcomes = [Outcome(Verdict.UNAVAILABLE)]
    for name in ("a", "b", "c"):
        stage.store.put(name)
    stage.scheduler.start()
    await at(30)
    sent_s = [at_s for at_s, _ in stage.sent()]
    assert len(sent_s) >= 4
    assert min(later - earlier for earlier, later in itertools.pairwise(sent_s)) >= 5.0


@simulated
async def test_the_partitions_of_a_paced_sink_take_turns(make: MakeStage) -> None:
    stage = make(per_s=1, partitions=4)
    for partition, number in itertools.product(range(4), range(10)):
        stage.store.put(f"{partition}-{number}", partition=partition)
    stage.scheduler.start()
    await at(20.5)
    assert len(stage.names()) == 21
    counts = [sum(name.startswith(f"{partition}-") for name in stage.names()) for partition in range(4)]
    assert min(counts) >= 3


@simulated
async def test_a_paced_sink_slows_no_other(make: MakeStage) -> None:
    stage = make(per_s=1, sinks=2, paced=("out",))
    for number in range(5):
        stage.store.put(f"r{number}")
        stage.store.put(f"s{number}", route="s")
    stage.scheduler.start()
    await at(6)
    assert [at_s for at_s, name in stage.sent() if name.startswith("r")] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert [at_s for at_s, name in stage.sent() if name.startswith("s")] == [0.0] * 5
