"""explanation.py: what it says of a timeline of each kind, word for word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqdigest.base.moments import instant
from nsqdigest.base.quiet_hours import Window
from nsqdigest.config import Policy
from nsqdigest.delivery.ids import RANDOM_BYTES, uuid7
from nsqdigest.store.explanation import Reason, Terms, explain
from nsqdigest.store.head import Head
from nsqdigest.store.holds import Hold, HoldKind
from nsqdigest.store.inspection import Known, Place
from nsqdigest.store.listing import State
from support.golden import compare
from support.settings import POLICY, SINK

pytestmark = pytest.mark.unit

NOW_MS = 1_795_075_200_000
MINUTE_MS = 60_000
ID = "01a1f286-1180-7000-8000-000000000000"
DELAYS = replace(
    POLICY, immediate=False, minimum_delay_ms=5 * MINUTE_MS, increment_delay_ms=30_000, maximum_delay_ms=30 * MINUTE_MS
)
RETRIED = replace(SINK, retry_base_ms=1000, retry_cap_ms=15 * MINUTE_MS)


def known(base: float, bound: float | None = None, **more: Any) -> Known:
    """Instants in minutes from now."""
    base_ms = NOW_MS + int(base * MINUTE_MS)
    bound_ms = base_ms if bound is None else NOW_MS + int(bound * MINUTE_MS)
    of = Known(
        Place(0, "events", "user:42"),
        State.WAITING,
        NOW_MS,
        base_ms,
        base_ms,
        bound_ms,
        1,
        0,
        "",
        None,
        False,
        0,
        0,
        0,
        "",
        0,
    )
    return of._replace(**more)


def digest(attempts: int = 4, tries: int = 4) -> Head:
    opened_ms = NOW_MS - 20 * MINUTE_MS
    return Head(ID, 3, opened_ms, 17, 0, 0, 0, opened_ms, attempts, tries)


def policy(**more: Any) -> Policy:
    return replace(DELAYS, **more)


def snooze(minutes: int) -> Hold:
    return Hold("events", "user:42", HoldKind.SNOOZE, NOW_MS + minutes * MINUTE_MS, NOW_MS, "ada")


CASES: dict[str, tuple[Known, Policy, dict[str, Any]]] = {
    "immediate, due": (known(-0.01, state=State.DUE), replace(DELAYS, immediate=True), {}),
    "first, alone": (known(4, 29), policy(), {}),
    "first, postponed": (known(4, 29, records=12), policy(), {}),
    "first, at the latest": (known(4, 29, records=120), policy(), {}),
    "first of intervals": (known(0.25, 29.75), policy(intervals_ms=(30_000, 5 * MINUTE_MS), increment_delay_ms=0), {}),
    "after a digest": (known(4, 29, iteration=2, last_id=ID, records=3), policy(), {}),
    "after a digest, growing": (
        known(15, 25, iteration=5, records=2),
        policy(growth="exponential", growth_steps=2),
        {},
    ),
    "after a digest, intervals": (
        known(4, 29, iteration=1),
        policy(intervals_ms=(30_000, 5 * MINUTE_MS, 2 * MINUTE_MS)),
        {},
    ),
    "after a digest, beyond the intervals": (known(4, 29, iteration=7), policy(intervals_ms=(30_000, 60_000)), {}),
    "after a policy change": (
        known(4, 29, iteration=2, last_id=uuid7(NOW_MS - MINUTE_MS, bytes(RANDOM_BYTES))),
        policy(),
        {},
    ),
    "promised": (known(10, 29, iteration=2), policy(), {}),
    "another policy": (known(2, 90), policy(), {}),
    "set to an instant": (known(3, iteration=2), policy(), {}),
    "after an urgent digest in quiet hours": (
        known(240, iteration=2, records=1),
        policy(quiet=(Window(6 * 60, 12 * 60),), increment_delay_ms=0),
        {},
    ),
    "calendar": (
        known(600, iteration=2),
        policy(at=("0 9 * * 1-5", "0 18 * * *"), zone="Europe/Berlin", increment_delay_ms=0),
        {},
    ),
    "calendar, first": (known(600), policy(at=("0 9 * * *",)), {}),
    "quiet hours": (known(4, 29), policy(quiet=(Window(22 * 60, 7 * 60), Window(8 * 60, 12 * 60))), {}),
    "exempt": (known(0)._replace(base_ms=1, bound_ms=1, state=State.DUE), policy(quiet=(Window(0, 12 * 60),)), {}),
    "retried": (known(2, digest=digest(), iteration=3, records=2, state=State.RETRYING), policy(), {}),
    "opened, not sent": (
        known(-5, digest=digest(attempts=0, tries=0), iteration=3, records=0, state=State.DUE),
        policy(),
        {},
    ),
    "due and paused": (
        known(-5, 20, iteration=1, state=State.DUE),
        policy(),
        {"obstacles": ["sink hook is paused since 08:40", "route events is paused since 08:41"]},
    ),
    "leased": (
        known(0, digest=digest(), records=2, is_urgent_next=True, state=State.LEASED, at_ms=NOW_MS + 58_000),
        policy(),
        {},
    ),
    "idle": (known(4, 29, iteration=1, records=0, state=State.IDLE), policy(), {}),
    "snoozed": (known(4, 29), policy(), {"hold": snooze(120)}),
    "muted": (known(4, 29), policy(), {"hold": snooze(120)._replace(kind=HoldKind.MUTE)}),
    "astray": (known(0, state=None), policy(), {}),
}


def test_what_it_says() -> None:
    lines = []
    for case, (of, policy, more) in CASES.items():
        explanation = explain(of, Terms(policy, RETRIED), **more)
        lines += [f"-- {case}", explanation.sentence, *map(_line, explanation.reasons), ""]
    compare(Path(__file__).with_name("golden") / "explanations.txt", "\n".join(lines))


def _line(reason: Reason) -> str:
    at = " " * 9 if reason.at_ms is None else instant(reason.at_ms)[11:]
    return f"  {at}  {reason.text}"


def test_an_orphan_is_delivered_by_nobody() -> None:
    explanation = explain(known(4), None)
    assert explanation.due_ms is None
    assert explanation.sentence == 'Nobody delivers it: the file has no route "events".'
    (way_out,) = explanation.reasons
    assert "`nsqdigest adopt events --to ROUTE`" in way_out.text
    assert "`nsqdigest delete --route events`" in way_out.text


def test_the_name_of_an_author_or_a_route_is_no_command_to_the_terminal() -> None:
    hostile = snooze(120)._replace(by="\x1b[2Jeve")
    texts = repr(explain(known(4, 29), Terms(DELAYS, RETRIED), hostile))
    orphan = explain(known(4, place=Place(0, "\x1b]0;x", "t")), None)
    assert "\x1b" not in texts + orphan.sentence
