"""What was measured of the store, as a table and a picture (pure).

Costs are CPU of the Redis process, in microseconds; ratios are of figures of the same run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.drawing import WIDTH, path, rect, svg, text
from bench.throughput.report import BAR, LEFT, RIGHT, STEP, STYLE, TIMES, Spread, spread_of

ADD_GOAL = 3.5
GROWTH_GOAL = 2.5
IDLE_GOAL_PERCENT = 1.0
SLOWEST_GOAL_MS = 10.0
USUAL_BAR_MS, LARGEST_BAR_MS = 15.0, 30.0
"""Bars of a single call: at the default limits, and at the largest that `check` admits."""
LONGEST = "## The longest calls"


class Costs(NamedTuple):
    """Of one round: per record, and for claim, open, read and close of a digest."""

    plain_us: float
    add_us: float
    digest_us: float
    """In calls for many."""
    alone_us: float


class Size(NamedTuple):
    """With so many timelines waiting."""

    timelines: int
    add_us: tuple[float, ...]
    digest_us: tuple[float, ...]
    bytes_per_timeline: float


class Idle(NamedTuple):
    daemons: int
    partitions: int
    routes: int
    percent: float
    calls_per_s: Mapping[str, float]


class Call(NamedTuple):
    """A script call at the default limits: how long Redis was at it, each time."""

    what: str
    took_us: tuple[float, ...]

    @property
    def spread_ms(self) -> Spread:
        return spread_of(us / 1000 for us in self.took_us)


class Longest(NamedTuple):
    """A script with the most work that one call may get: the CPU of each call."""

    what: str
    bar_ms: float
    took_us: tuple[float, ...]

    @property
    def spread_ms(self) -> Spread:
        return spread_of(us / 1000 for us in self.took_us)


class Results(NamedTuple):
    costs: tuple[Costs, ...]
    sizes: tuple[Size, ...]
    idle: Idle
    calls: tuple[Call, ...]
    longest: tuple[Longest, ...]


def add_ratio(costs: Sequence[Costs]) -> Spread:
    return spread_of(one.add_us / one.plain_us for one in costs)


def growth(sizes: Sequence[Size]) -> list[tuple[Size, float, float]]:
    """Of each size beside the first: how many times as much a record costs, and a digest."""
    add_us, digest_us = (spread_of(of).median for of in (sizes[0].add_us, sizes[0].digest_us))
    return [
        (size, spread_of(size.add_us).median / add_us, spread_of(size.digest_us).median / digest_us) for size in sizes
    ]


def slowest(calls: Sequence[Call]) -> Call:
    return max(calls, key=lambda call: call.spread_ms.median)


def verdicts(results: Results) -> list[str]:
    ratio = add_ratio(results.costs)
    most = max(max(add, digest) for _, add, digest in growth(results.sizes))
    call = slowest(results.calls)
    return [
        _verdict(
            ratio.median <= ADD_GOAL,
            f"a record costs {ratio.text('.1f')} {TIMES} ZADD + HSET alone; wanted is ≤ {ADD_GOAL:g} {TIMES}",
        ),
        _verdict(
            most <= GROWTH_GOAL,
            f"with {results.sizes[-1].timelines:,} timelines waiting it is at most {most:.1f} {TIMES} what it is with "
            f"{results.sizes[0].timelines:,}; wanted is ≤ {GROWTH_GOAL:g} {TIMES}",
        ),
        _verdict(
            results.idle.percent < IDLE_GOAL_PERCENT,
            f"an idle fleet takes {results.idle.percent:.2f} % of a core; wanted is < {IDLE_GOAL_PERCENT:g} %",
        ),
        _verdict(
            call.spread_ms.median < SLOWEST_GOAL_MS,
            f"the slowest single call ({call.what}) takes {call.spread_ms.text('.2f')} ms; wanted are single "
            "milliseconds",
        ),
    ]


def _verdict(reached: bool, words: str) -> str:
    return f"- **{'pass' if reached else 'fail'}**: {words}"


def markdown(results: Results, *, machine: Mapping[str, str], notes: Iterable[str], picture: str) -> str:
    idle = results.idle
    parts = [
        "# Timelines, measured",
        "",
        "Written by `make bench-timelines`; bench/README.md says what is measured and how. Medians, and in brackets",
        "the smallest and the largest of the rounds. Costs are CPU of the Redis process.",
        "",
        f"![what a record and a digest cost Redis]({picture})",
        "",
        *verdicts(results),
        "",
        "## A record and a digest",
        "",
        "| | µs |",
        "|---|--:|",
        *(
            f"| {what} | {spread.text('.1f')} |"
            for what, spread in (
                ("ZADD + HSET of a record, pipelined", spread_of(one.plain_us for one in results.costs)),
                ("add, per record", spread_of(one.add_us for one in results.costs)),
                (
                    "claim, open, read and close of 200 digests, per digest",
                    spread_of(one.digest_us for one in results.costs),
                ),
                ("the same of a digest alone", spread_of(one.alone_us for one in results.costs)),
            )
        ),
        "",
        "## Growth",
        "",
        f"| timelines waiting | add, µs per record | {TIMES} | digest, µs | {TIMES} | bytes per timeline |",
        "|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {size.timelines:,} | {spread_of(size.add_us).text('.1f')} | {add:.1f} "
            f"| {spread_of(size.digest_us).text('.1f')} | {digest:.1f} | {size.bytes_per_timeline:,.0f} |"
            for size, add, digest in growth(results.sizes)
        ),
        "",
        "## An idle fleet",
        "",
        f"{idle.daemons} daemons, {idle.partitions} partitions, {idle.routes} routes, a timeline waiting in each: "
        f"{idle.percent:.2f} % of a core.",
        "Commands a second, those inside of scripts included: "
        + ", ".join(f"{name} {rate:,.1f}" for name, rate in idle.calls_per_s.items())
        + ".",
        "",
        "## Single calls at the default limits",
        "",
        "| call | ms |",
        "|---|--:|",
        *(f"| {call.what} | {call.spread_ms.text('.2f')} |" for call in results.calls),
        "",
        *longest_section(results.longest),
        "## Notes",
        "",
        *(f"- {note}" for note in notes),
        "",
        "## Machine and versions",
        "",
        *(f"- {name}: {value}" for name, value in machine.items()),
    ]
    return "\n".join(parts) + "\n"


def longest_section(longest: Sequence[Longest], *, measured: str = "") -> list[str]:
    """`measured`: when and how, if the rest of the page is of another run."""
    above = [case.what for case in longest if case.spread_ms.high > case.bar_ms]
    bars = f"{USUAL_BAR_MS:g} ms at the default limits, {LARGEST_BAR_MS:g} ms at the largest that `check` admits"
    return [
        LONGEST,
        "",
        "Each script with the most work that one call may get: CPU of Redis (INFO before and after the call). A call",
        "that has too much to do leaves the rest to the next one.",
        "",
        _verdict(not above, f"above the bar: {', '.join(above) or 'no call'}; the bar is {bars}"),
        "",
        "| work | calls | median, ms | worst, ms | bar, ms |",
        "|---|--:|--:|--:|--:|",
        *(
            f"| {case.what} | {len(case.took_us)} | {case.spread_ms.median:.1f} | {case.spread_ms.high:.1f} "
            f"| {case.bar_ms:g} |"
            for case in longest
        ),
        "",
        *([f"Measured: {measured}.", ""] if measured else []),
    ]


def with_longest(page: str, section: Sequence[str]) -> str:
    """The page of an earlier run with these longest calls, and all else as it was."""
    before, _, rest = page.partition(f"{LONGEST}\n")
    if rest:
        after = rest[rest.index("\n## ") + 1 :]
    else:
        before, heading, after = page.partition("## Notes\n")
        after = heading + after
    return before + "\n".join(section) + "\n" + after


def picture_svg(results: Results) -> str:
    costs = [
        ("ZADD + HSET, a record", spread_of(one.plain_us for one in results.costs), "bar"),
        ("add, a record", spread_of(one.add_us for one in results.costs), "ours"),
    ]
    sizes = [(f"{size.timelines:,} waiting", spread_of(size.add_us), "ours") for size in results.sizes]
    unit = (WIDTH - LEFT - RIGHT) / max(spread.high for _, spread, _ in (*costs, *sizes))
    second = 50 + 18 + len(costs) * STEP + 14
    body = [
        *_bars("CPU of Redis per record, µs", costs, unit, 36),
        *_bars("and with more timelines waiting", sizes, unit, second),
        text(WIDTH - 20, 36, f"{add_ratio(results.costs).median:.1f} {TIMES} ZADD + HSET alone", "faint", "end"),
    ]
    return svg(second + 18 + len(sizes) * STEP, "What a record costs Redis", body, STYLE)


def _bars(title: str, bars: Sequence[tuple[str, Spread, str]], unit: float, top: float) -> list[str]:
    drawn = [text(20, top, title, "ink head")]
    for number, (words, spread, css) in enumerate(bars):
        y = top + 18 + number * STEP
        middle = y + BAR / 2
        drawn += [
            text(LEFT - 12, middle + 4.5, words, anchor="end"),
            rect(LEFT, y, spread.median * unit, BAR, css),
            path([(LEFT + spread.low * unit, middle), (LEFT + spread.high * unit, middle)], "ink-line"),
            text(LEFT + spread.high * unit + 10, middle + 4.5, f"{spread.median:.1f}"),
        ]
    return drawn
