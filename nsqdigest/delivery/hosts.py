"""The hosts of a sink whose digests go to many: each has its own health and its share of the sink (pure).

A digest of a host may be posted now, waits for its turn within the sink, or is put off: it goes back to the store
unsent, without an attempt.

Invariants:
- No more than `concurrency` posts are under way, and of one host no more than three quarters of them.
- To a host that fails nothing is posted but its probes, one at a time; probes take no more than half of the posts.
- Hosts that never accepted a digest, and those that fail, leave a quarter of the posts, one at least, to the others: a
  flood of names that lead nowhere stops no host that is well. (Where `concurrency` is 1 there is nothing to leave.)
- What waits for a host that does not answer takes no more than a quarter of the places where digests wait.
- Memory is bounded: MOST_HOSTS are remembered, and of the others nothing is known, as of new ones. One that accepted a
  digest is forgotten after those that never did.

A host's health is a `backoff.Controller` with the facts of `verdicts.Health`, like a sink's.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum, auto
from typing import NamedTuple

from nsqdigest.backoff import Controller, Curve, State, Uniform
from nsqdigest.base.reasons import NOTHING_SENT, Verdict
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest
from nsqdigest.delivery.verdicts import Health

MOST_HOSTS = 1000
MOVES_WITHIN_S = 1.0
"""A host that accepted a digest so recently answers: others may wait for it."""
_WAITING_PER_POST = 3
_MOST_WAITING = 64


def held_of(concurrency: int) -> int:
    """How many digests such a sink holds at a time: those that are posted and those that wait."""
    return concurrency + min(_WAITING_PER_POST * concurrency, _MOST_WAITING)


class Step(Enum):
    POST = auto()
    WAIT = auto()
    LATER = auto()


class Turn(NamedTuple):
    step: Step
    wait_s: float = 0.0
    """Of LATER: at least."""


class Post(NamedTuple):
    """One under way."""

    epoch: int
    is_probe: bool
    is_first: bool
    """Of a host that never accepted one, and did not fail yet."""


class _Attempt(NamedTuple):
    """A digest as `Health` sees it."""

    claim: OutgoingDigest
    epoch: int
    lineage: str


class Host:
    """What is known of one."""

    __slots__ = (
        "accepted_s", "controller", "failing_since_s", "health", "name", "posting", "successes", "waiting", "why",
    )  # fmt: skip

    def __init__(self, name: str, controller: Controller, longest_silence_ms: int) -> None:
        self.name = name
        self.controller = controller
        self.health = Health(controller, longest_silence_ms)
        self.posting = 0
        self.waiting = 0
        self.successes = 0
        """Since its last failure: a host gets one post at first, then one more for each that it accepted."""
        self.accepted_s = float("-inf")
        self.failing_since_s: float | None = None
        self.why = ""
        """How it failed last, in our own words."""

    @property
    def is_idle(self) -> bool:
        return not self.posting and not self.waiting

    @property
    def is_proven(self) -> bool:
        """Whether it ever accepted a digest."""
        return self.accepted_s != float("-inf")


class Hosts:
    def __init__(
        self, concurrency: int, curve: Curve, uniform: Uniform, longest_silence_ms: int, *, most: int = MOST_HOSTS
    ) -> None:
        self._concurrency = concurrency
        self._most_of_one = max(1, concurrency * 3 // 4)
        self._most_probes = max(1, concurrency // 2)
        self._most_unproven = max(1, concurrency - max(1, concurrency // 4))
        self._most_waiting_of_one = max(1, (held_of(concurrency) - concurrency) // 4)
        self._curve = curve
        self._uniform = uniform
        self._longest_silence_ms = longest_silence_ms
        self._most = most
        self._hosts: OrderedDict[str, Host] = OrderedDict()
        self.posting = 0
        self._probing = 0
        self._first = 0
        self._first_moved_s = float("-inf")
        """When first posts began, or one of them was accepted."""
        self._first_failed = False
        """The last that ended."""

    def __len__(self) -> int:
        return len(self._hosts)

    def host(self, name: str) -> Host:
        found = self._hosts.get(name)
        if found is None:
            self._forget_the_oldest()
            controller = Controller(self._most_of_one, self._curve, self._uniform)
            found = self._hosts[name] = Host(name, controller, self._longest_silence_ms)
        self._hosts.move_to_end(name)
        return found

    def _forget_the_oldest(self) -> None:
        if len(self._hosts) >= self._most:
            idle = (name for name, host in self._hosts.items() if host.is_idle)
            unproven = (name for name, host in self._hosts.items() if host.is_idle and not host.is_proven)
            oldest = next(unproven, None) or next(idle, None)
            if oldest is not None:
                del self._hosts[oldest]

    def turn(self, host: Host, now_s: float, *, is_waiting: bool = False) -> Turn:
        """What to do with a digest of this host. `is_waiting`: it is counted in `host.waiting`."""
        while host.controller.tick(now_s):
            pass
        decision = host.controller.decision
        if not decision.limit:
            return Turn(Step.LATER, max(0.0, (decision.wake_at_s or now_s) - now_s))
        if host.failing_since_s is not None:
            if host.posting >= decision.limit or self._probing >= self._most_probes:
                return Turn(Step.LATER)
        elif host.posting >= min(decision.limit, 1 + host.successes):
            is_moving = now_s - host.accepted_s < MOVES_WITHIN_S
            is_room = host.waiting - is_waiting < self._most_waiting_of_one
            return Turn(Step.WAIT if is_moving or is_room else Step.LATER)
        elif not host.is_proven and self._probing + self._first >= self._most_unproven:
            is_moving = now_s - self._first_moved_s < MOVES_WITHIN_S
            is_room = self._waiting_for_first - is_waiting < self._most_waiting_of_one
            return Turn(Step.WAIT if is_moving or is_room else Step.LATER)
        return Turn(Step.POST if self.posting < self._concurrency else Step.WAIT)

    @property
    def _waiting_for_first(self) -> int:
        return sum(host.waiting for host in self._hosts.values() if host.waiting and not host.is_proven)

    def began(self, host: Host, now_s: float, until_s: float) -> Post:
        """To be handed to `ended`, once."""
        is_probe = host.failing_since_s is not None
        post = Post(host.controller.decision.epoch, is_probe, not is_probe and not host.is_proven)
        host.posting += 1
        self.posting += 1
        self._probing += post.is_probe
        if post.is_first and not self._first and not self._first_failed:
            self._first_moved_s = now_s
        self._first += post.is_first
        if host.controller.decision.state is State.PROBING:
            host.controller.began(post.epoch, now_s, until_s)
        return post

    def ended(self, host: Host, post: Post, digest: OutgoingDigest, outcome: Outcome | None, now_s: float) -> bool:
        """Returns whether the host began or ceased to fail. None: it was broken off, and nothing was learnt."""
        was_failing = host.failing_since_s is not None
        host.posting -= 1
        self.posting -= 1
        self._probing -= post.is_probe
        self._first -= post.is_first
        if outcome is None or outcome.verdict in NOTHING_SENT:
            host.controller.lost(post.epoch, now_s)
            return False
        if post.is_first:
            self._first_failed = outcome.verdict is not Verdict.DELIVERED
            self._first_moved_s = self._first_moved_s if self._first_failed else now_s
        host.health.observe(outcome, _Attempt(digest, post.epoch, digest.id), now_s)
        backs_off = host.controller.decision.state in (State.BACKOFF, State.PROBING)
        if outcome.verdict is Verdict.DELIVERED:
            host.successes += 1
            host.accepted_s = now_s
            if backs_off:  # a long failure ends with more than one probe
                return False
            host.failing_since_s, host.why = None, ""
            return was_failing
        host.successes = 0
        host.why = outcome.why
        if not was_failing and (backs_off or outcome.verdict is Verdict.UNAVAILABLE):
            host.failing_since_s = now_s
        return not was_failing and host.failing_since_s is not None
