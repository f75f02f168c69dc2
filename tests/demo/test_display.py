"""The live display, on a terminal that draws what it is sent: the header stays, nothing of the log is lost, and the
terminal is left as it was."""

from __future__ import annotations

import io
import os

import pytest

from nsqdigest.demo.display import LEAST_ROWS, LiveDisplay, PlainDisplay, display_for
from nsqdigest.demo.lines import Part
from support.terminal import Terminal

pytestmark = pytest.mark.unit

HEADER: list[list[Part]] = [["events in"], ["in flight"], ["digests out"], [("dim", "────")]]


class Tty(io.StringIO):
    """Of `terminal`, as a program sees it."""

    def __init__(self, terminal: Terminal | None, encoding: str = "utf-8") -> None:
        super().__init__()
        self._encoding = encoding
        self._terminal = terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding

    def isatty(self) -> bool:
        return self._terminal is not None

    def fileno(self) -> int:
        return 1

    def write(self, text: str) -> int:
        if self._terminal is not None:
            self._terminal.feed(text)
        return len(text)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal(60, LEAST_ROWS)
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((terminal.columns, terminal.rows)))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal.feed("$ nsqdigest demo\n")
    return terminal


def live(terminal: Terminal, lines: int) -> LiveDisplay:
    display = display_for(Tty(terminal))
    assert isinstance(display, LiveDisplay)
    display.set_header(HEADER)
    for number in range(1, lines + 1):
        display.line(f"line {number}", event=number)
    return display


def texts(first: int, last: int) -> list[str]:
    return [f"line {number}" for number in range(first, last + 1)]


HEAD = ["events in", "in flight", "digests out", "────"]
ROOM = LEAST_ROWS - len(HEAD)


def test_lines_begin_below_the_header_and_scroll_there(terminal: Terminal) -> None:
    display = live(terminal, 3)
    assert terminal.shown == [*HEAD, *texts(1, 3), *[""] * (ROOM - 3)]
    for number in range(4, 31):
        display.line(f"line {number}")
    assert terminal.shown == [*HEAD, *texts(31 - ROOM, 30)]
    display.set_header([["events in: 5"], *HEADER[1:]])
    assert terminal.shown == ["events in: 5", *HEAD[1:], *texts(31 - ROOM, 30)]


def test_at_the_end_all_lines_are_in_the_history_of_the_terminal(terminal: Terminal) -> None:
    display = live(terminal, 30)
    assert (terminal.is_alternate, terminal.shows_cursor) == (True, False)
    display.close()
    display.close()
    display.line("the bill")
    assert (terminal.is_alternate, terminal.shows_cursor) == (False, True)
    written = "\n".join([*terminal.history, *terminal.shown]).rstrip().split("\n")
    assert written == ["$ nsqdigest demo", *texts(1, 30), "", *HEAD[:3], "the bill"]


def test_a_digest_takes_the_lines_of_its_events_away(terminal: Terminal) -> None:
    display = live(terminal, 5)
    assert display.take_away({2, 4, 99}) == 2
    assert terminal.shown[: len(HEAD) + 4] == [*HEAD, "line 1", "line 3", "line 5", ""]
    display.line("a digest")
    assert terminal.shown[: len(HEAD) + 4] == [*HEAD, "line 1", "line 3", "line 5", "a digest"]


@pytest.mark.parametrize(("columns", "rows"), [(44, 24), (200, 50), (61, LEAST_ROWS), (41, 17)])
def test_a_resized_terminal_is_drawn_anew(terminal: Terminal, columns: int, rows: int) -> None:
    display = live(terminal, 70)
    terminal.resize(columns, rows)
    display.set_header(HEADER)
    assert terminal.shown == [*HEAD, *texts(71 - (rows - len(HEAD)), 70)]
    display.line("x" * 300)
    assert terminal.shown[-2] == "line 70"
    assert terminal.shown[-1] == "x" * (min(columns, 110) - 1) + "…"


def test_one_that_becomes_too_small_has_no_header_until_it_is_large_again(terminal: Terminal) -> None:
    display = live(terminal, 30)
    terminal.resize(20, 5)
    display.line("line 31")
    assert terminal.shown == texts(27, 31)
    display.set_header(HEADER)
    display.line("line 32")
    assert terminal.shown == texts(28, 32)
    terminal.resize(60, LEAST_ROWS)
    display.set_header(HEADER)
    assert terminal.shown == [*HEAD, *texts(33 - ROOM, 32)]


def test_while_the_process_is_stopped_the_terminal_is_the_shells(terminal: Terminal) -> None:
    display = live(terminal, 30)
    display.suspend()
    assert (terminal.is_alternate, terminal.shows_cursor) == (False, True)
    assert terminal.shown[0] == "$ nsqdigest demo"
    display.resume()
    assert terminal.shown == [*HEAD, *texts(31 - ROOM, 30)]


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb"), ("TERM", "")])
def test_a_terminal_that_wants_plain_lines_gets_them(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    display = display_for(Tty(terminal))
    display.set_header(HEADER)
    display.line(("bold", "line 1"))
    display.close()
    assert [*terminal.history, *filter(None, terminal.shown)] == ["$ nsqdigest demo", "line 1"]
    assert not isinstance(display, LiveDisplay)


@pytest.mark.parametrize(("columns", "rows"), [(39, 50), (80, LEAST_ROWS - 1), (0, 0)])
def test_one_that_is_too_small_or_of_no_size_gets_plain_lines(terminal: Terminal, columns: int, rows: int) -> None:
    terminal.columns, terminal.rows = columns, rows
    assert not isinstance(display_for(Tty(terminal)), LiveDisplay)


def test_one_without_the_characters_gets_plain_lines(terminal: Terminal) -> None:
    assert not isinstance(display_for(Tty(terminal, "ascii")), LiveDisplay)


def test_a_pipe_gets_plain_lines() -> None:
    assert not isinstance(display_for(Tty(None)), LiveDisplay)


def test_the_frames_of_a_picture_have_the_header_and_the_last_lines() -> None:
    display = PlainDisplay(Tty(None), width=100)
    display.set_header(HEADER)
    for number in range(9):
        display.line(f"line {number}")
    display.keep_frame(3)
    display.line("later")
    (frame,) = display.frames
    assert [line.runs[0][1] for line in frame.lines] == ["line 6", "line 7", "line 8"]
    assert len(frame.header) == len(HEADER)
