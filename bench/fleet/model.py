"""A thousand daemons and one store, in simulated time (pure: a variant, a trouble and a seed in, a `Run` out).

The controller of every daemon is the product's own. Around it stands the plainest model that still shows what matters:

- The store serves what it is asked in the order it comes, so much work a second. A message is one unit of work, a batch
  ten more. It serves also what the daemon has given up meanwhile: Redis reads a request before it sees that the
  connection is gone. So an overload costs twice, once as a failure and once as work for nobody.
- A daemon asks with as many messages as its limit and `batch_size` allow, has two writes under way at most, and gives
  each up after the time-out. One that has caught up asks once a second, with what has come since.
- Each daemon has a backlog of its own, into which messages come steadily, also while the store is down. What failed
  goes back into it at once.
- A store that is down refuses at once. One that comes back can do a tenth of its work at first, and all of it a minute
  later.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, count

from nsqdigest.backoff import Controller, Curve, Decision, State

DAEMONS = 1000
MAX_IN_FLIGHT = 2500
BATCH_SIZE = 500
WRITES_UNDER_WAY = 2
TIMEOUT_S = 5.0
MSG_TIMEOUT_S = 60.0

CAPACITY = 300_000
"""Units of work that the healthy store does in a second."""
BATCH_WORK = 10
COMES_IN = 150
"""Messages a second and daemon: together half of what the store can do."""
FIRST_SHARE = 0.1
WARM_UP_S = 60
GATHERED_S = 1.0
REFUSED_S = 0.002
ROUND_TRIP_S = (0.005, 0.015)
"""Between an answer of the store and the daemon that has worked on it."""
WATCHED_S = 300
"""So long the recovery is watched, from the end of the trouble on …"""
SETTLED_S = 30
"""… or until all have flowed for so long."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to the store, from 0 on."""

    key: str
    lasts_s: int
    ends_within_s: int = 0
    """Later than that by chance, so that no variant is lucky with the moment of the return."""
    share: float = 0.0
    """Of its capacity; 0: it is down."""
    failing: float = 0.0
    """The part of the batches that it answers with an error."""
    warms_up: bool = True


@dataclass(frozen=True, slots=True)
class Variant:
    """How the daemons are set."""

    curve: Curve
    slow_start: bool = True
    batch_size: int = BATCH_SIZE
    timeout_s: float = TIMEOUT_S


@dataclass(slots=True)
class Run:
    """What was seen; the lists are by the second from the end of the trouble on."""

    capacity: list[float]
    """Work that the store can do."""
    asked: list[float] = field(default_factory=lambda: [0.0] * WATCHED_S)
    """Work."""
    stored: list[float] = field(default_factory=lambda: [0.0] * WATCHED_S)
    """Messages that the daemon heard of in time."""
    gave_up: int = 0
    """Batches whose answer came too late: asked for after the trouble …"""
    gave_up_before: int = 0
    """… and while it lasted."""
    flowing: list[int] = field(default_factory=list)
    """Daemons, at the end of the second. It ends where the run ended."""
    stored_before: float = 0.0
    """Messages while the trouble lasted …"""
    could_before: float = 0.0
    """… and how many it could have stored then."""


class Store:
    """First come, first served, at a capacity that is given by the second."""

    def __init__(self, capacity: list[float]) -> None:
        self._capacity = capacity
        self._done = [0.0, *accumulate(capacity)]
        """Work that could have been done until second n."""
        self._taken = 0.0

    def is_down(self, now_s: float) -> bool:
        return not self._capacity[int(now_s)]

    def ask(self, now_s: float, work: float) -> float:
        """When it will be done."""
        second = int(now_s)
        could = self._done[second] + (now_s - second) * self._capacity[second]
        self._taken = max(self._taken, could) + work
        second = bisect_right(self._done, self._taken) - 1
        if second >= len(self._capacity):
            return float("inf")
        return second + (self._taken - self._done[second]) / self._capacity[second]


def capacity_of(trouble: Trouble, ends_s: int) -> list[float]:
    warm_up = [CAPACITY * (FIRST_SHARE + (1 - FIRST_SHARE) * second / WARM_UP_S) for second in range(WARM_UP_S)]
    after = (warm_up if trouble.warms_up else []) + [float(CAPACITY)] * WATCHED_S
    return [CAPACITY * trouble.share] * ends_s + after[: WATCHED_S + int(TIMEOUT_S) + 1]


class Daemon:
    __slots__ = ("asked_s", "controller", "in_flight", "poked_for_s", "probed_epoch", "taken", "writes")

    def __init__(self, controller: Controller, asked_s: float) -> None:
        self.controller = controller
        self.asked_s = asked_s
        self.taken = 0
        """Messages that are stored or in flight."""
        self.in_flight = 0
        self.writes = 0
        self.probed_epoch = -1
        self.poked_for_s = -1.0


Action = Callable[..., None]
Event = tuple[float, int, Action, tuple[object, ...]]


class Simulation:
    def __init__(self, variant: Variant, trouble: Trouble, seed: int, daemons: int = DAEMONS) -> None:
        self._random = random.Random(f"{trouble.key} {seed}")
        self._trouble = trouble
        self._batch_size = variant.batch_size
        self._timeout_s = variant.timeout_s
        self._ends_s = trouble.lasts_s + self._random.randint(0, trouble.ends_within_s)
        capacity = [daemons / DAEMONS * rate for rate in capacity_of(trouble, self._ends_s)]
        self._store = Store(capacity)
        self._run = Run(
            capacity[self._ends_s : self._ends_s + WATCHED_S],
            could_before=min(sum(capacity[: self._ends_s]), COMES_IN * daemons * self._ends_s),
        )
        self._events: list[Event] = []
        self._number = count()
        self._flowing = daemons
        self._settled = [daemons] * SETTLED_S
        for _ in range(daemons):
            controller = Controller(MAX_IN_FLIGHT, variant.curve, self._random.uniform, slow_start=variant.slow_start)
            daemon = Daemon(controller, -self._random.uniform(0, GATHERED_S))
            self._at(daemon.asked_s + GATHERED_S, self._fill, daemon)

    def run(self) -> Run:
        second_ends_s = self._ends_s + 1
        flowing = self._run.flowing
        while True:
            now_s, _, action, facts = heappop(self._events)
            while now_s >= second_ends_s:
                flowing.append(self._flowing)
                second_ends_s += 1
                if len(flowing) == WATCHED_S or flowing[-SETTLED_S:] == self._settled:
                    return self._run
            action(now_s, *facts)

    def _at(self, at_s: float, action: Action, *facts: object) -> None:
        heappush(self._events, (at_s, next(self._number), action, facts))

    # -- a daemon

    def _fill(self, now_s: float, daemon: Daemon) -> None:
        """Asks for as much as it may."""
        while daemon.writes < WRITES_UNDER_WAY:
            decision = daemon.controller.decision
            if decision.state is State.PROBING:
                room = int(daemon.probed_epoch < decision.epoch)
            else:
                room = min(decision.limit - daemon.in_flight, self._batch_size)
            if room <= 0:
                return
            waiting = int(COMES_IN * now_s) - daemon.taken
            if waiting < room and (daemon.writes or now_s < daemon.asked_s + GATHERED_S):
                gathered_s = max(daemon.asked_s, now_s - GATHERED_S / 2) + GATHERED_S
                if daemon.poked_for_s <= now_s:
                    daemon.poked_for_s = gathered_s
                    self._at(gathered_s, self._fill, daemon)
                return
            if decision.state is State.PROBING:
                daemon.probed_epoch = decision.epoch
                daemon.controller.began(decision.epoch, now_s, now_s + MSG_TIMEOUT_S)
            self._ask(now_s, daemon, min(room, waiting), decision.epoch)

    def _ask(self, now_s: float, daemon: Daemon, messages: int, epoch: int) -> None:
        daemon.asked_s = now_s
        daemon.writes += 1
        daemon.in_flight += messages
        daemon.taken += messages
        second = int(now_s) - self._ends_s
        if self._store.is_down(now_s):
            self._at(now_s + REFUSED_S, self._answered, daemon, messages, epoch, False)
            return
        work = messages + BATCH_WORK
        if second >= 0:
            self._run.asked[second] += work
        takes_s = self._store.ask(now_s, work) - now_s + self._random.uniform(*ROUND_TRIP_S)
        in_time = takes_s <= self._timeout_s
        if not in_time:
            self._run.gave_up += second >= 0
            self._run.gave_up_before += second < 0
        is_well = in_time and not (second < 0 and self._random.random() < self._trouble.failing)
        self._at(now_s + min(takes_s, self._timeout_s), self._answered, daemon, messages, epoch, is_well)

    def _answered(self, now_s: float, daemon: Daemon, messages: int, epoch: int, is_well: bool) -> None:
        daemon.writes -= 1
        daemon.in_flight -= messages
        before = daemon.controller.decision
        if is_well:
            self._count_stored(now_s, messages)
            daemon.controller.succeeded(epoch, now_s, messages)
        else:
            daemon.taken -= messages
            daemon.controller.failed(epoch, now_s)
        self._go_on(now_s, daemon, before)

    def _tick(self, now_s: float, daemon: Daemon) -> None:
        before = daemon.controller.decision
        if not daemon.controller.tick(now_s):
            return
        if before.state is State.BACKOFF and self._store.is_down(now_s):
            # Most of a long outage is this: it is gone through in one step.
            daemon.controller.failed(daemon.controller.decision.epoch, now_s + REFUSED_S)
            self._at(daemon.controller.decision.wake_at_s or now_s, self._tick, daemon)
            return
        self._go_on(now_s, daemon, before)

    def _go_on(self, now_s: float, daemon: Daemon, before: Decision) -> None:
        self._fill(now_s, daemon)
        now = daemon.controller.decision
        if now.epoch == before.epoch and now.limit == before.limit:
            return
        if (now.state is State.FLOWING) != (before.state is State.FLOWING):
            self._flowing += 1 if now.state is State.FLOWING else -1
        # A probe under way comes to its answer long before msg_timeout.
        if now.wake_at_s is not None and not (now.state is State.PROBING and daemon.probed_epoch == now.epoch):
            self._at(now.wake_at_s, self._tick, daemon)

    def _count_stored(self, now_s: float, messages: int) -> None:
        second = int(now_s) - self._ends_s
        if second < 0:
            self._run.stored_before += messages
        elif second < WATCHED_S:
            self._run.stored[second] += messages


# -- one daemon alone, before a store that comes back whole and answers at once


@dataclass(frozen=True, slots=True)
class Alone:
    left_alone_s: list[float]
    """For each daemon: how long after the store's return its backoffs were over."""
    asks_per_s: float
    """Of all of them, of the dead store, in its last minutes."""


def alone(variant: Variant, trouble: Trouble, seed: int, daemons: int = DAEMONS, counted_s: float = 300.0) -> Alone:
    uniform = random.Random(f"alone {seed}").uniform
    ends_s = trouble.lasts_s + random.Random(f"alone {seed} ends").randint(0, trouble.ends_within_s)
    left_alone_s: list[float] = []
    asks = 0
    for _ in range(daemons):
        controller = Controller(MAX_IN_FLIGHT, variant.curve, uniform, slow_start=variant.slow_start)
        now_s = uniform(0, GATHERED_S)
        controller.failed(0, now_s)
        while controller.decision.state is State.BACKOFF:
            wake_at_s = controller.decision.wake_at_s or now_s
            controller.tick(wake_at_s)
            asks += ends_s - counted_s <= wake_at_s < ends_s
            now_s, epoch = wake_at_s + REFUSED_S, controller.decision.epoch
            if now_s < ends_s:
                controller.failed(epoch, now_s)
            else:
                controller.succeeded(epoch, now_s)
        left_alone_s.append(now_s - ends_s)
    return Alone(sorted(left_alone_s), asks / counted_s)
