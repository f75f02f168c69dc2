"""Output that people have looked at, kept in files beside the tests: what a program prints is compared with it.

After a change that is meant, write the files anew and read them aloud: NSQDIGEST_WRITE_GOLDEN=1 pytest tests/…
"""

from __future__ import annotations

import os
from pathlib import Path

_WRITES = bool(os.environ.get("NSQDIGEST_WRITE_GOLDEN"))


def compare(path: Path, text: str) -> None:
    if _WRITES:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} has other text; see support/golden.py"
