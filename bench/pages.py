"""Words for Markdown pages that are written by a command (pure)."""

from __future__ import annotations

import textwrap


def prose(words: str, indent: int = 0) -> str:
    """Lines of 120 characters; all but the first are indented."""
    return textwrap.fill(
        " ".join(words.split()), 120, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
