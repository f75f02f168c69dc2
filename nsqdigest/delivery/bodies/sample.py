"""Digests to try a body with (pure): none of them was ever sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

_MAX_BODY_BYTES = 256 * 1024
_OPENED_MS = 1_794_992_400_123
_NEXT_MS = 1_794_992_700_123
_STEP_MS = 1_733
_MANY = 50
OF_A_ROUTE = 17
_KIND = ("kind",)
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


def digest_json(events: Sequence[Mapping[str, Any]], names: Names, group: tuple[str, ...] = ()) -> bytes:
    """Of these events, the newest first."""
    head = Head(
        id="01a1ede2-66fb-7c42-8d0e-3f1f1c9f7a10", iteration=3, opened_ms=_OPENED_MS, total=len(events), superseded=2,
        dropped_capacity=0, next_earliest_ms=_NEXT_MS, since_ms=_OPENED_MS, attempts=0, tries=0,
    )  # fmt: skip
    records = [
        StoredRecord(b"sample-%d" % number, _OPENED_MS - _STEP_MS * (number + 1), json.dumps(event).encode())
        for number, event in enumerate(events)
    ]
    builder = builder_of(head, names, _MAX_BODY_BYTES, group)
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


def sample_of(route: Route) -> bytes:
    """A digest as the route would have it: its events have the fields that the route names."""
    path = route.group_path
    events = []
    template = Template.parse(route.timeline)
    for number in range(OF_A_ROUTE):
        event: dict[str, Any] = {}
        for field in template.paths:
            _put(event, field, "42")
        for name, wanted in route.match:
            if (value := Condition.of(wanted).sample) is not None:
                _put(event, tuple(name.split(".")), value)
        if path:
            _put(event, path, KINDS[number % len(KINDS)])
        _put(event, ("message",), TEXTS[number % len(TEXTS)])
        events.append(event)
    timeline = "".join(part if isinstance(part, str) else _found(events[0], part) for part in template.parts)
    remove = remover([check_path(name) for name in route.drop])
    stored = [json.loads(remove(json.dumps(event).encode())) for event in events]
    return digest_json(stored, Names(route.name, timeline, route.sink), path)


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
