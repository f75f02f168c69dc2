"""One line of anything that a publisher sent (pure)."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_AHEAD = 8
"""So many times the limit is looked at: runs of blanks become one."""
_BLANK_OR_UNSEEN = re.compile(
    "[\\s\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]+"
)
"""Blanks, controls, marks that reorder text, and other characters that nobody sees."""
EMPTY = "(empty)"
_END_OF_TIME_S = 253_402_300_800
"""The year 10,000."""
UNKNOWN_TIME = "at an unknown time"


def one_line(text: str, limit: int) -> str:
    """At most `limit` characters, without line breaks and what is not seen; never empty."""
    start = text[: _AHEAD * limit]
    line = _BLANK_OR_UNSEEN.sub(" ", start).strip()
    if len(line) > limit or len(start) < len(text):
        line = line[: limit - 1].rstrip() + "…"
    return line or EMPTY


def utf16_length(text: str) -> int:
    """As those count characters to whom a character beyond the first 65,536 is two."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def is_date(instant_s: int) -> bool:
    """Whether everybody who shows dates can show it: an event may have any timestamp."""
    return 0 <= instant_s < _END_OF_TIME_S


def utc(instant_s: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    return datetime.fromtimestamp(instant_s, UTC).strftime(form) if is_date(instant_s) else UNKNOWN_TIME
