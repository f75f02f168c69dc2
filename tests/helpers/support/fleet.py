"""A consumer's connections in simulated time: nsqds that hand over messages, a store that answers, timers, and between
controller and planner nothing but what `consumer.py` does too.

Nothing here decides. What must hold at every moment is checked where it could be broken (`_admit`, `_apply`), so that
every run is a proof, whatever drives it. `seen` counts what came to pass.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from nsqdigest.backoff import SHORTEST_WAIT_S, Controller, Curve, Decision, Reason, State
from nsqdigest.intake.rdy import Planner

MSG_TIMEOUT_S = 6.0
LONGEST_ANSWER_S = 0.4
"""Of the store, unless it never answers."""
LONGEST_WAY_S = 0.05
"""Of a RDY to its nsqd, and of messages back."""


@dataclass(eq=False)
class Facts:
    """A connection, as the planner sees it."""

    name: str = ""
    max_rdy: int = 2500
    rdy: int = 0
    in_flight: int = 0
    message_at_s: float = 0.0
    is_well: bool = True


class Link(Facts):
    """Both ends of a connection. `known_rdy` and `handed` are nsqd's, which hears of everything a little later."""

    def __init__(self, name: str, max_rdy: int, depth: int, now_s: float) -> None:
        super().__init__(name, max_rdy, message_at_s=now_s)
        self.is_open = True
        self.closing = False
        self.depth = depth
        self.known_rdy = 0
        self.handed = 0
        self.heard_at_s = self.sent_at_s = now_s

    def look(self, *, silent: bool) -> None:
        self.is_well = self.is_open and not self.closing and not silent


class Store(StrEnum):
    """What becomes of a message that is worked on."""

    WELL = "well"
    DOWN = "down"
    MUTE = "mute"
    """Its answers never come."""
    UNASKED = "unasked"
    """Every message is a dead letter."""
    SHAKY = "shaky"
    """Now this, now that."""


VERDICTS = {
    Store.WELL: ("stored",),
    Store.DOWN: ("failed",),
    Store.MUTE: ("none",),
    Store.UNASKED: ("dead letter",),
    Store.SHAKY: ("stored", "failed", "none", "dead letter"),
}


class Fleet:
    def __init__(self, seed: int, curve: Curve, max_in_flight: int, *, slow_start: bool) -> None:
        self.now_s = 0.0
        self.store = Store.WELL
        self.lateness_s = 0.0
        """Of timers, at the most."""
        self.seen: Counter[str] = Counter()
        self.links: list[Link] = []
        self.controller = Controller(max_in_flight, curve, self._drawn, slow_start=slow_start)
        self._planner: Planner[Link] = Planner()
        self._curve = curve
        self._random = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._timer = 0
        self._draws = 0
        self.probed: set[int] = set()
        """Epochs whose probe came."""
        self._told = self.controller.decision
        self._backoff_until_s = 0.0

    @property
    def decision(self) -> Decision:
        return self.controller.decision

    @property
    def armed(self) -> Link | None:
        return self._planner.armed

    @property
    def in_flight(self) -> int:
        return sum(link.in_flight for link in self.links)

    # -- time

    def run(self, for_s: float, until: Callable[[], bool] = lambda: False) -> None:
        end_s = self.now_s + for_s
        while self._events and self._events[0][0] <= end_s and not until():
            self.now_s, _, happen = heapq.heappop(self._events)
            happen()
        if not until():
            self.now_s = end_s

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (max(at_s, self.now_s), next(self._numbers), happen))

    def _drawn(self, low: float, high: float) -> float:
        self._draws += 1
        return self._random.uniform(low, high)

    # -- the world

    def connect(self, max_rdy: int, depth: int) -> Link:
        link = Link(f"nsqd-{next(self._numbers)}", max_rdy, depth, self.now_s)
        self.links.append(link)
        self._apply()
        return link

    def publish(self, link: Link, count: int) -> None:
        link.depth += count
        self._pump(link)

    def break_off(self, link: Link) -> None:
        link.is_open = link.is_well = False
        if link is self.armed:
            self.seen["probe lost: connection gone"] += 1
            self._settle(self.controller.lost(self.decision.epoch, self.now_s))
        self._apply()

    def begin_to_close(self, link: Link) -> None:
        link.closing, link.is_well = True, False

    def fall_silent(self, link: Link) -> None:
        link.look(silent=True)

    def be_heard_again(self, link: Link) -> None:
        """A late heartbeat: nobody tells the planner."""
        link.look(silent=False)
        self._pump(link)

    def early_timer(self) -> None:
        wake_at_s = self.decision.wake_at_s
        self.seen["timers early"] += wake_at_s is not None and wake_at_s > self.now_s
        self._tick()

    def pause(self) -> None:
        self.seen[f"paused while {self.decision.state}"] += 1
        self._settle(self.controller.pause(self.now_s))

    def resume(self) -> None:
        self._settle(self.controller.resume(self.now_s))

    # -- nsqd's end

    def _pump(self, link: Link) -> None:
        """Hands over what RDY allows, in the order of the wire."""
        count = min(link.depth, link.known_rdy - link.handed)
        if count > 0 and link.is_open and (link.is_well or link.closing):
            link.depth -= count
            link.handed += count
            link.sent_at_s = max(link.sent_at_s, self.now_s + self._random.uniform(0, LONGEST_WAY_S))
            self._at(link.sent_at_s, lambda: self._arrive(link, count))

    def _tell(self, link: Link, what: Callable[[], None]) -> None:
        link.heard_at_s = max(link.heard_at_s, self.now_s + self._random.uniform(0, LONGEST_WAY_S))

        def hear() -> None:
            what()
            self._pump(link)

        self._at(link.heard_at_s, hear)

    def _send_rdy(self, link: Link, count: int) -> None:
        def hear() -> None:
            link.known_rdy = count

        link.rdy = count
        self._tell(link, hear)

    def _end_of(self, link: Link, count: int, *, again: bool) -> None:
        """FIN, or REQ with its delay."""

        def hear() -> None:
            link.handed -= count
            if again:
                self._at(self.now_s + self._random.uniform(0, 1), lambda: self.publish(link, count))

        link.in_flight -= count
        self._tell(link, hear)

    # -- the consumer: facts on to controller and planner, decisions on to the connections

    def _arrive(self, link: Link, count: int) -> None:
        if not link.is_open:
            return
        link.in_flight += count
        link.message_at_s = self.now_s
        decision = self.decision
        admitted = self._planner.admitted(decision, link, count, self.in_flight)
        self._check_admitted(link, admitted, count)
        if admitted < count:
            self.seen["given back unprocessed"] += 1
            self._end_of(link, count - admitted, again=True)
        if not admitted:
            self._arm_if_idle(link)
            return
        if decision.state is State.PROBING:
            self.controller.began(decision.epoch, self.now_s, self.now_s + MSG_TIMEOUT_S)
            self._set_timer(None)
        self._work(link, admitted, decision.epoch)

    def _work(self, link: Link, count: int, epoch: int) -> None:
        verdict = self._random.choice(VERDICTS[self.store])
        if verdict == "none":
            self._at(self.now_s + MSG_TIMEOUT_S, lambda: self._end_of(link, count, again=True))
        else:
            answer_s = self._random.uniform(0.001, LONGEST_ANSWER_S)
            self._at(self.now_s + answer_s, lambda: self._conclude(link, count, epoch, verdict))

    def _conclude(self, link: Link, count: int, epoch: int, verdict: str) -> None:
        if epoch != self.decision.epoch:
            self.seen["results of an earlier epoch"] += 1
        if verdict == "stored":
            decided = self.controller.succeeded(epoch, self.now_s, count)
        elif verdict == "failed":
            decided = self.controller.failed(epoch, self.now_s)
        else:
            decided = self.controller.lost(epoch, self.now_s)
            self.seen["probe lost: dead letter"] += decided
        self._settle(decided)
        self._end_of(link, count, again=verdict == "failed")
        self._arm_if_idle(link)

    def _arm_if_idle(self, link: Link) -> None:
        if self.decision.state is State.PROBING and self.armed is None and not link.in_flight:
            self._apply()

    def _settle(self, decided: bool) -> None:
        if decided:
            self._check_decided()
            self._apply()

    def _apply(self) -> None:
        self.links = [link for link in self.links if link.is_open or link.in_flight]
        plan = self._planner.plan(self.decision, self.links, self.now_s)
        for link, count in plan.changes:
            self._send_rdy(link, count)
        self._check_applied(plan.again_at_s)
        self._set_timer(plan.again_at_s)

    def _set_timer(self, plan_again_at_s: float | None) -> None:
        self._timer = mine = next(self._numbers)
        wake_at_s = min((at_s for at_s in (self.decision.wake_at_s, plan_again_at_s) if at_s is not None), default=None)
        if wake_at_s is not None:
            late_s = self._random.uniform(0, self.lateness_s)
            self.seen["timers late"] += late_s > 0.1
            self._at(max(wake_at_s, self.now_s) + late_s, lambda: self._tick() if self._timer == mine else None)

    def _tick(self) -> None:
        before = self.decision
        decided = self.controller.tick(self.now_s)
        if decided and before.state is State.PROBING:
            kind = "no verdict" if before.epoch in self.probed else "no message"
            self.seen[f"probe lost: {kind}"] += 1
        self._settle(decided)
        if not decided:
            self._apply()

    # -- what always holds

    def _check_admitted(self, link: Link, admitted: int, count: int) -> None:
        decision = self.decision
        if decision.limit == 0:
            assert admitted == 0, "worked on in a backoff"
            self.seen["arrived in a backoff"] += 1
        elif decision.state is State.PROBING:
            assert admitted == (link is self.armed and decision.epoch not in self.probed)
            if admitted:
                assert self.now_s >= self._backoff_until_s, "the probe came before its backoff was over"
                self.probed.add(decision.epoch)
        else:
            assert admitted == 0 or self.in_flight - (count - admitted) <= decision.limit, "more than the limit"

    def _check_applied(self, again_at_s: float | None) -> None:
        decision = self.decision
        wanted = sum(link.rdy for link in self.links)
        assert wanted <= decision.limit
        assert all(link.rdy <= link.max_rdy for link in self.links)
        assert again_at_s is None or again_at_s > self.now_s, "it would be asked again and again"
        well = [link for link in self.links if link.is_well]
        if decision.state is State.PROBING:
            armed = self.armed
            self.seen["nothing idle to arm"] += armed is None and bool(well)
            assert [link for link in self.links if link.rdy] == ([] if armed is None else [armed])
        elif decision.limit:
            whole = min(decision.limit, sum(link.max_rdy for link in well))
            self.seen["held back by a reserve or by what is in flight"] += wanted < whole
            assert wanted == whole or again_at_s is not None, "the rest would never be asked for"
            self.seen["places taken in turns"] += decision.limit < len(well)

    def _check_decided(self) -> None:
        """Levels and waits as the curve has them, in words of its own."""
        before, now = self._told, self.decision
        self._told = now
        assert now.epoch in {before.epoch, before.epoch + 1}
        assert now.level <= self._curve.level_cap
        assert now.state is not State.PAUSED or now.wake_at_s is None
        if now.reason is Reason.FAILED:
            assert (now.state, now.level) == (State.BACKOFF, 1)
        elif now.reason is Reason.PROBE_FAILED:
            assert now.level == min(before.level + 1, self._curve.level_cap)
            self.seen["level at the cap"] += now.level == self._curve.level_cap > 1
        elif now.reason is Reason.PROBE_SUCCEEDED:
            assert 0 < now.level == self._curve.below(before.level)
        elif now.reason in {Reason.BACKOFF_OVER, Reason.PROBE_LOST}:
            assert now.level == before.level
        draws, self._draws = self._draws, 0
        if now.state is State.BACKOFF and now.reason is not Reason.RESUMED:
            assert draws == 1
            assert now.wake_at_s is not None
            low, high = self._curve.window_s(now.level)
            assert max(SHORTEST_WAIT_S, low) <= now.wake_at_s - self.now_s + 1e-9
            assert now.wake_at_s - self.now_s <= max(SHORTEST_WAIT_S, high) + 1e-9
            self._backoff_until_s = now.wake_at_s
        else:
            assert draws == 0
        self.seen[f"{now.state}: {now.reason}"] += 1
