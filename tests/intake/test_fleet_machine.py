"""Controller and planner in front of a simulated fleet: whatever nsqds, store, timers and operators do, in whatever
order, and that it always ends well once all is well.

What holds at every moment is asserted in `support.fleet`; here stand what is done to it, and how every run must end.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from nsqdigest.backoff import PROBE_MESSAGE_WITHIN_S, Curve, State, longest_recovery_s
from nsqdigest.intake.rdy import LONGEST_TURN_S, REPLAN_S, RESERVED_S, UNWELL_AGAIN_S
from support.fleet import LONGEST_ANSWER_S, LONGEST_WAY_S, MSG_TIMEOUT_S, Fleet, Link, Store

pytestmark = pytest.mark.property

CURVES = (
    Curve(0.2, 3.0),
    Curve(0.2, 1.6, jitter="none"),
    Curve(0.5, 1.5, jitter="equal", recovery="halve"),
    Curve(0.1, 2.0, "decorrelated"),
)
MOST_LINKS = 4
ENOUGH = 10_000

links = st.integers(0, MOST_LINKS - 1)
states = st.sampled_from([state for state in State if state is not State.PAUSED])
SELDOM = 100
"""What is interesting is to come in one of so many examples."""
EXAMPLES = 6 * settings().max_examples


class FleetMachine(RuleBasedStateMachine):
    seen: ClassVar[Counter[str]] = Counter()
    runs: ClassVar[int] = 0

    @initialize(
        seed=st.integers(0, 2**32),
        curve=st.sampled_from(CURVES),
        max_in_flight=st.sampled_from((1, 2, 3, 5, 12, 12)),
        slow_start=st.sampled_from((True, True, False)),
        count=st.integers(0, MOST_LINKS),
    )
    def begin(self, seed: int, curve: Curve, max_in_flight: int, slow_start: bool, count: int) -> None:
        self.curve, self.max_in_flight, self.slow_start = curve, max_in_flight, slow_start
        self.fleet = Fleet(seed, curve, max_in_flight, slow_start=slow_start)
        for number in range(count):
            self.fleet.connect(2500 if number else 2, 4 * number)

    def link(self, number: int) -> Link | None:
        open_links = [link for link in self.fleet.links if link.is_open]
        return open_links[number % len(open_links)] if open_links else None

    # -- what happens

    @rule(for_s=st.sampled_from((0.03, 0.3, 1.0, 2.5)), lateness_s=st.sampled_from((0.0, 0.0, 0.4)))
    def time_passes(self, for_s: float, lateness_s: float) -> None:
        self.fleet.lateness_s = lateness_s
        self.fleet.run(for_s)

    def comes_to(self, state: State) -> None:
        """As far as it does within a few seconds."""
        fleet = self.fleet
        if not any(link.is_well for link in fleet.links):
            fleet.connect(2500, 0)
        if state is State.RAMPING and fleet.decision.state is State.FLOWING:
            self.comes_to(State.BACKOFF)
        fleet.store = Store.DOWN if state in {State.BACKOFF, State.PROBING} else Store.WELL
        for link in fleet.links:
            fleet.publish(link, 3)
        fleet.run(8.0, until=lambda: fleet.decision.state is state)

    @rule(store=st.sampled_from((Store.WELL, Store.DOWN, Store.SHAKY)), count=st.sampled_from((0, 3, 12)))
    def the_store_is(self, store: Store, count: int) -> None:
        self.fleet.store = store
        for link in self.fleet.links:
            self.fleet.publish(link, count)
        self.fleet.run(1.0)

    @rule(state=states)
    def it_comes_to(self, state: State) -> None:
        self.comes_to(state)

    @rule(how=st.sampled_from(("no verdict", "dead letter", "connection gone")))
    def the_probe_is_lost(self, how: str) -> None:
        fleet = self.fleet
        self.comes_to(State.PROBING)
        fleet.store = Store.UNASKED if how == "dead letter" else Store.MUTE
        fleet.run(2.0, until=lambda: fleet.decision.epoch in fleet.probed)
        if how == "connection gone" and fleet.armed is not None:
            fleet.break_off(fleet.armed)
        elif fleet.decision.state is State.PROBING:
            fleet.run(MSG_TIMEOUT_S + LONGEST_ANSWER_S, until=lambda: fleet.decision.epoch not in fleet.probed)
        fleet.store = Store.WELL

    @rule(number=links, count=st.sampled_from((1, 3, 12)))
    def messages_are_published(self, number: int, count: int) -> None:
        link = self.link(number)
        if link is not None:
            self.fleet.publish(link, count)

    @precondition(lambda self: len(self.fleet.links) < MOST_LINKS)
    @rule(max_rdy=st.sampled_from((1, 3, 2500)), depth=st.sampled_from((0, 2, 12)))
    def a_connection_comes(self, max_rdy: int, depth: int) -> None:
        self.fleet.connect(max_rdy, depth)

    @rule(number=links, how=st.sampled_from(("breaks", "closes", "falls silent", "is heard again")))
    def a_connection(self, number: int, how: str) -> None:
        link = self.link(number)
        if link is not None:
            end = {
                "breaks": self.fleet.break_off,
                "closes": self.fleet.begin_to_close,
                "falls silent": self.fleet.fall_silent,
                "is heard again": self.fleet.be_heard_again,
            }
            end[how](link)

    @rule()
    def a_timer_is_early(self) -> None:
        self.fleet.early_timer()

    @rule(state=states, for_s=st.sampled_from((0.0, 0.5)))
    def the_operator_holds_for_a_while(self, state: State, for_s: float) -> None:
        self.comes_to(state)
        self.fleet.pause()
        self.fleet.run(for_s)
        self.fleet.resume()

    # -- how it must end

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        self.all_becomes_well()
        self.it_flows_within_the_bound()
        self.every_connection_is_served()
        FleetMachine.seen += self.fleet.seen
        FleetMachine.runs += 1

    def all_becomes_well(self) -> None:
        fleet = self.fleet
        fleet.store, fleet.lateness_s = Store.WELL, 0.0
        for link in [link for link in fleet.links if link.closing]:
            fleet.break_off(link)
        if not any(link.is_open for link in fleet.links):
            fleet.connect(2500, 0)
        for link in fleet.links:
            if link.is_open:
                fleet.be_heard_again(link)
        fleet.run(MSG_TIMEOUT_S)  # what nobody answers is nsqd's again
        fleet.publish([link for link in fleet.links if link.is_open][-1], ENOUGH)

    def it_flows_within_the_bound(self) -> None:
        """One connection has messages, and a probe that finds none is tried on the next: it is found in one round.
        Besides it takes until one is idle, the way there and back, and the store's answer."""
        round_s = PROBE_MESSAGE_WITHIN_S * len(self.fleet.links)
        answer_s = round_s + REPLAN_S + UNWELL_AGAIN_S + 2 * LONGEST_WAY_S + LONGEST_ANSWER_S
        within_s = longest_recovery_s(self.curve, self.max_in_flight, answer_s, slow_start=self.slow_start)
        self.fleet.run(within_s, until=lambda: self.fleet.decision.state is State.FLOWING)
        assert self.fleet.decision.state is State.FLOWING

    def every_connection_is_served(self) -> None:
        """Places for all: the whole limit is asked for. Fewer: each has had one within the bound that rdy.py states."""
        fleet = self.fleet
        open_links = [link for link in fleet.links if link.is_open]
        rounds = -(-(len(open_links) - self.max_in_flight) // self.max_in_flight)
        patience_s = RESERVED_S + LONGEST_ANSWER_S + UNWELL_AGAIN_S
        for link in open_links:
            fleet.publish(link, ENOUGH)
        began_s = fleet.now_s
        fleet.run(max(0, rounds) * (LONGEST_TURN_S + RESERVED_S + LONGEST_ANSWER_S) + patience_s)
        assert all(link.message_at_s > began_s for link in open_links)
        if self.max_in_flight >= len(open_links):
            whole = min(self.max_in_flight, sum(link.max_rdy for link in open_links))
            assert sum(link.rdy for link in open_links) == whole


INTERESTING = (
    "probe lost: no message",
    "probe lost: no verdict",
    "probe lost: connection gone",
    "probe lost: dead letter",
    "results of an earlier epoch",
    "level at the cap",
    "held back by a reserve or by what is in flight",
    "places taken in turns",
    "nothing idle to arm",
    "given back unprocessed",
    "arrived in a backoff",
    "timers early",
    "timers late",
    *(f"paused while {state}" for state in State if state is not State.PAUSED),
)


def test_a_fleet_never_takes_more_than_the_limit_and_always_recovers() -> None:
    FleetMachine.seen, FleetMachine.runs = Counter(), 0
    run_state_machine_as_test(FleetMachine, settings=settings(max_examples=EXAMPLES, stateful_step_count=10))
    seen = FleetMachine.seen
    assert {what: seen[what] for what in INTERESTING if seen[what] < EXAMPLES / SELDOM} == {}, seen
    assert FleetMachine.runs >= EXAMPLES
