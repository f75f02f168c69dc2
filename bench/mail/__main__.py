"""`python -m bench.mail`: mails a second to a mail server on this machine, beside a bare loop of the same client.

Exit code 1 only when a mail was lost or came twice, or could not be measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.mail.sending import AT_ONCE, EVENTS
from bench.pages import prose
from bench.runs import chosen, interleaved, machine_facts
from bench.servers import ROOT, BenchError

DEFAULT_OUT = ROOT / "docs" / "measured"
MAILS = 2_000
QUICK_MAILS = 200
WITHIN_S = 300.0


class Lane(NamedTuple):
    key: str
    title: str
    sends: bool = True


LANES = [
    Lane("sink", "the email sink: made, and sent"),
    Lane("bare", "aiosmtplib alone, mails made before"),
    Lane("compose", "mails made, none sent", sends=False),
]
NOTES = [
    f"{MAILS:,} mails a round, of {EVENTS} events in two groups, {AT_ONCE} at a time over as many connections, in the "
    "clear. The client has a process of its own; aiosmtpd, which takes all of them, has another, on the same machine.",
    "CPU is user and system time of the client's process, its start left out. It is what to compare: aiosmtpd is the "
    "slower end, and bounds the rates.",
    "The server counts mails and different Message-IDs: each must be the number that was sent.",
]


class Round(NamedTuple):
    mails_per_s: float
    cpu_us: float

    def __str__(self) -> str:
        return f"{self.mails_per_s:>8,.0f} mails/s   {self.cpu_us:8.0f} µs of CPU a mail"


@contextmanager
def receiver() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.mail.receiver"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def run_round(lane: Lane, child: subprocess.Popen[str], port: int, mails: int) -> Round:
    command = [sys.executable, "-m", "bench.mail.sending", lane.key, str(port), str(mails)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=WITHIN_S)
    if done.returncode:
        raise BenchError(f"{lane.key}: {done.stderr.strip().splitlines()[-1]}")
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    expected = mails if lane.sends else 0
    if _line(child).split() != [str(expected)] * 2:
        raise BenchError(f"{lane.key}: mails were lost or came twice")
    measured = json.loads(done.stdout)
    return Round(mails / measured["seconds"], measured["cpu_s"] / mails * 1e6)


def spread(values: Sequence[float]) -> str:
    return f"{median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"  # noqa: RUF001


def markdown(results: Mapping[str, Sequence[Round]], machine: Mapping[str, str]) -> str:
    lines = [
        "# Mails, measured",
        "",
        "Written by `make bench-mail`. Medians, and in brackets the smallest and the largest of the rounds.",
        "",
        "| lane | what it does | mails/s | CPU of the client, µs/mail |",
        "|---|---|--:|--:|",
    ]
    for lane in LANES:
        if rounds := results.get(lane.key):
            rates = spread([one.mails_per_s for one in rounds])
            lines.append(f"| {lane.key} | {lane.title} | {rates} | {spread([one.cpu_us for one in rounds])} |")
    lines += ["", *(f"- {prose(words, 2)}" for words in NOTES)]
    lines += ["", "## Machine and versions", "", *(f"- {name}: {value}" for name, value in machine.items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.mail", description=__doc__)
    options.add_argument("--rounds", type=int, default=5, help="how often each lane is run (default 5)")
    options.add_argument("--lanes", default="", help=f"of {', '.join(lane.key for lane in LANES)}; default all")
    options.add_argument("--quick", action="store_true", help="one round of a tenth of the mails; writes nothing")
    options.add_argument("--out", type=Path, help="folder of the table (default: docs/measured, for a whole run only)")
    given = options.parse_args()
    rounds, mails = (1, QUICK_MAILS) if given.quick else (given.rounds, MAILS)
    try:
        lanes = chosen(LANES, given.lanes)
        facts = machine_facts(rounds, (), ("aiosmtplib", "aiosmtpd"))
        del facts["servers"]
        with receiver() as child:
            port = int(_line(child))
            runs = {lane.key: partial(run_round, lane, child, port, mails) for lane in lanes}
            results = interleaved([lane.key for lane in lanes], rounds, runs, str)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    text = markdown(results, facts)
    print(f"\n{text}")
    out = given.out or (DEFAULT_OUT if lanes == LANES and rounds >= 3 else None)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "mail.md").write_text(text, "utf-8")
        print(f"written: {out / 'mail.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
