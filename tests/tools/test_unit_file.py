"""config/nsqdigest.service: systemd takes it as it is, and it asks for few rights."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.daemon import installed_command
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

UNIT = Path(__file__).parents[2] / "config" / "nsqdigest.service"
NOTIFY_RELOAD_SINCE = 253
MOST_EXPOSED = 2.0
"""By systemd's own measure, from 0 (nothing is exposed) to 10."""


def version() -> int:
    found = re.match(r"systemd (\d+)", analyze("--version"))
    assert found is not None
    return int(found[1])


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    text = UNIT.read_text("utf-8").replace("/usr/local/bin/nsqdigest", str(installed_command()))
    path = tmp_path / UNIT.name
    path.write_text(text, "utf-8")
    return path


def analyze(*words: str) -> str:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong(unit: Path) -> None:
    found = analyze("verify", str(unit))
    if version() < NOTIFY_RELOAD_SINCE:
        found = re.sub(r"\S+: Failed to parse service type, ignoring: notify-reload\n", "", found)
    assert found == ""


def test_a_systemd_that_cannot_reload_by_notification_takes_the_type_before() -> None:
    types = re.findall(r"^Type=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE)
    assert types == ["notify", "notify-reload"]


def test_it_is_little_exposed(unit: Path) -> None:
    found = re.search(r"exposure level for \S+: ([0-9.]+)", analyze("security", "--offline=true", str(unit)))
    assert found is not None
    assert float(found[1]) <= MOST_EXPOSED


def test_its_stop_is_longer_than_a_drain_and_its_watchdog_no_shorter_than_a_lease() -> None:
    text = UNIT.read_text("utf-8")
    assert "TimeoutStopSec=30s" in text, "nsq.drain_timeout is 20s"
    assert "WatchdogSec=60s" in text, "scheduler.lease is 60s"
