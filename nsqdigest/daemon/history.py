"""What a daemon remembers of its last quarter of an hour (pure): counters and gauges at regular instants.

Whoever asks gets rates of the last minute, and one value for each interval. Instants are of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

INTERVAL_S = 5.0
_REMEMBERED = 181
"""Samples: their differences are a quarter of an hour."""
RATE_S = 60.0

Counts = Mapping[str, float]
"""Counters that never fall, by name."""


class Sample(NamedTuple):
    at_s: float
    counts: Counts
    gauges: Mapping[str, float]


class History:
    def __init__(self, first: Sample) -> None:
        self._samples = deque([first], maxlen=_REMEMBERED)

    def note(self, sample: Sample) -> None:
        self._samples.append(sample)

    def since(self, now_s: float) -> Sample:
        """The sample from which on rates are counted: the oldest of the last minute, or the last one before."""
        fits = (sample for sample in self._samples if sample.at_s >= now_s - RATE_S - INTERVAL_S / 2)
        return next(fits, self._samples[-1])

    def rate(self, now: Sample) -> Callable[[str], float]:
        """Per second, by the name of the counter."""
        before = self.since(now.at_s)
        passed_s = max(now.at_s - before.at_s, 0.001)

        def of(name: str) -> float:
            return max(0.0, now.counts.get(name, 0.0) - before.counts.get(name, 0.0)) / passed_s

        return of

    def mean(self, now: Sample, total: str, count: str) -> float | None:
        """Of what was observed in the last minute. None: nothing was."""
        before = self.since(now.at_s).counts
        number = now.counts[count] - before.get(count, 0.0)
        return (now.counts[total] - before.get(total, 0.0)) / number if number > 0 else None

    def rates(self, name: str) -> list[float]:
        """One for each interval."""
        return [
            round(max(0.0, after.counts.get(name, 0.0) - before.counts.get(name, 0.0)) / (after.at_s - before.at_s), 3)
            for before, after in self._pairs()
        ]

    def gauges(self, name: str) -> list[float]:
        """At the end of each interval."""
        return [after.gauges.get(name, 0.0) for _, after in self._pairs()]

    def _pairs(self) -> Sequence[tuple[Sample, Sample]]:
        return list(pairwise(self._samples))
