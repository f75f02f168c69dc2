"""The limit over the connections: never above it, spread evenly, in turns where places are few, one armed to probe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.backoff import Decision, Reason, State
from nsqdigest.intake.rdy import (
    LONGEST_TURN_S,
    REPLAN_S,
    RESERVED_S,
    SHORTEST_TURN_S,
    UNWELL_AGAIN_S,
    Plan,
    Planner,
    is_starved,
)
from support.fleet import Facts

pytestmark = pytest.mark.unit

Sent = list[tuple[str, int]]


def flowing(limit: int) -> Decision:
    return Decision(State.FLOWING, 0, limit, 0, None, Reason.STARTED)


def probing(epoch: int = 1) -> Decision:
    return Decision(State.PROBING, 1, 1, epoch, 2.0, Reason.BACKOFF_OVER)


BACKOFF = Decision(State.BACKOFF, 1, 0, 1, 2.0, Reason.FAILED)


def connections(count: int, max_rdy: int = 2500) -> list[Facts]:
    return [Facts(f"c{number}", max_rdy, message_at_s=number / 1000) for number in range(count)]


class Sender:
    """Sends what a planner says, in simulated time."""

    def __init__(self, *connections: Facts) -> None:
        self.planner: Planner[Facts] = Planner()
        self.connections = list(connections)
        self.again_at_s: float | None = None

    def plan(self, decision: Decision, now_s: float) -> Sent:
        plan: Plan[Facts] = self.planner.plan(decision, self.connections, now_s)
        self.again_at_s = plan.again_at_s
        sent = [(connection.name, count) for connection, count in plan.changes]
        for connection, count in plan.changes:
            connection.rdy = count
        return sent

    def plan_held_back(self, decision: Decision, now_s: float) -> Sent:
        plan: Plan[Facts] = self.planner.plan(decision, self.connections, now_s, is_held_back=True)
        self.again_at_s = plan.again_at_s
        for connection, count in plan.changes:
            connection.rdy = count
        return [(connection.name, count) for connection, count in plan.changes]

    def rdys(self) -> list[int]:
        return [connection.rdy for connection in self.connections]


# -- places for all


@pytest.mark.parametrize(
    ("limit", "wanted"), [(9, [3, 3, 3]), (10, [4, 3, 3]), (11, [4, 4, 3]), (3, [1, 1, 1]), (2500, [834, 833, 833])]
)
def test_the_remainder_is_spread(limit: int, wanted: list[int]) -> None:
    sender = Sender(*connections(3))
    sender.plan(flowing(limit), 10.0)
    assert sender.rdys() == wanted


@given(st.integers(0, 10_000), st.lists(st.integers(1, 3_000), max_size=12))
def test_as_much_as_may_be_is_given_out_and_never_more(limit: int, max_rdys: list[int]) -> None:
    sender = Sender(*(Facts(f"c{number}", max_rdy) for number, max_rdy in enumerate(max_rdys)))
    sender.plan(flowing(limit), 10.0)
    assert sum(sender.rdys()) == min(limit, sum(max_rdys))
    assert all(connection.rdy <= connection.max_rdy for connection in sender.connections)


def test_what_one_may_not_have_goes_to_those_that_may_have_more() -> None:
    sender = Sender(Facts("large"), Facts("small", 10), Facts("other"))
    sender.plan(flowing(100), 10.0)
    assert sender.rdys() == [45, 10, 45]


def test_only_differences_are_sent() -> None:
    sender = Sender(*connections(2))
    assert sender.plan(flowing(10), 10.0) == [("c0", 5), ("c1", 5)]
    assert sender.plan(flowing(10), 11.0) == []


def test_without_connections_there_is_nothing_to_send_or_to_wait_for() -> None:
    sender = Sender()
    assert sender.plan(flowing(2500), 10.0) == []
    assert sender.again_at_s is None


def test_a_limit_of_0_lowers_all_and_waits_for_nothing() -> None:
    sender = Sender(*connections(3))
    sender.plan(flowing(9), 10.0)
    assert sender.plan(BACKOFF, 11.0) == [("c0", 0), ("c1", 0), ("c2", 0)]
    assert sender.again_at_s is None


def test_lowered_ones_are_sent_before_raised_ones() -> None:
    first, second = connections(2)
    sender = Sender(first, second)
    first.is_well = False
    sender.plan(flowing(4), 10.0)
    first.is_well, second.is_well = True, False
    assert sender.plan(flowing(10), 11.0) == [("c1", 0), ("c0", 6)]


# -- the reserve


def test_what_was_lowered_stays_reserved_for_a_second() -> None:
    sender = Sender(*connections(1))
    sender.plan(flowing(10), 10.0)
    sender.connections.append(Facts("late"))
    assert sender.plan(flowing(10), 20.0) == [("c0", 5)]
    assert sender.again_at_s == 20.0 + RESERVED_S
    assert sender.plan(flowing(10), 20.999) == []
    assert sender.plan(flowing(10), 21.0) == [("late", 5)]
    assert sender.again_at_s is None


def test_a_reserve_lasts_from_the_last_lowering_on() -> None:
    sender = Sender(*connections(1))
    sender.plan(flowing(10), 10.0)
    sender.plan(flowing(8), 20.0)
    sender.plan(flowing(6), 20.9)
    sender.connections.append(Facts("late", 1))
    assert sender.plan(flowing(10), 21.5) == [("c0", 9)]
    assert sender.again_at_s == 20.9 + RESERVED_S


def test_what_is_in_flight_takes_up_room_also_above_the_rdy() -> None:
    busy, idle = connections(2)
    sender = Sender(busy)
    sender.plan(flowing(10), 10.0)
    busy.in_flight = 8
    sender.connections.append(idle)
    sender.plan(flowing(10), 20.0)
    assert sender.plan(flowing(10), 21.0) == [("c1", 2)]
    assert sender.again_at_s == 21.0 + REPLAN_S


def test_what_a_lost_connection_handed_over_takes_up_room_until_it_is_done() -> None:
    gone, other = Facts("gone"), Facts("other", 2500)
    sender = Sender(gone, other)
    sender.plan(flowing(10), 10.0)
    gone.is_well, gone.in_flight = False, 5
    sender.plan(flowing(10), 20.0)
    sender.plan(flowing(10), 22.0)
    assert sender.rdys() == [0, 5]
    sender.connections.remove(gone)
    assert sender.plan(flowing(10), 23.0) == [("other", 10)]


def test_a_rdy_that_its_own_reserve_covers_needs_no_other_room() -> None:
    sender = Sender(*connections(2))
    sender.plan(flowing(20), 10.0)
    sender.plan(BACKOFF, 11.0)
    assert sender.plan(flowing(4), 11.5) == [("c0", 2), ("c1", 2)]


# -- turns


def test_too_few_places_go_to_those_that_waited_longest() -> None:
    sender = Sender(
        Facts("late", message_at_s=9.0), Facts("first", message_at_s=1.0), Facts("second", message_at_s=2.0)
    )
    assert sender.plan(flowing(2), 10.0) == [("first", 1), ("second", 1)]


def test_a_turn_that_brings_nothing_is_short() -> None:
    sender = Sender(*connections(2))
    assert sender.plan(flowing(1), 10.0) == [("c0", 1)]
    assert sender.again_at_s == 10.0 + SHORTEST_TURN_S
    assert sender.plan(flowing(1), 10.9) == []
    assert sender.plan(flowing(1), 11.0) == [("c0", 0)]
    assert sender.plan(flowing(1), 12.0) == [("c1", 1)]


def test_a_turn_that_brings_messages_is_longer() -> None:
    sender = Sender(*connections(2))
    sender.plan(flowing(1), 10.0)
    sender.connections[0].message_at_s = 10.5
    assert sender.plan(flowing(1), 11.0) == []
    assert sender.again_at_s == 10.0 + LONGEST_TURN_S
    assert sender.plan(flowing(1), 15.0) == [("c0", 0)]


def test_the_one_with_the_longest_turn_is_the_first_to_give_up_its_place() -> None:
    sender = Sender(*connections(2))
    sender.plan(flowing(1), 10.0)
    sender.plan(flowing(2), 10.5)
    sender.connections.append(Facts("c2"))
    assert sender.plan(flowing(2), 20.0) == [("c0", 0)]
    assert sender.plan(flowing(2), 21.0) == [("c1", 0), ("c2", 1)]


@pytest.mark.parametrize(("places", "count"), [(1, 2), (1, 7), (2, 7), (3, 7), (6, 7)])
@pytest.mark.parametrize("busy", [True, False])
def test_none_waits_longer_than_the_bound(places: int, count: int, busy: bool) -> None:
    """Asked again only when the planner said so."""
    sender = Sender(*connections(count))
    rounds = -(-(count - places) // places)
    bound_s = RESERVED_S + rounds * (LONGEST_TURN_S + RESERVED_S)
    served_s = dict.fromkeys(sender.connections, 10.0)
    now_s = 10.0
    while now_s < 10.0 + 5 * bound_s:
        had = [connection for connection in sender.connections if connection.rdy]
        sender.plan(flowing(places), now_s)
        assert sum(sender.rdys()) <= places
        for connection in sender.connections:
            if connection.rdy or connection in had:
                served_s[connection] = now_s
            if connection.rdy and busy:
                connection.message_at_s = now_s + 0.001
        assert max(now_s - at_s for at_s in served_s.values()) <= bound_s + 0.001
        assert sender.again_at_s is not None
        now_s = sender.again_at_s


# -- connections that are not well


def test_a_connection_that_is_not_well_gets_nothing() -> None:
    well, unwell = connections(2)
    unwell.is_well = False
    sender = Sender(well, unwell)
    assert sender.plan(flowing(10), 10.0) == [("c0", 10)]


def test_a_silent_connection_is_looked_at_again_though_nobody_tells_that_it_is_well() -> None:
    sender = Sender(*connections(1))
    sender.connections[0].is_well = False
    sender.plan(flowing(10), 10.0)
    assert sender.again_at_s == 10.0 + UNWELL_AGAIN_S
    sender.connections[0].is_well = True
    assert sender.plan(flowing(10), 11.0) == [("c0", 10)]
    assert sender.again_at_s is None


# -- the probe


def test_one_connection_is_armed_that_which_has_waited_longest() -> None:
    sender = Sender(Facts("late", message_at_s=9.0), Facts("first", message_at_s=1.0))
    sender.plan(BACKOFF, 10.0)
    assert sender.plan(probing(), 10.5) == [("first", 1)]
    assert sender.planner.armed is sender.connections[1]


def test_all_others_are_lowered_before_one_is_armed() -> None:
    sender = Sender(*connections(3))
    sender.plan(flowing(9), 10.0)
    sender.connections[0].in_flight = 1
    assert sender.plan(probing(), 11.0) == [("c0", 0), ("c2", 0), ("c1", 1)]


def test_the_next_probe_is_on_another_connection() -> None:
    sender = Sender(*connections(2))
    sender.plan(probing(1), 10.0)
    assert sender.plan(probing(2), 12.0) == [("c0", 0), ("c1", 1)]
    assert sender.plan(probing(3), 14.0) == [("c1", 0), ("c0", 1)]


def test_the_armed_one_stays_while_the_epoch_does() -> None:
    sender = Sender(*connections(2))
    sender.plan(probing(), 10.0)
    sender.connections[0].message_at_s = 10.5
    assert sender.plan(probing(), 11.0) == []


def test_a_connection_that_is_not_well_is_never_armed() -> None:
    sender = Sender(*connections(2))
    sender.connections[0].is_well = False
    assert sender.plan(probing(), 10.0) == [("c1", 1)]


def test_a_connection_with_something_in_flight_is_not_armed() -> None:
    sender = Sender(*connections(2))
    sender.connections[0].in_flight = 1
    assert sender.plan(probing(), 10.0) == [("c1", 1)]


def test_where_none_is_idle_one_is_armed_as_soon_as_it_is() -> None:
    sender = Sender(*connections(2))
    sender.connections[0].in_flight = sender.connections[1].in_flight = 2
    assert sender.plan(probing(), 10.0) == []
    assert sender.again_at_s == 10.0 + REPLAN_S
    sender.connections[1].in_flight = 0
    assert sender.plan(probing(), 10.1) == [("c1", 1)]
    assert sender.again_at_s is None


def test_another_is_armed_when_the_armed_one_falls_silent_before_its_message() -> None:
    sender = Sender(*connections(2))
    sender.plan(probing(), 10.0)
    sender.connections[0].is_well = False
    assert sender.plan(probing(), 11.0) == [("c0", 0), ("c1", 1)]


def test_after_the_probe_came_no_other_is_armed_in_its_epoch() -> None:
    sender = Sender(*connections(2))
    sender.plan(probing(), 10.0)
    assert sender.planner.admitted(probing(), sender.connections[0], 1, 1) == 1
    sender.connections[0].is_well = False
    assert sender.plan(probing(), 11.0) == []
    assert sender.planner.admitted(probing(), sender.connections[1], 1, 2) == 0


def test_no_connection_is_armed_once_the_probe_is_over() -> None:
    sender = Sender(*connections(2))
    sender.plan(probing(), 10.0)
    sender.plan(BACKOFF, 11.0)
    assert sender.planner.armed is None


# -- what is worked on


@pytest.mark.parametrize(
    ("count", "in_flight", "admitted"), [(3, 3, 3), (3, 10, 3), (3, 11, 2), (3, 13, 0), (3, 99, 0)]
)
def test_what_comes_above_the_limit_goes_back(count: int, in_flight: int, admitted: int) -> None:
    sender = Sender(*connections(1))
    sender.plan(flowing(10), 10.0)
    assert sender.planner.admitted(flowing(10), sender.connections[0], count, in_flight) == admitted


def test_in_a_backoff_everything_goes_back() -> None:
    sender = Sender(*connections(1))
    sender.plan(BACKOFF, 10.0)
    assert sender.planner.admitted(BACKOFF, sender.connections[0], 5, 5) == 0


def test_the_first_message_on_the_armed_connection_is_the_probe() -> None:
    sender = Sender(*connections(2))
    sender.plan(probing(), 10.0)
    armed, other = sender.connections
    assert sender.planner.admitted(probing(), other, 3, 3) == 0
    assert sender.planner.admitted(probing(), armed, 3, 3) == 1
    assert sender.planner.admitted(probing(), armed, 3, 4) == 0


def test_each_epoch_has_its_own_probe() -> None:
    sender = Sender(*connections(1))
    for epoch in (1, 2):
        sender.plan(probing(epoch), 10.0 + epoch)
        assert sender.planner.admitted(probing(epoch), sender.connections[0], 1, 1) == 1


# -- starved and held back


@pytest.mark.parametrize(
    ("rdy", "in_flight", "starved"), [(100, 84, False), (100, 85, True), (1, 1, True), (1, 0, False), (0, 3, False)]
)
def test_a_connection_near_its_rdy_is_starved(rdy: int, in_flight: int, starved: bool) -> None:
    assert is_starved([Facts("idle", rdy=10), Facts("busy", rdy=rdy, in_flight=in_flight)]) is starved


@pytest.mark.parametrize("decision", [flowing(10), probing()], ids=["flowing", "probing"])
def test_while_something_is_held_back_nothing_is_asked_for_and_then_as_before(decision: Decision) -> None:
    sender = Sender(*connections(2))
    sender.plan(decision, 0.0)
    before = sender.rdys()
    assert sum(before) > 0
    sender.plan_held_back(decision, 1.0)
    assert sender.rdys() == [0, 0]
    assert sender.again_at_s == 1.0 + UNWELL_AGAIN_S
    sender.plan(decision, 1.0 + RESERVED_S)
    assert sum(sender.rdys()) == sum(before)
