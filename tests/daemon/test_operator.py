"""`nsqdigest pause` and `resume` against a running daemon: what is held back, and that nothing of it is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nsqdigest.base.errors import EXIT_NO, EXIT_UNREACHABLE
from support.daemon import Daemon, run_command
from support.stage import CHANNEL, TOPIC, Stage, stage
from support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.integration

__all__ = ["stage"]

TOKEN = "a-long-enough-token"


@pytest.fixture
def daemon(stage: Stage) -> Daemon:
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon()
    token_file = daemon.config_path.parent / "token"
    token_file.parent.mkdir(parents=True, exist_ok=True)
    token_file.write_text(TOKEN, encoding="utf-8")
    token_file.chmod(0o600)
    daemon.admin = {"token": f"file:{token_file}"}
    daemon.start()
    return daemon


def said(daemon: Daemon, word: str, kind: str, name: str) -> dict[str, object]:
    done = run_command(word, kind, name, "--json", "-c", str(daemon.config_path))
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def publish(stage: Stage, *names: str) -> None:
    stage.nsqds[0].publish_many(TOPIC, [json.dumps({"timeline": name, "id": name}).encode() for name in names])


def delivered(stage: Stage) -> set[str]:
    return {value["id"] for value in stage.receivers[0].values()}


def test_a_paused_topic_takes_nothing_and_goes_on_where_it_was(stage: Stage, daemon: Daemon) -> None:
    nsqd = stage.nsqds[0]
    assert said(daemon, "pause", "topic", TOPIC)["changed"]
    wait_until(lambda: [c["ready_count"] for c in nsqd.channel_stats(TOPIC, CHANNEL)["clients"]] == [0], PATIENCE_S)
    publish(stage, "ada", "bob")
    assert not said(daemon, "pause", "topic", TOPIC)["changed"]
    assert nsqd.channel_stats(TOPIC, CHANNEL)["depth"] == 2
    assert said(daemon, "resume", "topic", TOPIC)["changed"]
    wait_until(lambda: delivered(stage) == {"ada", "bob"}, PATIENCE_S)


@pytest.mark.parametrize(("kind", "name"), [("sink", "hook"), ("route", "events")])
def test_digests_of_a_paused_sink_or_route_wait(stage: Stage, daemon: Daemon, kind: str, name: str) -> None:
    said(daemon, "pause", kind, name)
    publish(stage, "ada", "bob")
    wait_until(lambda: stage.ledger().get("open") == 2, PATIENCE_S, "both to be stored")
    wait_until(daemon.is_ready, PATIENCE_S)
    assert delivered(stage) == set()
    said(daemon, "resume", kind, name)
    wait_until(lambda: delivered(stage) == {"ada", "bob"}, PATIENCE_S)


def test_the_answer_for_people(daemon: Daemon) -> None:
    words = [
        run_command(word, "topic", TOPIC, "-c", str(daemon.config_path)).stdout
        for word in ("pause", "pause", "resume", "resume")
    ]
    assert words == [
        f"topic {TOPIC} is paused\n",
        f"topic {TOPIC} was paused already\n",
        f"topic {TOPIC} is resumed\n",
        f"topic {TOPIC} was not paused\n",
    ]


def test_a_name_that_the_daemon_does_not_know(daemon: Daemon) -> None:
    done = run_command("pause", "sink", "hok", "-c", str(daemon.config_path))
    assert (done.returncode, done.stdout) == (EXIT_NO, "")
    assert 'there is no sink "hok"; did you mean "hook"?' in done.stderr


def test_a_daemon_that_does_not_run(stage: Stage, daemon: Daemon, tmp_path: Path) -> None:
    daemon.stop()
    done = run_command("pause", "topic", TOPIC, "-c", str(daemon.config_path))
    assert done.returncode == EXIT_UNREACHABLE
    assert "is it running?" in done.stderr


def test_what_answers_and_is_no_daemon(stage: Stage, daemon: Daemon) -> None:
    host, port = stage.nsqds[0].http_address
    config = daemon.config_path.read_text()
    elsewhere = daemon.config_path.with_name("elsewhere.toml")
    elsewhere.write_text(re.sub(r'(?m)^listen = ".*"', f'listen = "{host}:{port}"', config))
    done = run_command("pause", "topic", TOPIC, "-c", str(elsewhere))
    assert done.returncode == EXIT_UNREACHABLE
    assert "with 404, but it is no nsqdigest" in done.stderr


def test_a_paused_topic_can_be_drained(stage: Stage, daemon: Daemon) -> None:
    said(daemon, "pause", "topic", TOPIC)
    daemon.term()
    assert daemon.wait() == 0
