"""conclusions.py in simulated time, beside a store and a sink that are told what to do: what follows from each outcome,
and what is counted and logged of it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import NamedTuple

import pytest

from nsqdigest.backoff import State
from nsqdigest.base.reasons import BuryReason, Verdict
from nsqdigest.delivery.conclusions import DROPPED_PER_TURN, SUMMARY_EVERY_S
from nsqdigest.delivery.sinks.base import Outcome
from nsqdigest.store.answers import Ended, NotOpened
from nsqdigest.store.dead import Details
from nsqdigest.store.keys import own_timeline
from nsqdigest.store.schedule import Plan, Schedule
from support.delivering import HEAD, NOW_MS, Delivering, ToldBulkSink, ToldDead, ToldDigests, failure, simulate
from support.settings import POLICY
from support.simulated import BEGAN_S, Time, simulated
from support.waiting import until

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


class Logged:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def __call__(self, event: str) -> int:
        return [record.getMessage() for record in self._caplog.records].count(event)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Logged:
    caplog.set_level(logging.DEBUG, "nsqdigest")
    return Logged(caplog)


def _unprefixed(page: str) -> list[str]:
    return [line.removeprefix("nsqdigest_") for line in page.splitlines()]


# -- delivered


@simulated
async def test_what_was_delivered_is_closed_measured_and_counted(logged: Logged) -> None:
    stage = Delivering(ToldDigests())
    stage.sink.takes_s = 2
    stage.sink.outcome = Outcome(Verdict.DELIVERED, "200", answer="thanks")
    (delivery,) = await stage.carry("a")
    assert delivery.is_concluded
    ((at_s, (_, (ending,))),) = stage.digests.called("finish")
    assert (at_s, ending.kind, ending.digest_id) == (2, "close", "id of a")
    assert ending.after == Schedule(NOW_MS + 62_000, NOW_MS + 62_000)
    page = stage.metrics.text()
    assert 'digest_delay_seconds_sum{route="r"} 7.0' in page
    assert "digest_records_sum 2.0" in page
    assert any(line.startswith("delivery_seconds_sum{") and line.endswith(" 2.0") for line in _unprefixed(page))
    value = stage.metrics.value
    assert value("digest_attempts_total", sink="out", outcome="delivered") == 1
    assert value("digests_delivered_total", sink="out", route="r") == 1
    assert value("digest_records_delivered_total", sink="out", route="r") == 2
    assert value("last_delivery_timestamp_seconds", sink="out") == pytest.approx(Time().time(), abs=1)
    assert (logged("scheduler.digest.delivered"), logged("scheduler.digest.sent")) == (1, 1)
    assert stage.decided == []


def test_what_goes_out_is_summed_up_every_ten_seconds() -> None:
    assert SUMMARY_EVERY_S == 10


@simulated
async def test_what_goes_out_is_one_line_for_a_sink_and_route_and_each_digest_one_at_debug(logged: Logged) -> None:
    stage = Delivering(ToldDigests(), sinks={"out": ToldBulkSink(100)}, routes={"r": "out", "s": "out"})
    made = stage.deliveries([*stage.claims("a", "b", "c"), *stage.claims("d", route="s")])
    await stage.opener.open(0, made)
    await stage.quiet()
    assert logged("scheduler.digest.delivered") == 2
    assert logged("scheduler.digest.sent") == 4
    assert stage.metrics.value("digests_delivered_total", sink="out", route="r") == 3
    assert stage.metrics.value("digests_delivered_total", sink="out", route="s") == 1
    assert stage.metrics.value("digest_records_delivered_total", sink="out", route="r") == 6


@simulated
async def test_a_digest_under_way_since_before_its_claim_was_late_since_then() -> None:
    stage = Delivering(ToldDigests(heads={"a": HEAD._replace(since_ms=NOW_MS - 9000)}))
    await stage.carry("a")
    assert 'digest_delay_seconds_sum{route="r"} 9.0' in stage.metrics.text()


@simulated
async def test_a_digest_before_its_time_was_not_late() -> None:
    stage = Delivering(ToldDigests(heads={"a": HEAD._replace(since_ms=NOW_MS + 9000)}))
    (delivery,) = stage.deliveries([claim._replace(due_ms=NOW_MS + 5000) for claim in stage.claims("a")])
    await stage.opener.open(0, [delivery])
    await stage.quiet()
    assert 'digest_delay_seconds_sum{route="r"} 0.0\n' in stage.metrics.text()


@simulated
async def test_the_next_digest_is_never_before_the_instant_that_this_one_names() -> None:
    plan = Plan(replace(POLICY, immediate=False, minimum_delay_ms=60_000, maximum_delay_ms=90_000))
    heads = {"a": HEAD._replace(next_earliest_ms=NOW_MS + 70_000), "b": HEAD._replace(next_earliest_ms=NOW_MS + 99_000)}
    stage = Delivering(ToldDigests(heads=dict(heads)), plan=plan)
    await stage.carry("a", "b")
    after = {ending.claim.timeline: ending.after for ending in stage.digests.endings()}
    assert after == {
        "a": Schedule(NOW_MS + 70_000, NOW_MS + 90_000), "b": Schedule(NOW_MS + 99_000, NOW_MS + 99_000),
    }  # fmt: skip


@simulated
async def test_a_revived_digest_leaves_no_schedule_behind() -> None:
    stage = Delivering(ToldDigests())
    await stage.carry(own_timeline("digest", "t"))
    (ending,) = stage.digests.endings()
    assert ending.after == Schedule(NOW_MS, NOW_MS)
    assert stage.sink.timelines == ["t"]


@simulated
async def test_a_sink_that_answers_nothing_is_not_quoted_and_one_that_fails_is_at_debug(logged: Logged) -> None:
    stage = Delivering(ToldDigests())
    await stage.carry("a")
    assert logged("scheduler.sink.answered") == 0
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500", answer="what they wrote")
    await stage.carry("a")
    assert logged("scheduler.sink.answered") == 1


# -- what an answer of the store makes of it


@pytest.mark.parametrize(("verdict", "counted"), [(Verdict.DELIVERED, 1), (Verdict.REFUSED, 1), (Verdict.AGAIN, 0)])
@simulated
async def test_an_end_that_came_too_late_counts_as_stale_and_as_nothing_else(verdict: Verdict, counted: int) -> None:
    """A wait that was asked twice is stale the second time: that is no news."""
    stage = Delivering(ToldDigests(ended={"a": Ended.STALE}), max_attempts=1 if verdict is Verdict.REFUSED else 0)
    stage.sink.outcome = Outcome(verdict, "as told")
    await stage.carry("a")
    assert stage.metrics.total("digests_stale_total") == counted
    assert stage.metrics.total("digests_delivered_total") == stage.metrics.total("digests_buried_total") == 0
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome=verdict) == 1


@pytest.mark.parametrize(
    ("verdict", "metric"), [(Verdict.DELIVERED, "digests_delivered_total"), (Verdict.REFUSED, "digests_buried_total")]
)
@simulated
async def test_an_end_that_an_earlier_call_did_counts_once(verdict: Verdict, metric: str) -> None:
    """The answer of that call was lost."""
    digests = ToldDigests(ended={"a": Ended.ALREADY}, fails={"finish": [failure()]})
    stage = Delivering(digests, max_attempts=1 if verdict is Verdict.REFUSED else 0)
    stage.sink.outcome = Outcome(verdict, "as told")
    await stage.carry("a")
    assert stage.metrics.total(metric) == 1
    assert stage.metrics.total("digests_stale_total") == 0
    assert stage.metrics.total("digest_attempts_total") == 1


@pytest.mark.parametrize("is_damage", [True, False])
@simulated
async def test_what_the_store_did_not_do_is_logged_and_no_delivery(is_damage: bool, logged: Logged) -> None:
    digests = ToldDigests(
        ended={"a": Ended.DAMAGED} if is_damage else {}, fails={} if is_damage else {"finish": [failure()] * 100}
    )
    stage = Delivering(digests, lease_ms=6000)
    await stage.carry("a")
    assert stage.metrics.total("digests_delivered_total") == 0
    reason = "redis-script" if is_damage else "redis-timeout"
    assert stage.metrics.value("store_errors_total", reason=reason) == 1
    assert logged("scheduler.digest.left") == 1
    assert stage.held == 0


# -- failed


@simulated
async def test_a_failed_digest_waits_and_is_remembered_until_it_is_due_again(logged: Logged) -> None:
    stage = Delivering(ToldDigests(), highest=True, retry_base_ms=1000, retry_cap_ms=9000)
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500")
    await stage.carry("a")
    (ending,) = stage.digests.endings()
    assert (ending.kind, ending.posts, ending.after.base_ms) == ("wait", 1, NOW_MS + 3000)
    assert stage.windows == [(1000, 3000)]
    wall_s = Time().time()
    history = stage.outlet.history
    assert history.why == "500"
    assert history.refusing_since_s == pytest.approx(wall_s, abs=0.1)
    assert history._retries == {"id of a": pytest.approx(wall_s + 3.0, abs=0.1)}
    assert logged("scheduler.digest.failed") == 1
    stage.sink.outcome = Outcome(Verdict.DELIVERED)
    await stage.carry("a")
    assert (history.refusing_since_s, history._retries) == (None, {})


@simulated
async def test_the_wait_is_drawn_by_how_often_it_was_tried() -> None:
    stage = Delivering(
        ToldDigests(heads={"a": HEAD._replace(tries=1)}), highest=True, retry_base_ms=1000, retry_cap_ms=90_000
    )
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500")
    await stage.carry("a")
    assert stage.digests.endings()[0].after.base_ms == NOW_MS + 9000


@pytest.mark.parametrize(("since_ms", "kind"), [(NOW_MS - 800, "bury"), (NOW_MS - 799, "wait")])
@simulated
async def test_a_digest_that_became_too_old_while_it_was_sent_is_not_tried_again(since_ms: int, kind: str) -> None:
    stage = Delivering(ToldDigests(heads={"a": HEAD._replace(since_ms=since_ms)}), max_age_ms=1000)
    stage.sink.takes_s = 0.2
    stage.sink.outcome = Outcome(Verdict.AGAIN, "500")
    await stage.carry("a")
    assert [ending.kind for ending in stage.digests.endings()] == [kind]


@simulated
async def test_a_receiver_that_is_gone_is_logged_once_and_the_digest_waits_unharmed(logged: Logged) -> None:
    stage = Delivering(ToldDigests(), limit=2)
    stage.sink.outcome = Outcome(Verdict.GONE, "410")
    stage.sink.takes_s = 1
    await stage.carry("a", "b")
    assert (stage.outlet.history.why, logged("scheduler.sink.stopped")) == ("410", 1)
    assert stage.outlet.history.stopped_since_s == pytest.approx(Time().time(), abs=1)
    assert {(ending.kind, ending.posts, ending.after.base_ms) for ending in stage.digests.endings()} == {
        ("wait", 0, NOW_MS + 1000)
    }
    assert logged("scheduler.digest.failed") == 0
    assert stage.decided == [], "its controller decided nothing"


# -- buried


class Old(NamedTuple):
    id: str
    route: str
    details: Details


@simulated
async def test_what_was_refused_is_buried_with_the_receivers_words_and_the_longest_dead_go(logged: Logged) -> None:
    dead = ToldDead()
    dead.over = [Old(name, "s", Details(HEAD, "s", "t", "other", "refused", "")) for name in ("gone", "old", "older")]
    dead.records = {"gone": 0, "old": 3, "older": 4}
    stage = Delivering(ToldDigests(), dead, max_attempts=1)
    stage.sink.outcome = Outcome(Verdict.REFUSED, "400", answer="no")
    await stage.carry("a")
    await stage.conclusions.finishers[0].quiet()
    await until(lambda: len(dead.dropped) == 3, 5, "the longest dead to go")
    (ending,) = stage.digests.endings()
    details = Details.decode(ending.details)
    assert (ending.kind, ending.digest_id, ending.after.base_ms) == ("bury", "id of a", NOW_MS + 60_000)
    assert (details.reason, details.cause, details.answer, details.head.attempts) == (
        "too-many-attempts",
        "400",
        "no",
        1,
    )
    assert (details.route, details.timeline, details.sink) == ("r", "a", "out")
    assert (stage.outlet.history.why, stage.outlet.history.buried_since) == ("400", 1)
    assert stage.metrics.value("digests_buried_total", sink="out", reason="too-many-attempts") == 1
    assert dead.dropped == ["gone", "old", "older"]
    assert stage.metrics.value("dead_digests_dropped_total", sink="other") == 2
    assert logged("scheduler.dead.dropped") >= 1
    assert logged("scheduler.digest.buried") == 1


@simulated
async def test_a_failure_to_drop_the_longest_dead_is_counted_and_left_to_the_next_burial() -> None:
    dead = ToldDead()
    dead.fails = 1
    stage = Delivering(ToldDigests(), dead, max_attempts=1)
    stage.sink.outcome = Outcome(Verdict.REFUSED, "400")
    await stage.carry("a")
    await stage.conclusions.finishers[0].quiet()
    assert stage.metrics.total("digests_buried_total") == 1
    await until(lambda: stage.metrics.value("store_errors_total", reason="redis-timeout") == 1, 5, "the failure")


@simulated
async def test_a_limit_that_was_lowered_takes_turns_and_one_turn_at_a_time() -> None:
    dead = ToldDead()
    names = [f"id-{number}" for number in range(DROPPED_PER_TURN + 7)]
    dead.over = [Old(name, "s", Details(HEAD, "s", "t", "other", "refused", "")) for name in names]
    dead.records = dict.fromkeys(names, 1)
    stage = Delivering(ToldDigests(), dead)
    for _ in range(3):
        stage.conclusions.limit_dead(0)
    await until(lambda: len(dead.dropped) == DROPPED_PER_TURN, 5, "a turn")
    await asyncio.sleep(1)
    assert dead.dropped == names[:DROPPED_PER_TURN]
    stage.conclusions.limit_dead(0)
    await until(lambda: dead.dropped == names, 5, "the rest")
    await stage.conclusions.stop()


@simulated
async def test_what_is_dead_for_our_own_reasons_is_no_fault_of_the_receivers() -> None:
    stage = Delivering(ToldDigests())
    (delivery,) = stage.deliveries(stage.claims("a"))
    delivery.opened = HEAD
    stage.conclusions.bury(delivery, BuryReason.VALUES_LOST)
    await stage.quiet()
    assert stage.outlet.history.buried_since == 0


# -- the sink's health


@simulated
async def test_the_controller_hears_once_of_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    stage = Delivering(ToldDigests())
    controller = stage.outlet.controller
    monkeypatch.setattr(controller, "succeeded", lambda *_: heard.append("succeeded"))
    monkeypatch.setattr(controller, "lost", lambda *_: heard.append("lost"))
    await stage.carry("a")
    assert heard == ["succeeded"]
    stage.digests.fails = {"open": [failure()] * 1000}
    await stage.carry("a", lease_ms=1000)
    assert heard == ["succeeded", "lost"]


@simulated
async def test_the_sinks_health_hears_before_the_store() -> None:
    stage = Delivering(ToldDigests(takes_s={"finish": 5}))
    stage.sink.outcome = Outcome(Verdict.UNAVAILABLE, "503")
    await stage.open("a")
    await asyncio.sleep(1)
    assert stage.outlet.controller.decision.state is State.BACKOFF
    assert (stage.decided, stage.held) == (["out"], 1)


def probing(stage: Delivering) -> None:
    controller = stage.outlet.controller
    stage.step_back()
    assert controller.decision.wake_at_s is not None
    controller.tick(controller.decision.wake_at_s)
    controller.began(controller.decision.epoch, BEGAN_S + 10, BEGAN_S + 70)
    stage.decided.clear()


@pytest.mark.parametrize(
    "what", ["stale", "empty", "damaged", "expired", "values", "gone-when-read", "open-fails", "read-fails", "put-back"]
)
@simulated
async def test_a_probe_that_was_not_sent_says_nothing_of_its_sink_and_another_follows(what: str) -> None:
    digests = ToldDigests()
    stage = Delivering(digests, lease_ms=6000, max_age_ms=1000)
    probing(stage)
    match what:
        case "stale" | "empty" | "damaged":
            digests.heads["a"] = NotOpened(what)
        case "expired":
            digests.heads["a"] = HEAD._replace(since_ms=0)
        case "values":
            digests.records["a"] = [None, None]
        case "gone-when-read":
            digests.records["a"] = None
        case "open-fails" | "read-fails":
            digests.fails[what.removesuffix("-fails")] = [failure()] * 1000
        case _:
            pass
    before = stage.outlet.controller.decision
    if what == "put-back":
        made = stage.deliveries(stage.claims("a"))
        stage.conclusions.put_back(made)
        await stage.quiet()
    else:
        await stage.carry("a")
    after = stage.outlet.controller.decision
    assert stage.sink.sent == []
    assert (after.state, after.level) == (State.PROBING, before.level)
    assert after.epoch == before.epoch + 1
    assert stage.decided == ["out"]
    assert stage.held == 0


@simulated
async def test_what_is_not_the_probe_does_not_lose_it() -> None:
    stage = Delivering(ToldDigests(heads={"a": NotOpened.STALE}))
    probing(stage)
    before = stage.outlet.controller.decision
    await stage.carry("a", epoch=before.epoch - 1)
    stage.conclusions.left(stage.deliveries(stage.claims("b"), epoch=-1)[0])
    assert stage.outlet.controller.decision == before


@simulated
async def test_what_is_left_twice_ends_once() -> None:
    stage = Delivering(ToldDigests())
    (delivery,) = stage.deliveries(stage.claims("a"))
    stage.conclusions.left(delivery)
    stage.conclusions.left(delivery)
    assert (stage.ended, stage.held) == (["a"], 0)


@simulated
async def test_each_partition_has_its_own_calls() -> None:
    stage = Delivering(ToldDigests(partitions=3))
    made = stage.deliveries([*stage.claims("a"), *stage.claims("b", "c", partition=2)])
    stage.conclusions.put_back(made)
    await stage.quiet()
    assert [(partition, len(endings)) for _, (partition, endings) in stage.digests.called("finish")] == [(0, 1), (2, 2)]
