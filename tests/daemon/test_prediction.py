"""The real daemon beside the pure prediction: one stream of events, every kind of policy, delays of tenths of seconds.

Each policy has a route of its own on one topic, so that all of them see the same events at once. What the simulator
predicts from the instants at which the events were stored is compared with the digests that came: which events are in
which digest, how many were lost and why, and when. No digest is earlier than its policy allows, to the millisecond; a
busy machine may be late, and what then is in a digest is predicted from when that was opened.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nsqdigest.config import parse_text
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.store.schedule import Plan, due_ms
from nsqdigest.trial.simulator import Event, SimulatedDigest, Simulator
from support.daemon import Daemon
from support.stage import TOPIC, Stage
from support.waiting import wait_until

pytestmark = pytest.mark.integration

POLICIES: dict[str, dict[str, Any]] = {
    "fixed": {"minimum_delay": "300ms", "increment_delay": "0s"},
    "postponed": {"minimum_delay": "200ms", "increment_delay": "100ms", "maximum_delay": "700ms"},
    "late": {"immediate": False, "minimum_delay": "250ms", "increment_delay": "50ms", "maximum_delay": "400ms"},
    "growing": {"minimum_delay": "100ms", "increment_delay": "0s", "growth": "exponential", "growth_steps": 2},
    "table": {"immediate": False, "intervals": ["150ms", "400ms"], "minimum_delay": "250ms", "increment_delay": "0s"},
    "full": {"minimum_delay": "500ms", "increment_delay": "0s", "capacity": 2},
}
AFTER_MS = (0, 50, 100, 800, 850, 900, 2000, 2050, 3000, 3050, 3100, 3150)
"""When each event is published, after the first one."""
LATEST_MS = 10_000
"""A busy machine may be so late."""


class Stored(NamedTuple):
    """An event, by Redis' clock: it was stored after the first instant and by the second."""

    number: int
    from_ms: int
    by_ms: int


class Said(NamedTuple):
    """What the daemon's page explains of a timeline that waits: when it goes out, if no event comes any more."""

    at_ms: int
    due_ms: int


class Digest(NamedTuple):
    iteration: int
    opened_ms: int
    next_earliest_ms: int
    numbers: list[int]
    lost: int


def now_ms(stage: Stage) -> int:
    seconds, microseconds = stage.store.cli("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


def explained(daemon: Daemon, route: str) -> list[Said]:
    status, text = daemon.get(f"/api/timeline?route={route}&timeline=ada")
    if status != HTTPStatus.OK:
        return []
    detail = json.loads(text)
    waits = detail["timeline"]["state"] in ("waiting", "due")
    return [Said(detail["now_ms"], detail["explanation"]["due_ms"])] if waits else []


def publish_all(stage: Stage, daemon: Daemon, said: dict[str, list[Said]]) -> list[Stored]:
    nsqd, events, began_ms = stage.nsqds[0], list[Stored](), now_ms(stage)
    for number, after_ms in enumerate(AFTER_MS, 1):
        wait_until(lambda until_ms=began_ms + after_ms: now_ms(stage) >= until_ms, 10, "its time")  # type: ignore[misc]
        from_ms = now_ms(stage)
        nsqd.publish(TOPIC, json.dumps({"user": "ada", "n": number}).encode())
        for route in POLICIES:
            wait_until(
                lambda route=route, number=number: stage.ledger(route).get("added") == number,  # type: ignore[misc]
                10,
                "the event to be stored",
            )
        events.append(Stored(number, from_ms, now_ms(stage)))
        for route in POLICIES:
            said[route] += explained(daemon, route)
    return events


def instant_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def digests_of(path: Path, route: str) -> list[Digest]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Digest(
            each["data"]["iteration"],
            instant_ms(each["timestamp"]),
            instant_ms(each["data"]["next_earliest"]),
            sorted(record["value"]["n"] for record in each["data"]["records"]),
            each["data"]["dropped"]["capacity"],
        )
        for each in found
        if each["data"]["route"] == route
    ]


def check_instants(plan: Plan, events: Sequence[Stored], digests: Sequence[Digest]) -> None:
    """Of one timeline: every digest holds what was stored since the one before, and none is early."""
    base_ms = bound_ms = before_ms = 0
    for digest in digests:
        surely = [each for each in events if before_ms < each.from_ms and each.by_ms <= digest.opened_ms]
        perhaps = [each for each in events if before_ms <= each.by_ms and each.from_ms <= digest.opened_ms]
        assert len(surely) <= len(digest.numbers) + digest.lost <= len(perhaps)
        assert set(digest.numbers) <= {each.number for each in perhaps}
        if digest.iteration == 1:  # it begins, or it was forgotten and begins anew
            base_ms, bound_ms = plan.beginning(perhaps[0].from_ms)
        due = due_ms(base_ms, bound_ms, plan.increment_ms, len(digest.numbers))
        assert due <= digest.opened_ms <= bound_ms + LATEST_MS
        earliest_ms = plan.earliest_next_ms(digest.opened_ms)
        # The daemon works it out before Redis opens the digest.
        assert before_ms < digest.next_earliest_ms <= earliest_ms[min(digest.iteration, len(earliest_ms)) - 1]
        base_ms, bound_ms = plan.after_digest(digest.iteration, digest.opened_ms, digest.next_earliest_ms)
        before_ms = digest.opened_ms
    for one, two in pairwise(digests):
        assert two.opened_ms >= one.next_earliest_ms or two.iteration == 1


def check_explanations(said: Sequence[Said], events: Sequence[Stored], digests: Sequence[Digest]) -> None:
    """What was explained is what then came: never earlier, and then, where no other event came before it."""
    for at_ms, said_ms in said:
        following = [digest for digest in digests if digest.opened_ms >= at_ms]
        assert following, "a timeline that waits is delivered"
        assert said_ms <= following[0].opened_ms
        if not any(at_ms <= each.by_ms and each.from_ms <= following[0].opened_ms for each in events):
            assert following[0].opened_ms <= max(at_ms, said_ms) + LATEST_MS


def simulated(plan: Plan, capacity: int, events: Sequence[Stored]) -> list[SimulatedDigest]:
    simulator = Simulator(plan, capacity)
    found = [digest for each in events for digest in simulator.add(Event(each.by_ms, "ada", str(each.number)))]
    return [*found, *simulator.finish()]


def is_certain(
    plan: Plan, events: Sequence[Stored], predicted: Sequence[SimulatedDigest], digests: Sequence[Digest]
) -> bool:
    """Whether no event was stored so near to an instant at which a digest goes out, or the timeline is forgotten, that
    it may have come before or after it: as near as the daemon was late, and as the test looked late."""
    drift_ms = max(abs(digest.opened_ms - foreseen.at_ms) for foreseen, digest in zip(predicted, digests, strict=False))
    near_ms = drift_ms + max(each.by_ms - each.from_ms for each in events)
    ends = [plan.after_digest(each.iteration, each.at_ms).base_ms for each in predicted]
    goes_out = {each.at_ms for each in predicted if each.at_ms > each.first_ms}
    return not any(abs(each.by_ms - instant) <= near_ms for each in events for instant in (*ends, *goes_out))


def test_each_policy_does_what_the_simulator_predicts(stage: Stage, tmp_path: Path) -> None:
    stage.nsqd()
    path = tmp_path / "digests.jsonl"
    settings = {f"policies.{name}": policy for name, policy in POLICIES.items()}
    routes = [
        {"name": name, "topic": TOPIC, "timeline": "{user}", "key": "{n}", "policy": name, "sink": "file"}
        for name in POLICIES
    ]
    daemon = stage.daemon({**settings, "sinks.file": {"type": "log", "path": str(path), "timeout": "1s"}}, routes)
    daemon.start()
    said = defaultdict[str, list[Said]](list)
    events = publish_all(stage, daemon, said)
    for name in POLICIES:
        wait_until(lambda name=name: stage.ledger(name).get("open") == 0, 30, "all digests")  # type: ignore[misc]
        wait_until(lambda name=name: stage.ledger(name).get("snapshots") == 0, 30, "their end")  # type: ignore[misc]
    policies = parse_text(daemon.config_path.read_text(), "f.toml", {}, KINDS).policies
    certain = {}
    for name, policy in policies.items():
        if name not in POLICIES:
            continue
        digests, plan = digests_of(path, name), Plan(policy)
        shown = [number for digest in digests for number in digest.numbers]
        assert shown == sorted(set(shown)), "each once, in the order in which they came"
        assert len(shown) + sum(digest.lost for digest in digests) == len(events)
        check_instants(plan, events, digests)
        check_explanations(said[name], events, digests)
        predicted = simulated(plan, policy.capacity, events)
        certain[name] = is_certain(plan, events, predicted, digests)
        if certain[name]:
            sizes = [(each.iteration, each.records, each.dropped) for each in predicted]
            assert [(each.iteration, len(each.numbers), each.lost) for each in digests] == sizes

    assert any(said.values())
    stage.check_logs()
