"""What a route does beside filing, on real parts: urgent events, dropped fields, old events, several sinks."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from support.daemon import Daemon
from support.receiver import Answer, Receiver, parsed
from support.stage import NAMESPACE, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

ROUTE: dict[str, Any] = {"name": "events", "topic": TOPIC, "timeline": "{user}", "key": "{id}", "sink": "hook"}
SLOW = {"policies.default": {"minimum_delay": "1h", "maximum_delay": "1h", "increment_delay": "0s"}}


def event(number: int, **fields: Any) -> bytes:
    return json.dumps({"user": "ada", "id": number, **fields}).encode()


def shown(posts: list[Any]) -> list[list[int]]:
    """The ids of the events in each digest."""
    return [[record["value"]["id"] for record in parsed(post.body)["data"]["records"]] for post in posts]


def stored(stage: Stage, number: int) -> bool:
    return stage.ledger().get("added") == number


def delivered(stage: Stage, route: str, number: int) -> bool:
    return stage.ledger(route).get("delivered") == number


def not_kept(daemon: Daemon, reason: str) -> float:
    return daemon.metric("records_not_kept_total", route="events", reason=reason)


def has_shown(receiver: Receiver, number: int) -> bool:
    return sum(map(len, shown(receiver.accepted()))) == number


def test_an_urgent_event_goes_out_at_once_with_all_that_waited(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    daemon = stage.daemon(SLOW, [{**ROUTE, "urgent": {"level": "fatal"}}])
    daemon.start()
    nsqd.publish(TOPIC, event(1))
    wait_until(receiver.accepted, 5, "the first")
    nsqd.publish(TOPIC, event(2))
    wait_until(lambda: daemon.metric("records_added_total", route="events") == 2, 5, "the second to be stored")
    wait_until(lambda: stage.ledger()["delivered"] == 1, 5, "the first to be closed")
    nsqd.publish(TOPIC, event(3, level="fatal"))
    wait_until(lambda: len(receiver.accepted()) == 2, 5, "the urgent one")
    assert shown(receiver.accepted()) == [[1], [3, 2]]
    nsqd.publish(TOPIC, event(4))
    wait_until(lambda: stage.ledger()["open"] == 1, 5, "the last to wait, for an hour")
    assert daemon.metric("digest_delay_seconds_sum", route="events") < 60
    stage.check_logs()


def test_an_urgent_event_during_a_delivery_follows_right_after_it(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    receiver.down()
    stage.daemon(SLOW, [{**ROUTE, "urgent": {"level": "fatal"}}]).start()
    nsqd.publish(TOPIC, event(1))
    wait_until(lambda: stage.ledger().get("snapshots") == 1, 5, "the first to be opened")
    nsqd.publish(TOPIC, event(2, level="fatal"))
    wait_until(lambda: stage.ledger().get("added") == 2, 5, "the urgent one to be stored")
    receiver.up()
    wait_until(lambda: len(receiver.accepted()) == 2, 10, "both digests")
    assert shown(receiver.accepted()) == [[1], [2]]
    wait_until(lambda: stage.ledger()["delivered"] == 2, 5, "both to be closed")


@pytest.mark.parametrize("zone", ["UTC", "{zone}"])
def test_an_urgent_digest_that_fails_in_quiet_hours_is_tried_again_in_them(stage: Stage, zone: str) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    now = datetime.now(UTC)
    window = f"{now - timedelta(hours=3):%H:%M}-{now + timedelta(hours=3):%H:%M}"
    quiet = {"policies.default": {**SLOW["policies.default"], "quiet": window, "zone": zone}}
    receiver.answer(Answer(500))
    daemon = stage.daemon(quiet, [{**ROUTE, "urgent": {"level": "fatal"}}])
    daemon.start()
    nsqd.publish(TOPIC, event(1, level="fatal", zone="UTC"))
    nsqd.publish(TOPIC, event(3, user="bob", zone="UTC"))
    wait_until(lambda: len(receiver.posts) >= 2, 15, "it to fail twice")
    nsqd.publish(TOPIC, event(2, level="fatal", zone="UTC"))
    wait_until(lambda: stored(stage, 3), 5, "the urgent one behind it")
    receiver.answer(Answer())
    wait_until(lambda: delivered(stage, "events", 2), 10, "both urgent digests")
    assert shown(receiver.accepted()) == [[1], [2]]
    assert stage.ledger()["open"] == 1, "what is not urgent waits for the morning"


def test_what_has_ended_before_its_digest_never_comes_and_what_was_shown_is_told(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    at = {"timestamp": "at", "cancel": {"status": "resolved"}, "urgent": {"level": "fatal"}}
    daemon = stage.daemon(SLOW, [{**ROUTE, **at}])
    daemon.start()
    now_s = int(time.time())
    nsqd.publish(TOPIC, event(1, at=now_s, status="firing"))
    wait_until(lambda: delivered(stage, "events", 1), 5, "the first, at once")
    for number, status, age_s in ((2, "firing", 5), (2, "resolved", 3), (2, "firing", 4), (1, "resolved", 0)):
        nsqd.publish(TOPIC, event(number, at=now_s + 10 - age_s, status=status))
    wait_until(lambda: stored(stage, 5), 5, "all of them to be stored")
    assert stage.ledger()["open"] == 1
    wait_until(lambda: not_kept(daemon, "cancelled") == 3, what="the daemon to count them")
    nsqd.publish(TOPIC, event(3, at=now_s, level="fatal"))
    wait_until(lambda: delivered(stage, "events", 3), 5, "what is left")
    last = parsed(receiver.accepted()[-1].body)["data"]
    assert [(each["key"], each["value"].get("status")) for each in last["records"]] == [("1", "resolved"), ("3", None)]
    assert last["dropped"] == {"capacity": 0, "cancelled": 3}
    assert parsed(receiver.accepted()[0].body)["data"]["dropped"] == {"capacity": 0}
    stage.check_logs()


def test_a_receiver_that_saw_an_alert_is_told_that_it_is_over(stage: Stage) -> None:
    """The second incident outlasts the memory of what was shown, the third has an end with the timestamp of the record
    that was shown."""
    nsqd, receiver = stage.nsqd(), stage.receiver()
    at = {"timestamp": "at", "cancel": {"status": "resolved"}, "urgent": {"level": "fatal"}}
    daemon = stage.daemon(SLOW, [{**ROUTE, **at}])
    daemon.start()
    now_s, sent = int(time.time()), 0

    def tell(*events: tuple[str, int]) -> None:
        """The last of them makes its timeline due."""
        nonlocal sent
        for status, age_s in events:
            sent += 1
            is_last = (status, age_s) == events[-1]
            nsqd.publish(TOPIC, event(1, at=now_s - age_s, status=status, level="fatal" if is_last else "info"))
            wait_until(partial(stored, stage, sent), 5, "it to be stored")

    def last() -> list[tuple[str, int]]:
        records = parsed(receiver.accepted()[-1].body)["data"]["records"]
        return [(each["value"]["status"], now_s - each["value"]["at"]) for each in records]

    for number, told in enumerate([("firing", 9), ("resolved", 8), ("firing", 7)], 1):
        tell(told)
        wait_until(partial(delivered, stage, "events", number), 5, "the digest")
        assert last() == [told]
    assert stage.store.cli("DEL", f"{{{NAMESPACE}:0}}:shown:events:ada") == 1
    tell(("resolved", 6))
    wait_until(partial(delivered, stage, "events", 4), 5, "the end of the second incident")
    assert last() == [("resolved", 6)]
    tell(("firing", 5))
    wait_until(partial(delivered, stage, "events", 5), 5, "the third incident")
    tell(("resolved", 5), ("firing", 4), ("resolved", 3))
    wait_until(partial(delivered, stage, "events", 6), 5, "the end of the third incident")
    assert last() == [("resolved", 3)]
    stage.check_logs()


def test_what_a_route_drops_is_neither_delivered_nor_stored(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    daemon = stage.daemon(SLOW, [{**ROUTE, "drop": ["mail", "card.number"]}])
    daemon.start()
    for number in (1, 2):
        body = b'{"user":"ada","id":%d,"mail":"hunter2","card":{"number":"hunter2","kind":1.50},"m\\u0061il":"hunter2"}'
        nsqd.publish(TOPIC, body % number)
        wait_until(partial(stored, stage, number), 5, "it to be stored")
        stage.wait_until_shown(1)  # the first goes out at once, the second waits for an hour
    wait_until(receiver.accepted, 5, "the first")
    wait_until(lambda: stage.unfinished() == 0, 5, "both to be finished")
    assert b'"value":{"user":"ada","id":1,"card":{"kind":1.50}}' in receiver.accepted()[0].body
    assert stage.store.cli("HVALS", f"{{{NAMESPACE}:0}}:values:events:ada") == [
        b'{"user":"ada","id":2,"card":{"kind":1.50}}'
    ]
    assert "hunter2" not in daemon.log_text()


def test_old_events_are_finished_counted_and_warned_about(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    daemon = stage.daemon(routes=[{**ROUTE, "timestamp": "at", "max_event_age": "1m"}])
    daemon.start()
    for number, age_s in ((1, 3600), (2, 120), (3, 0)):
        nsqd.publish(TOPIC, event(number, at=time.time() - age_s))
    wait_until(receiver.accepted, 5, "the young one")
    wait_until(lambda: stage.unfinished() == 0, 5, "all to be finished")
    assert shown(receiver.accepted()) == [[3]]
    assert daemon.metric("events_skipped_total", route="events", reason="too-old") == 2
    assert daemon.metric("events_unmatched_total", topic=TOPIC) == 0
    daemon.term()
    assert daemon.wait() == 0
    lines = daemon.said("consumer.event.too_old")
    assert sum(line["events"] for line in lines) == 2
    stage.check_logs()


def test_of_two_sinks_a_dead_one_does_not_hold_the_other(stage: Stage) -> None:
    nsqd, alive, dead = stage.nsqd(), stage.receiver(), stage.receiver()
    dead.down()
    daemon = stage.daemon(routes=[{**ROUTE, "sink": ["hook", "second"]}])
    daemon.start()
    for number in range(1, 4):
        nsqd.publish(TOPIC, event(number))
        wait_until(partial(has_shown, alive, number), 5, "it at the one that is up")
    dead.up()
    wait_until(partial(has_shown, dead, 3), 10, "all at the other")
    wait_until(lambda: stage.unfinished() == 0, 5, "all to be finished")
    names = [{(d["route"], d["sink"]) for d in each.digests()} for each in (alive, dead)]
    assert names == [{("events", "hook")}, {("events@second", "second")}]
    assert not {post.id for post in alive.accepted()} & {post.id for post in dead.accepted()}
    for route in ("events", "events@second"):
        wait_until(partial(delivered, stage, route, 3), 5, "all to be closed")
        assert daemon.metric("records_added_total", route=route) == 3
    stage.check_logs()
