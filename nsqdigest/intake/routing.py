"""A message's body to records of timelines (pure): which routes take it, under which timeline, key and timestamp.

Invariants:
- A record's value is the body, byte for byte, without the fields that its route drops: bodies are looked into, never
  re-encoded.
- A body becomes a record only if any receiver can parse it: UTF-8 throughout (also in fields that no template names),
  one JSON object, no lone surrogates, no deeper than the limit. Any other body is rejected with a reason, for good.

The common case is one pass of a typed decoder that reads only the fields that some template names and validates the
rest while skipping it. It does not check UTF-8 in what it skips, so `bodies` checks that first.

Comes from `decoding`; records go to `writer`. The parts are `shapes`, `names` and `timestamps`;
`base.conditions` and `base.dropping` do what the routes say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from nsqdigest.base.conditions import Condition, Holds
from nsqdigest.base.dropping import remover
from nsqdigest.base.local_time import is_zone
from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.base.templates import Template, check_path
from nsqdigest.intake import bodies
from nsqdigest.intake.bodies import Rejected
from nsqdigest.intake.names import KeyRenderer, Renderer, TimelineNames, key_renderer, renderer
from nsqdigest.intake.shapes import Reader, Shape
from nsqdigest.intake.timestamps import LATEST_ARRIVAL_US, arrival_us, timestamp_ms
from nsqdigest.store.record import A_SILENT_END, AN_END, Record

if TYPE_CHECKING:
    from nsqdigest.config import ConditionTable, Limits, Route
    from nsqdigest.nsq.frames import Message
    from nsqdigest.store.schedule import Plan


WhyNoTarget = Callable[[str, bytes], str]
"""Why a digest of this timeline could be sent nowhere if this value were its newest record; "" if it could."""


class IntakeRoute(NamedTuple):
    """A route as the whole intake knows it."""

    number: int
    """In `Record.route`; unique in its topic."""
    settings: Route
    plan: Plan
    why_no_target: WhyNoTarget | None = None
    """None: all digests of its sink go to one place."""


Predicate = Callable[[Any], bool]
"""Whether a decoded event meets the conditions of a table: `match`, `urgent` or `cancel`."""

Refine = Callable[[Record, Any, int], bool]
"""What a route does with a record and its decoded event that most routes do not; with the present instant (ms). Whether
the record is to be filed."""

# Number, name, conditions (None: it takes every event), timeline, key, timestamp and its field, and what else it does
# with the record. A plain tuple: it is unpacked for every event, and Python does that several times faster than with a
# named one.
_Compiled = tuple[int, str, "Predicate | None", Renderer, "KeyRenderer | None", "Reader | None", str, "Refine | None"]


class Router:
    """All routes of one topic, compiled once."""

    def __init__(self, routes: Sequence[IntakeRoute], limits: Limits) -> None:
        self._limits = limits
        self._harmless_bytes = min(limits.event_bytes, bodies.harmless_bytes(limits.depth))
        self._timelines = TimelineNames(limits.key_bytes)
        settings = [route.settings for route in routes]
        self._zones = {route.number: Template.parse(text) for route in routes if (text := route.plan.zone_template)}
        templates = [
            (Template.parse(each.timeline), Template.parse(each.key) if each.key else None) for each in settings
        ]
        paths = {path for pair in templates for template in pair if template for path in template.paths}
        paths.update(path for template in self._zones.values() for path in template.paths)
        for each in settings:
            paths.update(check_path(name) for name, _ in (*each.match, *each.urgent, *each.cancel))
            if each.timestamp:
                paths.add(check_path(each.timestamp))
        self._shape = Shape(paths)
        self._decode_fields = msgspec.json.Decoder(self._shape.type).decode
        whole = Shape((path[0],) for path in paths)
        self._whole_names = whole.names
        self._decode_whole = msgspec.json.Decoder(whole.type).decode
        self._conditions = {each.name: _conditions(each.match, self._shape) for each in settings}
        self.too_old: Counter[str] = Counter()
        """Events by route that were not filed: they are older than its max_event_age. Who reports them clears it."""
        self.unknown_zones: dict[str, tuple[int, str]] = {}
        """By route how many events named a zone that there is not, and such a name. Who reports them clears it."""
        self._routes = [self._compiled(route, *pair) for route, pair in zip(routes, templates, strict=True)]

    def _compiled(self, route: IntakeRoute, timeline: Template, key: Template | None) -> _Compiled:
        number, settings = route.number, route.settings
        shape = self._shape
        return (
            number,
            settings.name,
            _predicate(settings.match, shape),
            renderer(timeline, shape),
            key_renderer(key, shape, self._limits.key_bytes) if key else None,
            shape.reader(check_path(settings.timestamp)) if settings.timestamp else None,
            settings.timestamp,
            self._refinement(route, self._zones.get(number)),
        )

    def _refinement(self, route: IntakeRoute, zone: Template | None) -> Refine | None:
        settings, why_no_target = route.settings, route.why_no_target
        oldest_us, drops = 1000 * settings.max_event_age_ms, bool(settings.drop)
        # The keys of messages say in which order they arrived. Whether a route has `cancel` changes no record's place:
        # a reload may add it while records wait.
        has_arrival = bool(settings.key and settings.timestamp)
        if not (settings.urgent or settings.cancel or drops or oldest_us or zone or has_arrival or why_no_target):
            return None
        zone_of = self._zone_reader(settings.name, zone) if zone else None
        is_end = _predicate(settings.cancel, self._shape)
        end = A_SILENT_END if settings.on_cancel == "silent" else AN_END
        is_urgent = _predicate(settings.urgent, self._shape)
        remove = remover([check_path(name) for name in settings.drop])

        def refine(record: Record, event: Any, now_ms: int) -> bool:
            if oldest_us and 1000 * now_ms - record.timestamp_us > oldest_us:
                self.too_old[settings.name] += 1
                return False
            if is_end is not None and is_end(event):
                record.end = end
            if has_arrival:
                arrived_ns = cast("Message", record.source).timestamp_ns
                delay_us = LATEST_ARRIVAL_US if record.end else arrival_us(record.timestamp_us // 1000, arrived_ns)
                record.timestamp_us += delay_us
            if is_urgent is not None and is_urgent(event):
                record.is_urgent = True
            if zone_of is not None:
                record.zone = zone_of(event, record.value)
            if drops:
                record.value = remove(record.value)
            # An end takes out the record of its key, and that one has a target.
            if why_no_target is not None and not record.end:
                why = why_no_target(record.timeline.decode(), record.value)
                if why:
                    raise Rejected(DeadLetterReason.NO_TARGET, why)
            return True

        return refine

    def _zone_reader(self, route: str, template: Template) -> Renderer:
        """Returns "" of an event that names no zone, or none that there is: it is no mistake of the whole event."""
        render = renderer(template, self._shape)

        def zone_of(event: Any, body: bytes) -> str:
            try:
                name = render(event, body)
            except Rejected:
                return ""
            if is_zone(name):
                return name
            self.unknown_zones[route] = (self.unknown_zones.get(route, (0, ""))[0] + 1, name)
            return ""

        return zone_of

    def records_of(
        self,
        message: Message,
        now_ms: int,
        possible_repeat: bool,
        add: Callable[[Record], None],
        suspected: int = bodies.EVERYTHING,
    ) -> int:
        """Add one record for each route that takes the event and return the number of these routes. Raises Rejected if
        the event can never be taken. `suspected`: what `decoding.suspicions` says of this body.

        If one route takes the event and another cannot, the record of the first is added all the same.
        """
        body = message.body
        if suspected or len(body) > self._harmless_bytes:
            bodies.check(body, self._limits.event_bytes, self._limits.depth, suspected)
        event = self._decoded(body, suspected)
        taken = 0
        rejected: Rejected | None = None
        known_timelines = self._timelines.known
        for number, name, takes, render_timeline, render_key, read_timestamp, timestamp_field, refine in self._routes:
            if takes is not None and not takes(event):
                continue
            try:
                text = render_timeline(event, body)
                timeline = known_timelines.get(text) or self._timelines.encode(text)
                key = render_key(event, body) if render_key else b"%s-%d" % (message.id, message.timestamp_ns)
                if read_timestamp is None:
                    timestamp_us = message.timestamp_ns // 1000
                else:
                    timestamp_us = 1000 * timestamp_ms(read_timestamp(event), timestamp_field, self._limits, now_ms)
                record = Record(number, timeline, key, timestamp_us, body, possible_repeat, message)
                is_filed = refine is None or refine(record, event, now_ms)
            except Rejected as why:
                rejected = Rejected(why.reason, f"route {name}: {why.detail}")
                continue
            if is_filed:
                add(record)
            taken += 1
        if rejected is not None:
            raise rejected
        return taken

    def unmet(self, body: bytes) -> Iterator[tuple[int, str, Any]]:
        """Of each route that does not take this event, which some JSON object is the body of: its number, the first
        field of its `match` that differs, and the value of that field (UNSET where it is not there).

        For who asks why: intake itself only counts such events.
        """
        event = self._decoded(body, bodies.EVERYTHING)
        for number, name, *_ in self._routes:
            for path, read, holds in self._conditions[name]:
                value = read(event)
                if not holds(value):
                    yield number, path, value
                    break

    def _decoded(self, body: bytes, suspected: int) -> Any:
        if suspected & bodies.NUMBERS:
            return self._shape.build(bodies.decode_numbers(body))
        try:
            return self._decode_fields(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return self._event_otherwise(body)

    def _event_otherwise(self, body: bytes) -> Any:
        """An event that the typed decoder refused. Where only a field is no object, but a path goes on below it, that
        may be no mistake: the path is another route's."""
        try:
            event = self._decode_whole(body)
            return self._shape.build({name: getattr(event, attribute) for name, attribute in self._whole_names})
        except msgspec.ValidationError as refused:
            if " - at `$" not in str(refused):  # the whole body
                raise bodies.no_object() from None
            raise Rejected(DeadLetterReason.BAD_FIELD, str(refused)) from None
        except (msgspec.DecodeError, ValueError, RecursionError) as refused:
            raise bodies.not_json(body, refused) from None


def _conditions(table: ConditionTable, shape: Shape) -> list[tuple[str, Reader, Holds]]:
    return [(path, shape.reader(check_path(path)), Condition.of(values).test()) for path, values in table]


def _predicate(table: ConditionTable, shape: Shape) -> Predicate | None:
    """Compiled for the common tables: one field, one text. None where the table is empty."""
    conditions = _conditions(table, shape)
    if not conditions:
        return None
    if len(conditions) > 1:
        return _all_of([(read, holds) for _, read, holds in conditions])
    [(_, read, holds)] = conditions
    text = Condition.of(table[0][1]).only_text
    if text is not None:
        return lambda event: read(event) == text  # whatever it is: no value but a text equals one
    return lambda event: holds(read(event))


def _all_of(conditions: Sequence[tuple[Reader, Holds]]) -> Predicate:
    def takes(event: Any) -> bool:
        for read, holds in conditions:  # noqa: SIM110  - a generator would take three times as long
            if not holds(read(event)):
                return False
        return True

    return takes
