"""Fields of an event that is stored as JSON (pure): read from its bytes, so that a number stays as it was written.

What else stands in the event is not converted: it may hold numbers that only its receiver can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_KINDS = {b"{": "an object", b"[": "an array", b"n": "null"}


class NoText(ValueError):
    """There is no text, number or boolean at that path. The message says what is there instead."""


def _text(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, ValueError):
        raise NoText("is no valid text") from None


def raw_at(value: bytes, path: Sequence[str]) -> Any:
    """The JSON of a field, as bytes or the like. Raises KeyError or DecodeError where it is not there."""
    raw: Any = value
    for name in path:
        raw = _fields_of(raw)[name]
    return raw


def text_at(value: bytes, path: Sequence[str]) -> str:
    """What a template makes of the field, the same as intake: text, or a number or boolean as it was written."""
    try:
        raw = bytes(raw_at(value, path)).strip()
    except (KeyError, msgspec.DecodeError):
        raise NoText("is not there") from None
    if raw[:1] == b'"':
        return _text(raw)
    if (kind := _KINDS.get(raw[:1])) is not None:
        raise NoText(f"is {kind}")
    return "0" if raw == b"-0" else raw.decode()
