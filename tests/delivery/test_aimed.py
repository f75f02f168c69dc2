"""Digests of a sink whose targets are templates, from claim to end: where each goes, and what becomes of one that can
go nowhere. In simulated time, beside a store that is told what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nsqdigest.base.reasons import BuryReason, Verdict
from nsqdigest.delivery import targets
from nsqdigest.delivery.sinks.base import Outcome
from nsqdigest.delivery.targets import Aim, Filler, Source, Target
from nsqdigest.delivery.verdicts import NO_TARGET_FOR_MS
from nsqdigest.store.dead import Details
from nsqdigest.store.digests import READ_WHOLE_RECORDS, End
from nsqdigest.store.record import StoredRecord
from support.delivering import HEAD, NOW_MS, Delivering, ToldDigests, simulate
from support.simulated import simulated

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


def aim() -> Aim:
    template = targets.parse("{tenant}/{route}/{timeline}")
    filler = Filler("topic", template, lambda _: str)

    def aimed(source: Source) -> Target:
        text = filler.text(source)
        return Target({"topic": text}, text)

    return Aim(aimed, targets.event_paths(template))


def records(*tenants: str) -> Sequence[StoredRecord | None] | None:
    """The newest first; "" has no tenant."""
    return [
        StoredRecord(b"k%d" % number, 1000 - number, b'{"tenant":"%s"}' % each.encode() if each else b"{}")
        for number, each in enumerate(tenants)
    ]


def stage_of(told: ToldDigests) -> Delivering:
    stage = Delivering(told)
    stage.outlet.aim = aim()
    return stage


def sent_to(stage: Delivering) -> dict[str, str]:
    return {each.timeline: each.target.texts["topic"] for each in stage.sink.sent}


@simulated
async def test_the_newest_record_says_where_a_digest_goes() -> None:
    stage = stage_of(ToldDigests(records={"a": records("x", "y", ""), "b": records("y")}))
    await stage.carry("a", "b")
    assert sent_to(stage) == {"a": "x/r/a", "b": "y/r/b"}


@simulated
async def test_a_record_that_names_no_place_keeps_no_digest_back() -> None:
    stage = stage_of(ToldDigests(records={"a": records("", "x", "y"), "b": records("", "")}))
    await stage.carry("a", "b")
    assert sent_to(stage) == {"a": "x/r/a"}
    assert sorted(stage.digests.all_finished()) == [(End.CLOSE, "a"), (End.WAIT, "b")]


@simulated
async def test_a_digest_that_is_read_page_by_page_has_the_same_target() -> None:
    many = READ_WHOLE_RECORDS
    found = {"a": records("x", *["y"] * many), "b": records(*[""] * many, "y"), "c": records(*[""] * many, "")}
    stage = stage_of(ToldDigests(records=found))
    await stage.carry("a", "b", "c")
    assert sent_to(stage) == {"a": "x/r/a", "b": "y/r/b"}
    assert sorted(stage.digests.all_finished()) == [(End.CLOSE, "a"), (End.CLOSE, "b"), (End.WAIT, "c")]


@simulated
async def test_a_sink_with_one_place_has_no_targets() -> None:
    stage = Delivering(ToldDigests())
    await stage.carry("a")
    assert [each.target for each in stage.sink.sent] == [None]


@simulated
async def test_the_target_is_the_same_at_every_attempt() -> None:
    stage = stage_of(ToldDigests(records={"a": records("x")}))
    stage.sink.outcomes = [Outcome(Verdict.AGAIN, "500")] * 3
    for _ in range(4):
        await stage.carry("a")
    assert [each.target.texts["topic"] for each in stage.sink.sent] == ["x/r/a"] * 4


@simulated
async def test_one_that_can_go_nowhere_stops_no_other_and_waits_unsent() -> None:
    told = ToldDigests(records={name: records("x") for name in "bcd"} | {"a": records("")})
    stage = stage_of(told)
    await stage.carry("a", "b", "c", "d")
    assert sorted(stage.sink.timelines) == ["b", "c", "d"]
    (waits,) = [ending for ending in told.endings() if ending.claim.timeline == "a"]
    assert (waits.kind, waits.posts) == (End.WAIT, 0)
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="no-target") == 1
    assert stage.outlet.controller.decision.limit == 8
    assert stage.outlet.history.refusing_since_s is None


@simulated
async def test_many_that_can_go_nowhere_do_not_make_the_sink_step_back() -> None:
    names = [f"t{number}" for number in range(8)]
    stage = stage_of(ToldDigests(records={name: records("") for name in names} | {"good": records("x")}))
    await stage.carry(*names)
    await stage.carry("good")
    assert (stage.sink.timelines, stage.decided) == (["good"], [])


@simulated
async def test_after_an_hour_it_is_dead_with_its_reason_and_its_timeline_goes_on() -> None:
    old = HEAD._replace(id="old", since_ms=NOW_MS - NO_TARGET_FOR_MS, total=1)
    told = ToldDigests(records={"a": records("")}, heads={"a": old})
    stage = stage_of(told)
    await stage.carry("a")
    (ending,) = told.endings()
    assert ending.kind is End.BURY
    details = Details.decode(ending.details)
    assert (details.reason, details.head.attempts) == (BuryReason.NO_TARGET, 0)
    assert details.cause == 'topic: the field "tenant" is not there'
    assert stage.metrics.value("digests_buried_total", sink="out", reason="no-target") == 1


@simulated
async def test_a_probe_that_can_go_nowhere_says_nothing_of_the_sink() -> None:
    stage = stage_of(ToldDigests(records={"a": records(""), "b": records("x")}))
    stage.step_back()
    controller = stage.outlet.controller
    while not controller.decision.limit:
        controller.tick(controller.decision.wake_at_s or 0.0)
    await stage.carry("a")
    await stage.carry("b")
    assert stage.sink.timelines == ["b"]
