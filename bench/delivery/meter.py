"""A consumer looked at from outside while it delivers: counts, /proc and Redis' INFO together, every 75 ms."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from bench.servers import BenchError, tail
from bench.throughput.meter import FIRST_SHARE, LAST_SHARE, LOOK_EVERY_S, cpu_s, when
from bench.throughput.report import Round

STALL_S = 20.0
NOT_COUNTED = ("info", "llen")
"""The commands that the looks themselves send."""


@dataclass(frozen=True, slots=True)
class Look:
    at_s: float
    finished: int
    consumer_cpu_s: float
    redis_cpu_s: float
    receiver_cpu_s: float
    commands: int


@dataclass(frozen=True, slots=True)
class Watched:
    """`receiver_pid` is the process on the other side, 0 where there is none."""

    consumer: subprocess.Popen[bytes]
    log: Path
    client: redis.Redis
    count: Callable[[], int]
    receiver_pid: int = 0
    look_every_s: float = LOOK_EVERY_S


def commands_of(stats: Mapping[str, Mapping[str, int]]) -> int:
    """All that INFO counted, those within scripts included, but the looks' own."""
    own = {f"cmdstat_{name}" for name in NOT_COUNTED}
    return sum(figures["calls"] for name, figures in stats.items() if name not in own)


def look(watched: Watched) -> Look:
    cpu = watched.client.info("cpu")
    return Look(
        at_s=time.monotonic(),
        finished=watched.count(),
        consumer_cpu_s=cpu_s(watched.consumer.pid),
        redis_cpu_s=cpu["used_cpu_user"] + cpu["used_cpu_sys"],
        receiver_cpu_s=cpu_s(watched.receiver_pid) if watched.receiver_pid else 0.0,
        commands=commands_of(watched.client.info("commandstats")),
    )


def watch(watched: Watched, digests: int) -> list[Look]:
    """Looks until all are delivered. A consumer that ends or stalls before is an error."""
    looks: list[Look] = []
    moved_s = time.monotonic()
    while not looks or looks[-1].finished < digests:
        if watched.consumer.poll() is not None:
            raise BenchError(f"the consumer ended with {watched.consumer.returncode}:\n{tail(watched.log)}")
        looks.append(look(watched))
        if len(looks) > 1 and looks[-1].finished != looks[-2].finished:
            moved_s = looks[-1].at_s
        elif looks[-1].at_s - moved_s > STALL_S:
            raise BenchError(f"nothing moved for {STALL_S:g} s at {looks[-1].finished}:\n{tail(watched.log)}")
        time.sleep(watched.look_every_s)
    return looks


def evaluate(looks: Sequence[Look], digests: int, *, rss_bytes: int, counts: dict[str, int]) -> Round:
    first, last = FIRST_SHARE * digests, LAST_SHARE * digests

    def per_digest(value: Callable[[Look], float]) -> float:
        return (when(looks, last, value) - when(looks, first, value)) / (last - first)

    return Round(
        events=digests,
        events_per_s=1 / per_digest(lambda one: one.at_s),
        consumer_us=per_digest(lambda one: one.consumer_cpu_s) * 1e6,
        redis_us=per_digest(lambda one: one.redis_cpu_s) * 1e6,
        nsqd_us=0.0,
        receiver_us=per_digest(lambda one: one.receiver_cpu_s) * 1e6,
        commands=per_digest(lambda one: one.commands),
        peak_rss_bytes=rss_bytes,
        most_in_flight=0,
        counts=counts,
    )
