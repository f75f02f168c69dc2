"""While Redis is away a daemon still says how it is, and what it cannot answer it refuses at once."""

from __future__ import annotations

import json

import pytest

from nsqdigest.base.errors import EXIT_UNREACHABLE
from support.daemon import Daemon, run_command
from support.stage import Stage, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration
__all__ = ["stage"]


def test_status_goes_on_and_the_rest_is_refused_at_once(stage: Stage) -> None:
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon({"redis": {"timeout": "5m"}})
    daemon.start()
    stage.store.kill()
    wait_until(lambda: json.loads(daemon.get("/api/status")[1])["health"] == "failing", PATIENCE_S, "it to be noticed")
    view = json.loads(daemon.get("/api/status")[1])
    assert view["verdict"].startswith("Redis does not answer since ")
    assert view["store"]["failing_since_ms"] <= view["now_ms"]
    for path in ("timelines", "timeline?timeline=a", "dead"):
        status, text = daemon.get(f"/api/{path}")  # which waits for a fifth of the time-out of Redis at most
        assert (status, "Redis cannot be read" in json.loads(text)["error"]) == (503, True)
    assert json.loads(daemon.get("/api/deliveries")[1])["deliveries"] == []
    shown = run_command("status", "-c", str(daemon.config_path))
    assert (shown.returncode, shown.stdout.startswith("Redis does not answer")) == (0, True)
    done = run_command("explain", "a", "-c", str(daemon.config_path))
    assert (done.returncode, done.stdout) == (EXIT_UNREACHABLE, "")
    stage.store.start()
    wait_until(lambda: _verdict(daemon).startswith("Redis was emptied"), PATIENCE_S, "it to be back, without its data")
    assert json.loads(daemon.get("/api/status")[1])["health"] == "trouble"


def _verdict(daemon: Daemon) -> str:
    return str(json.loads(daemon.get("/api/status")[1])["verdict"])
