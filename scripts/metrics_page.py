"""Writes docs/metrics.md from the declared metrics, so that it cannot disagree with them: `make metrics-page`."""

from __future__ import annotations

import sys
from pathlib import Path

from nsqdigest.base.metric_table import METRICS, PREFIX, Declared

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
_HEAD = f"""\
# Metrics

Written by `make metrics-page` from the table in `nsqdigest/base/metric_table.py`.

`GET /metrics` at `admin.listen` has these, each name with `{PREFIX}` before it, and `process_*` of Python.
No label is ever a timeline or a key. A series whose labels the file decides exists from the start, at 0.

| metric | kind | labels | |
|---|---|---|---|
"""


def _labels(declared: Declared) -> str:
    return ", ".join(f"`{label}`" for label in declared.labels)


def page() -> str:
    rows = (f"| `{name}` | {each.kind} | {_labels(each)} | {each.help} |\n" for name, each in METRICS.items())
    return _HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    sys.stdout.write(f"written: docs/{PAGE.name}\n")
