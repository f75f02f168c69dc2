"""The header of the demo (pure): events in, what may be in flight, digests out, each over the same seconds.

The three lines share their columns: an outage stands below the events that came meanwhile.
"""

from __future__ import annotations

from collections import deque
from math import log2

from nsqdigest.demo.lines import Part

COLUMN_S = 0.5
MOST_COLUMNS = 60
_BARS = " ▁▂▃▄▅▆▇█"
_TRAIL = 64
_ARROW = " → "
_LABEL_WIDTH = 13
_FACTS_WIDTH = ((100, 36), (70, 28), (0, 16))
"""From which width of the terminal on, how much of it the numbers at the right get."""


class _Column:
    __slots__ = ("digests", "events", "limit")

    def __init__(self, limit: int) -> None:
        self.events = self.digests = 0
        self.limit = limit
        """The most that could be in flight within this column: a probe shows although it is short."""


class History:
    """What happened when, in columns of half a second."""

    def __init__(self) -> None:
        self.events = self.digests = 0
        self.trail: deque[int] = deque([0], maxlen=_TRAIL)
        """What nsqd may have in flight: 64, 0, 1, 64. Steps of a ramp and repeated probes are left out."""
        self._columns: deque[_Column] = deque([_Column(0)], maxlen=MOST_COLUMNS)
        self._number = 0

    @property
    def limit(self) -> int:
        return self.trail[-1]

    def at(self, now_s: float) -> None:
        """Begins the columns that are due. `now_s` counts from the beginning."""
        for _ in range(min(int(now_s / COLUMN_S) - self._number, MOST_COLUMNS)):
            self._columns.append(_Column(self.limit))
        self._number = max(self._number, int(now_s / COLUMN_S))

    def add_event(self) -> None:
        self.events += 1
        self._columns[-1].events += 1

    def add_digest(self) -> None:
        self.digests += 1
        self._columns[-1].digests += 1

    def set_limit(self, limit: int) -> None:
        if limit != self.limit:
            _go_on(self.trail, limit)
            self._columns[-1].limit = max(self._columns[-1].limit, limit)

    def lines(self, width: int) -> list[list[Part]]:
        facts_width = next(facts for least, facts in _FACTS_WIDTH if width >= least)
        room = max(0, min(MOST_COLUMNS, width - _LABEL_WIDTH - 2 - facts_width))
        columns = list(self._columns)[-room:] if room else []
        rows: tuple[tuple[str, str, str, str], ...] = (
            ("events in", "", sparkline([each.events for each in columns]), f"{self.events:,} events"),
            ("in flight", "daemon", _limits([each.limit for each in columns]), self._trail(facts_width)),
            ("digests out", "digest", sparkline([each.digests for each in columns]), self._out(facts_width)),
        )
        return [
            [("bold", label.ljust(_LABEL_WIDTH)), (style, chart.ljust(room + 2)), ("", fact)]
            for label, style, chart, fact in rows
        ]

    def _trail(self, width: int) -> str:
        """The newest changes that fit: "at most 64 → 0 → 1 → 64"."""
        begin = "at most " if width > 20 else ""
        values = list(self.trail)[1:] or [0]
        shown = str(values.pop())
        while values:
            longer = f"{values[-1]}{_ARROW}{shown}"
            if len(begin) + len(longer) + (2 if len(values) > 1 else 0) > width:
                return f"{begin}… {shown}" if len(begin) + len(shown) + 2 <= width else f"{begin}{shown}"
            shown = longer
            values.pop()
        return f"{begin}{shown}"

    def _out(self, width: int) -> str:
        out = f"{self.digests:,} message{'' if self.digests == 1 else 's'}"
        ratio = self.events / self.digests if self.digests else 0
        return f"{out}: 1 for {ratio:.0f} events" if width > 20 and ratio >= 2 else out


def _go_on(trail: deque[int], limit: int) -> None:
    """Adds a limit that differs from the last one. Between 0 and the top only a probe, 1, is a station."""
    *_, earlier, last = 0, 0, *trail
    if min(earlier, limit) < last < max(earlier, limit) and last > 1:
        trail.pop()  # a step on the way
    trail.append(limit)
    if list(trail)[-4:] == [0, 1, 0, 1]:
        trail.pop()
        trail.pop()


def sparkline(values: list[int]) -> str:
    """Of the largest value a full block, of any above 0 at least the smallest."""
    most = max(values, default=0) or 1
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // most)] for value in values)


def _limits(values: list[int]) -> str:
    """By powers of two, so that 1, 2, 4 … are steps."""
    most = max([*values, 2])
    return "".join(" " if value <= 0 else _BARS[1 + round(7 * log2(value) / log2(most))] for value in values)
