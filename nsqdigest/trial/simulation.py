"""What a simulation showed (pure): totals, spreads, a chart and the first digests, as lines and as JSON.

Its memory does not grow with the stream: spreads have two digits, and the chart's columns become longer as it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from nsqdigest.base.screen import table, wrapped
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted

if TYPE_CHECKING:
    from nsqdigest.trial.simulator import Event, SimulatedDigest

_COLUMNS = 1024
_DAY_MS = 86_400_000
_FIRST_STEP_MS = 1000
_BARS, _ASCII_BARS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
_HEAD = "digests "
_MOST_MARKED = 9
"""Digests in a column that are shown as a number; where there are more, all are bars."""
_USUAL_WIDTH = 80
_NARROWEST = 40


class Spread:
    """Values by their first two digits."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.largest = 0

    def add(self, value: int) -> None:
        step = 10 ** max(0, len(str(value)) - 2)
        self._counts[value // step * step] += 1
        self.largest = max(self.largest, value)

    def at(self, part: float) -> int:
        """The value that this part of them does not exceed; 0 of none."""
        wanted = part * self._counts.total()
        for value in sorted(self._counts):
            wanted -= self._counts[value]
            if wanted <= 0:
                return value
        return self.largest


class Chart:
    """Events and digests by time."""

    def __init__(self) -> None:
        self._start_ms: int | None = None
        self._step_ms = _FIRST_STEP_MS
        self._events: Counter[int] = Counter()
        self._digests: Counter[int] = Counter()
        self.last_ms = 0

    @property
    def first_ms(self) -> int:
        return self._start_ms or 0

    def add_event(self, at_ms: int) -> None:
        self._add(self._events, at_ms)

    def add_digest(self, at_ms: int) -> None:
        self._add(self._digests, at_ms)

    def _add(self, counts: Counter[int], at_ms: int) -> None:
        if self._start_ms is None:
            self._start_ms = at_ms
        self.last_ms = max(self.last_ms, at_ms)
        while (at_ms - self._start_ms) // self._step_ms >= _COLUMNS:
            self._step_ms *= 2
            for each in (self._events, self._digests):
                halved = Counter[int]()
                for column, number in each.items():
                    halved[column // 2] += number
                each.clear()
                each.update(halved)
        counts[(at_ms - self._start_ms) // self._step_ms] += 1

    def rows(self, width: int, shown: Callable[[int], str], span: Callable[[int], str], *, is_ascii: bool) -> list[str]:
        """Each column on the screen is of as many of ours as the others: what is even looks even."""
        room = width - len(_HEAD)
        columns = (self.last_ms - self.first_ms) // self._step_ms + 1
        together = -(-columns // room)
        events, digests = ([0] * -(-columns // together) for _ in range(2))
        for counts, row in ((self._events, events), (self._digests, digests)):
            for column, number in counts.items():
                row[column // together] += number
        bars, most_digests = (_ASCII_BARS if is_ascii else _BARS), max(digests)
        marks = _drawn(digests, bars) if most_digests > _MOST_MARKED else _marked(digests, is_ascii=is_ascii)
        first, last = shown(self.first_ms), shown(self.last_ms)
        scale = first + f" {last}".rjust(len(events) - len(first))
        most = f"{counted(max(events), 'event')}, {counted(most_digests, 'digest')}"
        caption = f"a column is {span(together * self._step_ms)}; the most in one: {most}"
        return [
            f"{'events'.ljust(len(_HEAD))}{_drawn(events, bars)}".rstrip(),
            f"{_HEAD}{marks}".rstrip(),
            " " * len(_HEAD) + scale,
            *wrapped(caption, " " * len(_HEAD), " " * len(_HEAD), width),
        ]


def _drawn(numbers: Sequence[int], bars: str) -> str:
    most = max(numbers) or 1
    return "".join(bars[-(-number * (len(bars) - 1) // most)] for number in numbers)


def _marked(numbers: Sequence[int], *, is_ascii: bool) -> str:
    one = "o" if is_ascii else "●"
    return "".join(" " if not number else one if number == 1 else str(number) for number in numbers)


class Simulation:
    def __init__(self, policy: str, zone: str, limit: int) -> None:
        """`limit`: so many digests are kept for the list."""
        self._policy = policy
        self._zone = ZoneInfo(zone)
        self._limit = limit
        self._chart = Chart()
        self._waits, self._sizes = Spread(), Spread()
        self._first: list[SimulatedDigest] = []
        self._digests = self._superseded = self._dropped = self._held = 0
        self.events = 0
        self.most_waiting = 0

    def add_event(self, event: Event, waiting: int) -> None:
        """`waiting`: timelines that are known then."""
        self.events += 1
        self.most_waiting = max(self.most_waiting, waiting)
        self._chart.add_event(event.instant_ms)

    def add_digest(self, digest: SimulatedDigest) -> None:
        self._digests += 1
        self._superseded += digest.superseded
        self._dropped += digest.dropped
        self._held += digest.at_ms > digest.due_ms
        self._waits.add(digest.waited_ms)
        self._sizes.add(digest.records)
        self._chart.add_digest(digest.at_ms)
        if len(self._first) < self._limit:
            self._first.append(digest)

    # -- for people

    def lines(self, width: int, span: Callable[[int], str], *, is_ascii: bool) -> list[str]:
        """`width`: 0 where nothing is to be broken; `span`: milliseconds as text."""
        chart_width = max(_NARROWEST, min(width or _USUAL_WIDTH, _COLUMNS))
        many = counted(self.most_waiting, "timeline")
        head = f"policy {self._policy}: {counted(self.events, 'event')}, {counted(self._digests, 'digest')}, at most "
        lines = [*wrapped(f"{head}{many} at a time", "", "", width), ""]
        lines += [*self._chart.rows(chart_width, self._shown, span, is_ascii=is_ascii), ""]
        lines += [part for text in self._facts(span) for part in wrapped(text, "", "  ", width)]
        lines += ["", *self._table(span, width)]
        if self._digests > len(self._first):
            lines.append(f"the first {len(self._first):,} of {self._digests:,}; --limit shows more")
        return lines

    def _facts(self, span: Callable[[int], str]) -> list[str]:
        waits, sizes = self._waits, self._sizes
        facts = [
            f"wait of a digest's first event: half at most {span(waits.at(0.5))}, 90 % at most "
            f"{span(waits.at(0.9))}, the longest {span(waits.largest)}",
            f"records of a digest: half at most {sizes.at(0.5):,}, 90 % at most {sizes.at(0.9):,}, the most "
            f"{sizes.largest:,}",
        ]
        lost = [
            (self._superseded, "superseded by a newer event of the same key"), (self._dropped, "dropped over capacity"),
        ]  # fmt: skip
        facts += [f"{counted(number, 'event')} {what}" for number, what in lost if number]
        if self._held:
            facts.append(f"{counted(self._held, 'digest')} held back by quiet hours")
        return facts

    def _table(self, span: Callable[[int], str], width: int) -> list[str]:
        rows = [("digest", "records", "waited", "timeline")]
        rows += [
            (self._shown(each.at_ms), f"{each.records:,}", span(each.waited_ms), printable(each.timeline, 40))
            for each in self._first
        ]
        return table(rows[0], rows[1:], right={1, 2}, flexible={3}, width=width)

    def _shown(self, at_ms: int) -> str:
        at = datetime.fromtimestamp(at_ms / 1000, self._zone)
        span_ms = self._chart.last_ms - self._chart.first_ms
        if span_ms < _DAY_MS:
            return f"{at:%H:%M:%S}" if span_ms < _DAY_MS // 24 else f"{at:%H:%M}"
        return f"{at:%a %H:%M}" if span_ms < 6 * _DAY_MS else f"{at:%Y-%m-%d %H:%M}"

    # -- for scripts

    def as_json(self, instant: Callable[[int], Any]) -> dict[str, Any]:
        return {
            "policy": self._policy,
            "events": self.events,
            "digests": self._digests,
            "timelines": self.most_waiting,
            "superseded": self._superseded,
            "dropped": {"capacity": self._dropped},
            "held_by_quiet_hours": self._held,
            "first": instant(self._chart.first_ms),
            "last": instant(self._chart.last_ms),
            "waited_s": _spread_as_json(self._waits, 1000),
            "records": _spread_as_json(self._sizes, 1),
            "list": [
                {
                    "timestamp": instant(each.at_ms), "due": instant(each.due_ms), "timeline": each.timeline,
                    "iteration": each.iteration, "total": each.records, "superseded": each.superseded,
                    "dropped": {"capacity": each.dropped}, "waited_s": each.waited_ms / 1000,
                }
                for each in self._first
            ],
        }  # fmt: skip


def _spread_as_json(spread: Spread, unit: int) -> dict[str, float]:
    values: Sequence[tuple[str, int]] = (("p50", spread.at(0.5)), ("p90", spread.at(0.9)), ("max", spread.largest))
    return {name: value / unit if unit > 1 else value for name, value in values}
