"""TERM drains: what is stored is finished, the rest goes back to nsqd, and the daemon ends in time whatever is down.

A faulty daemon waits for something that lasts several minutes, so that it fails `ended`: `LONG_DRAIN` if the drain ends
by itself, `LONG_POST` and `LONG_CALL` if `drain_timeout` or a second TERM ends it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from functools import partial

import pytest

from support.daemon import Daemon
from support.ports import HOST
from support.publishing import Background
from support.receiver import HANG, OK
from support.servers import ServerError
from support.stage import CHANNEL, PROVE, QUIET, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

EVENTS = 20_000 if PROVE else 8_000
ROUNDS = 20 if PROVE else 2
MAX_IN_FLIGHT = 2_500
TOKEN = "a-long-enough-token"
SHORT_DRAIN = {"nsq": {"drain_timeout": "2s"}}
LONG_DRAIN = {"nsq": {"drain_timeout": "10m"}}
LONG_POST = {"sinks.hook": {"timeout": "10m"}, "scheduler": {"lease": "20m"}}
LONG_CALL = {"redis": {"timeout": "5m"}}


def ended(daemon: Daemon) -> None:
    assert daemon.wait() == 0, daemon.log_tail()


def nothing_is_in_flight(stage: Stage) -> None:
    # nsqd works on what it was told before the connection ended.
    wait_until(lambda: stage.in_flight() == 0, 5.0, "nothing to be in flight")
    assert [nsqd.channel_stats(TOPIC, CHANNEL)["timeout_count"] for nsqd in stage.nsqds] == [0] * len(stage.nsqds)


def all_is_in_flight(stage: Stage) -> bool:
    return stage.in_flight() == MAX_IN_FLIGHT


def test_term_under_load_leaves_nothing_in_flight_and_the_next_daemon_goes_on(stage: Stage) -> None:
    nsqd = stage.nsqd()
    receiver = stage.receiver()
    # nsqd's usual minute of msg_timeout: what were left in flight would be late for this test.
    daemon = stage.daemon({**QUIET, **LONG_DRAIN})
    daemon.start()
    publisher = stage.publisher(nsqd)
    with Background(publisher, EVENTS, per_s=5_000) as load:
        for number in range(ROUNDS):
            part = (number + 1) / (ROUNDS + 1)
            wait_until(partial(load.reached, part), 20, "some of the load")
            wait_until(lambda: receiver.posts, 10, "the first digest")
            daemon.term()
            ended(daemon)
            nothing_is_in_flight(stage)
            daemon.start()
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
    assert len(daemon.said("daemon.stopped")) == ROUNDS


def test_term_with_all_in_flight_and_a_slow_redis_finishes_what_is_stored_and_hands_back_the_rest(stage: Stage) -> None:
    nsqd = stage.nsqd()
    stage.receiver()
    daemon = stage.daemon({**QUIET, **LONG_DRAIN, **LONG_CALL})
    daemon.start()
    stage.hold_writes()
    stage.publisher(nsqd).publish(EVENTS)
    wait_until(partial(all_is_in_flight, stage), 10, "all places to be taken")
    daemon.term()
    wait_until(lambda: daemon.said("daemon.draining"), 5, "the drain")
    stage.let_writes_go()
    ended(daemon)
    nothing_is_in_flight(stage)
    # What was being written when TERM came was finished; all else waits for the next consumer, none of it delayed.
    stored = stage.ledger()["added"]
    left = nsqd.channel_stats(TOPIC, CHANNEL)
    assert 0 < stored < MAX_IN_FLIGHT
    assert (left["depth"], left["deferred_count"]) == (EVENTS - stored, 0)
    daemon.start()
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)


def test_a_second_term_with_all_in_flight_and_a_slow_redis_hands_everything_back_at_once(stage: Stage) -> None:
    nsqd = stage.nsqd()
    stage.receiver()
    daemon = stage.daemon({**LONG_DRAIN, **LONG_CALL})
    daemon.start()
    stage.hold_writes()
    stage.publisher(nsqd).publish(EVENTS)
    wait_until(partial(all_is_in_flight, stage), 10, "all places to be taken")
    daemon.term()
    wait_until(lambda: daemon.said("daemon.draining"), 5, "the drain")
    daemon.term()
    ended(daemon)
    nothing_is_in_flight(stage)
    left = nsqd.channel_stats(TOPIC, CHANNEL)
    assert (left["depth"], left["deferred_count"]) == (EVENTS, 0)
    stage.check_logs()


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
def test_term_while_an_nsqd_accepts_and_never_answers(stage: Stage, others: int) -> None:
    stage.receiver()
    for _ in range(others):
        stage.nsqd()
    with socket.create_server((HOST, 0)) as mute:
        others_and_mute = [*(nsqd.tcp_address for nsqd in stage.nsqds), (HOST, mute.getsockname()[1])]
        everyone = [f"{host}:{port}" for host, port in others_and_mute]
        daemon = stage.daemon({"nsq": {**LONG_DRAIN["nsq"], "nsqd_tcp_addresses": everyone}})
        daemon.launch()
        accepted, _ = mute.accept()
        with accepted:
            daemon.term()
            ended(daemon)
    stage.check_logs()


def test_term_while_an_nsqd_stands_still_does_not_wait_for_it(stage: Stage) -> None:
    """The drain may last long, and nothing is in flight."""
    nsqds = [stage.nsqd() for _ in range(2)]
    stage.receiver()
    daemon = stage.daemon(LONG_DRAIN)
    daemon.start()
    wait_until(lambda: daemon.metric("nsqd_connections", topic=TOPIC) == 2, 5, "both nsqds")
    nsqds[0].pause()
    daemon.term()
    ended(daemon)
    nsqds[0].resume()
    stage.check_logs()


def test_term_waits_for_a_delivery_under_way_and_closes_it(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    receiver.answer(OK, HANG)
    daemon = stage.daemon({**LONG_DRAIN, **LONG_POST})
    daemon.start()
    stage.publisher(nsqd, timelines=1).publish(1)
    wait_until(lambda: receiver.posts, 10, "a post")
    daemon.term()
    wait_until(lambda: daemon.said("daemon.draining"), 5, "the drain")
    receiver.answer(OK)  # lets the post go, unanswered
    ended(daemon)
    daemon.start()
    stage.wait_until_all_is_delivered()
    stage.check()
    assert [post.attempt for post in receiver.posts] == [1, 2]


def test_a_delivery_that_never_ends_does_not_hold_up_a_drain(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    receiver.answer(HANG)
    daemon = stage.daemon({**SHORT_DRAIN, **LONG_POST})
    daemon.start()
    stage.publisher(nsqd, timelines=1).publish(1)
    wait_until(lambda: receiver.posts, 10, "a post")
    daemon.term()
    ended(daemon)
    stage.check_logs()


def test_a_second_term_does_not_wait_for_a_delivery(stage: Stage) -> None:
    nsqd, receiver = stage.nsqd(), stage.receiver()
    receiver.answer(HANG)
    daemon = stage.daemon({**LONG_DRAIN, **LONG_POST})
    daemon.start()
    stage.publisher(nsqd, timelines=1).publish(1)
    wait_until(lambda: receiver.posts, 10, "a post")
    daemon.term()
    wait_until(lambda: daemon.said("daemon.draining"), 5, "the drain")
    daemon.term()
    ended(daemon)
    stage.check_logs()


@pytest.mark.parametrize("how", ["killed", "standing still"])
def test_term_while_redis_is_gone_ends_in_time_and_hands_everything_back(stage: Stage, how: str) -> None:
    nsqd, redis = stage.nsqd(), stage.redis()
    receiver = stage.receiver()
    receiver.answer(OK)
    daemon = stage.daemon({**SHORT_DRAIN, **LONG_CALL})
    daemon.start()
    publisher = stage.publisher(nsqd)
    publisher.publish(500)
    wait_until(lambda: receiver.posts, 10, "the first digest")
    if how == "killed":
        redis.kill()
    else:
        redis.pause()
    publisher.publish(2_000)
    wait_until(lambda: stage.in_flight() > 0 or daemon.said("consumer.topic.backoff"), 10, "messages to be under way")
    daemon.term()
    ended(daemon)
    nothing_is_in_flight(stage)
    stage.check_logs()


def test_a_second_term_while_redis_stands_still_ends_at_once(stage: Stage) -> None:
    nsqd, redis = stage.nsqd(), stage.redis()
    stage.receiver()
    daemon = stage.daemon({**LONG_DRAIN, **LONG_CALL})
    daemon.start()
    redis.pause()
    stage.publisher(nsqd).publish(2_000)
    wait_until(lambda: stage.in_flight() > 0, 10, "messages to be under way")
    daemon.term()
    wait_until(lambda: daemon.said("daemon.draining"), 5, "the drain")
    daemon.term()
    ended(daemon)
    stage.check_logs()


def test_a_right_that_is_given_later_lets_the_daemon_start(stage: Stage) -> None:
    stage.nsqd()
    redis = stage.redis()
    stage.receiver()
    redis.cli("ACL", "SETUSER", "default", "-hsetnx")
    daemon = stage.daemon(LONG_DRAIN)
    daemon.launch()
    wait_until(lambda: daemon.said("daemon.store.waiting"), 10, "it to wait for the right")
    (line, *_) = daemon.said("daemon.store.waiting")
    assert line["reason"] == "redis-auth"
    assert "user default may not send hsetnx; ACL SETUSER default +hsetnx" in line["error"]
    redis.cli("ACL", "SETUSER", "default", "+hsetnx")
    wait_until(daemon.is_ready, 15, "it to start")
    daemon.term()
    ended(daemon)
    stage.check_logs()


def test_term_before_the_store_was_ever_reached(stage: Stage) -> None:
    stage.nsqd()
    redis = stage.redis()
    stage.receiver()
    redis.stop()
    daemon = stage.daemon(LONG_DRAIN)
    daemon.launch()
    wait_until(lambda: daemon.said("daemon.store.waiting"), 10, "it to wait for Redis")
    daemon.term()
    ended(daemon)
    stage.check_logs()


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(
            b"POST /api/pause HTTP/1.1\r\nhost: a\r\nauthorization: Bearer %s\r\ncontent-type: application/json\r\n"
            b"content-length: 50\r\n\r\n{" % TOKEN.encode(),
            id="sends half a body",
        ),
        pytest.param(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n" * 3_000, id="reads no answer"),
    ],
)
def test_a_client_of_the_admin_address_does_not_hold_up_a_drain(stage: Stage, request_bytes: bytes) -> None:
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon(SHORT_DRAIN)
    daemon.admin = {"token": TOKEN}
    daemon.start()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        client.connect((HOST, daemon.ports[0]))
        client.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            client.sendall(request_bytes)
        daemon.get("/livez")  # what was sent before has been read by now
        daemon.term()
        ended(daemon)
    stage.check_logs()


def test_signals_until_the_very_end_do_not_change_how_it_ends(stage: Stage) -> None:
    stage.nsqd()
    stage.receiver()
    daemon = stage.daemon()
    daemon.start()
    daemon.term()
    wait_until(lambda: daemon.said("daemon.stopped"), 5, "the end of the drain")
    while daemon.running:
        with contextlib.suppress(ServerError):  # it has ended since
            daemon.term()
        time.sleep(0.001)
    assert daemon.wait() == 0, daemon.log_tail()
