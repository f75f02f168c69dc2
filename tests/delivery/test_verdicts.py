"""What becomes of a digest after each outcome, how long it waits, and what its sink's controller hears of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest

from nsqdigest.backoff import Controller, Curve, State, retry_wait_ms
from nsqdigest.base.reasons import BuryReason, Verdict
from nsqdigest.delivery.sinks.base import Outcome
from nsqdigest.delivery.sinks.log import LogSinkSettings
from nsqdigest.delivery.verdicts import Health, Next, Step, after, choose_probe, expired

pytestmark = pytest.mark.unit

HOUR_MS = 3_600_000
FAILURES = (Verdict.UNAVAILABLE, Verdict.AGAIN, Verdict.REFUSED)


def sink(**changes: Any) -> LogSinkSettings:
    settings: dict[str, Any] = {
        "name": "out", "type": "log", "path": "-", "concurrency": 8, "timeout_ms": 15_000, "max_attempts": 0,
        "max_age_ms": 72 * HOUR_MS, "retry_base_ms": 1_000, "retry_cap_ms": 900_000, "retry_after_max_ms": HOUR_MS,
        "max_body_bytes": 256 * 1024,
    }  # fmt: skip
    return LogSinkSettings(**(settings | changes))


def lowest(low: float, high: float) -> float:
    return low


def highest(low: float, high: float) -> float:
    return high


# -- steps


@pytest.mark.parametrize("attempt", [1, 2, 1_000])
def test_what_was_delivered_is_closed(attempt: int) -> None:
    assert after(Outcome(Verdict.DELIVERED), sink(), attempt, 0, lowest) == Next(Step.CLOSE)


def test_what_was_delivered_is_closed_however_late() -> None:
    assert after(Outcome(Verdict.DELIVERED), sink(max_attempts=1), 5, 1_000 * HOUR_MS, lowest).step is Step.CLOSE


@pytest.mark.parametrize("verdict", FAILURES)
def test_a_first_failure_is_tried_again(verdict: Verdict) -> None:
    assert after(Outcome(verdict), sink(), 1, 0, lowest) == Next(Step.AGAIN, 1_000)


def test_a_receiver_that_is_gone_stops_the_sink() -> None:
    assert after(Outcome(Verdict.GONE), sink(), 1, 0, lowest) == Next(Step.STOP_SINK)


def test_of_many_places_one_that_is_gone_buries_its_digest() -> None:
    outcome = Outcome(Verdict.GONE, "410", is_of_sink=False)
    assert after(outcome, sink(), 1, 0, lowest) == Next(Step.BURY, reason=BuryReason.GONE)


def test_a_digest_without_a_target_waits_for_an_hour_and_is_buried_then() -> None:
    outcome, settings = Outcome(Verdict.NO_TARGET, is_of_sink=False), sink(max_attempts=1)
    assert after(outcome, settings, 9, HOUR_MS - 1, lowest) == Next(Step.AGAIN, 1_000)
    assert after(outcome, settings, 9, HOUR_MS, lowest) == Next(Step.BURY, reason=BuryReason.NO_TARGET)
    soon = sink(max_age_ms=HOUR_MS // 2)
    assert after(outcome, soon, 1, HOUR_MS // 2, lowest) == Next(Step.BURY, reason=BuryReason.TOO_OLD)


def test_a_deferred_digest_waits_at_least_until_its_host_is_tried_and_counts_no_attempt() -> None:
    outcome = Outcome(Verdict.DEFERRED, retry_after_s=20.0, is_of_sink=False)
    assert after(outcome, sink(max_attempts=1), 50, 0, lowest) == Next(Step.AGAIN, 20_000)
    assert after(outcome, sink(), 1, 72 * HOUR_MS, lowest) == Next(Step.BURY, reason=BuryReason.TOO_OLD)


@pytest.mark.parametrize("attempt", [1, 3, 50])
def test_what_was_not_rendered_is_buried_by_its_age_alone(attempt: int) -> None:
    """Nothing was posted: no attempt counts."""
    outcome = Outcome(Verdict.UNRENDERED)
    settings = sink(max_attempts=1)
    assert after(outcome, settings, attempt, 72 * HOUR_MS - 1, lowest) == Next(Step.AGAIN, 1_000)
    assert after(outcome, settings, attempt, 72 * HOUR_MS, lowest) == Next(Step.BURY, reason=BuryReason.TOO_OLD)


@pytest.mark.parametrize(
    ("age_ms", "longest_ms"), [(0, 3_000), (3_000, 3_000), (3_001, 9_000), (100_000, 243_000), (10 * HOUR_MS, 900_000)]
)
def test_what_was_not_rendered_waits_longer_as_it_grows_older(age_ms: int, longest_ms: int) -> None:
    assert after(Outcome(Verdict.UNRENDERED), sink(), 1, age_ms, highest) == Next(Step.AGAIN, longest_ms)


@pytest.mark.parametrize(("attempt", "step"), [(1, Step.AGAIN), (2, Step.AGAIN), (3, Step.BURY), (4, Step.BURY)])
def test_a_refused_digest_has_three_attempts(attempt: int, step: Step) -> None:
    assert after(Outcome(Verdict.REFUSED), sink(), attempt, 0, lowest).step is step


def test_a_buried_digest_says_that_it_was_refused() -> None:
    assert after(Outcome(Verdict.REFUSED), sink(), 3, 0, lowest) == Next(Step.BURY, 0, BuryReason.REFUSED)


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.AGAIN])
def test_what_a_receiver_could_not_take_is_tried_until_it_is_too_old(verdict: Verdict) -> None:
    assert after(Outcome(verdict), sink(), 100_000, 72 * HOUR_MS - 1, lowest).step is Step.AGAIN
    assert after(Outcome(verdict), sink(), 2, 72 * HOUR_MS, lowest) == Next(Step.BURY, 0, BuryReason.TOO_OLD)


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.AGAIN])
def test_with_a_limit_the_last_attempt_is_the_last(verdict: Verdict) -> None:
    five = sink(max_attempts=5)
    assert after(Outcome(verdict), five, 4, 0, lowest).step is Step.AGAIN
    assert after(Outcome(verdict), five, 5, 0, lowest) == Next(Step.BURY, 0, BuryReason.TOO_MANY_ATTEMPTS)


@pytest.mark.parametrize(
    ("attempts_made", "age_ms", "reason"),
    [
        (0, 0, None),
        (4, HOUR_MS - 1, None),
        (5, 0, BuryReason.TOO_MANY_ATTEMPTS),
        (0, HOUR_MS, BuryReason.TOO_OLD),
        (5, HOUR_MS, BuryReason.TOO_OLD),
    ],
)
def test_before_an_attempt_it_is_asked_whether_there_is_to_be_one(
    attempts_made: int, age_ms: int, reason: BuryReason | None
) -> None:
    assert expired(sink(max_attempts=5, max_age_ms=HOUR_MS), attempts_made, age_ms) is reason


def test_without_a_limit_of_attempts_only_age_counts() -> None:
    assert expired(sink(max_attempts=0), 1_000_000, 0) is None


# -- waits


def test_the_wait_is_drawn_from_the_window_of_the_attempt() -> None:
    windows: list[tuple[float, float]] = []

    def drawn(low: float, high: float) -> float:
        windows.append((low, high))
        return high

    waits = [after(Outcome(Verdict.AGAIN), sink(), attempt, 0, drawn).wait_ms for attempt in (1, 2, 3, 20)]
    assert windows == [(1_000, 3_000), (1_000, 9_000), (1_000, 27_000), (1_000, 900_000)]
    assert waits == [3_000, 9_000, 27_000, 900_000]


def test_a_digest_whose_values_are_lost_is_the_only_one_that_its_receiver_did_not_fail() -> None:
    assert [reason for reason in BuryReason if not reason.is_of_receiver] == [BuryReason.VALUES_LOST]


def test_before_the_first_attempt_the_wait_is_that_of_the_first() -> None:
    assert retry_wait_ms(0, 1_000, 900_000, highest) == retry_wait_ms(1, 1_000, 900_000, highest) == 3_000


def test_retry_after_is_a_floor() -> None:
    outcome = Outcome(Verdict.UNAVAILABLE, "429", retry_after_s=120.0)
    assert after(outcome, sink(), 1, 0, highest).wait_ms == 120_000


def test_retry_after_never_shortens_a_wait() -> None:
    outcome = Outcome(Verdict.UNAVAILABLE, "429", retry_after_s=2.0)
    assert after(outcome, sink(), 3, 0, highest).wait_ms == 27_000


@pytest.mark.parametrize("retry_after_s", [3_600.5, 86_400.0, 1e300, math.inf])
def test_a_long_retry_after_is_cut(retry_after_s: float) -> None:
    outcome = Outcome(Verdict.AGAIN, "503", retry_after_s=retry_after_s)
    assert after(outcome, sink(), 1, 0, lowest).wait_ms == HOUR_MS


def test_waits_are_whole_milliseconds() -> None:
    wait_ms = after(Outcome(Verdict.AGAIN, retry_after_s=1.2345678), sink(), 1, 0, lambda low, high: low + 0.5).wait_ms
    assert isinstance(wait_ms, int)
    assert wait_ms == 1_234


def test_where_base_and_cap_are_equal_every_wait_is_that() -> None:
    assert {retry_wait_ms(attempt, 5_000, 5_000, highest) for attempt in range(50)} == {5_000}


# -- the sink's health


def healthy() -> tuple[Health, Controller]:
    controller = Controller(8, Curve(1.0, 120.0, jitter="none"), lowest)
    return Health(controller, 60_000), controller


class Claimed(NamedTuple):
    route: str
    timeline: str


CLAIMED = Claimed("events", "ada")


class Attempt(NamedTuple):
    claim: Claimed
    epoch: int
    lineage: str


def hear(
    health: Health,
    controller: Controller,
    verdict: Verdict,
    digest_id: str = "d",
    now_s: float = 0.0,
    *,
    due: Claimed = CLAIMED,
) -> bool:
    return health.observe(Outcome(verdict), Attempt(due, controller.decision.epoch, digest_id), now_s)


def probing() -> tuple[Health, Controller, float]:
    health, controller = healthy()
    hear(health, controller, Verdict.UNAVAILABLE)
    now_s = controller.decision.wake_at_s
    assert now_s is not None
    controller.tick(now_s)
    assert controller.decision.state is State.PROBING
    return health, controller, now_s


def test_one_sign_that_the_receiver_is_unwell_is_enough() -> None:
    health, controller = healthy()
    assert hear(health, controller, Verdict.UNAVAILABLE)
    assert controller.decision.state is State.BACKOFF


@pytest.mark.parametrize("verdict", [Verdict.AGAIN, Verdict.REFUSED])
def test_three_different_digests_failing_in_a_row_are_a_failure(verdict: Verdict) -> None:
    health, controller = healthy()
    assert [hear(health, controller, verdict, name) for name in ("a", "b", "c")] == [False, False, True]
    assert controller.decision.state is State.BACKOFF


def test_one_digest_failing_again_and_again_is_no_sign() -> None:
    health, controller = healthy()
    assert not any(hear(health, controller, Verdict.AGAIN, "poison") for _ in range(100))
    assert controller.decision.state is State.FLOWING


def test_a_delivery_between_breaks_the_row() -> None:
    health, controller = healthy()
    for name in ("a", "b"):
        hear(health, controller, Verdict.AGAIN, name)
    hear(health, controller, Verdict.DELIVERED, "x")
    assert [hear(health, controller, Verdict.AGAIN, name) for name in ("c", "d")] == [False, False]
    assert controller.decision.state is State.FLOWING


def test_after_a_failure_the_row_begins_anew() -> None:
    health, controller = healthy()
    for name in ("a", "b", "c"):
        hear(health, controller, Verdict.AGAIN, name)
    now_s = controller.decision.wake_at_s
    assert now_s is not None
    controller.tick(now_s)
    level = controller.decision.level
    hear(health, controller, Verdict.AGAIN, "d", now_s)
    assert controller.decision.level == level


def test_a_delivered_probe_lets_the_sink_recover() -> None:
    health, controller, now_s = probing()
    assert hear(health, controller, Verdict.DELIVERED, "a", now_s)
    assert controller.decision.state is State.RAMPING


@pytest.mark.parametrize("verdict", [*FAILURES, Verdict.GONE, Verdict.NO_TARGET, Verdict.DEFERRED])
def test_what_is_not_of_the_sink_is_no_fact_for_it(verdict: Verdict) -> None:
    health, controller = healthy()
    for name in ("a", "b", "c", "d"):
        outcome = Outcome(verdict, is_of_sink=False)
        assert not health.observe(outcome, Attempt(CLAIMED, controller.decision.epoch, name), 0.0)
    assert (controller.decision.state, health.failed_last) == (State.FLOWING, None)


def test_a_probe_that_finds_the_receiver_unwell_raises_the_level() -> None:
    health, controller, now_s = probing()
    assert hear(health, controller, Verdict.UNAVAILABLE, "a", now_s)
    assert (controller.decision.state, controller.decision.level) == (State.BACKOFF, 2)


@pytest.mark.parametrize("verdict", [Verdict.AGAIN, Verdict.REFUSED, Verdict.GONE])
def test_a_probe_that_only_its_digest_failed_is_tried_with_another(verdict: Verdict) -> None:
    health, controller, now_s = probing()
    assert hear(health, controller, verdict, "poison", now_s)
    assert (controller.decision.state, controller.decision.level) == (State.PROBING, 1)


@pytest.mark.parametrize("verdict", [Verdict.AGAIN, Verdict.REFUSED])
def test_a_probe_whose_digest_fails_later_than_it_began_is_tried_with_another(verdict: Verdict) -> None:
    health, controller, now_s = probing()
    assert hear(health, controller, verdict, "poison", now_s + 2.5)
    assert (controller.decision.state, controller.decision.level) == (State.PROBING, 1)


@pytest.mark.parametrize("verdict", [Verdict.AGAIN, Verdict.REFUSED])
def test_the_third_digest_in_a_row_fails_the_probe_whenever_it_comes(verdict: Verdict) -> None:
    health, controller, now_s = probing()
    for name in ("a", "b"):
        hear(health, controller, verdict, name, now_s + 2.5)
    assert hear(health, controller, verdict, "c", now_s + 2.5)
    assert (controller.decision.state, controller.decision.level) == (State.BACKOFF, 2)


@pytest.mark.parametrize("verdict", [Verdict.DELIVERED, Verdict.UNAVAILABLE])
def test_the_outcome_of_a_delivery_begun_before_the_backoff_does_not_count(verdict: Verdict) -> None:
    health, controller, now_s = probing()
    before = controller.decision
    assert not health.observe(Outcome(verdict), Attempt(CLAIMED, 0, "late"), now_s)
    assert controller.decision == before


@pytest.mark.parametrize("verdict", [*FAILURES, Verdict.GONE])
def test_the_digest_that_the_receiver_did_not_take_last_is_remembered(verdict: Verdict) -> None:
    health, controller = healthy()
    hear(health, controller, verdict, due=Claimed("events", "bob"))
    assert health.failed_last == ("events", "bob")


def test_a_delivery_forgets_which_digest_failed_last() -> None:
    health, controller = healthy()
    hear(health, controller, Verdict.AGAIN)
    hear(health, controller, Verdict.DELIVERED, due=Claimed("events", "bob"))
    assert health.failed_last is None


# -- the probe of a sink

ADA, BOB = Claimed("events", "ada"), Claimed("events", "bob")
OTHER_ROUTE = Claimed("audit", "ada")


@pytest.mark.parametrize(
    ("claims", "failed_last", "probe", "others"),
    [
        ([ADA, BOB], None, ADA, [BOB]),
        ([ADA, BOB], ("events", "ada"), BOB, [ADA]),
        ([ADA, BOB], ("events", "bob"), ADA, [BOB]),
        ([ADA, OTHER_ROUTE], ("events", "ada"), OTHER_ROUTE, [ADA]),
        ([ADA], ("events", "ada"), ADA, []),
    ],
)
def test_what_failed_last_is_the_probe_only_where_nothing_else_is_due(
    claims: list[Claimed], failed_last: tuple[str, str] | None, probe: Claimed, others: list[Claimed]
) -> None:
    assert choose_probe(claims, failed_last) == (probe, others)
