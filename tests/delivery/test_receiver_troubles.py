"""A receiver that is down, slow or says no: the same digest comes again, under its id and byte for byte, and nobody
else notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from support.daemon import Daemon, Settings
from support.publishing import Publisher
from support.receiver import DROP, GARBAGE, HANG, OK, Answer, Post, Receiver, parsed
from support.stage import NAMESPACE, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

Route = dict[str, Any]

ROUTE: Route = {"name": "events", "topic": TOPIC, "timeline": "{timeline}", "key": "{id}", "sink": "hook"}
BOTH_ROUTES = [ROUTE, {**ROUTE, "name": "others", "sink": "second"}]


def ready(
    stage: Stage, settings: Settings | None = None, routes: Sequence[Route] = (ROUTE,)
) -> tuple[Publisher, Daemon]:
    nsqd = stage.nsqd()
    for _ in routes:
        stage.receiver()
    daemon = stage.daemon(settings, list(routes))
    daemon.start()
    return stage.publisher(nsqd, timelines=1), daemon


def until_posts(receiver: Receiver, count: int, timeout_s: float = 10.0) -> list[Post]:
    wait_until(lambda: len(receiver.posts) >= count, timeout_s, f"{count} posts")
    return receiver.posts


def is_one_digest(posts: list[Post]) -> bool:
    return len({(post.id, post.body) for post in posts}) == 1


TROUBLES = [*map(Answer, (500, 503, 302, 401, 403, 404, 405, 408, 425, 599)), HANG, DROP, GARBAGE]
QUICK_TO_PROBE = {"backoff": {"base": "10ms", "max_duration": "50ms"}}
HASTY = {"sinks.hook": {"timeout": "300ms", "retry_cap": "50ms"}, "backoff": {"base": "10ms", "max_duration": "50ms"}}


def test_the_same_bytes_come_again_until_they_are_accepted(stage: Stage) -> None:
    publisher, daemon = ready(stage, HASTY)
    receiver = stage.receivers[0]
    receiver.answer(OK, *TROUBLES)
    publisher.publish(1)
    until_posts(receiver, 1)
    publisher.publish(1)  # of the same timeline: it is not in the digest that is under way, but in the next
    stage.wait_until_all_is_delivered()
    stage.check()
    *again, _ = receiver.posts
    assert is_one_digest(again)
    assert [post.attempt for post in again] == list(range(1, len(again) + 1))
    assert len(again) > len(TROUBLES)  # one more for each answer that a busy machine gives too late
    assert [data["iteration"] for data in receiver.digests()] == [1, 2]
    wait_until(lambda: daemon.metric("digest_attempts_total", sink="hook", outcome="delivered") == 2, 5, "the count")


def test_a_receiver_that_is_down_shows_as_its_sinks_backoff_and_other_sinks_go_on(stage: Stage) -> None:
    publisher, daemon = ready(stage, routes=BOTH_ROUTES)
    publisher.publish(1)
    sick, well = stage.receivers
    wait_until(lambda: daemon.metric("digests_delivered_total", sink="hook") == 1, 10, "the first digest")
    sick.down()
    # Once it is known to be down nothing of it is opened but its probe: what piles up goes out as one digest.
    publisher.publish(5)
    wait_until(lambda: daemon.metric("sink_backoff_level", sink="hook") >= 2, 10, "the sink to step back")
    for _ in range(3):
        before = len(well.posts)
        publisher.publish(10)
        until_posts(well, before + 1)
    assert daemon.metric("sink_backoff_level", sink="second") == 0
    assert daemon.metric("backoff_level", topic=TOPIC) == 0
    assert daemon.is_ready()
    assert len(sick.posts) == 1

    sick.up()
    stage.wait_until_all_is_delivered()
    wait_until(lambda: not stage.ledger("others").get("open"), 10, "the other route")
    stage.check()
    assert len(sick.accepted()) <= 3
    assert sick.accepted()[1].attempt > 1

    def is_well() -> bool:
        publisher.publish(1)  # each digest that is accepted is a probe
        return daemon.metric("sink_backoff_level", sink="hook") == 0

    wait_until(is_well, 10, "the sink to be well again")


def test_retry_after_is_a_floor(stage: Stage) -> None:
    publisher, _ = ready(stage)
    receiver = stage.receivers[0]
    receiver.answer(OK, Answer(429, {"retry-after": "1"}), Answer(503, {"retry-after": "1"}))
    publisher.publish(1)
    posts = until_posts(receiver, 3)
    assert is_one_digest(posts)
    assert all(later.at_s - earlier.at_s >= 1.0 for earlier, later in pairwise(posts))


@pytest.mark.parametrize("status", [429, 503])
def test_no_digest_at_all_is_posted_in_the_time_that_the_receiver_asks_for(stage: Stage, status: int) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    receiver.answer(OK, *[Answer(status, {"retry-after": "3"})] * 2)
    for _ in range(2):
        stage.daemon({"sinks.hook": {"concurrency": 1, "retry_base": "50ms"}, **QUICK_TO_PROBE}).start()
    stage.publisher(nsqd, timelines=40).publish(40)
    wait_until(lambda: len(receiver.accepted()) == 40, 30, "all digests")
    # Each daemon learns of it by a post of its own.
    silence = [post for post in receiver.posts if post.at_s - receiver.posts[0].at_s < 2.9]
    assert 1 <= len(silence) <= 2
    assert {post.answer.status for post in silence} == {status}
    stage.check()


def test_a_long_retry_after_is_cut(stage: Stage) -> None:
    publisher, _ = ready(stage, {"sinks.hook": {"retry_after_max": "200ms"}})
    receiver = stage.receivers[0]
    receiver.answer(OK, Answer(429, {"retry-after": "86400"}))
    publisher.publish(1)
    assert is_one_digest(until_posts(receiver, 2))


@pytest.mark.parametrize("status", [400, 422])
def test_a_digest_that_is_refused_three_times_is_dead_and_the_timeline_goes_on(stage: Stage, status: int) -> None:
    publisher, daemon = ready(stage)
    receiver = stage.receivers[0]
    receiver.answer(OK, *[Answer(status)] * 3)
    publisher.publish(3)
    posts = until_posts(receiver, 3)
    assert is_one_digest(posts[:3])
    wait_until(lambda: stage.ledger().get("buried"), 5, "the digest to be buried")
    buried = parsed(posts[0].body)["data"]
    tag = f"{{{NAMESPACE}:0}}:"
    assert stage.store.cli("ZRANGE", f"{tag}dead", 0, -1) == [posts[0].id.encode()]
    assert stage.ledger()["buried"] == buried["total"]
    assert stage.store.cli("ZCARD", f"{tag}dead-set:{posts[0].id}") == buried["total"]
    wait_until(lambda: daemon.metric("digests_buried_total", sink="hook", reason="refused") == 1, 5, "the count")
    publisher.publish(1)
    wait_until(lambda: any(value["id"] == "p-3" for value in receiver.values()), 10, "the next digest")
    assert receiver.posts[3].id != posts[0].id
    stage.check_logs()


def test_a_receiver_that_is_gone_gets_nothing_until_the_daemon_starts_anew(stage: Stage) -> None:
    publisher, daemon = ready(stage)
    receiver = stage.receivers[0]
    receiver.answer(Answer(410))
    publisher.publish(2)
    wait_until(lambda: daemon.said("scheduler.sink.stopped"), 10, "the sink to stop")
    publisher.publish(5)
    wait_until(lambda: stage.unfinished() == 0, 5, "intake, which goes on")
    receiver.answer(OK)
    daemon.term()
    assert daemon.wait() == 0
    assert len(receiver.posts) == 1
    assert not receiver.accepted()
    daemon.start()
    stage.wait_until_all_is_delivered()
    stage.check()
    assert is_one_digest(receiver.posts[:2])
    assert receiver.posts[1].attempt == 1, "an attempt that the receiver was not there for does not count"


@pytest.mark.parametrize("end", ["killed", "drained"])
def test_attempts_count_over_restarts(stage: Stage, end: str) -> None:
    publisher, daemon = ready(stage)
    receiver = stage.receivers[0]
    receiver.answer(Answer(500))
    publisher.publish(1)
    for so_far in (2, 4):
        until_posts(receiver, so_far)
        if end == "killed":
            daemon.kill()
        else:
            daemon.term()
            assert daemon.wait() == 0
        daemon.start()
    receiver.answer(OK)
    stage.wait_until_all_is_delivered()
    stage.check()
    assert is_one_digest(receiver.posts)
    attempts = [post.attempt for post in receiver.posts]
    assert attempts[0] == 1
    # A kill between a post and its count lets a number come twice; none is left out.
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(attempts))
    assert attempts[-1] >= len(attempts) - 2


QUOTING = 'bad records: [{"user": "carol", "password": "hunter2"}]'


@pytest.mark.parametrize("level", ["info", "debug"])
def test_what_a_receiver_quotes_is_in_the_dead_store_and_in_no_log_above_debug(stage: Stage, level: str) -> None:
    publisher, daemon = ready(stage, {**HASTY, "log": {"level": level}})
    refused, failed = Answer(400, text=QUOTING), Answer(500, text=QUOTING)
    stage.receivers[0].answer(Answer(410, text=QUOTING), failed, *[refused] * 2)
    publisher.publish(1)
    wait_until(lambda: daemon.metric("digests_buried_total"), 10, "the digest to be dead")
    publisher.publish(1)
    wait_until(lambda: daemon.said("scheduler.sink.stopped"), 10, "the sink to stop")
    assert ("hunter2" in daemon.log_text()) == (level == "debug")
    (details,) = stage.store.cli("HVALS", f"{{{NAMESPACE}:0}}:dead:details")
    assert b"hunter2" in details


def test_nor_is_there_any_of_what_is_no_http_nor_of_the_url(stage: Stage) -> None:
    publisher, daemon = ready(stage, HASTY)
    stage.receivers[0].answer(OK, replace(GARBAGE, text=QUOTING))
    publisher.publish(1)
    stage.wait_until_all_is_delivered()
    (line,) = daemon.said("scheduler.digest.failed")
    assert line["detail"].startswith("no HTTP")
    assert "hunter2" not in daemon.log_text()
    assert "/hook" not in daemon.log_text()
