"""What was measured of delivery, as a page and a picture (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bench.throughput.report import (
    MIB,
    REDIS,
    TIMES,
    Goals,
    LaneRounds,
    Ratio,
    Round,
    Spread,
    appendix,
    drawn_svg,
    losses,
    ratios,
    spread_of,
)

OURS = ("null", "log", "webhook", "nsq")
FLOORS = ("protocol", "floor")
"""The least that somebody has to do. In the table only: beside them the other bars would be short."""

GOALS: Goals = (
    ("log", "bull", 1.5),
    ("webhook", "aiohttp", 0.9),
    ("webhook", "bullpost", 1.2),
    ("watched", "log", 0.99),
)
BARS = {("log", "bull"): 1.0, ("webhook", "aiohttp"): 0.75, ("webhook", "bullpost"): 0.9, ("watched", "log"): 0.97}
"""Of the same ratios: what is wanted at least."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of the log lane: what is left when HTTP is left out."""

    words: str
    value: Callable[[Round], float]
    bar_us: float
    goal_us: float


COSTS = (
    Cost("CPU of Redis for a digest of five records", lambda one: one.redis_us, 60, 35),
    Cost("CPU of the daemon for it, HTTP left out", lambda one: one.consumer_us, 40, 20),
)
WAIT_GOALS_MS = {5: 5.0, 200: 10.0, 2000: 15.0}
"""p99, by events a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Per second: each alone, and both by one daemon."""

    delivery_alone: float
    intake_alone: float
    delivery: float
    intake: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Digests a second of one daemon and of two in all; `repeated` came more than once."""

    alone: float
    together: float
    repeated: int


@dataclass(frozen=True, slots=True)
class Instant:
    at_s: float
    delivered: int
    rss_bytes: int
    redis_bytes: int


@dataclass(frozen=True, slots=True)
class CatchUp:
    timelines: int
    instants: tuple[Instant, ...]


@dataclass(frozen=True, slots=True)
class Waits:
    """`waits_us` is sorted."""

    per_s: int
    published: int
    waits_us: tuple[int, ...]

    def ms(self, share: float) -> float:
        if not self.waits_us:
            return float("inf")
        return self.waits_us[min(len(self.waits_us) - 1, int(share * len(self.waits_us)))] / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    lanes: Mapping[str, LaneRounds] = field(default_factory=dict)
    shares: Sequence[Shares] = ()
    pairs: Sequence[Pair] = ()
    waits: Sequence[Waits] = ()
    catch_up: CatchUp | None = None


# Words


def standing(reaches_bar: bool, reaches_goal: bool) -> str:
    return "**goal reached**" if reaches_goal else "**bar reached**" if reaches_bar else "**missed**"


def ratio_verdict(ratio: Ratio) -> str:
    bar = BARS[ratio.lane, ratio.peer]
    found = standing(ratio.spread.median >= bar, ratio.reached)
    is_now = f"{ratio.lane} is {ratio.spread.text('.2f')} {TIMES} {ratio.peer}"
    return f"{found}: {is_now}; wanted is ≥ {bar:g} {TIMES}, aimed at ≥ {ratio.goal:g} {TIMES}"


def cost_verdict(cost: Cost, lane: LaneRounds) -> str:
    spread = lane.spread(cost.value)
    found = standing(spread.median <= cost.bar_us, spread.median <= cost.goal_us)
    return f"{found}: {cost.words} is {spread.text('.0f')} µs; wanted is ≤ {cost.bar_us:g}, aimed at ≤ {cost.goal_us:g}"


def verdicts(lanes: Mapping[str, LaneRounds]) -> list[str]:
    costs = [cost_verdict(cost, lanes["log"]) for cost in COSTS] if "log" in lanes else []
    return [*map(ratio_verdict, ratios(lanes, GOALS)), *costs]


def table(lanes: Mapping[str, LaneRounds]) -> list[str]:
    lines = [
        "| lane | digests/s | CPU of the process, µs/digest | of Redis | of the receiver | Redis commands | RSS, MiB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for lane in lanes.values():
        cells = [
            f"{lane.key}. {lane.title}",
            lane.spread(lambda one: one.events_per_s).text(),
            lane.spread(lambda one: one.consumer_us).text(".0f"),
            lane.spread(lambda one: one.redis_us).text(".0f"),
            f"{lane.spread(lambda one: one.receiver_us).median:.0f}",
            f"{lane.spread(lambda one: one.commands).median:.1f}",
            lane.spread(lambda one: one.peak_rss_bytes / MIB).text(".0f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def shares_table(shares: Sequence[Shares]) -> list[str]:
    def row(words: str, alone: Callable[[Shares], float], both: Callable[[Shares], float]) -> str:
        share = spread_of(both(one) / alone(one) for one in shares)
        cells = (spread_of(map(alone, shares)).text(), spread_of(map(both, shares)).text(), share.text(".0%"))
        return f"| {words} | {' | '.join(cells)} |"

    return [
        "| per second | alone | both at once | of what it is alone |",
        "|---|--:|--:|--:|",
        row("digests posted", lambda one: one.delivery_alone, lambda one: one.delivery),
        row("events taken in", lambda one: one.intake_alone, lambda one: one.intake),
    ]


def pairs_lines(pairs: Sequence[Pair]) -> list[str]:
    ratio = Spread(
        statistics.median(one.together for one in pairs) / statistics.median(one.alone for one in pairs),
        min(one.together / one.alone for one in pairs),
        max(one.together / one.alone for one in pairs),
    )
    return [
        f"- one daemon: {spread_of(one.alone for one in pairs).text()} digests/s",
        f"- two side by side, in all: {spread_of(one.together for one in pairs).text()} digests/s, "
        f"{ratio.text('.2f')} {TIMES} one alone",
        f"- digests that the receiver had more than once: {sum(one.repeated for one in pairs)}",
    ]


def waits_table(waits: Sequence[Waits]) -> list[str]:
    lines = ["| events/s | events | median, ms | p99, ms | largest, ms | p99 aimed at | not arrived |"]
    lines.append("|--:|--:|--:|--:|--:|---|--:|")
    for one in waits:
        aim = WAIT_GOALS_MS.get(one.per_s)
        aimed = "" if aim is None else f"≤ {aim:g}: {'reached' if one.ms(0.99) <= aim else '**missed**'}"
        figures = " | ".join(f"{one.ms(share):.1f}" for share in (0.5, 0.99, 1.0))
        missing = one.published - len(one.waits_us)
        lines.append(f"| {one.per_s:,} | {one.published:,} | {figures} | {aimed} | {missing} |")
    return lines


def catch_up_lines(catch_up: CatchUp) -> list[str]:
    """A tenth of the time in each row, and the peaks."""
    instants, end = catch_up.instants, catch_up.instants[-1]
    per_s = end.delivered / end.at_s if end.at_s else 0.0
    every = [min(instants, key=lambda one: abs(one.at_s - end.at_s * tenth / 10)) for tenth in range(11)]
    rows = [
        f"| {one.at_s:.0f} | {one.delivered:,} | {one.rss_bytes / MIB:.0f} | {one.redis_bytes / MIB:,.0f} |"
        for one in every
    ]
    whole = f", {catch_up.timelines / per_s / 60:.1f} minutes for all of them" if per_s else ""
    return [
        f"{end.delivered:,} of {catch_up.timelines:,} timelines in {end.at_s:.0f} s: {per_s:,.0f} digests/s{whole}. "
        f"Peak RSS of the daemon {max(one.rss_bytes for one in instants) / MIB:.0f} MiB; Redis held "
        f"{max(one.redis_bytes for one in instants) / MIB:,.0f} MiB at most.",
        "",
        "| s | delivered | RSS of the daemon, MiB | memory of Redis, MiB |",
        "|--:|--:|--:|--:|",
        *rows,
    ]


def sections(results: Results) -> list[str]:
    found: list[str] = []
    if results.waits:
        found += ["## From the event to the webhook", "", *waits_table(results.waits), ""]
    if results.shares:
        found += ["## While events come in at full speed", "", *shares_table(results.shares), ""]
    if results.pairs:
        found += ["## Two daemons", "", *pairs_lines(results.pairs), ""]
    if results.catch_up:
        found += ["## A large catch-up", "", *catch_up_lines(results.catch_up), ""]
    return found


def _lanes(results: Results, picture: str) -> list[str]:
    if not results.lanes:
        return []
    lost = losses(results.lanes)
    return [
        f"![digests per second and CPU per digest of each lane]({picture})",
        "",
        *table(results.lanes),
        "",
        *(f"- {verdict}" for verdict in verdicts(results.lanes)),
        *(f"- **NOT WHOLE**: {line}" for line in lost),
        *([] if lost else ["- every digest of every round arrived, exactly once"]),
        "",
    ]


def markdown(results: Results, *, machine: Mapping[str, str], notes: Iterable[str], picture: str) -> str:
    parts = [
        "# Delivery, measured",
        "",
        "Written by `make bench-delivery`; bench/README.md says what is measured and how. Medians, and in brackets the",
        "smallest and the largest of the rounds.",
        "",
        *_lanes(results, picture),
        *sections(results),
        *appendix(results.lanes, machine, notes, "digests"),
    ]
    return "\n".join(parts) + "\n"


# Picture


def picture_svg(lanes: Mapping[str, LaneRounds]) -> str:
    shown = [lane for lane in lanes.values() if lane.key not in FLOORS]
    words = " · ".join(
        f"{ratio.lane}: {ratio.spread.median:.2f} {TIMES} {ratio.peer}" for ratio in ratios(lanes, GOALS)
    )
    receiver = ("receiver (yellow)", "nsqd", lambda one: one.receiver_us)
    return drawn_svg(shown, "Digest", OURS, (REDIS, receiver), words)
