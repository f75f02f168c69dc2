"""Words for people (pure): which known one was meant, how many there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], *, likeness: float = 0.6) -> str:
    """The known word that is probably meant, "" where none is near. `likeness`: from 0 to 1, the same word being 1."""
    by_lower = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=likeness)
    return by_lower[close[0]] if close else ""


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def listed(words: Iterable[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`; a word may have commas of its own."""
    *before, final = [*words] or [""]
    return f"{', '.join(before)} {last} {final}" if before else final
