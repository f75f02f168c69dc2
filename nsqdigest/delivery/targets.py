"""Where one digest goes (pure): options of a sink that are templates over the digest and its newest record.

    https://{tenant}.example.com/hook/{user.id}     digests.{route}

A template is written as that of a route (`base.templates`). `{route}` and `{timeline}` are the digest's own; a field of
the event of such a name is written `{.route}`, `{.timeline}`. Every other `{a.b}` is a field of the newest record.

Invariants:
- The target of a digest is a function of its names, its records and the configuration: the same at each attempt. The
  newest record that has a target decides. Intake lets no other record in; those that are stored nevertheless (ends, and
  records from before a reload) go along and keep no digest back.
- A value stands whole in its place, encoded for it, or the digest has no target. Nothing is left out or shortened.
- A problem is in our own words: it names options and fields of the file, never a value that a publisher sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqdigest.base.shown import printable
from nsqdigest.base.templates import Template
from nsqdigest.delivery.fields import NoText, text_at

if TYPE_CHECKING:
    from nsqdigest.config.options import Tables
    from nsqdigest.config.problems import Spot

ROUTE, TIMELINE = "route", "timeline"
_FIELDS_CALLED_SO = {f".{name}": (name,) for name in (ROUTE, TIMELINE)}
_SHOWN_CHARACTERS = 80


class Target(NamedTuple):
    """Where one digest goes."""

    texts: Mapping[str, str]
    """By a name that its kind of sink gives to each of them."""
    shown: str
    """For people; without the fixed text of a URL's path, which may be a credential."""


class Source(NamedTuple):
    """What a target is made of."""

    route: str
    timeline: str
    newest: bytes
    """A record's value, mostly the newest one's: JSON, an object."""


class Aim(NamedTuple):
    """Of a sink whose digests do not all go to one place."""

    of: Callable[[Source], Target]
    """Raises `NoTarget`."""
    paths: tuple[tuple[str, ...], ...]
    """The fields that it needs of an event."""
    samples: Mapping[tuple[str, ...], str] = MappingProxyType({})
    """What a sample has in a field where the field's own name will not do."""

    def of_newest(self, route: str, timeline: str, values: Iterable[bytes]) -> Target | None:
        """The target of the first value that has one, the newest first; None if there is no value. Raises the first
        `NoTarget` if none has one."""
        first: NoTarget | None = None
        for value in values:
            try:
                return self.of(Source(route, timeline, value))
            except NoTarget as why:
                first = first or why
        if first is not None:
            raise first
        return None

    @property
    def sample_fields(self) -> dict[tuple[str, ...], str]:
        return {path: self.samples.get(path, path[-1]) for path in self.paths}


Encode = Callable[[str], str]
"""A value for its place. Raises ValueError, in our own words, for one that cannot stand there."""


class NoTarget(Exception):
    """The digest cannot be sent anywhere, under this configuration. The message is in our own words."""

    def __init__(self, problem: str, value: str = "") -> None:
        super().__init__(problem)
        self.quoting = printable(value, _SHOWN_CHARACTERS)
        """The value at fault, as its publisher wrote it; "" where there is none."""


def is_template(text: str) -> bool:
    return "{" in text or "}" in text


def parse(text: str) -> Template:
    """Raises `TemplateError`."""
    return Template.parse(text, frozenset(_FIELDS_CALLED_SO))


def event_paths(template: Template) -> tuple[tuple[str, ...], ...]:
    """The fields of an event that it needs."""
    found = (_event_path(path) for path in template.paths)
    return tuple(dict.fromkeys(path for path in found if path is not None))


def not_dropped(*options: str) -> Callable[[Tables, Spot], None]:
    """A rule of the file: no route to such a sink drops a field that these options of the sink name."""

    def rule(tables: Tables, root: Spot) -> None:
        for name, sink in tables.sinks.items():
            routes = [route for route in tables.routes if route.get("sink") == name]
            dropped = {path: route.get("name", "") for route in routes for path in route.get("drop", ())}
            for option in options:
                for path in dict.fromkeys(_paths_in(sink.get(option))):
                    for whole, route_name in dropped.items():
                        if f"{path}.".startswith(f"{whole}."):
                            (root / "sinks" / name / option).problem(
                                f"has the field {path}, and the route {route_name} does not store {whole} (drop)",
                                "write another field, or take it out of drop",
                            )

    return rule


def in_the_timeline(option: str) -> Callable[[Tables, Spot], None]:
    """A warning: the timeline's template has every field that decides where a digest goes. Otherwise one event decides
    where the others of its timeline go, and anybody who publishes can send them elsewhere."""

    def rule(tables: Tables, root: Spot) -> None:
        for name, sink in tables.sinks.items():
            here = root / "sinks" / name / option
            for path in dict.fromkeys(_paths_in(sink.get(option))):
                for route in tables.routes:
                    timeline = route.get("timeline")
                    if route.get("sink") != name or not timeline or path in Template.parse(timeline).fields:
                        continue
                    here.warning(
                        f"has the field {path}, and the timeline of the route {route.get('name', '')} has not: one "
                        "event decides where all events of its timeline go",
                        f'write timeline = "{{{path}}}" in the route and "{{timeline}}" in place of "{{{path}}}" here',
                    )
                    break

    return rule


def _paths_in(value: Any) -> Iterator[str]:
    """The fields of an event, in what was read of an option: a text, a template, or several."""
    for each in value if isinstance(value, list | tuple) else [value]:
        template = parse(each) if isinstance(each, str) and is_template(each) else each
        if isinstance(template, Template):
            yield from (".".join(path) for path in event_paths(template))


def _event_path(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """None: of the digest itself."""
    if path in ((ROUTE,), (TIMELINE,)):
        return None
    return _FIELDS_CALLED_SO.get(path[0], path)


class Filler:
    """One option's template, compiled."""

    def __init__(self, option: str, template: Template, encode: Callable[[int], Encode]) -> None:
        """`encode`: what encodes the value of the n-th of `template.parts`."""
        self._option = option
        self._pieces = [
            part if isinstance(part, str) else (part, _event_path(part), encode(number))
            for number, part in enumerate(template.parts)
        ]

    def texts(self, source: Source) -> list[str]:
        """Of each part of the template. Raises `NoTarget`."""
        return [piece if isinstance(piece, str) else self._filled(source, *piece) for piece in self._pieces]

    def text(self, source: Source) -> str:
        return "".join(self.texts(source))

    def _filled(self, source: Source, path: tuple[str, ...], of_event: tuple[str, ...] | None, encode: Encode) -> str:
        name = ".".join(of_event or path)
        if of_event is None:
            value = source.route if path[0] == ROUTE else source.timeline
        else:
            try:
                value = text_at(source.newest, of_event)
            except NoText as why:
                raise NoTarget(f'{self._option}: the field "{name}" {why}') from None
        try:
            return encode(value)
        except ValueError as why:
            what = f"{{{name}}}" if of_event is None else f'the field "{name}"'
            raise NoTarget(f"{self._option}: {what} {why}", value) from None
