"""The controller beside a model of it: the table of the design, told once more in plain words.

Results of any epoch come in any order, timers early and late, the operator's word at any moment. At the end of every
run all succeeds, and it flows within the bound that `longest_recovery_s` states; in between, stretches of steady
failure never ask more often than the curve.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nsqdigest.backoff import (
    RAMP_STEP_S,
    RECHECK_WITHIN_S,
    SHORTEST_WAIT_S,
    Controller,
    Curve,
    State,
    longest_recovery_s,
)
from nsqdigest.base.errors import IllegalEvent

pytestmark = pytest.mark.property

CURVES = (
    Curve(1.0, 120.0),
    Curve(1.0, 4.0, jitter="none"),
    Curve(0.02, 1.0, jitter="equal"),
    Curve(2.0, 30.0, recovery="halve"),
    Curve(1.0, 60.0, "decorrelated"),
    Curve(3.0, 3.0),
)
PROBE_S = 2.0
SELDOM = 100
"""What is interesting is to come in one of so many examples."""
states = st.sampled_from([state for state in State if state is not State.PAUSED])
EXAMPLES = 6 * settings().max_examples


class ControllerMachine(RuleBasedStateMachine):
    seen: ClassVar[Counter[str]] = Counter()
    runs: ClassVar[int] = 0

    @initialize(
        seed=st.integers(0, 2**32),
        curve=st.sampled_from(CURVES),
        most=st.sampled_from((1, 2, 7, 8, 2500)),
        slow_start=st.booleans(),
    )
    def begin(self, seed: int, curve: Curve, most: int, slow_start: bool) -> None:
        self.uniform = Random(seed).uniform
        self.windows: list[tuple[float, float]] = []
        self.drawn_s = 0.0
        self.silent_s = float("-inf")
        self.curve, self.most, self.slow_start, self.now_s = curve, most, slow_start, 0.0
        self.ctl = Controller(most, curve, self.drawn, slow_start=slow_start)
        self.state, self.level, self.limit, self.epoch = State.FLOWING, 0, most, 0
        self.wake_s: float | None = None
        self.successes = self.ignored = 0
        self.before: tuple[State, int, int, float | None] | None = None
        self.is_cut = False

    def drawn(self, low: float, high: float) -> float:
        self.windows.append((low, high))
        self.drawn_s = self.uniform(low, high)
        return self.drawn_s

    # -- the model

    def goes_to(self, state: State, level: int = 0, limit: int = 0, within_s: float | None = None) -> None:
        self.state, self.level, self.limit = state, level, limit
        self.wake_s = None if within_s is None else self.now_s + within_s
        self.epoch += 1
        self.successes = 0

    def backs_off(self, level: int) -> None:
        """The wait is the controller's own draw; that there was one, from the window of the level, is checked."""
        assert self.windows == [self.curve.window_s(level)]
        self.windows.clear()
        wake_s = self.ctl.decision.wake_at_s
        assert wake_s is not None
        low, high = self.curve.window_s(level)
        assert low >= SHORTEST_WAIT_S
        assert low - 1e-9 <= self.drawn_s <= high + 1e-9
        assert wake_s == max(self.now_s + self.drawn_s, self.silent_s)
        self.goes_to(State.BACKOFF, level, 0, wake_s - self.now_s)
        self.wake_s = wake_s
        self.is_cut = False
        self.seen["level at the cap"] += level == self.curve.level_cap > 1

    def probes(self) -> None:
        self.goes_to(State.PROBING, self.level, 1, PROBE_S)

    def steps(self) -> None:
        if 2 * self.limit < self.most:
            self.limit, self.wake_s, self.successes = 2 * self.limit, self.now_s + RAMP_STEP_S, 0
            self.seen["ramp steps"] += 1
        else:
            self.state, self.limit, self.wake_s, self.successes = State.FLOWING, self.most, None, 0

    def succeeds(self, count: int) -> None:
        if self.state is State.PROBING:
            below = self.level // 2 if self.curve.recovery == "halve" else self.level - 1
            if below:
                self.backs_off(below)
            elif self.slow_start and self.most > 1:
                self.goes_to(State.RAMPING, 0, 1, RAMP_STEP_S)
            else:
                self.goes_to(State.FLOWING, 0, self.most)
        elif self.state is State.RAMPING:
            self.successes += count
            if self.successes >= self.limit:
                self.steps()

    def fails(self) -> None:
        if self.state is State.PROBING:
            self.backs_off(min(self.level + 1, self.curve.level_cap))
        elif self.state in {State.FLOWING, State.RAMPING}:
            self.backs_off(1)

    def asks_for(self, silence_s: float) -> None:
        if silence_s:
            self.silent_s = max(self.silent_s, self.now_s + silence_s)
            self.seen["silences"] += 1

    def is_lost(self) -> None:
        if self.state is State.PROBING:
            self.seen["probes lost"] += 1
            self.probes()

    # -- facts

    @precondition(lambda self: self.state is not State.BACKOFF)
    @rule(
        kind=st.sampled_from(("succeeded", "failed", "lost")),
        count=st.sampled_from((1, 3, 1000)),
        silence_s=st.sampled_from((0.0, 0.0, 0.0, 50.0)),
    )
    def a_result(self, kind: str, count: int, silence_s: float = 0.0) -> None:
        if kind == "succeeded":
            self.ctl.succeeded(self.epoch, self.now_s, count)
            self.succeeds(count)
        elif kind == "failed":
            self.asks_for(silence_s)
            self.ctl.failed(self.epoch, self.now_s, silence_s)
            self.fails()
        else:
            self.ctl.lost(self.epoch, self.now_s)
            self.is_lost()

    @precondition(lambda self: self.epoch > 0)
    @rule(
        kind=st.sampled_from(("succeeded", "failed", "lost")),
        ago=st.sampled_from((1, 1, 2, 5)),
        silence_s=st.sampled_from((0.0, 0.0, 50.0)),
    )
    def a_result_of_an_earlier_epoch(self, kind: str, ago: int, silence_s: float) -> None:
        if kind == "failed":
            self.asks_for(silence_s)
            assert not self.ctl.failed(self.epoch - ago, self.now_s, silence_s)
            if self.state is State.BACKOFF and self.wake_s is not None:
                self.wake_s = max(self.wake_s, self.silent_s)
        else:
            assert not getattr(self.ctl, kind)(self.epoch - ago, self.now_s)
        self.ctl.began(self.epoch - ago, self.now_s, self.now_s + 100.0)
        self.ignored += 1
        self.seen["epochs crossed"] += 1

    @precondition(lambda self: self.state is State.BACKOFF)
    @rule(kind=st.sampled_from(("succeeded", "failed", "lost")))
    def in_a_backoff_nothing_is_handed_over_that_could_have_a_result(self, kind: str) -> None:
        with pytest.raises(IllegalEvent):
            getattr(self.ctl, kind)(self.epoch, self.now_s)

    @precondition(lambda self: self.state is State.PROBING)
    @rule(within_s=st.sampled_from((0.5, 60.0)))
    def the_probe_has_its_message(self, within_s: float) -> None:
        self.ctl.began(self.epoch, self.now_s, self.now_s + within_s)
        self.wake_s = self.now_s + within_s

    @rule()
    def the_service_answers_another_part(self) -> None:
        """A backoff then ends soon, once; the wait is the controller's own draw. It is drawn anew, and never longer."""
        cuts = self.state is State.BACKOFF and not self.is_cut
        assert self.ctl.answered(self.now_s) is cuts
        if not cuts:
            return
        ((low, high),) = self.windows
        self.windows.clear()
        assert low == SHORTEST_WAIT_S <= high <= RECHECK_WITHIN_S
        assert self.wake_s is not None
        wake_s = self.ctl.decision.wake_at_s
        assert wake_s is not None
        soonest_s, latest_s = (max(self.silent_s, min(self.wake_s, self.now_s + each)) for each in (low, high))
        assert soonest_s - 1e-9 <= wake_s <= latest_s + 1e-9
        self.wake_s, self.is_cut = wake_s, True
        self.seen["backoffs cut"] += 1

    @rule(for_s=st.sampled_from((0.0, 0.01, 0.5, 3.0, 200.0)))
    def a_timer(self, for_s: float) -> None:
        """Early, late, or of nothing."""
        self.now_s += for_s
        self.fires()

    @precondition(lambda self: self.wake_s is not None)
    @rule()
    def the_timer(self) -> None:
        assert self.wake_s is not None
        self.now_s = max(self.now_s, self.wake_s)
        self.fires()

    def fires(self) -> None:
        decided = self.ctl.tick(self.now_s)
        if self.wake_s is None or self.now_s < self.wake_s:
            assert not decided
            self.seen["timers of nothing"] += 1
        elif self.state is State.BACKOFF:
            self.probes()
        elif self.state is State.PROBING:
            self.is_lost()
        else:
            self.steps()

    @precondition(lambda self: self.state is State.PAUSED)
    @rule()
    def resume(self) -> None:
        self.ctl.resume(self.now_s)
        assert self.before is not None
        state, level, limit, wake_s = self.before
        within_s = {State.PROBING: PROBE_S, State.RAMPING: RAMP_STEP_S}.get(state)
        self.goes_to(state, level, limit, within_s)
        if state is State.BACKOFF:
            assert wake_s is not None
            self.wake_s = max(wake_s, self.silent_s)
            self.is_cut = False
        self.seen[f"resumed to {state}"] += 1

    @rule(state=states)
    def it_comes_to(self, state: State) -> None:
        """The shortest way, so that no state is rare."""
        if self.state is State.PAUSED:
            self.resume()
        if state is State.RAMPING and self.state is State.FLOWING:
            self.a_result("failed", 1)
        for _ in range(40):
            if self.state is state or (self.state is State.FLOWING and state is State.RAMPING):
                return
            if self.state is State.BACKOFF or (self.state is State.RAMPING and state is State.FLOWING):
                self.the_timer()
            else:
                self.a_result("failed" if state in {State.BACKOFF, State.PROBING} else "succeeded", 1)
        raise AssertionError(f"{self.state} does not lead to {state}")

    @rule(successes=st.integers(1, 6))
    def it_ramps_one_success_at_a_time(self, successes: int) -> None:
        self.it_comes_to(State.RAMPING)
        for _ in range(successes):
            self.a_result("succeeded", 1)
            self.it_is_where_the_model_is()

    @rule(state=states, for_s=st.sampled_from((0.0, 1.0, 500.0)))
    def it_is_held_for_a_while(self, state: State, for_s: float) -> None:
        self.it_comes_to(state)
        self.pause()
        self.now_s += for_s
        self.resume()

    @rule()
    def pause(self) -> None:
        assert self.ctl.pause(self.now_s) is (self.state is not State.PAUSED)
        if self.state is not State.PAUSED:
            self.before = self.state, self.level, self.limit, self.wake_s
            self.goes_to(State.PAUSED, self.level)

    @rule(curve=st.sampled_from(CURVES), most=st.sampled_from((1, 8, 2500)), slow_start=st.booleans())
    def other_settings(self, curve: Curve, most: int, slow_start: bool) -> None:
        self.ctl.change(most, curve, self.now_s, slow_start=slow_start)
        self.curve, self.most, self.slow_start = curve, most, slow_start
        self.state, self.level, self.limit, self.wake_s = self.fitted(self.state, self.level, self.limit, self.wake_s)
        if self.before is not None:
            self.before = self.fitted(*self.before)

    def fitted(
        self, state: State, level: int, limit: int, wake_s: float | None
    ) -> tuple[State, int, int, float | None]:
        level = min(level, self.curve.level_cap)
        if state is State.FLOWING or (state is State.RAMPING and (limit >= self.most or not self.slow_start)):
            return State.FLOWING, level, self.most, None
        if state is State.BACKOFF and wake_s is not None:
            wake_s = min(wake_s, self.now_s + max(SHORTEST_WAIT_S, self.curve.longest_s(level)))
            wake_s = max(wake_s, self.silent_s)
        return state, level, limit, wake_s

    @precondition(lambda self: self.state in {State.BACKOFF, State.PROBING})
    @rule(times=st.sampled_from((3, 12)))
    def steady_failure(self, times: int) -> None:
        """Each ask is followed by the whole wait that was drawn at the level that the failures made."""
        asked_s = None
        for _ in range(times):
            if self.state is State.BACKOFF:
                self.the_timer()
            if asked_s is not None:
                low, _high = self.curve.window_s(self.level)
                assert self.now_s - asked_s >= low - 1e-9
            asked_s, level = self.now_s, self.level
            self.a_result("failed", 1)
            assert self.level == min(level + 1, self.curve.level_cap)

    # -- what always holds

    @invariant()
    def it_is_where_the_model_is(self) -> None:
        if hasattr(self, "ctl"):
            now = self.ctl.decision
            assert (now.state, now.level, now.limit) == (self.state, self.level, self.limit)
            assert (now.epoch, now.wake_at_s, self.ctl.ignored) == (self.epoch, self.wake_s, self.ignored)
            assert now.level <= self.curve.level_cap
            assert self.windows == []

    def teardown(self) -> None:
        if not hasattr(self, "ctl"):
            return
        if self.state is State.PAUSED:
            self.resume()
        answer_s = 1.5
        within_s = longest_recovery_s(self.curve, self.most, answer_s, slow_start=self.slow_start)
        began_s, silence_s = self.now_s, max(0.0, self.silent_s - self.now_s)
        if self.state is State.PROBING:  # what is out now may still fail, or be lost
            self.now_s += answer_s
            self.a_result("failed" if self.level % 2 else "lost", 1)
        while self.state is not State.FLOWING:
            if self.state is State.PROBING:
                self.now_s += answer_s
                self.a_result("succeeded", 1)
            else:
                self.the_timer()
            self.it_is_where_the_model_is()
        assert self.now_s - began_s <= within_s + silence_s + 1e-6
        ControllerMachine.runs += 1


INTERESTING = (
    "level at the cap",
    "ramp steps",
    "probes lost",
    "epochs crossed",
    "timers of nothing",
    "backoffs cut",
    "silences",
    *(f"resumed to {state}" for state in State if state is not State.PAUSED),
)


def test_the_controller_is_where_its_model_is_and_always_recovers_within_the_bound() -> None:
    ControllerMachine.seen, ControllerMachine.runs = Counter(), 0
    run_state_machine_as_test(ControllerMachine, settings=settings(max_examples=EXAMPLES, stateful_step_count=12))
    seen = ControllerMachine.seen
    assert {what: seen[what] for what in INTERESTING if seen[what] < EXAMPLES / SELDOM} == {}, seen
    assert ControllerMachine.runs >= EXAMPLES
