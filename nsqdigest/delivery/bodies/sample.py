"""Digests to try a body with (pure): none of them was ever sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqdigest.base.conditions import Condition
from nsqdigest.base.dropping import remover
from nsqdigest.base.templates import Template, check_path
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.grouped import builder_of
from nsqdigest.store.head import Head
from nsqdigest.store.record import StoredRecord

if TYPE_CHECKING:
    from nsqdigest.config import Route

_NEXT_MS = 300_000
_STEP_MS = 1_733
_MANY = 50
OF_A_ROUTE = 17
_KIND = ("kind",)
_NO_FIELDS: Mapping[tuple[str, ...], str] = MappingProxyType({})
_ODD = 'a "quoted" \\ back`tick <!channel> <@U1> & {{ x }} {% y %} \u202eright to left\u2028 \x00\x1b[31m\n\té😀'
TEXTS = (
    "payment 1042 failed: card declined",
    "no answer from db-3 within 5 s",
    "login failed for ada from 203.0.113.7",
)
KINDS = ("TimeoutError", "TimeoutError", "CardDeclined")


class Sample(NamedTuple):
    what: str
    digest_json: bytes


class Opened(NamedTuple):
    """Under which id, and when, by the clock of whoever reads it."""

    id: str = "01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10"
    at_ms: int = 1_794_992_400_123
    max_body_bytes: int = 256 * 1024


_LONG_AGO = Opened()


def digest_json(
    events: Sequence[Mapping[str, Any]], names: Names, group: tuple[str, ...] = (), opened: Opened = _LONG_AGO
) -> bytes:
    """Of these events, the newest first."""
    head = Head(
        id=opened.id, iteration=3, opened_ms=opened.at_ms, total=len(events), superseded=2, dropped_capacity=0,
        next_earliest_ms=opened.at_ms + _NEXT_MS, since_ms=opened.at_ms, attempts=0, tries=0,
    )  # fmt: skip
    records = [
        StoredRecord(b"sample-%d" % number, opened.at_ms - _STEP_MS * (number + 1), json.dumps(event).encode())
        for number, event in enumerate(events)
    ]
    builder = builder_of(head, names, opened.max_body_bytes, group)
    builder.add(records)
    return builder.body(records[-1].timestamp_ms, records[0].timestamp_ms)


def samples(*, grouped: bool) -> list[Sample]:
    names, odd = Names("events", "user:42", "out"), Names("events", _ODD, "out")
    group = _KIND if grouped else ()
    one = {"message": TEXTS[0], "kind": KINDS[0]}
    found = [
        Sample("one event", digest_json([one], names, group)),
        Sample("many events", digest_json([one | {"message": f"event {n}"} for n in range(_MANY)], names, group)),
        Sample("odd characters", digest_json([{"message": _ODD, "kind": _ODD, _ODD: _ODD}], odd, group)),
    ]
    if grouped:
        kinds = [{**one, "kind": kind} for kind in ("", None, 7, True, "TimeoutError")]
        found.append(Sample("groups of every kind, null and empty too", digest_json(kinds, names, group)))
    return found


def sample_of(route: Route, fields: Mapping[tuple[str, ...], str] = _NO_FIELDS) -> bytes:
    """A digest as the route would have it: its events have the fields that the route names, and these."""
    events = events_of(route, TEXTS, fields)
    parts = Template.parse(route.timeline).parts
    timeline = "".join(part if isinstance(part, str) else _found(events[0], part) for part in parts)
    return digest_json(stored(route, events), Names(route.name, timeline, route.sink), route.group_path)


def stored(route: Route | None, events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Without the fields that the route drops."""
    if route is None or not route.drop:
        return events
    remove = remover([check_path(name) for name in route.drop])
    return [json.loads(remove(json.dumps(event).encode())) for event in events]


def events_of(
    route: Route | None, texts: Sequence[str], fields: Mapping[tuple[str, ...], str] = _NO_FIELDS, **others: Any
) -> list[dict[str, Any]]:
    """None: of a sink that no route has."""
    events = []
    for number in range(OF_A_ROUTE):
        event: dict[str, Any] = {}
        if route is not None:
            for field in Template.parse(route.timeline).paths:
                _put(event, field, "42")
            for name, wanted in route.match:
                if (value := Condition.of(wanted).sample) is not None:
                    _put(event, tuple(name.split(".")), value)
            if route.group_path:
                _put(event, route.group_path, KINDS[number % len(KINDS)])
        for field, text in fields.items():
            _put(event, field, text)
        _put(event, ("message",), texts[number % len(texts)])
        events.append(event | others)
    return events


def _put(event: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Where nothing else is in the way."""
    inner: Any = event
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
        if not isinstance(inner, dict):
            return
    inner.setdefault(path[-1], value)


def _found(event: dict[str, Any], path: tuple[str, ...]) -> str:
    found: Any = event
    for name in path:
        found = found.get(name, "") if isinstance(found, dict) else ""
    return str(found)


def bare(*, grouped: bool) -> bytes:
    """Its event has no field at all."""
    return digest_json([{}], Names("events", "user:42", "out"), _KIND if grouped else ())
