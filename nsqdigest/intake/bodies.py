"""Looks at a message's raw body (pure): is it something that any receiver can parse, and no trap for a parser?

All of it is done by the C of `bytes`, in a few passes whose number is bounded: bodies come from anybody, and hot loops
ask.
"""

from __future__ import annotations

import json

from nsqdigest.base.reasons import DeadLetterReason

LONGEST_NUMBER = 4300
"""Digits; many JSON parsers (Python's among them) refuse a number beyond, and with it the whole digest."""

NAMES_SHOWN = 20
_LONGEST_NAME = 40

_HALF_CHARACTER = "an escape such as \\ud800 stands alone: half a character, which not every receiver can parse"
_BRACKETS_AS_BRACES = bytes.maketrans(b"[]", b"{}")
_ALL_BUT_BRACKETS_AND_QUOTES = bytes(set(range(256)) - set(b'[]{}"'))
_DIGITS_AS_NINES = bytes.maketrans(b"012345678", b"999999999")
_TOO_MANY_NINES = b"9" * (LONGEST_NUMBER + 1)
_OPEN_BRACKET = b"["[0]
_SMALLEST_LEVEL_BYTES = len('{"":}')


class Unusable(Exception):
    """This event can never become a record."""

    def __init__(self, reason: DeadLetterReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def check(body: bytes, event_bytes: int, depth: int) -> None:
    """Raises Unusable for what the decoder would take, or would choke on, and a receiver should not get."""
    if len(body) > event_bytes:
        raise too_large(len(body), event_bytes)
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise Unusable(DeadLetterReason.NOT_UTF8, f"byte {error.start} of the body is not UTF-8") from None
    # Without arrays, a body so short has no room for more levels.
    if (_OPEN_BRACKET in body or len(body) > _SMALLEST_LEVEL_BYTES * depth) and is_deeper_than(body, depth):
        raise Unusable(DeadLetterReason.TOO_DEEP, f"nested deeper than {depth}, which is what limits.depth allows")
    if len(body) > LONGEST_NUMBER and _has_too_long_number(body):
        raise Unusable(DeadLetterReason.NOT_JSON, f"a number of more than {LONGEST_NUMBER} digits")


def too_large(size_bytes: int, event_bytes: int) -> Unusable:
    return Unusable(DeadLetterReason.TOO_LARGE, f"the body has {size_bytes} bytes; limits.event allows {event_bytes}")


def is_deeper_than(body: bytes, depth: int) -> bool:
    """Whether brackets nest deeper, strings passed over and the outermost counting as 1. (Of what is not JSON:
    perhaps.)"""
    if body.count(b"{") + body.count(b"[") <= depth:
        return False
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    skeleton = body.translate(_BRACKETS_AS_BRACES, _ALL_BUT_BRACKETS_AND_QUOTES)
    braces = b"".join(skeleton.split(b'"')[::2])
    for _ in range(depth):
        # Each round takes the innermost level away, everywhere.
        shorter = braces.replace(b"{}", b"")
        if len(shorter) == len(braces):
            break
        braces = shorter
    # What is left opens below the given depth; or never closes, and is JSON in no case.
    return b"{}" in braces or braces.count(b"{") > depth


def _has_too_long_number(body: bytes) -> bool:
    return _TOO_MANY_NINES in body.translate(_DIGITS_AS_NINES) and not _is_json_to_the_lenient(body)


def not_json(body: bytes, error: Exception) -> Unusable:
    """The body that a strict decoder refused. What a lenient one takes all the same has half of a surrogate pair."""
    detail = _HALF_CHARACTER if _is_json_to_the_lenient(body) else str(error)
    return Unusable(DeadLetterReason.NOT_JSON, detail)


def _is_json_to_the_lenient(body: bytes) -> bool:
    try:
        # As text: of bytes it would guess the encoding, and pass over a byte order mark.
        json.loads(str(body, "utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def field_names(body: bytes) -> list[str]:
    """The names of the first fields of an event that was checked; none of its values, so that they may be logged."""
    return [name[:_LONGEST_NAME] for name in list(json.loads(body))[:NAMES_SHOWN]]
