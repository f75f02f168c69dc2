"""Rounds to a table and a picture (pure).

The middle of several rounds is their median, their spread the smallest and the largest. A ratio is that of the medians;
its spread comes from the rounds paired in the order they ran: what slowed the machine for a while slowed both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.drawing import WIDTH, colours, path, rect, svg, text
from bench.pages import prose

MIB = 1024 * 1024
TIMES = "\N{MULTIPLICATION SIGN}"
TO = "\N{EN DASH}"
Goals = Sequence[tuple[str, str, float]]
"""(lane, peer, how many times as fast at least)."""
GOALS: Goals = (("c", "a", 20.0), ("c", "b", 3.0), ("c", "d", 10.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One lane, once. CPU and Redis' commands are per event. `counts` is what was found afterwards: each must be
    `events`."""

    events: int
    events_per_s: float
    consumer_us: float
    redis_us: float
    nsqd_us: float
    peak_rss_bytes: int
    most_in_flight: int
    counts: Mapping[str, int]
    receiver_us: float = 0.0
    commands: float = 0.0

    @property
    def complete(self) -> bool:
        return bool(self.counts) and all(count == self.events for count in self.counts.values())


@dataclass(frozen=True, slots=True)
class LaneRounds:
    key: str
    title: str
    event_bytes: int
    rounds: tuple[Round, ...]

    def spread(self, value: Callable[[Round], float]) -> Spread:
        return spread_of(value(one) for one in self.rounds)


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float
    high: float

    def text(self, form: str = ",.0f", unit: str = "") -> str:
        return f"{self.median:{form}}{unit} ({self.low:{form}}{TO}{self.high:{form}})"


@dataclass(frozen=True, slots=True)
class Ratio:
    lane: str
    peer: str
    goal: float
    spread: Spread

    @property
    def reached(self) -> bool:
        return self.spread.median >= self.goal


def spread_of(values: Iterable[float]) -> Spread:
    listed = list(values)
    return Spread(statistics.median(listed), min(listed), max(listed))


def ratios(lanes: Mapping[str, LaneRounds], goals: Goals = GOALS) -> list[Ratio]:
    """Those whose two lanes were both run."""
    found = []
    for key, peer_key, goal in goals:
        if key not in lanes or peer_key not in lanes:
            continue
        ours = [one.events_per_s for one in lanes[key].rounds]
        theirs = [one.events_per_s for one in lanes[peer_key].rounds]
        by_round = [our / their for our, their in zip(ours, theirs, strict=True)]
        middle = statistics.median(ours) / statistics.median(theirs)
        found.append(Ratio(key, peer_key, goal, Spread(middle, min(by_round), max(by_round))))
    return found


# Words


def verdict(ratio: Ratio) -> str:
    word = "pass" if ratio.reached else "fail"
    is_now = f"{ratio.lane} is {ratio.spread.text('.1f')} {TIMES} {ratio.peer}"
    return f"**{word}**: {is_now}; wanted is ≥ {ratio.goal:g} {TIMES}"


def size_text(size_bytes: int) -> str:
    return f"{size_bytes // 1024} KiB" if size_bytes >= 1024 else f"{size_bytes} B"


def losses(lanes: Mapping[str, LaneRounds]) -> list[str]:
    """One line for each round whose events are not all in Redis, exactly once."""
    return [
        f"lane {lane.key}, round {number}: {one.events} events were published, in Redis stand {dict(one.counts)}"
        for lane in lanes.values()
        for number, one in enumerate(lane.rounds, 1)
        if not one.complete
    ]


def table(lanes: Mapping[str, LaneRounds]) -> list[str]:
    lines = [
        "| lane | event | events/s | CPU of the consumer, µs/event | of Redis | of nsqd | consumer's peak RSS, MiB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for lane in lanes.values():
        cells = [
            f"{lane.key}. {lane.title}",
            size_text(lane.event_bytes),
            lane.spread(lambda one: one.events_per_s).text(),
            lane.spread(lambda one: one.consumer_us).text(".1f"),
            lane.spread(lambda one: one.redis_us).text(".1f"),
            lane.spread(lambda one: one.nsqd_us).text(".1f"),
            lane.spread(lambda one: one.peak_rss_bytes / MIB).text(".0f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def memory_notes(lanes: Mapping[str, LaneRounds], max_in_flight: int) -> list[str]:
    """Peak memory beside what max_in_flight events weigh, for the lanes of the daemon."""
    lines = []
    for lane in lanes.values():
        if not lane.key.startswith("c"):
            continue
        peak_bytes = lane.spread(lambda one: one.peak_rss_bytes).median
        weight_bytes = max_in_flight * lane.event_bytes
        seen = max(one.most_in_flight for one in lane.rounds)
        lines.append(
            f"- {lane.key}, {size_text(lane.event_bytes)} events: peak RSS {peak_bytes / MIB:.0f} MiB; "
            f"max_in_flight {TIMES} size is {weight_bytes / MIB:.1f} MiB ({peak_bytes / weight_bytes:.1f} {TIMES}); "
            f"most seen in flight: {seen:,}"
        )
    return lines


README_BLOCK = ("<!-- measured -->\n", "<!-- /measured -->\n")


def into_readme(readme: str, lanes: Mapping[str, LaneRounds], machine: Mapping[str, str]) -> str:
    """The README with the figures of this run between its two marks."""
    before, _, rest = readme.partition(README_BLOCK[0])
    _, _, behind = rest.partition(README_BLOCK[1])
    rows = ["| | events/s | CPU of the consumer, µs/event | of Redis | peak RSS, MiB |", "|---|--:|--:|--:|--:|"]
    for lane in lanes.values():
        figures = (
            f"{lane.spread(lambda one: one.events_per_s).median:,.0f}",
            f"{lane.spread(lambda one: one.consumer_us).median:.1f}",
            f"{lane.spread(lambda one: one.redis_us).median:.1f}",
            f"{lane.spread(lambda one: one.peak_rss_bytes / MIB).median:.0f}",
        )
        rows.append(f"| {lane.title} | {' | '.join(figures)} |")
    times = [f"{ratio.spread.median:.1f} times as many as {lanes[ratio.peer].title}" for ratio in ratios(lanes)]
    compared = " and ".join(filter(None, (", ".join(times[:-1]), *times[-1:])))
    said = prose(
        f"Medians on {machine['machine']}, shared by nsqd, Redis and the consumer, with 250-byte JSON events over "
        f"10,000 timelines: `nsqdigest run` takes in {compared}. "
        "[All of it](docs/measured/throughput.md), with the spread of the rounds, the versions and a picture."
    )
    block = "\n".join([*rows, "", said])
    return f"{before}{README_BLOCK[0]}\n{block}\n\n{README_BLOCK[1]}{behind}"


def every_round(lanes: Mapping[str, LaneRounds], what: str = "events") -> list[str]:
    most = max((len(lane.rounds) for lane in lanes.values()), default=0)
    header = " | ".join(str(number) for number in range(1, most + 1))
    lines = [f"| {what}/s in round | {what} | {header} |", "|---|--:|" + "--:|" * most]
    for lane in lanes.values():
        cells = " | ".join(f"{one.events_per_s:,.0f}" for one in lane.rounds)
        lines.append(f"| {lane.key} | {lane.rounds[0].events:,} | {cells} |")
    return lines


def markdown(
    lanes: Mapping[str, LaneRounds],
    *,
    max_in_flight: int,
    machine: Mapping[str, str],
    notes: Iterable[str],
    picture: str,
) -> str:
    lost = losses(lanes)
    parts = [
        "# Throughput, measured",
        "",
        "Written by `make bench`; bench/README.md says what is measured and how. Medians, and in brackets the smallest",
        "and the largest of the rounds.",
        "",
        f"![events per second and CPU per event of each lane]({picture})",
        "",
        *table(lanes),
        "",
        *[f"- {verdict(ratio)}" for ratio in ratios(lanes)],
        *(f"- **LOST**: {line}" for line in lost),
        *([] if lost else ["- every event of every round was found in Redis, exactly once"]),
        "",
        "## Memory of the daemon",
        "",
        *memory_notes(lanes, max_in_flight),
        "",
        *appendix(lanes, machine, notes),
    ]
    return "\n".join(parts) + "\n"


def appendix(
    lanes: Mapping[str, LaneRounds], machine: Mapping[str, str], notes: Iterable[str], what: str = "events"
) -> list[str]:
    return [
        "## Notes",
        "",
        *(f"- {note}" for note in notes),
        "",
        "## Every round",
        "",
        *every_round(lanes, what),
        "",
        "## Machine and versions",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
    ]


# Picture

LEFT, RIGHT, BAR, STEP = 230, 190, 20, 44
STYLE = colours(
    bar=("#9aa4af", "#6e7781"),
    ours=("#1a7f5a", "#3fb984"),
    redis=("#c4503c", "#e5755f"),
    nsqd=("#c9a227", "#dcb93c"),
)
Parts = Sequence[tuple[str, str, Callable[[Round], float]]]
"""What stands behind the consumer in a bar of CPU: name, colour, value."""
REDIS = ("Redis (red)", "redis", lambda one: one.redis_us)
NSQD = ("nsqd (yellow)", "nsqd", lambda one: one.nsqd_us)


def _rates(lanes: list[LaneRounds], top: float, what: str, ours: Collection[str]) -> list[str]:
    """A bar to the median, a whisker over the spread."""
    spreads = [lane.spread(lambda one: one.events_per_s) for lane in lanes]
    unit = (WIDTH - LEFT - RIGHT) / max(spread.high for spread in spreads)
    drawn = [text(20, top, f"{what}s per second", "ink head")]
    for number, (lane, spread) in enumerate(zip(lanes, spreads, strict=True)):
        y = top + 18 + number * STEP
        middle = y + BAR / 2
        drawn += [
            text(LEFT - 12, middle + 4.5, f"{lane.key}. {lane.title}", anchor="end"),
            rect(LEFT, y, spread.median * unit, BAR, "ours" if lane.key in ours else "bar"),
            path([(LEFT + spread.low * unit, middle), (LEFT + spread.high * unit, middle)], "ink-line"),
            text(LEFT + spread.high * unit + 10, middle + 4.5, f"{spread.median:,.0f}"),
            text(LEFT, y + BAR + 13, f"{spread.low:,.0f} to {spread.high:,.0f}", "faint"),
        ]
    return drawn


def _cpu(lanes: list[LaneRounds], top: float, what: str, ours: Collection[str], parts: Parts) -> list[str]:
    """Medians side by side in one bar: consumer, then the servers."""
    shares: list[list[tuple[str, float]]] = []
    for lane in lanes:
        consumer = ("ours" if lane.key in ours else "bar", lane.spread(lambda one: one.consumer_us).median)
        shares.append([consumer, *((css, lane.spread(value).median) for _, css, value in parts)])
    unit = (WIDTH - LEFT - RIGHT) / max(sum(us for _, us in share) for share in shares)
    drawn = [
        text(20, top, f"CPU per {what.lower()}, µs", "ink head"),
        text(WIDTH - 20, top, ", then ".join(["consumer", *(name for name, _, _ in parts)]), "faint", "end"),
    ]
    for number, (lane, share) in enumerate(zip(lanes, shares, strict=True)):
        y = top + 18 + number * STEP
        x = float(LEFT)
        drawn.append(text(LEFT - 12, y + BAR / 2 + 4.5, f"{lane.key}. {lane.title}", anchor="end"))
        for css, us in share:
            drawn.append(rect(x, y, us * unit, BAR, css))
            x += us * unit
        drawn.append(text(x + 10, y + BAR / 2 + 4.5, " + ".join(f"{us:.1f}" for _, us in share)))
    return drawn


def picture_svg(lanes: Mapping[str, LaneRounds]) -> str:
    """Of the lanes with the same events: the pass with large ones is about memory, and is in the table."""
    shown = [lane for lane in lanes.values() if lane.key in ("a", "b", "c", "d")]
    times = " · ".join(f"{ratio.spread.median:.1f} {TIMES} lane {ratio.peer}" for ratio in ratios(lanes))
    return drawn_svg(shown, "Event", ("c",), (REDIS, NSQD), f"nsqdigest: {times}" if times else "")


def drawn_svg(shown: list[LaneRounds], what: str, ours: Collection[str], parts: Parts, words: str) -> str:
    """Two panels, one below the other: rates, and CPU by process. `what` is counted; `words` stand beside the head."""
    second = 50 + 18 + len(shown) * STEP + 14
    height = second + 18 + len(shown) * STEP
    body = [*_rates(shown, 36, what, ours), *_cpu(shown, second, what, ours, parts)]
    if words:
        body.append(text(WIDTH - 20, 36, words, "faint", "end"))
    return svg(height, f"{what}s per second and CPU per {what.lower()} of each lane", body, STYLE)
