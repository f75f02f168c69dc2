"""One round of one lane, looked at from outside.

The backlog stands in the channel before the consumer starts. From then on nsqd's /stats, Redis' INFO and /proc are read
together every 75 ms. What counts lies between the moments at which 10 % and 90 % of the backlog were finished
(interpolated between two looks): start-up, imports and the last stragglers are in no figure but the peak of memory.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import redis

from bench.servers import BenchError, Nsqd, tail
from bench.throughput.backlog import blocks
from bench.throughput.report import Round

LOOK_EVERY_S = 0.075
FIRST_SHARE, LAST_SHARE = 0.1, 0.9
STALL_S = 20.0
"""A consumer that finishes nothing for so long has failed."""
TOPIC, CHANNEL = "events", "bench"

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Look:
    at_s: float
    finished: int
    in_flight: int
    consumer_cpu_s: float
    redis_cpu_s: float
    nsqd_cpu_s: float


def children(pid: int) -> list[int]:
    """Those alive, of all threads of the process. A thread may end while this reads."""
    found: list[int] = []
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, listing.read_text("ascii").split())
    return found


def cpu_s(pid: int) -> float:
    """User and system time of a process, its children living and gone."""
    after_name = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    own_and_gone = sum(map(int, after_name[11:15])) / _TICKS_PER_S
    return own_and_gone + sum(cpu_s(child) for child in children(pid))


def peak_rss_bytes(pid: int) -> int:
    """VmHWM of a process and of its living children, added up."""
    status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    own_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return own_kib * 1024 + sum(peak_rss_bytes(child) for child in children(pid))


def publish_backlog(nsqd: Nsqd, events: int, event_bytes: int) -> None:
    """Into the topic, and waits until all of it stands in the channel."""
    nsqd.create(TOPIC, CHANNEL)
    for block in blocks(events, event_bytes):
        nsqd.publish(TOPIC, block)
    deadline_s = time.monotonic() + STALL_S
    while (depth := nsqd.channel(TOPIC, CHANNEL).depth) != events:
        if time.monotonic() > deadline_s:
            raise BenchError(f"{events} events were published, but the channel holds {depth}")
        time.sleep(0.02)


def watch(
    nsqd: Nsqd, client: redis.Redis | None, consumer: subprocess.Popen[bytes], log: Path, events: int
) -> list[Look]:
    """Looks until the whole backlog is finished. A consumer that ends or stalls before is an error. `client`: of Redis,
    where there is one."""
    looks: list[Look] = []
    moved_s = time.monotonic()
    while True:
        channel = nsqd.channel(TOPIC, CHANNEL)
        cpu = client.info("cpu") if client else {}
        if consumer.poll() is not None:
            raise BenchError(f"the consumer ended by itself with {consumer.returncode}:\n{tail(log)}")
        now_s = time.monotonic()
        looks.append(
            Look(
                at_s=now_s,
                finished=channel.finished,
                in_flight=channel.in_flight,
                consumer_cpu_s=cpu_s(consumer.pid),
                redis_cpu_s=cpu.get("used_cpu_user", 0.0) + cpu.get("used_cpu_sys", 0.0),
                nsqd_cpu_s=cpu_s(nsqd.pid),
            )
        )
        if channel.finished >= events and channel.depth == channel.in_flight == 0:
            return looks
        if len(looks) > 1 and looks[-1].finished != looks[-2].finished:
            moved_s = now_s
        elif now_s - moved_s > STALL_S:
            raise BenchError(f"nothing was finished for {STALL_S:g} s at {channel}:\n{tail(log)}")
        time.sleep(LOOK_EVERY_S)


class Progress(Protocol):
    @property
    def finished(self) -> int: ...


LookT = TypeVar("LookT", bound=Progress)


def when(looks: Sequence[LookT], finished: float, value: Callable[[LookT], float]) -> float:
    """What `value` was when so many events were finished, on the line between the two looks around that moment."""
    before = looks[0]
    for look in looks:
        if look.finished >= finished:
            if look.finished == before.finished:
                return value(look)
            share = (finished - before.finished) / (look.finished - before.finished)
            return value(before) + share * (value(look) - value(before))
        before = look
    raise ValueError(f"the looks end at {before.finished} of {finished}")


def evaluate(looks: list[Look], events: int, *, rss_bytes: int, counts: dict[str, int]) -> Round:
    first, last = FIRST_SHARE * events, LAST_SHARE * events

    def grown(value: Callable[[Look], float]) -> float:
        return when(looks, last, value) - when(looks, first, value)

    def per_event_us(value: Callable[[Look], float]) -> float:
        return grown(value) / (last - first) * 1e6

    return Round(
        events=events,
        events_per_s=(last - first) / grown(lambda look: look.at_s),
        consumer_us=per_event_us(lambda look: look.consumer_cpu_s),
        redis_us=per_event_us(lambda look: look.redis_cpu_s),
        nsqd_us=per_event_us(lambda look: look.nsqd_cpu_s),
        peak_rss_bytes=rss_bytes,
        most_in_flight=max(look.in_flight for look in looks),
        counts=counts,
    )
