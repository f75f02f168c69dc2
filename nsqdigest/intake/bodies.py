"""Checks a message's raw body (pure): any receiver must be able to parse it, and no parser may choke on it.

All work is done by methods of `bytes`, in a bounded number of passes: bodies come from anybody, and this runs for every
message.
"""

from __future__ import annotations

import json

from nsqdigest.base.reasons import DeadLetterReason

LONGEST_NUMBER = 4300
"""Digits; many JSON parsers (Python's among them) refuse a number beyond, and with it the whole digest."""

NAMES_SHOWN = 20
_LONGEST_NAME = 40

TYPE_NAMES = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "an array",
}
"""Of decoded values, for people."""

_LONE_SURROGATE = "an escape such as \\ud800 stands without its second half, which not every receiver can parse"
_BRACKETS_AS_BRACES = bytes.maketrans(b"[]", b"{}")
_ALL_BUT_BRACKETS_AND_QUOTES = bytes(set(range(256)) - set(b'[]{}"'))
_DIGITS_AS_NINES = bytes.maketrans(b"012345678", b"999999999")
_TOO_MANY_NINES = b"9" * (LONGEST_NUMBER + 1)
OPEN_BRACKET = b"["[0]
_SMALLEST_LEVEL_BYTES = len('{"":}')


class Rejected(Exception):
    """This message can never become a record, however often it is tried."""

    def __init__(self, reason: DeadLetterReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def harmless_bytes(depth: int) -> int:
    """A body up to this size that is ASCII and has no "[" passes `check`, whatever is in it."""
    return min(_SMALLEST_LEVEL_BYTES * depth, LONGEST_NUMBER)


def check(body: bytes, event_bytes: int, depth: int) -> None:
    """Raises Rejected for a body that the decoder would accept, or choke on, and that no receiver should get."""
    if len(body) > event_bytes:
        raise too_large(len(body), event_bytes)
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise Rejected(DeadLetterReason.NOT_UTF8, f"byte {error.start} of the body is not UTF-8") from None
    # Without arrays, a body so short has no room for more levels.
    if (OPEN_BRACKET in body or len(body) > _SMALLEST_LEVEL_BYTES * depth) and is_deeper_than(body, depth):
        raise Rejected(DeadLetterReason.TOO_DEEP, f"nested deeper than {depth}, which is what limits.depth allows")
    if len(body) > LONGEST_NUMBER and _has_too_long_number(body):
        raise Rejected(DeadLetterReason.NOT_JSON, f"a number of more than {LONGEST_NUMBER} digits")


def too_large(size_bytes: int, event_bytes: int) -> Rejected:
    return Rejected(DeadLetterReason.TOO_LARGE, f"the body has {size_bytes} bytes; limits.event allows {event_bytes}")


def is_deeper_than(body: bytes, depth: int) -> bool:
    """Whether brackets nest deeper, those in strings left out, the outermost counting as 1. (Unreliable for a body that
    is not JSON.)"""
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
    # A bracket that is left is below the given depth, or never closes: then the body is no JSON.
    return b"{}" in braces or braces.count(b"{") > depth


def _has_too_long_number(body: bytes) -> bool:
    return _TOO_MANY_NINES in body.translate(_DIGITS_AS_NINES) and not _is_json_to_the_lenient(body)


def not_json(body: bytes, error: Exception) -> Rejected:
    """For a body that the strict decoder refused. Where a lenient decoder accepts it, half of a surrogate pair is the
    reason."""
    detail = _LONE_SURROGATE if _is_json_to_the_lenient(body) else str(error)
    return Rejected(DeadLetterReason.NOT_JSON, detail)


def _is_json_to_the_lenient(body: bytes) -> bool:
    try:
        # As text: from bytes it would guess the encoding and skip a byte order mark.
        json.loads(str(body, "utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def field_names(body: bytes) -> list[str]:
    """The first fields of an event that was checked. Names may be logged, values may not."""
    return [name[:_LONGEST_NAME] for name in list(json.loads(body))[:NAMES_SHOWN]]
