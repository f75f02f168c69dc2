"""What Prometheus' own tool says of /metrics, and that an alert on the very first burial fires."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.daemon import Daemon
from support.receiver import OK, Answer
from support.stage import Stage, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

__all__ = ["stage"]

BURIED = 'nsqdigest_digests_buried_total{reason="refused",sink="hook"}'
RULES = """\
groups:
  - name: nsqdigest
    rules:
      - alert: DigestBuried
        expr: increase(nsqdigest_digests_buried_total[5m]) > 0
"""


@pytest.fixture
def daemon(stage: Stage) -> Daemon:
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon({"sinks.hook": {"retry_cap": "60ms"}, "backoff": {"max_duration": "50ms", "base": "10ms"}})
    daemon.start()
    return daemon


def ran(promtool: Path, *words: str, text: str = "") -> str:
    done = subprocess.run(
        [promtool, *words], input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_promtool_finds_nothing_to_complain_about(stage: Stage, daemon: Daemon, promtool: Path) -> None:
    assert ran(promtool, "check", "metrics", text=daemon.get("/metrics")[1]) == ""
    stage.receivers[0].answer(OK)
    stage.publisher(stage.nsqds[0], timelines=3).publish(9)
    stage.wait_until_all_is_delivered()
    assert ran(promtool, "check", "metrics", text=daemon.get("/metrics")[1]) == ""


def test_an_alert_on_the_first_burial_ever_fires(stage: Stage, daemon: Daemon, promtool: Path, tmp_path: Path) -> None:
    """As Prometheus sees the daemon: scraped before it, and after it."""
    before = value_of(daemon)
    stage.receivers[0].answer(Answer(400))
    stage.publisher(stage.nsqds[0], timelines=1).publish(1)
    wait_until(lambda: daemon.metric("digests_buried_total") == 1, 15, "the digest to be buried")
    after = value_of(daemon)
    assert (before, after) == ("0.0", "1.0")
    fires = [{"exp_labels": {"reason": "refused", "sink": "hook"}}]
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": BURIED, "values": f"{before} {before} {after} {after}"}],
                "alert_rule_test": [
                    {"eval_time": "1m", "alertname": "DigestBuried", "exp_alerts": []},
                    {"eval_time": "2m", "alertname": "DigestBuried", "exp_alerts": fires},
                ],
            }
        ],
    }
    (tmp_path / "rules.yml").write_text(RULES, "utf-8")
    (tmp_path / "test.yml").write_text(json.dumps(test), "utf-8")  # JSON is YAML, too
    assert "SUCCESS" in ran(promtool, "test", "rules", str(tmp_path / "test.yml"))


def value_of(daemon: Daemon) -> str:
    """As it stands in the text: "" where there is no such series."""
    for line in daemon.get("/metrics")[1].splitlines():
        if line.startswith("nsqdigest_digests_buried_total{") and 'sink="hook"' in line and 'reason="refused"' in line:
            return line.rpartition(" ")[2]
    return ""
