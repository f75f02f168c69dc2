"""What is compared, and what of a run is looked at (pure).

The recommended setting is varied in one thing at a time: jitter, slow start, how the levels come down, `max_duration`.
Two ways down exist only here, to be compared: `Straight` and `Low`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bench.fleet.model import BATCH_SIZE, COMES_IN, DAEMONS, TIMEOUT_S, Run, Trouble, Variant
from nsqdigest.backoff import Curve

HELD_S = 10
"""What is reached has to hold for so long."""
MINUTE_S = 60
OVER_S = 5
"""Throughput is looked at over so many seconds."""

Jitter = Literal["full", "equal", "none"]


@dataclass(frozen=True, slots=True)
class Straight(Curve):
    """One success ends it."""

    def below(self, level: int) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Low(Curve):
    """One success leads to level 1, the second one ends it."""

    def below(self, level: int) -> int:
        return min(level - 1, 1)


class Choice(NamedTuple):
    """A row of a table."""

    jitter: Jitter | Literal["decorrelated"] = "full"
    descent: Literal["one by one", "halved", "to level 1", "straight to 0"] = "one by one"
    longest_s: int = 30
    slow_start: bool = True
    batch_size: int = BATCH_SIZE
    timeout_s: float = TIMEOUT_S

    @property
    def variant(self) -> Variant:
        kind = {"to level 1": Low, "straight to 0": Straight}.get(self.descent, Curve)
        recovery: Literal["step", "halve"] = "step" if self.descent == "one by one" else "halve"
        if self.jitter == "decorrelated":
            curve = kind(1, self.longest_s, strategy="decorrelated", recovery=recovery)
        else:
            curve = kind(1, self.longest_s, jitter=self.jitter, recovery=recovery)
        return Variant(curve, self.slow_start, self.batch_size, self.timeout_s)


CHOSEN = Choice()
JITTERS = [
    Choice(jitter, slow_start=slow) for jitter in ("none", "full", "equal", "decorrelated") for slow in (True, False)
]
DESCENTS = [
    Choice(descent=way, slow_start=slow)
    for way in ("one by one", "halved", "to level 1", "straight to 0")
    for slow in (True, False)
]
DURATIONS = [
    Choice(descent=way, longest_s=s) for s in (120, 60, 30, 15) for way in ("one by one", "halved", "straight to 0")
]
FITS = [CHOSEN, Choice(timeout_s=3.0), Choice(batch_size=250, timeout_s=3.0)]

LONG = Trouble("long", 900, ends_within_s=120)
SHORT = Trouble("short", 20, ends_within_s=10)
SLOW = Trouble("slow", 120, ends_within_s=10, share=0.1, warms_up=False)
FAILING = Trouble("failing", 60, ends_within_s=5, share=1.0, failing=0.1, warms_up=False)
MEETS = {
    LONG: JITTERS + DESCENTS + DURATIONS + FITS,
    SHORT: JITTERS + DESCENTS + DURATIONS,
    SLOW: JITTERS + DESCENTS,
    FAILING: DESCENTS,
}
"""Which choices meet which trouble. One that stands in several tables is run once."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Of one run. Seconds count from the end of the trouble; infinite: not as long as it was watched."""

    peak: float
    """The most that was asked in a second, as a multiple of what the store could do in it."""
    gave_up: int
    gave_up_before: int
    half_s: float
    all_s: float
    back_s: float
    """Until as much is stored as comes in."""
    used: float
    """Of what the store could do in the first minute, the part that was messages stored."""
    used_at_last: float
    """The same in the last minute that was watched."""
    used_before: float
    """The same during the trouble, of what came in if that is less."""


def seen(run: Run, daemons: int = DAEMONS) -> Seen:
    wanted = 0.99 * COMES_IN * daemons * OVER_S
    back = [sum(run.stored[second : second + OVER_S]) >= wanted for second in range(len(run.flowing) - OVER_S)]
    last_minute = slice(max(0, len(run.flowing) - MINUTE_S), len(run.flowing))
    return Seen(
        peak=max(asked / could for asked, could in zip(run.asked, run.capacity, strict=True)),
        gave_up=run.gave_up,
        gave_up_before=run.gave_up_before,
        half_s=_reached_s(run.flowing, daemons / 2),
        all_s=_reached_s(run.flowing, daemons),
        back_s=float(back.index(True)) if True in back else math.inf,
        used=sum(run.stored[:MINUTE_S]) / sum(run.capacity[:MINUTE_S]),
        used_at_last=sum(run.stored[last_minute]) / sum(run.capacity[last_minute]),
        used_before=run.stored_before / run.could_before if run.could_before else 0.0,
    )


def _reached_s(flowing: list[int], wanted: float) -> float:
    for second in range(len(flowing) - HELD_S):
        if min(flowing[second : second + HELD_S]) >= wanted:
            return second + 1.0
    return math.inf
