"""What becomes of a digest after an attempt, and when it is tried again (pure decisions); whether its sink is well.

    delivered                    close
    gone (410)                   the sink stops until a reload; the digest waits, the attempt does not count.
                                 Buried where the sink's other digests go elsewhere
    too old, or too many tries   buried: kept whole, with the reason
    refused                      three attempts, then buried
    unrendered, deferred         again until it is too old: no attempt is counted, for nothing was sent
    no target                    the same, for NO_TARGET_FOR_MS at the most: then buried, so that its timeline goes on
    anything else                again, same id, same bytes, after a decorrelated delay; Retry-After is a floor

A sink's health is a `backoff.Controller` whose facts are deliveries: what says that the receiver as a whole is unwell
(no connection, time-outs, 401, 429, 502-504) is a failure at once; other failures only after three different digests
in a row. What says nothing of the sink's other digests is no fact for it. A receiver that is unwell and names a time
(Retry-After) gets no digest at all before, its probe included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base.reasons import NOTHING_SENT, BuryReason, Verdict
from nsqdigest.delivery.sinks.base import Outcome

if TYPE_CHECKING:
    from nsqdigest.backoff import Controller
    from nsqdigest.config import SinkSettings

ATTEMPTS_WHEN_REFUSED = 3
DIGESTS_IN_A_ROW = 3
NO_TARGET_FOR_MS = 3_600_000
"""Time to correct the file before digests that can be sent nowhere move to the dead list."""
_REDIS_AGAIN_FIRST_MS = 100
_REDIS_AGAIN_CAP_MS = 2000
_TRIAL_FIRST_MS = 1000
_TRIAL_CAP_MS = 300_000


class Step(StrEnum):
    CLOSE = "close"
    AGAIN = "again"
    BURY = "bury"
    STOP_SINK = "stop-sink"


class Next(NamedTuple):
    step: Step
    wait_ms: int = 0
    reason: BuryReason | None = None


def expired(settings: SinkSettings, attempts_made: int, age_ms: int) -> BuryReason | None:
    """Asked before an attempt: is there to be another one?"""
    if settings.max_age_ms and age_ms >= settings.max_age_ms:
        return BuryReason.TOO_OLD
    if settings.max_attempts and attempts_made >= settings.max_attempts:
        return BuryReason.TOO_MANY_ATTEMPTS
    return None


def after(
    outcome: Outcome, settings: SinkSettings, attempt: int, age_ms: int, uniform: Callable[[float, float], float]
) -> Next:
    if outcome.verdict is Verdict.DELIVERED:
        return Next(Step.CLOSE)
    if outcome.verdict is Verdict.GONE:
        return Next(Step.STOP_SINK) if outcome.is_of_sink else Next(Step.BURY, reason=BuryReason.GONE)
    if outcome.verdict in NOTHING_SENT:
        return _after_nothing_sent(outcome, settings, age_ms, uniform)
    if outcome.verdict is Verdict.REFUSED and attempt >= ATTEMPTS_WHEN_REFUSED:
        return Next(Step.BURY, reason=BuryReason.REFUSED)
    reason = expired(settings, attempt, age_ms)
    if reason is not None:
        return Next(Step.BURY, reason=reason)
    wait_ms = retry_wait_ms(attempt, settings.retry_base_ms, settings.retry_cap_ms, uniform)
    return Next(Step.AGAIN, max(wait_ms, silence_ms(outcome, settings.retry_after_max_ms)))


def _after_nothing_sent(
    outcome: Outcome, settings: SinkSettings, age_ms: int, uniform: Callable[[float, float], float]
) -> Next:
    """No attempts are there to go by: the wait grows with the age, as if each had waited for its whole window."""
    if outcome.verdict is Verdict.NO_TARGET and age_ms >= NO_TARGET_FOR_MS:
        return Next(Step.BURY, reason=BuryReason.NO_TARGET)
    if settings.max_age_ms and age_ms >= settings.max_age_ms:
        return Next(Step.BURY, reason=BuryReason.TOO_OLD)
    attempt = 1
    while settings.retry_base_ms * 3**attempt < min(age_ms, settings.retry_cap_ms):
        attempt += 1
    wait_ms = retry_wait_ms(attempt, settings.retry_base_ms, settings.retry_cap_ms, uniform)
    return Next(Step.AGAIN, max(wait_ms, silence_ms(outcome, settings.retry_after_max_ms)))


def silence_ms(outcome: Outcome, longest_ms: int) -> int:
    """The time that the receiver asked for, cut to `longest_ms`."""
    return int(min(outcome.retry_after_s * 1000, longest_ms))


def ask_redis_again_s(failures: int, uniform: Callable[[float, float], float]) -> float:
    """How long after it failed so many times in a row, while digests that are ours wait for it."""
    return retry_wait_ms(failures, _REDIS_AGAIN_FIRST_MS, _REDIS_AGAIN_CAP_MS, uniform) / 1000


def try_an_end_s(given_up: int, uniform: Callable[[float, float], float]) -> float:
    """Return how long nothing is claimed after Redis ended no digest within a lease, so many times in a row."""
    return retry_wait_ms(given_up, _TRIAL_FIRST_MS, _TRIAL_CAP_MS, uniform) / 1000


class Due(Protocol):
    """A claimed timeline, as far as its name goes."""

    @property
    def route(self) -> str: ...
    @property
    def timeline(self) -> str: ...


class Attempted(Protocol):
    """A digest that was sent, as far as its sink's health goes."""

    @property
    def claim(self) -> Due: ...
    @property
    def epoch(self) -> int: ...
    @property
    def lineage(self) -> str: ...


D = TypeVar("D", bound=Due)


def choose_probe(claims: Sequence[D], failed_last: tuple[str, str] | None) -> tuple[D, list[D]]:
    """The one that is sent to see whether its sink is well, and the others. The digest that failed last may be at fault
    itself, so it is the probe only where nothing else is due."""
    probe = next((claim for claim in claims if (claim.route, claim.timeline) != failed_last), claims[0])
    return probe, [claim for claim in claims if claim is not probe]


class Health:
    """Makes of what became of a sink's digests the facts that its controller decides by."""

    def __init__(self, controller: Controller, longest_silence_ms: int) -> None:
        """`longest_silence_ms`: a longer Retry-After is cut to it."""
        self._controller = controller
        self._longest_silence_ms = longest_silence_ms
        self._failed_in_a_row: set[str] = set()
        self.failed_last: tuple[str, str] | None = None
        """Route and timeline of the digest that the receiver did not take last; None: it took the last one."""

    def delivered(self, epoch: int, now_s: float, count: int = 1) -> bool:
        """So many in a row. Returns like `observe`."""
        self._failed_in_a_row.clear()
        self.failed_last = None
        return self._controller.succeeded(epoch, now_s, count)

    def observe(self, outcome: Outcome, delivery: Attempted, now_s: float) -> bool:
        """Returns whether the controller decided anew."""
        epoch = delivery.epoch
        if outcome.verdict is Verdict.DELIVERED:
            return self.delivered(epoch, now_s)
        if not outcome.is_of_sink:
            return self._controller.lost(epoch, now_s)
        self.failed_last = delivery.claim.route, delivery.claim.timeline
        if outcome.verdict is Verdict.GONE:  # the sink stops: there is nothing to back off from, and nothing to probe
            return self._controller.lost(epoch, now_s)
        if outcome.verdict is Verdict.UNAVAILABLE:
            return self._controller.failed(epoch, now_s, silence_ms(outcome, self._longest_silence_ms) / 1000)
        self._failed_in_a_row.add(delivery.lineage)
        if len(self._failed_in_a_row) >= DIGESTS_IN_A_ROW:
            self._failed_in_a_row.clear()
            return self._controller.failed(epoch, now_s)
        # The receiver answered: a probe that only this digest failed is no sign that the sink is down.
        return self._controller.lost(epoch, now_s)
