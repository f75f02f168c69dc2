"""What commands print on terminals of three widths, without what differs from run to run.

`look` runs a command in this process as if its output were a terminal; `compare_sections` compares what several showed
with a file (support.golden).
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nsqdigest.cli import main
from support.golden import compare

WIDTHS = (44, 80, 120)
_DAYS = "|".join(f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}" for days in range(9))
_MASKS: Mapping[str, str] = {
    rf"\b({_DAYS})\b(?!T)": "2026-11-19",
    r"\b\d\d:\d\d:\d\dZ": "00:00:00Z",
    r"\b01[0-9a-f]{6}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b": "01a1f446-1da3-7114-b188-aef126ab1cde",
    r"127\.0\.0\.1:\d{5}\b": "127.0.0.1:10000",
    r"\b59m\d\ds\b": "59m00s",
    r"\bends in \d\ds\b": "ends in 00s",
    r"\bopened (now|\d{1,2}s ago)": "opened 10s ago",
    r"Redis \d\.\d\.\d+": "Redis 7.0.0",
    r"nsqd \d\.\d\.\d": "nsqd 1.3.0",
}
"""What differs from run to run, and something of the same length instead."""
_CUT_ID = re.compile(r"\b01[0-9a-f]{6}-?[0-9a-f-]*(?=…)")


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def look(monkeypatch: pytest.MonkeyPatch, width: int, *words: str, stdin: bytes = b"") -> str:
    """What stands on a terminal after a command: its output, its errors, and an exit code that is not 0."""
    terminal = _Terminal()
    with monkeypatch.context() as patch:
        patch.delenv("NSQDIGEST_WRITE_GOLDEN", raising=False)  # the command would warn of it
        patch.setenv("COLUMNS", str(width))
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERM", "xterm")
        code: int | str
        patch.setattr(sys, "argv", ["nsqdigest", *words])
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
    shown = terminal.getvalue()
    for found, instead in _MASKS.items():
        shown = re.sub(found, instead, shown)
    shown = _CUT_ID.sub(lambda cut: re.sub("[0-9a-f]", "0", cut.group()), shown)
    said = [shown.rstrip(), *([f"(exit code {code})"] if code else [])]
    return "\n".join(said) + "\n"


def compare_sections(path: Path, sections: Iterable[tuple[str, str]]) -> None:
    """Each section: its heading and what was shown."""
    compare(path, "\n".join(f"=== {heading}\n{shown}" for heading, shown in sections))


def widest(shown: str) -> int:
    return max(map(len, shown.splitlines()), default=0)
