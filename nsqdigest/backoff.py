"""How much may be in flight, and until when (pure: facts and `now` in, a decision out).

    FLOWING   the whole of max_in_flight
    PAUSED    nothing, until the timer; every result that comes meanwhile is of an earlier epoch and is ignored
    PROBING   one message; its own result decides
    RAMPING   1, 2, 4 … until the whole is reached
    HELD      nothing, by the operator's word or while draining; no timer

A failure in FLOWING or RAMPING begins a pause of level 1. The pause over, one message is let through: its success
lowers the level (at 0 the ramp begins, above it another pause), its failure raises it, and a probe that is lost is
tried again at the same level. One change a pause, however many failures were in flight: each decision begins a new
epoch, and only results of the present epoch count. The level is capped where the un-jittered curve reaches
`max_duration_s`, so recovery is never longer than the curve; the wait is drawn once a pause, after the level is known,
so the jitter survives the cap.

It knows no messages and no sockets: a sink's deliveries are facts as good as a topic's messages.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal, NamedTuple

SHORTEST_PAUSE_S = 0.1
PROBE_MESSAGE_WITHIN_S = 2.0
"""A probe that got no message for so long is tried on another connection."""
RAMP_STEP_S = 5.0
"""A ramp goes on after so long without a failure, also where traffic is too thin to count on successes."""

Jitter = Literal["full", "equal", "none"]


class State(StrEnum):
    FLOWING = "flowing"
    PAUSED = "paused"
    PROBING = "probing"
    RAMPING = "ramping"
    HELD = "held"


class Reason(StrEnum):
    STARTED = "started"
    FAILED = "failed"
    PAUSE_OVER = "pause-over"
    PROBE_SUCCEEDED = "probe-succeeded"
    PROBE_FAILED = "probe-failed"
    PROBE_LOST = "probe-lost"
    RECOVERED = "recovered"
    RAMPED = "ramped"
    HELD = "held"
    RESUMED = "resumed"


class Curve(NamedTuple):
    """The exponential wait: base * 2^level, up to the maximum."""

    base_s: float
    max_duration_s: float
    jitter: Jitter

    @property
    def level_cap(self) -> int:
        """The first level whose un-jittered wait is the maximum."""
        level = 1
        while self.base_s * float(1 << level) < self.max_duration_s:
            level += 1
        return level

    def wait_s(self, level: int, uniform: Callable[[float, float], float]) -> float:
        whole = min(self.base_s * float(1 << level), self.max_duration_s)
        if self.jitter == "full":
            whole = uniform(0.0, whole)
        elif self.jitter == "equal":
            whole = uniform(whole / 2, whole)
        return max(whole, SHORTEST_PAUSE_S)


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

    def __init__(
        self, max_in_flight: int, curve: Curve, uniform: Callable[[float, float], float], *, slow_start: bool = True
    ) -> None:
        self._max_in_flight = max_in_flight
        self._curve = curve
        self._uniform = uniform
        self._slow_start = slow_start
        self._successes = 0
        self._held: Decision | None = None
        self.decision = Decision(State.FLOWING, 0, max_in_flight, 0, None, Reason.STARTED)

    def succeeded(self, epoch: int, now_s: float, count: int = 1) -> bool:
        now = self.decision
        if epoch != now.epoch:
            return False
        if now.state is State.PROBING:
            if now.level > 1:
                return self._pause(now.level - 1, now_s, Reason.PROBE_SUCCEEDED)
            return self._recover(now_s)
        if now.state is State.RAMPING:
            self._successes += count
            if self._successes >= now.limit:
                return self._ramp(now_s)
        return False

    def failed(self, epoch: int, now_s: float) -> bool:
        now = self.decision
        if epoch != now.epoch or not self._curve.max_duration_s:
            return False
        if now.state in (State.FLOWING, State.RAMPING):
            return self._pause(1, now_s, Reason.FAILED)
        if now.state is State.PROBING:
            return self._pause(min(now.level + 1, self._curve.level_cap), now_s, Reason.PROBE_FAILED)
        return False

    def probe_lost(self, epoch: int, now_s: float) -> bool:
        """The probe's connection is gone, or its message came to no verdict: another one, at the same level."""
        now = self.decision
        if epoch != now.epoch or now.state is not State.PROBING:
            return False
        return self._probe(now_s, Reason.PROBE_LOST)

    def tick(self, now_s: float) -> bool:
        now = self.decision
        if now.wake_at_s is None or now_s < now.wake_at_s:
            return False
        if now.state is State.PAUSED:
            return self._probe(now_s, Reason.PAUSE_OVER)
        if now.state is State.PROBING:
            return self._probe(now_s, Reason.PROBE_LOST)
        return self._ramp(now_s)

    def probe_began(self, epoch: int, until_s: float) -> bool:
        """A message answered the probe: it has until then to come to a verdict."""
        now = self.decision
        if epoch != now.epoch or now.state is not State.PROBING:
            return False
        self.decision = now._replace(wake_at_s=until_s)
        return True

    def hold(self) -> bool:
        if self.decision.state is State.HELD:
            return False
        self._held = self.decision
        return self._decide(State.HELD, self.decision.level, 0, None, Reason.HELD)

    def resume(self, now_s: float) -> bool:
        if self._held is None:
            return False
        before, self._held = self._held, None
        wake_at_s = None if before.wake_at_s is None else max(before.wake_at_s, now_s)
        return self._decide(before.state, before.level, before.limit, wake_at_s, Reason.RESUMED)

    def _pause(self, level: int, now_s: float, reason: Reason) -> bool:
        return self._decide(State.PAUSED, level, 0, now_s + self._curve.wait_s(level, self._uniform), reason)

    def _probe(self, now_s: float, reason: Reason) -> bool:
        return self._decide(State.PROBING, self.decision.level, 1, now_s + PROBE_MESSAGE_WITHIN_S, reason)

    def _recover(self, now_s: float) -> bool:
        if not self._slow_start or self._max_in_flight == 1:
            return self._decide(State.FLOWING, 0, self._max_in_flight, None, Reason.RECOVERED)
        self._successes = 0
        return self._decide(State.RAMPING, 0, 1, now_s + RAMP_STEP_S, Reason.RECOVERED)

    def _ramp(self, now_s: float) -> bool:
        """Doubles the limit. The epoch stays: what was handed over under the smaller limit still speaks for the
        store."""
        limit = min(2 * self.decision.limit, self._max_in_flight)
        self._successes = 0
        if limit == self._max_in_flight:
            self.decision = Decision(State.FLOWING, 0, limit, self.decision.epoch, None, Reason.RAMPED)
        else:
            self.decision = self.decision._replace(limit=limit, wake_at_s=now_s + RAMP_STEP_S, reason=Reason.RAMPED)
        return True

    def _decide(self, state: State, level: int, limit: int, wake_at_s: float | None, reason: Reason) -> bool:
        self.decision = Decision(state, level, limit, self.decision.epoch + 1, wake_at_s, reason)
        return True
