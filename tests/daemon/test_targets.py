"""Sinks whose targets are templates, through the real daemon: digests of one timeline keep their target, whatever
happens to the daemon, and what is wrong with one says nothing of the others.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from nsqdigest.config import parse_text
from nsqdigest.daemon.life import Daemon as DaemonHere
from nsqdigest.delivery.sinks.table import KINDS
from support.daemon import Daemon, run_command, toml
from support.nsqclient import NsqClient
from support.ports import HOST
from support.receiver import HANG, OK, Answer, Post, Receiver, parsed
from support.servers import Nsqd
from support.stage import TOPIC, Stage, stage
from support.waiting import until, wait_until

pytestmark = pytest.mark.integration

__all__ = ["stage"]

ROUTE = {"name": "events", "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": "hook"}


def started(stage: Stage, path: str, **sink: Any) -> Daemon:
    stage.nsqd()
    receiver = stage.receiver()
    daemon = stage.daemon({"sinks.hook": {"url": receiver.url + path, **sink}}, [ROUTE])
    daemon.start()
    return daemon


def publish(stage: Stage, *events: dict[str, Any]) -> None:
    for event in events:
        stage.nsqds[0].publish(TOPIC, json.dumps({"id": "1", **event}).encode())


def paths_by_id(posts: list[Post]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for post in posts:
        found[post.id].add(post.path)
    return found


def until_posted(receiver: Receiver, count: int) -> None:
    wait_until(lambda: len(receiver.posts) >= count, 15, f"{count} posts")


def sink_line(daemon: Daemon) -> str:
    return next(line for line in daemon.get("/readyz?verbose")[1].splitlines() if "sink hook" in line)


def dead(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        run_command("dead", "list", "--json", "-c", str(daemon.config_path)).stdout
    )
    return found


def test_each_digest_is_posted_where_its_newest_record_says(stage: Stage) -> None:
    daemon = started(stage, "/{tenant.id}/{route}?of={timeline}")
    publish(stage, {"timeline": "user:1", "tenant": {"id": "a/b"}}, {"timeline": "ü", "tenant": {"id": 7}})
    wait_until(lambda: len(stage.receivers[0].accepted()) == 2, 15, "two digests")
    assert {post.path for post in stage.receivers[0].posts} == {
        "/hook/a%2Fb/events?of=user%3A1", "/hook/7/events?of=%C3%BC",
    }  # fmt: skip
    assert "delivering" in sink_line(daemon)
    stage.check_logs()


def test_a_digest_keeps_its_target_over_kills_while_newer_records_say_another(stage: Stage) -> None:
    daemon = started(stage, "/{tenant}", timeout="500ms")
    receiver = stage.receivers[0]
    receiver.answer(HANG)
    publish(stage, {"timeline": "t", "tenant": "first", "id": "1"})
    for attempt in range(1, 4):
        until_posted(receiver, len(receiver.posts) + 1)
        daemon.kill()
        stage.nsqds[0].publish(
            TOPIC, json.dumps({"timeline": "t", "tenant": "second", "id": f"new {attempt}"}).encode()
        )
        daemon.start()
    receiver.answer(OK)
    wait_until(
        lambda: {post.path for post in receiver.accepted()} == {"/hook/first", "/hook/second"}, 30, "both digests"
    )
    by_id = paths_by_id(receiver.posts)
    assert all(len(paths) == 1 for paths in by_id.values())
    assert receiver.ids_with_two_bodies() == []
    assert by_id[receiver.posts[0].id] == {"/hook/first"}
    stage.check_logs()


def test_an_event_that_names_no_place_is_a_dead_letter_and_takes_no_neighbour_along(stage: Stage) -> None:
    """Whoever can publish could otherwise keep back the events of a timeline, whose newest record decides."""
    daemon = started(stage, "/{tenant}")
    receiver = stage.receivers[0]
    receiver.answer(HANG)
    publish(stage, {"timeline": "t", "tenant": "a", "id": "1"})
    until_posted(receiver, 1)
    publish(stage, {"timeline": "t", "tenant": "a", "id": "2"}, {"timeline": "t", "secret": "hunter2", "id": "3"},
            {"timeline": "t", "tenant": ["x"], "id": "4"})  # fmt: skip
    wait_until(lambda: daemon.metric("dead_letters_total", reason="no-target") == 2, 15, "the two dead letters")
    wait_until(lambda: stage.ledger().get("added") == 2, 15, "the other event")
    receiver.answer(OK)
    wait_until(lambda: len(receiver.accepted()) >= 2, 30, "both digests")
    assert {post.path for post in receiver.accepted()} == {"/hook/a"}
    assert dead(daemon) == []
    details = {each["detail"] for each in daemon.said("consumer.message.dead_lettered")}  # one line a kind and second
    assert details
    assert details <= {
        'route events: url: the field "tenant" is not there', 'route events: url: the field "tenant" is an array',
    }  # fmt: skip
    assert not [line for line in daemon.log_tail().splitlines() if "hunter2" in line]
    stage.check_logs()


def test_a_digest_that_can_go_nowhere_after_a_reload_waits_visibly_and_stops_no_other(stage: Stage) -> None:
    daemon = started(stage, "/{tenant}", timeout="1s")
    receiver = stage.receivers[0]
    receiver.answer(HANG)
    publish(stage, {"timeline": "bad", "tenant": "a", "secret": "hunter2"})
    until_posted(receiver, 1)
    hook = {**daemon.settings["sinks.hook"], "url": receiver.url + "/{room}"}
    daemon.settings = {**daemon.settings, "sinks.hook": hook}
    daemon.reload()
    receiver.answer(OK)
    publish(stage, *({"timeline": f"t{n}", "tenant": "a", "room": "a"} for n in range(5)))
    wait_until(lambda: len(receiver.accepted()) == 5, 15, "the five others")
    wait_until(lambda: re.search(r'delivering, but 1 digest waits \(1 since \d\d:\d\d: url: the field "room" is not '
                                 r"there\)", sink_line(daemon)), 5, sink_line(daemon))  # fmt: skip
    assert sink_line(daemon).startswith("[!]")
    assert daemon.metric("digest_attempts_total", sink="hook", outcome="no-target") >= 1
    daemon.settings["sinks.hook"]["max_age"] = "1s"  # type: ignore[index]
    daemon.reload()
    wait_until(lambda: dead(daemon), what="it to be given up")
    (entry,) = dead(daemon)
    assert (entry["timeline"], entry["records"]) == ("bad", 1)
    publish(stage, {"timeline": "bad", "room": "b"})
    wait_until(lambda: "/hook/b" in [post.path for post in stage.receivers[0].accepted()], 15, "its timeline to go on")
    assert not [line for line in daemon.log_tail().splitlines() if "hunter2" in line]
    stage.check_logs()


def test_a_place_that_is_gone_buries_its_digests_and_the_others_go_on(stage: Stage) -> None:
    def judge(body: bytes) -> Answer:
        return Answer(410) if b'"timeline":"gone' in body else OK

    daemon = started(stage, "/{tenant}")
    stage.receivers[0].judge = judge
    publish(stage, *({"timeline": f"gone{n}", "tenant": "gone"} for n in range(4)))
    wait_until(lambda: len(dead(daemon)) == 4, 15, "those to be given up")
    assert {(entry["reason"], entry["attempts"]) for entry in dead(daemon)} == {("gone", 1)}
    publish(stage, {"timeline": "t", "tenant": "there"})
    wait_until(stage.receivers[0].accepted, 15, "the other")
    line = "[+] sink hook: delivering (4 digests in the dead list)"
    wait_until(lambda: sink_line(daemon) == line, what="the dead ones to be counted")
    stage.check_logs()


async def test_topics_by_tenant(stage: Stage) -> None:
    nsqd = stage.nsqd()
    host, port = nsqd.tcp_address
    for tenant in ("a", "b"):
        nsqd.create_channel(f"digests.{tenant}", "ch")
    sink = {"type": "nsq", "nsqd_tcp_addresses": [f"{host}:{port}"], "topic": "digests.{tenant}", "timeout": "1s"}
    daemon = stage.daemon({"sinks.hook": sink}, [ROUTE])
    daemon.start()
    refused = ["c#ephemeral", "x" * 60, "a b", "\r\nPUB evil\n", ""]
    publish(stage, {"timeline": "1", "tenant": "a"}, {"timeline": "2", "tenant": "b"},
            *({"timeline": f"bad{n}", "tenant": each} for n, each in enumerate(refused)))  # fmt: skip
    for tenant in ("a", "b"):
        async with await NsqClient.connect(nsqd.tcp_address) as client:
            await client.sub(f"digests.{tenant}", "ch")
            client.rdy(1)
            (message,) = await client.take()
            assert json.loads(message.body)["data"]["records"][0]["value"]["tenant"] == tenant
            client.fin(message)
    wait_until(lambda: daemon.metric("dead_letters_total", reason="no-target") == 5, 15, "the others")
    topics = {each["topic_name"] for each in nsqd.stats()["topics"]}
    assert {name for name in topics if name.startswith("digests")} == {"digests.a", "digests.b"}
    stage.check_logs()


# -- hosts: in this process, where the name server can be told what to say


def look_up(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, port))]


@pytest.fixture
def receiver() -> Any:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of tests lead to this machine."""
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *rest, **how: (look_up if str(host).endswith(".test") else real)(host, *rest, **how),
    )


def daemon_of(nsqd: Nsqd, redis_url: str, receiver: Receiver) -> DaemonHere:
    """Its only sink posts to a host of each tenant."""
    host, port = nsqd.tcp_address
    text = toml(
        {
            "nsq": {"nsqd_tcp_addresses": [f"{host}:{port}"]},
            "redis": {"url": redis_url, "namespace": "test"},
            "sinks.hook": {"type": "webhook", "url": f"http://{{tenant}}.tenants.test:{receiver.port}/hook",
                           "allow_http": True, "allow_hosts": ["127.0.0.0/8"], "concurrency": 4, "timeout": "2s"},
            "admin": {"listen": ""},
        },
        [ROUTE],
    )  # fmt: skip
    return DaemonHere(parse_text(text, "f.toml", {}, KINDS), KINDS)


@pytest.mark.usefixtures("lookups")
async def test_a_tenant_whose_host_is_dead_stops_no_other(nsqd: Nsqd, redis_url: str, receiver: Receiver) -> None:
    receiver.judge = lambda body: HANG if b'"tenant":"dead"' in body else OK
    daemon = daemon_of(nsqd, redis_url, receiver)
    await daemon.start()
    try:
        for number in range(40):
            event = {"id": "1", "timeline": f"dead {number}", "tenant": "dead"}
            nsqd.publish(TOPIC, json.dumps(event, separators=(",", ":")).encode())
        await until(lambda: receiver.posts, 10, "a post to the dead host")
        for number in range(40):
            event = {"id": "1", "timeline": f"well {number}", "tenant": f"t{number % 7}"}
            nsqd.publish(TOPIC, json.dumps(event, separators=(",", ":")).encode())
        await until(lambda: len(receiver.accepted()) == 40, 20, "the digests of the other hosts")
        assert {post.host for post in receiver.accepted()} == {f"t{number}.tenants.test" for number in range(7)}
        to_the_dead = [post for post in receiver.posts if post.host == "dead.tenants.test"]
        assert 1 <= len(to_the_dead) <= 8

        def line() -> str:
            return next(check.line for check in daemon.status.checks() if check.name == "sink hook")

        failed = r"\[!\] sink hook: delivering, but \d+ digests wait \(.*dead\.tenants\.test: no answer"
        await until(lambda: re.search(failed, line()), 10, failed)
    finally:
        receiver.answer(OK)
        receiver.judge = None
        await daemon.drain()


@pytest.mark.usefixtures("lookups")
async def test_a_flood_of_tenants_whose_hosts_are_dead_stops_no_other(
    nsqd: Nsqd, redis_url: str, receiver: Receiver
) -> None:
    receiver.judge = lambda body: HANG if b'"tenant":"dead' in body else OK
    daemon = daemon_of(nsqd, redis_url, receiver)
    await daemon.start()

    def has_posts(count: int) -> bool:
        return len(receiver.posts) >= count

    try:
        for count, tenants in ((1, ["well"]), (4, [f"dead{number}" for number in range(100)])):
            for tenant in tenants:
                event = {"id": "1", "timeline": tenant, "tenant": tenant}
                nsqd.publish(TOPIC, json.dumps(event, separators=(",", ":")).encode())
            await until(partial(has_posts, count), 10, f"a post to {tenants[0]}")
        for number in range(10):
            event = {"id": "1", "timeline": f"well {number}", "tenant": "well"}
            nsqd.publish(TOPIC, json.dumps(event, separators=(",", ":")).encode())
        await until(lambda: len(receiver.accepted()) == 11, 15, "the digests of the other host")
    finally:
        receiver.answer(OK)
        receiver.judge = None
        await daemon.drain()


@pytest.mark.parametrize(
    ("more", "is_batch"),
    [({"timestamp": "at"}, True), ({}, True), ({"timestamp": "at", "key": "{order}"}, False)],
    ids=["a timestamp in seconds", "the timestamp of the message", "a timestamp in seconds and a key"],
)
def test_of_equal_timestamps_the_latest_arrival_is_the_newest(
    stage: Stage, more: dict[str, str], *, is_batch: bool
) -> None:
    """Those of a batch arrive within microseconds, others milliseconds apart."""
    stage.nsqd()
    receiver = stage.receiver()
    policy = {"immediate": False, "minimum_delay": "2s", "maximum_delay": "2s", "capacity": 5}
    daemon = stage.daemon(
        {"sinks.hook": {"url": receiver.url + "/{tenant}"}, "policies.default": policy},
        [{"name": "events", "topic": TOPIC, "timeline": "all", "sink": "hook", **more}],
    )
    daemon.start()
    now_s = int(time.time())
    events = [{"tenant": f"tenant-{number}", "order": f"{number * 7 % 20}", "at": now_s} for number in range(20)]
    bodies = [json.dumps(event).encode() for event in events]
    if is_batch:
        stage.nsqds[0].publish_many(TOPIC, bodies)
    for body in [] if is_batch else bodies:
        stage.nsqds[0].publish(TOPIC, body)
        time.sleep(0.003)
    wait_until(receiver.accepted, 15, "the digest")
    (post,) = receiver.accepted()
    newest = [f"tenant-{number}" for number in (19, 18, 17, 16, 15)]
    assert [record["value"]["tenant"] for record in parsed(post.body)["data"]["records"]] == newest
    assert post.path == "/hook/tenant-19"
    stage.check_logs()
