"""The events of an input (pure): one event, on however many lines, or an event on each line."""

from __future__ import annotations

import json
from typing import NamedTuple


class Event(NamedTuple):
    line: int
    """Where it begins in the input, from 1."""
    body: bytes
    """What nsqd would hand over: without the line's end."""


def split(data: bytes, *, by_line: bool | None = None) -> list[Event]:
    """`by_line`: whether each line is an event; None: as it looks. Blank lines are no events: nsqd takes none."""
    lines = [Event(number, line.rstrip(b"\r")) for number, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    if by_line is None:
        by_line = _looks_like_lines(data, lines)
    if by_line or not lines:
        return lines
    return [Event(lines[0].line, data.lstrip(b"\r\n").rstrip(b"\r\n"))]


def _looks_like_lines(data: bytes, lines: list[Event]) -> bool:
    """One JSON document is one event. Otherwise the lines are events where most of them look like whole objects: some
    may be the mistakes that are looked for."""
    whole = sum(body.lstrip().startswith(b"{") and body.rstrip().endswith(b"}") for _, body in lines)
    return 2 * whole >= len(lines) and not _is_json(data)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(str(data, "utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return True
