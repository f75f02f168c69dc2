"""Delivery beside intake, beside a second daemon, a large catch-up, and single digests: each bounded in time.

All of them deliver to the webhook's receiver, whose counts are what is measured.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.delivery.backlog import Backlog, blocks, delay_s, take_in
from bench.delivery.report import CatchUp, Instant, Pair, Shares, Waits
from bench.delivery.stage import CHANNEL, EVENTS, MORE, Stage, daemon, stage
from bench.servers import HOST, BenchError

WINDOW_S, SETTLE_S, START_S = 10.0, 1.0, 30.0
LOOK_EVERY_S = 0.05
SETTLED, NEARLY_ALL = 0.1, 0.95
INTAKE_TIMELINES = 10_000
CATCH_UP_LOOK_S = 0.5


def rates(counters: Sequence[tuple[Callable[[], int], int]]) -> list[float]:
    """Of (counter, its last value) each: per second, from a moment after all have moved until one is nearly done."""

    def wait(until: Callable[[], bool], within_s: float) -> bool:
        deadline_s = time.monotonic() + within_s
        while not until():
            if time.monotonic() > deadline_s:
                return False
            time.sleep(LOOK_EVERY_S)
        return True

    if not wait(lambda: all(count() for count, _ in counters), START_S):
        raise BenchError(f"a daemon did nothing for {START_S:g} s")
    wait(lambda: any(count() > SETTLED * total for count, total in counters), SETTLE_S)
    first = last = [(time.monotonic(), count()) for count, _ in counters]
    while last[0][0] - first[0][0] < WINDOW_S and all(
        done < NEARLY_ALL * total for (_, done), (_, total) in zip(last, counters, strict=True)
    ):
        time.sleep(LOOK_EVERY_S)
        last = [(time.monotonic(), count()) for count, _ in counters]
    if last is first:
        raise BenchError("the backlog was done before it could be looked at: it is too small")
    return [(there - here) / (ended_s - began_s) for (began_s, here), (ended_s, there) in zip(first, last, strict=True)]


# -- beside intake


def shares(backlog: Backlog, events: int) -> Shares:
    """Delivery alone, intake alone, and both: by one daemon with the same file."""
    delivery, _ = _delivery_and_intake(backlog, 0)
    _, intake = _delivery_and_intake(None, events)
    both = _delivery_and_intake(backlog, events)
    return Shares(delivery_alone=delivery, intake_alone=intake, delivery=both[0], intake=both[1])


def _delivery_and_intake(backlog: Backlog | None, events: int) -> tuple[float, float]:
    if backlog:
        backlog.wait_until_due()
    with stage(backlog.dump if backlog else None) as on:
        on.nsqd.create(MORE, CHANNEL)
        for block in blocks(events, INTAKE_TIMELINES):
            on.nsqd.publish(MORE, block)
        counters: list[tuple[Callable[[], int], int]] = []
        if backlog:
            counters.append((on.receiver.posts, backlog.timelines))
        if events:
            counters.append((lambda: on.nsqd.channel(MORE, CHANNEL).finished, events))
        with daemon(on.folder, on.config(on.webhook), "daemon"):
            found = rates(counters)
        return found[0] if backlog else 0.0, found[-1] if events else 0.0


# -- beside a second daemon


def pair(backlog: Backlog) -> Pair:
    backlog.wait_until_due()
    alone, _ = _side_by_side(backlog, 1)
    together, repeated = _side_by_side(backlog, 2)
    return Pair(alone=alone, together=together, repeated=repeated)


def _side_by_side(backlog: Backlog, daemons: int) -> tuple[float, int]:
    """Returns digests/s in all, and how many came twice until both had drained."""
    with stage(backlog.dump) as on:
        with ExitStack() as running:
            for number in range(daemons):
                running.enter_context(daemon(on.folder, on.config(on.webhook), f"daemon-{number}"))
            (rate,) = rates([(on.receiver.posts, backlog.timelines)])
        counted = on.receiver.ask("/stats")
        return rate, counted["posts"] - counted["ids"]


# -- catch-up


def rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text("utf-8", "replace")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def catch_up(timelines: int, limit_s: float) -> CatchUp:
    """Delivers so many timelines, or what it can within the limit, and looks at the memory meanwhile."""
    with stage() as on:
        due_s = take_in(on.folder, on.nsqd, (on.redis_port, on.client), timelines, delay_s(timelines))
        Backlog(timelines, on.folder, due_s).wait_until_due()
        with daemon(on.folder, on.config(on.webhook), "daemon") as child:
            return CatchUp(timelines, tuple(_instants(on, child, timelines, limit_s)))


def _instants(on: Stage, child: subprocess.Popen[bytes], timelines: int, limit_s: float) -> Iterator[Instant]:
    began_s = time.monotonic()
    while True:
        at_s, delivered = time.monotonic() - began_s, on.receiver.posts()
        yield Instant(at_s, delivered, rss_bytes(child.pid), int(on.client.info("memory")["used_memory"]))
        if delivered >= timelines or at_s >= limit_s:
            return
        if child.poll() is not None:
            raise BenchError(f"the daemon ended with {child.returncode}")
        time.sleep(CATCH_UP_LOOK_S)


# -- single digests


class Publisher:
    """One PUB after another on a connection of its own; nsqd's answers are read and dropped."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host or HOST, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(b"  V2")

    def publish(self, topic: str, body: bytes) -> None:
        self._socket.sendall(b"PUB %s\n%s%s" % (topic.encode(), len(body).to_bytes(4, "big"), body))
        try:
            while self._socket.recv(1 << 16, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()


def stamped(timeline: int, at_ns: int) -> bytes:
    return json.dumps(
        {"at_ns": at_ns, "user": {"id": f"u{timeline:08d}"}, "message": "x" * 180}, separators=(",", ":")
    ).encode()


def waits(per_s: int, seconds: float) -> Waits:
    """From PUB to the complete POST, for the first event of a timeline each."""
    count = max(1, round(per_s * seconds))
    with stage() as on:
        on.nsqd.create(EVENTS, CHANNEL)
        publisher = Publisher(on.nsqd.tcp_address)
        with daemon(on.folder, on.config(on.webhook, delay=""), "daemon"):
            publisher.publish(EVENTS, json.dumps({"user": {"id": "first"}}).encode())
            _until(on, 1)
            began_s = time.monotonic() + SETTLE_S
            for number in range(count):
                time.sleep(max(0.0, began_s + number / per_s - time.monotonic()))
                publisher.publish(EVENTS, stamped(number, time.monotonic_ns()))
            _until(on, count + 1)
        publisher.close()
        return Waits(per_s, count, tuple(sorted(on.receiver.ask("/waits"))))


def _until(on: Stage, posts: int) -> None:
    """Or until the time is over: what is missing then stands in the table."""
    deadline_s = time.monotonic() + START_S
    while on.receiver.posts() < posts and time.monotonic() < deadline_s:
        time.sleep(LOOK_EVERY_S)
