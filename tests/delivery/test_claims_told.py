"""claims.py beside a store that a test tells what to answer: what is asked for, and what a claim's answers become."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.config import Scheduler as SchedulerSettings
from nsqdigest.delivery.claims import Claims, PartitionClaims, Served
from nsqdigest.delivery.delivery import PUT_BACK_ONLY, DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.store.answers import Claim, Claimed
from nsqdigest.store.schedule import Plan
from support.delivering import NoHolds, ToldSink
from support.settings import POLICY, ROUTE, SINK

pytestmark = pytest.mark.unit

DAMAGE = StoreError("redis-script", "WRONGTYPE, as told")
NEXT_MS = 7


class ToldClaims:
    """Gives of each route what is due there; a call that names a damaged route breaks off."""

    partitions = 1

    def __init__(self, **due: int) -> None:
        self.due = due
        self.damaged: set[str] = set()
        self.answer_is_lost = False
        self.asked: list[list[str]] = []
        self.taken: dict[str, list[Claim]] = {}

    async def claim(
        self, partition: int, routes: Sequence[tuple[str, int]], budgets: Sequence[int], lease_ms: int, token: str
    ) -> Claimed:
        names = [name for name, _ in routes]
        self.asked.append(names)
        if self.damaged.intersection(names):
            raise DAMAGE
        claims = [
            Claim(partition, name, f"{name}{number}", 0, token)
            for name, budget in routes
            for number in range(min(self.due[name], budgets[budget]))
        ]
        self.taken[token] = claims
        if self.answer_is_lost:
            raise StoreError("redis-timeout", "as told", Applied.AMBIGUOUS)
        return Claimed(claims, NEXT_MS)

    async def claim_again(self, partition: int, routes: Sequence[str], lease_ms: int, token: str) -> list[Claim]:
        return [claim for claim in self.taken[token] if claim.route in routes]


class Stage:
    def __init__(self, told: ToldClaims, **sink_of: str) -> None:
        self.outlets = {
            name: Outlet(
                replace(SINK, name=name, concurrency=2), ToldSink(),
                Controller(2, Curve(5.0, 100.0, jitter="none"), min, slow_start=False),
            )
            for name in sorted(set(sink_of.values()))
        }  # fmt: skip
        routes = {
            route: DeliveryRoute(replace(ROUTE, name=route), Plan(POLICY), self.outlets[sink])
            for route, sink in sink_of.items()
        }
        self.damage: list[tuple[int, str, StoreError]] = []
        settings = SchedulerSettings(interval_ms=1, lease_ms=60_000, batch=100)
        self.claims = Claims(
            Served(settings, routes), cast(Any, told), cast(Any, NoHolds()), lambda *seen: self.damage.append(seen)
        )
        self.of = PartitionClaims(0)


async def test_it_takes_what_there_is_room_for_and_tells_when_there_is_more() -> None:
    stage = Stage(ToldClaims(full=9, free=0), full="out", free="other")
    taken = await stage.claims.take(stage.of, ["full", "free"])
    assert ([delivery.claim.route for delivery in taken.deliveries], taken.next_due_ms) == (["full", "full"], NEXT_MS)
    assert (stage.outlets["out"].room, stage.outlets["other"].room) == (0, 2)
    # Where no sink has room, nothing is asked for.
    assert await stage.claims.take(stage.of, ["full"]) == ([], None)


async def test_a_damaged_route_is_named_asked_for_apart_and_with_the_others_again_once_it_is_sound() -> None:
    told = ToldClaims(good=0, bad=0)
    stage = Stage(told, good="out", bad="out")
    told.damaged = {"bad"}
    await stage.claims.take(stage.of, ["good", "bad"])
    assert stage.damage == [(0, "bad", DAMAGE)]
    told.asked.clear()
    await stage.claims.take(stage.of, ["good", "bad"])
    assert sorted(told.asked) == [["bad"], ["good"]]
    told.damaged = set()
    await stage.claims.take(stage.of, ["good", "bad"])
    told.asked.clear()
    await stage.claims.take(stage.of, ["good", "bad"])
    assert [sorted(names) for names in told.asked] == [["bad", "good"]]


@pytest.mark.parametrize("has_stepped_back", [False, True])
async def test_what_a_lost_claim_took_is_of_the_sinks_present_epoch_or_goes_back(has_stepped_back: bool) -> None:
    told = ToldClaims(r=1)
    stage = Stage(told, r="out")
    told.answer_is_lost = True
    with pytest.raises(StoreError):
        await stage.claims.take(stage.of, ["r"])
    controller = stage.outlets["out"].controller
    if has_stepped_back:
        controller.failed(controller.decision.epoch, time.monotonic())
    (delivery,) = await stage.claims.take_lost(stage.of, time.monotonic() + 1)
    assert delivery.epoch == (PUT_BACK_ONLY if has_stepped_back else controller.decision.epoch)
    assert delivery.claim.timeline == "r0"
