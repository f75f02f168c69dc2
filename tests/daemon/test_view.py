"""What a running daemon answers under /api, and `status`, `explain` and the other daemons that rest on it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nsqdigest.base.errors import EXIT_NO, EXIT_UNREACHABLE
from support.daemon import Daemon, installed_command, run_command
from support.ports import free_port
from support.receiver import Answer
from support.stage import NAMESPACE, TOPIC, Stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

HOSTILE = "eve\u202e<script>"
"""No event's timeline has a control character: such an event is a dead letter."""
LONG = {"immediate": False, "minimum_delay": "1h", "increment_delay": "1m", "maximum_delay": "5h"}


class World(NamedTuple):
    stage: Stage
    daemon: Daemon

    def get(self, path: str) -> Any:
        return answer_of(self.daemon, path)


def answer_of(daemon: Daemon, path: str) -> Any:
    """Of a question that can be answered."""
    status, text = daemon.get(f"/api/{path}")
    assert status == 200, text
    return json.loads(text)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Route `events` delivers at once, `late` gathers for hours, `refused` meets 400 and `busy` 503."""
    stage = Stage(tmp_path_factory.mktemp("view"))
    try:
        nsqd = stage.nsqd()
        receivers = [stage.receiver() for _ in range(3)]
        receivers[1].answer(Answer(400, text="bad blocks"))
        receivers[2].answer(Answer(503))
        retried = {"retry_base": "1h", "retry_cap": "1h"}
        routes = [
            {"name": name, "topic": TOPIC, "match": {"to": name}, "timeline": "{timeline}", "key": "{id}", **more}
            for name, more in {
                "events": {"sink": "hook"},
                "late": {"sink": "hook", "policy": "long"},
                "refused": {"sink": "second"},
                "busy": {"sink": "third"},
            }.items()
        ]
        daemon = stage.daemon({"sinks.third": retried, "policies.long": LONG}, routes)
        daemon.start()
        events = [("events", "ada"), ("refused", "ada"), ("busy", "ada"), ("late", HOSTILE)]
        events += [("late", f"user:{number}") for number in range(120)] + [("late", "user:7")]
        nsqd.publish_many(
            TOPIC,
            [
                json.dumps({"to": to, "timeline": name, "id": f"{number}", "n": number}).encode()
                for number, (to, name) in enumerate(events)
            ],
        )
        world = World(stage, daemon)
        wait_until(lambda: settled(world), PATIENCE_S, "each digest to have met its receiver")
        yield world
    finally:
        stage.end()


def settled(world: World) -> bool:
    status = world.get("status")
    routes = {route["name"]: route for route in status["routes"]}
    sinks = {sink["name"]: sink for sink in status["sinks"]}
    is_there = (routes["late"]["waiting"], sinks["second"]["dead"], sinks["third"]["waits"]) == (121, 1, 1)
    return is_there and sinks["hook"]["last_delivery_ms"] is not None


# -- status and history


def test_status_shows_every_part_and_the_worst_first(world: World) -> None:
    status = world.get("status")
    assert status["health"] == "trouble"
    assert re.match(r"Sink (second|third) refuses since \d\d:\d\d: (400|503)", status["verdict"]), status["verdict"]
    ((topic,), store) = status["topics"], status["store"]
    assert (topic["name"], topic["backoff"]["state"], topic["depth"]) == (TOPIC, "flowing", None)
    assert [each["is_connected"] for each in topic["connections"]] == [True]
    assert topic["connections"][0]["sources"] == ["file"]
    assert topic["received_per_s"] == status["rates"]["events_in"] > 0
    assert (store["health"], store["version"][0].isdigit(), store["partitions"]) == ("well", True, 1)
    sinks = {sink["name"]: sink for sink in status["sinks"]}
    assert (sinks["hook"]["state"], sinks["hook"]["why"]) == ("delivering", "")
    assert (sinks["second"]["state"], sinks["second"]["why"], sinks["second"]["buried"]) == (
        "refusing", "400 Bad Request", 1,
    )  # fmt: skip
    assert (sinks["third"]["why"], sinks["third"]["waits"]) == ("503 Service Unavailable", 1)
    assert sinks["third"]["backoff"]["next_probe_ms"] is None or sinks["third"]["backoff"]["level"] > 0
    assert status["dead_digests"] == 1
    assert [check["name"] for check in status["checks"]][:3] == ["running", "store", f"topic {TOPIC}"]


def test_the_token_and_passwords_are_nowhere_in_it(world: World) -> None:
    assert world.get("status")["has_token"] is False
    assert "@" not in world.get("status")["store"]["redis"]


def test_history_has_one_value_for_each_interval(world: World) -> None:
    wait_until(lambda: sum(world.get("history")["events_in"]) > 0, PATIENCE_S, "an interval with events")
    history = world.get("history")
    lists = [value for value in history.values() if isinstance(value, list)]
    assert len(lists) == 8
    assert len({len(each) for each in lists}) == 1
    assert history["interval_s"] == 5
    total = sum(history["events_in"]) * history["interval_s"]
    assert total == pytest.approx(125, rel=0.2)
    assert history["waiting"][-1] >= 121


# -- timelines


def test_timelines_come_in_the_order_in_which_they_are_due(world: World) -> None:
    answer = world.get("timelines?route=late&limit=500")
    assert (answer["total"], answer["is_partial"]) == (121, False)
    at_ms = [each["at_ms"] for each in answer["timelines"]]
    assert at_ms == sorted(at_ms)
    assert {each["state"] for each in answer["timelines"]} == {"waiting"}
    assert answer["timelines"][-1]["timeline"] == "user:7", "its second record postpones it"
    assert len(world.get("timelines?limit=7")["timelines"]) == 7


def test_timelines_by_text_state_and_sink(world: World) -> None:
    def names(query: str) -> list[str]:
        return sorted(each["timeline"] for each in world.get(f"timelines?{query}")["timelines"])

    assert names("text=user:11") == sorted(["user:11", *(f"user:11{digit}" for digit in range(10))])
    assert names("state=retrying") == names("sink=third") == ["ada"]
    assert names("state=retrying&state=due&route=late") == []
    assert names("text=script") == [HOSTILE]
    assert names("text=nobody") == []


def test_one_timeline_with_its_records_and_the_arithmetic(world: World) -> None:
    answer = world.get("timeline?route=late&timeline=user:7")
    assert answer["timeline"]["records"] == len(answer["records"]) == 2
    assert json.loads(answer["records"][0]["value"])["timeline"] == "user:7"
    explanation = answer["explanation"]
    assert explanation["due_ms"] == answer["timeline"]["at_ms"]
    assert "postponed by 2 records" in explanation["sentence"]
    began_ms, *_, due_ms = (reason["at_ms"] for reason in explanation["reasons"])
    assert due_ms == explanation["due_ms"] == began_ms + 62 * 60_000
    assert answer["sink"] == "hook"


def test_a_timeline_that_waits_for_another_attempt(world: World) -> None:
    answer = world.get("timeline?route=busy&timeline=ada")
    assert (answer["timeline"]["state"], answer["digest"]["attempts"], answer["digest"]["records"]) == (
        "retrying",
        1,
        1,
    )
    assert answer["digest_records"][0]["key"] == "2"
    assert [(each["outcome"], each["status"], each["cause"]) for each in answer["deliveries"]] == [
        ("unavailable", 503, "503 Service Unavailable")
    ]
    assert "as attempt 2 of its digest" in answer["explanation"]["sentence"]


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("timeline?timeline=nobody", 404, 'there is no timeline "nobody"'),
        ("timeline?timeline=ada&route=nowhere", 404, 'there is no route "nowhere"'),
        ("timelines?sink=nowhere", 404, 'there is no sink "nowhere"'),
        ("timeline", 400, "timeline is missing"),
        ("timelines?limt=5", 400, 'did you mean "limit"?'),
        ("timelines?limit=0", 400, "limit is a number from 1 to 500"),
        ("timelines?limit=٣", 400, "limit is a number from 1 to 500"),
        ("timelines?state=asleep", 400, "state is one of leased, due, retrying, waiting, idle"),
        ("timeline?timeline=" + "x" * 1025, 400, "timeline is longer than 1024 bytes"),
        ("deliveries?text=x", 400, '"text" is no parameter'),
    ],
)
def test_what_cannot_be_answered(world: World, path: str, status: int, text: str) -> None:
    got, answer = world.daemon.get("/api/" + path.replace("٣", "%D9%A3"))
    assert got == status
    assert text in json.loads(answer)["error"]


# -- deliveries and dead digests


def test_deliveries_are_remembered_newest_first(world: World) -> None:
    every = world.get("deliveries")["deliveries"]
    assert [each["at_ms"] for each in every] == sorted((each["at_ms"] for each in every), reverse=True)
    assert {(each["route"], each["outcome"]) for each in every} == {
        ("events", "delivered"), ("refused", "refused"), ("busy", "unavailable"),
    }  # fmt: skip
    refused = world.get("deliveries?route=refused")["deliveries"]
    assert [(each["attempt"], each["status"]) for each in refused] == [(3, 400), (2, 400), (1, 400)]
    assert {each["cause"] for each in refused} == {"400 Bad Request"}
    assert world.get("deliveries?sink=second&limit=1")["deliveries"] == refused[:1]
    assert "bad blocks" not in json.dumps(every), "what a receiver answers may quote events"


def test_dead_digests(world: World) -> None:
    answer = world.get("dead")
    (dead,) = answer["dead"]
    assert (answer["total"], answer["is_partial"]) == (1, False)
    assert (dead["route"], dead["timeline"], dead["sink"], dead["attempts"]) == ("refused", "ada", "second", 3)
    assert (dead["status"], dead["cause"]) == (400, "400 Bad Request")
    assert "bad blocks" in dead["answer"]
    assert world.get("dead?sink=hook")["dead"] == []
    assert world.get("dead?route=refused")["dead"] == [dead]


# -- the commands


def command(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(*words, "-c", str(world.daemon.config_path))


def test_status_as_a_command(world: World) -> None:
    done = command(world, "status")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Sink ")
    assert f"\n{TOPIC} " in done.stdout
    answered = json.loads(command(world, "status", "--json").stdout)
    assert answered.keys() == world.get("status").keys()


def test_explain_as_a_command(world: World) -> None:
    done = command(world, "explain", "user:7")
    assert (done.returncode, done.stderr) == (0, "")
    assert "user:7, of route late" in done.stdout
    assert "2 records postpone it by increment_delay 1m each: + 2m" in done.stdout
    answered = json.loads(command(world, "explain", "user:7", "--json").stdout)
    assert answered["due_in_s"] == pytest.approx(3700, abs=120)
    assert answered["reasons"][-1]["at"] == answered["due"]


def test_explain_shows_a_hostile_name_as_text(world: World) -> None:
    done = command(world, "explain", HOSTILE)
    assert done.returncode == 0
    assert "\u202e" not in done.stdout
    assert "eve\\u202e<script>" in done.stdout


def test_explain_of_what_is_not_there(world: World) -> None:
    done = command(world, "explain", "nobody")
    assert (done.returncode, done.stdout) == (EXIT_NO, "")
    assert 'there is no timeline "nobody"' in done.stderr


@pytest.mark.parametrize("listen", ["", "nobody", "nsqd"])
def test_status_where_no_daemon_answers(world: World, tmp_path: Path, listen: str) -> None:
    nsqd = world.stage.nsqds[0].http_address
    address, text = {
        "": ("", 'admin.listen is "" (off), so no command can reach the daemon'),
        "nobody": (f"127.0.0.1:{free_port()}", "is it running?"),
        "nsqd": (f"{nsqd[0]}:{nsqd[1]}", "but it is no nsqdigest; write the address of the daemon"),
    }[listen]
    path = tmp_path / "elsewhere.toml"
    path.write_text(re.sub(r'(?m)^listen = ".*"', f'listen = "{address}"', world.daemon.config_path.read_text()))
    done = run_command("status", "-c", str(path))
    assert (done.returncode, done.stdout) == (EXIT_UNREACHABLE, "")
    assert text in " ".join(done.stderr.split())


# -- status --watch


class Watching:
    """The command on a terminal of its own."""

    def __init__(self, world: World, *words: str) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            os.execve(
                installed_command(),
                ["nsqdigest", "status", "--watch", *words, "-c", str(world.daemon.config_path)],
                {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24", "NO_COLOR": "1"},
            )
        self.text = ""

    def read(self, within_s: float = 0.1) -> str:
        until_s = time.monotonic() + within_s
        while select.select([self._fd], [], [], max(0.0, until_s - time.monotonic()))[0]:
            try:
                self.text += os.read(self._fd, 65536).decode()
            except OSError:  # it has ended
                break
        return self.text

    def screens(self) -> list[str]:
        return self.read().split("\x1b[H")[1:]

    def end(self, number: signal.Signals) -> int:
        os.kill(self.pid, number)
        while True:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.read()
                os.close(self._fd)
                return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_watch_draws_in_place_and_gives_the_terminal_back(world: World, number: signal.Signals) -> None:
    watching = Watching(world)
    wait_until(lambda: len(watching.screens()) >= 2, PATIENCE_S, "a second screen")
    assert watching.end(number) == 0
    assert watching.text.startswith("\x1b[?1049h")
    assert watching.text.endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
    for screen in watching.text.split("\x1b[H")[1:]:
        lines = screen.split("\r\n")
        assert len(lines) <= 24
        assert lines[0].startswith("Sink ")
    assert "Traceback" not in watching.text


def test_watch_into_a_pipe_prints_one_screen_after_the_other(world: World) -> None:
    words = [str(installed_command()), "status", "--watch", "--json", "-c", str(world.daemon.config_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        answers = [json.loads(running.stdout.readline()) for _ in range(2)]
        running.stdout.close()
        running.wait(PATIENCE_S)
        assert running.stderr.read() == ""
    assert answers[0]["now_ms"] < answers[1]["now_ms"]


# -- other daemons, and a Redis that is away


def test_daemons_know_each_other_until_they_end(world: World) -> None:
    routes = [dict(route) for route in world.daemon.routes]
    second = world.stage.daemon({**world.daemon.settings, "limits": {"depth": 7}}, routes)
    second.start()
    wait_until(lambda: len(answer_of(second, "status")["daemons"]) == 2, PATIENCE_S, "it to know the first")
    first, other = sorted(answer_of(second, "status")["daemons"], key=lambda each: not each["is_this"])
    assert (first["pid"], first["differs"]) == (second.pid, False)
    assert (other["pid"], other["differs"], other["is_this"]) == (world.daemon.pid, True, False)
    key = f"{{{NAMESPACE}:0}}:daemons"
    assert world.stage.store.cli("HLEN", key) == 2
    second.term()
    assert second.wait(PATIENCE_S) == 0
    assert world.stage.store.cli("HLEN", key) == 1
    assert 0 < world.stage.store.cli("PTTL", key) <= 60_000


def test_the_log_has_the_same_state_after_usr2(world: World) -> None:
    world.daemon.signal(signal.SIGUSR2)
    wait_until(lambda: world.daemon.said("daemon.state.sink"), PATIENCE_S, "the state in the log")
    assert world.daemon.said("daemon.state.verdict")[-1]["verdict"].startswith("Sink ")
    assert {line["sink"]: line["state"] for line in world.daemon.said("daemon.state.sink")} == {
        "hook": "delivering", "second": "refusing", "third": "refusing",
    }  # fmt: skip
    assert {line["route"] for line in world.daemon.said("daemon.state.route")} == {"events", "late", "refused", "busy"}
