"""Bodies of webhooks through the real daemon: messages that a chat takes, and a template that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from support.chats import slack
from support.daemon import Daemon
from support.stage import NAMESPACE, PROVE, TOPIC, Stage, stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

__all__ = ["stage"]

NEEDS_A_MESSAGE = '{\n  "id": "{{ data.id }}",\n  "text": "{{ data.records[0].value.message }}"\n}\n'
TEMPLATE = "message.json.j2"
PATIENT = {"backoff": {"base": "10m", "max_duration": "10m", "jitter": "none"}}


def write(daemon: Daemon, template: str) -> None:
    folder = daemon.config_path.parent
    folder.mkdir(exist_ok=True)
    (folder / TEMPLATE).write_text(template, encoding="utf-8")


def started(stage: Stage, template: str, settings: dict[str, dict[str, Any]] | None = None) -> Daemon:
    stage.nsqd(), stage.receiver()
    sink = {"body": f"file:{TEMPLATE}", **(settings or {}).get("sinks.hook", {})}
    daemon = stage.daemon({**(settings or {}), "sinks.hook": sink})
    write(daemon, template)
    daemon.start()
    return daemon


def publish(stage: Stage, events: Sequence[dict[str, Any]]) -> None:
    for number, event in enumerate(events):
        stage.nsqds[0].publish(TOPIC, json.dumps({"id": str(number), "timeline": f"t{number}", **event}).encode())


def accepted(stage: Stage) -> list[str]:
    return sorted(json.loads(post.body)["text"] for post in stage.receivers[0].accepted())


def hook_line(daemon: Daemon) -> str:
    return next(line for line in daemon.get("/readyz?verbose")[1].splitlines() if "sink hook" in line)


def test_a_template_that_fails_for_some_digests_holds_those_alone_until_it_is_mended(stage: Stage) -> None:
    daemon = started(stage, NEEDS_A_MESSAGE, {"sinks.hook": {"max_attempts": 1}})
    publish(stage, [{"message": "one"}, {"other": 1}, {"message": "two"}, {"other": 2}])
    wait_until(lambda: accepted(stage) == ["one", "two"], 15, "those that have a message")
    wait_until(lambda: daemon.metric("digest_attempts_total", outcome="unrendered") >= 6, 15, "the others to be tried")
    wait_until(lambda: "refusing" in hook_line(daemon), 5, "the sink to be in trouble")
    said = daemon.said("scheduler.digest.failed")[0]
    assert (said["level"], said["verdict"]) == ("warning", "unrendered")
    assert re.search(r'message\.json\.j2:3: "message" is not there; write \{\{ … \| default\(""\) \}\}', said["detail"])
    assert 'message.json.j2:3: "message" is not there' in hook_line(daemon)
    assert daemon.metric("digests_buried_total") == 0
    assert len(stage.receivers[0].posts) == 2, "nothing was posted of what could not be rendered"

    daemon.stop()
    write(daemon, NEEDS_A_MESSAGE.replace(".message", ".message | default('-')"))
    daemon.start()
    wait_until(lambda: accepted(stage) == ["-", "-", "one", "two"], 15, "the others, too")
    assert {post.attempt for post in stage.receivers[0].posts} == {1}, "only posts are counted"
    wait_until(lambda: "delivering" in hook_line(daemon), 5, "the trouble to be over")
    assert stage.ledger()["delivered"] == 4
    stage.check_logs()


def test_a_template_that_fails_for_every_digest_makes_the_sink_back_off(stage: Stage) -> None:
    daemon = started(stage, NEEDS_A_MESSAGE, PATIENT)
    publish(stage, [{}] * 8)
    wait_until(
        lambda: daemon.metric("sink_backoff_state", sink="hook", state="backoff") == 1, 15, "the sink to back off"
    )
    assert daemon.metric("sink_state", sink="hook", state="refusing") == 1
    wait_until(lambda: "8 digests wait" in hook_line(daemon), 15, "all of them to wait")
    assert stage.receivers[0].posts == []
    assert stage.store.cli("EXISTS", f"{{{NAMESPACE}:0}}:dead") == 0
    stage.check_logs()


def test_what_no_template_made_is_buried_when_it_is_too_old(stage: Stage) -> None:
    daemon = started(stage, NEEDS_A_MESSAGE, {"sinks.hook": {"max_age": "1s", "retry_cap": "100ms"}})
    publish(stage, [{}])
    wait_until(lambda: daemon.metric("digests_buried_total", sink="hook", reason="too-old") == 1, 15, "it to be buried")
    assert daemon.metric("digest_attempts_total", outcome="unrendered") > 1


def test_a_template_without_an_end_stops_neither_intake_nor_other_sinks(stage: Stage) -> None:
    stage.nsqd(), stage.receiver(), stage.receiver()
    routes = [
        {"name": name, "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": sink}
        for name, sink in (("bad", "hook"), ("good", "second"))
    ]
    daemon = stage.daemon({"sinks.hook": {"body": f"file:{TEMPLATE}"}}, routes)
    # What a sample has for a field is no number, so `check` takes it.
    write(
        daemon,
        "{% if data.records[0].value.n | default(0) is number %}"
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}{% endif %}1",
    )
    daemon.start()
    publish(stage, [{"n": 1}] * 40)
    wait_until(lambda: len(stage.receivers[1].digests()) == 40, 20, "the other sink's digests")
    wait_until(lambda: daemon.metric("digest_attempts_total", outcome="unrendered") >= 3, 20, "the bad ones to fail")
    assert stage.unfinished() == 0
    assert daemon.get("/readyz")[0] == 200
    stage.check_logs()


def test_a_slack_that_takes_one_message_a_second_gets_every_digest(stage: Stage) -> None:
    stage.nsqd()
    receiver = stage.receiver()
    receiver.judge = slack(per_s=5)
    daemon = stage.daemon({"sinks.hook": {"format": "slack", "rate": "none", "retry_after_max": "300ms"}})
    daemon.start()
    publish(stage, [{"message": f"<!channel> `{number}`"} for number in range(12)])
    wait_until(lambda: len({post.id for post in receiver.accepted()}) == 12, 40, "all of them")
    assert {post.answer.status for post in receiver.posts} <= {200, 429}
    assert receiver.ids_with_two_bodies() == []
    stage.check_logs()


# What a daemon of its own pace posts to a Slack of that pace: CI's is quicker than Slack, `make prove` has Slack's own.
PER_S, RATE = (1, "") if PROVE else (50, "50/s")
BURST = 3 if PROVE else PER_S // 2
"""On a busy machine the posts of half a second come together."""


def test_200_timelines_due_at_once_settle_at_the_pace_of_slack_without_a_storm(stage: Stage) -> None:
    stage.nsqd()
    receiver = stage.receiver()
    receiver.judge = slack(per_s=PER_S, burst=BURST)
    long = {"policies.default": {"minimum_delay": "1h", "maximum_delay": "1h"}, "scheduler": {"lease": "20s"}}
    daemon = stage.daemon({"sinks.hook": {"format": "slack", "rate": RATE, "timeout": "5s"}, **long})
    publish(stage, [{"message": "<!channel> " + "\u00e9&`*<" * 2_000, "kind": f"{number}"} for number in range(200)])
    wait_until(lambda: stage.nsqds[0].unfinished(TOPIC, "nsqdigest") == 200, 20, "them to wait in nsqd")
    daemon.start()
    wait_until(lambda: len({post.id for post in receiver.accepted()}) == 200, 300 + 400 / PER_S, "all of them")
    wait_until(lambda: stage.ledger().get("delivered") == 200, 10, "the ledger")
    assert receiver.accepted_more_than_once() == {}
    assert receiver.ids_with_two_bodies() == []
    assert {post.answer.status for post in receiver.posts} <= {200, 429}, "no block is refused"
    # A busy machine may bring posts together; each then costs one backoff, not a storm.
    assert len(receiver.posts) <= 250
    assert daemon.metric("digests_buried_total") == 0
    stage.check_logs()
