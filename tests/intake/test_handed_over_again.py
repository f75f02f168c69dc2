"""nsqd hands a message over again when its time is over: Redis still took its time with it, or this process stood
still."""

from __future__ import annotations

from functools import partial

import pytest

from nsqdigest.config import Address
from nsqdigest.consumer import POSSIBLE_REPEAT_FRACTION
from nsqdigest.intake.batch import Arrival
from support.daemon import Daemon, Settings
from support.intake import config_of, consumer_of, running
from support.servers import Nsqd
from support.stage import CHANNEL, QUIET, TOPIC, Stage
from support.waiting import until, wait_until

pytestmark = pytest.mark.integration

EVENTS = 100


def daemon_with_a_short_message_timeout(stage: Stage, redis_timeout: str, settings: Settings | None = None) -> Daemon:
    stage.receiver()
    nsq = {"msg_timeout": "1s", "max_in_flight": EVENTS}
    daemon = stage.daemon({**(settings or {}), "nsq": nsq, "redis": {"timeout": redis_timeout}})
    daemon.start()
    return daemon


def all_timed_out(nsqd: Nsqd) -> bool:
    return int(nsqd.channel_stats(TOPIC, CHANNEL)["timeout_count"]) >= EVENTS


def test_while_a_write_hangs_beyond_msg_timeout_nothing_more_is_asked_for(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = daemon_with_a_short_message_timeout(stage, "20s", QUIET)
    stage.hold_writes()
    stage.publisher(nsqd).publish(EVENTS)
    wait_until(partial(all_timed_out, nsqd), 15, "nsqd to take back each message")
    wait_until(lambda: daemon.said("consumer.topic.overdue"), 5, "the daemon to notice")
    assert (stage.in_flight(), nsqd.channel_stats(TOPIC, CHANNEL)["depth"]) == (0, EVENTS)
    stage.let_writes_go()
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
    # Each came once more, when the write had ended, and none went back and forth meanwhile.
    assert nsqd.channel_stats(TOPIC, CHANNEL)["timeout_count"] == EVENTS
    assert daemon.metric("messages_received_total") <= 3 * EVENTS


def test_when_the_store_fails_after_msg_timeout_each_message_comes_once_more_and_is_stored(stage: Stage) -> None:
    nsqd = stage.nsqd()
    daemon = daemon_with_a_short_message_timeout(stage, "8s")  # nsqd looks at new channels every 5 s
    stage.store.pause()
    stage.publisher(nsqd).publish(EVENTS)
    wait_until(partial(all_timed_out, nsqd), 15, "nsqd to take back each message")
    wait_until(lambda: daemon.said("consumer.store.failed"), 15, "the store to fail")
    stage.store.resume()
    stage.wait_until_all_is_delivered()
    stage.check()
    assert nsqd.channel_stats(TOPIC, CHANNEL)["in_flight_count"] == 0


async def test_after_a_standstill_what_comes_may_be_a_repeat_whatever_the_msg_timeout_of_the_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient, patient = stage.nsqd("--msg-timeout=1s"), stage.nsqd("--msg-timeout=60s")
    stage.receiver()
    async with running(config_of(stage)) as daemon:
        consumer = consumer_of(daemon)
        await until(lambda: consumer.connected == 2, what="both to be connected")
        arrivals: list[Arrival] = []
        put = consumer._batches.put

        def note(arrival: Arrival) -> None:
            arrivals.append(arrival)
            put(arrival)

        monkeypatch.setattr(consumer._batches, "put", note)
        monkeypatch.setattr(consumer, "_ticked_s", consumer._ticked_s - 10.0)
        for nsqd in (impatient, patient):
            nsqd.publish(TOPIC, b'{"id":"1","timeline":"t"}')
        await until(lambda: len(arrivals) == 2, what="both messages")
        assert {each.connection.address for each in arrivals} == {
            Address(*nsqd.tcp_address) for nsqd in (impatient, patient)
        }
        for each in arrivals:
            arrived_s, timeout_s = each.connection.message_at_s, each.connection.msg_timeout_s
            assert each.repeat_at_s == pytest.approx(arrived_s, abs=0.1)
            assert each.expired_at_s == pytest.approx(arrived_s + (1 - POSSIBLE_REPEAT_FRACTION) * timeout_s, abs=0.1)
