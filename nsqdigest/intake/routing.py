"""A message's body to records of timelines (pure): which routes take it, under which timeline, key and timestamp.

Bodies stay the raw bytes they came as: they are looked into, never re-encoded. What stands in a record's value is
therefore exactly what was published, and it is checked here, once, to be something that any receiver can parse: UTF-8
throughout (also in fields nobody asked for), one JSON object, no half characters, no deeper than the limit. A body
that fails comes back with a reason; it can never succeed, whatever is tried again.

The common case is one pass of a typed decoder that reads only the fields that some template names and validates the
rest while skipping it. Its one gap is UTF-8 in what it skips, so that is checked first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.base.templates import Template, check_path
from nsqdigest.intake import bodies
from nsqdigest.intake.bodies import Unusable
from nsqdigest.store.record import Record

if TYPE_CHECKING:
    from nsqdigest.nsq.frames import Message

_TYPE_NAMES = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "an array",
}

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SMALLEST_MS_TIMESTAMP = 1e11
_LATEST_MS = 2**53 // 1000  # in microseconds it is a score in Redis, exact up to 2^53
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
NAMES_BYTES = 16 << 20
"""Of the names of timelines that a topic remembers."""
_ENTRY_BYTES = 110
"""Of a dict, for each entry."""


class EventRoute(NamedTuple):
    """What of a route this module needs; the number is the caller's own."""

    number: int
    name: str
    match: Sequence[tuple[str, Sequence[str | int | bool | float]]]
    timeline: str
    key: str
    timestamp: str


class EventLimits(NamedTuple):
    event_bytes: int
    key_bytes: int
    depth: int
    future_ms: int
    past_ms: int


class Rejected(NamedTuple):
    reason: DeadLetterReason
    detail: str


_Read = Callable[[Any], Any]


class _Shape:
    """The fields that some path names, as nested types for the decoder: what no path names is validated and skipped."""

    def __init__(self, some_paths: Iterable[tuple[str, ...]]) -> None:
        paths = set(some_paths)
        self._is_leaf = False
        self._fields: dict[str, tuple[str, _Shape]] = {}
        for path in sorted(paths):
            if not path:
                self._is_leaf = True
            elif path[0] not in self._fields:
                below = _Shape(other[1:] for other in paths if other[:1] == path[:1])
                self._fields[path[0]] = (f"field_{len(self._fields)}", below)
        self.type: Any = Any
        if not self._is_leaf:
            self.type = msgspec.defstruct(
                "Event",
                [(attribute, below.type, msgspec.UNSET) for attribute, below in self._fields.values()],
                rename={attribute: name for name, (attribute, _) in self._fields.items()},
                gc=False,
            )

    @property
    def names(self) -> list[tuple[str, str]]:
        """The fields of the first level, and the attributes they are decoded to."""
        return [(name, attribute) for name, (attribute, _) in self._fields.items()]

    def build(self, value: Any) -> Any:
        """The same from a value that was decoded whole: what is no object where one was hoped for has none of its
        fields."""
        if self._is_leaf:
            return value
        if not isinstance(value, dict):
            return msgspec.UNSET
        found = ((name, place) for name, place in self._fields.items() if name in value)
        return self.type(**{attribute: below.build(value[name]) for name, (attribute, below) in found})

    def reader(self, path: tuple[str, ...]) -> _Read:
        """Reads a path from a decoded event; UNSET where some step of it is not there."""
        attributes: list[str] = []
        shape = self
        while path and not shape._is_leaf:
            attribute, shape = shape._fields[path[0]]
            attributes.append(attribute)
            path = path[1:]
        get, rest, unset = attrgetter(".".join(attributes)), path, msgspec.UNSET
        if len(attributes) == 1 and not rest:
            return get

        def read(event: Any) -> Any:
            try:
                value = get(event)
            except AttributeError:
                return unset
            for name in rest:
                value = value.get(name, unset) if value.__class__ is dict else unset
            return value

        return read


class _Written(str):
    """A number with a fraction or an exponent, as the publisher wrote it: 1.50 stays apart from 1.5."""


def _as_written(body: bytes, path: tuple[str, ...]) -> str:
    # No number of the body is made into one: of an integer's digits Python converts only so many, and this is no
    # verdict on it.
    value = json.loads(body, parse_float=_Written, parse_int=_Written)
    for name in path:
        value = value[name]
    return str(value)


def _as_text(value: Any, path: tuple[str, ...], body: bytes) -> str:
    """A field's value as it goes into a timeline's name or a key."""
    kind = value.__class__
    if kind is str:
        return value  # type: ignore[no-any-return]
    if kind is bool:
        return "true" if value else "false"
    if kind is int:
        return str(value)
    if kind is float:
        return _as_written(body, path)
    name = ".".join(path)
    if value is msgspec.UNSET or value is None:
        raise Unusable(
            DeadLetterReason.MISSING_FIELD, f'the field "{name}" is {"null" if value is None else "not there"}'
        )
    raise Unusable(
        DeadLetterReason.BAD_FIELD,
        f'the field "{name}" is {_TYPE_NAMES[kind]}; only text, numbers and true or false can be used',
    )


def _renderer(template: Template, readers: Mapping[tuple[str, ...], _Read]) -> Callable[[Any, bytes], str]:
    if len(template.paths) == 1:
        # The common shape, "prefix:{field}": one read and one concatenation.
        [path] = template.paths
        place = template.parts.index(path)
        before = "".join(part for part in template.parts[:place] if isinstance(part, str))
        behind = "".join(part for part in template.parts[place + 1 :] if isinstance(part, str))
        read_field = readers[path]

        def render_field(event: Any, body: bytes) -> str:
            value = read_field(event)
            return before + (value if value.__class__ is str else _as_text(value, path, body)) + behind

        return render_field
    pieces = [part if isinstance(part, str) else (part, readers[part]) for part in template.parts]

    def render(event: Any, body: bytes) -> str:
        return "".join(
            piece if isinstance(piece, str) else _as_text(piece[1](event), piece[0], body) for piece in pieces
        )

    return render


def _encoded(text: str, what: str, limit_bytes: int) -> bytes:
    """A name (of a timeline, of a record) as it goes into Redis."""
    if not text:
        raise Unusable(DeadLetterReason.BAD_FIELD, f"the {what} would be empty")
    if control := _CONTROL.search(text):
        raise Unusable(DeadLetterReason.BAD_FIELD, f"the {what} has the control character U+{ord(control.group()):04X}")
    encoded = text.encode()
    if len(encoded) > limit_bytes:
        raise Unusable(
            DeadLetterReason.BAD_FIELD, f"the {what} has {len(encoded)} bytes; limits.key allows {limit_bytes}"
        )
    return encoded


class _Timelines:
    """Names of timelines, checked and encoded: they come again and again. (Keys of records do not, and are not kept.)
    When they take up more than NAMES_BYTES all are forgotten."""

    def __init__(self, limit_bytes: int) -> None:
        self.known: dict[str, bytes] = {}
        self._limit_bytes = limit_bytes
        self._held_bytes = 0

    def encode(self, text: str) -> bytes:
        encoded = _encoded(text, "timeline's name", self._limit_bytes)
        size_bytes = getsizeof(text) + getsizeof(encoded) + _ENTRY_BYTES
        if self._held_bytes + size_bytes > NAMES_BYTES:
            self.known.clear()
            self._held_bytes = 0
        self._held_bytes += size_bytes
        self.known[text] = encoded
        return encoded


def _timestamp_ms(value: Any, name: str, limits: EventLimits, now_ms: int) -> int:
    def bad(detail: str) -> Unusable:
        return Unusable(DeadLetterReason.BAD_TIMESTAMP, f'the timestamp field "{name}" {detail}')

    if value is msgspec.UNSET or value is None:
        raise bad("is not there")
    if value.__class__ is int or value.__class__ is float:
        number = value * 1000 if value < _SMALLEST_MS_TIMESTAMP else value
    elif value.__class__ is str:
        try:
            moment = datetime.fromisoformat(value.upper())  # RFC 3339 allows t and z
        except ValueError:
            raise bad("is neither a number nor RFC 3339") from None
        if moment.tzinfo is None:
            raise bad("has no zone; write one, like 2026-01-31T09:00:00Z")
        number = (moment - _EPOCH) // _MILLISECOND
    else:
        raise bad(f"is {_TYPE_NAMES[value.__class__]}; a number or RFC 3339 is expected")
    if not 0 <= number < _LATEST_MS:
        raise bad(f"is {value}: outside of all time")
    timestamp_ms = round(number)  # a fraction of a second is seldom a whole number of ms in binary
    if timestamp_ms > now_ms + limits.future_ms:
        raise bad(f"lies {(timestamp_ms - now_ms) // 1000} s ahead; limits.future allows {limits.future_ms // 1000} s")
    if limits.past_ms and timestamp_ms < now_ms - limits.past_ms:
        raise bad(f"lies {(now_ms - timestamp_ms) // 1000} s back; limits.past allows {limits.past_ms // 1000} s")
    return timestamp_ms


# Number, name, conditions, timeline, key, timestamp and its field. A plain tuple: it is unpacked for every event, and
# Python does that several times faster than with a named one.
_Compiled = tuple[
    int,
    str,
    "tuple[tuple[_Read, frozenset[Any]], ...]",
    Callable[[Any, bytes], str],
    "Callable[[Any, bytes], str] | None",
    "_Read | None",
    str,
]


def _comparable(value: Any) -> tuple[type, Any]:
    """Numbers compare as numbers, and true is not 1."""
    return (float if value.__class__ is int else value.__class__), value


class Router:
    """All routes of one topic, compiled once."""

    def __init__(self, routes: Sequence[EventRoute], limits: EventLimits) -> None:
        self._limits = limits
        self._timelines = _Timelines(limits.key_bytes)
        timelines = [Template.parse(route.timeline) for route in routes]
        keys = [Template.parse(route.key) if route.key else None for route in routes]
        paths = {path for template in (*timelines, *keys) if template for path in template.paths}
        for route in routes:
            paths.update(check_path(name) for name, _ in route.match)
            if route.timestamp:
                paths.add(check_path(route.timestamp))
        self._shape = _Shape(paths)
        self._decode_fields = msgspec.json.Decoder(self._shape.type).decode
        whole = _Shape((path[0],) for path in paths)
        self._whole_names = whole.names
        self._decode_whole = msgspec.json.Decoder(whole.type).decode
        readers = {path: self._shape.reader(path) for path in paths}
        self._routes: list[_Compiled] = [
            (
                route.number,
                route.name,
                tuple(
                    (readers[check_path(name)], frozenset(_comparable(value) for value in wanted))
                    for name, wanted in route.match
                ),
                _renderer(timeline, readers),
                _renderer(key, readers) if key else None,
                readers[check_path(route.timestamp)] if route.timestamp else None,
                route.timestamp,
            )
            for route, timeline, key in zip(routes, timelines, keys, strict=True)
        ]

    @property
    def event_bytes(self) -> int:
        """A larger body is refused, whatever is in it."""
        return self._limits.event_bytes

    def too_large(self, size_bytes: int) -> Rejected:
        unusable = bodies.too_large(size_bytes, self._limits.event_bytes)
        return Rejected(unusable.reason, unusable.detail)

    def records_of(
        self, message: Message, now_ms: int, possible_repeat: bool, add: Callable[[Record], None]
    ) -> Rejected | int:
        """Adds one record for each route that takes the event, and answers how many did, or why it can never be taken.

        Where one route takes it and another cannot, the record of the first is added all the same.
        """
        body = message.body
        try:
            event = self._event(body)
        except Unusable as unusable:
            return Rejected(unusable.reason, unusable.detail)
        taken = 0
        rejected: Rejected | None = None
        known_timelines = self._timelines.known
        for number, name, match, render_timeline, render_key, read_timestamp, timestamp_field in self._routes:
            if match and not all(_matches(read(event), wanted) for read, wanted in match):
                continue
            try:
                text = render_timeline(event, body)
                timeline = known_timelines.get(text) or self._timelines.encode(text)
                if render_key is None:
                    key = b"%s-%d" % (message.id, message.timestamp_ns)
                else:
                    key = _encoded(render_key(event, body), "record's key", self._limits.key_bytes)
                if read_timestamp is None:
                    timestamp_us = message.timestamp_ns // 1000
                else:
                    timestamp_us = 1000 * _timestamp_ms(read_timestamp(event), timestamp_field, self._limits, now_ms)
            except Unusable as unusable:
                rejected = Rejected(unusable.reason, f"route {name}: {unusable.detail}")
                continue
            add(Record(number, timeline, key, timestamp_us, body, possible_repeat))
            taken += 1
        return rejected if rejected is not None else taken

    def _event(self, body: bytes) -> Any:
        bodies.check(body, self._limits.event_bytes, self._limits.depth)
        try:
            try:
                return self._decode_fields(body)
            except msgspec.ValidationError:
                # A field is no object where a path goes on below it. That may be no mistake (another route's field).
                event = self._decode_whole(body)
                return self._shape.build({name: getattr(event, attribute) for name, attribute in self._whole_names})
        except msgspec.ValidationError as error:
            if str(error).startswith("Expected `object`"):
                raise Unusable(DeadLetterReason.NOT_AN_OBJECT, "the body is JSON, but not an object") from None
            raise Unusable(DeadLetterReason.BAD_FIELD, str(error)) from None
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise bodies.not_json(body, error) from None


def _matches(value: Any, wanted: frozenset[tuple[type, Any]]) -> bool:
    return value.__class__ in (str, int, bool, float) and _comparable(value) in wanted
