"""Keys in Redis that something else wrote: what is damaged stops itself, and nothing beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsqdigest.audit.ledger import balances, unfinished
from support.daemon import Daemon, run_command
from support.publishing import Publisher
from support.receiver import Receiver
from support.servers import Nsqd
from support.stage import NAMESPACE, TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

OTHER = "others"
TAG = f"{{{NAMESPACE}:0}}:"


@pytest.fixture
def receiver(stage: Stage) -> Receiver:
    return stage.receiver()


@pytest.fixture
def nsqd(stage: Stage, receiver: Receiver) -> Nsqd:
    return stage.nsqd()


@pytest.fixture
def daemon(stage: Stage, nsqd: Nsqd) -> Iterator[Daemon]:
    nsqd.create_channel(OTHER, "nsqdigest")
    of_timelines = {"timeline": "{timeline}", "key": "{id}", "sink": "hook"}
    daemon = stage.daemon(routes=[{"topic": TOPIC, **of_timelines}, {"topic": OTHER, **of_timelines}])
    daemon.start()
    yield daemon
    assert daemon.bugs() == []


def shown(receiver: Receiver) -> set[str]:
    return {value["id"] for value in receiver.values()}


@pytest.mark.parametrize("kind", ["set", "digest"])
def test_a_damaged_timeline_stops_no_other(
    stage: Stage, receiver: Receiver, nsqd: Nsqd, daemon: Daemon, kind: str
) -> None:
    stage.store.cli("SET", f"{TAG}{kind}:{TOPIC}:t0", "planted")
    publisher = stage.publisher(nsqd, timelines=4)
    rounds = 0

    def others_are_shown() -> bool:
        return {f"p-{number}" for number in range(rounds * 20) if number % 4} <= shown(receiver)

    while rounds < 3:
        publisher.publish(20)
        rounds += 1
        wait_until(others_are_shown, 20, "the other timelines' digests")
    wait_until(daemon.is_ready, 20, "the daemon to be ready")
    stage.store.cli("DEL", f"{TAG}{kind}:{TOPIC}:t0")
    publisher.publish(4)
    wait_until(lambda: "p-60" in shown(receiver), 20, "the timeline to go on")
    wait_until(lambda: unfinished(stage.ledger(TOPIC)) == 0, 20, "the ledger to be exact again")
    assert balances(stage.ledger(TOPIC))


@pytest.mark.parametrize("kind", ["layout", "routes"])
def test_a_damaged_layout_is_said_and_stops_nothing(
    stage: Stage, receiver: Receiver, nsqd: Nsqd, daemon: Daemon, kind: str
) -> None:
    stage.store.cli("DEL", f"{TAG}{kind}")
    stage.store.cli("SET", f"{TAG}{kind}", "planted")
    wait_until(lambda: daemon.said("store.damaged"), 20, "the daemon to say it")
    assert "WRONGTYPE" in daemon.said("store.damaged")[0]["error"]
    stage.publisher(nsqd, timelines=4).publish(20)
    stage.wait_until_all_is_delivered()


@pytest.mark.parametrize(
    ("kind", "field"),
    [("layout", "schema"), ("routes", "r"), (f"ledger:{TOPIC}", "open"), (f"ledger:{TOPIC}", "added")],
)
def test_a_text_in_place_of_a_number_is_said_and_stops_nothing(  # noqa: PLR0917
    stage: Stage, receiver: Receiver, nsqd: Nsqd, daemon: Daemon, kind: str, field: str
) -> None:
    stage.publisher(nsqd, timelines=4).publish(20)
    stage.wait_until_all_is_delivered()
    was = stage.store.cli("HGET", f"{TAG}{kind}", field)
    stage.store.cli("HSET", f"{TAG}{kind}", field, "abc")
    command = run_command("timelines", "-c", str(daemon.config_path))
    assert "Traceback" not in command.stderr
    wait_until(lambda: daemon.said("store.damaged"), what="the daemon to say it")
    assert 'has "abc" in place of a number' in daemon.said("store.damaged")[0]["error"]
    stage.store.cli("HSET", f"{TAG}{kind}", field, was or "1")
    Publisher(nsqd, OTHER, timelines=4, prefix="o").publish(20)
    wait_until(lambda: {f"o-{number}" for number in range(20)} <= shown(receiver), what="the other route's digests")


def test_a_damaged_key_of_turns_is_said_and_stops_nothing(
    stage: Stage, receiver: Receiver, nsqd: Nsqd, daemon: Daemon
) -> None:
    stage.store.cli("DEL", f"{TAG}turns")
    stage.store.cli("SET", f"{TAG}turns", "planted")
    stage.publisher(nsqd, timelines=4).publish(20)
    stage.wait_until_all_is_delivered()
    wait_until(lambda: daemon.said("scheduler.store.damaged"), 20, "the daemon to say it")


@pytest.mark.parametrize("kind", ["schedule", "tokens", "ledger"])
def test_a_damaged_route_stops_no_other(
    stage: Stage, receiver: Receiver, nsqd: Nsqd, daemon: Daemon, kind: str
) -> None:
    stage.publisher(nsqd, timelines=4).publish(20)
    stage.wait_until_all_is_delivered()
    stage.store.cli("DEL", f"{TAG}{kind}:{TOPIC}")
    stage.store.cli("SET", f"{TAG}{kind}:{TOPIC}", "planted")
    stage.store.cli("ZADD", f"{TAG}agenda", 1, f"{TAG}waiting:{TOPIC}")
    others = Publisher(nsqd, OTHER, timelines=4, prefix="o")
    for rounds in range(1, 4):
        others.publish(20)
        expected = {f"o-{number}" for number in range(rounds * 20)}
        wait_until(lambda owed=expected: owed <= shown(receiver), 20, "the other route's digests")  # type: ignore[misc]
    wait_until(daemon.is_ready, 20, "the daemon to be ready")
