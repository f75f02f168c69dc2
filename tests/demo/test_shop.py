"""What the demo publishes: believable, numbered, and right for the routes of its file."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest

from nsqdigest.demo.shop import POISON, SERVICES, Event, Shop
from nsqdigest.demo.stage import Timing

pytestmark = pytest.mark.unit

WALL_MS = 1_700_000_000_000


def events_of(seed: int, seconds: int) -> list[Event]:
    shop = Shop(random.Random(seed))
    return [event for tenth in range(10 * seconds + 1) for event in shop.until(tenth / 10, WALL_MS + tenth * 100)]


def test_the_same_seed_draws_the_same_events() -> None:
    assert events_of(7, 5) == events_of(7, 5)


@pytest.mark.parametrize("seed", range(5))
def test_every_event_is_numbered_without_a_gap(seed: int) -> None:
    events = events_of(seed, 20)
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert [msgspec.json.decode(event.body)["id"] for event in events] == [event.number for event in events]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_neither_a_trickle_nor_a_flood(seed: int) -> None:
    assert 20 <= len(events_of(seed, 24)) / 24 <= 60


def test_some_seconds_are_bursts() -> None:
    at_s = [(msgspec.json.decode(event.body)["at"] - WALL_MS) // 1000 for event in events_of(1, 30)]
    rates = sorted(at_s.count(second) for second in range(30))
    assert rates[-1] >= 2 * rates[15]


def test_the_times_of_events_only_grow() -> None:
    at_ms = [msgspec.json.decode(event.body)["at"] for event in events_of(3, 10)]
    assert all(earlier <= later for earlier, later in pairwise(at_ms))


def test_every_kind_of_event_can_be_told() -> None:
    bodies = [msgspec.json.decode(event.body) for event in events_of(2, 120)]
    seen = {(body["service"], body["code"]) for body in bodies}
    assert seen == {(service, kind.code) for service, kinds in SERVICES.items() for kind in kinds}
    assert not any("{" in body["message"] for body in bodies)


def test_one_broken_event_is_no_json_and_the_other_names_no_service() -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(POISON[0])
    assert "service" not in msgspec.json.decode(POISON[1])


@pytest.mark.parametrize("seconds", [0, 1, 8, 30, 3600])
def test_the_store_is_back_and_the_broken_events_are_out_before_the_publishing_ends(seconds: int) -> None:
    timing = Timing.of(seconds)
    assert 0 < timing.stop_s < timing.stop_s + timing.outage_s
    if timing.ends_s is not None:
        assert timing.stop_s + timing.outage_s < timing.ends_s <= max(seconds - 6, 0.6 * seconds)
        assert all(at_s < timing.ends_s for at_s in timing.broken_s)
    assert (timing.ends_s is None) == (seconds == 0)
