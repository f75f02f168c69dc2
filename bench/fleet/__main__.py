"""`python -m bench.fleet`: every choice meets every trouble, under several seeds; then the page and its pictures.

It is all simulated: the numbers are the same on every machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.fleet.compare import DURATIONS, LONG, MEETS, Choice
from bench.fleet.model import DAEMONS, Alone, Run, Simulation, Trouble, alone
from bench.fleet.pictures import alone_svg, load_svg, recovery_svg
from bench.fleet.report import Results, markdown
from bench.servers import ROOT

DEFAULT_OUT = ROOT / "docs" / "measured"
QUICK_DAEMONS = 100


class Job(NamedTuple):
    trouble: Trouble | None
    """None: each daemon alone."""
    choice: Choice
    seed: int
    daemons: int


def done(job: Job) -> Run | Alone:
    if job.trouble is None:
        return alone(job.choice.variant, LONG, job.seed, job.daemons)
    return Simulation(job.choice.variant, job.trouble, job.seed, job.daemons).run()


def run_all(jobs: Iterable[Job], processes: int) -> Results:
    results = Results()
    listed = list(jobs)
    with ProcessPoolExecutor(processes) as pool:
        for number, (job, answer) in enumerate(zip(listed, pool.map(done, listed), strict=True), 1):
            if isinstance(answer, Alone):
                results.alone.setdefault(job.choice, []).append(answer)
            elif job.trouble is not None:
                results.runs.setdefault((job.trouble.key, job.choice), []).append(answer)
            if number % 20 == 0:
                print(f"{number} of {len(listed)} runs", flush=True)
    return results


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    options.add_argument("--seeds", type=int, default=3, help="how often each choice meets each trouble (default 3)")
    options.add_argument("--quick", action="store_true", help=f"once, with {QUICK_DAEMONS} daemons; writes nothing")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a CPU)")
    options.add_argument("--out", type=Path, help="folder of the page and the pictures (default: docs/measured)")
    given = options.parse_args()
    daemons = QUICK_DAEMONS if given.quick else DAEMONS
    seeds = range(1, 2 if given.quick else given.seeds + 1)

    began_s = time.monotonic()
    jobs = [
        Job(trouble, choice, seed, daemons)
        for trouble, choices in (*MEETS.items(), (None, DURATIONS))
        for choice in dict.fromkeys(choices)
        for seed in seeds
    ]
    results = run_all(jobs, given.jobs)
    text = markdown(results, daemons, len(seeds))
    print(f"\n{text}\n{len(jobs)} runs in {time.monotonic() - began_s:.0f} s")
    out = given.out or (None if given.quick else DEFAULT_OUT)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        pages = {
            "fleet.md": text,
            "fleet-alone.svg": alone_svg(results),
            "fleet-recovery.svg": recovery_svg(results, daemons),
            "fleet-load.svg": load_svg(results),
        }
        for name, content in pages.items():
            (out / name).write_text(content, "utf-8")
        print(f"written to {out}: {', '.join(pages)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
