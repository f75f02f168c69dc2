"""Which connection may have how much in flight (pure): the limit and the connections' facts in, the RDY to send out.

Invariants:

- RDY has no acknowledgement. What a connection may have in flight is the RDY it has, the RDY it had until a second ago,
  or what it has: the largest of these. None is raised so far that their sum would grow above the limit.
- Lowered ones are sent before raised ones, and only differences are sent.
- With places for all, each has its share, the remainder spread one by one. With fewer places than connections they go
  to those that have waited longest, in turns, so that none starves: of n connections with k places one that lost its
  place has it again after RESERVED_S and ceil((n - k) / k) times LONGEST_TURN_S + RESERVED_S at the latest, where what
  is in flight ends within the reserve.
- While probing one connection is armed: a well one with nothing in flight (nsqd would hand nothing over otherwise), of
  those the one that has waited longest, whatever may still be under way elsewhere: that goes back unprocessed. Its
  first message is the probe, the only one of its epoch.
- Whatever may change by time alone (a reserve, a turn, silence) is looked at again without anything else happening.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from nsqdigest.backoff import Decision, State

RESERVED_S = 1.0
"""A lowered RDY counts for so long as it was: messages may be under way."""
SHORTEST_TURN_S = 1.0
"""A place is kept for so long where nothing comes …"""
LONGEST_TURN_S = 5.0
"""… and for so long where something does, while others wait for one."""
SETTLE_S = 0.1
"""When to look again while what is in flight takes up the room, or leaves no connection idle for the probe."""
UNWELL_AGAIN_S = 1.0
"""When to look again at a connection that is silent: a late heartbeat makes it well, and nobody tells."""
STALLED_S = 60.0
"""A connection that had a RDY for so long and got nothing, while others flowed all along, is worth a word."""
FLOWS_WITHIN_S = 5.0
"""Others flow while no more than this passes between two messages of theirs. After a silence of the whole topic its
first message comes somewhere, and says nothing of the rest."""
STARVED_FROM = 0.85
"""The part of its RDY from which on a connection is held up by it."""


class Seat(Protocol):
    """A connection as it is seen here: facts to read."""

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


S = TypeVar("S", bound=Seat)


class Plan(NamedTuple, Generic[S]):
    changes: list[tuple[S, int]]
    again_at_s: float | None
    """When to plan anew though nothing happens; None: whatever changes this plan is told."""


@dataclass(slots=True)
class _Place:
    """What is remembered of a connection."""

    reserved: int = 0
    reserved_until_s: float = 0.0
    since_s: float = 0.0
    """When its RDY was last raised from 0."""
    turn_s: float = 0.0
    """When its present turn began: then, or when its turn was over and nobody had waited longer."""
    served_at_s: float = 0.0
    """When it last lost a place, or was last armed."""
    is_said_stalled: bool = False


class Planner(Generic[S]):
    def __init__(self) -> None:
        self._places: dict[S, _Place] = {}
        self._armed: S | None = None
        self._armed_epoch = -1
        self._probe_came = False
        self._flows_since_s: float | None = None

    @property
    def armed(self) -> S | None:
        return self._armed

    # -- what is wanted

    def plan(self, decision: Decision, seats: Sequence[S], now_s: float, *, is_held_back: bool = False) -> Plan[S]:
        """What to send now. The caller sends all of it, in this order. `is_held_back`: nothing is asked for until what
        is in work is settled."""
        self._places = {seat: self._places.get(seat) or _Place() for seat in seats}
        well = [seat for seat in seats if seat.is_well]
        if is_held_back:
            well = []
        again_s = [now_s + UNWELL_AGAIN_S] if decision.limit and len(well) < len(seats) else []
        if decision.state is State.PROBING:
            self._arm(decision.epoch, well, now_s)
            if well and self._armed is None:
                again_s.append(now_s + SETTLE_S)
            wanted = {} if self._armed is None else {self._armed: 1}
            changes = [(seat, 0) for seat in seats if seat.rdy and seat not in wanted]
            changes += [(seat, count) for seat, count in wanted.items() if seat.rdy != count]
            self._note(changes, now_s)
            return Plan(changes, min(again_s, default=None))
        self._armed = None
        are_scarce = decision.limit < len(well)
        wanted = self._in_turn(decision.limit, well, now_s) if are_scarce else _shares(decision.limit, well)
        lowered = {seat: wanted.get(seat, 0) for seat in seats if seat.rdy > wanted.get(seat, 0)}
        self._note(lowered.items(), now_s)
        raised, room_at_s = self._raise(decision.limit, seats, wanted, lowered, now_s)
        self._note(raised.items(), now_s)
        if room_at_s is not None:
            again_s.append(room_at_s)
        if are_scarce:
            again_s += [self._turn_ends_s(seat) for seat in wanted if seat.rdy or seat in raised]
        return Plan([*lowered.items(), *raised.items()], min(again_s, default=None))

    def _in_turn(self, limit: int, well: Sequence[S], now_s: float) -> dict[S, int]:
        """A place for each whose turn it is, room or not."""
        in_turn = sorted(well, key=lambda seat: self._rank(seat, now_s))[:limit]
        for seat in in_turn:
            if seat.rdy and now_s >= self._turn_ends_s(seat):
                self._places[seat].turn_s = now_s
        return dict.fromkeys(in_turn, 1)

    def _rank(self, seat: S, now_s: float) -> tuple[int, float]:
        """The order of places: whoever is in a turn keeps it, then who has waited longest; of those whose turn is over
        the one that has had its place longest is the first to give it up."""
        if not seat.rdy:
            return 1, self._waiting_since_s(seat)
        if now_s < self._turn_ends_s(seat):
            return 0, 0.0
        return 2, -self._places[seat].since_s

    def _turn_ends_s(self, seat: S) -> float:
        turn_s = self._places[seat].turn_s
        return turn_s + (LONGEST_TURN_S if seat.message_at_s > turn_s else SHORTEST_TURN_S)

    def _raise(
        self, limit: int, seats: Iterable[S], wanted: dict[S, int], lowered: dict[S, int], now_s: float
    ) -> tuple[dict[S, int], float | None]:
        """As much of what is wanted as there is room for, and when to look again for the rest."""
        taken = {seat: self._taken(seat, lowered.get(seat, seat.rdy), now_s) for seat in seats}
        room = limit - sum(taken.values())
        raised: dict[S, int] = {}
        is_short = False
        for seat, count in wanted.items():
            if count > seat.rdy:
                given = min(count, taken[seat] + max(0, room))
                room -= max(0, given - taken[seat])
                is_short |= given < count
                if given > seat.rdy:
                    raised[seat] = given
        if not is_short:
            return raised, None
        ends_s = [place.reserved_until_s for place in self._places.values() if place.reserved_until_s > now_s]
        return raised, min(ends_s, default=now_s + SETTLE_S)

    def _taken(self, seat: S, rdy: int, now_s: float) -> int:
        place = self._places[seat]
        reserved = place.reserved if now_s < place.reserved_until_s else 0
        return max(rdy, reserved, seat.in_flight)

    def _note(self, changes: Iterable[tuple[S, int]], now_s: float) -> None:
        for seat, count in changes:
            place = self._places[seat]
            if count < seat.rdy:
                still = place.reserved if now_s < place.reserved_until_s else 0
                place.reserved, place.reserved_until_s = max(still, seat.rdy), now_s + RESERVED_S
                if not count:
                    place.served_at_s = now_s
            elif not seat.rdy:
                place.since_s = place.turn_s = now_s
                place.is_said_stalled = False

    def _arm(self, epoch: int, well: Sequence[S], now_s: float) -> None:
        if self._armed_epoch == epoch and (self._probe_came or self._armed in well):
            return  # the probe that came is the only one of its epoch, though its connection may be unwell by now
        idle = [seat for seat in well if seat.in_flight == 0]
        self._armed = min(idle, key=self._waiting_since_s, default=None)
        self._armed_epoch = epoch
        self._probe_came = False
        if self._armed is not None:
            self._places[self._armed].served_at_s = now_s

    def _waiting_since_s(self, seat: S) -> float:
        return max(seat.message_at_s, self._places[seat].served_at_s)

    # -- what came

    def admitted(self, decision: Decision, seat: S, count: int, in_flight: int) -> int:
        """How many of the messages that just came are worked on; the rest goes back unprocessed.

        `in_flight`: of all connections, these included. It can be above the limit where a RDY was lowered, or where
        nsqd has taken back what is still worked on here.
        """
        if decision.state is State.PROBING:
            is_probe = seat is self._armed and self._armed_epoch == decision.epoch and not self._probe_came
            self._probe_came |= is_probe
            return int(is_probe)
        return max(0, min(count, decision.limit - in_flight + count))

    # -- what to say

    def stalled(self, seats: Sequence[S], now_s: float) -> list[S]:
        """Connections that have had a RDY for long and got nothing, while others flowed; each once. To be asked often:
        between two questions it is not seen whether others flow."""
        served = [(seat, self._places[seat]) for seat in seats if seat in self._places and seat.rdy and seat.is_well]
        if not any(seat.message_at_s > max(now_s - FLOWS_WITHIN_S, place.since_s) for seat, place in served):
            self._flows_since_s = None
            return []
        if self._flows_since_s is None:
            self._flows_since_s = now_s
        found = []
        for seat, place in served:
            quiet_since_s = max(seat.message_at_s, place.since_s, self._flows_since_s)
            if now_s - quiet_since_s >= STALLED_S and not place.is_said_stalled:
                place.is_said_stalled = True
                found.append(seat)
        return found


def _shares(limit: int, well: Sequence[S]) -> dict[S, int]:
    """The limit over all of them. What one may not have goes to those that may have more."""
    shares: dict[S, int] = {}
    left = limit
    for number, seat in enumerate(sorted(well, key=lambda seat: seat.max_rdy)):
        shares[seat] = min(-(-left // (len(well) - number)), seat.max_rdy)
        left -= shares[seat]
    return shares


def is_starved(seats: Iterable[Seat]) -> bool:
    """Whether some connection is held up by its RDY: max_in_flight is what limits the rate there."""
    return any(seat.rdy and seat.in_flight >= STARVED_FROM * seat.rdy for seat in seats)
