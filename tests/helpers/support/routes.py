"""Routes and limits of the intake, for tests that build a part of it by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.config import ConditionTable, Limits, Policy
from nsqdigest.intake.bodies import Rejected
from nsqdigest.intake.routing import IntakeRoute, Router
from nsqdigest.nsq.frames import Message
from nsqdigest.store.record import Record
from nsqdigest.store.schedule import Plan
from support import settings

LIMITS = Limits(
    event_bytes=64 * 1024, key_bytes=256, depth=64, timelines=1000, dead_digests=1000, future_ms=300_000, past_ms=0,
)  # fmt: skip


def intake_route(
    timeline: str = "{user}",
    *,
    match: Sequence[tuple[str, Sequence[Any]]] = (),
    key: str = "",
    timestamp: str = "",
    urgent: Sequence[tuple[str, Sequence[Any]]] = (),
    cancel: Sequence[tuple[str, Sequence[Any]]] = (),
    on_cancel: Any = "tell",
    drop: Sequence[str] = (),
    max_event_age_ms: int = 0,
    number: int = 0,
    name: str = "r",
    policy: Policy = settings.POLICY,
) -> IntakeRoute:
    route = replace(
        settings.ROUTE, name=name, match=_table(match), timeline=timeline, key=key, timestamp=timestamp,
        urgent=_table(urgent), cancel=_table(cancel), on_cancel=on_cancel, drop=tuple(drop),
        max_event_age_ms=max_event_age_ms,
    )  # fmt: skip
    return IntakeRoute(number, route, Plan(policy))


def _table(conditions: Sequence[tuple[str, Sequence[Any]]]) -> ConditionTable:
    return tuple((field, tuple(values)) for field, values in conditions)


class Refused(NamedTuple):
    """What a `Rejected` says."""

    reason: DeadLetterReason
    detail: str


def routed(
    router: Router, message: Message, now_ms: int, possible_repeat: bool = False
) -> tuple[int | Refused, list[Record]]:
    """How many routes took it, or why it was rejected; and the records."""
    records: list[Record] = []
    add: Callable[[Record], None] = records.append
    try:
        return router.records_of(message, now_ms, possible_repeat, add), records
    except Rejected as why:
        return Refused(why.reason, why.detail), records
