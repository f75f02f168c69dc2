"""Redis is at its maxmemory: intake stops, deliveries go on, nothing is lost, and it recovers by itself."""

from __future__ import annotations

import pytest

from support.stage import CHANNEL, QUIET, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

BEFORE, MEANWHILE = 2_000, 3_000
BALLAST_BYTES = 16 << 20


def ready_counts(stage: Stage) -> list[int]:
    return [client["ready_count"] for client in stage.nsqds[0].channel_stats(TOPIC, CHANNEL)["clients"]]


def fill(stage: Stage) -> None:
    """So far beyond its maxmemory that no delivery frees enough of it."""
    stage.store.cli("SET", "ballast", bytes(BALLAST_BYTES))
    stage.store.cli("CONFIG", "SET", "maxmemory", BALLAST_BYTES // 2)


def test_intake_stops_and_deliveries_go_on_until_there_is_room_again(stage: Stage) -> None:
    nsqd = stage.nsqd()
    redis = stage.redis("--maxmemory-policy", "noeviction")
    receiver = stage.receiver()
    # Redis has to be full before the second digests are opened.
    policy = {"minimum_delay": "3s", "maximum_delay": "4s"}
    daemon = stage.daemon({**QUIET, "redis": {"timeout": "5s"}, "policies.default": policy})
    daemon.start()
    publisher = stage.publisher(nsqd, timelines=100)

    # The first event of each timeline goes out at once, so there are records that wait for the second digest.
    publisher.publish(BEFORE)
    wait_until(lambda: stage.ledger().get("added") == BEFORE and stage.unfinished() == 0, 15, "all events to be stored")
    fill(stage)
    delivered_before = daemon.metric("digests_delivered_total")
    publisher.publish(MEANWHILE)

    wait_until(lambda: daemon.metric("backoff_level", topic=TOPIC) > 0, 10, "the daemon to step back")
    wait_until(lambda: ready_counts(stage) == [0], 10, "RDY 0 at nsqd")
    reasons = {line["reason"] for line in daemon.said("consumer.store.failed")}
    assert reasons == {"redis-full"}
    added = stage.ledger()["added"]
    assert added == BEFORE

    wait_until(
        lambda: (ledger := stage.ledger())["open"] == 0 and ledger["snapshots"] == 0, 15, "all that waited to go out"
    )
    assert daemon.metric("digests_delivered_total") > delivered_before
    assert len(receiver.values()) == BEFORE
    assert stage.ledger()["added"] == BEFORE
    wait_until(lambda: stage.unfinished() == MEANWHILE, 5, "all of the others to be at nsqd")
    assert not daemon.said("scheduler.store.failed")
    assert not daemon.said("scheduler.digest.left")

    redis.cli("CONFIG", "SET", "maxmemory", 0)
    stage.wait_until_all_is_delivered()
    stage.check(quiet=True)
    wait_until(lambda: daemon.metric("backoff_level", topic=TOPIC) == 0, 10, "the daemon to flow again")
