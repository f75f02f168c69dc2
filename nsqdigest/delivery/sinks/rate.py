"""`rate = "1/s"`: at most so many posts in a time, evenly spaced."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from nsqdigest.config.problems import Spot, Wrong
from nsqdigest.config.readers import Reader, text_of

NONE = "none"
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_MOST_PER_S = 1000
_RATE = re.compile(r"([0-9]{1,6})/([smh])")
_LOOSE = re.compile(r"([0-9]{1,6})\s*(?:/|per|a|an)?\s*(s|m|h)(?:ec|in)?(?:ond|ute|our)?s?", re.IGNORECASE)
_LIKE = 'write one like "1/s", "30/m" or "500/h"'


@dataclass(frozen=True, slots=True)
class Rate(Reader):
    """The seconds from one post to the next; 0 for "none"; None for "", which leaves it to the sink."""

    def __call__(self, value: Any, spot: Spot) -> float | None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise Wrong("is not a rate", f'write "{value}/s"' if 0 < value <= _MOST_PER_S else f'write "{NONE}"')
        text = text_of(value)
        if text in ("", NONE):
            return None if not text else 0.0
        match = _RATE.fullmatch(text)
        if match is None:
            loose = _LOOSE.fullmatch(text.strip())
            raise Wrong("is not a rate", f'write "{loose[1]}/{loose[2].lower()}"' if loose else _LIKE, _LIKE)
        count, seconds = int(match[1]), _SECONDS[match[2]]
        if not count:
            raise Wrong("would never post anything", f'write "{NONE}" for no limit, or nsqdigest pause sink NAME')
        if count > _MOST_PER_S * seconds:
            raise Wrong(f"is more than {_MOST_PER_S} a second", f'write "{NONE}"')
        return seconds / count
