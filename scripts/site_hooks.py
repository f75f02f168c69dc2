"""What `make docs` does to a page before it is rendered.

The pages are written for readers of the source, by the rules of CommonMark: what belongs to an item of a list stands
below its text. Python-Markdown wants it four columns in, and nothing but blank lines before a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_ITEM = re.compile(r"(?:[-*]|\d+\.) +(?=\S)")
_FENCE = re.compile(r"\s*```")
_COMMENT = re.compile(r"\s*<!--.*-->\s*$")
_IN_ITEM = 4


def _indented(lines: list[str]) -> Iterator[str]:
    width, is_code = 0, False  # of the item's mark; 0: this is no list
    for line in lines:
        if _FENCE.match(line):
            is_code = not is_code
        item = None if is_code else _ITEM.match(line)
        if item:
            width = len(item[0])
        elif line and not line.startswith(" "):
            width = 0
        if _COMMENT.match(line) and not is_code:
            continue
        yield " " * (_IN_ITEM - width) + line if width and not item and line.startswith(" " * width) else line


def on_page_markdown(markdown: str, **_: Any) -> str:
    return "\n".join(_indented(markdown.split("\n")))
