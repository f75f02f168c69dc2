"""Containerfile and logrotate's snippet: what they name exists, what they promise holds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nsqdigest.config.options import SECTIONS
from support.daemon import Daemon
from support.stage import Stage
from support.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text("utf-8")
LINES = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE))
STEPS = [tuple(line.split(None, 1)) for line in LINES.splitlines() if line.strip()]
LAST_STAGE = STEPS[max(number for number, step in enumerate(STEPS) if step[0] == "FROM") :]
PORT = 4180


def of(word: str, steps: list[tuple[str, ...]] = STEPS) -> list[str]:
    return [step[1] for step in steps if step[0] == word]


@pytest.mark.unit
def test_its_base_is_a_release_and_no_host_is_named() -> None:
    (base,) = of("ARG")
    assert re.fullmatch(r"DEBIAN=debian:\d+-slim", base)
    assert [each.split()[0] for each in of("FROM")] == ["${DEBIAN}", "${DEBIAN}"]


@pytest.mark.unit
def test_what_it_copies_exists_and_is_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")}
    copied = {source for step in of("COPY") if not step.startswith("--from") for source in step.split()[:-1]}
    assert copied == kept
    assert all((ROOT / source).exists() for source in copied)


@pytest.mark.unit
def test_it_runs_the_daemon_as_nobody_special_without_a_shell() -> None:
    assert of("USER", LAST_STAGE) == ["10001:10001"]
    users = [step[0] for step in LAST_STAGE]
    assert users.index("USER") > max(number for number, word in enumerate(users) if word in {"RUN", "COPY"})
    assert json.loads(of("ENTRYPOINT", LAST_STAGE)[0]) == ["/opt/nsqdigest/bin/nsqdigest"]
    assert json.loads(of("CMD", LAST_STAGE)[0]) == ["run"]
    assert of("STOPSIGNAL", LAST_STAGE) == ["SIGTERM"]


@pytest.mark.unit
def test_its_port_is_the_one_of_the_defaults() -> None:
    default = next(option.default for option in SECTIONS["admin"].options if option.key == "listen")
    assert (default, of("EXPOSE", LAST_STAGE)) == (f"127.0.0.1:{PORT}", [str(PORT)])


def health_check(port: int) -> int:
    words = json.loads(of("HEALTHCHECK", LAST_STAGE)[0].partition("CMD ")[2])
    assert words[0] == "/opt/nsqdigest/bin/python"
    code = words[2].replace(f":{PORT}/", f":{port}/")
    return subprocess.run([sys.executable, *words[1:2], code], stderr=subprocess.DEVNULL, check=False).returncode


@pytest.mark.integration
def test_its_health_check_tells_a_daemon_that_lives_from_none(stage: Stage) -> None:
    stage.nsqd()
    stage.receiver()
    daemon: Daemon = stage.daemon()
    daemon.start()
    assert health_check(daemon.ports[0]) == 0
    daemon.kill()
    assert health_check(daemon.ports[0]) != 0


@pytest.mark.integration
def test_logrotate_takes_the_snippet(tmp_path: Path) -> None:
    program = shutil.which("logrotate") or shutil.which("logrotate", path="/usr/sbin")
    if program is None:
        pytest.skip("no logrotate here")
    text = (ROOT / "config" / "nsqdigest.logrotate").read_text("utf-8")
    here = re.sub(r"^ +(su|create) .*\n", "", text.replace("/var/log/nsqdigest", str(tmp_path)), flags=re.MULTILINE)
    (tmp_path / "digests.jsonl").write_text("{}\n", "utf-8")
    (tmp_path / "snippet").write_text(here, "utf-8")
    (tmp_path / "snippet").chmod(0o644)
    done = subprocess.run(
        [program, "--force", "--state", tmp_path / "state", tmp_path / "snippet"],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "digests.jsonl.1").read_text("utf-8") == "{}\n"
