"""Takes fields out of an event's JSON (pure): what a route drops is stored nowhere.

Invariants:
- What is left is as it came, byte for byte: numbers, escapes, order, blanks. With a field go the comma and the blanks
  that separate it from its neighbours.
- A field goes wherever its object has it: under a duplicate name, or a name that is written with escapes. A path goes
  through lists: "users.email" is the "email" of each object in the list "users".
- Events come from anybody, so the work is linear in the size of a body. Python code runs for objects and lists on the
  way of a path, and for containers beside it. All else is passed over by regular expressions and the JSON scanner.

The body was decoded before, so it is one JSON object, and no deeper than limits.depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

Path = tuple[str, ...]
Remove = Callable[[bytes], bytes]
_Cuts = list[tuple[int, int]]

_TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_SCALAR = rf'(?:{_TEXT}|[^\s"{{}}\[\],]++)'
_AFTER = re.compile(r"\s*+([,}\]])")
_PLAIN = rf'(?:[^"{{}}\[\]]++|{_TEXT})'


def _nested(opening: str, closing: str, levels: int) -> str:
    """A container of so many levels at most. A regular expression cannot count them."""
    inner = "(?!)"
    for _ in range(levels):
        inner = rf"{opening}(?:{_PLAIN}|{inner})*+{closing}"
    return inner


_CONTAINER = _nested(r"[\[{]", r"[\]}]", levels=3)
_SHALLOW = rf"(?:{_SCALAR}|{_CONTAINER})"
_end_of_value = json.JSONDecoder().raw_decode


class _Level(NamedTuple):
    """The members of an object on the way of a path: those that stay, and those that go."""

    below: dict[str, _Level]
    going: frozenset[str]
    members: re.Pattern[str]
    """Members that stay; members that go; one of any kind. All have a comma behind them but the last. If the value of
    the last is a container that is not shallow, or on the way of a path, the match ends before it."""
    elements: re.Pattern[str]
    """Elements of a list that hold none of these members, each with its comma, and a scalar that may follow."""


def remover(paths: Sequence[Path]) -> Remove:
    level = _level_of(frozenset(paths))
    # Most events that have none of the fields are known by that; a name with an escape is looked at closely.
    names = [_written(path[-1]).encode() for path in paths]

    def remove(body: bytes) -> bytes:
        if b"\\" not in body and not any(name in body for name in names):
            return body
        text = body.decode()
        cuts: _Cuts = []
        _look_through_object(text, text.index("{"), level, cuts)
        if not cuts:
            return body
        pieces, at = [], 0
        for start, end in cuts:
            pieces.append(text[at:start])
            at = end
        return "".join([*pieces, text[at:]]).encode()

    return remove


def _level_of(paths: Iterable[Path]) -> _Level:
    going = frozenset(path[0] for path in paths if len(path) == 1)
    longer: dict[str, set[Path]] = {}
    for name, *rest in paths:
        if rest and name not in going:  # what is dropped whole needs no look within
            longer.setdefault(name, set()).add(tuple(rest))

    def one_of(names: Iterable[str]) -> str:
        return "|".join(re.escape(_written(name)) for name in sorted(names)) or "(?!)"

    staying = rf'(?!{one_of([*going, *longer])})"[^"\\]*+"'
    value = rf"\s*+:\s*+{_SHALLOW}\s*+,"
    lists = _nested(r"\[", r"\]", levels=3)
    plain_object = rf'\{{(?:[^"{{}}\[\]]++|{staying})*+\}}'
    return _Level(
        {name: _level_of(rest) for name, rest in longer.items()},
        going,
        re.compile(
            rf"(?:\s*+{staying}{value})*+()(?:\s*+(?:{one_of(going)}){value})*+()"
            rf"(?:\s*+({_TEXT})\s*+:\s*+(?:{_SCALAR}\s*+([,}}]))?+)?+",
            re.DOTALL,
        ),
        re.compile(rf"(?:\s*+(?:{_SCALAR}|{lists}|{plain_object})\s*+,)*+\s*+({_SCALAR})?+", re.DOTALL),
    )


def _written(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _look_through(text: str, at: int, level: _Level, cuts: _Cuts) -> int:
    """A container that begins here. Return where it ends."""
    if text[at] == "{":
        return _look_through_object(text, at, level, cuts)
    at += 1
    while True:
        element = level.elements.match(text, at)
        assert element
        end = element.end()
        if element[1] is None and text[end] in "{[":
            end = _look_through(text, end, level, cuts)
        after = _AFTER.match(text, end)
        assert after
        at = after.end()
        if after[1] == "]":
            return at


def _look_through_object(text: str, at: int, level: _Level, cuts: _Cuts) -> int:
    """An object that begins here. Return where it ends. A member begins behind "{" or a comma and ends before the next
    comma or "}"."""
    is_any_left = False
    at += 1
    while True:
        members = level.members.match(text, at)
        assert members
        stayed, gone = members.start(1), members.start(2)
        is_any_left |= stayed > at
        if gone > stayed:
            cuts.append((stayed - is_any_left, gone - is_any_left))
        name, following = members.group(3, 4)
        at, end = gone, members.end()
        if name is None:  # there is none, or the last comma was passed
            return text.index("}", at) + 1
        name = str(json.loads(name)) if "\\" in name else name[1:-1]
        if following is None:
            below = level.below.get(name)
            end = _end_of_value(text, end)[1] if below is None else _look_through(text, end, below, cuts)
            after = _AFTER.match(text, end)
            assert after
            following, end = after[1], after.end()
        if name in level.going:
            cuts.append((at - is_any_left, end - (is_any_left or following == "}")))
        else:
            is_any_left = True
        at = end
        if following == "}":
            return end
