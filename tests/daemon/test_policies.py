"""Policies in the real daemon: a changed one reaches what waits, and quiet hours hold back all but a flush."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon, run_command
from support.servers import Nsqd, RedisServer
from support.shifted_clock import ShiftedClock
from support.waiting import wait_until

pytestmark = pytest.mark.integration

TOPIC = "events"
HOUR_MS = 3_600_000


@pytest.fixture
def daemon(nsqd: Nsqd, redis_server: RedisServer, tmp_path: Path) -> Iterator[Daemon]:
    host, port = nsqd.tcp_address
    settings: dict[str, dict[str, Any]] = {
        "nsq": {"nsqd_tcp_addresses": [f"{host}:{port}"]},
        "redis": {"url": redis_server.url},
        "policies.default": {},
        "sinks.out": {"type": "log", "path": str(tmp_path / "digests.jsonl")},
    }
    daemon = Daemon(tmp_path, settings, [{"topic": TOPIC, "timeline": "{x}", "sink": "out"}])
    yield daemon
    daemon.kill()
    assert daemon.bugs() == []


def begin(daemon: Daemon, nsqd: Nsqd, **policy: Any) -> None:
    """The daemon with this policy, and one event in a timeline."""
    daemon.settings["policies.default"].update(policy)  # type: ignore[attr-defined]
    daemon.start()
    nsqd.publish(TOPIC, b'{"x":"t"}')
    wait_until(lambda: daemon.metric("records_added_total") == 1, 10, "the event")


def waits_until_ms(redis_server: RedisServer) -> float:
    """The score of the timeline that waits; 0: none does."""
    places = redis_server.cli("ZRANGE", f"{{nsqdigest:0}}:waiting:{TOPIC}", 0, 0, "WITHSCORES")
    return next((float(score) for _, score in places), 0.0)


def delivered(daemon: Daemon) -> float:
    return daemon.metric("digests_delivered_total")


def test_a_shorter_policy_reaches_what_waits(daemon: Daemon, nsqd: Nsqd, tmp_path: Path) -> None:
    begin(daemon, nsqd, immediate=False, minimum_delay="1h")
    wait_until(lambda: daemon.metric("timelines", state="waiting") == 1, 10, "the timeline")
    daemon.term()
    daemon.wait()
    daemon.settings["policies.default"] = {"immediate": False, "minimum_delay": "10ms", "increment_delay": "0s"}  # type: ignore[index]
    daemon.start()
    wait_until(lambda: delivered(daemon) == 1, 10, "the digest")
    assert daemon.metric("timelines_rescored_total", direction="sooner") == 1
    (line,) = daemon.said("daemon.policy.changed")
    assert (line["route"], line["policy"], line["sooner"], line["later"]) == (TOPIC, "default", 1, 0)
    assert json.loads((tmp_path / "digests.jsonl").read_text())["data"]["timeline"] == "t"


def test_in_quiet_hours_nothing_goes_out_but_what_is_flushed(daemon: Daemon, nsqd: Nsqd) -> None:
    now = datetime.now(UTC)
    window = f"{now - timedelta(hours=3):%H:%M}-{now + timedelta(hours=3):%H:%M}"
    begin(daemon, nsqd, quiet=window)
    shown = run_command("timelines", "--json", "-c", str(daemon.config_path))
    (timeline,) = json.loads(shown.stdout)
    assert timeline["state"] == "waiting"
    assert 2 * 3600 < timeline["due_in_s"] < 4 * 3600
    assert "quiet hours" in run_command("show", "t", "-c", str(daemon.config_path)).stdout
    assert (delivered(daemon), daemon.metric("oldest_due_seconds")) == (0, 0)
    assert run_command("flush", "t", "-c", str(daemon.config_path)).returncode == 0
    wait_until(lambda: delivered(daemon) == 1, 10, "the flushed digest")
    assert daemon.metric("digest_delay_seconds_sum") < 3600


def test_each_timeline_has_the_quiet_hours_of_its_own_zone(daemon: Daemon, nsqd: Nsqd, tmp_path: Path) -> None:
    """It is night in one zone, day in another."""
    now = datetime.now(UTC)
    window = f"{now - timedelta(hours=3):%H:%M}-{now + timedelta(hours=3):%H:%M}"
    begin(daemon, nsqd, quiet=window, zone="{zone}", zone_default="Etc/GMT-12")
    wait_until(lambda: delivered(daemon) == 1, 10, "the digest of the default zone")
    for name, zone in (("night", "UTC"), ("day", "Etc/GMT+12"), ("nowhere", "Mars/Olympus\\u001b[31m")):
        nsqd.publish(TOPIC, b'{"x":"%s","zone":"%s"}' % (name.encode(), zone.encode()))
    wait_until(lambda: delivered(daemon) == 3, 10, "the digests of those that are awake")
    wait_until(lambda: daemon.metric("timelines", state="waiting") == 4, 10, "the night to be put off")
    names = [json.loads(line)["data"]["timeline"] for line in (tmp_path / "digests.jsonl").read_text().splitlines()]
    assert sorted(names) == ["day", "nowhere", "t"]
    assert daemon.metric("zones_unknown_total") == 1
    assert "Mars/Olympus" in daemon.said("consumer.zone.unknown")[0]["zone"]
    listed = json.loads(run_command("timelines", "--json", "-c", str(daemon.config_path)).stdout)
    (night,) = [each for each in listed if each["timeline"] == "night"]
    assert 2 * 3600 < night["due_in_s"] < 4 * 3600
    shown = run_command("show", "night", "-c", str(daemon.config_path)).stdout
    assert "zone         UTC" in shown
    assert "nothing of it goes out but what is urgent or flushed" in shown
    assert run_command("flush", "night", "-c", str(daemon.config_path)).returncode == 0
    wait_until(lambda: delivered(daemon) == 4, 10, "the flushed digest")


@pytest.mark.parametrize("change", [{"quiet": ""}, {"zone_default": "Asia/Tokyo"}])
def test_what_was_put_off_for_the_quiet_hours_of_its_zone_goes_when_a_reload_ends_them(
    daemon: Daemon, nsqd: Nsqd, redis_server: RedisServer, change: dict[str, str]
) -> None:
    now = datetime.now(UTC)
    window = f"{now - timedelta(hours=2):%H:%M}-{now + timedelta(hours=2):%H:%M}"
    begin(daemon, nsqd, quiet=window, zone="{zone}", zone_default="UTC")
    wait_until(lambda: waits_until_ms(redis_server) > time.time() * 1000 + HOUR_MS, 10, "it to be claimed, and put off")
    assert delivered(daemon) == 0
    daemon.settings["policies.default"].update(change)  # type: ignore[attr-defined]
    daemon.write_file()
    daemon.reload()
    wait_until(lambda: delivered(daemon) == 1, 10, "the digest")


# -- daemons with two files side by side, and clocks that were wrong


FREQUENT = {"immediate": True, "minimum_delay": "2s", "increment_delay": "0s"}
RARE = {"immediate": True, "minimum_delay": "24h", "maximum_delay": "48h"}
DAY_MS = 24 * HOUR_MS


def beside(daemon: Daemon, tmp_path: Path, **policy: Any) -> Daemon:
    """A daemon with the same file but for its policy. It takes no event in."""
    (tmp_path / "beside").mkdir()
    settings = {**daemon.settings, "policies.default": policy}
    settings["nsq"] = {**settings["nsq"], "channel": "beside"}
    return Daemon(tmp_path / "beside", settings, daemon.routes)


@pytest.mark.parametrize("old_s", [0, 2 * 24 * 3600])
def test_a_longer_delay_makes_nothing_due_whatever_the_timestamps_say(daemon: Daemon, nsqd: Nsqd, old_s: int) -> None:
    daemon.routes[0]["timestamp"] = "at"  # type: ignore[index]
    daemon.settings["policies.default"].update(immediate=False, minimum_delay="1h")  # type: ignore[attr-defined]
    daemon.start()
    nsqd.publish(TOPIC, json.dumps({"x": "t", "at": int(time.time()) - old_s}).encode())
    wait_until(lambda: daemon.metric("records_added_total") == 1, 10, "the event")
    daemon.settings["policies.default"].update(minimum_delay="2h")  # type: ignore[attr-defined]
    daemon.reload()
    wait_until(lambda: daemon.said("daemon.policy.changed"), 10, "the other policy")
    (line,) = daemon.said("daemon.policy.changed")
    assert (line["sooner"], line["later"]) == (0, 1)
    assert delivered(daemon) == 0


def look_often(daemon: Daemon) -> None:
    """Four times a second."""
    daemon.settings["scheduler"] = {"lease": "1s"}  # type: ignore[index]
    daemon.settings["sinks.out"]["timeout"] = "400ms"  # type: ignore[index]


def looks(daemon: Daemon) -> float:
    """How often it looked after the store."""
    return daemon.metric("store_request_seconds_count", script="maintenance")


def test_a_daemon_with_the_old_file_brings_no_instant_forward(
    daemon: Daemon, nsqd: Nsqd, redis_server: RedisServer, tmp_path: Path
) -> None:
    """In a rolling restart it looks after timelines that the new ones have put off."""
    look_often(daemon)
    begin(daemon, nsqd, **RARE)
    wait_until(lambda: delivered(daemon) == 1, 10, "the digest")
    told_ms = waits_until_ms(redis_server)
    assert told_ms > time.time() * 1000 + DAY_MS - HOUR_MS
    old = beside(daemon, tmp_path, **FREQUENT)
    old.start()
    try:
        wait_until(lambda: looks(old) >= 3, 20, "its upkeep")
        assert waits_until_ms(redis_server) == told_ms
        assert old.metric("store_repairs_total", kind="instant") == 0
    finally:
        old.kill()


@pytest.fixture
def clock(request: pytest.FixtureRequest, tmp_path: Path) -> ShiftedClock:
    """The one of `redis_server`."""
    clock = ShiftedClock(tmp_path / "clock")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in clock.environ.items():
            patch.setenv(name, value)
        request.getfixturevalue("redis_server")
    return clock


@pytest.mark.parametrize("restarts", [False, True])
def test_what_a_clock_put_off_by_an_hour_goes_out_when_it_is_right_again(
    clock: ShiftedClock, daemon: Daemon, nsqd: Nsqd, redis_server: RedisServer, restarts: bool
) -> None:
    """Whether the daemon saw that or began later."""
    look_often(daemon)
    clock.set_ahead(3600)
    begin(daemon, nsqd, minimum_delay="1s", increment_delay="0s", maximum_delay="5s")
    wait_until(lambda: delivered(daemon) == 1, 10, "the first digest")
    if restarts:
        daemon.term()
        assert daemon.wait(10) == 0
    clock.set_ahead(0)
    if restarts:
        daemon.start()
    else:
        nsqd.publish(TOPIC, b'{"x":"t"}')
    wait_until(lambda: daemon.said("scheduler.store.clock_went_back"), 20, "the daemon to see it")
    (line,) = daemon.said("scheduler.store.clock_went_back")
    assert line["by_s"] == pytest.approx(3600, abs=10)
    wait_until(lambda: waits_until_ms(redis_server) < time.time() * 1000 + 60_000, 20, "the timeline to be due soon")


def test_a_daemon_that_comes_back_with_the_old_file_changes_nothing(
    daemon: Daemon, nsqd: Nsqd, redis_server: RedisServer, tmp_path: Path
) -> None:
    begin(daemon, nsqd, immediate=False, minimum_delay="24h", maximum_delay="48h")
    old = beside(daemon, tmp_path, immediate=False, minimum_delay="10ms", increment_delay="0s")
    old.start()
    try:
        wait_until(lambda: old.said("daemon.policy.differs"), 20, "it to see that there is another policy")
        assert waits_until_ms(redis_server) > time.time() * 1000 + DAY_MS - HOUR_MS
        assert old.said("daemon.policy.changed") == []
        daemon.term()
        assert daemon.wait(10) == 0
        wait_until(lambda: old.said("daemon.policy.changed"), 20, "the policy of all daemons that are left")
        wait_until(lambda: delivered(old) == 1, 10, "the digest")
    finally:
        old.kill()
