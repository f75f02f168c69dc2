"""How a sink does: its state, since when, and how many digests it concerns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nsqdigest.base.reasons import SinkState, Verdict
from nsqdigest.delivery.sink_state import (
    BEHIND_AFTER_S,
    RETRIES_REMEMBERED,
    Backlog,
    Condition,
    SinkHistory,
    clock_text,
)
from nsqdigest.delivery.sinks.base import Outcome

pytestmark = pytest.mark.unit

NOW_S = 1_800_000_000.0
NOTHING = Backlog()


def at(seconds_ago: float) -> str:
    return datetime.fromtimestamp(NOW_S - seconds_ago, UTC).astimezone().strftime("%H:%M")


def condition(
    history: SinkHistory, backlog: Backlog = NOTHING, paused_since_s: float | None = None, now_s: float = NOW_S
) -> Condition:
    return history.condition(backlog, paused_since_s, now_s)


def refused(count: int) -> SinkHistory:
    history = SinkHistory()
    for number in range(count):
        history.failed(f"id{number}", "400", NOW_S - 600, NOW_S - 599)
        history.buried(f"id{number}", "400", NOW_S - 300)
    return history


def test_a_new_one_delivers() -> None:
    assert condition(SinkHistory()) == (SinkState.DELIVERING, None, "delivering")
    assert not condition(SinkHistory()).is_trouble


def test_it_refuses_from_the_first_failure_on_and_says_how_many_were_buried() -> None:
    history = refused(8)
    assert condition(history, Backlog(dead=8)) == (
        SinkState.REFUSING,
        NOW_S - 600,
        f"refusing since {at(600)} (8 digests buried: 400)",
    )
    assert condition(history).is_trouble


def test_what_waits_is_what_is_overdue_and_what_waits_for_a_retry() -> None:
    history = SinkHistory()
    for number in range(3):
        history.failed(f"id{number}", "500", NOW_S - 60, NOW_S + number)
    history.failed("id1", "503", NOW_S - 1, NOW_S + 9)
    # Of the first the instant of its retry has come: the store counts it as overdue.
    backlog = Backlog(overdue=198, oldest_due_s=59.0)
    assert condition(history, backlog).detail == f"refusing since {at(60)} (200 digests wait: 503)"


def test_one_that_waits_is_told_in_the_singular() -> None:
    history = SinkHistory()
    history.failed("a", "unavailable", NOW_S, NOW_S + 1)
    assert condition(history).detail == f"refusing since {at(0)} (1 digest waits: unavailable)"


def test_buried_and_waiting_and_dead_before() -> None:
    history = refused(2)
    detail = condition(history, Backlog(3, 10.0, dead=7)).detail
    assert detail == f"refusing since {at(600)} (2 digests buried, 3 digests wait, 7 in the dead list: 400)"


def test_an_accepted_digest_ends_it_and_the_dead_ones_are_still_told() -> None:
    history = refused(8)
    history.delivered(["other"])
    assert condition(history, Backlog(dead=8)) == (
        SinkState.DELIVERING,
        None,
        "delivering (8 digests in the dead list)",
    )


def test_digests_that_fail_for_reasons_of_their_own_wait_while_it_delivers() -> None:
    history = SinkHistory()
    for number in range(5):
        history.failed(f"a{number}", "a.example.com: 503", NOW_S - 600 + number, NOW_S + 60, is_of_sink=False)
    history.failed("a0", "a.example.com: 503", NOW_S - 10, NOW_S + 60, is_of_sink=False)
    history.failed("b", "url: no tenant", NOW_S - 60, NOW_S + 1, is_of_sink=False)
    found = condition(history, Backlog(dead=1))
    assert (found.state, found.since_s, found.is_trouble) == (SinkState.DELIVERING, NOW_S - 600, True)
    assert found.detail == (
        f"delivering (1 digest in the dead list), but 6 digests wait (5 since {at(600)}: a.example.com: 503; "
        f"1 since {at(60)}: url: no tenant)"
    )
    history.buried("b", "url: no tenant", NOW_S, is_of_sink=False)
    for number in range(5):
        history.delivered([f"a{number}"])
    assert condition(history) == (SinkState.DELIVERING, None, "delivering")


def test_few_of_many_reasons_are_shown() -> None:
    history = SinkHistory()
    for number in range(50):
        history.failed(f"id{number}", f"h{number}: 503", NOW_S, NOW_S + 60, is_of_sink=False)
    detail = condition(history).detail
    assert detail.endswith("; 47 other reasons)")
    assert len(detail) < 200


def test_a_digest_that_is_not_tried_again_in_its_time_waits_no_more() -> None:
    history = SinkHistory()
    history.failed("a", "503", NOW_S, NOW_S + 1, is_of_sink=False)
    assert condition(history, now_s=NOW_S + 60).is_trouble
    assert not condition(history, now_s=NOW_S + 62).is_trouble


def test_the_digests_that_wait_aside_are_bounded_and_old_ones_make_room() -> None:
    history = SinkHistory()
    for number in range(RETRIES_REMEMBERED + 5):
        history.failed(f"id{number}", "503", NOW_S, NOW_S + 1, is_of_sink=False)
    assert f"{RETRIES_REMEMBERED:,} digests wait" in condition(history).detail
    history.failed("new", "503", NOW_S + 100, NOW_S + 101, is_of_sink=False)
    assert "but 1 digest waits" in condition(history, now_s=NOW_S + 100).detail


def test_a_410_stops_it_for_good() -> None:
    history = SinkHistory()
    history.stopped("410", NOW_S - 5)
    history.delivered(["one that was under way"])
    assert condition(history, Backlog(overdue=12)).detail.startswith(f"stopped since {at(5)} (12 digests wait")
    assert condition(history).state is SinkState.STOPPED


@pytest.mark.parametrize("history", [SinkHistory(), refused(1)])
def test_paused_wins_over_refusing_and_loses_to_stopped(history: SinkHistory) -> None:
    found = condition(history, Backlog(overdue=2), NOW_S - 100)
    assert found.detail == f"paused since {at(100)} (2 digests wait)"
    history.stopped("410", NOW_S)
    assert condition(history, NOTHING, NOW_S - 100).state is SinkState.STOPPED


def test_what_is_overdue_for_long_without_a_failure_is_behind() -> None:
    late = Backlog(overdue=4, oldest_due_s=BEHIND_AFTER_S)
    assert condition(SinkHistory(), late) == (
        SinkState.BEHIND,
        NOW_S - BEHIND_AFTER_S,
        f"behind since {at(BEHIND_AFTER_S)} (4 digests wait)",
    )
    assert condition(SinkHistory(), late._replace(oldest_due_s=BEHIND_AFTER_S - 1)).state is SinkState.DELIVERING


def test_the_retries_that_are_remembered_are_bounded() -> None:
    history = SinkHistory()
    for number in range(RETRIES_REMEMBERED + 5):
        history.failed(f"id{number}", "500", NOW_S, NOW_S + 60)
    assert history.waits(NOTHING, NOW_S) == RETRIES_REMEMBERED


def test_backlogs_of_several_routes_add_up() -> None:
    assert Backlog(1, 5.0, 2).plus(Backlog(2, 9.0)) == Backlog(3, 9.0, 2)


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (Outcome(Verdict.REFUSED, "400 Bad Request", 400, answer="no user 42"), "400 Bad Request"),
        (Outcome(Verdict.UNAVAILABLE, "no answer within 15 s"), "no answer within 15 s"),
        (Outcome(Verdict.UNAVAILABLE, "127.0.0.1:25 offers no STARTTLS"), "127.0.0.1:25 offers no STARTTLS"),
        (Outcome(Verdict.AGAIN, "500 Internal Server Error", 500), "500 Internal Server Error"),
        (Outcome(Verdict.UNAVAILABLE, "x" * 300), "x" * 199 + "…"),
        (Outcome(Verdict.UNAVAILABLE), "unavailable"),
        (Outcome(Verdict.REFUSED, answer="no user 42"), "refused"),
    ],
)
def test_why_is_our_own_word_for_what_happened(outcome: Outcome, why: str) -> None:
    assert outcome.why == why


def test_of_another_day_the_date_is_said() -> None:
    then = datetime.fromtimestamp(NOW_S, UTC).astimezone() - timedelta(days=2)
    assert clock_text(then.timestamp(), NOW_S) == then.strftime("%Y-%m-%d %H:%M")
