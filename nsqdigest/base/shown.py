"""Text of others for people and scripts (pure): what a publisher, a receiver or a server sent is data, never a command
to the terminal that shows it.

Invariants:
- `printable` returns one line without control characters, terminal escapes, marks that reorder text or other characters
  that cannot be seen.
- `as_json` returns one line of ASCII, from which a parser reads the very values.
- `safe_json` escapes in JSON text what a terminal obeys or what reorders text; a parser reads the same values from it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls, separators of lines, marks that reorder text, and halves of characters."""
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u2d7f\u3164\ufe00-\ufe0f\uffa0"
    "\U0001107f\U00011a47\U00011a99\U00016fe4\U0001d159\U000e0100-\U000e01ef]"
)
"""Letters, marks and symbols without a shape of their own: fillers, joiners, variation selectors, blanks. All other
characters that cannot be seen have categories that `str.isprintable` knows."""


def printable(text: str, most: int = 0) -> str:
    """`most`: characters; 0: all of them."""
    if not text.isprintable() or (not text.isascii() and _UNSEEN.search(text)):
        text = "".join(map(_visible, text))
    return f"{text[: most - 1]}…" if 0 < most < len(text) else text


def _visible(character: str) -> str:
    if character.isprintable() and not _UNSEEN.match(character):
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def as_json(value: Any) -> str:
    return _NOT_PLAIN.sub(_escaped, msgspec.json.encode(value).decode())


def safe_json(text: str) -> str:
    """`text`: JSON on one line, without blanks other than spaces."""
    return _UNSAFE.sub(_escaped, text)


def raw_json(text: bytes) -> msgspec.Raw | str:
    """JSON that stands in Redis, to be encoded as it is: numbers, duplicate keys and escapes as written. Text that is
    no JSON becomes a string."""
    try:
        return msgspec.Raw(msgspec.json.format(text.decode(), indent=-1).encode())
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text.decode("utf-8", "backslashreplace")


def _escaped(match: re.Match[str]) -> str:
    """Outside of strings JSON is ASCII. Beyond U+FFFF it takes two escapes."""
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place] << 8 | units[place + 1]:04x}" for place in range(0, len(units), 2))
