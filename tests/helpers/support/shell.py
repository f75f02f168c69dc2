"""The installed command, run in a folder of its own as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

from support.waiting import PATIENCE_S

PROGRAM = Path(sysconfig.get_path("scripts")) / "nsqdigest"


class Shell:
    """A folder to run the command in, with an environment that knows no configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("NSQDIGEST")}
        # What colours or shapes the output of a developer's terminal is no part of what is tested.
        self.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}

    def write(self, text: str | bytes, name: str = "nsqdigest.toml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def run(self, *words: str, stdin: bytes = b"", **environ: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [PROGRAM, *words], cwd=self.folder, env=self.environ | environ, input=stdin,
            capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        stdout, stderr = done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in stdout + stderr
        return subprocess.CompletedProcess(done.args, done.returncode, stdout, stderr)
