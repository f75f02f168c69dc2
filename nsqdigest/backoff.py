"""How much may be in flight, and until when (pure: facts and `now` in, a decision out).

    FLOWING   the whole of max_in_flight
    BACKOFF   nothing, until the timer; every result that comes meanwhile is of an earlier epoch and is ignored
    PROBING   one message; its own result decides
    RAMPING   1, 2, 4 … until the whole is reached
    PAUSED    nothing: the operator paused it, or the daemon drains; no timer

`TRANSITIONS` is all of it, as data: what the table does not know raises before anything changed, and docs/backoff.md is
drawn from it. Invariants:

- One change a backoff, however many failures were in flight: each decision begins a new epoch, and only results of the
  present epoch count. A message bears the epoch in which it was handed over.
- The level never passes the one whose un-jittered wait is the maximum, so recovery is never longer than the curve.
- The wait is drawn once a backoff, after the level is known, between SHORTEST_WAIT_S and the level's longest: the
  jitter survives both ends. A small wait may replace it, once, when the service has answered another part.
- Every probe leads on: to a verdict, or by its timer to the next one.
- No backoff ends within the silence that a receiver asked for, whatever the curve and the settings say.

It knows no messages and no sockets: a sink's deliveries are facts as good as a topic's messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from nsqdigest.base.errors import IllegalEvent

SHORTEST_WAIT_S = 0.1
RECHECK_WITHIN_S = 1.0
"""A backoff lasts no longer than this from the moment that the service answered another part of the daemon."""
PROBE_MESSAGE_WITHIN_S = 2.0
"""A probe that got no message for so long is tried on another connection."""
RAMP_STEP_S = 5.0
"""A ramp goes on after so long without a failure, also where traffic is too thin to count on successes."""

Uniform = Callable[[float, float], float]


class State(StrEnum):
    FLOWING = "flowing"
    BACKOFF = "backoff"
    PROBING = "probing"
    RAMPING = "ramping"
    PAUSED = "paused"


class Event(StrEnum):
    """What a fact means in the present state. Several facts of the world can be one event, and the other way round."""

    SUCCESS = "success"
    """Something was stored, or delivered; more of it is wanted."""
    WELL = "well"
    """The probe's success that leaves no level."""
    STEP = "step"
    """As many successes as the limit, or RAMP_STEP_S without a failure."""
    FULL = "full"
    """The step that reaches max_in_flight."""
    FAILURE = "failure"
    VOID = "void"
    """It came to no verdict: connection gone, dead letter, given back without a failure."""
    BEGAN = "began"
    """The probe has its message."""
    TIMER = "timer"
    STALE = "stale"
    """A result of an earlier epoch."""
    ANSWERED = "answered"
    """The service that failed has answered another part of the daemon."""
    PAUSE = "pause"
    RESUME = "resume"


class Reason(StrEnum):
    """Why the decision is what it is: the word of logs and metrics."""

    STARTED = "started"
    FAILED = "failed"
    BACKOFF_OVER = "backoff-over"
    ANSWERED_ELSEWHERE = "answered-elsewhere"
    PROBE_SUCCEEDED = "probe-succeeded"
    PROBE_FAILED = "probe-failed"
    PROBE_LOST = "probe-lost"
    RECOVERED = "recovered"
    RAMPED = "ramped"
    PAUSED = "paused"
    RESUMED = "resumed"


class Level(StrEnum):
    """What a transition does to the level."""

    NONE = "0"
    FIRST = "1"
    UP = "one up"
    DOWN = "down"
    SAME = "same"


class Transition(NamedTuple):
    to: State | None
    """None: the state before it was paused."""
    level: Level
    reason: Reason
    new_epoch: bool = True


STAY: Final = None
"""Known, and nothing follows from it."""

# What was handed over under a ramp's smaller limit still speaks for the store: its steps begin no new epoch.
TRANSITIONS: Final[dict[State, dict[Event, Transition | None]]] = {
    State.FLOWING: {
        Event.FAILURE: Transition(State.BACKOFF, Level.FIRST, Reason.FAILED),
        Event.SUCCESS: STAY,
        Event.VOID: STAY,
        Event.STALE: STAY,
        Event.ANSWERED: STAY,
        Event.PAUSE: Transition(State.PAUSED, Level.SAME, Reason.PAUSED),
    },
    State.BACKOFF: {
        Event.TIMER: Transition(State.PROBING, Level.SAME, Reason.BACKOFF_OVER),
        Event.ANSWERED: Transition(State.BACKOFF, Level.SAME, Reason.ANSWERED_ELSEWHERE, new_epoch=False),
        Event.STALE: STAY,
        Event.PAUSE: Transition(State.PAUSED, Level.SAME, Reason.PAUSED),
    },
    State.PROBING: {
        Event.BEGAN: STAY,
        Event.SUCCESS: Transition(State.BACKOFF, Level.DOWN, Reason.PROBE_SUCCEEDED),
        Event.WELL: Transition(State.RAMPING, Level.NONE, Reason.RECOVERED),
        Event.FULL: Transition(State.FLOWING, Level.NONE, Reason.RECOVERED),
        Event.FAILURE: Transition(State.BACKOFF, Level.UP, Reason.PROBE_FAILED),
        Event.VOID: Transition(State.PROBING, Level.SAME, Reason.PROBE_LOST),
        Event.TIMER: Transition(State.PROBING, Level.SAME, Reason.PROBE_LOST),
        Event.STALE: STAY,
        Event.ANSWERED: STAY,
        Event.PAUSE: Transition(State.PAUSED, Level.SAME, Reason.PAUSED),
    },
    State.RAMPING: {
        Event.SUCCESS: STAY,
        Event.STEP: Transition(State.RAMPING, Level.NONE, Reason.RAMPED, new_epoch=False),
        Event.FULL: Transition(State.FLOWING, Level.NONE, Reason.RAMPED, new_epoch=False),
        Event.FAILURE: Transition(State.BACKOFF, Level.FIRST, Reason.FAILED),
        Event.VOID: STAY,
        Event.STALE: STAY,
        Event.ANSWERED: STAY,
        Event.PAUSE: Transition(State.PAUSED, Level.SAME, Reason.PAUSED),
    },
    State.PAUSED: {
        **dict.fromkeys(
            (Event.SUCCESS, Event.FAILURE, Event.VOID, Event.BEGAN, Event.STALE, Event.ANSWERED, Event.PAUSE), STAY
        ),
        Event.RESUME: Transition(None, Level.SAME, Reason.RESUMED),
    },
}


def tripled(base: float, cap: float, times: int) -> float:
    """min(cap, base * 3^times), for any number of times."""
    while times > 0 and base < cap:
        base, times = 3 * base, times - 1
    return min(base, cap)


@dataclass(frozen=True, slots=True)
class Curve:
    """How long a backoff lasts by its level, and how the levels come down again."""

    base_s: float
    max_duration_s: float
    strategy: Literal["exponential", "decorrelated"] = "exponential"
    jitter: Literal["full", "equal", "none"] = "full"
    """Of the exponential strategy; the other one draws from its own window."""
    recovery: Literal["step", "halve"] = "step"

    def longest_s(self, level: int) -> float:
        if self.strategy == "decorrelated":
            return tripled(self.base_s, self.max_duration_s, level)
        return min(self.base_s * float(1 << min(level, 63)), self.max_duration_s)

    def window_s(self, level: int) -> tuple[float, float]:
        """What the wait is drawn from. The floor moves the window's ends: draws cut off at it would pile up there."""
        longest_s = self.longest_s(level)
        if self.strategy == "decorrelated":
            shortest_s = self.base_s
        else:
            shortest_s = {"full": 0.0, "equal": longest_s / 2, "none": longest_s}[self.jitter]
        return max(SHORTEST_WAIT_S, shortest_s), max(SHORTEST_WAIT_S, longest_s)

    def wait_s(self, level: int, uniform: Uniform) -> float:
        return uniform(*self.window_s(level))

    def recheck_s(self, level: int, uniform: Uniform) -> float:
        """A small wait, whatever the jitter: many daemons hear of the same answer in the same moment."""
        return uniform(SHORTEST_WAIT_S, max(SHORTEST_WAIT_S, min(RECHECK_WITHIN_S, self.longest_s(level))))

    @property
    def level_cap(self) -> int:
        """The first level whose un-jittered wait is the maximum."""
        level = 1
        while self.longest_s(level) < self.max_duration_s:
            level += 1
        return level

    def below(self, level: int) -> int:
        """The level after a probe's success."""
        return level - 1 if self.recovery == "step" else level // 2


class Decision(NamedTuple):
    state: State
    level: int
    limit: int
    epoch: int
    wake_at_s: float | None
    """When `tick` wants to be called; None: nothing is timed."""
    reason: Reason


class Controller:
    """One topic's, or one sink's. Every method answers whether it decided anew; `decision` is what holds."""

    def __init__(self, max_in_flight: int, curve: Curve, uniform: Uniform, *, slow_start: bool = True) -> None:
        self._max_in_flight = max_in_flight
        self._curve = curve
        self._uniform = uniform
        self._first_limit = 1 if slow_start else max_in_flight
        self._successes = 0
        self._silent_until_s = float("-inf")
        self._before = Decision(State.FLOWING, 0, max_in_flight, 0, None, Reason.STARTED)
        """The decision before the operator paused it."""
        self.decision = self._before
        self.ignored = 0
        """Results of earlier epochs."""

    # -- facts

    def succeeded(self, epoch: int, now_s: float, count: int = 1) -> bool:
        if epoch != self.decision.epoch:
            return self._stale(now_s)
        return self._take(self._success_of(count), now_s)

    def failed(self, epoch: int, now_s: float, silence_s: float = 0.0) -> bool:
        """`silence_s`: how long the receiver asked to be left alone. A result of an earlier epoch can ask as well."""
        if not self._curve.max_duration_s:
            return False
        if silence_s > 0:
            self._silent_until_s = max(self._silent_until_s, now_s + silence_s)
        if epoch != self.decision.epoch:
            self.decision = self._not_before_silence_ends(self.decision)
            return self._stale(now_s)
        return self._take(Event.FAILURE, now_s)

    def lost(self, epoch: int, now_s: float) -> bool:
        """What was handed over came to no verdict. Had it been the probe, another one follows."""
        if epoch != self.decision.epoch:
            return self._stale(now_s)
        return self._take(Event.VOID, now_s)

    def began(self, epoch: int, now_s: float, until_s: float) -> None:
        """The probe has its message, which has until then to come to a verdict."""
        if epoch == self.decision.epoch:
            self._take(Event.BEGAN, now_s)
            if self.decision.state is State.PROBING:
                self.decision = self.decision._replace(wake_at_s=until_s)

    def tick(self, now_s: float) -> bool:
        """A timer that is early, or of a decision that holds no more, is no event."""
        wake_at_s = self.decision.wake_at_s
        if wake_at_s is None or now_s < wake_at_s:
            return False
        return self._take(self._step() if self.decision.state is State.RAMPING else Event.TIMER, now_s)

    def answered(self, now_s: float) -> bool:
        """The service has answered another part of the daemon, which it had failed before. It shortens a backoff once:
        a service that answers some and fails others is still left alone."""
        if self.decision.reason is Reason.ANSWERED_ELSEWHERE:
            return False
        return self._take(Event.ANSWERED, now_s)

    def pause(self, now_s: float) -> bool:
        return self._take(Event.PAUSE, now_s)

    def resume(self, now_s: float) -> bool:
        return self._take(Event.RESUME, now_s)

    # -- other settings

    def change(self, max_in_flight: int, curve: Curve, now_s: float, *, slow_start: bool = True) -> None:
        """From now on it decides by these. State and level stay: a level is cut to the new curve's cap, and a backoff
        under way lasts no longer than the new curve's longest one; a ramp that is beyond the new limit, or that the new
        settings do not have, is at its end. Where the new curve has no backoff, one that is under way is over."""
        self._max_in_flight, self._curve = max_in_flight, curve
        self._first_limit = 1 if slow_start else max_in_flight
        self._before = self._fitted(self._before, now_s)
        self.decision = self._fitted(self.decision, now_s)

    def _fitted(self, decision: Decision, now_s: float) -> Decision:
        state, level = decision.state, min(decision.level, self._curve.level_cap)
        if state not in (State.FLOWING, State.PAUSED) and not self._curve.max_duration_s:
            return Decision(State.FLOWING, 0, self._max_in_flight, decision.epoch + 1, None, Reason.STARTED)
        is_up = max(decision.limit, self._first_limit) >= self._max_in_flight
        if state is State.FLOWING or (state is State.RAMPING and is_up):
            return decision._replace(state=State.FLOWING, limit=self._max_in_flight, wake_at_s=None)
        wake_at_s = decision.wake_at_s
        if state is State.BACKOFF and wake_at_s is not None:
            wake_at_s = min(wake_at_s, now_s + max(SHORTEST_WAIT_S, self._curve.longest_s(level)))
        return self._not_before_silence_ends(decision._replace(level=level, wake_at_s=wake_at_s))

    # -- what they mean here

    def _success_of(self, count: int) -> Event:
        now = self.decision
        if now.state is State.PROBING and self._curve.below(now.level) == 0:
            return Event.WELL if self._first_limit < self._max_in_flight else Event.FULL
        if now.state is State.RAMPING:
            self._successes += count
            if self._successes >= now.limit:
                return self._step()
        return Event.SUCCESS

    def _step(self) -> Event:
        return Event.STEP if 2 * self.decision.limit < self._max_in_flight else Event.FULL

    def _stale(self, now_s: float) -> bool:
        self.ignored += 1
        return self._take(Event.STALE, now_s)

    # -- what follows

    def _take(self, event: Event, now_s: float) -> bool:
        now = self.decision
        known = TRANSITIONS[now.state]
        if event not in known:
            raise IllegalEvent(f"{event} means nothing while {now.state}")
        transition = known[event]
        if transition is None:  # it stays
            return False
        if transition.to is None:
            self.decision = self._resumed(now_s)
            return True
        if transition.to is State.PAUSED:
            self._before = now
        level = self._level(transition.level)
        limit = self._limit(transition.to, transition.reason)
        if event is Event.ANSWERED:
            wake_at_s: float | None = self._sooner_s(level, now_s)
        else:
            wake_at_s = self._wake_at_s(transition.to, level, now_s)
        self._successes = 0
        epoch = now.epoch + transition.new_epoch
        decision = Decision(transition.to, level, limit, epoch, wake_at_s, transition.reason)
        self.decision = self._not_before_silence_ends(decision)
        return True

    def _not_before_silence_ends(self, decision: Decision) -> Decision:
        if decision.state is not State.BACKOFF or decision.wake_at_s is None:
            return decision
        return decision._replace(wake_at_s=max(decision.wake_at_s, self._silent_until_s))

    def _level(self, change: Level) -> int:
        level = self.decision.level
        if change is Level.UP:
            return min(level + 1, self._curve.level_cap)
        return {Level.NONE: 0, Level.FIRST: 1, Level.DOWN: self._curve.below(level), Level.SAME: level}[change]

    def _limit(self, to: State, reason: Reason) -> int:
        if to is State.RAMPING:
            return self._first_limit if reason is Reason.RECOVERED else 2 * self.decision.limit
        return {State.FLOWING: self._max_in_flight, State.PROBING: 1}.get(to, 0)

    def _wake_at_s(self, to: State, level: int, now_s: float) -> float | None:
        if to is State.BACKOFF:
            return now_s + self._curve.wait_s(level, self._uniform)
        if to is State.PROBING:
            return now_s + PROBE_MESSAGE_WITHIN_S
        return now_s + RAMP_STEP_S if to is State.RAMPING else None

    def _sooner_s(self, level: int, now_s: float) -> float:
        recheck_at_s = now_s + self._curve.recheck_s(level, self._uniform)
        return recheck_at_s if self.decision.wake_at_s is None else min(self.decision.wake_at_s, recheck_at_s)

    def _resumed(self, now_s: float) -> Decision:
        """A backoff that ended meanwhile is over; a probe and a ramp's step begin anew."""
        before = self._before
        if before.state is State.BACKOFF:
            wake_at_s = before.wake_at_s
        else:
            wake_at_s = self._wake_at_s(before.state, before.level, now_s)
        resumed = before._replace(epoch=self.decision.epoch + 1, wake_at_s=wake_at_s, reason=Reason.RESUMED)
        return self._not_before_silence_ends(resumed)


def longest_recovery_s(curve: Curve, max_in_flight: int, answer_s: float, *, slow_start: bool = True) -> float:
    """The longest way to FLOWING from any state but PAUSED, once every probe to come succeeds, and every probe ends
    within `answer_s` of its beginning.

    At the worst a probe of before is out, and fails as late as that: the level is at its cap. Then each level on the
    way down costs its longest backoff and one answer, and then the ramp goes by time alone, RAMP_STEP_S a step, where
    traffic is thin. A timer that is late adds its lateness, a receiver that asks for silence its silence.
    """
    total_s = answer_s
    level = curve.level_cap
    while level > 0:
        total_s += max(SHORTEST_WAIT_S, curve.longest_s(level)) + answer_s
        level = curve.below(level)
    steps = (max_in_flight - 1).bit_length() if slow_start else 0
    return total_s + steps * RAMP_STEP_S


def retry_wait_ms(attempt: int, base_ms: int, cap_ms: int, uniform: Callable[[float, float], float]) -> int:
    """Uniform between base and min(cap, base * 3^attempt); no memory but the attempt, 0 counts as 1."""
    window_ms = tripled(base_ms, cap_ms, max(1, attempt))
    return int(uniform(base_ms, max(base_ms, window_ms)))
