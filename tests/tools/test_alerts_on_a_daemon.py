"""What alerts ask for is what a daemon in trouble has: their expressions on a real Prometheus, without the waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from support.daemon import Daemon, run_command
from support.ports import HOST
from support.prometheus import CONFIG, Prometheus
from support.receiver import Answer
from support.stage import TOPIC, Stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers]

EXPRESSIONS: Mapping[str, str] = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load((CONFIG / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
}


class Scene:
    def __init__(self, stage: Stage, daemon: Daemon, prometheus: Prometheus) -> None:
        self.stage, self.daemon, self.prometheus = stage, daemon, prometheus

    def holds(self, alert: str, **labels: str) -> bool:
        found = self.prometheus.query(EXPRESSIONS[alert])
        return any(labels.items() <= each["metric"].items() for each in found)

    def until(self, alert: str, **labels: str) -> None:
        wait_until(lambda: self.holds(alert, **labels), PATIENCE_S, f"{alert} of {labels}")

    def publish(self, topic: str, *bodies: bytes) -> None:
        self.stage.nsqds[0].publish_many(topic, bodies)

    def run(self, *words: str) -> None:
        done = run_command(*words, "-c", str(self.daemon.config_path))
        assert done.returncode == 0, done.stderr


@pytest.fixture
def scene(
    promtool: Path,  # comes with Prometheus: where it is missing the test is skipped
    tmp_path: Path,
) -> Iterator[Scene]:
    """Sinks that accept, refuse and are gone; a route that takes nothing; little room."""
    stage = Stage(tmp_path)
    try:
        nsqd = stage.nsqd()
        nsqd.create_channel("lost", "nsqdigest")
        for answer in (Answer(), Answer(400), Answer(410)):
            stage.receiver().answer(answer)
        common = {"topic": TOPIC, "timeline": "{timeline}"}
        daemon = stage.daemon(
            {
                "sinks.second": {"retry_cap": "60ms"},
                "limits": {"timelines": 20},
                "policies.default": {"capacity": 2, "minimum_delay": "1m", "maximum_delay": "1h"},
                "backoff": {"base": "10ms"},
            },
            [
                {**common, "name": "hook", "sink": "hook"},
                {**common, "name": "second", "sink": "second"},
                {**common, "name": "third", "sink": "third"},
                {"name": "lost", "topic": "lost", "timeline": "{timeline}", "match": {"kind": "eror"}, "sink": "hook"},
            ],
        )
        token = tmp_path / "token"
        token.write_text("sesame-open-the-door", "utf-8")
        token.chmod(0o600)
        daemon.admin = {"token": f"file:{token}"}
        daemon.start()
        with Prometheus(tmp_path / "prometheus", [f"{HOST}:{daemon.ports[0]}"]) as prometheus:
            wait_until(lambda: prometheus.query("nsqdigest_store_up == 1"), PATIENCE_S, "the first scrape")
            yield Scene(stage, daemon, prometheus)
    finally:
        stage.end()


def test_no_alert_holds_of_a_daemon_that_is_well_and_each_trouble_has_one(scene: Scene) -> None:
    assert {alert for alert in EXPRESSIONS if scene.holds(alert)} == set()
    _on_the_way_in_and_out(scene)
    _of_what_it_works_with(scene)


def _on_the_way_in_and_out(scene: Scene) -> None:
    events = [b'{"timeline": "a"}'] * 40
    scene.publish(TOPIC, *events, b"no json")
    scene.publish("lost", b'{"timeline": "a", "kind": "error"}')
    scene.until("NsqdigestDigestsBuried", sink="second", reason="refused")
    scene.until("NsqdigestSinkRefusing", sink="second")
    scene.until("NsqdigestSinkStopped", sink="third")
    scene.until("NsqdigestDeadLetters", topic=TOPIC, reason="not-json")
    scene.until("NsqdigestUnmatched", topic="lost")
    scene.until("NsqdigestDroppedByCapacity", route="hook")
    scene.publish(TOPIC, *(b'{"timeline": "%d"}' % number for number in range(30)))
    scene.until("NsqdigestTooManyTimelines", route="hook")
    assert not scene.holds("NsqdigestUnmatched", topic=TOPIC)
    assert not scene.holds("NsqdigestSinkRefusing", sink="hook")
    scene.run("pause", "sink", "hook")
    scene.until("NsqdigestPaused", kind="sink", name="hook")


def _of_what_it_works_with(scene: Scene) -> None:
    scene.stage.nsqds[0].kill()
    scene.until("NsqdigestNoConnection", topic=TOPIC)
    scene.stage.store.kill()
    scene.until("NsqdigestStoreDown")
    scene.daemon.kill()
    scene.until("NsqdigestDown", instance=f"{HOST}:{scene.daemon.ports[0]}")
    scene.until("NsqdigestAllDown")
