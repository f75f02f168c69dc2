"""`python -m bench.throughput`: every lane in turn, round after round; then the table, and the picture beside it.

Exit code 1 only when a lane lost an event or could not be measured. Whether it was fast enough stands in the table:
a busy machine is no fault of the code.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.servers import ROOT, BenchError, find_binary
from bench.throughput.backlog import TIMELINES
from bench.throughput.lanes import MAX_IN_FLIGHT, Lane, all_lanes, build_go_consumer, run_round
from bench.throughput.report import LaneRounds, Round, into_readme, losses, markdown, picture_svg

DEFAULT_OUT = ROOT / "docs" / "measured"
QUICK_SCALE = 0.1

NOTES = [
    f"Backlogs of JSON events over {TIMELINES:,} timelines, in the channel before the consumer starts; fresh nsqd and "
    "Redis each round; consumer, nsqd and Redis share the machine.",
    "The rate is the slope between 10 % and 90 % of the backlog finished, by nsqd's counters. CPU is of the same span.",
    "Lanes a and b make one script call per event (SETEX, ZADD, EXPIRE, two ZSCORE, GET, ZADD); a with all that is in "
    "flight at once, b with 256 concurrent handlers.",
    "Lane c is the daemon with a config file. Its policy has `immediate = false` and delays beyond the run: like a and "
    "b it takes in and delivers nothing. Newer-wins, capacity, schedule and ledger are kept.",
    "Peak RSS is the consumer's VmHWM, start-up included.",
]


def first_line(command: list[str]) -> str:
    answer = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
    return answer[0].strip() if answer else "unknown"


def machine(lanes: list[Lane], rounds: int) -> dict[str, str]:
    processor = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    facts = {
        "measured": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {rounds} rounds, load before {os.getloadavg()[0]:.2f}",
        "machine": f"{processor[1] if processor else platform.machine()}, {os.cpu_count()} CPUs, {memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "servers": "; ".join(first_line([find_binary(name), "--version"]) for name in ("nsqd", "redis-server")),
        "Python": platform.python_version(),
        "packages": ", ".join(
            f"{name} {version(name)}" for name in ("pynsq", "tornado", "redis", "hiredis", "msgspec")
        ),
    }
    if any(lane.key == "b" for lane in lanes):
        pinned = re.findall(r"^\t(\S+) (v\S+)$", (ROOT / "bench/go/go.mod").read_text("utf-8"), re.MULTILINE)
        facts["lane b"] = ", ".join(f"{name} {release}" for name, release in pinned)
    return facts


def chosen_lanes(wanted: str, scale: float) -> list[Lane]:
    keys = [key.strip() for key in wanted.split(",")]
    known = all_lanes(scale)
    if unknown := [key for key in keys if key not in {lane.key for lane in known}]:
        raise BenchError(f"unknown lane {unknown[0]!r}; there are {', '.join(lane.key for lane in known)}")
    return [lane for lane in known if lane.key in keys]


def run_all(lanes: list[Lane], rounds: int) -> dict[str, LaneRounds]:
    """Interleaved (a, b, c, a, b, c …), so that a slow minute of the machine is shared."""
    done: dict[str, list[Round]] = {lane.key: [] for lane in lanes}
    for number in range(1, rounds + 1):
        for lane in lanes:
            began_s = time.monotonic()
            result = run_round(lane)
            done[lane.key].append(result)
            print(
                f"round {number}/{rounds}  {lane.key:<4}{result.events_per_s:>10,.0f} events/s   CPU per event: "
                f"consumer {result.consumer_us:.1f} Redis {result.redis_us:.1f} nsqd {result.nsqd_us:.1f} µs   "
                f"{result.peak_rss_bytes / 2**20:.0f} MiB   {time.monotonic() - began_s:.0f} s in all",
                flush=True,
            )
    return {lane.key: LaneRounds(lane.key, lane.title, lane.event_bytes, tuple(done[lane.key])) for lane in lanes}


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    options.add_argument("--rounds", type=int, default=7, help="how often each lane is run (default 7)")
    options.add_argument("--events-scale", type=float, default=1.0, help="multiplies the backlogs (default 1)")
    options.add_argument("--lanes", default="a,b,c,c64", help="a, b, c, c64 (c with 64 KiB events); default all")
    options.add_argument("--quick", action="store_true", help="one round of a tenth of the events")
    options.add_argument(
        "--out", type=Path, help="folder of the table and the picture (default: docs/measured, for a whole run only)"
    )
    given = options.parse_args()
    rounds = 1 if given.quick else given.rounds
    scale = QUICK_SCALE if given.quick else given.events_scale
    try:
        lanes = chosen_lanes(given.lanes, scale)
        if any(lane.key == "b" for lane in lanes):
            build_go_consumer()
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
