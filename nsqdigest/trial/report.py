"""What became of the events, as lines for people or as an object for scripts (pure).

Names and values come from whoever published the event: they are shown without control characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from nsqdigest.base.conditions import Condition
from nsqdigest.base.screen import BOLD, GREEN, RED, WIDTH_OF_A_PIPE, YELLOW, painted, wrapped
from nsqdigest.base.shown import printable
from nsqdigest.base.words import counted
from nsqdigest.delivery.digest import rfc3339
from nsqdigest.trial.trial import Place, Result, Tried, Unmet

_COLOURS = {Result.TAKEN: GREEN, Result.DEAD_LETTER: RED, Result.UNMATCHED: YELLOW, Result.TOO_OLD: YELLOW}
_COLUMN = len("timeline") + 2
_LONGEST_VALUE = 60
_EXCERPT_BEFORE, _EXCERPT_BEHIND = 40, 20
_BYTE = re.compile(r"\(byte ([0-9]+)\)|^byte ([0-9]+) ")


def is_fine(tried: Sequence[Tried]) -> bool:
    """Whether some route takes each event, none would be a dead letter, and each digest goes somewhere."""
    return all(each.result is Result.TAKEN and not any(place.no_target for place in each.places) for each in tried)


# -- for scripts


def as_json(topic: str, tried: Sequence[Tried]) -> dict[str, Any]:
    return {"ok": is_fine(tried), "topic": topic, "events": [_event_as_json(each) for each in tried]}


def _event_as_json(tried: Tried) -> dict[str, Any]:
    dead = None if tried.reason is None else {"reason": tried.reason.value, "detail": tried.detail}
    return {
        "line": tried.event.line,
        "result": tried.result.value,
        "routes": [_place_as_json(place) for place in tried.places],
        "dead_letter": dead,
        "unmet": [_unmet_as_json(each) for each in tried.unmet],
        "too_old": list(tried.too_old),
        "hints": list(tried.hints),
    }


def _place_as_json(place: Place) -> dict[str, Any]:
    return {
        "route": place.route,
        "timeline": place.timeline,
        "key": place.key,
        "timestamp": place.timestamp_ms,
        "group": place.group,
        "urgent": place.is_urgent,
        "cancels": place.is_end,
        "zone": place.zone or None,
        "dropped": list(place.dropped),
        "policy": place.policy,
        "sink": place.sink,
        "target": place.target or None,
        "no_target": place.no_target or None,
    }


def _unmet_as_json(unmet: Unmet) -> dict[str, Any]:
    is_there = unmet.found is not msgspec.UNSET
    found = unmet.found if is_there else None
    return {"route": unmet.route, "field": unmet.field, "there": is_there, "found": found, "wanted": list(unmet.wanted)}


# -- for people


def lines(
    tried: Sequence[Tried], dead_letter_topic: str, *, colour: bool = False, width: int = WIDTH_OF_A_PIPE
) -> Iterator[str]:
    """One event has a line for each fact; of several each record has one line."""
    is_alone = len(tried) == 1
    for each in tried:
        where = "" if is_alone else f"line {each.event.line}: "
        yield painted(f"{where}{_head(each)}", f"{BOLD};{_COLOURS[each.result]}", colour)
        hints = [line for hint in each.hints for line in wrapped(printable(hint), "  -> ", "     ", width)]
        if each.result is Result.TAKEN:
            yield from _places(each, is_alone, width)
            yield from _too_old(each, width)
            yield from hints
        else:
            yield from _refusal(each, dead_letter_topic, width)
            yield from hints
            yield from _places(each, is_alone, width)
    if not is_alone:
        yield ""
        yield _sum(tried)


def _head(tried: Tried) -> str:
    routes = counted(len(tried.places), "route")
    if tried.result is Result.TAKEN:
        return f"taken by {routes}"
    if tried.result is Result.UNMATCHED:
        return "no route takes it: it would be finished, and counted"
    if tried.result is Result.TOO_OLD:
        return "too old for every route that takes it: it would be finished, and counted"
    return f"dead letter: {tried.reason}" + (f" (and taken by {routes})" if tried.places else "")


def _refusal(tried: Tried, dead_letter_topic: str, width: int) -> Iterator[str]:
    if tried.reason is not None:
        yield from _row("detail", tried.detail, width)
        yield from (f"  {'':<{_COLUMN}}{line}" for line in _excerpt(tried))
        where = f"the topic {dead_letter_topic}" if dead_letter_topic else "nsqd again: nsq.dead_letter_topic is empty"
        yield from _row("goes to", where, width)
    for unmet in tried.unmet:
        yield from _row("route", f"{unmet.route}: {_why(unmet)}", width)
    yield from _too_old(tried, width)


def _too_old(tried: Tried, width: int) -> Iterator[str]:
    for route in tried.too_old:
        yield from _row("route", f"{route}: not filed, for the event is older than its max_event_age", width)


def _places(tried: Tried, is_alone: bool, width: int) -> Iterator[str]:
    for number, place in enumerate(tried.places):
        if not is_alone:
            yield from _row("route", f"{place.route}: {_in_short(place)}", width)
            continue
        if number or tried.reason is not None:
            yield ""
        for name, text in _rows(place):
            yield from _row(name, text, width)


def _in_short(place: Place) -> str:
    """Without what the route leaves to its default."""
    own = (place.key is None, place.timestamp_ms is None)
    left_out = {name for name, is_own in zip(("key", "time"), own, strict=True) if is_own} | {"route"}
    if place.policy == "default":
        left_out.add("policy")
    return ", ".join(f"{name} {text}" for name, text in _rows(place) if name not in left_out)


def _row(name: str, text: str, width: int) -> list[str]:
    return wrapped(printable(text), f"  {printable(name):<{_COLUMN}}", " " * (_COLUMN + 2), width)


def _rows(place: Place) -> Iterator[tuple[str, str]]:
    yield "route", place.route
    yield "timeline", place.timeline
    yield "key", place.key if place.key is not None else "the message's own"
    yield "time", rfc3339(place.timestamp_ms) if place.timestamp_ms is not None else "the message's own"
    if place.group_field:
        missing = f': it has no text, number, true or false in "{place.group_field}"' if place.group is None else ""
        yield "group", _value(place.group) + missing
    if place.dropped:
        yield "drops", ", ".join(place.dropped)
    if place.is_urgent:
        yield "urgent", "due at once, whatever its policy"
    if place.is_end:
        yield "cancels", "takes out the record of its key that waits; both go, unless a digest showed one"
    yield "policy", place.policy
    if place.zone:
        yield "zone", place.zone
    yield "sink", place.sink
    if place.target:
        yield "target", place.target
    elif place.no_target:
        yield "target", f"none; {place.no_target}"


def _why(unmet: Unmet) -> str:
    is_there = unmet.found is not msgspec.UNSET
    found = f"is {_value(unmet.found)}" if is_there else "is not there"
    return f"{unmet.field} {found}; it takes {Condition.of(unmet.wanted).described(_value)}"


def _value(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _excerpt(tried: Tried) -> Iterator[str]:
    """The body around the byte that the detail names, and a mark below it."""
    found = _BYTE.search(tried.detail)
    if found is None:
        return
    place = min(int(found.group(1) or found.group(2)), len(tried.event.body))
    start = max(0, place - _EXCERPT_BEFORE)
    more = "…" if start else ""
    before, behind = (
        printable(part.decode("utf-8", "backslashreplace"))
        for part in (tried.event.body[start:place], tried.event.body[place : place + _EXCERPT_BEHIND])
    )
    yield f"{more}{before}{behind}"
    yield " " * len(more + before) + "^"


def _sum(tried: Sequence[Tried]) -> str:
    counts = {result: sum(each.result is result for each in tried) for result in Result}
    parts = [f"{counts[Result.TAKEN]:,} taken"]
    if count := counts[Result.DEAD_LETTER]:
        parts.append(counted(count, "dead letter"))
    if count := counts[Result.UNMATCHED]:
        parts.append(f"{count:,} that no route takes")
    if count := counts[Result.TOO_OLD]:
        parts.append(f"{count:,} too old")
    return f"{counted(len(tried), 'event')}: {', '.join(parts)}"
