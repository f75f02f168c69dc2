"""`status --watch`: what it shows while the daemon is away, and that no screen is higher than the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from nsqdigest.admin.views import StatusView
from nsqdigest.base.errors import NsqdigestError, Unreachable
from nsqdigest.cli import watching
from support.local_clock import in_utc
from support.status_views import busy, empty

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
