"""The whole path on real parts: what goes into nsqd comes out at the receivers as the contract says."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import standardwebhooks

from support.daemon import run_command, toml
from support.ports import HOST
from support.receiver import parsed
from support.stage import CHANNEL, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="
OLD_SECRET = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDC2FVsBQIhrs="
TOKEN = "a-long-enough-token"
ROUTE: dict[str, Any] = {"name": "events", "topic": TOPIC, "timeline": "user:{user.id}", "sink": "hook"}
SLOW_POLICY = {"policies.default": {"minimum_delay": "1h", "maximum_delay": "1h", "increment_delay": "0s"}}


def instant_ms(text: str) -> float:
    assert text.endswith("Z")
    return datetime.fromisoformat(text).timestamp() * 1000


def test_the_first_event_goes_out_at_once_and_what_follows_is_gathered(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    policy = {"minimum_delay": "2s", "maximum_delay": "3s"}
    daemon = stage.daemon({"sinks.hook": {"secret": [SECRET, OLD_SECRET]}, "policies.default": policy}, [ROUTE])
    daemon.admin = {"token": TOKEN}
    daemon.start()
    bodies = [b'{"user":{"id":42},"n":%d, "kept": [1.50, 1.5e0, "\\u00e9", {"a":1,"a":2}]}' % n for n in range(4)]
    nsqd.publish(TOPIC, bodies[0])
    wait_until(receiver.accepted, 5, "the first digest")
    with daemon.holding("sink", "hook"):
        for body in bodies[1:]:
            nsqd.publish(TOPIC, body)
        wait_until(lambda: stage.ledger()["added"] == len(bodies), what="the rest to be stored")
    wait_until(lambda: len(receiver.accepted()) == 2, what="the second digest")

    first, second = receiver.accepted()
    for post in (first, second):
        assert post.headers["content-type"] == "application/json"
        for secret in (SECRET, OLD_SECRET):
            standardwebhooks.Webhook(secret).verify(post.body.decode(), dict(post.headers))
    document = parsed(second.body)
    assert document["type"] == "digest"
    data = document["data"]
    assert list(data) == [
        "id", "route", "timeline", "sink", "iteration", "first", "last", "total", "shown", "superseded", "dropped",
        "records", "next_earliest",
    ]  # fmt: skip
    assert data["id"] == second.id
    assert UUID(data["id"]).version == 7
    assert (data["route"], data["timeline"], data["sink"]) == ("events", "user:42", "hook")
    assert (data["iteration"], data["total"], data["shown"]) == (2, 3, 3)
    assert (data["superseded"], data["dropped"]) == (0, {"capacity": 0})
    assert [record["value"]["n"] for record in data["records"]] == [3, 2, 1], "newest first"
    assert (data["first"], data["last"]) == (data["records"][-1]["timestamp"], data["records"][0]["timestamp"])
    assert all(body in second.body for body in bodies[1:]), "values come as they were written"
    # Never more often than the policy says, and as it was foretold.
    opened_ms, earliest_ms = instant_ms(document["timestamp"]), instant_ms(data["next_earliest"])
    assert opened_ms >= instant_ms(parsed(first.body)["data"]["next_earliest"])
    assert earliest_ms - opened_ms >= 1_500  # of the daemon's view of the clock of Redis, which is never ahead


def test_an_event_may_match_several_routes_one_or_none(stage: Stage) -> None:
    nsqd, one, two = stage.nsqd(), stage.receiver(), stage.receiver()
    routes = [
        {**ROUTE, "name": "errors", "match": {"event.kind": ["error", "fatal"]}},
        {**ROUTE, "name": "all-of-42", "match": {"user.id": 42}, "sink": "second"},
    ]
    daemon = stage.daemon(routes=routes)
    daemon.start()
    for user, kind in ((42, "error"), (42, "info"), (7, "fatal"), (7, "info")):
        nsqd.publish(TOPIC, json.dumps({"user": {"id": user}, "event": {"kind": kind}}).encode())
    wait_until(lambda: (len(one.values()), len(two.values())) == (2, 2), 5, "two events at each receiver")
    wait_until(lambda: daemon.metric("events_unmatched_total", topic=TOPIC) == 1, 5, "the fourth to be counted")
    wait_until(lambda: stage.unfinished() == 0, 5, "all to be finished")
    assert {(value["user"]["id"], value["event"]["kind"]) for value in one.values()} == {(42, "error"), (7, "fatal")}
    assert {(value["user"]["id"], value["event"]["kind"]) for value in two.values()} == {(42, "error"), (42, "info")}
    assert daemon.metric("events_unmatched_total", topic=TOPIC) == 1
    stage.check_logs()


def test_events_that_no_route_takes_are_warned_about_by_their_fields_and_not_by_their_values(stage: Stage) -> None:
    nsqd, _ = stage.nsqd(), stage.receiver()
    daemon = stage.daemon(routes=[{**ROUTE, "match": {"severity": "eror"}}])
    daemon.start()
    body = json.dumps({"user": {"id": 1}, "severity": "error", "note": "hunter2"}).encode()
    nsqd.publish(TOPIC, body)
    wait_until(lambda: daemon.metric("events_unmatched_total", topic=TOPIC) == 1, 5, "the first to be counted")
    nsqd.publish_many(TOPIC, [body] * 4)
    wait_until(lambda: daemon.metric("events_unmatched_total", topic=TOPIC) == 5, 5, "all to be counted")
    daemon.term()
    assert daemon.wait() == 0
    lines = daemon.said("consumer.event.unmatched")
    assert (len(lines), sum(line["events"] for line in lines)) == (2, 5), "one at once, one with the rest"
    assert all((line["level"], line["fields_of_one"]) == ("warning", ["user", "severity", "note"]) for line in lines)
    assert "hunter2" not in daemon.log_text()
    stage.check_logs()


def test_of_one_key_the_newer_wins_and_groups_are_told_apart(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    route = {**ROUTE, "key": "{order}", "timestamp": "at", "group": "shop"}
    stage.daemon({"policies.default": {"immediate": False}}, [route]).start()
    orders = [("a", 2_000, "x", "new"), ("a", 1_000, "x", "old"), ("b", 3_000, "y", "only"), ("c", 1_500, None, "none")]
    nsqd.publish_many(
        TOPIC,
        [
            json.dumps({"user": {"id": 1}, "order": order, "at": at, "shop": shop, "what": what}).encode()
            for order, at, shop, what in orders
        ],
    )
    wait_until(receiver.accepted, 5, "the digest")
    (data,) = receiver.digests()
    assert (data["total"], data["superseded"]) == (3, 1)
    groups = {group["group"]: [record["value"]["what"] for record in group["records"]] for group in data["groups"]}
    assert groups == {"y": ["only"], "x": ["new"], None: ["none"]}
    assert (data["first"], data["last"]) == (1_500_000, 3_000_000)


def test_capacity_keeps_the_newest_and_says_what_was_dropped(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    route = {**ROUTE, "timestamp": "at"}
    stage.daemon({"policies.default": {"immediate": False, "capacity": 3}}, [route]).start()
    nsqd.publish_many(TOPIC, [json.dumps({"user": {"id": 1}, "at": 1_000 + n}).encode() for n in range(10)])
    wait_until(receiver.accepted, 5, "the digest")
    (data,) = receiver.digests()
    assert [value["at"] for value in receiver.values()] == [1_009, 1_008, 1_007]
    assert (data["total"], data["dropped"]) == (3, {"capacity": 7})
    assert stage.ledger()["dropped:capacity"] == 7


def test_beyond_the_limit_of_timelines_nothing_begins_and_that_is_said_loudly(stage: Stage) -> None:
    nsqd, _ = stage.nsqd(), stage.receiver()
    daemon = stage.daemon({"limits": {"timelines": 3}}, [ROUTE])
    daemon.start()
    nsqd.publish_many(TOPIC, [json.dumps({"user": {"id": n}}).encode() for n in range(10)])
    wait_until(lambda: stage.unfinished() == 0 and stage.ledger().get("added") == 10, 5, "all of them to be counted")
    assert stage.ledger()["dropped:timelines"] == 7
    assert daemon.metric("records_not_kept_total", route="events", reason="timelines") == 7

    def dropped() -> int:  # one line at once, the rest within a second
        return sum(line["records_dropped"] for line in daemon.said("consumer.timelines.limit_reached"))

    wait_until(lambda: dropped() == 7, 5, "the log to count them all")
    said = daemon.said("consumer.timelines.limit_reached")
    assert {line["level"] for line in said} == {"error"}


def test_a_digest_beyond_max_body_shows_fewer_and_counts_all(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    stage.daemon({"policies.default": {"immediate": False}, "sinks.hook": {"max_body": "16KiB"}}, [ROUTE]).start()
    nsqd.publish_many(TOPIC, [json.dumps({"user": {"id": 1}, "padding": "x" * 1_000}).encode() for _ in range(100)])
    wait_until(lambda: stage.unfinished() == 0 and receiver.accepted(), 5, "the digest")
    wait_until(lambda: sum(data["total"] for data in receiver.digests()) == 100, 5, "all of them to be counted")
    for post in receiver.accepted():
        assert len(post.body) <= 16 << 10
    assert all(0 < data["shown"] <= 15 for data in receiver.digests())
    assert all(data["shown"] == len(data["records"]) for data in receiver.digests())


def test_the_smallest_file_writes_digests_as_lines(stage: Stage, tmp_path: Path) -> None:
    nsqd = stage.nsqd()
    path = tmp_path / "digests.jsonl"
    daemon = stage.daemon(SLOW_POLICY, [{"topic": TOPIC, "timeline": "{user}", "sink": "out"}])
    daemon.settings = {**daemon.settings, "sinks.out": {"type": "log", "path": str(path), "timeout": "1s"}}
    daemon.start()
    nsqd.publish_many(TOPIC, [b'{"user":"%d"}' % number for number in range(20)])
    wait_until(lambda: path.exists() and path.read_bytes().count(b"\n") == 20, 5, "a line for each user")
    digests = [parsed(line)["data"] for line in path.read_bytes().splitlines()]
    assert {data["timeline"] for data in digests} == {str(number) for number in range(20)}
    stage.check_logs()


def test_64_kib_events_take_no_more_memory_than_is_in_flight(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    in_flight = 400
    daemon = stage.daemon(
        {"nsq": {"max_in_flight": in_flight}, "policies.default": {"capacity": 20, "immediate": False}}, [ROUTE]
    )
    daemon.start()
    before_bytes = daemon.peak_memory_bytes()
    body = b'{"user":{"id":%d},"padding":"' + b"x" * (63 << 10) + b'"}'
    for first in range(0, 2_000, 50):
        nsqd.publish_many(TOPIC, [body % (number % 50) for number in range(first, first + 50)])
    wait_until(lambda: stage.unfinished() == 0, 20, "all to be stored")
    wait_until(lambda: len(receiver.digests()) >= 50, 20, "the digests")
    grown_bytes = daemon.peak_memory_bytes() - before_bytes
    assert grown_bytes < 4 * in_flight * (64 << 10), f"it grew by {grown_bytes >> 20} MiB"


def test_it_waits_for_an_nsqd_that_is_down_and_recovers(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    nsqd.stop()
    daemon = stage.daemon(SLOW_POLICY, [ROUTE])
    daemon.launch()
    wait_until(lambda: daemon.said("consumer.connection.failed"), 10, "it to notice")
    status, text = daemon.get("/readyz")
    assert status == 503
    assert f"[-] topic {TOPIC}: 0 of 1 nsqd connected" in text
    assert daemon.get("/livez") == (200, "ok\n")
    nsqd.start()
    nsqd.publish(TOPIC, b'{"user":{"id":1}}')
    wait_until(receiver.accepted, 15, "a digest")
    assert daemon.is_ready()
    stage.check_logs()


def test_it_waits_for_a_redis_that_is_down_and_recovers(stage: Stage) -> None:
    nsqd, redis, receiver = stage.nsqd(), stage.redis(), stage.receiver()
    redis.stop()
    daemon = stage.daemon(SLOW_POLICY, [ROUTE])
    daemon.launch()
    wait_until(lambda: daemon.said("daemon.store.waiting"), 10, "it to notice")
    status, text = daemon.get("/readyz?verbose")
    assert status == 503
    assert "[-] store: not usable yet: redis-connection: cannot connect to" in text
    nsqd.publish(TOPIC, b'{"user":{"id":1}}')
    assert nsqd.channel_stats(TOPIC, CHANNEL)["clients"] == [], "nothing is taken before it can be stored"
    redis.start()
    wait_until(receiver.accepted, 15, "a digest")
    assert daemon.is_ready()
    stage.check_logs()


def test_a_second_daemon_on_the_same_admin_port_says_so_and_ends(stage: Stage, tmp_path: Path) -> None:
    stage.nsqd()
    stage.receiver()
    first = stage.daemon(routes=[ROUTE])
    first.start()
    path = tmp_path / "second.toml"
    listen = f"{HOST}:{first.ports[0]}"
    path.write_text(toml({**first.settings, "admin": {"listen": listen}}, [ROUTE]), encoding="utf-8")
    ended = run_command("run", "-c", str(path))
    assert ended.returncode == 69
    lines = [json.loads(line) for line in ended.stderr.splitlines()]  # all of it is the log
    failed = lines[-1]
    assert (failed["level"], failed["event"]) == ("error", "daemon.failed")
    assert listen in failed["error"]
    assert "admin.listen" in failed["error"]
    assert first.is_ready()


def test_an_address_that_is_no_nsqd_is_named_and_the_others_serve(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    wrong = f"{HOST}:{nsqd.http_address[1]}"
    right = "{}:{}".format(*nsqd.tcp_address)
    daemon = stage.daemon({"nsq": {"nsqd_tcp_addresses": [wrong, right]}}, [ROUTE])
    daemon.start()
    nsqd.publish(TOPIC, b'{"user":{"id":1}}')
    wait_until(receiver.accepted, 10, "a digest")
    wait_until(lambda: daemon.said("consumer.connection.failed"), 10, "the wrong address to be named")
    assert wrong in daemon.said("consumer.connection.failed")[0]["error"]
    stage.check_logs()
