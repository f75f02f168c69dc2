"""The planner alone, against facts and decisions of any kind: what it sends is judged by a record of its own.

The record keeps what each connection has been told and when. At the end of every run the facts stand still, and the
planner is asked again only when it said so: that must bring every place where it belongs, and each connection its turn.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from nsqdigest.backoff import Decision, Reason, State
from nsqdigest.intake.rdy import LONGEST_TURN_S, RESERVED_S, Planner
from support.fleet import Facts

pytestmark = pytest.mark.property

MOST_SEATS = 6
SELDOM = 100
"""What is interesting is to come in one of so many examples."""
EXAMPLES = 6 * settings().max_examples

numbers = st.integers(0, MOST_SEATS - 1)


class PlannerMachine(RuleBasedStateMachine):
    seen: ClassVar[Counter[str]] = Counter()
    runs: ClassVar[int] = 0

    @initialize(max_rdys=st.lists(st.sampled_from((1, 3, 2500)), max_size=MOST_SEATS), limit=st.integers(1, 12))
    def begin(self, max_rdys: list[int], limit: int) -> None:
        self.planner: Planner[Facts] = Planner()
        self.now_s = 100.0
        self.connections = [Facts(f"c{number}", max_rdy, message_at_s=90.0) for number, max_rdy in enumerate(max_rdys)]
        self.told: dict[Facts, list[tuple[float, int]]] = {}
        """When each got which RDY."""
        self.probes: Counter[int] = Counter()
        self.decision = Decision(State.FLOWING, 0, limit, 0, None, Reason.STARTED)
        self.plan()

    # -- the record

    def held(self, connection: Facts) -> int:
        """What it may have in flight, by the RDY it has, those it had until a second ago, and what it has."""
        told = self.told.get(connection, [])
        ends_s = [at_s for at_s, _ in told[1:]]
        past = [rdy for (_, rdy), end_s in zip(told, ends_s, strict=False) if end_s + RESERVED_S > self.now_s]
        return max(connection.rdy, connection.in_flight, *past, 0)

    def plan(self) -> float | None:
        self.now_s += 1e-6  # nothing happens in the very instant of another thing
        before = sum(map(self.held, self.connections))
        had = {connection: connection.rdy for connection in self.connections}
        decision = self.decision
        plan = self.planner.plan(decision, self.connections, self.now_s)
        assert len(dict(plan.changes)) == len(plan.changes), "one told twice"
        assert all(connection.rdy != count for connection, count in plan.changes), "no difference"
        steps = [count - connection.rdy for connection, count in plan.changes]
        assert steps == sorted(steps, key=lambda step: step > 0), "raised before lowered"
        for connection, count in plan.changes:
            connection.rdy = count
            self.told.setdefault(connection, []).append((self.now_s, count))
        assert plan.again_at_s is None or plan.again_at_s > self.now_s
        assert all(0 <= connection.rdy <= connection.max_rdy for connection in self.connections)
        assert sum(connection.rdy for connection in self.connections) <= decision.limit
        if decision.state is State.PROBING:
            self.check_armed(had, plan.again_at_s)
        else:
            assert not any(connection.rdy for connection in self.connections if not connection.is_well)
            after = sum(map(self.held, self.connections))
            assert after <= max(before, decision.limit), "raised into what was reserved"
            self.seen["reserves"] += after > sum(connection.rdy for connection in self.connections)
        assert self.planner.plan(decision, self.connections, self.now_s) == ([], plan.again_at_s), (
            "another plan at once"
        )
        return plan.again_at_s

    def check_armed(self, had: dict[Facts, int], again_at_s: float | None) -> None:
        armed = self.planner.armed
        assert [connection for connection in self.connections if connection.rdy] == ([] if armed is None else [armed])
        if armed is None:
            assert not any(connection.is_well and connection.in_flight == 0 for connection in self.connections), (
                "one was idle"
            )
            self.seen["none idle"] += any(connection.is_well for connection in self.connections)
            assert again_at_s is not None or not self.connections, "nobody would be armed once one is idle"
        elif not armed.is_well:
            assert self.probes[self.decision.epoch] == 1, "silent before its message came"
        elif not had[armed]:
            assert armed.is_well
            assert armed.in_flight == 0
            self.seen["armed"] += 1

    # -- facts

    @precondition(lambda self: len(self.connections) < MOST_SEATS)
    @rule(max_rdy=st.sampled_from((1, 3, 2500)))
    def a_connection_comes(self, max_rdy: int) -> None:
        self.connections.append(Facts("new", max_rdy, message_at_s=self.now_s))
        self.plan()

    @rule(number=numbers, is_well=st.booleans())
    def a_connection_is(self, number: int, is_well: bool) -> None:
        for connection in self.connections[number : number + 1]:
            connection.is_well = is_well
        self.plan()

    @rule(number=numbers)
    def a_connection_goes(self, number: int) -> None:
        del self.connections[number : number + 1]
        if self.decision.state is State.PROBING:
            self.decide(State.PROBING, 1)  # as the controller does when the armed one is gone
        self.plan()

    @rule(number=numbers, count=st.integers(1, 5))
    def messages_come(self, number: int, count: int) -> None:
        for connection in self.connections[number : number + 1]:
            connection.message_at_s = self.now_s
            connection.in_flight += count
            total = sum(each.in_flight for each in self.connections)
            admitted = self.planner.admitted(self.decision, connection, count, total)
            connection.in_flight -= count - admitted
            if self.decision.state is State.PROBING:
                assert admitted == (connection is self.planner.armed and not self.probes[self.decision.epoch])
                self.probes[self.decision.epoch] += admitted
            else:
                assert admitted == max(0, min(count, self.decision.limit - (total - count)))
            self.seen["given back"] += admitted < count

    @rule(number=numbers)
    def what_it_has_is_finished(self, number: int) -> None:
        for connection in self.connections[number : number + 1]:
            connection.in_flight = 0
        self.plan()

    @rule(for_s=st.sampled_from((0.05, 0.5, 1.0, 4.0)))
    def time_passes(self, for_s: float) -> None:
        self.now_s += for_s
        self.plan()

    def decide(self, state: State, limit: int) -> None:
        self.decision = Decision(state, 0, limit, self.decision.epoch + 1, None, Reason.STARTED)

    @rule(limit=st.integers(0, 12) | st.just(2500))
    def the_limit_is(self, limit: int) -> None:
        self.decide(State.FLOWING if limit else State.BACKOFF, limit)
        self.plan()

    @rule(again=st.booleans(), busy=st.booleans())
    def a_probe_is_wanted(self, again: bool, busy: bool) -> None:
        for connection in self.connections:
            connection.in_flight += busy
        self.decide(State.PROBING, 1)
        self.plan()
        if again:
            self.time_passes(2.0)
            self.a_probe_is_wanted(False, False)

    @rule(number=numbers, its_message_came=st.booleans())
    def the_armed_one_falls_silent(self, number: int, its_message_came: bool) -> None:
        self.a_probe_is_wanted(False, False)
        armed = self.planner.armed
        if armed is not None:
            if its_message_came:
                self.messages_come(self.connections.index(armed), 1)
            self.a_connection_is(self.connections.index(armed), False)
            self.seen["armed and silent"] += 1
            for each in range(len(self.connections)):
                self.messages_come(each, 1)
            self.what_it_has_is_finished(number)

    # -- how it must end

    def teardown(self) -> None:
        if not hasattr(self, "connections"):
            return
        for connection in self.connections:
            connection.in_flight = 0
        well = [connection for connection in self.connections if connection.is_well]
        if self.decision.state is State.PROBING:
            self.decide(State.PROBING, 1)
            self.plan()
            assert (self.planner.armed is None) is (not well)
        elif self.decision.limit >= len(well):
            self.look_again_for(RESERVED_S + 0.01)
            whole = min(self.decision.limit, sum(connection.max_rdy for connection in well))
            assert sum(connection.rdy for connection in well) == whole
            spread = [connection.rdy for connection in well if connection.rdy < connection.max_rdy]
            assert max(spread, default=0) - min(spread, default=0) <= 1
            self.seen["the whole limit"] += bool(well)
        elif self.decision.limit:
            self.each_gets_its_turn(well)
        PlannerMachine.runs += 1

    def each_gets_its_turn(self, well: list[Facts]) -> None:
        rounds = -(-(len(well) - self.decision.limit) // self.decision.limit)
        began_s, served = self.now_s, {connection for connection in well if connection.rdy}
        self.look_again_for(rounds * (LONGEST_TURN_S + RESERVED_S) + RESERVED_S + 0.01)
        served |= {
            connection
            for connection in well
            if any(at_s >= began_s and rdy for at_s, rdy in self.told.get(connection, ()))
        }
        assert served == set(well)
        self.seen["turns"] += 1

    def look_again_for(self, for_s: float) -> None:
        """Only when the planner said so; each connection with a place gets something at once."""
        end_s = self.now_s + for_s
        while (again_at_s := self.plan()) is not None and again_at_s <= end_s:
            for connection in self.connections:
                if connection.rdy:
                    connection.message_at_s = self.now_s + 1e-7
            self.now_s = again_at_s


INTERESTING = ("armed and silent", "reserves", "none idle", "armed", "given back", "the whole limit", "turns")


def test_the_planner_keeps_within_the_limit_and_forgets_nobody() -> None:
    PlannerMachine.seen, PlannerMachine.runs = Counter(), 0
    run_state_machine_as_test(PlannerMachine, settings=settings(max_examples=EXAMPLES, stateful_step_count=12))
    seen = PlannerMachine.seen
    assert {what: seen[what] for what in INTERESTING if seen[what] < EXAMPLES / SELDOM} == {}, seen
    assert PlannerMachine.runs >= EXAMPLES
