"""Which settings make two daemons differ, and what is left out of what they tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsqdigest import config
from nsqdigest.daemon.status import config_hash
from nsqdigest.delivery.sinks.table import KINDS
from support.files import SMALLEST

pytestmark = pytest.mark.unit


def hash_of(folder: Path, text: str = SMALLEST, name: str = "nsqdigest.toml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return config_hash(config.load(path, {}, KINDS))


@pytest.mark.parametrize(
    "own", ['[admin]\nlisten = "127.0.0.1:4999"', '[admin]\nlisten = ""', '[log]\nlevel = "debug"']
)
def test_what_is_a_daemons_own_makes_no_difference(tmp_path: Path, own: str) -> None:
    assert hash_of(tmp_path, f"{SMALLEST}\n{own}\n", "another.toml") == hash_of(tmp_path)


@pytest.mark.parametrize("shared", ["[limits]\ndepth = 7", '[policies.default]\nminimum_delay = "6m"'])
def test_what_they_work_by_does(tmp_path: Path, shared: str) -> None:
    assert hash_of(tmp_path, f"{SMALLEST}\n{shared}\n") != hash_of(tmp_path)
