"""Commands on the store of a running daemon: `operated` is a stage with its file, and runs them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon, run_command
from support.stage import TOPIC, Stage
from support.waiting import PATIENCE_S, wait_until

HOURS = {"immediate": False, "minimum_delay": "1h", "increment_delay": "0s", "maximum_delay": "2h"}


class Operated:
    """A stage with nsqd, Redis, a receiver for the sink "hook" and one for "second", and commands on its file."""

    def __init__(self, stage: Stage, *of_nsqd: str) -> None:
        self.stage = stage
        self.nsqd = stage.nsqd(*of_nsqd)
        self.hook, self.second = stage.receiver(), stage.receiver()
        self.daemon = stage.daemon({"policies.default": HOURS})

    def patient(self, *, lease: str = "20m", timeout: str = "10m") -> None:
        """For a test that looks while a digest is being delivered: a post may last longer than all of its commands."""
        tables = {
            "scheduler": {"lease": lease},
            "sinks.hook": {"timeout": timeout},
            "sinks.second": {"timeout": timeout},
        }
        self.daemon.settings = {name: {**table, **tables.get(name, {})} for name, table in self.daemon.settings.items()}

    def start(self, *routes: dict[str, Any]) -> Daemon:
        """The daemon, with these routes or with one of the topic `TOPIC` to the sink "hook"."""
        if routes:
            self.daemon.routes = routes
        self.daemon.start()
        return self.daemon

    def publish(self, *timelines: str, **fields: Any) -> None:
        """One event for each, and waits until all are stored."""
        before = self.added()
        events = [{"timeline": name, "id": f"{name}/{number}", **fields} for number, name in enumerate(timelines)]
        self.nsqd.publish_many(TOPIC, [json.dumps(event).encode() for event in events])
        wait_until(lambda: self.added() >= before + len(events), PATIENCE_S, "the events to be stored")

    def added(self) -> int:
        return self.stage.ledger(self.daemon.routes[0]["name"]).get("added", 0)

    def run(self, *words: str, file: Path | None = None) -> subprocess.CompletedProcess[str]:
        done = run_command(*words, "-c", str(file or self.daemon.config_path))
        assert "Traceback" not in done.stdout + done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        assert done.stdout.isascii()
        return json.loads(done.stdout)


@pytest.fixture
def operated(stage: Stage) -> Operated:
    return Operated(stage)


def route(name: str, sink: str = "hook", **more: Any) -> dict[str, Any]:
    return {"name": name, "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": sink, **more}
