"""What a policy makes of a stream: promises of every policy, for random policies, streams and nights of clocks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given

from nsqdigest.base.calendar import Calendar
from nsqdigest.base.quiet_hours import QuietHours
from nsqdigest.config import Policy
from nsqdigest.store.schedule import Plan
from nsqdigest.trial.simulator import Event, SimulatedDigest, Simulator
from support.policies import CAPACITY, MINUTE_MS, policies, streams, zoned_policies
from support.settings import POLICY

pytestmark = pytest.mark.unit

NOW_MS = 1_795_000_000_000


def run(policy: Policy, events: list[Event]) -> list[SimulatedDigest]:
    simulator = Simulator(Plan(policy), policy.capacity)
    digests = [digest for event in events for digest in simulator.add(event)]
    digests += simulator.finish()
    assert simulator.waiting == 0
    return digests


def by_timeline(digests: list[SimulatedDigest]) -> list[list[SimulatedDigest]]:
    found = defaultdict(list)
    for digest in digests:
        found[digest.timeline].append(digest)
    return list(found.values())


def wait_after(policy: Policy, iteration: int) -> int:
    """Independently of the plan: the delay after a digest of this number."""
    if policy.intervals_ms:
        return (policy.intervals_ms + (policy.minimum_delay_ms,) * (iteration + 1))[iteration]
    steps = min(iteration, policy.growth_steps) if policy.growth == "exponential" else 0
    return policy.minimum_delay_ms << steps


def released_ms(policy: Policy, instant_ms: int) -> int:
    return QuietHours(policy.quiet, ZoneInfo(policy.zone)).release_ms(instant_ms) if policy.quiet else instant_ms


# -- always


@given(policy=policies(), events=streams())
def test_every_event_is_in_exactly_one_digest(policy: Policy, events: list[Event]) -> None:
    digests = run(policy, events)
    assert sum(each.records + each.superseded + each.dropped for each in digests) == len(events)
    assert all(0 < each.records <= CAPACITY for each in digests)
    assert [each.at_ms for each in digests] == sorted(each.at_ms for each in digests)


@given(policy=policies(), events=streams())
def test_never_inside_quiet_hours(policy: Policy, events: list[Event]) -> None:
    """By the clock on the wall."""
    quiet = set[int]().union(*(window.minutes for window in policy.quiet))
    for digest in run(policy, events):
        shown = datetime.fromtimestamp(digest.at_ms / 1000, ZoneInfo(policy.zone))
        assert 60 * shown.hour + shown.minute not in quiet


@given(policy=policies(), events=streams())
def test_never_closer_than_the_policy_allows(policy: Policy, events: list[Event]) -> None:
    zone = ZoneInfo(policy.zone)
    for digests in by_timeline(run(policy, events)):
        for one, other in pairwise(digests):
            if policy.at:
                earliest_ms = Calendar(policy.at, zone).next_ms(one.at_ms)
            else:
                earliest_ms = one.at_ms + wait_after(policy, one.iteration)
            assert other.at_ms >= earliest_ms


@given(policy=policies(), events=streams())
def test_never_later_than_the_maximum_but_for_quiet_hours(policy: Policy, events: list[Event]) -> None:
    zone = ZoneInfo(policy.zone)
    for digests in by_timeline(run(policy, events)):
        ended_ms = None
        for digest in digests:
            is_first = digest.iteration == 1
            if is_first and policy.immediate:
                latest_ms = digest.first_ms
            elif policy.at:
                latest_ms = Calendar(policy.at, zone).next_ms(digest.first_ms)
            elif is_first or ended_ms is None:
                latest_ms = digest.first_ms + policy.maximum_delay_ms
            else:
                latest_ms = max(ended_ms + policy.maximum_delay_ms, digest.first_ms)
            assert digest.at_ms <= released_ms(policy, latest_ms)
            ended_ms = digest.at_ms


@given(policy=policies(), events=streams())
def test_a_timeline_alone_does_as_it_does_among_others(policy: Policy, events: list[Event]) -> None:
    together = [each for each in run(policy, events) if each.timeline == "a"]
    assert run(policy, [event for event in events if event.timeline == "a"]) == together


# -- by example

EVERY_20_S = [Event(NOW_MS + second * 1000) for second in range(0, 3600, 20)]
DEFAULTS = replace(
    POLICY, minimum_delay_ms=5 * MINUTE_MS, increment_delay_ms=30_000, maximum_delay_ms=30 * MINUTE_MS, capacity=500
)


@given(policy=zoned_policies(), events=streams())
def test_with_zones_of_their_own_timelines_do_as_each_would_in_a_policy_of_its_zone(
    policy: Policy, events: list[Event]
) -> None:
    zones = {"a": "Europe/Berlin", "b": "Australia/Lord_Howe"}
    digests = run(policy, [event._replace(zone=zones[event.timeline]) for event in events])
    for timeline, zone in zones.items():
        own = replace(policy, zone=zone)
        theirs = [each for each in digests if each.timeline == timeline]
        alone = run(own, [event for event in events if event.timeline == timeline])
        assert all(released_ms(own, each.at_ms) == each.at_ms for each in theirs)
        if policy.at or not policy.increment_delay_ms:  # else what comes in quiet hours puts off no more what came due
            assert theirs == alone
        assert sum(each.records + each.superseded + each.dropped for each in theirs) == sum(
            each.records + each.superseded + each.dropped for each in alone
        )


def test_a_timeline_follows_the_zone_of_its_newest_event() -> None:
    policy = replace(
        POLICY, immediate=False, minimum_delay_ms=0, maximum_delay_ms=0, at=("0 9 * * *",), zone="{zone}",
        zone_default="UTC",
    )  # fmt: skip
    first = Event(int(datetime(2026, 3, 28, 8, 30, tzinfo=ZoneInfo("UTC")).timestamp()) * 1000, "t")
    events = [first, first._replace(instant_ms=first.instant_ms + MINUTE_MS, zone="America/New_York")]
    (digest,) = run(policy, events)
    assert datetime.fromtimestamp(digest.at_ms / 1000, ZoneInfo("America/New_York")).hour == 9
    late = events[1]._replace(instant_ms=digest.at_ms + 1, zone="Europe/Berlin")
    assert datetime.fromtimestamp(run(policy, [*events, late])[1].at_ms / 1000, ZoneInfo("Europe/Berlin")).hour == 9


def test_a_steady_stream_goes_out_at_the_maximum() -> None:
    digests = run(DEFAULTS, EVERY_20_S)
    assert [(each.at_ms - NOW_MS) // MINUTE_MS for each in digests] == [0, 30, 60]
    assert [each.records for each in digests] == [1, 90, 89]
    assert digests[1].waited_ms == 1_780_000


def test_a_timeline_that_gets_nothing_new_is_forgotten_and_begins_anew() -> None:
    later_ms = NOW_MS + 6 * MINUTE_MS
    first, second = run(DEFAULTS, [Event(NOW_MS), Event(later_ms)])
    assert (first.at_ms, second.at_ms) == (NOW_MS, later_ms)
    assert second.iteration == 1


def test_of_one_key_one_record_and_over_capacity_the_newest() -> None:
    policy = replace(DEFAULTS, immediate=False, capacity=2)
    (digest,) = run(policy, [Event(NOW_MS, "", key) for key in ("a", "b", "a", "c", "d", "d")])
    assert (digest.records, digest.superseded, digest.dropped) == (2, 2, 2)
    (digest,) = run(policy, [Event(NOW_MS)] * 5)
    assert (digest.records, digest.dropped) == (2, 3)


def test_what_is_still_to_come_can_be_left_out() -> None:
    simulator = Simulator(Plan(replace(DEFAULTS, immediate=False)), 10)
    assert list(simulator.add(Event(NOW_MS))) == list(simulator.finish(NOW_MS + MINUTE_MS)) == []
    assert simulator.waiting == 1
