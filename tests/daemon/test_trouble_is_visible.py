"""Trouble on the remedy shows in /readyz, the log's state (USR2), the metrics, `doctor` and `audit`."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from support.daemon import Daemon, run_command
from support.receiver import OK, Answer
from support.stage import TOPIC, Stage, stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

HASTY = {"sinks.hook": {"retry_cap": "60ms"}, "backoff": {"base": "10ms", "max_duration": "50ms"}}
PATIENT = {"sinks.hook": {"retry_base": "5s", "retry_cap": "5s"}, "backoff": {"max_duration": "30s", "base": "10s"}}

__all__ = ["stage"]


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISIBLE_TOKEN", "sesame-open-the-door")


def started(stage: Stage, settings: dict[str, dict[str, Any]], answer: Answer, timelines: int = 8) -> Daemon:
    """Every timeline gets one event; the receiver answers the same to everything."""
    nsqd, receiver = stage.nsqd(), stage.receiver()
    receiver.answer(answer)
    daemon = stage.daemon(settings)
    daemon.admin = {"token": "env:VISIBLE_TOKEN"}
    daemon.start()
    stage.publisher(nsqd, timelines=timelines).publish(timelines)
    return daemon


def line_of(daemon: Daemon, name: str) -> str:
    status, text = daemon.get("/readyz?verbose")
    assert status == 200, "a sink in trouble does not make the daemon unready"
    return next((line for line in text.splitlines() if line[4:].startswith(f"{name}: ")), "")


def until_line(daemon: Daemon, name: str, pattern: str) -> None:
    wait_until(lambda: re.fullmatch(pattern, line_of(daemon, name)), 15, f"{pattern!r}, not {line_of(daemon, name)!r}")


def states(daemon: Daemon) -> list[str]:
    return [state for state in ("delivering", "behind", "refusing", "paused", "stopped")
            if daemon.metric("sink_state", sink="hook", state=state)]  # fmt: skip


def doctors_sink(daemon: Daemon) -> list[tuple[str, str]]:
    checks = json.loads(run_command("doctor", "-c", str(daemon.config_path), "--json").stdout)["checks"]
    return [(check["state"], check["detail"]) for check in checks if check["what"] == "admin sink hook"]


def states_said(daemon: Daemon) -> dict[str, tuple[bool, str]]:
    """By USR2."""
    daemon.signal(signal.SIGUSR2)
    wait_until(lambda: [each for each in daemon.said("daemon.state") if each.get("check") == "sink hook"], 5)
    return {each["check"]: (each["well"], each["detail"]) for each in daemon.said("daemon.state") if "check" in each}


def test_a_receiver_that_answers_400_to_everything(stage: Stage) -> None:
    daemon = started(stage, HASTY, Answer(400))
    until_line(daemon, "sink hook", r"\[!\] sink hook: refusing since \d\d:\d\d \(8 digests buried: 400 Bad Request\)")
    assert states(daemon) == ["refusing"]
    wait_until(lambda: daemon.metric("dead_digests", sink="hook") == 8, 10, "the dead ones to be counted")
    assert daemon.metric("last_delivery_timestamp_seconds", sink="hook") == 0
    assert states_said(daemon)["sink hook"][0] is False
    ((state, detail),) = doctors_sink(daemon)
    assert (state, detail.partition(" since ")[0]) == ("warn", "refusing")
    audited = run_command("audit", "-c", str(daemon.config_path))
    assert audited.returncode == 0
    assert "8 of 8 records never delivered: they are in the dead list" in audited.stdout


def test_a_receiver_that_answers_500_to_everything(stage: Stage) -> None:
    daemon = started(stage, PATIENT, Answer(500), timelines=40)
    until_line(
        daemon, "sink hook", r"\[!\] sink hook: refusing since \d\d:\d\d \(40 digests wait: 500 Internal Server Error\)"
    )
    assert states(daemon) == ["refusing"]
    before_s = daemon.metric("oldest_due_seconds", route="events")
    wait_until(lambda: daemon.metric("oldest_due_seconds", route="events") > before_s > 0, 10, "it to grow")
    assert daemon.metric("timelines", route="events") == 40
    ((state, _),) = doctors_sink(daemon)
    assert state == "warn"


def test_a_receiver_that_is_gone(stage: Stage) -> None:
    daemon = started(stage, {}, Answer(410))
    until_line(daemon, "sink hook", r"\[!\] sink hook: stopped since \d\d:\d\d \(8 digests wait: 410 Gone\)")
    assert states(daemon) == ["stopped"]
    said = {
        name
        for name in ("stopped", "flowing", "probing", "ramping", "backoff")
        if daemon.said(f"scheduler.sink.{name}")
    }
    assert said == {"stopped"}, "nothing is probed, and nothing is back"
    wait_until(lambda: daemon.metric("oldest_due_seconds", route="events") > 0, 10, "what is overdue to show")


def test_it_is_over_with_the_first_digest_that_is_accepted(stage: Stage) -> None:
    daemon = started(stage, HASTY, Answer(503), timelines=1)
    until_line(daemon, "sink hook", r"\[!\] sink hook: refusing since .*: 503 Service Unavailable\)")
    stage.receivers[0].answer(OK)
    until_line(daemon, "sink hook", r"\[\+\] sink hook: delivering")
    assert states(daemon) == ["delivering"]
    # The state is over before Redis has closed the digest, the rest comes after.
    wait_until(lambda: daemon.metric("digest_delay_seconds_count", route="events") == 1, 5, "the digest to be counted")
    assert daemon.metric("last_delivery_timestamp_seconds", sink="hook") > 1e9


@pytest.mark.parametrize(("kind", "name"), [("topic", TOPIC), ("route", "events"), ("sink", "hook")])
def test_what_an_operator_paused_says_so(stage: Stage, kind: str, name: str) -> None:
    daemon = started(stage, {}, OK, timelines=1)
    stage.wait_until_all_is_delivered()
    assert daemon.metric("paused") == 0
    assert run_command("pause", kind, name, "-c", str(daemon.config_path)).returncode == 0
    assert "paused since " in line_of(daemon, f"{kind} {name}")
    assert line_of(daemon, f"{kind} {name}").startswith("[!]")
    assert re.search(rf'nsqdigest_paused{{kind="{kind}",name="{name}"}} 1', daemon.get("/metrics")[1])
    assert daemon.metric("paused") == 1
    checks = json.loads(run_command("doctor", "-c", str(daemon.config_path), "--json").stdout)["checks"]
    assert [check["state"] for check in checks if check["what"] == f"admin {kind} {name}"] == ["warn"]
    assert states_said(daemon)[f"{kind} {name}"][0] is False
    assert run_command("resume", kind, name, "-c", str(daemon.config_path)).returncode == 0
    assert "paused" not in line_of(daemon, f"{kind} {name}")
    assert daemon.metric("paused") == 0


def test_a_topic_that_backs_off_is_not_called_paused(stage: Stage) -> None:
    daemon = started(stage, {"backoff": {"base": "10m", "max_duration": "10m", "jitter": "none"}}, OK, timelines=1)
    stage.wait_until_all_is_delivered()
    stage.hold_writes()
    stage.publisher(stage.nsqds[0]).publish(1)
    wait_until(lambda: daemon.metric("backoff_state", state="backoff") == 1, 10, "it to back off")
    assert "backoff" in daemon.get("/readyz?verbose")[1]
    assert "paused" not in daemon.get("/readyz?verbose")[1]
    stage.let_writes_go()


def test_a_route_that_the_file_does_not_have_any_more_is_warned_about(stage: Stage) -> None:
    daemon = started(stage, {}, Answer(410), timelines=3)
    until_line(daemon, "sink hook", r"\[!\] sink hook: stopped .*")
    wait_until(lambda: daemon.metric("records_added_total", route="events") == 3, 10, "all of them to be stored")
    assert daemon.metric("orphan_records") == 0
    daemon.stop()
    daemon.routes = [{**daemon.routes[0], "name": "renamed"}]
    daemon.start()
    wait_until(lambda: daemon.said("store.route.orphan"), 10, "the warning")
    (said,) = daemon.said("store.route.orphan")
    assert (said["level"], said["route"], said["records"]) == ("warning", "events", 3)
    assert "nsqdigest adopt events --to ROUTE" in said["hint"]
    assert "nsqdigest delete --route events" in said["hint"]
    wait_until(lambda: daemon.metric("orphan_records") == 3, 5, "the gauge")
