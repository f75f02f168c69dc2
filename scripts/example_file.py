"""Writes config/nsqdigest.toml from the declared options, so that it cannot disagree with them: `make example-file`."""

from __future__ import annotations

import sys
from pathlib import Path

from nsqdigest.config import example
from nsqdigest.delivery.sinks.table import KINDS

FILE = Path(__file__).resolve().parent.parent / "config" / "nsqdigest.toml"

if __name__ == "__main__":
    FILE.write_text(example.text(KINDS), "utf-8")
    sys.stdout.write(f"written: config/{FILE.name}\n")
