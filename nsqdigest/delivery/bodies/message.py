"""What a message to people says of a digest, whatever its form (pure): what happened, how many, of which kinds, the
newest examples, what is missing, and when the next can come.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nsqdigest.base.words import counted
from nsqdigest.delivery.bodies import values
from nsqdigest.delivery.bodies.document import Data, Record, read
from nsqdigest.delivery.bodies.texts import one_line

MOST_GROUPS = 10
MOST_EXAMPLES = 5
NAME_CHARACTERS = 100
EXAMPLE_CHARACTERS = 200
NO_GROUP = "(none)"
TEXT_FIELDS = ("message", "msg", "title", "error", "text", "what", "summary", "description")
"""An example is the first of these that its event has; else the whole event."""


class GroupCount(NamedTuple):
    records: int
    name: str


class Example(NamedTuple):
    timestamp_ms: int
    text: str


class Message(NamedTuple):
    title: str
    route: str
    first_ms: int
    last_ms: int
    groups: list[GroupCount]
    """The largest first."""
    examples: list[Example]
    """The newest first."""
    notes: list[str]
    """What the message does not show."""
    next_earliest_s: int


def message_of(document: bytes) -> Message:
    data = read(document).data
    newest = data.newest[:MOST_EXAMPLES]
    groups = groups_of(data)
    return Message(
        title=f"{counted(data.total, 'event')} in {one_line(data.timeline, NAME_CHARACTERS)}",
        route=data.route,
        first_ms=data.first,
        last_ms=data.last,
        groups=groups[:MOST_GROUPS],
        examples=[Example(record.timestamp, example(record)) for record in newest],
        notes=notes_of(data, groups, data.total - len(newest)),
        next_earliest_s=data.next_earliest_s,
    )


def groups_of(data: Data) -> list[GroupCount]:
    """The largest first."""
    found = [GroupCount(group.count, group_name(group.group)) for group in data.groups or ()]
    return sorted(found, key=lambda group: -group.records)


def group_name(group: Any) -> str:
    if group is None:
        return NO_GROUP
    return one_line(group if isinstance(group, str) else values.encode(group), NAME_CHARACTERS)


def notes_of(data: Data, groups: list[GroupCount], not_shown: int) -> list[str]:
    """What a message with the first MOST_GROUPS does not show."""
    notes = []
    others = data.total - sum(group.records for group in groups[:MOST_GROUPS])
    if groups and others:
        notes.append(f"{counted(others, 'event')} in other groups")
    if not_shown:
        notes.append(f"{counted(not_shown, 'older event')} not shown")
    if data.superseded:
        notes.append(f"{data.superseded:,} superseded by newer ones")
    if data.dropped.capacity:
        notes.append(f"{data.dropped.capacity:,} dropped: more than a timeline keeps")
    return notes


def example(record: Record) -> str:
    """An event in one line."""
    return line_of(values.parse(bytes(record.value)), EXAMPLE_CHARACTERS)


def line_of(event: Any, limit: int) -> str:
    return one_line(_text_in(event) or values.encode(event), limit)


def _text_in(value: Any) -> str:
    """Of an object one level deeper, too: `{"error": {"message": "…"}}`."""
    if not isinstance(value, Mapping):
        return ""
    for field in TEXT_FIELDS:
        found = value.get(field)
        if isinstance(found, Mapping):
            found = next((found[name] for name in TEXT_FIELDS if isinstance(found.get(name), str)), "")
        if isinstance(found, str) and found.strip():
            return found
    return ""
