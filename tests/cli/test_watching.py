"""`status --watch`: what it shows while the daemon is away, and that no screen is higher than the terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from nsqdigest.admin.views import StatusView
from nsqdigest.base.errors import NsqdigestError, Unreachable
from nsqdigest.cli import watching
from support.local_clock import in_utc
from support.ports import HOST, free_port
from support.status_views import busy, empty
from support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.unit, pytest.mark.usefixtures("in_utc")]
__all__ = ["in_utc"]

GONE = Unreachable("no daemon answers at 127.0.0.1:4180: Connection refused")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_EVERY_S", 0.0)


def answering(answers: Sequence[StatusView | NsqdigestError]) -> Callable[[float], StatusView]:
    """One after the other; then Ctrl-C."""
    left = list(answers)

    def ask(_timeout_s: float) -> StatusView:
        if not left:
            raise KeyboardInterrupt
        answer = left.pop(0)
        if isinstance(answer, NsqdigestError):
            raise answer
        return answer

    return ask


def test_it_goes_on_while_the_daemon_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    watching.watch(answering([busy(), GONE, GONE, empty()]), as_json=False)
    text = capsys.readouterr().out
    before, *away = text.split("no daemon answers at 127.0.0.1:4180: Connection refused (for ")
    assert before.startswith("All is well: 1,243 events in")
    assert len(away) == 2
    for screen in away:
        assert "What it answered last:\n\nAll is well: 1,243 events in" in screen
    assert away[1].count("All is well: nothing came in the last minute") == 1, "it is back"


def test_it_begins_without_a_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    watching.watch(answering([GONE]), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"error": str(GONE)}


def test_what_the_daemon_refuses_ends_it() -> None:
    with pytest.raises(NsqdigestError, match="the token is wrong"):
        watching.watch(answering([busy(), NsqdigestError("the token is wrong")]), as_json=True)


@pytest.mark.parametrize("height", [1, 5, 10])
def test_no_screen_is_higher_than_the_terminal(height: int) -> None:
    lines = [str(number) for number in range(10)]
    fitting = watching._fitting(lines, height)
    assert len(fitting) == height
    assert (fitting == lines) is (height == 10)
    assert height == 10 or fitting[-1].startswith(f"… {11 - height} lines more")


class Watched:
    """`status --watch` on a terminal, without a daemon."""

    def __init__(self, folder: Path) -> None:
        file = folder / "nsqdigest.toml"
        file.write_text(
            f'nsq.nsqd_tcp_addresses = ["{HOST}:1"]\nadmin.listen = "{HOST}:{free_port()}"\nsinks.out.type = "log"\n'
            '[[routes]]\ntopic = "events"\ntimeline = "{user}"\nsink = "out"\n',
            encoding="utf-8",
        )
        self.master, terminal = pty.openpty()
        self.process = subprocess.Popen(
            [Path(sys.executable).parent / "nsqdigest", "status", "--watch", "-c", file],
            stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        os.set_blocking(self.master, False)
        self.text = b""

    def shows(self, wanted: bytes) -> bool:
        """Since the last time that it was found."""
        with contextlib.suppress(OSError):  # nothing is there now, or the other end is closed
            self.text += os.read(self.master, 1 << 20)
        found = wanted in self.text
        if found:
            self.text = self.text.partition(wanted)[2]
        return found

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    @property
    def is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(") ")[2].startswith("T")


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    wait_until(lambda: watched.shows(b"no daemon answers"), PATIENCE_S)
    yield watched
    watched.process.kill()
    watched.process.wait()
    os.close(watched.master)


LEFT = watching._LEAVE.encode()


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_the_terminal_is_given_back_whatever_ends_it(watched: Watched, number: int) -> None:
    watched.signal(number)
    wait_until(lambda: watched.shows(LEFT), PATIENCE_S)
    assert watched.process.wait(PATIENCE_S) == 0


@pytest.mark.integration
def test_nor_does_a_second_signal_keep_it(watched: Watched) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        watched.signal(number)
    wait_until(lambda: watched.shows(LEFT), PATIENCE_S)
    watched.process.wait(PATIENCE_S)


@pytest.mark.integration
def test_the_terminal_is_given_back_while_it_is_stopped(watched: Watched) -> None:
    watched.signal(signal.SIGTSTP)
    wait_until(lambda: watched.shows(LEFT), PATIENCE_S)
    wait_until(lambda: watched.is_stopped, PATIENCE_S)
    watched.signal(signal.SIGCONT)
    wait_until(lambda: watched.shows(watching._ENTER.encode()), PATIENCE_S)
    wait_until(lambda: watched.shows(b"no daemon answers"), PATIENCE_S)
