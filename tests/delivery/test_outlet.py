"""outlet.py in simulated time, beside a store and a sink that are told what to do: what is sent when, how many at a
time, and what goes back unsent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from nsqdigest.backoff import State
from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery import outlet as module
from nsqdigest.delivery.conclusions import Conclusions
from nsqdigest.delivery.delivery import Delivery
from nsqdigest.delivery.outlet import Outlet, Pace
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.store.record import StoredRecord
from support.delivering import (
    HEAD,
    LEASE_MS,
    Delivering,
    ToldBulkSink,
    ToldDigests,
    ToldSink,
    failure,
    names,
    now_s,
    simulate,
)
from support.simulated import BEGAN_S, simulated

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)


async def callbacks_of(work: Awaitable[object]) -> int:
    """How many callbacks the loop runs for this work and what comes of it at once: each sender that wakes is one."""
    loop, count = asyncio.get_running_loop(), 0
    call_soon = loop.call_soon

    def counted(*arguments: Any, **named: Any) -> asyncio.Handle:
        nonlocal count
        count += 1
        return call_soon(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "call_soon", counted)
        await work
        await asyncio.sleep(0.5)
    return count


# -- what others may know


@simulated
async def test_room_is_what_is_neither_held_nor_reserved() -> None:
    outlet = Delivering(ToldDigests()).outlet
    outlet.held, outlet.reserved = 3, 4
    assert outlet.room == 1
    outlet.held = 9
    assert outlet.room == 0
    assert not outlet.is_probing


@simulated
async def test_a_stopped_sink_has_no_room_and_admits_nothing() -> None:
    outlet = Delivering(ToldDigests()).outlet
    outlet.history.stopped("410", 0.0)
    assert outlet.room == 0
    assert not outlet.admits(outlet.controller.decision.epoch)


@simulated
async def test_bodies_that_wait_are_room_until_they_are_too_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_BYTES", 1000)
    stage = Delivering(ToldDigests(), limit=2)
    stage.sink.may_answer.clear()
    await stage.open("a", "b", "c", "d", "e")
    await asyncio.sleep(0)
    waiting = stage.outlet.ready_bytes
    assert waiting % 3 == 0  # three wait, two are being sent
    stage.outlet.held = 0
    monkeypatch.setattr(module, "READY_BYTES", waiting)
    assert stage.outlet.holds_enough
    assert stage.outlet.room == 0
    monkeypatch.setattr(module, "READY_BYTES", waiting + 1)
    assert stage.outlet.room == 2
    stage.outlet.held = 5
    stage.sink.may_answer.set()
    await stage.quiet()
    assert stage.outlet.ready_bytes == 0


# -- pace


def test_a_pace_is_measured_over_windows_and_settles() -> None:
    pace = Pace()
    pace.ended(10, 100.0)
    assert pace.per_s == 50  # of a long wait no more than ten windows count
    pace.ended(1, 100.019)
    assert pace.per_s == 50  # its window is not over
    pace.ended(1, 100.025)
    assert pace.per_s == pytest.approx((50 + 2 / 0.025) / 2)
    pace.ended(3, 100.125)
    assert pace.per_s == pytest.approx((65 + 30) / 2)


@simulated
async def test_a_claim_waits_until_a_quarter_of_what_may_lie_ready_is_free_and_a_slow_sink_takes_each_place() -> None:
    outlet = Delivering(ToldDigests()).outlet
    outlet._pace.per_s = 400  # 40 ahead of 8 at a time
    outlet.held = 8 + 40 - 10
    assert outlet.room == 10
    outlet.held += 1
    assert outlet.room == 0
    outlet._pace.per_s = 80  # no more than are sent at a time
    outlet.held = 8 + 8 - 1
    assert outlet.room == 1
    outlet.held += 1
    assert outlet.room == 0
    outlet.held += 1
    assert outlet.room == 0


@simulated
async def test_a_sink_that_was_quick_may_have_a_tenth_of_a_seconds_work_ready_and_no_more_than_800() -> None:
    outlet = Delivering(ToldDigests()).outlet
    assert outlet.room == 8
    outlet._pace.per_s = 99
    assert outlet.room == 8 + 9
    outlet._pace.per_s = 1e6
    assert outlet.room == 8 + 800


@simulated
async def test_what_a_sink_took_of_late_decides_how_much_may_lie_ready_for_it() -> None:
    stage = Delivering(ToldDigests())
    stage.sink.takes_s = 0.125
    await stage.carry(*names(160))
    assert stage.outlet.room == 8 + 6  # 8 each 0.125 s are 6.4 in AHEAD_S


@pytest.mark.parametrize("state", [State.BACKOFF, State.PROBING, State.RAMPING])
@simulated
async def test_nothing_is_claimed_ahead_for_a_sink_that_is_not_well(state: State) -> None:
    stage = Delivering(ToldDigests())
    controller = stage.outlet.controller
    stage.outlet._pace.per_s = 1e6
    stage.step_back()
    if state is not State.BACKOFF:
        controller.tick(BEGAN_S + 10)
    if state is State.RAMPING:
        controller._first_limit = 1
        controller.succeeded(controller.decision.epoch, BEGAN_S + 10)
    assert controller.decision.state is state
    assert stage.outlet.room == controller.decision.limit == (0 if state is State.BACKOFF else 1)


# -- senders


@simulated
async def test_no_more_sends_are_under_way_than_the_sinks_concurrency() -> None:
    stage = Delivering(ToldDigests(), limit=3)
    stage.sink.takes_s = 1
    await stage.carry(*names(10))
    assert stage.sink.most_at_a_time == 3
    assert sorted(stage.sink.sent_s) == pytest.approx([0] * 3 + [1] * 3 + [2] * 3 + [3], abs=0.1)
    assert stage.sink.timelines == names(10)
    assert all(b'"records":[{"key":"k"' in digest.body for digest in stage.sink.sent)
    assert (stage.outlet.sending, stage.outlet.ready_bytes) == (0, 0)


@simulated
async def test_a_sink_gets_what_the_head_and_the_claim_say() -> None:
    stage = Delivering(ToldDigests(heads={"a": HEAD._replace(attempts=3, total=2)}))
    await stage.carry("a")
    (digest,) = stage.sink.sent
    assert digest[:5] == ("digest", "r", "a", 4, 2)
    assert digest.body.startswith(b"{")
    assert digest.target is None


@simulated
async def test_a_sink_that_takes_several_gets_what_waits_together_and_no_more_than_it_takes() -> None:
    sink = ToldBulkSink(at_once=4)
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=1)
    await stage.carry(*names(10))
    assert sink.batches == [names(10)[:4], names(10)[4:8], names(10)[8:]]
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="delivered") == 10
    assert stage.metrics.value("digests_delivered_total", sink="out", route="r") == 10


@simulated
@pytest.mark.parametrize(
    ("at_once_bytes", "batches"),
    [(200, [["a", "b"], ["c", "d"], ["e"]]), (199, [["a"], ["b"], ["c"], ["d"], ["e"]]), (99, [*map(list, "abcde")])],
)
async def test_what_goes_together_is_bounded_in_bytes_and_one_alone_may_be_larger(
    at_once_bytes: int, batches: list[list[str]]
) -> None:
    sink = ToldBulkSink(at_once_bytes=at_once_bytes)
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=2)
    digests = ToldDigests()
    made = stage.deliveries(stage.claims(*"abcde"))
    for each in made:
        each.opened = digests.head(each.claim.timeline)  # type: ignore[assignment]
        each.body = b"x" * 100
    stage.outlet.put(made)
    await stage.quiet()
    assert sink.batches == batches
    assert stage.outlet.ready_bytes == 0


@simulated
async def test_a_digest_wakes_one_sender_however_many_there_are() -> None:
    counts = []
    for senders in (1, 50):
        stage = Delivering(ToldDigests(), limit=senders)
        await asyncio.sleep(0)
        counts.append(await callbacks_of(stage.open("a")))
        assert stage.sink.timelines == ["a"]
        await stage.stop()
    assert counts[0] == counts[1]


@simulated
async def test_a_batch_wakes_one_sender_however_many_digests_are_in_it() -> None:
    counts = []
    for senders in (1, 50):
        stage = Delivering(ToldDigests(), sinks={"out": (sink := ToldBulkSink(at_once=50))}, limit=senders)
        await asyncio.sleep(0)
        counts.append(await callbacks_of(stage.open(*names(50))))
        assert sink.batches == [names(50)]
        await stage.stop()
    assert counts[0] == counts[1]


@simulated
async def test_digests_that_are_still_to_be_read_go_side_by_side_to_a_sink_that_takes_several() -> None:
    records = [StoredRecord(b"%d" % n, 1, b"{}") for n in range(65)]
    sink = ToldBulkSink()
    sink.may_answer.clear()
    stage = Delivering(ToldDigests(records=dict.fromkeys(names(3), records)), sinks={"out": sink}, limit=3)
    await stage.open(*names(3))
    await asyncio.sleep(1)
    assert stage.outlet.sending == 3
    sink.may_answer.set()
    await stage.quiet()


@simulated
async def test_a_digest_that_has_to_wait_for_the_limit_wakes_no_sender() -> None:
    counts = []
    for senders in (1, 50):
        stage = Delivering(ToldDigests(), limit=senders)
        stage.step_back()
        stage.outlet.controller.tick(BEGAN_S + 100)  # one at a time
        stage.sink.may_answer.clear()
        await stage.open("a")
        await asyncio.sleep(0)
        counts.append(await callbacks_of(stage.open("b")))
        assert stage.sink.timelines == ["a"]
        await stage.stop()
    assert counts[0] == counts[1]


@simulated
async def test_one_digest_is_no_bulk() -> None:
    sink = ToldBulkSink()
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=1)
    sink.deliver_all = None  # type: ignore[assignment,method-assign]
    await stage.carry("a")
    assert sink.batches == [["a"]]


@simulated
async def test_a_digest_that_is_still_to_be_read_goes_alone_and_keeps_its_turn() -> None:
    digests = ToldDigests(records={"big": [StoredRecord(b"%d" % n, 1, b"{}") for n in range(65)]})
    sink = ToldBulkSink()
    stage = Delivering(digests, sinks={"out": sink}, limit=1)
    made = stage.deliveries(stage.claims("a", "big", "b"))
    for each in made:
        each.opened = digests.head(each.claim.timeline)  # type: ignore[assignment]
        each.body = None if each.claim.timeline == "big" else b"{}"
    stage.outlet.put(made)
    await stage.quiet()
    assert sink.batches == [["a"], ["big"], ["b"]]


@simulated
async def test_the_probe_is_one_digest_with_a_sink_that_takes_several_too() -> None:
    sink = ToldBulkSink()
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=4)
    controller = stage.outlet.controller
    stage.step_back()
    controller.tick(BEGAN_S + 10)
    sink.may_answer.clear()
    await stage.open(*names(6))
    await asyncio.sleep(1)
    assert sink.batches == [["t0"]]
    assert stage.outlet.sending == 1
    sink.may_answer.set()
    await stage.quiet()
    assert controller.decision.state is State.FLOWING
    # The probe's success began a new epoch: what was claimed with it goes back unsent.
    assert sink.batches == [["t0"]]
    assert stage.digests.all_finished() == [("close", "t0"), *(("wait", name) for name in names(6)[1:])]


@simulated
async def test_a_probe_waits_until_the_sends_of_before_have_ended() -> None:
    stage = Delivering(ToldDigests(), limit=2)
    for timeline, takes_s in (("long", 3), ("short", 1)):
        stage.sink.takes_s = takes_s
        await stage.open(timeline)
        await asyncio.sleep(0)
    stage.step_back()
    stage.outlet.controller.tick(BEGAN_S + 10)
    await stage.carry("probe")
    assert stage.sink.timelines == ["long", "short", "probe"]
    assert stage.sink.sent_s == [0, 0, 3]


@simulated
async def test_what_is_read_and_leased_goes_out_without_being_rendered_again() -> None:
    digests = ToldDigests(records={"big": [StoredRecord(b"%d" % n, 1, b"{}") for n in range(65)]})
    stage = Delivering(digests, limit=1)
    rendered = []

    async def render(delivery: Delivery) -> bool:
        rendered.append(delivery.claim.timeline)
        return await stage.opener.render(delivery)

    stage.outlet.start(render, stage.conclusions, stage.metrics)
    await stage.carry("a", "big", "b")
    assert sorted(stage.sink.timelines) == ["a", "b", "big"]
    assert rendered == ["big"]


# -- what goes back unsent


@simulated
async def test_what_waits_when_the_sink_steps_back_goes_back_unsent_in_one_call() -> None:
    stage = Delivering(ToldDigests(), limit=1)
    stage.sink.takes_s = 2
    stage.sink.outcomes = [Outcome(Verdict.UNAVAILABLE, "503")]
    await stage.carry(*names(50))
    assert stage.sink.timelines == ["t0"]
    assert stage.digests.finished() == [[("wait", name) for name in [*names(50)[1:], "t0"]]]
    ((at_s, _),) = stage.digests.called("finish")
    assert at_s == 2
    *unsent, sent = stage.digests.endings()
    assert {(ending.posts, ending.after.base_ms) for ending in unsent} == {(0, 995_000)}
    assert sent.posts == 1


@simulated
async def test_what_was_opened_while_the_sink_stepped_back_goes_back_at_once() -> None:
    """Else it would lie there until the backoff is over, or the lease."""
    stage = Delivering(ToldDigests(takes_s={"read": 1}))
    opening = asyncio.create_task(stage.open("a", "b"))
    await asyncio.sleep(0.5)
    stage.step_back()
    await opening
    await stage.quiet()
    assert stage.sink.sent == []
    assert stage.digests.finished() == [[("wait", "a"), ("wait", "b")]]
    assert now_s() < 1.1


@simulated
async def test_what_was_read_page_by_page_while_the_sink_stepped_back_goes_back_unsent() -> None:
    digests = ToldDigests(records={"big": [StoredRecord(b"%d" % n, 1, b"{}") for n in range(65)]}, takes_s={"page": 1})
    stage = Delivering(digests)
    await stage.open("big")
    await asyncio.sleep(0.5)
    stage.step_back()
    await stage.quiet()
    assert stage.sink.sent == []
    assert digests.finished() == [[("wait", "big")]]
    assert stage.outlet.sending == 0


@simulated
async def test_what_waits_when_the_receiver_is_gone_goes_back_unsent_and_nothing_waits_again() -> None:
    stage = Delivering(ToldDigests(), limit=2)
    stage.sink.outcome = Outcome(Verdict.GONE, "410")
    stage.sink.takes_s = 1
    await stage.carry(*names(6))
    assert stage.sink.timelines == ["t0", "t1"]
    assert stage.outlet.is_stopped
    await stage.carry("later")
    assert len(stage.sink.sent) == 2
    assert stage.digests.finished()[-1] == [("wait", "later")]
    assert {ending.posts for ending in stage.digests.endings()} == {0}


@simulated
async def test_what_waits_when_it_drains_goes_back_and_what_is_being_sent_goes_on() -> None:
    stage = Delivering(ToldDigests(), limit=2)
    stage.sink.may_answer.clear()
    await stage.open(*names(5))
    await asyncio.sleep(0)
    stage.outlet.stop_taking()
    await stage.open("later")
    await asyncio.sleep(1)
    assert stage.held == 2
    assert stage.digests.finished() == [[("wait", name) for name in ("t2", "t3", "t4")], [("wait", "later")]]
    quiet = asyncio.create_task(stage.outlet.quiet())
    await asyncio.sleep(1)
    assert not quiet.done()
    stage.sink.may_answer.set()
    await quiet
    await stage.quiet()
    assert stage.sink.timelines == ["t0", "t1"]


@simulated
async def test_it_is_quiet_while_nothing_was_sent_and_again_when_the_last_of_several_sends_ends() -> None:
    stage = Delivering(ToldDigests(), limit=2)
    async with asyncio.timeout(1):
        await stage.outlet.quiet()
    for timeline, takes_s in (("long", 3), ("short", 1)):
        stage.sink.takes_s = takes_s
        await stage.open(timeline)
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await stage.outlet.quiet()
    assert now_s() == 3


# -- leases


@simulated
async def test_a_lease_that_is_as_long_as_a_send_is_enough_and_a_shorter_one_is_renewed() -> None:
    for timeout_ms, renewals in ((60_000, 0), (60_001, 1)):
        stage = Delivering(ToldDigests(), timeout_ms=timeout_ms)
        await stage.carry("a")
        assert len(stage.digests.called("renew")) == renewals
        assert len(stage.sink.sent) == 1
        assert [arguments for _, arguments in stage.digests.called("renew")] == [("a", LEASE_MS)] * renewals


@simulated
async def test_of_a_batch_each_has_its_own_lease_and_who_lost_it_is_left_out() -> None:
    sink = ToldBulkSink()
    stage = Delivering(ToldDigests(renews=[True, False, True]), sinks={"out": sink}, limit=1, timeout_ms=60_001)
    await stage.carry("a", "b", "c")
    assert sink.batches == [["a", "c"]]
    assert stage.metrics.value("digests_stale_total", route="r") == 1
    assert stage.digests.finished() == [[("close", "a"), ("close", "c")]]


@simulated
async def test_a_lease_that_grows_too_short_while_those_of_the_batch_are_renewed_goes_back_unsent() -> None:
    sink = ToldBulkSink()
    stage = Delivering(ToldDigests(takes_s={"renew": 2}), sinks={"out": sink}, limit=1, timeout_ms=15_000)
    made = stage.deliveries(stage.claims("a"), lease_ms=16_000) + stage.deliveries(stage.claims("b"), lease_ms=10_000)
    for each in made:
        each.opened, each.body = stage.digests.head(each.claim.timeline), b"{}"
    stage.outlet.put(made)
    await stage.quiet()
    assert sink.batches == [["b"]]
    assert sorted(stage.digests.all_finished()) == [("close", "b"), ("wait", "a")]


@simulated
async def test_what_waited_too_long_behind_others_is_renewed_before_it_is_sent() -> None:
    stage = Delivering(ToldDigests(), limit=1, lease_ms=16_000)
    stage.sink.takes_s = 6
    await stage.carry("a", "b", "c", "d")
    # They were leased at 0 for 16 s, and a send takes up to 5 s.
    assert [(at_s, arguments[0]) for at_s, arguments in stage.digests.called("renew")] == [(12, "c"), (18, "d")]


@simulated
async def test_a_renewal_that_redis_did_not_answer_is_asked_again() -> None:
    stage = Delivering(ToldDigests(fails={"renew": [failure(), failure()]}), timeout_ms=60_001)
    await stage.carry("a")
    assert len(stage.digests.called("renew")) == 3
    assert stage.sink.timelines == ["a"]


# -- conclusions


@pytest.fixture
def concluded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Of each call how many digests had been sent by then, and which it concludes."""
    calls: list[tuple[int, list[str]]] = []
    sent = Conclusions.sent

    def noted(self: Conclusions, results: Sequence[tuple[Delivery, Outcome]]) -> None:
        sink: Any = results[0][0].outlet.sink
        calls.append((len(sink.sent), [each.claim.timeline for each, _ in results]))
        sent(self, results)

    monkeypatch.setattr(Conclusions, "sent", noted)
    return calls


@simulated
async def test_what_is_accepted_in_one_turn_of_the_loop_is_concluded_together_behind_the_sends_that_follow(
    concluded: list[tuple[int, list[str]]],
) -> None:
    stage = Delivering(ToldDigests(), limit=3)
    stage.sink.takes_s = 1
    await stage.carry(*names(8))
    assert [(sent, sorted(ended)) for sent, ended in concluded] == [
        (6, ["t0", "t1", "t2"]), (8, ["t3", "t4", "t5"]), (8, ["t6", "t7"]),
    ]  # fmt: skip
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="delivered") == 8
    assert sum(stage.outlet._took[Verdict.DELIVERED].counts) == 8
    assert [attempt[1] for attempt in stage.outlet.attempts] == pytest.approx([1] * 8)
    assert sorted(names_of[1] for _, _, names_of, _, _ in stage.outlet.attempts) == names(8)


@simulated
async def test_what_is_not_accepted_is_concluded_before_anything_else_is_sent_and_behind_what_was_accepted(
    concluded: list[tuple[int, list[str]]],
) -> None:
    stage = Delivering(ToldDigests(), limit=3)
    stage.sink.takes_s = 1
    stage.sink.outcomes = [Outcome(Verdict.DELIVERED), Outcome(Verdict.UNAVAILABLE), Outcome(Verdict.DELIVERED)]
    await stage.carry(*names(8))
    # The first sender took the fourth one before the failure was known. After it nobody took another.
    assert concluded == [(4, ["t0"]), (4, ["t1"]), (4, ["t2"]), (4, ["t3"])]
    assert stage.sink.timelines == names(4)
    assert stage.outlet.controller.decision.state is State.BACKOFF


@simulated
async def test_an_acceptance_that_ends_a_row_of_failures_counts_before_the_failure_behind_it() -> None:
    stage = Delivering(ToldDigests(), limit=4)
    stage.sink.takes_s = 1
    again, accepted = Outcome(Verdict.AGAIN, "500"), Outcome(Verdict.DELIVERED)
    stage.sink.outcomes = [again, again, accepted, again]
    await stage.carry(*names(4))
    assert stage.outlet.controller.decision.state is State.FLOWING


@pytest.mark.parametrize("state", [State.PROBING, State.RAMPING])
@simulated
async def test_what_a_sink_that_is_not_well_accepts_is_concluded_at_once(
    concluded: list[tuple[int, list[str]]], state: State
) -> None:
    stage = Delivering(ToldDigests(), limit=4)
    controller = stage.outlet.controller
    controller._first_limit = 1
    stage.step_back()
    controller.tick(BEGAN_S + 10)
    if state is State.RAMPING:
        controller.succeeded(controller.decision.epoch, BEGAN_S + 10)
    assert controller.decision.state is state
    stage.sink.takes_s = 1
    await stage.carry("a", "b")
    assert concluded[0] == (1, ["a"])


@simulated
async def test_it_is_neither_quiet_nor_idle_while_what_was_accepted_is_not_concluded() -> None:
    stage = Delivering(ToldDigests(), limit=1)
    outlet, seen = stage.outlet, []
    conclude = outlet._conclude_accepted

    def noted() -> None:
        seen.append((outlet._sending, outlet.sending, outlet.is_busy, outlet._quiet.is_set()))
        conclude()

    outlet._conclude_accepted = noted  # type: ignore[method-assign]
    stage.sink.takes_s = 1
    await stage.open("a")
    await asyncio.sleep(0.5)
    async with asyncio.timeout(10):
        await outlet.quiet()
    assert seen == [(0, 1, True, False)]
    assert outlet.sending == 0
    assert stage.conclusions.finishers[0].is_busy


@simulated
async def test_what_was_accepted_is_concluded_although_its_sender_ends_in_the_same_turn() -> None:
    stage = Delivering(ToldDigests(), limit=1)
    stage.sink.takes_s = 1
    await stage.open("a", "b")
    ended = stage.outlet._ended

    def ended_and_stopped(*arguments: Any) -> None:
        ended(*arguments)
        stage.outlet._is_stopping = True
        for task in stage.outlet._tasks:
            task.cancel()

    stage.outlet._ended = ended_and_stopped  # type: ignore[method-assign,assignment]
    await asyncio.sleep(2)
    assert stage.sink.timelines == ["a"]
    assert stage.digests.all_finished() == [("close", "a")]
    assert stage.outlet.sending == 0


# -- foreign code


@simulated
async def test_a_sink_that_hangs_is_ended_after_its_timeout_and_a_grace_and_holds_up_no_other() -> None:
    hanging, well = ToldSink(), ToldSink()
    stage = Delivering(
        ToldDigests(), sinks={"out": hanging, "other": well}, routes={"r": "out", "s": "other"}, limit=2,
        timeout_ms=5000,
    )  # fmt: skip
    hanging.may_answer.clear()
    made = stage.deliveries([*stage.claims("a", "b", "c"), *stage.claims("x", "y", "z", route="s")])
    await stage.opener.open(0, made)
    await asyncio.sleep(1)
    assert sorted(well.timelines) == ["x", "y", "z"]
    assert stage.outlet.held == 3
    await stage.quiet()
    ended_s = next(at_s for at_s, _ in reversed(stage.digests.called("finish")))
    assert 10 < ended_s <= 11.1  # looked at once a second
    assert hanging.timelines == ["a", "b"]  # the third went back when the sink was taken for down
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="unavailable") == 2
    assert stage.outlet.controller.decision.state is State.BACKOFF
    assert stage.outlet.sending == 0


@simulated
async def test_the_watch_looks_more_often_where_the_limit_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FENCE_GRACE_S", 0.3)
    stage = Delivering(ToldDigests(), timeout_ms=100)
    stage.sink.takes_s = 60
    await stage.carry("a")
    ((ended_s, _),) = stage.digests.called("finish")
    assert 0.4 <= ended_s <= 0.5


@simulated
async def test_the_watch_looks_four_times_within_a_short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FENCE_GRACE_S", 0.3)
    stage = Delivering(ToldDigests(), timeout_ms=100)
    stage.sink.takes_s = 60
    await asyncio.sleep(0.05)
    await stage.carry("a")
    ((ended_s, _),) = stage.digests.called("finish")
    assert ended_s == pytest.approx(0.5, abs=0.005)  # over since 0.45, and looked at each 0.1


@simulated
async def test_a_sender_that_has_nothing_to_send_for_long_is_not_taken_for_one_that_hangs() -> None:
    stage = Delivering(ToldDigests(), limit=1)
    await stage.carry("a")
    await asyncio.sleep(60)
    await stage.open("b")
    await asyncio.sleep(1)
    assert stage.sink.timelines == ["a", "b"]
    assert stage.held == 0


@simulated
async def test_who_ended_overdue_sends_the_next_one_as_usual() -> None:
    stage = Delivering(ToldDigests(), limit=1)
    stage.sink.takes_s = 100
    await stage.carry("a")
    stage.sink.takes_s = 0
    stage.outlet.controller.tick(BEGAN_S + 100)  # which makes it the probe
    await stage.carry("b")
    assert stage.sink.timelines == ["a", "b"]
    assert all(not task.done() and task.cancelling() == 0 for task in stage.outlet._tasks)


@simulated
async def test_who_ended_overdue_once_is_ended_again() -> None:
    stage = Delivering(ToldDigests(), limit=1)
    stage.sink.takes_s = 1000
    for _ in range(2):
        began_s = now_s()
        await stage.carry("a")
        assert now_s() - began_s < 12
        wake_at_s = stage.outlet.controller.decision.wake_at_s
        assert wake_at_s is not None
        stage.outlet.controller.tick(wake_at_s)


@simulated
async def test_a_limit_that_grows_is_used_at_once() -> None:
    stage = Delivering(ToldDigests(), limit=8)
    controller = stage.outlet.controller
    controller._first_limit = 1
    stage.step_back()
    controller.tick(BEGAN_S + 10)
    controller.succeeded(controller.decision.epoch, BEGAN_S + 10)
    assert (controller.decision.state, controller.decision.limit) == (State.RAMPING, 1)
    stage.sink.may_answer.clear()
    await stage.open(*names(4))
    await asyncio.sleep(0.1)
    assert len(stage.sink.sent) == 1
    assert controller.decision.wake_at_s is not None
    assert controller.tick(controller.decision.wake_at_s)
    assert controller.decision.limit == 2
    stage.outlet.on_decision()
    await asyncio.sleep(0.1)
    assert len(stage.sink.sent) == 2
    stage.sink.may_answer.set()
    await stage.quiet()


class SwallowingSink(ToldSink):
    """Takes a cancellation for an answer."""

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        try:
            return await super().deliver(digest)
        except asyncio.CancelledError:
            return Outcome(Verdict.AGAIN, "swallowed")


@simulated
async def test_a_sink_that_swallows_its_end_leaves_a_sender_that_can_be_stopped() -> None:
    stage = Delivering(ToldDigests(), sinks={"out": SwallowingSink()}, limit=1)
    stage.sink.may_answer.clear()
    await stage.carry("a")
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="again") == 1
    assert all(task.cancelling() == 0 for task in stage.outlet._tasks)
    await stage.open("b")
    await asyncio.sleep(0.1)
    tasks = stage.outlet._tasks
    async with asyncio.timeout(10):
        await stage.outlet.stop()
    assert all(task.done() for task in tasks)


class StubbornSink(ToldSink):
    """Goes on, whoever cancels it."""

    async def deliver(self, digest: OutgoingDigest) -> Outcome:
        while True:
            try:
                return await super().deliver(digest)
            except asyncio.CancelledError:
                continue


@simulated
async def test_a_sink_that_cannot_be_ended_holds_up_the_stop_once_and_no_longer_than_the_grace() -> None:
    stage = Delivering(ToldDigests(), sinks={"out": StubbornSink()})
    stage.sink.may_answer.clear()
    await stage.open("a")
    await asyncio.sleep(1)
    for _ in range(2):
        await stage.outlet.stop()
        assert now_s() == 1 + 5
    stage.sink.may_answer.set()
    await stage.quiet()


@pytest.mark.parametrize("error", [KeyError("odd"), asyncio.CancelledError()])
@simulated
async def test_whatever_a_sink_raises_is_one_failed_attempt_and_a_line_in_the_log(
    logged: Callable[[str], int], error: BaseException
) -> None:
    stage = Delivering(ToldDigests(), limit=1)
    stage.sink.outcomes = [error]
    await stage.carry("a", "b")
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="again") == 1
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="delivered") == 1
    assert logged("scheduler.sink.bug") == 1
    assert stage.digests.all_finished() == [("close", "b"), ("wait", "a")]


@pytest.mark.parametrize(
    "answer",
    [
        [Outcome(Verdict.DELIVERED)],
        [Outcome(Verdict.DELIVERED)] * 3,
        [None, None],
        [Outcome(Verdict.DELIVERED), None],
    ],
)
@simulated
async def test_a_sink_that_does_not_return_an_outcome_for_each_failed_with_all(
    logged: Callable[[str], int], answer: list[Any]
) -> None:
    sink = ToldBulkSink()

    async def deliver_all(_: object) -> list[Any]:
        return answer

    sink.deliver_all = deliver_all  # type: ignore[method-assign,assignment]
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=1)
    await stage.carry("a", "b")
    assert stage.metrics.value("digest_attempts_total", sink="out", outcome="again") == 2
    assert logged("scheduler.sink.bug") == 1


@simulated
async def test_outcomes_of_a_batch_are_of_their_digests_each() -> None:
    sink = ToldBulkSink()
    sink.outcomes = [Outcome(Verdict.DELIVERED), Outcome(Verdict.AGAIN, "500"), Outcome(Verdict.DELIVERED)]
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=1)
    await stage.carry("a", "b", "c")
    assert stage.digests.finished() == [[("close", "a"), ("wait", "b"), ("close", "c")]]
    counts = {verdict: sum(stage.outlet._took[verdict].counts) for verdict in Verdict}
    assert {verdict: count for verdict, count in counts.items() if count} == {Verdict.DELIVERED: 2, Verdict.AGAIN: 1}


@simulated
async def test_a_bug_beside_the_sink_is_fenced_and_the_sender_goes_on(
    logged: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Delivering(ToldDigests(), limit=1)
    sent, broken = stage.conclusions.sent, [True]

    def once_broken(results: Any) -> None:
        if broken and broken.pop():
            raise RuntimeError("a bug")
        sent(results)

    monkeypatch.setattr(stage.conclusions, "sent", once_broken)
    await stage.carry("a", "b")
    assert logged("scheduler.digest.bug") == 1
    assert stage.sink.timelines == ["a", "b"]
    assert stage.outlet.held == stage.outlet.sending == 0


@simulated
async def test_a_bug_over_one_outcome_leaves_that_digest_and_ends_the_others(logged: Callable[[str], int]) -> None:
    sink = ToldBulkSink()
    sink.outcomes = [Outcome(Verdict.DELIVERED), Outcome(Verdict.AGAIN, retry_after_s=float("nan"))]
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=1)
    await stage.carry("a", "bad", "b")
    assert stage.digests.all_finished() == [("close", "a"), ("close", "b")]
    assert sorted(stage.ended) == ["a", "b", "bad"]
    assert logged("scheduler.digest.bug") == 1
    await stage.carry("c")
    assert stage.outlet.held == stage.outlet.sending == 0
    assert stage.digests.all_finished()[-1] == ("close", "c")


@simulated
async def test_what_is_being_sent_when_it_is_stopped_has_no_outcome(logged: Callable[[str], int]) -> None:
    stage = Delivering(ToldDigests())
    stage.sink.may_answer.clear()
    await stage.open("a")
    await asyncio.sleep(1)
    await stage.outlet.stop()
    await asyncio.sleep(60)
    assert stage.digests.called("finish") == []
    assert logged("scheduler.sink.bug") == 0
    assert stage.outlet.sending == 0


@simulated
async def test_a_bug_while_one_is_read_leaves_it_and_its_batch_goes_on(logged: Callable[[str], int]) -> None:
    sink = ToldBulkSink()
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=1, timeout_ms=60_001)
    render = stage.opener.render

    async def broken(delivery: Delivery) -> bool:
        if delivery.claim.timeline == "bad":
            raise RuntimeError("a bug")
        return await render(delivery)

    stage.outlet._render = broken
    await stage.carry("a", "bad", "b")
    assert sink.batches == [["a", "b"]]
    assert logged("scheduler.digest.bug") == 1
    assert stage.held == 0


@simulated
async def test_what_is_not_wanted_any_more_when_its_turn_comes_goes_back() -> None:
    stage = Delivering(ToldDigests(), limit=1)
    stage.sink.takes_s = 1
    await stage.open("a", "b")
    await asyncio.sleep(0.5)
    stage.outlet.history.stopped("410", 0.0)  # and nobody told the outlet
    await stage.quiet()
    assert stage.sink.timelines == ["a"]
    assert stage.digests.all_finished() == [("close", "a"), ("wait", "b")]


@simulated
async def test_of_a_batch_of_two_epochs_that_of_before_goes_back_and_the_other_goes_out() -> None:
    sink = ToldBulkSink()
    stage = Delivering(ToldDigests(), sinks={"out": sink}, limit=1)
    sink.takes_s = 1
    await stage.open("first")
    await asyncio.sleep(0.5)
    await stage.open("before")
    controller = stage.outlet.controller  # which decides anew, and nobody tells the outlet
    controller.failed(controller.decision.epoch, BEGAN_S)
    controller.tick(BEGAN_S + 10)
    controller.succeeded(controller.decision.epoch, BEGAN_S + 10)
    assert controller.decision.state is State.FLOWING
    await stage.open("after")
    await stage.quiet()
    assert sink.batches == [["first"], ["after"]]
    assert ("wait", "before") in stage.digests.all_finished()


@simulated
async def test_what_is_not_wanted_any_more_goes_back_with_all_behind_it_also_where_it_was_still_to_be_read() -> None:
    digests = ToldDigests(records={"big": [StoredRecord(b"%d" % n, 1, b"{}") for n in range(65)]})
    stage = Delivering(digests, limit=1)
    stage.sink.takes_s = 1
    await stage.open("a")
    await stage.open("big")
    await stage.open("b")
    await asyncio.sleep(0.5)
    stage.outlet.history.stopped("410", 0.0)  # and nobody told the outlet
    await asyncio.sleep(10)
    assert stage.sink.timelines == ["a"]
    assert digests.all_finished() == [("close", "a"), ("wait", "b"), ("wait", "big")]


@simulated
async def test_started_twice_it_has_its_senders_once() -> None:
    stage = Delivering(ToldDigests(), limit=3)
    tasks = stage.outlet._tasks
    stage.outlet.start(stage.opener.render, stage.conclusions, stage.metrics)
    assert stage.outlet._tasks is tasks
    assert len(tasks) == 3 + 1
    assert isinstance(stage.outlet, Outlet)
