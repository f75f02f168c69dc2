"""Runs the command line of nsqdigest and writes down every call of a function of its package: `trace.py FILE WORD…`.

Run by its path, as a process of its own: it imports nothing of this folder. A call is written down when its function
begins to run; a coroutine that goes on after an await is none. The caller is the nearest function of the package below
it on the stack, but not past the event loop: what the loop calls has no caller and begins a turn.

A comprehension or generator expression is no call: it is a part of the function in which it stands. (From Python 3.12
on most of them run in its frame; before, each had one of its own.)
"""

from __future__ import annotations

import atexit
import dis
import json
import sys
import time
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from nsqdigest.cli import main

_PACKAGE = str(Path(sys.modules["nsqdigest"].__file__ or "").parent) + "/"
_LOOP = "/asyncio/base_events.py"
_GENERATORS = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR

_PARTS_OF_A_FUNCTION = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

Call = tuple[int, bool, str, str, str, int]
"""Instant (ns), whether it begins a turn, the caller's file ('' of the loop), the file, the function, its line."""

_calls: list[Call] = []


@cache
def _begins_at(code: CodeType) -> int:
    return next((each.offset for each in dis.get_instructions(code) if each.opname == "RESUME"), 0)


def _is_beginning(frame: FrameType) -> bool:
    """Of a coroutine or generator its first step, not its making, nor what follows an await or a yield."""
    return not frame.f_code.co_flags & _GENERATORS or 0 <= frame.f_lasti <= _begins_at(frame.f_code)


def _caller_of(frame: FrameType) -> str | None:
    """Its file; None where the loop called."""
    below = frame.f_back
    while below is not None and not below.f_code.co_filename.endswith(_LOOP):
        if below.f_code.co_filename.startswith(_PACKAGE):
            return below.f_code.co_filename.removeprefix(_PACKAGE)
        below = below.f_back
    return None


def _profile(frame: FrameType, event: str, argument: Any) -> None:
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(_PACKAGE) or code.co_name in _PARTS_OF_A_FUNCTION:
        return
    caller, is_beginning = _caller_of(frame), _is_beginning(frame)
    if caller is not None and not is_beginning:
        return
    file = code.co_filename.removeprefix(_PACKAGE)
    _calls.append((time.monotonic_ns(), is_beginning, caller or "", file, code.co_qualname, code.co_firstlineno))


def _write(path: str) -> None:
    sys.setprofile(None)
    Path(path).write_text(json.dumps({"package": _PACKAGE, "calls": _calls}), "utf-8")


if __name__ == "__main__":
    _, path, *words = sys.argv
    sys.argv = ["nsqdigest", *words]
    atexit.register(_write, path)
    sys.setprofile(_profile)
    main()
