"""Checks a message's raw body (pure): any receiver must be able to parse it, and no parser may choke on it.

Invariants:
- Bodies come from anybody, so the work is linear in their size, whatever they hold: a bounded number of passes in C.
- Most bodies need none of it: `decoding.suspicions` says which do.
"""

from __future__ import annotations

import json
from itertools import accumulate
from math import inf
from operator import add
from typing import Any

import msgspec

from nsqdigest.base.reasons import DeadLetterReason

NESTED_OR_NOT_ASCII, NUMBERS = 1, 2
EVERYTHING = NESTED_OR_NOT_ASCII | NUMBERS
"""What a body may be suspected of, as bits: `check` runs for every event, and a set of words would cost it more."""

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
_BRACKETS_AS_BITS = bytes.maketrans(b"[]{}", b"1010")
_ALL_BUT_BRACKETS_AND_QUOTES = bytes(set(range(256)) - set(b'[]{}"'))
OPEN_BRACKET = b"["[0]
_LONG_BODY_BYTES = 1024
"""From here on finding a few brackets takes a tenth of the time of counting them: 30 µs in 64 KiB."""
_SMALLEST_LEVEL_BYTES = len('{"":}')

_DIGITS_OF_A_DOUBLE = 309
"""An integer of fewer is within its range."""
_validate = msgspec.json.Decoder(msgspec.defstruct("Anything", [])).decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Rejected(Exception):
    """This message can never become a record, however often it is tried."""

    def __init__(self, reason: DeadLetterReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def harmless_bytes(depth: int) -> int:
    """A body up to this size without a suspicion passes `check`, whatever is in it."""
    return _SMALLEST_LEVEL_BYTES * depth


def check(body: bytes, event_bytes: int, depth: int, suspected: int) -> None:
    """Raises Rejected for a body that the decoder would accept, or choke on, and that no receiver should get."""
    if len(body) > event_bytes:
        raise too_large(len(body), event_bytes)
    if suspected & NESTED_OR_NOT_ASCII and not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            raise Rejected(DeadLetterReason.NOT_UTF8, f"byte {error.start} of the body is not UTF-8") from None
    # Without arrays, a body so short has no room for more levels.
    if (OPEN_BRACKET in body or len(body) > harmless_bytes(depth)) and is_deeper_than(body, depth):
        raise Rejected(DeadLetterReason.TOO_DEEP, f"nested deeper than {depth}, which is what limits.depth allows")


def too_large(size_bytes: int, event_bytes: int) -> Rejected:
    return Rejected(DeadLetterReason.TOO_LARGE, f"the body has {size_bytes} bytes; limits.event allows {event_bytes}")


def is_deeper_than(body: bytes, depth: int) -> bool:
    """Whether brackets nest deeper, those in strings left out, the outermost counting as 1. (Unreliable for a body that
    is not JSON.)"""
    if not _opens_more_often(body, depth):
        return False
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes side by side, of one string or of two, change nothing for the brackets behind them.
    skeleton = body.translate(_BRACKETS_AS_BITS, _ALL_BUT_BRACKETS_AND_QUOTES).replace(b'""', b"")
    bits = b"".join(skeleton.split(b'"')[::2])
    bits += b"0" * (-len(bits) % 8)
    eights = int(bits or b"0", 2).to_bytes(len(bits) // 8, "big")
    before = accumulate(map(_RISE.__getitem__, eights), initial=0)
    return max(map(add, before, map(_PEAK.__getitem__, eights)), default=0) > depth


def _opens_more_often(body: bytes, times: int) -> bool:
    if len(body) < _LONG_BODY_BYTES:
        return body.count(b"{") + body.count(b"[") > times
    for bracket in (b"{", b"["):
        at = body.find(bracket)
        while at >= 0:
            if not times:
                return True
            times -= 1
            at = body.find(bracket, at + 1)
    return False


def _walk(eight: int) -> list[int]:
    """The levels after each of eight brackets, from the highest bit on; 1 opens, 0 closes."""
    return list(accumulate(1 if eight >> bit & 1 else -1 for bit in range(7, -1, -1)))


_RISE = [_walk(eight)[-1] for eight in range(256)]
_PEAK = [max(_walk(eight)) for eight in range(256)]


def decode_numbers(body: bytes) -> Any:
    """Decode an event that is suspected of NUMBERS. Raises Rejected for a number that a double cannot hold: some
    parsers make infinity of it, most refuse it and with it the whole digest.

    Python reads numbers near the ends of the range in 0.2 µs. The decoder of other events needs 10 µs for some of them:
    100 ms for a body of 64 KiB.
    """
    try:
        _validate(body)
    except msgspec.ValidationError:
        raise no_object() from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise not_json(body, error) from None
    text = str(body, "utf-8")
    if not _all_fit(text):
        raise Rejected(DeadLetterReason.BAD_FIELD, f"Number out of range{_place(body)}")
    return json.loads(text)


def _all_fit(text: str) -> bool:
    floats: list[str] = []
    integers: list[str] = []
    json.loads(text, parse_float=floats.append, parse_int=integers.append)
    if max(map(len, integers), default=0) >= _DIGITS_OF_A_DOUBLE:
        floats += [number for number in integers if len(number) >= _DIGITS_OF_A_DOUBLE]
    return inf not in map(abs, map(float, floats))


def _place(body: bytes) -> str:
    """Name the field that has a number out of range. (None if a later field of the same name took its place.)"""
    for name, value in _decode_fields(body).items():
        text = str(bytes(value), "utf-8")
        if not _all_fit(text):
            return f" - {'within' if text[0] in '[{' else 'at'} `$.{name[:_LONGEST_NAME]}`"
    return ""


def no_object() -> Rejected:
    return Rejected(DeadLetterReason.NOT_AN_OBJECT, "the body is JSON, but not an object")


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
