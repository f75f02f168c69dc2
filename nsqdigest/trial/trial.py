"""What becomes of one event (pure): the records that it would be, or its dead letter, or neither.

Invariants:
- The event goes through the daemon's own `Router`, with the routes and limits of the file. Nothing is decided here.
- What only NSQ knows (the message's id, its timestamp) is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from nsqdigest.base.dropping import remover
from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.base.templates import check_path
from nsqdigest.daemon.routes import Aims, intake_routes, plans_of
from nsqdigest.delivery.grouped import group_of
from nsqdigest.delivery.targets import NoTarget, Source
from nsqdigest.intake.bodies import Rejected
from nsqdigest.intake.routing import Router
from nsqdigest.nsq.frames import Message
from nsqdigest.store.record import NO_END
from nsqdigest.trial import hints

if TYPE_CHECKING:
    from nsqdigest.config import Config, Route
    from nsqdigest.store.record import Record
    from nsqdigest.trial.events import Event

_NS_PER_MS = 1_000_000
_NO_ID = b"0" * 16
_NO_AIMS: Aims = MappingProxyType({})


class Result(StrEnum):
    TAKEN = "taken"
    DEAD_LETTER = "dead-letter"
    """Of at least one route. Others may have taken it all the same."""
    UNMATCHED = "unmatched"
    TOO_OLD = "too-old"
    """Of every route that takes it."""


class Place(NamedTuple):
    """The record that a route makes of an event."""

    route: str
    timeline: str
    key: str | None
    """None: the message's id and timestamp."""
    timestamp_ms: int | None
    """None: the message's own."""
    group_field: str
    """"": the route does not group."""
    group: Any
    is_urgent: bool
    is_end: bool
    """It takes out the record of its key."""
    zone: str
    """Of the timeline, after this event; "": its policy has one zone for all."""
    dropped: Sequence[str]
    """The fields of this event that are not stored."""
    policy: str
    sink: str
    target: str = ""
    """Where a digest goes whose newest record this is; "": where all of the sink go."""
    no_target: str = ""
    """Why it would go nowhere."""


class Unmet(NamedTuple):
    """Why a route does not take an event: the first field of its `match` that differs."""

    route: str
    field: str
    found: Any
    """UNSET: the field is not there."""
    wanted: Sequence[Any]


class Tried(NamedTuple):
    event: Event
    result: Result
    places: Sequence[Place] = ()
    reason: DeadLetterReason | None = None
    detail: str = ""
    """Reason and detail as in the dead letter."""
    unmet: Sequence[Unmet] = ()
    too_old: Sequence[str] = ()
    """Routes that take it and do not file it."""
    hints: Sequence[str] = ()


class Trial:
    """The events of one topic."""

    def __init__(self, config: Config, topic: str, aims: Aims = _NO_AIMS) -> None:
        """`aims`: of the sinks that have one."""
        self._aims = aims
        routes = intake_routes(config, topic, plans_of(config), aims)
        self._routes: dict[int, Route] = {route.number: route.settings for route in routes}
        self._router = Router(routes, config.limits)
        self._policies = config.policies
        self._fields = [".".join(path) for route in self._routes.values() for path in self._paths_of(route)]

    def _paths_of(self, route: Route) -> Sequence[tuple[str, ...]]:
        """All that a route and its sink cannot do without in an event."""
        aim = self._aims.get(route.sink)
        return [*hints.paths_of(route), *(aim.paths if aim is not None else ())]

    def try_event(self, event: Event, now_ms: int) -> Tried:
        records: list[Record] = []
        message = Message(_NO_ID, now_ms * _NS_PER_MS, 1, event.body)
        try:
            taken = self._router.records_of(message, now_ms, False, records.append)
        except Rejected as why:
            return self._dead_letter(event, records, why.reason, why.detail)._replace(too_old=self._too_old())
        except Exception as error:  # as the daemon does
            return self._dead_letter(event, records, DeadLetterReason.BUG, f"{type(error).__name__}: {error}")
        if not taken:
            return self._unmatched(event)
        too_old = self._too_old() if taken > len(records) else ()
        result = Result.TAKEN if records else Result.TOO_OLD
        hints_of_groups = self._hints_of_groups(event, records)
        return Tried(event, result, self._places(records), too_old=too_old, hints=hints_of_groups)

    def _too_old(self) -> Sequence[str]:
        """Of the event that was tried last."""
        names = list(self._router.too_old)
        self._router.too_old.clear()
        return names

    def _dead_letter(self, event: Event, records: list[Record], reason: DeadLetterReason, detail: str) -> Tried:
        found = hints.of_dead_letter(event.body, reason, detail, self._fields)
        return Tried(event, Result.DEAD_LETTER, self._places(records), reason, detail, hints=found)

    def _unmatched(self, event: Event) -> Tried:
        unmet = []
        for number, field, found in self._router.unmet(event.body):
            settings = self._routes[number]
            unmet.append(Unmet(settings.name, field, found, dict(settings.match)[field]))
        missing = [each.field for each in unmet if each.found is msgspec.UNSET]
        return Tried(event, Result.UNMATCHED, unmet=unmet, hints=hints.of_missing(event.body, missing))

    def _hints_of_groups(self, event: Event, records: list[Record]) -> Sequence[str]:
        names = [self._routes[record.route].group for record in records]
        return hints.of_missing(event.body, [name for name in names if name], name_all=False)

    def _places(self, records: list[Record]) -> Sequence[Place]:
        return tuple(self._place(self._routes[record.route], record) for record in records)

    def _place(self, settings: Route, record: Record) -> Place:
        group = group_of(record.value, settings.group_path) if settings.group else b"null"
        target, no_target = self._target(settings, record)
        return Place(
            settings.name,
            record.timeline.decode(),
            record.key.decode() if settings.key else None,
            record.timestamp_us // 1000 if settings.timestamp else None,
            settings.group,
            msgspec.json.decode(group),
            record.is_urgent,
            record.end != NO_END,
            self._zone(settings, record),
            _dropped(settings, record),
            settings.policy,
            settings.sink,
            target,
            no_target,
        )

    def _zone(self, settings: Route, record: Record) -> str:
        policy = self._policies[settings.policy]
        if not policy.is_zoned:
            return ""
        _, unknown = self._router.unknown_zones.pop(settings.name, (0, ""))
        why = f'"{unknown}" is no zone' if unknown else "the event names none"
        return record.zone or f"{policy.zone_default}, unless the timeline has another one: {why}"

    def _target(self, settings: Route, record: Record) -> tuple[str, str]:
        aim = self._aims.get(settings.sink)
        if aim is None:
            return "", ""
        try:
            return aim.of(Source(settings.name, record.timeline.decode(), record.value)).shown, ""
        except NoTarget as why:
            return "", str(why)


def _dropped(settings: Route, record: Record) -> tuple[str, ...]:
    if not settings.drop or not isinstance(record.source, Message):
        return ()
    body = record.source.body
    return tuple(name for name in settings.drop if remover([check_path(name)])(body) != body)
