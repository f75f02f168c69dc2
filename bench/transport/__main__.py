"""`python -m bench.transport`: every lane in turn, round after round; then the table, and the picture beside it.

Exit code 1 only when a lane lost a message or could not be measured. Whether it was fast enough stands in the table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from bench.runs import chosen, interleaved, machine_facts
from bench.servers import ROOT, BenchError
from bench.throughput.report import (
    MIB,
    NSQD,
    TIMES,
    Goals,
    LaneRounds,
    Round,
    appendix,
    drawn_svg,
    losses,
    ratios,
    size_text,
    verdict,
)
from bench.transport.lanes import EVENT_BYTES, MAX_IN_FLIGHT, OURS, Lane, all_lanes, run_round

DEFAULT_OUT = ROOT / "docs" / "measured"
QUICK_SCALE = 0.1
GOALS: Goals = (("plain", "reader", 10.0), ("tls", "plain", 0.5))

NOTES = [
    f"Backlogs of JSON events of {EVENT_BYTES} bytes, in the channel before the consumer starts; a fresh nsqd each "
    f"round, on the same machine; RDY {MAX_IN_FLIGHT}.",
    "The rate is the slope between 10 % and 90 % of the backlog finished, by nsqd's counters. CPU is of the same span.",
    "reader: a handler that does nothing but return True. All others: one connection; what a read brings is finished "
    "with one write.",
    "Where TLS or a compression is on, both ends pay for it; nsqd's share is in its own column.",
    "Peak RSS is the consumer's VmHWM, start-up included.",
]


def table(lanes: Mapping[str, LaneRounds]) -> list[str]:
    lines = [
        "| lane | message | messages/s | CPU of the consumer, µs/message | of nsqd | consumer's peak RSS, MiB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for lane in lanes.values():
        cells = [
            f"{lane.key}. {lane.title}",
            size_text(lane.event_bytes),
            lane.spread(lambda one: one.events_per_s).text(),
            lane.spread(lambda one: one.consumer_us).text(".2f"),
            lane.spread(lambda one: one.nsqd_us).text(".2f"),
            lane.spread(lambda one: one.peak_rss_bytes / MIB).text(".0f"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def markdown(lanes: Mapping[str, LaneRounds], machine: Mapping[str, str]) -> str:
    lost = losses(lanes)
    parts = [
        "# The connection to nsqd, measured",
        "",
        "Written by `make bench-transport`; bench/README.md says what is measured and how. Medians, and in brackets",
        "the smallest and the largest of the rounds.",
        "",
        "![messages per second and CPU per message of each lane](transport.svg)",
        "",
        *table(lanes),
        "",
        *(f"- {verdict(ratio)}" for ratio in ratios(lanes, GOALS)),
        *(f"- **LOST**: {line}" for line in lost),
        *([] if lost else ["- every message of every round was finished, none of them twice"]),
        "",
        *appendix(lanes, machine, NOTES),
    ]
    return "\n".join(parts) + "\n"


def run_all(lanes: list[Lane], rounds: int) -> dict[str, LaneRounds]:
    done = interleaved(
        [lane.key for lane in lanes], rounds, {lane.key: partial(run_round, lane) for lane in lanes}, summary
    )
    return {lane.key: LaneRounds(lane.key, lane.title, lane.event_bytes, tuple(done[lane.key])) for lane in lanes}


def summary(one: Round) -> str:
    return (
        f"{one.events_per_s:>10,.0f} messages/s   CPU per message: consumer {one.consumer_us:.2f} "
        f"nsqd {one.nsqd_us:.2f} µs   {one.peak_rss_bytes / MIB:.0f} MiB   in flight at most {one.most_in_flight}"
    )


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.transport", description=__doc__)
    options.add_argument("--rounds", type=int, default=7, help="how often each lane is run (default 7)")
    options.add_argument("--events-scale", type=float, default=1.0, help="multiplies the backlogs (default 1)")
    options.add_argument("--lanes", default="", help=f"of reader, {', '.join(OURS)}; default all")
    options.add_argument("--quick", action="store_true", help="one round of a tenth of the messages")
    options.add_argument(
        "--out", type=Path, help="folder of the table and the picture (default: docs/measured, for a whole run only)"
    )
    given = options.parse_args()
    rounds = 1 if given.quick else given.rounds
    scale = QUICK_SCALE if given.quick else given.events_scale
    try:
        lanes = chosen(all_lanes(scale), given.lanes)
        facts = machine_facts(rounds, ("nsqd",), ("pynsq", "tornado", "cramjam"))
        results = run_all(lanes, rounds)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1

    text = markdown(results, facts)
    print(f"\n{text}")
    whole = len(lanes) == len(all_lanes(scale)) and scale >= 1 and rounds >= 3
    out = given.out or (DEFAULT_OUT if whole else None)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "transport.md").write_text(text, "utf-8")
        times = [f"{ratio.lane} is {ratio.spread.median:.1f} {TIMES} {ratio.peer}" for ratio in ratios(results, GOALS)]
        picture = drawn_svg(list(results.values()), "Message", OURS, (NSQD,), " · ".join(times))
        (out / "transport.svg").write_text(picture, "utf-8")
        print(f"written: {out / 'transport.md'}, {out / 'transport.svg'}")
    return 1 if losses(results) else 0


if __name__ == "__main__":
    sys.exit(main())
