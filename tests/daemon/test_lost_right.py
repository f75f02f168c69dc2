"""A right of the daemon's user is taken away while it runs, and given back: Redis stops scripts between two writes."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from nsqdigest.audit.ledger import balances
from support.servers import Nsqd
from support.stage import TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

ORDERS = 5
ROUTE = {"name": "events", "topic": TOPIC, "timeline": "{order}", "key": "{order}", "sink": "hook"}


def publish(nsqd: Nsqd, number: int) -> None:
    """An event of each order."""
    bodies = [json.dumps({"id": f"{order}-{number}", "order": f"o{order}", "n": number}) for order in range(ORDERS)]
    nsqd.publish_many(TOPIC, [body.encode() for body in bodies])


@pytest.mark.parametrize("right", ["unlink", "pexpire"])
def test_each_event_is_shown_and_none_instead_of_another(stage: Stage, right: str) -> None:
    nsqd, redis, receiver = stage.nsqd(), stage.redis(), stage.receiver()
    # No post is made again because an answer is late: each that comes again is of the store.
    daemon = stage.daemon({"sinks.hook": {"timeout": "3s"}, "scheduler": {"lease": "6s"}}, [ROUTE])
    daemon.start()
    redis.cli("ACL", "SETUSER", "default", f"-{right}")
    publish(nsqd, 1)
    wait_until(lambda: daemon.said("scheduler.digest.left"), 20, "ends that fail until their leases are over")
    posts_before = len(receiver.posts)
    publish(nsqd, 2)
    wait_until(lambda: daemon.metric("store_errors_total", reason="redis-auth") >= 10, 20, "the daemon to try again")
    assert len(receiver.posts) - posts_before <= 2 * ORDERS, "it goes on posting what it cannot end"
    redis.cli("ACL", "SETUSER", "default", f"+{right}")
    publish(nsqd, 3)

    def all_is_delivered() -> bool:
        ledger = stage.ledger()
        return nsqd.unfinished(TOPIC, "nsqdigest") == 0 and not ledger.get("open") and not ledger.get("snapshots")

    wait_until(all_is_delivered, 30, "all digests to be ended")
    times = Counter(value["id"] for value in receiver.values())
    assert set(times.values()) == {1}, "shown under two ids"
    for order in range(ORDERS):
        numbers = [value["n"] for value in receiver.values() if value["order"] == f"o{order}"]
        assert numbers[-1] == 3, numbers
        assert 1 in numbers, numbers
    assert receiver.ids_with_two_bodies() == []
    ledger = stage.ledger()
    assert balances(ledger), ledger
    assert not any(count for field, count in ledger.items() if field.startswith("dropped:") or field == "buried"), (
        ledger
    )
    wait_until(lambda: daemon.metric("store_up") == 1, 10, "the store to be well again")
    stage.check_logs()
