"""Two sinks, one of them dead for a while: the other's digests are as quick as when all is well, and afterwards each
timeline of the dead one gets one digest, without a storm.

CI looks at states after a short outage. `make prove` measures a minute of it, in delays.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.receiver import Receiver
from support.stage import PROVE, TOPIC, Stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.chaos

TIMELINES = 40
OUTAGE_S = 60.0 if PROVE else 3.0
EVERY_S = 0.1
NEIGHBOURS = [
    {"name": name, "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": sink}
    for name, sink in (("sick", "hook"), ("well", "second"))
]


class Stream:
    """Events for all timelines in turn, until it is left; each has the time at which it was published."""

    def __init__(self, publish: Callable[[dict[str, Any]], None]) -> None:
        self._publish = publish
        self._ended = threading.Event()
        self.published = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Stream:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S / 4):
            number = self.published
            self._publish({"id": str(number), "timeline": f"t{number % TIMELINES}", "at": time.monotonic()})
            self.published += 1


def started(stage: Stage) -> tuple[Receiver, Receiver, Stream]:
    nsqd = stage.nsqd()
    sick, well = stage.receiver(), stage.receiver()
    # What comes is due at once, so that a digest's delay is the daemon's alone.
    at_once = {"minimum_delay": "0s", "increment_delay": "0s", "maximum_delay": "0s"}
    stage.daemon({"policies.default": at_once, "scheduler": {"lease": "20s"}}, NEIGHBOURS).start()
    return sick, well, Stream(lambda event: nsqd.publish(TOPIC, json.dumps(event).encode()))


def p99_s(receiver: Receiver, since_s: float, until_s: float) -> float:
    """From an event's publishing to its first accepted post."""
    first: dict[str, float] = {}
    for post in receiver.accepted():
        for record in json.loads(post.body)["data"]["records"]:
            at_s = record["value"]["at"]
            if since_s <= at_s < until_s:
                first.setdefault(record["value"]["id"], post.at_s - at_s)
    delays_s = sorted(first.values())
    assert len(delays_s) > 20
    return delays_s[len(delays_s) * 99 // 100]


def test_the_neighbour_of_a_dead_sink_notices_nothing_and_there_is_no_storm_afterwards(stage: Stage) -> None:
    sick, well, stream = started(stage)
    (daemon,) = stage.daemons
    with stream:
        quiet_s = time.monotonic()
        wait_until(lambda: time.monotonic() - quiet_s > OUTAGE_S / 2, OUTAGE_S, "a quiet time to compare with")
        sick.down()
        dead_s = time.monotonic()
        wait_until(lambda: daemon.metric("sink_backoff_level", sink="hook") >= 2, 20, "the sink to back off")
        wait_until(lambda: time.monotonic() - dead_s > OUTAGE_S, OUTAGE_S + 10, "the end of the outage")
        assert daemon.metric("sink_backoff_level", sink="second") == 0
        over_s = time.monotonic()
        before = len(sick.posts)
    published = stream.published
    wait_until(lambda: len({value["id"] for value in well.values()}) == published, 30, "all of the other sink's events")
    sick.up()
    wait_until(lambda: len({value["id"] for value in sick.values()}) == published, 30, "all that had piled up")

    after = sick.posts[before:]
    frozen = {post.id for post in after if post.attempt > 1}  # opened before the sink was known to be down
    of_timelines = [json.loads(post.body)["data"]["timeline"] for post in after if post.id not in frozen]
    assert len(of_timelines) == len(set(of_timelines)) <= TIMELINES, "one digest for each timeline"
    assert len(frozen) <= 16 + TIMELINES, "no more than were under way, and one probe for each attempt"
    for receiver in (sick, well):
        assert receiver.accepted_more_than_once() == {}
        assert receiver.ids_with_two_bodies() == []
    assert daemon.bugs() == []
    if PROVE:
        quiet_p99_s, dead_p99_s = p99_s(well, quiet_s, dead_s), p99_s(well, dead_s, over_s)
        assert dead_p99_s <= 1.5 * quiet_p99_s + 0.005, (quiet_p99_s, dead_p99_s)
