"""What to look at where an event has no place (pure): habits of publishers, and fields that are named otherwise.

A hint never decides anything; the reason and the detail of a dead letter are the daemon's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.base.templates import Template, check_path
from nsqdigest.base.words import nearest
from nsqdigest.intake.bodies import field_names

if TYPE_CHECKING:
    from nsqdigest.config import Route

_FIELDS_LOOKED_AT = 200
_LIKENESS = 0.7
"""Names of fields are short, and any two of them a little alike: "kind" is no "id"."""
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_FORM = re.compile(rb"[\w.%+-]+=[^\s=]*(?:&[\w.%+-]+=[^\s=]*)*\s*")

_OF_ENCODING = (
    (re.compile(rb"\x1f\x8b"), "this is gzip: publish it as it was before it was compressed"),
    (re.compile(rb"\xff\xfe|\xfe\xff"), "this is UTF-16: publish UTF-8"),
    (re.compile(rb"\s*[\[{]"), "publish UTF-8; it may be Latin-1 (in Python: text.encode())"),
    (re.compile(rb""), "an event is a JSON object in UTF-8"),
)
_OF_JSON = (
    (re.compile(rb"\s*\Z"), "this is blank"),
    (re.compile(rb"\xef\xbb\xbf"), "it begins with a byte order mark (EF BB BF): publish it without"),
    (re.compile(rb"\s*<"), 'this is XML or HTML; an event is a JSON object, {"user": "ada"}'),
    (re.compile(rb"\s*\{\s*'"), "JSON has double quotes; in Python, json.dumps(event) writes it"),
    (re.compile(rb"\s*\{\s*(?:\xe2\x80[\x98-\x9f])"), "these are curly quotes: write straight ones"),
    (re.compile(rb"\s*\{\s*[A-Za-z_]"), "the names of fields stand in double quotes"),
    (re.compile(rb"\s*\{.*[:\[,]\s*-?(?:NaN|nan|Infinity|inf)\b", re.DOTALL), "JSON has no NaN and no Infinity"),
    (re.compile(rb"\s*\{.*[:\[,]\s*(?:True|False|None|undefined)\b", re.DOTALL), "JSON writes true, false and null"),
    (re.compile(rb"\s*\{.*//|\s*\{.*/\*", re.DOTALL), "JSON has no comments"),
)  # fmt: skip
_OF_DETAIL = (
    ("truncated", "its end is missing: something cut it off"),
    ("trailing comma", "leave out the comma before the bracket that closes"),
    ("trailing characters", "a message holds one event; publish each as a message of its own"),
    ("invalid escape", r"within text a \ is written \\"),
    ("is not between the years", "publish seconds or milliseconds since 1970, no microseconds"),
    ("out of range", "a double cannot hold this number; publish it as text"),
)
_ELSE = 'an event is a JSON object, {"user": "ada"}'


def paths_of(route: Route) -> Iterator[tuple[str, ...]]:
    """All that a route cannot do without in an event."""
    for template in filter(None, (route.timeline, route.key)):
        yield from Template.parse(template).paths
    if route.timestamp:
        yield check_path(route.timestamp)


def of_dead_letter(body: bytes, reason: DeadLetterReason, detail: str, fields: Iterable[str]) -> Sequence[str]:
    """`fields`: the paths that the routes of the topic look up."""
    match reason:
        case DeadLetterReason.NOT_UTF8:
            return (_first(_OF_ENCODING, body),)
        case DeadLetterReason.NOT_JSON:
            return (_of_json(body, detail),)
        case DeadLetterReason.NOT_AN_OBJECT:
            is_array = body.lstrip().startswith(b"[")
            return ("publish each element of the array as a message of its own" if is_array else _ELSE,)
        case DeadLetterReason.TOO_LARGE:
            return ("publish less of it, or raise limits.event (1MiB at most)",)
        case (
            DeadLetterReason.MISSING_FIELD
            | DeadLetterReason.BAD_TIMESTAMP
            | DeadLetterReason.BAD_FIELD
            | DeadLetterReason.NO_TARGET
        ):
            for text, hint in _OF_DETAIL:
                if text in detail.lower():
                    return (hint,)
            return of_missing(body, [name for name in fields if f'"{name}"' in detail])
        case _:
            return ()


def _first(habits: Iterable[tuple[re.Pattern[bytes], str]], body: bytes) -> str:
    return next((hint for pattern, hint in habits if pattern.match(body)), _ELSE)


def _of_json(body: bytes, detail: str) -> str:
    if "digits" in detail or "escape such as" in detail:
        return "publish it as text" if "digits" in detail else "publish the whole character"
    if _FORM.fullmatch(body):
        return 'this is a form; an event is a JSON object, {"user": "ada"}'
    if (hint := _first(_OF_JSON, body)) is not _ELSE:
        return hint
    return next((hint for text, hint in _OF_DETAIL if text in detail), _ELSE)


def of_missing(body: bytes, fields: Iterable[str], *, name_all: bool = True) -> Sequence[str]:
    """For the fields that this event, a JSON object, does not have: the ones that may be meant. `name_all`: where none
    may be, the fields that it has."""
    there = list(_paths(json.loads(body)))
    missing = [name for name in dict.fromkeys(fields) if name not in there]
    guesses = [(name, _meant(name, there)) for name in missing]
    found = [f'it has no "{name}"; did you mean "{guess}"?' for name, guess in guesses if guess]
    if found or not missing or not name_all:
        return found
    return [f"it has {_listed(field_names(body))}"]


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "no fields"
    return f"the field{'' if len(names) == 1 else 's'} {', '.join(names)}"


def _meant(name: str, there: Sequence[str]) -> str:
    """One that is spelt alike in the same object, else the same name elsewhere in the event, else any spelt alike."""
    parent, _, last = name.rpartition(".")
    beside = {path.rpartition(".")[2]: path for path in there if path.rpartition(".")[0] == parent}
    if alike := nearest(last, beside, likeness=_LIKENESS):
        return beside[alike]
    others = [path for path in there if path not in beside.values()]
    same = [path for path in others if path.rpartition(".")[2] == last]
    return same[0] if len(same) == 1 else nearest(name, others, likeness=_LIKENESS)


def _paths(event: object) -> Iterator[str]:
    """The paths of an event's fields, outer ones first: so many that a big event costs no more."""
    level: list[tuple[str, object]] = [("", event)]
    found = 0
    for before, each in level:
        for name, inner in each.items() if isinstance(each, dict) else ():
            if found >= _FIELDS_LOOKED_AT:
                return
            path = f"{before}.{name}" if before else name
            level.append((path, inner))
            found += 1
            yield path
