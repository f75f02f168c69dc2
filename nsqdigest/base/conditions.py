"""What a field of an event has to be: the conditions of `match` and `urgent` (pure).

A condition is written as a value, or as a list of values any of which will do:

    "error"  5  true       the field is this; numbers compare as numbers, and no text is a number
    ">= 3"  "> 3"  "<= 3"  "< 3"  ">= 400 and < 500"
                           the field is a number in this range
    "api.*"                the field is a text that begins with "api."; "*": any text, number, true or false
    "!= x"                 the field is anything else; in a list: none of them
    "= x"                  the field is the text behind it, whatever that begins or ends with

Invariants:
- A field that is not there, or is null, an object or a list, meets no condition but those with "!=", and each of those.
- Behind "!=" a number, true or false stands for itself and for its text: 5 and "5". Text in double quotes is a text.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Value = str | int | bool | float
Holds = Callable[[Any], bool]

_OPERATOR = re.compile(r"(!=|>=|<=|=|>|<) ?(.*)", re.DOTALL)
_SLIPS = (
    (re.compile(r"=~ *(.*)|!~ *(.*)", re.DOTALL), "is a pattern, and patterns are not looked for"),
    (re.compile(r"== *(.*)", re.DOTALL), 'begins with "=="'),
    (re.compile(r"=[<>] *(.*)", re.DOTALL), "has its two characters the wrong way round"),
    (re.compile(r"<> *(.*)", re.DOTALL), 'begins with "<>"'),
)
_NUMBER = re.compile(r"-?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge, ">": operator.gt, "<=": operator.le, "<": operator.lt,
}  # fmt: skip
_RANGE_WORDS = {">=": "from {} up", ">": "above {}", "<=": "up to {}", "<": "below {}"}


class ConditionError(ValueError):
    """A value that is no condition. The message tells the problem, `remedy` what to write instead."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


class _Bound(NamedTuple):
    sign: str
    number: int | float


class _Part(NamedTuple):
    """One of the values. Exactly one of the three means something; the others are None."""

    equal: Value | None = None
    prefix: str | None = None
    bounds: tuple[_Bound, ...] | None = None


class Condition(NamedTuple):
    parts: tuple[_Part, ...]
    is_negated: bool
    """None of the parts must hold; otherwise one of them must."""

    @classmethod
    def of(cls, values: Sequence[Value]) -> Condition:
        """Raises ConditionError."""
        read = [_read(value) for value in values]
        if len({is_negated for _, is_negated in read}) > 1:
            remedy = 'write "!=" before each of them, or before none'
            raise ConditionError('has values with "!=" and others, and no list can mean both', remedy)
        return cls(tuple(part for part, _ in read), read[0][1])

    @property
    def only_text(self) -> str | None:
        """The text that the field has to be, where it is one: that can be compared without a call."""
        part = self.parts[0]
        return part.equal if len(self.parts) == 1 and not self.is_negated and isinstance(part.equal, str) else None

    def test(self) -> Holds:
        """The quickest function that tells whether a decoded value meets the condition."""
        return _none_of(self.parts) if self.is_negated else _any_of(self.parts)

    def described(self, show: Callable[[Value], str]) -> str:
        """`"error" or "fatal"`, `a number from 3 up`, `anything but "x"`."""
        *others, last = dict.fromkeys(_described(part, show) for part in self.parts)
        return "anything but " * self.is_negated + (f"{', '.join(others)} or {last}" if others else last)

    @property
    def sample(self) -> Value | None:
        """A value that meets it; None: a field that is not there does."""
        if self.is_negated:
            return None
        part = self.parts[0]
        if part.bounds is not None:
            sign, number = part.bounds[0]
            return number + {">": 1, "<": -1}.get(sign, 0)
        return f"{part.prefix}1" if part.prefix is not None else part.equal


# -- reading


def _read(value: Value) -> tuple[_Part, bool]:
    """The part, and whether it is negated."""
    if not isinstance(value, str):
        return _Part(equal=value), False
    for slip, problem in _SLIPS:
        if found := slip.fullmatch(value):
            raise ConditionError(problem, _remedy_of_slip(value, next(filter(None, found.groups()), "")))
    found = _OPERATOR.fullmatch(value)
    if found is None:
        return _text_or_prefix(value), False
    sign, operand = found.groups()
    if sign == "=":
        return _Part(equal=operand), False
    if sign == "!=":
        return _operand_of_not(operand), True
    return _Part(bounds=_bounds(value)), False


def _remedy_of_slip(value: str, operand: str) -> str:
    if value.startswith("<>"):
        return f"write {_quoted(f'!= {operand}')}"
    if value.startswith(("=<", "=>")):
        return f"write {_quoted(f'{value[1]}= {operand}')}"
    if value.startswith("=="):
        return f"write {_quoted(operand)}"
    return 'list the values, or write how they begin: "err*"'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _text_or_prefix(text: str) -> _Part:
    return _Part(prefix=text[:-1]) if text.endswith("*") else _Part(equal=text)


def _operand_of_not(text: str) -> _Part:
    if text == "null":
        raise ConditionError("is no value of a field", 'write "*": any text, number, true or false')
    if not text:
        raise ConditionError("has nothing behind it", 'write the value, "!= x", or \'!= ""\' for the empty text')
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _Part(equal=text[1:-1])
    if _NUMBER.fullmatch(text):
        return _Part(equal=_number(text))
    if text in ("true", "false"):
        return _Part(equal=text == "true")
    return _text_or_prefix(text)


def _bounds(text: str) -> tuple[_Bound, ...]:
    bounds = []
    for each in text.split(" and "):
        found = _OPERATOR.fullmatch(each.strip())
        sign, operand = found.groups() if found else ("", each)
        if sign not in _COMPARISONS or not _NUMBER.fullmatch(operand.strip()):
            remedy = f'write one like ">= 3" or ">= 400 and < 500"; for this very text {_quoted(f"= {text}")}'
            raise ConditionError("compares with what is no number", remedy)
        bounds.append(_Bound(sign, _number(operand.strip())))
    low, high = ([bound.number for bound in bounds if bound.sign[0] == sign] for sign in "><")
    if low and high and max(low) > min(high):
        raise ConditionError("is a range in which there is no number", 'write one like ">= 400 and < 500"')
    return tuple(bounds)


def _number(text: str) -> int | float:
    number: int | float = int(text) if re.fullmatch(r"-?[0-9]+", text) else float(text)
    if not math.isfinite(number):
        raise ConditionError("has a number that is too large", "write a smaller one")
    return number


# -- comparing


def _any_of(parts: Sequence[_Part]) -> Holds:
    if all(isinstance(part.equal, str) for part in parts):
        texts = frozenset(part.equal for part in parts)
        return lambda value: value.__class__ is str and value in texts
    if all(part.equal is not None for part in parts):
        return _equality(frozenset(_comparable(part.equal) for part in parts))
    if len(parts) == 1 and (bounds := parts[0].bounds) is not None and len(bounds) == 1:
        compare, limit = _COMPARISONS[bounds[0].sign], bounds[0].number
        return lambda value: (value.__class__ is int or value.__class__ is float) and compare(value, limit)
    if all(part.prefix for part in parts):
        prefixes = tuple(part.prefix for part in parts if part.prefix)
        return lambda value: value.__class__ is str and value.startswith(prefixes)
    tests = [_test_of(part) for part in parts]
    return lambda value: any(holds(value) for holds in tests)


def _none_of(parts: Sequence[_Part]) -> Holds:
    no_texts = [part.equal for part in parts if part.equal is not None and not isinstance(part.equal, str)]
    holds = _any_of([*parts, *(_Part(equal=json.dumps(value)) for value in no_texts)])
    return lambda value: not holds(value)


def _test_of(part: _Part) -> Holds:
    if part.equal is not None:
        return _equality(frozenset([_comparable(part.equal)]))
    if part.prefix is not None:
        prefix, kinds = part.prefix, (str,) if part.prefix else (str, int, float, bool)
        return lambda value: value.__class__ in kinds and (value.__class__ is not str or value.startswith(prefix))
    bounds = [(_COMPARISONS[sign], number) for sign, number in part.bounds or ()]
    return lambda value: value.__class__ in (int, float) and all(compare(value, limit) for compare, limit in bounds)


def _equality(wanted: frozenset[tuple[type, Any]]) -> Holds:
    return lambda value: value.__class__ in (str, int, bool, float) and _comparable(value) in wanted


def _comparable(value: Any) -> tuple[type, Any]:
    """Numbers compare as numbers, and true is not 1."""
    return (float if value.__class__ is int else value.__class__), value


# -- for people


def _described(part: _Part, show: Callable[[Value], str]) -> str:
    if part.bounds is not None:
        return "a number " + " and ".join(_RANGE_WORDS[sign].format(show(number)) for sign, number in part.bounds)
    if part.prefix is not None:
        return f"a text that begins with {show(part.prefix)}" if part.prefix else "any text, number, true or false"
    assert part.equal is not None
    return show(part.equal)
