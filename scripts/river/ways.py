"""Drives a traced daemon, and cuts out of its calls the ways of single events and of single digests.

Of the calls between two instants whole turns are taken, those that the loop began there. A turn that the daemon also
takes when nothing happens (a timer that finds nothing due, a heartbeat) is no part of a way.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from support.daemon import Daemon
from support.servers import Nsqd, RedisServer
from support.waiting import wait_until

TRACE = Path(__file__).parent / "trace.py"
TIMES = 7
IDLE_S = 3.0
DELAY_S = 1.2
PAUSE_S = 0.2
"""What follows the last answer of a server is done by then."""
TOPIC, CHANNEL = "events", "nsqdigest"
SETTINGS: dict[str, dict[str, Any]] = {
    "nsq": {"heartbeat_interval": "60s"},
    "policies.default": {
        "minimum_delay": f"{1000 * DELAY_S:.0f}ms",
        "increment_delay": "0s",
        "maximum_delay": f"{1000 * DELAY_S:.0f}ms",
        "dedupe_window": "15m",
    },
}
ROUTES = [{"name": "events", "topic": TOPIC, "timeline": "{user}", "key": "{id}", "sink": "out"}]


AWAIT = "await"
BESIDE = frozenset({"NsqConnection._settle"})
"""Timers that a message sets off, and that its way does not wait for."""


class Step(NamedTuple):
    """A call of a function."""

    caller: str
    """The file that calls it; '' or AWAIT where the loop began something, or went on with it."""
    file: str
    function: str
    line: int


Call = tuple[int, bool, str, str, str, int]
"""As trace.py writes it."""
Part = tuple[int, int]
Turn = tuple[Step, ...]
Way = tuple[Turn, ...]


class Ways(NamedTuple):
    package: Path
    """What was traced: where its text is."""
    event: Way
    digest: Way


class _Traced(Daemon):
    calls_path: Path

    def _find(self) -> Path:
        return Path(sys.executable)

    def _arguments(self) -> list[str]:
        return ["-I", str(TRACE), str(self.calls_path), *super()._arguments()]


def traced_ways() -> Ways:
    with tempfile.TemporaryDirectory(prefix="river-") as name:
        folder = Path(name)
        with Nsqd(folder / "nsqd") as nsqd, RedisServer(folder / "redis") as redis:
            nsqd.create_channel(TOPIC, CHANNEL)
            nsq = {**SETTINGS["nsq"], "nsqd_tcp_addresses": ["{}:{}".format(*nsqd.tcp_address)]}
            digests = folder / "digests"
            sink = {"type": "log", "path": str(digests)}
            settings = {**SETTINGS, "nsq": nsq, "redis": {"url": redis.url}, "sinks.out": sink}
            daemon = _Traced(folder / "daemon", settings, ROUTES)
            daemon.calls_path = folder / "calls.json"
            with daemon:
                instants = _drive(daemon, nsqd, digests)
                daemon.stop()
            traced = json.loads(daemon.calls_path.read_text("utf-8"))
    calls, idle = traced["calls"], instants["idle"]
    return Ways(
        Path(traced["package"]), way_of(calls, idle, instants["event"]), way_of(calls, idle, instants["digest"])
    )


Instants = dict[str, list[Part]]


def _drive(daemon: Daemon, nsqd: Nsqd, digests: Path) -> Instants:
    """From when to when (ns) each took place: one event after the other, of one timeline, and after it its digest. The
    first one only warms up: a timeline that begins is due at once, and every other event finds it waiting."""
    instants: Instants = {"idle": [], "event": [], "digest": []}
    for number in range(TIMES + 1):
        began = time.monotonic_ns()
        nsqd.publish(TOPIC, b'{"user": "u", "id": %d}' % number)
        wait_until(partial(_finished, nsqd, number + 1), 10, "the event to be finished")
        time.sleep(PAUSE_S)
        between = time.monotonic_ns()
        wait_until(partial(_delivered, digests, number + 1), 10, "the digest to be delivered")
        time.sleep(PAUSE_S)
        if number:
            instants["event"].append((began, between))
            instants["digest"].append((between, time.monotonic_ns()))
    time.sleep(2 * DELAY_S)  # then the timeline is due once more, and forgotten, since it is empty
    began = time.monotonic_ns()
    time.sleep(IDLE_S)
    instants["idle"].append((began, time.monotonic_ns()))
    assert daemon.bugs() == []
    return instants


def _finished(nsqd: Nsqd, count: int) -> bool:
    stats = nsqd.channel_stats(TOPIC, CHANNEL)
    held = stats["depth"] + stats["in_flight_count"] + stats["deferred_count"]
    return bool(stats["message_count"] - held == count)


def _delivered(digests: Path, count: int) -> bool:
    return digests.exists() and digests.read_bytes().count(b"\n") == count


# -- from calls to a way


def way_of(calls: Sequence[Call], idle: Sequence[Part], parts: Sequence[Part]) -> Way:
    """The most frequent one, without turns that most do not have (a timer that was early, a task that ended first)."""
    background = {turn for part in idle for turn in _turns(calls, part)}
    ways = [[turn for turn in _turns(calls, part) if turn not in background] for part in parts]
    times = Counter(turn for way in ways for turn in set(way))
    found = Counter(tuple(turn for turn in way if 2 * times[turn] > len(ways)) for way in ways)
    return max(found, key=lambda way: (found[way], len(way)))


def _turns(calls: Sequence[Call], part: Part) -> list[Turn]:
    """Those that the loop began in this time and that call anything."""
    began, ended = part
    turns: list[list[Step]] = []
    is_inside = False
    for at, is_beginning, caller, file, function, line in calls:
        if not caller:
            if is_inside := began <= at < ended:
                turns.append([Step("" if is_beginning else AWAIT, file, function, line)])
        elif is_inside:
            turns[-1].append(Step(caller, file, function, line))
    return [tuple(turn) for turn in turns if len(turn) > 1 and BESIDE.isdisjoint(step.function for step in turn)]
