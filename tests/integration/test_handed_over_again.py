"""nsqd hands a message over again while Redis still takes its time with the first hand-over: it is worked on once."""

from __future__ import annotations

from functools import partial

from support.daemon import Daemon
from support.stage import CHANNEL, TOPIC, Stage
from support.waiting import wait_until

EVENTS = 100


def daemon_with_a_short_message_timeout(stage: Stage, redis_timeout: str) -> Daemon:
    stage.receiver()
    daemon = stage.daemon({"nsq": {"msg_timeout": "1s"}, "redis": {"timeout": redis_timeout}})
    daemon.start()
    return daemon


def handed_over(daemon: Daemon, times: int) -> bool:
    return daemon.metric("messages_received_total") >= times * EVENTS


def test_a_message_handed_over_again_while_it_is_stored_is_stored_and_finished_once(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = daemon_with_a_short_message_timeout(stage, "20s")
    stage.hold_writes()
    stage.publisher(nsqd).publish(EVENTS)
    wait_until(partial(handed_over, daemon, 3), 15, "each message to be handed over three times")
    stage.let_writes_go()
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
    assert daemon.metric("messages_handed_over_again_total") > 0
    assert daemon.metric("records_added_total") == EVENTS
    assert daemon.metric("messages_finished_total") == EVENTS
    # Each was in flight once for nsqd, and ended by one word: no FIN came too late.
    assert daemon.metric("messages_refused_total") == 0
    assert nsqd.channel_stats(TOPIC, CHANNEL)["requeue_count"] == 0


def test_when_the_store_fails_a_message_handed_over_again_goes_back_and_comes_once_more(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = daemon_with_a_short_message_timeout(stage, "8s")  # nsqd looks at new channels every 5 s
    stage.store.pause()
    stage.publisher(nsqd).publish(EVENTS)
    wait_until(partial(handed_over, daemon, 2), 15, "each message to be handed over twice")
    wait_until(lambda: daemon.said("consumer.store.failed"), 15, "the store to fail")
    stage.store.resume()
    stage.wait_until_all_is_delivered()
    stage.check()
    assert nsqd.channel_stats(TOPIC, CHANNEL)["in_flight_count"] == 0
