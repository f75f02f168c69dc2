"""A mail's plain text (pure): the same as its HTML, for those who read text."""

from __future__ import annotations

from collections.abc import Iterator

from nsqdigest.delivery.mail.content import Content, Event

_INDENT = "    "
_SIGNATURE = "-- "
"""Everybody who shows mails knows by this line that what follows is a signature."""


def text_of(content: Content) -> str:
    return "\n".join(_lines(content)) + "\n"


def _lines(content: Content) -> Iterator[str]:
    yield f"{content.headline} in {content.timeline}"
    yield content.span
    if content.groups:
        yield ""
        width = max(len(f"{group.records:,}") for group in content.groups)
        yield from (f"{group.records:>{width},} × {group.name}" for group in content.groups)
    for event in content.events:
        if event.fields or event is content.events[0]:
            yield ""
        yield from _event(event)
    yield ""
    yield from content.notes
    yield f"The next digest comes not before {content.next_earliest}."
    yield ""
    yield _SIGNATURE
    yield f"nsqdigest, route {content.route}, digest {content.id}"
    if content.unsubscribe:
        yield f"Unsubscribe: {content.unsubscribe}"


def _event(event: Event) -> Iterator[str]:
    yield f"{event.at}  {event.line}" + (f"  [{event.group}]" if event.group else "")
    for name, value in event.fields:
        lines = value.split("\n")
        if len(lines) == 1:
            yield f"{_INDENT}{name}: {value}"
        else:
            yield f"{_INDENT}{name}:"
            yield from (f"{_INDENT}{_INDENT}{line}".rstrip() for line in lines)
