"""What stands there after an outage of a receiver: timelines of five records each, all of them due.

The daemon's own intake makes it: a policy with `immediate = false` holds all digests back until the intake is over and
the daemon is stopped. Redis' dump of that moment is loaded by the fresh Redis of each round, when all of it is due. So
the backlog is the same in every round, and nothing here knows how it is stored.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from bench.delivery.stage import CHANNEL, EVENTS, FILE_SINK, daemon, daemon_config
from bench.servers import BenchError, Nsqd, nsqd, redis_server, tail

RECORDS = 5
EVENT_BYTES = 250
EVENTS_PER_BLOCK = 15_000
INTAKE_AT_LEAST_PER_S = 12_000
STALL_S = 30.0
MOST_WAITING = 500_000
"""In nsqd, whose memory is the machine's, too."""

_EVENT = (
    b'{"id":"e%010d","user":{"id":"u%08d"},"level":"error","message":"payment was refused by the bank","stack":"%s"}'
)
_STACK = b"checkout.py:212 pay / gateway.py:88 charge / bank.py:41 post / " * 4


@dataclass(frozen=True, slots=True)
class Backlog:
    """`dump` is Redis' file with all of it; `due_s` is when (monotonic) all of it is due."""

    timelines: int
    dump: Path
    due_s: float

    def wait_until_due(self) -> None:
        time.sleep(max(0.0, self.due_s - time.monotonic()))


def event(number: int, timeline: int) -> bytes:
    padding = EVENT_BYTES - len(_EVENT % (0, 0, b""))
    return _EVENT % (number, timeline, _STACK[:padding])


def blocks(events: int, timelines: int) -> Iterator[bytes]:
    """In nsqd's binary form of MPUB: each timeline in turn, again and again."""
    size = struct.pack(">I", EVENT_BYTES)
    for first in range(0, events, EVENTS_PER_BLOCK):
        numbers = range(first, min(first + EVENTS_PER_BLOCK, events))
        yield struct.pack(">I", len(numbers)) + b"".join(size + event(one, one % timelines) for one in numbers)


class TooEarlyDue(BenchError):
    """Digests fell due before all events were taken in."""


def delay_s(timelines: int) -> int:
    """Long enough for the intake on a machine that does something else, too."""
    return 10 + timelines * RECORDS // INTAKE_AT_LEAST_PER_S


def made(folder: Path, timelines: int) -> Backlog:
    """With a longer delay where the machine is too busy for the first one."""
    try:
        return _made(folder, timelines, delay_s(timelines))
    except TooEarlyDue:
        return _made(folder, timelines, 5 * delay_s(timelines))


def _made(folder: Path, timelines: int, wait_s: int) -> Backlog:
    """Takes it in with a daemon and keeps Redis' dump in `folder`."""
    dump = folder / f"{timelines}.rdb"
    with tempfile.TemporaryDirectory(prefix="nsqdigest-bench-", ignore_cleanup_errors=True) as name:
        place = Path(name)
        with nsqd(place, timelines * RECORDS) as queue, redis_server(place) as served:
            due_s = take_in(place, queue, served, timelines, wait_s)
            served[1].save()
        shutil.move(place / "dump.rdb", dump)
    return Backlog(timelines, dump, due_s)


def take_in(folder: Path, queue: Nsqd, served: tuple[int, redis.Redis], timelines: int, wait_s: int) -> float:
    """All are due `wait_s` after their first event. Returns when (monotonic) that is over."""
    redis_port, client = served
    events, early = timelines * RECORDS, folder / "early.jsonl"
    text = daemon_config(queue.tcp_address, redis_port, FILE_SINK.format(path=early), f"{wait_s}s")
    queue.create(EVENTS, CHANNEL)
    with daemon(folder, text, "intake") as child:
        for block in blocks(events, timelines):
            while queue.channel(EVENTS, CHANNEL).depth > MOST_WAITING:
                time.sleep(0.02)
            queue.publish(EVENTS, block)
        moved_s, finished = time.monotonic(), 0
        while finished < events:
            time.sleep(0.05)
            now = queue.channel(EVENTS, CHANNEL).finished
            if now != finished:
                moved_s, finished = time.monotonic(), now
            if child.poll() is not None or time.monotonic() - moved_s > STALL_S:
                raise BenchError(f"the intake stands at {finished} of {events}:\n{tail(folder / 'intake.log')}")
        due_s = time.monotonic() + wait_s
    if early.exists() and early.stat().st_size:
        raise TooEarlyDue("digests fell due before all events were taken in: the machine is too busy")
    print(f"backlog: {timelines:,} timelines of {RECORDS} records; {client.dbsize():,} keys", flush=True)
    return due_s
