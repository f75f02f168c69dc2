"""CONTRIBUTING.md names files that exist: a stranger opens them first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`((?:nsqdigest|tests|scripts|docs|config)/[\w./-]*)`")
PATHS = sorted(
    {path for path in NAMED.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8")) if not re.search("NAME|SIDE", path)}
)


def test_it_names_some() -> None:
    assert len(PATHS) > 20


@pytest.mark.parametrize("path", PATHS)
def test_a_file_that_it_names_exists(path: str) -> None:
    assert (ROOT / path).exists()
