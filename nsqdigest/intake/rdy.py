"""Distributes max_in_flight over the connections (pure): the limit and the connections' facts in, RDY commands out.

Invariants:

- RDY has no acknowledgement. A connection counts with the largest of these: its RDY, the RDY that it had until a second
  ago, the number of its messages in flight. No RDY is raised so far that the sum would exceed the limit.
- A lower RDY is sent before a higher one, and only differences are sent.
- If the limit is enough for one message each, each connection gets its share, the remainder spread one by one.
  Otherwise there are as many places (RDY 1) as the limit, and they go to the connections that have waited longest, in
  turns, so that none starves: of n connections with k places, one that lost its place has it again after RESERVED_S and
  ceil((n - k) / k) times LONGEST_TURN_S + RESERVED_S at the latest, if messages in flight end within the reserve.
- While probing, one connection is armed: it is well, has nothing in flight (nsqd would hand nothing over otherwise),
  and has waited longest. Messages that still arrive on others go back unprocessed. Its first message is the probe, the
  only one of its epoch.
- If the plan can change through time alone (a reserve, a turn, silence), `again_at_s` is when to plan again.

Comes from `consumer`, which sends the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from nsqdigest.backoff import Decision, State

RESERVED_S = 1.0
"""A lowered RDY counts at its old value for so long: messages may be on their way."""
SHORTEST_TURN_S = 1.0
"""A place is kept for so long where nothing comes …"""
LONGEST_TURN_S = 5.0
"""… and for so long where something does, while others wait for one."""
REPLAN_S = 0.1
"""When to plan again while messages in flight take up the limit, or leave no connection idle for the probe."""
UNWELL_AGAIN_S = 1.0
"""When to plan again while a connection is silent: a late heartbeat makes it well, without an event."""
STARVED_FROM = 0.85
"""From this part of its RDY on, messages in flight, a connection is limited by its RDY."""


class ConnectionFacts(Protocol):
    """What the planner reads of a connection."""

    max_rdy: int
    rdy: int
    """The last that was sent."""
    in_flight: int
    """Handed over and neither finished nor given back."""
    message_at_s: float
    """When its last message came; before the first one, when it subscribed."""

    @property
    def is_well(self) -> bool:
        """Open, not closing and not silent."""


C = TypeVar("C", bound=ConnectionFacts)


class Plan(NamedTuple, Generic[C]):
    changes: list[tuple[C, int]]
    again_at_s: float | None
    """When to plan again if nothing happens before; None: only an event can change the plan."""


@dataclass(slots=True)
class _Memory:
    """What the planner remembers of a connection."""

    reserved: int = 0
    reserved_until_s: float = 0.0
    raised_at_s: float = 0.0
    """When its RDY was last raised from 0."""
    turn_began_s: float = 0.0
    """When its present turn began: then, or when the turn before was over and no other had waited longer."""
    lost_place_at_s: float = 0.0
    """When it last lost a place, or was last armed."""


class Planner(Generic[C]):
    def __init__(self) -> None:
        self._memories: dict[C, _Memory] = {}
        self._armed: C | None = None
        self._armed_epoch = -1
        self._probe_came = False

    @property
    def armed(self) -> C | None:
        return self._armed

    # -- the plan

    def plan(
        self, decision: Decision, connections: Sequence[C], now_s: float, *, is_held_back: bool = False
    ) -> Plan[C]:
        """The commands to send now, all of them, in this order. `is_held_back`: every RDY is 0 until something in work
        is settled."""
        self._memories = {each: self._memories.get(each) or _Memory() for each in connections}
        well = [each for each in connections if each.is_well]
        if is_held_back:
            well = []
        again_s = [now_s + UNWELL_AGAIN_S] if decision.limit and len(well) < len(connections) else []
        if decision.state is State.PROBING:
            self._arm(decision.epoch, well, now_s)
            if well and self._armed is None:
                again_s.append(now_s + REPLAN_S)
            wanted = {} if self._armed is None else {self._armed: 1}
            changes = [(each, 0) for each in connections if each.rdy and each not in wanted]
            changes += [(each, count) for each, count in wanted.items() if each.rdy != count]
            self._remember(changes, now_s)
            return Plan(changes, min(again_s, default=None))
        self._armed = None
        are_scarce = decision.limit < len(well)
        wanted = self._in_turn(decision.limit, well, now_s) if are_scarce else _shares(decision.limit, well)
        lowered = {each: wanted.get(each, 0) for each in connections if each.rdy > wanted.get(each, 0)}
        self._remember(lowered.items(), now_s)
        raised, room_at_s = self._raise(decision.limit, connections, wanted, lowered, now_s)
        self._remember(raised.items(), now_s)
        if room_at_s is not None:
            again_s.append(room_at_s)
        if are_scarce:
            again_s += [self._turn_ends_s(each) for each in wanted if each.rdy or each in raised]
        return Plan([*lowered.items(), *raised.items()], min(again_s, default=None))

    def _in_turn(self, limit: int, well: Sequence[C], now_s: float) -> dict[C, int]:
        """RDY 1 for each connection whose turn it is, whether the limit has room for it yet or not."""
        in_turn = sorted(well, key=lambda each: self._rank(each, now_s))[:limit]
        for connection in in_turn:
            if connection.rdy and now_s >= self._turn_ends_s(connection):
                self._memories[connection].turn_began_s = now_s
        return dict.fromkeys(in_turn, 1)

    def _rank(self, connection: C, now_s: float) -> tuple[int, float]:
        """The order of places: connections in their turn, then those that wait, the longest wait first, then those
        whose turn is over: the one that has had its place longest gives it up first."""
        if not connection.rdy:
            return 1, self._waiting_since_s(connection)
        if now_s < self._turn_ends_s(connection):
            return 0, 0.0
        return 2, -self._memories[connection].raised_at_s

    def _turn_ends_s(self, connection: C) -> float:
        turn_began_s = self._memories[connection].turn_began_s
        return turn_began_s + (LONGEST_TURN_S if connection.message_at_s > turn_began_s else SHORTEST_TURN_S)

    def _raise(
        self, limit: int, connections: Iterable[C], wanted: dict[C, int], lowered: dict[C, int], now_s: float
    ) -> tuple[dict[C, int], float | None]:
        """As much of what is wanted as the limit has room for, and when to plan again for the rest."""
        reserved = {each: self._reserved_rdy(each, lowered.get(each, each.rdy), now_s) for each in connections}
        room = limit - sum(reserved.values())
        raised: dict[C, int] = {}
        is_short = False
        for connection, count in wanted.items():
            if count > connection.rdy:
                given = min(count, reserved[connection] + max(0, room))
                room -= max(0, given - reserved[connection])
                is_short |= given < count
                if given > connection.rdy:
                    raised[connection] = given
        if not is_short:
            return raised, None
        ends_s = [memory.reserved_until_s for memory in self._memories.values() if memory.reserved_until_s > now_s]
        return raised, min(ends_s, default=now_s + REPLAN_S)

    def _reserved_rdy(self, connection: C, rdy: int, now_s: float) -> int:
        memory = self._memories[connection]
        reserved = memory.reserved if now_s < memory.reserved_until_s else 0
        return max(rdy, reserved, connection.in_flight)

    def _remember(self, changes: Iterable[tuple[C, int]], now_s: float) -> None:
        for connection, count in changes:
            memory = self._memories[connection]
            if count < connection.rdy:
                still = memory.reserved if now_s < memory.reserved_until_s else 0
                memory.reserved, memory.reserved_until_s = max(still, connection.rdy), now_s + RESERVED_S
                if not count:
                    memory.lost_place_at_s = now_s
            elif not connection.rdy:
                memory.raised_at_s = memory.turn_began_s = now_s

    def _arm(self, epoch: int, well: Sequence[C], now_s: float) -> None:
        if self._armed_epoch == epoch and (self._probe_came or self._armed in well):
            return  # an epoch has one probe, even if its connection is not well any more
        idle = [each for each in well if each.in_flight == 0]
        self._armed = min(idle, key=self._waiting_since_s, default=None)
        self._armed_epoch = epoch
        self._probe_came = False
        if self._armed is not None:
            self._memories[self._armed].lost_place_at_s = now_s

    def _waiting_since_s(self, connection: C) -> float:
        return max(connection.message_at_s, self._memories[connection].lost_place_at_s)

    # -- messages that arrived

    def admitted(self, decision: Decision, connection: C, count: int, in_flight: int) -> int:
        """How many of `count` messages that just arrived are worked on; the rest goes back unprocessed.

        `in_flight`: of all connections, these included. It exceeds the limit where a RDY was lowered, or where nsqd
        took back messages that are still in work here.
        """
        if decision.state is State.PROBING:
            is_probe = connection is self._armed and self._armed_epoch == decision.epoch and not self._probe_came
            self._probe_came |= is_probe
            return int(is_probe)
        return max(0, min(count, decision.limit - in_flight + count))


def _shares(limit: int, well: Sequence[C]) -> dict[C, int]:
    """The limit over all of them. What exceeds a connection's max_rdy goes to the others."""
    shares: dict[C, int] = {}
    left = limit
    for number, connection in enumerate(sorted(well, key=lambda each: each.max_rdy)):
        shares[connection] = min(-(-left // (len(well) - number)), connection.max_rdy)
        left -= shares[connection]
    return shares


def is_starved(connections: Iterable[ConnectionFacts]) -> bool:
    """Whether some connection is limited by its RDY: then max_in_flight limits the rate."""
    return any(each.rdy and each.in_flight >= STARVED_FROM * each.rdy for each in connections)
