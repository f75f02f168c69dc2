"""A start whose Redis is a replica waits until it is a primary: a failover may be in progress."""

from __future__ import annotations

import pytest

from nsqdigest.base.errors import EXIT_UNREACHABLE
from support.daemon import run_command
from support.ports import HOST, free_port
from support.redis_sets import info
from support.stage import Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_a_daemon_waits_for_a_replica_to_become_a_primary_and_commands_do_not(stage: Stage) -> None:
    nsqd, redis = stage.nsqd(), stage.redis()
    stage.receiver()
    redis.cli("REPLICAOF", HOST, free_port())
    daemon = stage.daemon()
    daemon.launch()
    wait_until(lambda: daemon.said("daemon.store.waiting"), what="it to wait for Redis")
    line = daemon.said("daemon.store.waiting")[0]
    assert line["reason"] == "redis-readonly"
    assert "redis.url names a replica" in line["error"]
    assert "name its primary, unless it is about to become one" in line["error"]
    status, text = daemon.get("/readyz?verbose")
    assert (status, "not usable yet: redis-readonly: redis.url names a replica" in text) == (503, True)

    command = run_command("timelines", "-c", str(daemon.config_path))
    assert command.returncode == EXIT_UNREACHABLE
    assert "redis.url names a replica" in command.stderr

    redis.cli("REPLICAOF", "NO", "ONE")
    wait_until(daemon.is_ready, what="it to start")
    stage.publisher(nsqd).publish(10)
    stage.wait_until_all_is_delivered()
    stage.check()


def test_a_running_daemon_goes_on_when_its_replica_becomes_a_primary(stage: Stage) -> None:
    nsqd, redis = stage.nsqd(), stage.redis()
    stage.receiver()
    daemon = stage.daemon()
    daemon.start()
    redis.cli("REPLICAOF", HOST, free_port())
    stage.publisher(nsqd).publish(10)
    wait_until(lambda: daemon.said("consumer.topic.backoff"), what="a refused write")
    redis.cli("REPLICAOF", "NO", "ONE")
    stage.wait_until_all_is_delivered()
    assert info(redis, "replication")["role"] == "master"
