"""elixir_nsq and go-nsq: the consumer steps back, probes with one message, and steps in again.

What they do is kept: a failure is RDY 0 everywhere, the wait grows with the level, one connection gets RDY 1, successes
lead back to all. What went wrong there is shown absent, one weakness a test.
"""

from __future__ import annotations

import random

import pytest

from nsqdigest.backoff import Curve, Decision, Reason, State, longest_recovery_s
from nsqdigest.intake.rdy import Planner
from support.controllers import LEVEL_CAP, MAX_IN_FLIGHT, backoff_over, controller, fail, probing, succeed, wake_at
from support.fleet import MSG_TIMEOUT_S, Facts, Fleet, Store

pytestmark = pytest.mark.lineage

MULTIPLIER_S, MAXIMUM_S = 1.0, 120.0


def connections(count: int) -> list[Facts]:
    return [Facts(f"nsqd-{number}") for number in range(count)]


def rdy_of(decision: Decision, seats: list[Facts], planner: Planner[Facts], now_s: float) -> list[int]:
    for seat, count in planner.plan(decision, seats, now_s).changes:
        seat.rdy = count
    return [seat.rdy for seat in seats]


# -- kept


def test_the_wait_is_the_multiplier_times_two_to_the_counter_up_to_the_maximum() -> None:
    ctl = controller()
    now_s, waits = 0.0, []
    for _ in range(8):
        fail(ctl, now_s)
        waits.append(wake_at(ctl.decision) - now_s)
        now_s = backoff_over(ctl)
    assert waits == [min(MULTIPLIER_S * 2**counter, MAXIMUM_S) for counter in range(1, 9)]


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_failures_give_rdy_0_1_0_1_and_successes_0_1_until_all(levels: int) -> None:
    """The sequence that both test against a scripted nsqd, on one connection."""
    ctl = controller(5, slow_start=False)
    seats, planner = connections(1), Planner[Facts]()
    sequence = rdy_of(ctl.decision, seats, planner, 0.0)

    def then(now_s: float) -> None:
        sequence.extend(rdy_of(ctl.decision, seats, planner, now_s))

    fail(ctl, 0.0)
    then(0.0)
    now_s = backoff_over(ctl)
    then(now_s)
    for _ in range(levels - 1):
        fail(ctl, now_s)
        then(now_s)
        now_s = backoff_over(ctl)
        then(now_s)
    while True:
        succeed(ctl, now_s)
        then(now_s)
        if ctl.decision.state is State.FLOWING:
            break
        now_s = backoff_over(ctl)
        then(now_s)
    assert sequence == [5] + [0, 1] * levels + [0, 1] * (levels - 1) + [5]


def test_at_0_all_connections_share_max_in_flight_again() -> None:
    ctl, now_s = probing()
    seats, planner = connections(3), Planner[Facts]()
    assert sorted(rdy_of(ctl.decision, seats, planner, now_s)) == [0, 0, 1]
    succeed(ctl, now_s)
    while ctl.decision.state is State.RAMPING:
        now_s = wake_at(ctl.decision)
        ctl.tick(now_s)
    rdy_of(ctl.decision, seats, planner, now_s)
    assert rdy_of(ctl.decision, seats, planner, now_s + 2.0) == [834, 833, 833]


def test_without_a_connection_the_probe_waits_for_one() -> None:
    ctl, now_s = probing()
    planner = Planner[Facts]()
    assert rdy_of(ctl.decision, [], planner, now_s) == []
    ctl.tick(wake_at(ctl.decision))
    assert rdy_of(ctl.decision, connections(1), planner, now_s + 2.0) == [1]


def test_stopping_resumes_nothing() -> None:
    ctl, now_s = probing()
    ctl.pause(now_s)
    assert not ctl.tick(now_s + 1e9)
    assert ctl.decision.limit == 0


def test_a_maximum_of_0_never_backs_off() -> None:
    ctl = controller(curve=Curve(MULTIPLIER_S, 0.0))
    assert not any(fail(ctl, float(number)) for number in range(50))
    assert ctl.decision.limit == MAX_IN_FLIGHT


# -- shown absent


def test_fifty_failures_that_were_in_flight_are_one_level() -> None:
    ctl = controller()
    epoch = ctl.decision.epoch
    for number in range(50):
        ctl.failed(epoch, number / 100)
    assert (ctl.decision.level, ctl.ignored) == (1, 49)


def test_recovery_after_fifty_failing_messages_takes_no_hour() -> None:
    """Fifty levels took 50 x 120 s there. Here one backoff of 2 s, an answer and the ramp are the most."""
    ctl = controller()
    epoch = ctl.decision.epoch
    for _ in range(50):
        ctl.failed(epoch, 0.0)
    succeed(ctl, backoff_over(ctl))
    now_s = 0.0
    while ctl.decision.state is not State.FLOWING:
        now_s = wake_at(ctl.decision)
        ctl.tick(now_s)
    assert now_s == 2.0 + 12 * 5.0
    assert longest_recovery_s(Curve(MULTIPLIER_S, MAXIMUM_S), MAX_IN_FLIGHT, 2.0) < 6 * 60


def test_the_counter_never_passes_the_cap() -> None:
    """go-nsq's full jitter counted on while short draws stayed below the maximum: 16 levels after 2,000 failures."""
    ctl = controller(curve=Curve(MULTIPLIER_S, MAXIMUM_S), uniform=random.Random(1).uniform)
    fail(ctl, 0.0)
    for _ in range(2_000):
        fail(ctl, backoff_over(ctl))
    assert ctl.decision.level == LEVEL_CAP


def test_there_is_jitter_also_at_the_cap() -> None:
    curve, uniform = Curve(MULTIPLIER_S, MAXIMUM_S), random.Random(1).uniform
    waits = {curve.wait_s(LEVEL_CAP, uniform) for _ in range(100)}
    assert len(waits) == 100
    assert min(waits) < MAXIMUM_S / 4 < 3 * MAXIMUM_S / 4 < max(waits)


def test_a_stale_timer_resumes_nothing() -> None:
    """The first backoff's timer fires in the second backoff."""
    ctl = controller()
    fail(ctl, 0.0)
    first_s = backoff_over(ctl)
    fail(ctl, first_s)
    before = ctl.decision
    assert not ctl.tick(first_s)
    assert not ctl.tick(first_s + 1.0)
    assert ctl.decision == before


@pytest.mark.parametrize("fact", ["succeeded", "failed", "lost"])
def test_results_of_messages_from_before_the_backoff_are_not_the_probes(fact: str) -> None:
    ctl, now_s = probing()
    before = ctl.decision
    assert not getattr(ctl, fact)(0, now_s)
    assert (ctl.decision, ctl.ignored) == (before, 1)


def test_a_probe_that_is_never_answered_leads_on() -> None:
    fleet = Fleet(1, Curve(0.2, 1.0), 5, slow_start=False)
    link = fleet.connect(2500, 20)
    fleet.store = Store.DOWN
    fleet.run(5.0, until=lambda: fleet.decision.state is State.BACKOFF)
    fleet.store = Store.MUTE
    fleet.run(20.0, until=lambda: fleet.decision.epoch in fleet.probed)
    fleet.run(MSG_TIMEOUT_S, until=lambda: fleet.decision.reason is Reason.PROBE_LOST)
    assert fleet.decision.reason is Reason.PROBE_LOST
    fleet.store = Store.WELL
    fleet.publish(link, 100)
    fleet.run(20.0, until=lambda: fleet.decision.state is State.FLOWING)
    assert fleet.decision.limit == 5


def test_requeued_without_backoff_the_probe_is_followed_by_another() -> None:
    """go-nsq stayed at RDY 0 here."""
    ctl, now_s = probing(level=2)
    assert ctl.lost(ctl.decision.epoch, now_s)
    assert ctl.decision[:3] == (State.PROBING, 2, 1)


def test_after_the_last_success_it_is_not_full_speed_at_once() -> None:
    ctl, now_s = probing()
    succeed(ctl, now_s)
    assert ctl.decision[:3] == (State.RAMPING, 0, 1)


def test_a_connection_that_is_closing_is_not_chosen() -> None:
    ctl, now_s = probing()
    closing, other = connections(2)
    closing.is_well = False
    assert rdy_of(ctl.decision, [closing, other], Planner(), now_s) == [0, 1]


def test_with_fewer_places_than_connections_none_starves() -> None:
    """go-nsq gives more than max_in_flight, or forgets some; here each is served in turn."""
    fleet = Fleet(1, Curve(1.0, 4.0), 2, slow_start=False)
    links = [fleet.connect(2500, 1_000) for _ in range(5)]
    fleet.run(30.0)
    assert all(link.depth < 1_000 - 5 for link in links)
