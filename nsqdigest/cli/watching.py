"""A screen that is drawn anew each second until Ctrl-C, as `status --watch` shows it.

Invariants:
- On a terminal it uses the alternate screen, and gives back the other one as it was, however it ends: Ctrl-C, Ctrl-\\,
  TERM, HUP, an exception; and while it is stopped (Ctrl-Z). Only SIGKILL leaves it as it is: `reset` helps. In a pipe
  it prints one screen after the other, without a control character.
- It never shows more lines than the terminal has.
- Where the daemon does not answer it shows since when, and what was known last, and goes on asking.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn

from nsqdigest.admin.screen import Paper, lines
from nsqdigest.base.errors import Unreachable
from nsqdigest.base.moments import span
from nsqdigest.base.screen import BOLD, RED, painted, wrapped
from nsqdigest.base.shown import as_json as encoded
from nsqdigest.cli import terminal

if TYPE_CHECKING:
    from nsqdigest.admin.views import StatusView

_EVERY_S = 1.0
_WITHIN_S = 3.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""The other screen without a cursor, on which a line that is too long ends at the edge."""
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

Ask = Callable[[float], "StatusView"]


def watch(ask: Ask, *, as_json: bool) -> None:
    """Until Ctrl-C; where nobody reads it any more, until that raises."""
    try:
        if as_json:
            _each_second(ask, _print_json)
        elif terminal.shows("") and sys.stdout.isatty():
            with _alternate_screen():
                _each_second(ask, _Drawn())
        else:
            _each_second(ask, _print_screen)
    except KeyboardInterrupt:
        return


class Away:
    """No daemon answers."""

    def __init__(self) -> None:
        self.since_s = time.monotonic()
        self.why = ""
        self.last: StatusView | None = None


Show = Callable[["StatusView | Away"], None]


def _each_second(ask: Ask, show: Show) -> None:
    last: StatusView | None = None
    away: Away | None = None
    while True:
        began_s = time.monotonic()
        try:
            last, away = ask(_WITHIN_S), None
        except Unreachable as error:
            away = away or Away()
            away.why, away.last = str(error), last
        show(away or _known(last))
        time.sleep(max(0.0, began_s + _EVERY_S - time.monotonic()))


def _known(view: StatusView | None) -> StatusView:
    assert view is not None
    return view


# -- in a pipe


def _print_json(shown: StatusView | Away) -> None:
    _write((encoded({"error": shown.why}) if isinstance(shown, Away) else encoded(shown)) + "\n")


def _print_screen(shown: StatusView | Away) -> None:
    _write("\n".join([*_lines_of(shown, terminal.look_of_stdout()), "", ""]))


def _lines_of(shown: StatusView | Away, look: terminal.Look) -> Iterator[str]:
    paper = Paper(look.width, look.colour)
    if not isinstance(shown, Away):
        yield from lines(shown, paper)
        return
    for_s = f" (for {span(int((time.monotonic() - shown.since_s) * 1000))})"
    for line in wrapped(f"{shown.why}{for_s}", "", "", look.width):
        yield painted(line, f"{BOLD};{RED}", look.colour)
    if shown.last is not None:
        yield ""
        yield "What it answered last:"
        yield ""
        yield from lines(shown.last, paper)


def _write(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


# -- on a terminal


class _Drawn:
    def __call__(self, shown: StatusView | Away) -> None:
        size = shutil.get_terminal_size()
        found = [*_lines_of(shown, terminal.look_of_stdout())]
        _write(_HOME + f"{_REST_OF_LINE}\r\n".join(_fitting(found, size.lines)) + _REST_OF_LINE + _REST_OF_SCREEN)


def _fitting(found: Sequence[str], most: int) -> list[str]:
    if len(found) <= most:
        return list(found)
    more = len(found) - most + 1
    return [*found[: most - 1], f"… {more} lines more: a higher window shows them, or status without --watch"]


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def _alternate_screen() -> Iterator[None]:
    def end(*_: object) -> NoReturn:
        for number in _ENDING:  # a second one must not come between the end and the screen that is given back
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    def stop(*_: object) -> None:
        _put(_LEAVE)
        os.kill(os.getpid(), signal.SIGSTOP)  # goes on here, after `fg`
        _put(_ENTER)

    before = {number: signal.signal(number, end) for number in _ENDING} | {
        signal.SIGTSTP: signal.signal(signal.SIGTSTP, stop)
    }
    try:
        _put(_ENTER)
        yield
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        with suppress(OSError):  # the terminal is gone
            _write(_LEAVE)  # behind what of a screen is still in the buffer
        for number, handler in before.items():
            signal.signal(number, handler)


def _put(sequence: str) -> None:
    """Past the stream's buffer: a signal may have come while that was being written."""
    os.write(sys.stdout.fileno(), sequence.encode())
