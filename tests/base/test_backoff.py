"""The controller of the intake and of each sink: states, limits and epochs, in simulated time and with known draws."""

from __future__ import annotations

import pytest

from nsqdigest.backoff import (
    PROBE_MESSAGE_WITHIN_S,
    RAMP_STEP_S,
    SHORTEST_WAIT_S,
    Controller,
    Curve,
    Decision,
    Reason,
    State,
)
from support.controllers import (
    LEVEL_CAP,
    MAX_IN_FLIGHT,
    PLAIN,
    Draws,
    backoff_over,
    controller,
    fail,
    highest,
    probing,
    ramping,
    succeed,
    wake_at,
)

pytestmark = pytest.mark.unit

# -- flowing


def test_it_begins_with_everything_allowed_and_no_timer() -> None:
    assert controller().decision == Decision(State.FLOWING, 0, MAX_IN_FLIGHT, 0, None, Reason.STARTED)


def test_successes_change_nothing_while_it_flows() -> None:
    ctl = controller()
    before = ctl.decision
    assert not succeed(ctl, 1.0, 10_000)
    assert ctl.decision == before


def test_a_failure_backs_off_at_level_1() -> None:
    ctl = controller()
    assert fail(ctl, 10.0)
    assert ctl.decision == Decision(State.BACKOFF, 1, 0, 1, 12.0, Reason.FAILED)


def test_fifty_failures_of_one_epoch_are_one_level() -> None:
    ctl = controller()
    epoch = ctl.decision.epoch
    decided = [ctl.failed(epoch, 10.0 + number / 100) for number in range(50)]
    assert decided == [True] + [False] * 49
    assert (ctl.decision.level, ctl.decision.wake_at_s) == (1, 12.0)


# -- the silence that a receiver asks for


def test_a_backoff_lasts_at_least_as_long_as_the_silence_and_a_probe_follows() -> None:
    ctl = controller()
    assert ctl.failed(0, 10.0, 60.0)
    assert (ctl.decision.state, ctl.decision.level, ctl.decision.wake_at_s) == (State.BACKOFF, 1, 70.0)
    assert not ctl.tick(69.9)
    assert ctl.tick(70.0)
    assert ctl.decision.state is State.PROBING


def test_a_short_silence_shortens_no_backoff() -> None:
    ctl = controller()
    assert ctl.failed(0, 10.0, 1.0)
    assert ctl.decision.wake_at_s == 12.0


def test_the_longest_silence_that_any_of_the_failures_asked_for_counts_and_is_one_level() -> None:
    ctl = controller()
    assert ctl.failed(0, 10.0)
    assert not ctl.failed(0, 11.0, 60.0)
    assert not ctl.failed(0, 12.0, 30.0)
    assert (ctl.decision.level, ctl.decision.wake_at_s) == (1, 71.0)


def test_neither_a_pause_nor_other_settings_nor_another_answer_ends_the_silence() -> None:
    ctl = controller()
    ctl.failed(0, 10.0, 60.0)
    ctl.answered(11.0)
    assert ctl.decision.wake_at_s == 70.0
    ctl.change(8, Curve(0.1, 1.0), 12.0)
    assert ctl.decision.wake_at_s == 70.0
    ctl.pause(13.0)
    ctl.resume(14.0)
    assert (ctl.decision.state, ctl.decision.wake_at_s) == (State.BACKOFF, 70.0)


# -- backoff


def test_every_result_is_ignored_until_the_backoff_is_over() -> None:
    ctl = controller()
    fail(ctl, 0.0)
    before = ctl.decision
    epoch = before.epoch - 1
    ctl.began(epoch, 1.0, 5.0)
    assert not ctl.succeeded(epoch, 1.0, 100)
    assert not ctl.failed(epoch, 1.0)
    assert not ctl.lost(epoch, 1.0)
    assert ctl.decision == before


def test_what_is_ignored_is_counted() -> None:
    ctl, now_s = probing()
    assert not ctl.succeeded(0, now_s, 100)
    assert not ctl.failed(0, now_s)
    assert not ctl.lost(0, now_s)
    assert ctl.ignored == 3
    succeed(ctl, now_s)
    assert ctl.ignored == 3


def test_a_tick_before_its_time_changes_nothing() -> None:
    ctl = controller()
    fail(ctl, 0.0)
    before = ctl.decision
    assert not ctl.tick(wake_at(before) - 0.001)
    assert ctl.decision == before


def test_after_the_backoff_one_message_is_let_through() -> None:
    ctl = controller()
    fail(ctl, 0.0)
    now_s = backoff_over(ctl)
    assert ctl.decision == Decision(State.PROBING, 1, 1, 2, now_s + PROBE_MESSAGE_WITHIN_S, Reason.BACKOFF_OVER)


def test_a_stale_timer_changes_nothing() -> None:
    """The timer of an earlier backoff fires late: what holds by then is not its business."""
    ctl, now_s = probing()
    before = ctl.decision
    assert not ctl.tick(now_s)
    assert ctl.decision == before


@pytest.mark.parametrize("base_s", [0.0001, 0.01])
def test_no_backoff_is_shorter_than_100_ms(base_s: float) -> None:
    ctl = controller(curve=Curve(base_s, 120.0), uniform=lambda low, high: low)
    fail(ctl, 5.0)
    assert wake_at(ctl.decision) == 5.0 + SHORTEST_WAIT_S == 5.1


# -- the service answers another part of the daemon


def test_an_answer_elsewhere_cuts_a_long_backoff_to_a_small_drawn_wait() -> None:
    draws = Draws()
    ctl = controller(curve=Curve(10.0, 120.0, jitter="none"), uniform=draws)
    fail(ctl, 0.0)
    assert ctl.answered(5.0)
    assert draws.windows[1:] == [(0.1, 1.0)]
    assert ctl.decision == Decision(State.BACKOFF, 1, 0, 1, 5.55, Reason.ANSWERED_ELSEWHERE)


def test_it_cuts_a_backoff_once() -> None:
    ctl = controller(curve=Curve(10.0, 120.0))
    fail(ctl, 0.0)
    ctl.answered(5.0)
    before = ctl.decision
    assert not ctl.answered(5.5)
    assert ctl.decision == before
    now_s = backoff_over(ctl)
    fail(ctl, now_s)
    assert ctl.answered(now_s), "the next backoff is another one"


def test_it_never_makes_a_backoff_longer() -> None:
    ctl = controller()
    fail(ctl, 0.0)
    wake_at_s = wake_at(ctl.decision)
    ctl.answered(wake_at_s - 0.05)
    assert wake_at(ctl.decision) == wake_at_s


def test_it_never_makes_a_backoff_shorter_than_100_ms() -> None:
    ctl = controller(uniform=lambda low, high: low)
    fail(ctl, 3.0)
    ctl.answered(3.0)
    assert wake_at(ctl.decision) >= 3.0 + SHORTEST_WAIT_S


@pytest.mark.parametrize("state", [state for state in State if state is not State.BACKOFF])
def test_elsewhere_than_in_a_backoff_it_changes_nothing(state: State) -> None:
    ctl, now_s = ramping() if state is State.RAMPING else probing() if state is State.PROBING else (controller(), 0.0)
    if state is State.PAUSED:
        ctl.pause(now_s)
    before = ctl.decision
    assert before.state is state
    assert not ctl.answered(now_s)
    assert ctl.decision == before


# -- probing


def test_a_probes_failure_raises_the_level() -> None:
    ctl, now_s = probing(level=1)
    assert fail(ctl, now_s)
    assert ctl.decision[:3] == (State.BACKOFF, 2, 0)
    assert ctl.decision.reason is Reason.PROBE_FAILED
    assert wake_at(ctl.decision) == now_s + 4.0


def test_a_probes_success_lowers_the_level_and_backs_off_again() -> None:
    ctl, now_s = probing(level=3)
    assert succeed(ctl, now_s)
    assert ctl.decision[:3] == (State.BACKOFF, 2, 0)
    assert ctl.decision.reason is Reason.PROBE_SUCCEEDED
    assert wake_at(ctl.decision) == now_s + 4.0


def test_at_level_0_the_ramp_begins_with_one_message() -> None:
    ctl, now_s = probing(level=1)
    epoch = ctl.decision.epoch
    assert succeed(ctl, now_s)
    assert ctl.decision == Decision(State.RAMPING, 0, 1, epoch + 1, now_s + RAMP_STEP_S, Reason.RECOVERED)


def test_results_of_before_the_backoff_are_not_the_probes() -> None:
    ctl, now_s = probing()
    before = ctl.decision
    for epoch in range(before.epoch):
        assert not ctl.succeeded(epoch, now_s)
        assert not ctl.failed(epoch, now_s)
        assert not ctl.lost(epoch, now_s)
    assert ctl.decision == before


def test_a_lost_probe_is_tried_again_at_the_same_level() -> None:
    ctl, now_s = probing(level=2)
    epoch = ctl.decision.epoch
    assert ctl.lost(epoch, now_s + 1.0)
    assert ctl.decision == Decision(
        State.PROBING, 2, 1, epoch + 1, now_s + 1.0 + PROBE_MESSAGE_WITHIN_S, Reason.PROBE_LOST
    )


def test_a_probe_without_a_message_within_2_seconds_is_lost() -> None:
    ctl, now_s = probing(level=2)
    assert not ctl.tick(now_s + 1.999)
    assert ctl.tick(now_s + 2.0)
    assert ctl.decision[:3] == (State.PROBING, 2, 1)
    assert ctl.decision.reason is Reason.PROBE_LOST


def test_the_result_of_a_probe_that_was_given_up_does_not_count() -> None:
    ctl, now_s = probing()
    given_up = ctl.decision.epoch
    ctl.lost(given_up, now_s)
    before = ctl.decision
    assert not ctl.failed(given_up, now_s + 0.1)
    assert not ctl.succeeded(given_up, now_s + 0.1)
    assert ctl.decision == before


def test_a_probe_that_began_has_time_until_its_message_times_out() -> None:
    ctl, now_s = probing()
    epoch = ctl.decision.epoch
    ctl.began(epoch, now_s, now_s + 60.0)
    assert not ctl.tick(now_s + 59.9)
    assert ctl.succeeded(epoch, now_s + 59.9)
    assert ctl.decision.state is State.RAMPING


def test_a_probe_that_came_to_no_verdict_in_time_is_lost() -> None:
    ctl, now_s = probing(level=2)
    ctl.began(ctl.decision.epoch, now_s, now_s + 60.0)
    assert ctl.tick(now_s + 60.0)
    assert ctl.decision[:3] == (State.PROBING, 2, 1)
    assert ctl.decision.reason is Reason.PROBE_LOST


def test_a_message_of_an_earlier_epoch_does_not_begin_the_probe() -> None:
    ctl, now_s = probing()
    before = ctl.decision
    ctl.began(before.epoch - 1, now_s, now_s + 60.0)
    assert ctl.decision == before


@pytest.mark.parametrize("kind", ["failed", "succeeded", "lost"])
def test_each_decision_begins_a_new_epoch(kind: str) -> None:
    ctl, now_s = probing(level=2)
    epoch = ctl.decision.epoch
    decide = {"failed": ctl.failed, "succeeded": ctl.succeeded, "lost": ctl.lost}[kind]
    assert decide(epoch, now_s)
    assert ctl.decision.epoch == epoch + 1


# -- ramping


def test_the_ramp_doubles_after_as_many_successes_as_its_limit() -> None:
    ctl, now_s = ramping()
    limits = [ctl.decision.limit]
    while ctl.decision.state is State.RAMPING:
        for number in range(ctl.decision.limit):
            assert succeed(ctl, now_s) is (number == limits[-1] - 1)
        limits.append(ctl.decision.limit)
    assert limits == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 2500]
    assert ctl.decision[:3] == (State.FLOWING, 0, MAX_IN_FLIGHT)
    assert ctl.decision.wake_at_s is None


def test_successes_may_come_as_one_batch() -> None:
    ctl, now_s = ramping()
    succeed(ctl, now_s)
    assert ctl.decision.limit == 2
    assert not succeed(ctl, now_s, 1)
    assert succeed(ctl, now_s, 3)
    assert ctl.decision.limit == 4
    assert not succeed(ctl, now_s, 3)


def test_a_success_counts_as_one_unless_its_count_is_given() -> None:
    ctl, now_s = ramping()
    limits = []
    for _ in range(3):
        ctl.succeeded(ctl.decision.epoch, now_s)
        limits.append(ctl.decision.limit)
    assert limits == [2, 2, 4]


def test_it_starts_slowly_unless_told_otherwise() -> None:
    ctl = Controller(MAX_IN_FLIGHT, PLAIN, highest)
    fail(ctl, 0.0)
    succeed(ctl, backoff_over(ctl))
    assert (ctl.decision.state, ctl.decision.limit) == (State.RAMPING, 1)


def test_the_ramp_goes_on_after_5_seconds_without_a_failure_also_without_traffic() -> None:
    ctl, now_s = ramping()
    assert not ctl.tick(now_s + 4.999)
    assert ctl.tick(now_s + 5.0)
    assert (ctl.decision.limit, ctl.decision.wake_at_s) == (2, now_s + 10.0)


def test_a_ramp_by_time_alone_ends_in_flowing() -> None:
    ctl, _ = ramping()
    steps = 0
    while ctl.decision.state is State.RAMPING:
        assert ctl.tick(wake_at(ctl.decision))
        steps += 1
    assert (steps, ctl.decision.state, ctl.decision.limit) == (12, State.FLOWING, MAX_IN_FLIGHT)


def test_the_epoch_stays_while_the_ramp_goes_on() -> None:
    ctl, now_s = ramping()
    epoch = ctl.decision.epoch
    succeed(ctl, now_s)
    ctl.tick(wake_at(ctl.decision))
    assert ctl.decision.epoch == epoch


def test_a_failure_during_the_ramp_backs_off_at_level_1() -> None:
    ctl, now_s = ramping()
    succeed(ctl, now_s)
    assert fail(ctl, now_s + 1.0)
    assert ctl.decision[:3] == (State.BACKOFF, 1, 0)
    assert ctl.decision.reason is Reason.FAILED


def test_a_failure_after_the_ramp_reached_the_whole_backs_off_too() -> None:
    ctl, now_s = ramping()
    epoch = ctl.decision.epoch
    while ctl.decision.state is State.RAMPING:
        ctl.tick(wake_at(ctl.decision))
    assert ctl.failed(epoch, now_s + 100.0)
    assert ctl.decision.state is State.BACKOFF


def test_the_next_ramp_counts_its_successes_from_nothing() -> None:
    ctl, now_s = ramping()
    succeed(ctl, now_s)
    succeed(ctl, now_s, 1)
    fail(ctl, now_s)
    now_s = backoff_over(ctl)
    succeed(ctl, now_s)
    assert succeed(ctl, now_s, 1)
    assert not succeed(ctl, now_s, 1)


def test_with_room_for_one_only_there_is_nothing_to_ramp() -> None:
    ctl = controller(1)
    fail(ctl, 0.0)
    now_s = backoff_over(ctl)
    succeed(ctl, now_s)
    assert ctl.decision[:3] == (State.FLOWING, 0, 1)


def test_without_slow_start_recovery_is_at_once() -> None:
    ctl = controller(slow_start=False)
    fail(ctl, 0.0)
    now_s = backoff_over(ctl)
    succeed(ctl, now_s)
    assert ctl.decision[:3] == (State.FLOWING, 0, MAX_IN_FLIGHT)
    assert ctl.decision.wake_at_s is None


# -- paused


def test_held_allows_nothing_and_sets_no_timer() -> None:
    ctl = controller()
    assert ctl.pause(0.0)
    assert ctl.decision == Decision(State.PAUSED, 0, 0, 1, None, Reason.PAUSED)


def test_holding_what_is_held_changes_nothing() -> None:
    ctl = controller()
    ctl.pause(0.0)
    before = ctl.decision
    assert not ctl.pause(0.0)
    assert ctl.decision == before


def test_held_accepts_every_event_and_ignores_it() -> None:
    ctl, now_s = probing(level=2)
    ctl.pause(0.0)
    before = ctl.decision
    for epoch in range(before.epoch + 1):
        ctl.began(epoch, now_s, now_s + 9.0)
        assert not ctl.failed(epoch, now_s)
        assert not ctl.succeeded(epoch, now_s, 1_000)
        assert not ctl.lost(epoch, now_s)
    assert not ctl.tick(now_s + 1e9)
    assert ctl.decision == before


def test_resume_goes_back_to_flowing() -> None:
    ctl = controller()
    ctl.pause(0.0)
    assert ctl.resume(50.0)
    assert ctl.decision == Decision(State.FLOWING, 0, MAX_IN_FLIGHT, 2, None, Reason.RESUMED)


def test_resume_goes_back_to_a_backoff_with_the_time_that_is_left() -> None:
    ctl = controller()
    fail(ctl, 0.0)
    ctl.pause(0.0)
    ctl.resume(0.5)
    assert ctl.decision[:3] == (State.BACKOFF, 1, 0)
    assert wake_at(ctl.decision) == 2.0


def test_a_backoff_that_ended_while_paused_is_over_at_once() -> None:
    ctl = controller()
    fail(ctl, 0.0)
    ctl.pause(0.0)
    ctl.resume(1000.0)
    assert ctl.tick(1000.0)
    assert ctl.decision.state is State.PROBING


def test_resume_goes_back_to_the_ramp_where_it_was() -> None:
    ctl, now_s = ramping()
    succeed(ctl, now_s)
    succeed(ctl, now_s, 2)
    ctl.pause(0.0)
    ctl.resume(now_s + 1.0)
    assert ctl.decision[:3] == (State.RAMPING, 0, 4)


def test_what_was_under_way_before_the_hold_does_not_count_after_it() -> None:
    ctl, now_s = probing()
    before = ctl.decision.epoch
    ctl.pause(0.0)
    ctl.resume(now_s)
    assert ctl.decision.state is State.PROBING
    assert not ctl.failed(before, now_s)
    assert not ctl.succeeded(before, now_s)


# -- levels


def test_failing_probes_never_raise_the_level_above_the_cap() -> None:
    ctl, now_s = probing()
    for _ in range(2_000):
        fail(ctl, now_s)
        now_s = backoff_over(ctl)
    assert ctl.decision.level == LEVEL_CAP


def test_recovery_takes_as_many_probes_as_the_cap_however_long_it_failed() -> None:
    ctl, now_s = probing()
    for _ in range(500):
        fail(ctl, now_s)
        now_s = backoff_over(ctl)
    probes = 0
    while ctl.decision.state is not State.RAMPING:
        succeed(ctl, now_s)
        probes += 1
        if ctl.decision.state is State.BACKOFF:
            now_s = backoff_over(ctl)
    assert probes == LEVEL_CAP


def test_a_maximum_of_0_never_backs_off() -> None:
    ctl = controller(curve=Curve(1.0, 0.0))
    before = ctl.decision
    assert not any(fail(ctl, float(number)) for number in range(100))
    assert ctl.decision == before


def test_a_decision_can_not_be_changed_by_who_holds_it() -> None:
    with pytest.raises(AttributeError):
        controller().decision.level = 3  # type: ignore[misc]


def test_each_backoff_draws_once_from_the_window_of_its_level() -> None:
    draws = Draws()
    ctl = controller(curve=Curve(1.0, 120.0), uniform=draws)
    epoch = ctl.decision.epoch
    for number in range(20):
        ctl.failed(epoch, number / 100)
        ctl.tick(number / 100)
    assert draws.windows == [(0.1, 2.0)]
    now_s = backoff_over(ctl)
    fail(ctl, now_s)
    assert draws.windows == [(0.1, 2.0), (0.1, 4.0)]


def test_the_wait_after_a_probes_success_is_that_of_the_level_it_left() -> None:
    ctl, now_s = probing(level=3)
    succeed(ctl, now_s)
    assert wake_at(ctl.decision) == now_s + PLAIN.longest_s(2)


def test_levels_may_come_down_by_half() -> None:
    ctl = controller(curve=Curve(1.0, 120.0, jitter="none", recovery="halve"))
    fail(ctl, 0.0)
    now_s = backoff_over(ctl)
    for _ in range(LEVEL_CAP):
        fail(ctl, now_s)
        now_s = backoff_over(ctl)
    levels = [ctl.decision.level]
    while ctl.decision.state is not State.RAMPING:
        succeed(ctl, now_s)
        levels.append(ctl.decision.level)
        if ctl.decision.state is State.BACKOFF:
            now_s = backoff_over(ctl)
    assert levels == [7, 3, 1, 0]


# -- other settings


def test_other_settings_hold_at_once_while_it_flows() -> None:
    ctl = controller()
    epoch = ctl.decision.epoch
    ctl.change(10, PLAIN, 5.0)
    assert ctl.decision == Decision(State.FLOWING, 0, 10, epoch, None, Reason.STARTED)


def test_a_backoff_under_way_keeps_its_level_and_ends_within_the_new_longest_one() -> None:
    ctl, now_s = probing(level=5)
    fail(ctl, now_s)
    ctl.change(10, Curve(1.0, 8.0, jitter="none"), now_s)
    assert (ctl.decision.state, ctl.decision.level, wake_at(ctl.decision)) == (State.BACKOFF, 3, now_s + 8.0)
    ctl.change(10, PLAIN, now_s)
    assert (ctl.decision.level, wake_at(ctl.decision)) == (3, now_s + 8.0), "and never longer than it was to be"


def test_a_ramp_goes_on_within_the_new_limit() -> None:
    ctl, now_s = ramping()
    for _ in range(6):
        succeed(ctl, now_s, ctl.decision.limit)
    assert ctl.decision.limit == 64
    ctl.change(100, PLAIN, now_s)
    assert (ctl.decision.state, ctl.decision.limit) == (State.RAMPING, 64)
    succeed(ctl, now_s, 64)
    assert (ctl.decision.state, ctl.decision.limit) == (State.FLOWING, 100)


def test_a_ramp_beyond_the_new_limit_is_at_its_end() -> None:
    ctl, now_s = ramping()
    for _ in range(6):
        succeed(ctl, now_s, ctl.decision.limit)
    epoch = ctl.decision.epoch
    ctl.change(20, PLAIN, now_s)
    assert ctl.decision[:5] == (State.FLOWING, 0, 20, epoch, None)


@pytest.mark.parametrize("state", [State.BACKOFF, State.PROBING, State.RAMPING])
def test_where_backoff_is_turned_off_one_under_way_is_over(state: State) -> None:
    ctl, now_s = ramping() if state is State.RAMPING else probing()
    if state is State.BACKOFF:
        fail(ctl, now_s)
    epoch = ctl.decision.epoch
    ctl.change(10, Curve(1.0, 0.0), now_s)
    assert ctl.decision == Decision(State.FLOWING, 0, 10, epoch + 1, None, Reason.STARTED)


def test_a_pause_stays_and_what_it_goes_on_with_has_the_other_settings() -> None:
    ctl = controller()
    ctl.pause(1.0)
    ctl.change(10, PLAIN, 2.0)
    assert (ctl.decision.state, ctl.decision.limit) == (State.PAUSED, 0)
    ctl.resume(3.0)
    assert (ctl.decision.state, ctl.decision.limit) == (State.FLOWING, 10)
