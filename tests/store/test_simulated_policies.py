"""A policy in the store does what the simulator predicts: the real scripts, in time that the test gives them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from nsqdigest.config import Policy
from nsqdigest.store.schedule import Plan
from nsqdigest.trial.simulator import Event, SimulatedDigest, Simulator
from support.policies import CAPACITY, stories
from support.policy_daemon import PolicyDaemon
from support.store import Scripts, store

pytestmark = pytest.mark.script
__all__ = ["store"]


@given(story=stories(25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
def test_the_store_delivers_what_the_simulator_predicts(store: Scripts, story: tuple[Policy, list[Event]]) -> None:
    policy, events = story
    store.client.flushdb()
    simulator, daemon, predicted = (
        Simulator(Plan(policy), CAPACITY),
        PolicyDaemon(store, policy),
        list[SimulatedDigest](),
    )
    for number, event in enumerate(events):
        predicted += simulator.add(event)
        daemon.deliver_until(event.instant_ms - 1)
        daemon.file(event, number)
    predicted += simulator.finish()
    daemon.deliver_until(None)
    expected = [(each.timeline, each.at_ms, each.iteration, each.records, each.superseded) for each in predicted]
    assert sorted(daemon.sent) == sorted(expected)
    assert store.waiting() == {}
