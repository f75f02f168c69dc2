"""`python -m nsqdigest` is `nsqdigest`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.waiting import PATIENCE_S

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("arguments", [["--version"], ["check", "/nowhere.toml"], ["chekc"]])
def test_the_module_does_what_the_command_does(arguments: list[str]) -> None:
    def output_of(*program: str) -> tuple[int, str, str]:
        done = subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return done.returncode, done.stdout, done.stderr

    as_module = output_of(sys.executable, "-m", "nsqdigest")
    assert as_module == output_of(sys.executable, "-c", "from nsqdigest.cli import main; main()")
    assert as_module[1] or as_module[2]
