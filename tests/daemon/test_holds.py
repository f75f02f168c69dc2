"""Holds on real daemons: known within 5 s, whatever else is wrong."""

from __future__ import annotations
import json, time
from typing import Any
import pytest
from support.daemon import run_command
from support.stage import NAMESPACE, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration
ROUTE: dict[str, Any] = {"name": "events", "topic": TOPIC, "timeline": "{user}", "key": "{id}", "sink": "hook"}


def event(number: int, **fields: Any) -> bytes:
    return json.dumps({"user": "ada", "id": number, **fields}).encode()


def cli(daemon, *words):
    done = run_command(*words, "-c", str(daemon.config_path))
    assert done.returncode == 0, done
    return done.stdout


def added(stage, route="events"):
    return stage.ledger(route).get("added", 0)


def test_wake_ends_a_mute_although_another_route_is_damaged(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    daemon = stage.daemon(routes=[ROUTE, {**ROUTE, "name": "other", "match": {"x": "y"}}])
    daemon.start()
    cli(daemon, "mute", "ada", "--for", "1d", "--route", "events", "--yes")
    time.sleep(6)
    nsqd.publish(TOPIC, event(1))
    wait_until(lambda: stage.ledger().get("dropped:muted") == 1, 5, "muted")
    stage.store.cli("SET", f"{{{NAMESPACE}:0}}:waiting:other", "x")
    cli(daemon, "wake", "ada", "--route", "events")
    time.sleep(10)
    nsqd.publish(TOPIC, event(2))
    wait_until(lambda: added(stage) == 2, 5, "taken")
    assert stage.ledger().get("dropped:muted") == 1, "an event was dropped 10 s after the mute was ended"


def test_a_mute_is_known_within_five_seconds_with_many_routes(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    routes = [ROUTE] + [{**ROUTE, "name": f"r{n}", "match": {"x": f"y{n}"}} for n in range(39)]
    stage.store
    daemon = stage.daemon({"redis": {"partitions": 32}, "scheduler": {"lease": "60s"}}, routes)
    daemon.start()
    time.sleep(1)
    cli(daemon, "mute", "ada", "--for", "1d", "--route", "events", "--yes")
    began = time.monotonic()
    n = 0
    while True:
        n += 1
        nsqd.publish(TOPIC, event(n))
        time.sleep(1)
        text = daemon.metric("records_not_kept_total", route="events", reason="muted")
        if text or time.monotonic() - began > 60:
            break
    took = time.monotonic() - began
    assert took < 6.5, f"known after {took:.0f} s"


def test_a_foreign_hold_stops_no_daemon(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    stage.store.cli("HSET", f"{{{NAMESPACE}:0}}:holds", "events:ada", "mute \u00b2 1 0 0 me".encode())
    daemon = stage.daemon(routes=[ROUTE])
    daemon.start()
    nsqd.publish(TOPIC, event(1))
    wait_until(receiver.accepted, 5, "delivered")
    stage.check_logs()


def test_a_damaged_holds_key_stops_no_daemon(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    stage.store.cli("SET", f"{{{NAMESPACE}:0}}:holds", "x")
    daemon = stage.daemon(routes=[ROUTE])
    daemon.start()
    nsqd.publish(TOPIC, event(1))
    wait_until(receiver.accepted, 5, "delivered")


def test_by_bytes(stage: Stage) -> None:
    import subprocess, os
    from support.daemon import installed_command

    stage.receiver()
    stage.nsqd()
    d = stage.daemon(routes=[ROUTE])
    d.start()
    for env, extra in (
        ({**os.environb, b"SUDO_USER": b"\xff"}, []),
        (dict(os.environb), [b"--by", b"\xff"]),
        (dict(os.environb), [b"--by", b"a\nb"]),
    ):
        done = subprocess.run(
            [
                str(installed_command()).encode(),
                b"snooze",
                b"ada",
                b"--for",
                b"1h",
                b"-c",
                str(d.config_path).encode(),
                *extra,
            ],
            capture_output=True,
            env=env,
        )
        print(done.returncode, done.stdout, done.stderr[-300:])
        assert b"Traceback" not in done.stderr
    done = run_command("holds", "-c", str(d.config_path))
    print(done)
