"""Controllers in simulated time, brought to a state by facts alone."""

from __future__ import annotations

from nsqdigest.backoff import Controller, Curve, Decision, State, Uniform

MAX_IN_FLIGHT = 2500
LEVEL_CAP = 7  # 1 s * 2^7 = 128 s is the first that reaches 120 s
PLAIN = Curve(1.0, 120.0, jitter="none")


class Draws:
    """A source of randomness that remembers its windows and draws the middle of each."""

    def __init__(self) -> None:
        self.windows: list[tuple[float, float]] = []

    def __call__(self, low: float, high: float) -> float:
        self.windows.append((low, high))
        return (low + high) / 2


def highest(low: float, high: float) -> float:
    return high


def controller(
    max_in_flight: int = MAX_IN_FLIGHT, curve: Curve = PLAIN, uniform: Uniform = highest, *, slow_start: bool = True
) -> Controller:
    return Controller(max_in_flight, curve, uniform, slow_start=slow_start)


def wake_at(decision: Decision) -> float:
    assert decision.wake_at_s is not None
    return decision.wake_at_s


def fail(ctl: Controller, now_s: float) -> bool:
    return ctl.failed(ctl.decision.epoch, now_s)


def succeed(ctl: Controller, now_s: float, count: int = 1) -> bool:
    return ctl.succeeded(ctl.decision.epoch, now_s, count)


def backoff_over(ctl: Controller) -> float:
    """Lets the present backoff end, and answers when that was."""
    assert ctl.decision.state is State.BACKOFF
    now_s = wake_at(ctl.decision)
    assert ctl.tick(now_s)
    return now_s


def probing(level: int = 1) -> tuple[Controller, float]:
    ctl = controller()
    now_s = 0.0
    fail(ctl, now_s)
    now_s = backoff_over(ctl)
    for _ in range(level - 1):
        fail(ctl, now_s)
        now_s = backoff_over(ctl)
    assert (ctl.decision.state, ctl.decision.level) == (State.PROBING, level)
    return ctl, now_s


def ramping() -> tuple[Controller, float]:
    ctl, now_s = probing()
    succeed(ctl, now_s)
    assert ctl.decision.state is State.RAMPING
    return ctl, now_s
