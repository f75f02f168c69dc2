"""Processes are killed and stopped under load; every event that nsqd took is in a digest that the receiver accepted.

Always the same at the end: nothing is lost, no digest id ever came with two bodies, the ledger balances. Events go on
being published while the fault happens. With NSQDIGEST_PROVE=1 there are more events, more rounds and random moments;
their seed is shown when a test fails, and NSQDIGEST_SEED=… takes it again.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from functools import partial

import pytest

from support.daemon import Daemon, Settings
from support.publishing import Background, Publisher
from support.receiver import OK, Answer, Receiver
from support.servers import Server
from support.stage import DURABLE, PROVE, QUIET, Stage
from support.waiting import wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.servers]

EVENTS = 100_000 if PROVE else 20_000
FEWER = EVENTS // 2
EVENTS_PER_S = 6_000
ROUNDS = 8 if PROVE else 1
STOPPED_S = 5.0
SETTLED_WITHIN_S = 90.0 if PROVE else 40.0

# A killed daemon's messages come back after this, and not after nsqd's usual minute.
SHORT_TIMEOUT = {"nsq": {"msg_timeout": "2s"}}


def moments() -> Iterator[float]:
    """When a fault happens: parts of the load that must have been published, one for each round."""
    if not PROVE:
        yield 0.4
        return
    seed = int(os.environ.get("NSQDIGEST_SEED") or random.SystemRandom().randrange(1 << 32))
    sys.stdout.write(f"NSQDIGEST_SEED={seed}\n")
    yield from sorted(random.Random(seed).uniform(0.1, 0.9) for _ in range(ROUNDS))


def path_under_test(
    stage: Stage, daemons: int = 1, settings: Settings = SHORT_TIMEOUT
) -> tuple[Publisher, list[Daemon]]:
    nsqd = stage.nsqd()
    stage.redis(*DURABLE)
    stage.receiver()
    started = [stage.daemon(settings) for _ in range(daemons)]
    for daemon in started:
        daemon.start()
    return stage.publisher(nsqd), started


def busy(stage: Stage, load: Background, part: float) -> None:
    """The load has come so far, and digests are going out."""
    wait_until(lambda: load.reached(part), 60, f"{part:.0%} of the load to be published")
    wait_until(lambda: stage.receivers[0].posts, 20, "the first digest")


def stopped_for_a_while(server: Server) -> None:
    """That it stands still for so long is the fault itself: the clock is looked at, not slept by."""
    server.pause()
    began_s = time.monotonic()
    try:
        wait_until(lambda: time.monotonic() - began_s >= STOPPED_S, STOPPED_S + 5, "the end of the pause")
    finally:
        server.resume()


def failing(receiver: Receiver, since: int) -> bool:
    return sum(not post.answer.accepts for post in receiver.posts[since:]) >= 3


def received_more(daemon: Daemon, than: float, load: Background) -> bool:
    return load.is_done or daemon.metric("messages_received_total") > than


def settle(stage: Stage) -> None:
    stage.wait_until_all_is_delivered(SETTLED_WITHIN_S)
    stage.check()


def test_a_killed_daemon_loses_nothing(stage: Stage) -> None:
    publisher, (daemon,) = path_under_test(stage)
    with Background(publisher, EVENTS, per_s=EVENTS_PER_S) as load:
        for moment in moments():
            busy(stage, load, moment)
            daemon.kill()
            daemon.start()
    settle(stage)


def test_a_killed_redis_that_logs_every_write_loses_nothing(stage: Stage) -> None:
    publisher, (daemon,) = path_under_test(stage)
    with Background(publisher, EVENTS, per_s=EVENTS_PER_S) as load:
        for moment in moments():
            busy(stage, load, moment)
            stage.store.kill()
            wait_until(lambda: daemon.metric("backoff_level") > 0, 10, "the daemon to step back")
            stage.store.start()
    settle(stage)


def test_a_daemon_that_stands_still_loses_nothing(stage: Stage) -> None:
    publisher, (daemon,) = path_under_test(stage)
    with Background(publisher, EVENTS, per_s=EVENTS_PER_S) as load:
        for moment in moments():
            busy(stage, load, moment)
            stopped_for_a_while(daemon)
    settle(stage)


def test_a_redis_that_stands_still_loses_nothing(stage: Stage) -> None:
    publisher, (daemon,) = path_under_test(stage)
    with Background(publisher, EVENTS, per_s=EVENTS_PER_S) as load:
        for moment in moments():
            busy(stage, load, moment)
            stopped_for_a_while(stage.store)
    assert daemon.said("consumer.store.failed")
    settle(stage)


def test_redis_and_all_daemons_killed_with_writes_under_way_lose_nothing(stage: Stage) -> None:
    """What was finished before Redis had it would be lost here."""
    publisher, daemons = path_under_test(stage, daemons=2)
    with Background(publisher, FEWER, per_s=EVENTS_PER_S) as load:
        for moment in moments():
            busy(stage, load, moment)
            stage.store.pause()
            for daemon in daemons:
                received = daemon.metric("messages_received_total")
                wait_until(partial(received_more, daemon, received, load), 10, "messages that Redis will never have")
            stage.store.kill()
            for daemon in daemons:
                daemon.kill()
            stage.store.start()
            for daemon in daemons:
                daemon.start()
    settle(stage)


def test_daemons_killed_while_redis_stands_still_lose_nothing(stage: Stage) -> None:
    """Their last writes are in its socket and are done when it goes on: after the daemons are dead."""
    publisher, (daemon,) = path_under_test(stage)
    with Background(publisher, FEWER, per_s=EVENTS_PER_S) as load:
        for moment in moments():
            busy(stage, load, moment)
            stage.store.pause()
            daemon.kill()
            stage.store.resume()
            daemon.start()
    settle(stage)


def test_the_other_daemon_takes_over_from_a_killed_one(stage: Stage) -> None:
    publisher, (victim, other) = path_under_test(stage, daemons=2)
    with Background(publisher, FEWER, per_s=EVENTS_PER_S) as load:
        busy(stage, load, 0.4)
        victim.kill()
    settle(stage)
    assert other.metric("records_added_total") > 0


def test_a_daemon_killed_while_its_receiver_fails_sends_the_same_bodies_again(stage: Stage) -> None:
    """Close before send, or a new body for an old id, would show here."""
    publisher, (daemon,) = path_under_test(stage)
    receiver = stage.receivers[0]
    with Background(publisher, FEWER // 2, per_s=EVENTS_PER_S) as load:
        for moment in moments():
            busy(stage, load, moment)
            receiver.answer(Answer(500))
            wait_until(partial(failing, receiver, len(receiver.posts)), 10, "posts that fail")
            daemon.kill()
            daemon.start()
            receiver.answer(OK)
    settle(stage)


def test_two_daemons_in_quiet_deliver_each_digest_once(stage: Stage) -> None:
    publisher, _ = path_under_test(stage, daemons=2, settings=QUIET)
    publisher.publish(FEWER // 5)
    stage.wait_until_all_is_delivered(SETTLED_WITHIN_S)
    stage.check(quiet=True)  # which of them delivers is chance: one may be quicker with all
