"""The table of transitions, event by event, and the bound on recovery that follows from it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from nsqdigest.backoff import (
    PROBE_MESSAGE_WITHIN_S,
    TRANSITIONS,
    Controller,
    Curve,
    Event,
    Level,
    Reason,
    State,
    Transition,
    longest_recovery_s,
)
from nsqdigest.base.errors import IllegalEvent
from support.controllers import MAX_IN_FLIGHT, PLAIN, backoff_over, controller, fail, probing, ramping, succeed, wake_at

pytestmark = pytest.mark.unit

PAIRS = list(itertools.product(State, Event))


def cases() -> Iterator[tuple[State, Event, Callable[[Controller, float], bool]]]:
    """Each fact of the present epoch that the table does not know in a state."""
    facts: dict[Event, Callable[[Controller, float], bool]] = {
        Event.SUCCESS: lambda ctl, now_s: ctl.succeeded(ctl.decision.epoch, now_s),
        Event.FAILURE: lambda ctl, now_s: ctl.failed(ctl.decision.epoch, now_s),
        Event.VOID: lambda ctl, now_s: ctl.lost(ctl.decision.epoch, now_s),
        Event.BEGAN: lambda ctl, now_s: bool(ctl.began(ctl.decision.epoch, now_s, now_s + 9.0)),  # type: ignore[func-returns-value]
        Event.PAUSE: lambda ctl, now_s: ctl.pause(now_s),
        Event.RESUME: lambda ctl, now_s: ctl.resume(now_s),
    }
    for state, event in itertools.product(State, facts):
        if event not in TRANSITIONS[state]:
            yield state, event, facts[event]


def brought_to(state: State) -> tuple[Controller, float]:
    if state in {State.FLOWING, State.BACKOFF, State.PAUSED}:
        ctl = controller()
        if state is State.BACKOFF:
            fail(ctl, 0.0)
        elif state is State.PAUSED:
            ctl.pause(0.0)
        return ctl, 0.0
    return probing() if state is State.PROBING else ramping()


@pytest.mark.parametrize(
    ("state", "event", "fact"), [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in cases()]
)
def test_a_fact_that_the_table_does_not_know_raises_and_changes_nothing(
    state: State, event: Event, fact: Callable[[Controller, float], bool]
) -> None:
    ctl, now_s = brought_to(state)
    before = ctl.decision
    with pytest.raises(IllegalEvent, match=f"{event} means nothing while {state}"):
        fact(ctl, now_s)
    assert (ctl.decision, ctl.ignored) == (before, 0)


@pytest.mark.parametrize(
    ("state", "event"),
    [pytest.param(*pair, id="-".join(pair)) for pair in PAIRS if pair[1] not in TRANSITIONS[pair[0]]],
)
def test_no_event_that_a_state_does_not_know_is_taken(state: State, event: Event) -> None:
    ctl, now_s = brought_to(state)
    before = ctl.decision
    with pytest.raises(IllegalEvent):
        ctl._take(event, now_s)
    assert (ctl.decision, ctl.ignored) == (before, 0)


@pytest.mark.parametrize(
    ("state", "event"), [pytest.param(*pair, id="-".join(pair)) for pair in PAIRS if pair[1] in TRANSITIONS[pair[0]]]
)
def test_what_the_table_says_is_what_happens(state: State, event: Event) -> None:
    ctl, now_s = brought_to(state)
    before = ctl.decision
    wanted = TRANSITIONS[state][event]
    assert ctl._take(event, now_s) is (wanted is not None)
    if wanted is None:
        assert ctl.decision == before
    elif wanted.to is None:
        assert ctl.decision[:3] == (State.FLOWING, 0, MAX_IN_FLIGHT)
    else:
        assert (ctl.decision.state, ctl.decision.reason) == (wanted.to, wanted.reason)
        assert ctl.decision.epoch == before.epoch + wanted.new_epoch


def test_every_state_is_reached_and_every_event_and_reason_used() -> None:
    known = [(event, to) for events in TRANSITIONS.values() for event, to in events.items()]
    transitions = [to for _, to in known if isinstance(to, Transition)]
    assert set(TRANSITIONS) == set(State)
    assert {event for event, _ in known} == set(Event)
    assert {to.to for to in transitions} == {*State, None}
    assert {to.reason for to in transitions} == {*Reason} - {Reason.STARTED}
    assert {to.level for to in transitions} == {*Level}


# By event, and where that leaves it open by state.
REASONS: dict[Event, dict[State | None, Reason]] = {
    Event.FAILURE: {State.PROBING: Reason.PROBE_FAILED, None: Reason.FAILED},
    Event.SUCCESS: {None: Reason.PROBE_SUCCEEDED},
    Event.VOID: {None: Reason.PROBE_LOST},
    Event.TIMER: {State.BACKOFF: Reason.BACKOFF_OVER, None: Reason.PROBE_LOST},
    Event.WELL: {None: Reason.RECOVERED},
    Event.STEP: {None: Reason.RAMPED},
    Event.FULL: {State.PROBING: Reason.RECOVERED, None: Reason.RAMPED},
    Event.ANSWERED: {None: Reason.ANSWERED_ELSEWHERE},
    Event.PAUSE: {None: Reason.PAUSED},
    Event.RESUME: {None: Reason.RESUMED},
}


def test_a_reason_says_which_event_led_there() -> None:
    for state, events in TRANSITIONS.items():
        for event, transition in events.items():
            if transition is not None:
                by_state = REASONS[event]
                assert transition.reason is by_state.get(state, by_state.get(None)), (state, event)


def test_late_results_are_known_in_every_state_and_change_none() -> None:
    assert {events.get(Event.STALE, "unknown") for events in TRANSITIONS.values()} == {None}


def test_the_operator_may_hold_in_every_state() -> None:
    assert all(Event.PAUSE in events for events in TRANSITIONS.values())


# -- how long recovery takes at the most


def recovery_s(ctl: Controller, now_s: float, answer_s: float) -> float:
    """Of a probe that is out and fails, every later one succeeding as late as it may, without traffic in the ramp."""
    began_s = now_s
    now_s += answer_s
    fail(ctl, now_s)
    while ctl.decision.state is not State.FLOWING:
        if ctl.decision.state is State.PROBING:
            now_s += answer_s
            succeed(ctl, now_s)
        else:
            now_s = wake_at(ctl.decision)
            ctl.tick(now_s)
    return now_s - began_s


@pytest.mark.parametrize("max_in_flight", [1, 2, 3, 2500])
@pytest.mark.parametrize("slow_start", [True, False])
@pytest.mark.parametrize(
    "curve",
    [
        PLAIN,
        Curve(1.0, 120.0, recovery="halve"),
        Curve(1.0, 60.0, "decorrelated"),
        Curve(0.01, 0.02),
        Curve(5.0, 5.0, jitter="equal"),
    ],
)
def test_the_longest_recovery_is_stated_exactly(max_in_flight: int, slow_start: bool, curve: Curve) -> None:
    ctl = controller(max_in_flight, curve, slow_start=slow_start)
    fail(ctl, 0.0)
    now_s = backoff_over(ctl)
    for _ in range(20):
        fail(ctl, now_s)
        now_s = backoff_over(ctl)
    stated_s = longest_recovery_s(curve, max_in_flight, 1.5, slow_start=slow_start)
    assert recovery_s(ctl, now_s, 1.5) == pytest.approx(stated_s)


def test_with_the_defaults_a_silent_topic_recovers_within_7_minutes() -> None:
    """2 + 4 + … + 64 + 120 s of backoff, 8 answers within 2 s, and 12 steps of 5 s."""
    assert longest_recovery_s(Curve(1.0, 120.0), 2500, PROBE_MESSAGE_WITHIN_S) == 126 + 120 + 16 + 60
