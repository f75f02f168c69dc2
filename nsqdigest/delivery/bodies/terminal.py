"""A digest as a few lines of a terminal (pure): how many events, of which groups, the newest, and what is not shown.

What a publisher sent stands on one line each, without control characters, escapes of a terminal and marks that reorder
text.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from nsqdigest.base.screen import BOLD, DIM, columns, painted
from nsqdigest.delivery.bodies.message import Message, message_of
from nsqdigest.delivery.bodies.texts import UNKNOWN_TIME, is_date, one_line

_NAME_CHARACTERS = 200


def lines_of(document: bytes, *, colour: bool, width: int) -> Iterator[str]:
    """`width`: in columns; 0: nothing is cut."""
    message = message_of(document)
    yield painted(_cut(message.title, width), BOLD, colour)
    route = one_line(message.route, _NAME_CHARACTERS)
    yield painted(_cut(f"  {route} · {_span(message)}", width), DIM, colour)
    for group in message.groups:
        yield _cut(f"  {group.records:,} × {group.name}", width)
    for each in message.examples:
        yield _cut(f"  {_time(each.timestamp_ms // 1000, '%H:%M:%S')}  {each.text}", width)
    next_at = f"next not before {_time(message.next_earliest_s, '%H:%M:%S')}"
    yield painted(_cut(f"  {' · '.join([*message.notes, next_at])}", width), DIM, colour)


def _span(message: Message) -> str:
    first_s, last_s = message.first_ms // 1000, message.last_ms // 1000
    first = _time(first_s)
    return f"{first} UTC" if first_s == last_s else f"{first} – {_time(last_s)} UTC"


def _time(instant_s: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """In UTC, as in the log for people."""
    return datetime.fromtimestamp(instant_s, UTC).strftime(form) if is_date(instant_s) else UNKNOWN_TIME


def _cut(text: str, width: int) -> str:
    if not width or columns(text) <= width:
        return text
    kept, room = [], width - 1
    for character in text:
        room -= columns(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"
