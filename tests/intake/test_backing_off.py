"""Redis stops answering under load, in front of 1, 3 and 10 real nsqds: what nsqd's own /stats shows of backing off.

Everything is asked of nsqd and of the daemon's log and metrics; nothing is taken from inside.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.backoff import TRANSITIONS
from support.daemon import Daemon
from support.servers import Nsqd, RedisServer
from support.stage import TOPIC as STAGE_TOPIC
from support.stage import Stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

CHANNEL = "nsqdigest"
MOST_NSQDS = 10
LEVEL_CAP = 3  # of 50 ms and 400 ms
PROBES = 4
"""Failed ones that are waited for: enough to reach the cap, and one more."""
TOPICS = (f"backing-off-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def all_nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Nsqd]]:
    with ExitStack() as stack:
        folder = tmp_path_factory.mktemp("nsqds")
        servers = [stack.enter_context(Nsqd(folder / f"nsqd-{number}")) for number in range(MOST_NSQDS)]
        yield servers
    for server in servers:
        server.forget()


class Load:
    """Keeps a backlog in each nsqd until it is ended."""

    BACKLOG = 3000

    def __init__(self, nsqds: list[Nsqd], topic: str) -> None:
        self._nsqds, self._topic = nsqds, topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.published = 0
        self._fill()
        self._thread.start()

    def _fill(self) -> None:
        for nsqd in self._nsqds:
            if int(nsqd.channel_stats(self._topic, CHANNEL)["depth"]) < self.BACKLOG:
                bodies = [json.dumps({"user": f"u{number % 50}"}).encode() for number in range(self.BACKLOG // 3)]
                self.published += nsqd.publish_many(self._topic, bodies)

    def _run(self) -> None:
        while not self._over.wait(0.1):
            self._fill()

    def end(self) -> None:
        self._over.set()
        self._thread.join()


class Scene:
    def __init__(self, nsqds: list[Nsqd], topic: str, daemon: Daemon) -> None:
        self._nsqds, self._topic, self.daemon = nsqds, topic, daemon

    def clients(self) -> list[dict[str, Any]]:
        return [client for nsqd in self._nsqds for client in nsqd.channel_stats(self._topic, CHANNEL)["clients"]]

    def ready(self) -> list[int]:
        return [int(client["ready_count"]) for client in self.clients()]

    def total(self, count: str) -> int:
        return sum(int(client[count]) for client in self.clients())

    def unfinished(self) -> int:
        return sum(nsqd.unfinished(self._topic, CHANNEL) for nsqd in self._nsqds)

    def decisions(self, **labels: str) -> int:
        return int(self.daemon.metric("backoff_decisions_total", **labels))


@pytest.mark.parametrize("max_in_flight", [2500, 2])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_redis_stops_under_load(
    count: int, max_in_flight: int, all_nsqds: list[Nsqd], redis_server: RedisServer, tmp_path: Path
) -> None:
    nsqds, topic = all_nsqds[:count], next(TOPICS)
    for nsqd in nsqds:
        nsqd.create_channel(topic, CHANNEL)
    daemon = Daemon(
        tmp_path / "daemon",
        {
            "nsq": {
                "nsqd_tcp_addresses": [f"{host}:{port}" for host, port in (nsqd.tcp_address for nsqd in nsqds)],
                "max_in_flight": max_in_flight,
                "requeue_delay": "10ms",
            },
            "backoff": {"base": "50ms", "max_duration": "400ms"},
            "redis": {"url": redis_server.url, "timeout": "500ms"},
            "sinks.out": {"type": "log", "path": str(tmp_path / "digests")},
            "policies.default": {"immediate": False, "minimum_delay": "1h", "maximum_delay": "1h"},
            "log": {"level": "debug"},
        },
        [{"topic": topic, "timeline": "{user}", "sink": "out"}],
    )
    with daemon:
        load = Load(nsqds, topic)
        try:
            scene = Scene(nsqds, topic, daemon)
            steps_back_and_recovers(scene, redis_server, max_in_flight)
        finally:
            load.end()
        if max_in_flight > count:  # two at a time would take too long for all of it
            wait_until(lambda: not scene.unfinished(), PATIENCE_S, "all to be finished")
        checks_the_log(scene)
        assert daemon.bugs() == []


def steps_back_and_recovers(scene: Scene, redis: RedisServer, max_in_flight: int) -> None:
    wait_until(lambda: 0 < sum(scene.ready()) <= max_in_flight, PATIENCE_S, "messages to be asked for")
    wait_until(lambda: scene.total("finish_count") > 10 * max_in_flight or max_in_flight > 2, PATIENCE_S)

    redis.pause()
    wait_until(lambda: not any(scene.ready()), PATIENCE_S, "RDY 0 on every connection")
    # From the first backoff on, each probe hands over one message at the most. Probes are counted first here and last
    # below, so that what is handed over meanwhile is on the safe side.
    wait_until(lambda: scene.decisions(state="probing") >= 1, PATIENCE_S, "the first probe")
    probes, handed_over = scene.decisions(state="probing"), scene.total("message_count")
    wait_until(lambda: asks_for_one_at_most(scene, probes + PROBES), PATIENCE_S, f"{PROBES} probes more")
    handed_over = scene.total("message_count") - handed_over
    probes = scene.decisions(state="probing") - probes
    assert 0 < handed_over <= probes
    assert scene.daemon.metric("backoff_level") == LEVEL_CAP

    redis.resume()
    wait_until(lambda: scene.daemon.metric("backoff_state", state="flowing") == 1, PATIENCE_S, "it to flow again")
    wait_until(lambda: 0 < sum(scene.ready()) <= max_in_flight, PATIENCE_S, "messages to be asked for again")
    finished = scene.total("finish_count")
    wait_until(lambda: scene.total("finish_count") > finished + max_in_flight, PATIENCE_S, "full speed")
    # Not at any moment: at full speed a busy machine may be slower than the time-out now and then.
    wait_until(lambda: scene.daemon.metric("backoff_level") == 0, PATIENCE_S, "no level to be left")


def asks_for_one_at_most(scene: Scene, until_probes: int) -> bool:
    probes, ready = scene.decisions(state="probing"), scene.ready()
    assert max(ready) <= 1
    # The nsqds are asked one after the other: only within one probe do their numbers belong together.
    assert sum(ready) <= 1 or scene.decisions(state="probing") > probes
    return probes >= until_probes


def checks_the_log(scene: Scene) -> None:
    """States, levels and reasons as they happened, each change one of the table's, and as many as in the metrics."""
    said = scene.daemon.said("consumer.topic")
    states = ["flowing", *(line["event"].rpartition(".")[2] for line in said)]
    reasons = [line["reason"] for line in said]
    for before, after, reason in zip(states, states[1:], reasons, strict=False):
        known = {(str(t.to), str(t.reason)) for t in TRANSITIONS[before].values() if t is not None}
        assert (after, reason) in known
    assert reasons[0] == "failed"
    assert {"failed", "backoff-over", "probe-failed", "probe-succeeded", "recovered"} <= set(reasons)
    levels = [line["backoff_level"] for line in said]
    assert max(levels) == LEVEL_CAP
    # By default a failed probe raises it by one, and a good one lowers it by one.
    assert all(abs(after - before) <= 1 for before, after in itertools.pairwise(levels))
    assert levels[-1] == 0
    failures = scene.daemon.said("consumer.store.failed")
    assert {line["reason"] for line in failures} <= {"redis-timeout", "redis-connection"}
    assert len(said) == scene.decisions()


def test_a_topic_does_not_sleep_on_when_redis_has_answered_the_scheduler_again(stage: Stage) -> None:
    nsqd = stage.nsqd()
    stage.receiver()
    daemon = stage.daemon({"backoff": {"base": "10m", "max_duration": "10m", "jitter": "none"}})
    daemon.start()
    publisher = stage.publisher(nsqd)
    stage.store.pause()
    publisher.publish(10)
    wait_until(lambda: daemon.metric("backoff_level", topic=STAGE_TOPIC) == 1, PATIENCE_S, "the topic to back off")
    wait_until(lambda: "[-] store: failing" in daemon.get("/readyz?verbose")[1], PATIENCE_S, "the scheduler to fail")
    stage.store.resume()
    stage.wait_until_all_is_delivered()
    assert daemon.metric("backoff_decisions_total", reason="answered-elsewhere") == 1
    stage.check()
