"""What the figures of the store make of odd answers, and how partitions add up."""

from __future__ import annotations

import pytest

from nsqdigest.store.figures import RouteFigures, pause_s, sink_of

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("details", [None, b"", b"no", b"[]", b"{}", b'{"facts":5}', b'{"facts":{}}'])
def test_a_dead_digest_whose_details_nobody_can_read_is_of_no_sink(details: bytes | None) -> None:
    assert sink_of(details) == ""


def test_partitions_add_up_and_the_earliest_due_counts() -> None:
    one, other = RouteFigures(1, 2, 3, 4, 9_000), RouteFigures(10, 20, 30, 40, 7_000)
    assert one.plus(other) == RouteFigures(11, 22, 33, 44, 7_000)
    assert one.plus(RouteFigures()).oldest_due_ms == 9_000
    assert RouteFigures().plus(RouteFigures()).oldest_due_ms is None


def test_what_is_not_due_yet_is_not_overdue() -> None:
    assert RouteFigures(oldest_due_ms=9_000).overdue_s(8_000) == 0.0
    assert RouteFigures(oldest_due_ms=9_000).overdue_s(10_500) == 1.5
    assert RouteFigures().overdue_s(10_500) == 0.0


@pytest.mark.parametrize(("places", "look_s", "pause"), [(1, 20, 5), (80, 20, 5), (1600, 20, 100), (1, 0.5, 0.5)])
def test_many_routes_in_many_partitions_are_read_less_often(places: int, look_s: float, pause: float) -> None:
    assert pause_s(places, look_s) == pause
