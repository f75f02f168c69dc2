"""`python -m bench.delivery`: how fast digests go out, beside BullMQ, bare clients and bare Redis commands.

Exit code 1 only when a digest of a lane did not arrive or came twice, or something could not be measured. Whether it
was fast enough stands on the page.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bench.delivery.backlog import RECORDS, made
from bench.delivery.beside import WINDOW_S, catch_up, pair, shares, waits
from bench.delivery.lanes import AT_A_TIME, BULLMQ_BEST, LANES, Lane, install_bullmq, run_round
from bench.delivery.report import Pair, Results, Shares, markdown, picture_svg
from bench.delivery.stage import HERE
from bench.runs import chosen, interleaved, machine_facts
from bench.servers import ROOT, BenchError
from bench.throughput.report import LaneRounds, Round, losses

DEFAULT_OUT = ROOT / "docs" / "measured"
PARTS = ("lanes", "waits", "shares", "pair", "catch-up")
WAITS = ((5, 40.0), (200, 15.0), (800, 10.0), (2000, 10.0))
BESIDE_ROUNDS = 3
BESIDE_TIMELINES, EVENTS_A_TIMELINE = 100_000, 10

NOTES = [
    f"The backlog: timelines of {RECORDS} records of 250 bytes each, all due; the daemon's own intake made it, and "
    "each round loads the same dump into a fresh Redis. The clients, Redis and the receiver share the machine.",
    "The rate is the slope between 10 % and 90 % of the digests, counted where they arrive; null's by the daemon's "
    "metric. CPU and Redis commands (those within scripts included) are of the same span.",
    f"Everybody has {AT_A_TIME} on their way at a time. BullMQ removes jobs that are done and posts with undici; "
    f"posting it is quickest with about {BULLMQ_BEST}.",
    "The receiver is an asyncio.Protocol in a process of its own; in lane nsq it is nsqd. Its CPU per post says that "
    "it is not the limit.",
    "protocol and floor are no peers but limits: a client without TLS, time-outs or answers that it reads; ZRANGE, "
    "HMGET, two RENAMEs and an UNLINK a digest, pipelined by 100.",
    "watched is log while its metrics are scraped each second, its page is open on two views, and `nsqdigest status "
    "--watch` runs. slack and template post to the same receiver as webhook: a message for Slack, and one by a "
    "template of the user's.",
    f"Beside intake and beside a second daemon: the rate over {WINDOW_S:g} s, or until one backlog is nearly through.",
]


def machine(rounds: int) -> dict[str, str]:
    facts = machine_facts(rounds, ("nsqd", "redis-server"), ("aiohttp", "redis", "hiredis", "msgspec"))
    pinned = json.loads((HERE / "bullmq" / "package.json").read_text("utf-8"))["dependencies"]
    return facts | {"BullMQ": ", ".join(f"{name} {release}" for name, release in pinned.items())}


def summary(one: Round) -> str:
    return (
        f"{one.events_per_s:>10,.0f} digests/s   CPU per digest: consumer {one.consumer_us:.0f} "
        f"Redis {one.redis_us:.0f} receiver {one.receiver_us:.0f} µs   {one.commands:.1f} commands   "
        f"{one.peak_rss_bytes / 2**20:.0f} MiB"
    )


def run_lanes(lanes: Sequence[Lane], rounds: int, digests: int, folder: Path) -> dict[str, LaneRounds]:
    backlog = made(folder, digests) if any(lane.uses_backlog for lane in lanes) else None
    run = {lane.key: partial(run_round, lane, lane.times * digests, backlog) for lane in lanes}
    done = interleaved([lane.key for lane in lanes], rounds, run, summary)
    return {lane.key: LaneRounds(lane.key, lane.title, 0, tuple(done[lane.key])) for lane in lanes}


def run_beside(
    parts: Sequence[str], folder: Path, timelines: int, rounds: int
) -> tuple[tuple[Shares, ...], tuple[Pair, ...]]:
    """The two take turns."""
    backlog = made(folder, timelines)
    with_intake: list[Shares] = []
    with_another: list[Pair] = []
    for number in range(1, rounds + 1):
        if "shares" in parts:
            with_intake.append(shares(backlog, EVENTS_A_TIMELINE * timelines))
            print(f"round {number}/{rounds}  {with_intake[-1]}", flush=True)
        if "pair" in parts:
            with_another.append(pair(backlog))
            print(f"round {number}/{rounds}  {with_another[-1]}", flush=True)
    return tuple(with_intake), tuple(with_another)


def measured(given: argparse.Namespace, parts: Sequence[str], lanes: Sequence[Lane]) -> Results:
    quick, scale = given.quick, 0.1 if given.quick else 1.0
    by_lane: dict[str, LaneRounds] = {}
    with_intake: tuple[Shares, ...] = ()
    with_another: tuple[Pair, ...] = ()
    with tempfile.TemporaryDirectory(prefix="nsqdigest-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if "lanes" in parts:
            by_lane = run_lanes(lanes, 1 if quick else given.rounds, round(given.digests * scale), folder)
        if {"shares", "pair"} & set(parts):
            rounds = 1 if quick else min(given.rounds, BESIDE_ROUNDS)
            with_intake, with_another = run_beside(parts, folder, round(BESIDE_TIMELINES * scale), rounds)
    waited = [waits(per_s, seconds * scale) for per_s, seconds in WAITS] if "waits" in parts else []
    caught_up = catch_up(round(given.catch_up * scale), given.catch_up_s * scale) if "catch-up" in parts else None
    return Results(lanes=by_lane, shares=with_intake, pairs=with_another, waits=waited, catch_up=caught_up)


def chosen_parts(wanted: str, quick: bool) -> list[str]:
    """All of them, but in a quick run the large catch-up."""
    parts = [part.strip() for part in wanted.split(",")] if wanted else [*PARTS[: -1 if quick else None]]
    if unknown := [part for part in parts if part not in PARTS]:
        raise BenchError(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    return parts


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m bench.delivery", description=__doc__)
    options.add_argument("--parts", default="", help=f"{', '.join(PARTS)}; default all (--quick: without the last)")
    options.add_argument("--lanes", default="", help=f"{', '.join(lane.key for lane in LANES)}; default all")
    options.add_argument("--rounds", type=int, default=5, help="how often each lane is run (default 5)")
    options.add_argument("--digests", type=int, default=20_000, help="of each lane (default 20000)")
    options.add_argument("--catch-up", type=int, default=1_000_000, help="timelines of the catch-up (default 1000000)")
    options.add_argument("--catch-up-s", type=float, default=180.0, help="how long it may take (default 180)")
    options.add_argument("--quick", action="store_true", help="one round of a tenth of all; writes nothing")
    options.add_argument("--out", type=Path, help="folder of the page (default: docs/measured, for a whole run only)")
    given = options.parse_args()
    try:
        parts, lanes = chosen_parts(given.parts, given.quick), chosen(LANES, given.lanes)
        if "lanes" in parts and any(lane.key.startswith("bull") for lane in lanes):
            install_bullmq()
        facts = machine(1 if given.quick else given.rounds)
        results = measured(given, parts, lanes)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1

    text = markdown(results, machine=facts, notes=NOTES, picture="delivery.svg")
    print(f"\n{text}")
    whole = len(parts) == len(PARTS) and len(lanes) == len(LANES) and given.rounds >= 3 and not given.quick
    out = given.out or (DEFAULT_OUT if whole else None)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / "delivery.md").write_text(text, "utf-8")
        if results.lanes:
            (out / "delivery.svg").write_text(picture_svg(results.lanes), "utf-8")
        print(f"written: {out / 'delivery.md'}")
    return 1 if losses(results.lanes) else 0


if __name__ == "__main__":
    sys.exit(main())
