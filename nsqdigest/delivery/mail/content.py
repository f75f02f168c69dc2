"""What a mail says of a digest, whatever its form (pure): what happened, how many, of which kinds, the newest events,
what is not shown, when the next can come.

Invariant: every text in it is without controls, terminal escapes, marks that reorder text and what nobody sees, and has
a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from nsqdigest.base.words import counted
from nsqdigest.delivery.bodies import values
from nsqdigest.delivery.bodies.document import Data, Digest
from nsqdigest.delivery.bodies.message import (
    MOST_GROUPS,
    NAME_CHARACTERS,
    NO_GROUP,
    GroupCount,
    group_name,
    groups_of,
    line_of,
    notes_of,
)
from nsqdigest.delivery.bodies.texts import is_date, one_line, utc

MOST_EVENTS = 20
LINE_CHARACTERS = 300
SUBJECT_CHARACTERS = 120
_IN_FULL = 3
"""So many events are shown with their fields; of more a line each."""
_MOST_FIELDS = 24
_FIELD_CHARACTERS = 60
_MOST_LINES = 24
_DEEPEST = 4
_DEEPEST_INDENT = 12
_GROUPS_IN_SUBJECT = 3
_PREHEADER_CHARACTERS = 160


class Event(NamedTuple):
    at: str
    group: str
    """"": it has none, or several have the same."""
    line: str
    fields: list[tuple[str, str]]
    """Empty where the line has to do. A value may have several lines."""


class Content(NamedTuple):
    id: str
    route: str
    timeline: str
    headline: str
    span: str
    groups: list[GroupCount]
    """The largest first; none where there is but one event."""
    events: list[Event]
    """The newest first."""
    notes: list[str]
    next_earliest: str
    subject: str
    preheader: str
    """What a list of mails shows behind the subject."""
    unsubscribe: str = ""


def content_of(digest: Digest) -> Content:
    data = digest.data
    groups = groups_of(data)
    newest = data.newest[:MOST_EVENTS]
    events = _events(data, newest)
    of_groups = [event.group for event in events] if len(groups) > 1 or data.total == 1 else [""] * len(events)
    timeline = one_line(data.timeline, NAME_CHARACTERS)
    return Content(
        id=data.id,
        route=one_line(data.route, NAME_CHARACTERS),
        timeline=timeline,
        headline=counted(data.total, "event"),
        span=_span(data.first, data.last),
        groups=groups[:MOST_GROUPS] if data.total > 1 else [],
        events=[event._replace(group=group) for event, group in zip(events, of_groups, strict=True)],
        notes=notes_of(data, groups, data.total - len(newest)),
        next_earliest=utc(data.next_earliest_s, "%Y-%m-%d %H:%M UTC"),
        subject=_subject(data.total, timeline, groups, events),
        preheader=one_line(" · ".join(event.line for event in events[:3]), _PREHEADER_CHARACTERS) if events else "",
    )


# -- the subject


def _subject(total: int, timeline: str, groups: list[GroupCount], events: list[Event]) -> str:
    what = _kinds(groups) if total > 1 else ""
    if not what and events:
        newest = events[0]
        has_kind = newest.group and newest.group != NO_GROUP and newest.group not in newest.line
        what = f"{newest.group}: {newest.line}" if has_kind else newest.line
    count = f"{counted(total, 'event')} · " if total > 1 else ""
    return one_line(f"{count}{timeline}: {what}" if what else f"{count}{timeline}", SUBJECT_CHARACTERS)


def _kinds(groups: list[GroupCount]) -> str:
    named = [group for group in groups if group.name != NO_GROUP]
    shown = [f"{group.name} ×{group.records:,}" for group in named[:_GROUPS_IN_SUBJECT]]
    return ", ".join([*shown, "…"] if len(named) > _GROUPS_IN_SUBJECT else shown)


# -- the events


def _events(data: Data, newest: list[Any]) -> list[Event]:
    group_of = {id(record): group_name(group.group) for group in data.groups or () for record in group.records}
    is_one_day = _day(data.first) == _day(data.last)
    form = "%H:%M:%S" if is_one_day else "%Y-%m-%d %H:%M:%S"
    in_full = data.total <= _IN_FULL
    found = []
    for record in newest:
        event = values.parse(bytes(record.value))
        line = line_of(event, LINE_CHARACTERS)
        fields = list(_fields(event, line)) if in_full else []
        found.append(Event(utc(record.timestamp // 1000, form), group_of.get(id(record), ""), line, fields))
    return found


def _fields(event: Any, line: str) -> Iterator[tuple[str, str]]:
    if not isinstance(event, dict):
        return
    for count, (path, value) in enumerate(_leaves(event, (), 1)):
        if count == _MOST_FIELDS:
            yield "…", "more fields are not shown"
            return
        text = _lines(value if isinstance(value, str) else values.encode(value))
        if text != line:  # it stands above already
            yield one_line(".".join(path), _FIELD_CHARACTERS), text


def _leaves(event: dict[str, Any], path: tuple[str, ...], depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in event.items():
        if isinstance(value, dict) and value and depth < _DEEPEST:
            yield from _leaves(value, (*path, name), depth + 1)
        else:
            yield (*path, name), value


def _lines(text: str) -> str:
    """Its lines, such as those of a traceback: indented as they were, each cut like a line of its own."""
    lines = text[: _MOST_LINES * LINE_CHARACTERS].expandtabs(4).splitlines() or [""]
    shown = []
    for line in lines[:_MOST_LINES]:
        bare = line.lstrip(" ")
        indent = " " * min(len(line) - len(bare), _DEEPEST_INDENT) if len(lines) > 1 else ""
        shown.append(indent + one_line(bare, LINE_CHARACTERS) if bare or len(lines) == 1 else "")
    if len(lines) > _MOST_LINES:
        shown.append("…")
    return "\n".join(shown)


# -- times


def _day(instant_ms: int) -> str:
    return utc(instant_ms // 1000, "%Y-%m-%d")


def _span(first_ms: int, last_ms: int) -> str:
    first, last = utc(first_ms // 1000), utc(last_ms // 1000)
    if first == last:
        return first
    if is_date(first_ms // 1000) and is_date(last_ms // 1000):
        is_one_day = _day(first_ms) == _day(last_ms)
        last = utc(last_ms // 1000, "%H:%M:%S UTC") if is_one_day else last
        return f"{first.removesuffix(' UTC')} – {last}"
    return f"{first} – {last}"


def opened_at(digest: Digest) -> datetime:
    return datetime.fromisoformat(digest.timestamp).astimezone(UTC)
