"""An event's JSON as values, and back, with numbers as they were written (pure).

Of duplicate keys the last counts, as everywhere where fields are named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

_MOST_DIGITS = 1_000


class Number(float):
    """A fraction, a power of ten or an integer of very many digits, which knows its text: `1.50` stays that, `1e999` is
    no infinity."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        number = super().__new__(cls, text)
        number.text = text
        return number


class Event(dict[str, Any]):
    """An object of an event: the event itself, or one within it."""

    __slots__ = ()


class AnyField(str):
    """In place of a field that only the events of real digests have, while a template is checked: whatever is done with
    it succeeds."""

    __slots__ = ()

    def __call__(self, *_: object, **__: object) -> AnyField:
        return self

    def __iter__(self) -> Iterator[str]:
        return iter([AnyField(self)])

    def __radd__(self, other: object) -> AnyField:
        return self

    def __abs__(self) -> AnyField:
        return self

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __gt__(self, other: object) -> bool:
        return str(self) > str(other)

    def __le__(self, other: object) -> bool:
        return str(self) <= str(other)

    def __ge__(self, other: object) -> bool:
        return str(self) >= str(other)


class Written:
    """What a template reads like an object, and what knows its own JSON."""

    __slots__ = ()
    fields: tuple[str, ...] = ()

    def as_json(self) -> bytes:
        raise NotImplementedError


def parse(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_float=Number, object_pairs_hook=Event)
    except ValueError:  # an integer of more digits than Python converts
        return json.loads(raw, parse_float=Number, parse_int=_whole, object_pairs_hook=Event)


def _whole(text: str) -> int | Number:
    return int(text) if len(text) <= _MOST_DIGITS else Number(text)


def encode(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=_foreign).decode()


def _foreign(value: Any) -> Any:
    if isinstance(value, Number):
        return msgspec.Raw(value.text.encode())
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Written):
        return msgspec.Raw(value.as_json())
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
