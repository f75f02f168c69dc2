"""`python -m bench.throughput`: every lane in turn, round after round; then the table, and the picture beside it.

Exit code 1 only when a lane lost an event or could not be measured. Whether it was fast enough stands in the table:
a busy machine is no fault of the code.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path

from bench.runs import chosen, interleaved, machine_facts
from bench.servers import ROOT, BenchError
from bench.throughput.backlog import TIMELINES
from bench.throughput.lanes import (
    BENTHOS_THREADS,
    MAX_IN_FLIGHT,
    Lane,
    all_lanes,
    build_go_consumers,
    run_round,
)
from bench.throughput.report import LaneRounds, Round, into_readme, losses, markdown, picture_svg

DEFAULT_OUT = ROOT / "docs" / "measured"
QUICK_SCALE = 0.1

NOTES = [
    f"Backlogs of JSON events over {TIMELINES:,} timelines, in the channel before the consumer starts; fresh nsqd and "
    "Redis each round; consumer, nsqd and Redis share the machine.",
    "The rate is the slope between 10 % and 90 % of the backlog finished, by nsqd's counters. CPU is of the same span.",
    "Lanes a, b and d make one script call per event (SETEX, ZADD, EXPIRE, two ZSCORE, GET, ZADD); a with all that is "
    f"in flight at once, b with 256 concurrent handlers, d with {BENTHOS_THREADS} threads of its pipeline.",
    "Lane c is the daemon with a config file. Its policy has `immediate = false` and delays beyond the run: like "
    "the others it takes in and delivers nothing. Newer-wins, capacity, schedule and ledger are kept.",
    "Peak RSS is the consumer's VmHWM, start-up included.",
]


def machine(lanes: list[Lane], rounds: int) -> dict[str, str]:
    facts = machine_facts(rounds, ("nsqd", "redis-server"), ("pynsq", "tornado", "redis", "hiredis", "msgspec"))
    for key, module in (("b", "bench/go"), ("d", "bench/benthos")):
        if any(lane.key == key for lane in lanes):
            pinned = re.findall(
                r"^(?:require |\t)(\S+) (v\S+)$", (ROOT / module / "go.mod").read_text("utf-8"), re.MULTILINE
            )
            facts[f"lane {key}"] = ", ".join(f"{name} {release}" for name, release in pinned)
    return facts


def run_all(lanes: list[Lane], rounds: int) -> dict[str, LaneRounds]:
    done = interleaved(
        [lane.key for lane in lanes], rounds, {lane.key: partial(run_round, lane) for lane in lanes}, summary
    )
    return {lane.key: LaneRounds(lane.key, lane.title, lane.event_bytes, tuple(done[lane.key])) for lane in lanes}


def summary(one: Round) -> str:
    return (
        f"{one.events_per_s:>10,.0f} events/s   CPU per event: consumer {one.consumer_us:.1f} "
        f"Redis {one.redis_us:.1f} nsqd {one.nsqd_us:.1f} µs   {one.peak_rss_bytes / 2**20:.0f} MiB"
    )


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    options.add_argument("--rounds", type=int, default=7, help="how often each lane is run (default 7)")
    options.add_argument("--events-scale", type=float, default=1.0, help="multiplies the backlogs (default 1)")
    options.add_argument("--lanes", default="", help="a, b, c, d, c64 (c with 64 KiB events); default all")
    options.add_argument("--quick", action="store_true", help="one round of a tenth of the events")
    options.add_argument(
        "--out", type=Path, help="folder of the table and the picture (default: docs/measured, for a whole run only)"
    )
    given = options.parse_args()
    rounds = 1 if given.quick else given.rounds
    scale = QUICK_SCALE if given.quick else given.events_scale
    try:
        lanes = chosen(all_lanes(scale), given.lanes)
        build_go_consumers(lanes)
        facts = machine(lanes, rounds)
        results = run_all(lanes, rounds)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1

    text = markdown(results, max_in_flight=MAX_IN_FLIGHT, machine=facts, notes=NOTES, picture="throughput.svg")
    print(f"\n{text}")
    whole = len(lanes) == len(all_lanes(scale)) and scale >= 1 and rounds >= 3
    out = given.out or (DEFAULT_OUT if whole else None)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "throughput.md").write_text(text, "utf-8")
        (out / "throughput.svg").write_text(picture_svg(results), "utf-8")
        print(f"written: {out / 'throughput.md'}, {out / 'throughput.svg'}")
    if out == DEFAULT_OUT:
        readme = ROOT / "README.md"
        readme.write_text(into_readme(readme.read_text("utf-8"), results, facts), "utf-8")
    return 1 if losses(results) else 0


if __name__ == "__main__":
    sys.exit(main())
