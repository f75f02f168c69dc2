"""`python -m bench.planner`: what one plan costs with 10, 100, 1,000 and 10,000 connections; writes the page.

What counts are the ratios within one run, beside those that a linear and an n log n growth would have. Nothing here is
a goal: a busy machine is no fault of the code.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.pages import prose
from bench.servers import ROOT
from nsqdigest.backoff import Decision, Reason, State
from nsqdigest.intake.rdy import LONGEST_TURN_S, RESERVED_S, Planner

DEFAULT_OUT = ROOT / "docs" / "measured"
COUNTS = (10, 100, 1_000, 10_000)
ROUNDS = 7
SEATS_A_ROUND = 100_000
"""Connections that are planned for in one round, in all."""


@dataclass(eq=False, slots=True)
class Seat:
    max_rdy: int = 2500
    rdy: int = 0
    in_flight: int = 0
    message_at_s: float = 0.0
    is_well: bool = True


class Case(NamedTuple):
    title: str
    decisions: Callable[[int], tuple[Decision, ...]]
    """By the number of connections; taken in turn, each after a reserve and a turn have ended."""


def of(state: State, limit: int, epoch: int = 0) -> Decision:
    return Decision(state, 0, limit, epoch, None, Reason.STARTED)


CASES = (
    Case("places for all, nothing changes", lambda count: (of(State.FLOWING, 10 * count),)),
    Case(
        "places for all, every RDY changes", lambda count: (of(State.FLOWING, 10 * count), of(State.FLOWING, 5 * count))
    ),
    Case("places for a tenth, turns end", lambda count: (of(State.FLOWING, count // 10),)),
    Case(
        "all to 0, one armed",
        lambda count: (of(State.BACKOFF, 0), of(State.PROBING, 1, 1), of(State.FLOWING, count, 2)),
    ),
)


def plan_us(case: Case, count: int, plans: int) -> float:
    """The mean of one plan in CPU time, the quickest of the rounds: whatever else ran can only have added to it."""
    quickest_s = math.inf
    for _ in range(ROUNDS):
        seats = [Seat(max_rdy=2500 - number % 7, message_at_s=number / count) for number in range(count)]
        planner: Planner[Seat] = Planner()
        decisions = case.decisions(count)
        now_s, took_s = 100.0, 0.0
        gc.collect()
        for number in range(plans + len(decisions)):
            now_s += LONGEST_TURN_S + RESERVED_S
            began_s = time.process_time()
            plan = planner.plan(decisions[number % len(decisions)], seats, now_s)
            ended_s = time.process_time()
            for seat, rdy in plan.changes:
                seat.rdy = rdy
            if number >= len(decisions):  # the first ones set up what is planned upon
                took_s += ended_s - began_s
        quickest_s = min(quickest_s, took_s / plans)
    return quickest_s * 1e6


class Row(NamedTuple):
    title: str
    costs_us: tuple[float, ...]

    @property
    def exponent(self) -> float:
        """k of cost ~ n^k, from 100 connections on, where what does not grow no longer counts."""
        return math.log(self.costs_us[-1] / self.costs_us[1]) / math.log(COUNTS[-1] / COUNTS[1])


def verdict(row: Row) -> str:
    """Which of the growths the cost's is nearest to, by its ratio from 100 to 10,000 connections."""
    few, many = COUNTS[1], COUNTS[-1]
    growths = {
        "linear": many / few,
        "n log n": many * math.log(many) / (few * math.log(few)),
        "quadratic": (many / few) ** 2,
    }
    ratio = row.costs_us[-1] / row.costs_us[1]
    return min(growths, key=lambda name: abs(math.log(ratio / growths[name])))


def page(rows: list[Row], facts: dict[str, str]) -> str:
    lines = [
        "# The planner, measured",
        "",
        prose(
            """Written by `make bench-planner`. What one plan costs, in microseconds of CPU; in brackets how many times
            as much as with a tenth of the connections. Linear is 10 times; n log n is 20, 15 and 13.3 times."""
        ),
        "",
        "| | " + " | ".join(f"{count:,}" for count in COUNTS) + " | from 100 to 10,000 | nearest to |",
        "|---|" + "--:|" * (len(COUNTS) + 1) + "---|",
    ]
    for row in rows:
        cells = [f"{row.costs_us[0]:,.0f}"]
        cells += [
            f"{cost:,.0f} ({cost / fewer:.1f})" for fewer, cost in zip(row.costs_us, row.costs_us[1:], strict=False)
        ]
        growth = f"{row.costs_us[-1] / row.costs_us[1]:,.0f} times, n^{row.exponent:.2f}"
        lines.append(f"| {row.title} | {' | '.join(cells)} | {growth} | {verdict(row)} |")
    lines += [
        "",
        prose(
            """A plan is made when a connection comes or goes, when the controller decides anew, and when a reserve or a
            turn ends, not for each message."""
        ),
        "",
        *(f"- {name}: {words}" for name, words in facts.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.planner", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the plans; writes nothing")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder of the page (default: docs/measured)")
    options = parser.parse_args()
    work = SEATS_A_ROUND // 20 if options.quick else SEATS_A_ROUND
    facts = {
        "measured": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, the quickest of {ROUNDS} rounds, load before "
        f"{os.getloadavg()[0]:.2f}",
        "Python": platform.python_version(),
    }
    rows = []
    for case in CASES:
        rows.append(Row(case.title, tuple(plan_us(case, count, max(3, work // count)) for count in COUNTS)))
        print(
            f"{case.title}: {', '.join(f'{cost:,.0f}' for cost in rows[-1].costs_us)} us; {verdict(rows[-1])}",
            flush=True,
        )
    if not options.quick:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "planner.md").write_text(page(rows, facts), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
