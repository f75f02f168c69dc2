"""`nsqdigest preview TIMELINE`: the body that is posted afterwards, and nothing changed in Redis by looking."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from nsqdigest.base.errors import EXIT_USAGE
from support.daemon import Daemon, run_command
from support.receiver import OK, Answer
from support.stage import TOPIC, Stage, stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

__all__ = ["stage"]

ROUTE = {"name": "events", "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": "hook", "group": "kind"}


def later(delay: str) -> dict[str, dict[str, Any]]:
    delays = {"minimum_delay": delay, "increment_delay": "0s", "maximum_delay": delay}
    return {"policies.default": {"immediate": False, **delays}}


def started(stage: Stage, settings: dict[str, dict[str, Any]]) -> Daemon:
    stage.nsqd(), stage.receiver()
    daemon = stage.daemon(settings, [ROUTE])
    daemon.start()
    return daemon


def publish(stage: Stage, count: int) -> None:
    for number in range(count):
        event = {"id": f"{number % 12}", "timeline": "user:42", "kind": "ab"[number % 2], "text": f"\u202e{number}"}
        stage.nsqds[0].publish(TOPIC, json.dumps(event).encode())


def preview(daemon: Daemon, *words: str) -> tuple[int, str, str]:
    done = run_command("preview", *words, "-c", str(daemon.config_path))
    return done.returncode, done.stdout, done.stderr


def dump(stage: Stage) -> dict[bytes, Any]:
    """All of Redis, but for what daemons note of themselves."""
    keys = sorted(key for key in stage.store.cli("KEYS", "*") if not key.endswith((b"routes", b"turns", b"daemons")))
    return {key: stage.store.cli("DUMP", key) for key in keys}


def without_instants(body: bytes | str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(body)
    del document["timestamp"], document["data"]["id"], document["data"]["next_earliest"]
    return document


def test_what_is_shown_is_what_is_posted_later_and_nothing_changed_by_looking(stage: Stage) -> None:
    daemon = started(stage, later("1h"))
    publish(stage, 15)
    wait_until(lambda: daemon.metric("records_added_total", route="events") == 15, 10, "all of them to be stored")
    before = dump(stage)
    code, out, err = preview(daemon, "user:42")
    assert dump(stage) == before
    assert (code, len(json.loads(out)["data"]["groups"])) == (0, 2)
    assert re.search("route events to sink hook: application/json, .* bytes; as it would be opened now", err)
    assert json.loads(out)["data"]["superseded"] == 3
    assert json.loads(out)["data"]["id"].startswith("00000000-")
    assert run_command("flush", "user:42", "-c", str(daemon.config_path)).returncode == 0
    wait_until(lambda: stage.receivers[0].posts, what="the digest")
    assert without_instants(stage.receivers[0].posts[0].body) == without_instants(out)


def test_it_says_where_the_digest_would_go(stage: Stage) -> None:
    daemon = started(stage, later("60s"))
    publish(stage, 3)
    wait_until(lambda: daemon.metric("records_added_total", route="events") == 3, 10, "all of them to be stored")
    text = daemon.config_path.read_text(encoding="utf-8")
    daemon.config_path.write_text(text.replace('/hook"', '/hook/{text}/{route}"'), encoding="utf-8")
    code, out, err = preview(daemon, "user:42")
    assert (code, json.loads(out)["data"]["total"]) == (0, 3)
    assert "/… ({text} = %E2%80%AE2, {route} = events): application/json" in err
    (found,) = json.loads(preview(daemon, "user:42", "--json")[1])
    assert found["target"].endswith("({text} = %E2%80%AE2, {route} = events)")
    assert "({text} = text, {route} = events)" in preview(daemon, "--sample")[2]
    daemon.config_path.write_text(text.replace('/hook"', '/hook/{tenant}"'), encoding="utf-8")
    code, out, err = preview(daemon, "user:42")
    assert (code, out) == (1, "")
    assert 'url: the field "tenant" is not there' in err


def test_a_digest_that_waits_is_shown_with_its_very_bytes(stage: Stage) -> None:
    daemon = started(stage, {**later("1s"), "sinks.hook": {"format": "slack", "retry_base": "30s", "retry_cap": "30s"}})
    stage.receivers[0].answer(OK, Answer(500))
    publish(stage, 15)
    wait_until(lambda: stage.receivers[0].posts, 10, "the first attempt")
    wait_until(lambda: daemon.metric("digest_attempts_total") == 1, 10, "its end")
    code, out, err = preview(daemon, "user:42", "--sink", "hook")
    assert (code, out.encode()) == (0, stage.receivers[0].posts[0].body + b"\n")
    assert "waits for its next attempt" in err


def test_of_a_large_timeline_as_much_is_read_as_fits(stage: Stage) -> None:
    daemon = started(stage, later("60s"))
    daemon.stop()
    daemon.routes = [{**ROUTE, "key": "", "group": ""}]
    daemon.settings = {**daemon.settings, "sinks.hook": {**daemon.settings["sinks.hook"], "max_body": "16KiB"}}
    daemon.start()
    publish(stage, 700)
    wait_until(lambda: daemon.metric("records_added_total", route="events") == 700, 20, "all of them to be stored")
    code, out, _ = preview(daemon, "user:42")
    data = json.loads(out)["data"]
    assert (code, data["total"]) == (0, 700)
    assert 50 < data["shown"] == len(data["records"]) < 700


def test_where_nothing_waits_it_says_so(stage: Stage) -> None:
    daemon = started(stage, later("1s"))
    assert preview(daemon, "nobody\x1b[31m") == (
        1, "", 'nsqdigest: there is nothing to deliver of timeline "nobody\\u001b[31m"\n',
    )  # fmt: skip
    assert preview(daemon, "\udcff")[0] == EXIT_USAGE
