"""`python -m bench.timelines`: what a record, a digest and an idle fleet cost Redis, and how that grows.

A goal that was missed stands in the table; it is no error of the command.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.runs import machine_facts
from bench.servers import ROOT, BenchError
from bench.timelines.calls import calls
from bench.timelines.longest import longest
from bench.timelines.measures import costs, idle, sizes
from bench.timelines.report import Results, longest_section, markdown, picture_svg, with_longest
from bench.timelines.stores import VALUE

DEFAULT_OUT = ROOT / "docs" / "measured"

NOTES = [
    f"Records of {len(VALUE)} bytes with keys of their own, drawn over 10,000 timelines, 500 in a call; one server, "
    "one partition, no persistence. A digest has what fell to its timeline, about 5 records.",
    "ZADD + HSET alone is two commands a record in pipelines of 500 records: no schedule, no capacity, no newer-wins, "
    "no ledger.",
    "Growth: one record in each timeline, all of them waiting; then records over all of them, and digests of timelines "
    "that fall due among them. Bytes are used_memory, index, value and schedule of the timeline.",
    "The fleet is real daemons with nothing to take in and nothing due. The share of a core is the CPU of the Redis "
    "process.",
    "Single calls are timed by Redis (SLOWLOG), so whatever else the machine did meanwhile is in them.",
]


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.timelines", description=__doc__)
    options.add_argument("--rounds", type=int, default=7, help="how often each figure is taken (default 7)")
    options.add_argument("--quick", action="store_true", help="one round of everything, smaller; writes nothing")
    options.add_argument("--out", type=Path, help="folder of the table and the picture (default: docs/measured)")
    options.add_argument("--longest", action="store_true", help="the longest calls alone, into the page that is there")
    given = options.parse_args()
    rounds = 1 if given.quick else given.rounds
    counts = [1_000, 10_000] if given.quick else [10_000, 100_000, 1_000_000]
    try:
        if given.longest:
            return _longest_alone((given.out or DEFAULT_OUT) / "timelines.md")
        facts = machine_facts(rounds, ("redis-server",), ("redis", "hiredis", "msgspec"))
        results = Results(
            costs=tuple(costs(rounds, batches=20 if given.quick else 100)),
            sizes=tuple(sizes(counts, rounds, batches=10 if given.quick else 40)),
            calls=tuple(calls(3 if given.quick else 20)),
            longest=tuple(longest(is_quick=given.quick)),
            idle=idle(seconds=5 if given.quick else 60),
        )
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1

    text = markdown(results, machine=facts, notes=NOTES, picture="timelines.svg")
    print(f"\n{text}")
    out = given.out or (None if given.quick or given.rounds < 3 else DEFAULT_OUT)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "timelines.md").write_text(text, "utf-8")
        (out / "timelines.svg").write_text(picture_svg(results), "utf-8")
        print(f"written: {out / 'timelines.md'}, {out / 'timelines.svg'}")
    return 0


def _longest_alone(page: Path) -> int:
    facts = machine_facts(0, ("redis-server",), ())
    section = longest_section(longest(), measured=f"{facts['measured']}; {facts['servers']}")
    page.write_text(with_longest(page.read_text("utf-8"), section), "utf-8")
    print("\n".join(["", *section, f"written: {page}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
