"""One line of anything that a publisher sent (pure)."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_AHEAD = 8
"""So many times the limit is looked at: runs of blanks become one."""
_NONCHARACTERS = "\ufdd0-\ufdef" + "".join(chr(last - 1) + chr(last) for last in range(0xFFFF, 0x110000, 0x10000))
_BLANK_OR_UNSEEN = re.compile(
    "[\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\u2800\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    f"\U000e0000-\U000e00ff\U000e01f0-\U000e0fff{_NONCHARACTERS}]+"
)
"""Blanks, controls, halves of characters, Unicode's noncharacters and its Default_Ignorable_Code_Point: fillers, marks
that reorder text, and other characters that nobody sees. `_SHAPING` stays."""
_SHAPING = " \u180b-\u180d\u180f\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef"
"""Joiners and variation selectors: they change how their neighbours look, in emoji and in many scripts."""
_SEEN = re.compile(f"[^{_SHAPING}]")
_FLAG = re.compile("(\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f)")
"""A black flag and tags, which nobody sees elsewhere: the flag of England is one."""
EMPTY = "(empty)"
_END_OF_TIME_S = 253_402_300_800
"""The year 10,000."""
UNKNOWN_TIME = "at an unknown time"


def one_line(text: str, limit: int) -> str:
    """At most `limit` characters, without line breaks and what is not seen; never empty."""
    start = text[: _AHEAD * limit]
    line = _without_unseen(start).strip()
    if len(line) > limit or len(start) < len(text):
        line = line[: limit - 1].rstrip() + "…"
    return line if _SEEN.search(line) else EMPTY


def _without_unseen(text: str) -> str:
    if _FLAG.search(text) is None:
        return _BLANK_OR_UNSEEN.sub(" ", text)
    parts = enumerate(_FLAG.split(text))  # every second one is a flag
    return "".join(part if place % 2 else _BLANK_OR_UNSEEN.sub(" ", part) for place, part in parts)


def utf16_length(text: str) -> int:
    """As those count characters to whom a character beyond the first 65,536 is two."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def is_date(instant_s: int) -> bool:
    """Whether everybody who shows dates can show it: an event may have any timestamp."""
    return 0 <= instant_s < _END_OF_TIME_S


def utc(instant_s: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    return datetime.fromtimestamp(instant_s, UTC).strftime(form) if is_date(instant_s) else UNKNOWN_TIME
