"""A file with mistakes: all of them in one answer, and nobody was connected to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.daemon import run_command
from support.ports import HOST

pytestmark = pytest.mark.integration

SIX_MISTAKES = """\
[nsq]
nsqd_tcp_addresses = ["{nsqd}"]
max_in_flihgt = 500

[redis]
url = "redis://{redis}/0"
timeout = "5 parsecs"

[policies.default]
maximum_delay = "1m"

[sinks.out]
type = "webhook"
url = "http://hooks.example.com/x"
secret = "env:NSQDIGEST_TEST_NOT_SET"

[[routes]]
topic = "events"
timeline = "{{user"
sink = "out"
"""


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    """Two sockets that somebody may connect to: a connection that was made waits to be accepted."""
    with ExitStack() as ending:
        made = [ending.enter_context(socket.create_server((HOST, 0))) for _ in range(2)]
        for listener in made:
            listener.setblocking(False)
        yield made


@pytest.fixture
def mistaken(tmp_path: Path, listeners: list[socket.socket]) -> Path:
    nsqd, redis = (f"{HOST}:{listener.getsockname()[1]}" for listener in listeners)
    path = tmp_path / "nsqdigest.toml"
    path.write_text(SIX_MISTAKES.format(nsqd=nsqd, redis=redis), encoding="utf-8")
    return path


def was_connected_to(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("command", ["run", "check"])
def test_six_mistakes_are_six_lines_and_no_connection(
    command: str, mistaken: Path, listeners: list[socket.socket]
) -> None:
    ended = run_command(command, "-c", str(mistaken))
    assert ended.returncode == 78
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 6, ended.stderr
    for line, (number, spot) in zip(
        lines,
        [
            (3, "nsq.max_in_flihgt"),
            (7, "redis.timeout"),
            (10, "policies.default.maximum_delay"),
            (14, "sinks.out.url"),
            (15, "sinks.out.secret"),
            (19, "routes[0].timeline"),
        ],
        strict=True,
    ):
        assert line.startswith(f"{mistaken}:{number}: {spot}: "), line
        assert line.count(";") >= 1 or line.endswith("?"), f"the remedy is missing: {line}"
    assert not any(was_connected_to(listener) for listener in listeners)


def test_check_says_the_same_to_scripts(mistaken: Path) -> None:
    ended = run_command("check", "--json", "-c", str(mistaken))
    answer = json.loads(ended.stdout)
    assert ended.returncode == 78
    assert (answer["ok"], len(answer["problems"])) == (False, 6)


def test_a_file_that_is_not_there_is_a_mistake_too(tmp_path: Path) -> None:
    ended = run_command("run", "-c", str(tmp_path / "nothing.toml"))
    assert ended.returncode == 78
    assert "nothing.toml" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
