"""Structured logs: an event's constant dotted name, and data in fields. They observe: no call raises or waits.

    log = get("consumer").bind(topic="events")
    log.warning("consumer.topic.backoff", level=1, wait_s=2.1)

Invariants:
- On a terminal a line is for people: a sentence (`log_sentences`), the event's name and what the sentence does not say
  behind it. Elsewhere it is one JSON object. Times are UTC. Whatever a field holds, a line stays one line, of
  bounded length, without control characters; only a traceback on a terminal takes more lines.
- Lines of other libraries pass the same formatter, from WARNING on, as `library.<logger's name>`.
- An event that may happen thousands of times a second is logged by `counted`: one line per kind and second.
- A reader that does not read stops nothing: a thread writes the lines (`log_writer`), and drops and counts those that
  do not fit its queue.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from nsqdigest.base.log_counts import Repeats
from nsqdigest.base.log_sentences import phrase_of
from nsqdigest.base.log_writer import LogWriter
from nsqdigest.base.screen import DIM, GREEN, RED, YELLOW
from nsqdigest.base.shown import printable, safe_json

ROOT = "nsqdigest"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FIELD_LIMIT_BYTES = 1024
TRACEBACK_LIMIT_BYTES = 16 * 1024
_LEAST_SHOWN_BYTES = 16
"""Less than that of a text says nothing."""
ENDS_WITHIN_S = 2.0
"""At exit, lines that wait for a slow reader get so long."""

_RESERVED = frozenset(("time", "level", "event"))
_BLANKS = re.compile(r" {2,}")
_PLAIN = re.compile(r"[^\s\"=\\]+")
_COLOURS = {
    level: f"\x1b[{paint}m" for level, paint in (("debug", DIM), ("info", GREEN), ("warning", YELLOW), ("error", RED))
}
_SHORT = {"debug": "DEBUG", "info": "INFO ", "warning": "WARN ", "error": "ERROR"}
_DIM, _RESET = f"\x1b[{DIM}m", "\x1b[0m"


Level = Literal["debug", "info", "warning", "error"]


class Log:
    """A part's logger. A call below the level costs a look into a dict and no more."""

    __slots__ = ("_bound", "_is_enabled_for", "_logger")

    def __init__(self, logger: logging.Logger, bound: dict[str, Any] | None = None) -> None:
        self._logger = logger
        self._is_enabled_for = logger.isEnabledFor
        self._bound = bound or {}

    def bind(self, **fields: Any) -> Log:
        """The same logger, whose lines begin with these fields: `log.bind(topic="events")`."""
        return Log(self._logger, self._bound | fields)

    @property
    def is_debugging(self) -> bool:
        """Whether anybody reads debug lines: of what is many, they are not even made otherwise."""
        return self._is_enabled_for(logging.DEBUG)

    def debug(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        if self._is_enabled_for(logging.DEBUG):
            _write(self._logger, logging.DEBUG, event, exc_info, self._bound | fields if self._bound else fields)

    def info(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        if self._is_enabled_for(logging.INFO):
            _write(self._logger, logging.INFO, event, exc_info, self._bound | fields if self._bound else fields)

    def warning(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        if self._is_enabled_for(logging.WARNING):
            _write(self._logger, logging.WARNING, event, exc_info, self._bound | fields if self._bound else fields)

    def error(self, event: str, /, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        if self._is_enabled_for(logging.ERROR):
            _write(self._logger, logging.ERROR, event, exc_info, self._bound | fields if self._bound else fields)

    def counted(
        self,
        level: Level,
        event: str,
        /,
        *,
        by: Sequence[str],
        adds: Sequence[str] = (),
        tops: Sequence[str] = (),
        every_s: float = 1.0,
        exc_info: BaseException | None = None,
        **fields: Any,
    ) -> None:
        """A line at once, then one per period with a count. `by` names the fields that make the kind (bounded, like the
        labels of a metric), `adds` those that are summed, `tops` those of which the largest is shown; of the others a
        line shows the newest. Only the first line of a kind has the traceback of `exc_info`."""
        if self._is_enabled_for(LEVELS[level]):
            if self._bound:
                fields = self._bound | fields
            kind = (self._logger, LEVELS[level], event, *(fields[name] for name in by))
            _write_lines_due()
            with _repeats_lock:
                is_line = _repeats.note(kind, time.monotonic(), every_s, fields, adds=adds, tops=tops)
            if is_line:
                _write(self._logger, LEVELS[level], event, exc_info, fields)


def _write(
    logger: logging.Logger, level: int, event: str, exc_info: BaseException | None, fields: dict[str, Any]
) -> None:
    # Straight to handle(): the search for the calling line, which no line shows, is most of what a record costs.
    about = (type(exc_info), exc_info, exc_info.__traceback__) if exc_info is not None else None
    record = logger.makeRecord(logger.name, level, "", 0, event, (), about)
    record.fields = fields
    logger.handle(record)


def get(name: str) -> Log:
    """The logger of a part: `consumer`, or a module's own `__name__`."""
    name = name.removeprefix(f"{ROOT}.")
    return Log(logging.getLogger(ROOT if name in ("", ROOT) else f"{ROOT}.{name}"))


def setup(level: str, format: str, stream: TextIO | None = None) -> None:
    """Sends all logs of the process to the stream (stderr); again, it replaces what it did before."""
    stream = sys.stderr if stream is None else stream
    root = logging.getLogger()
    for handler in _handlers():
        root.removeHandler(handler)
        handler.close()
    root.addHandler(_Lines(stream, format))
    _set_level(level)
    # It warns, each time, of connections that fail or break: the module that made them logs it, with place and remedy.
    logging.getLogger("tornado.general").setLevel(logging.ERROR)
    atexit.unregister(end)
    atexit.register(end)  # a program that never set the log up has no lines to end


def change(level: str, format: str) -> None:
    """From now on lines have this level and form. No line that waits for its reader is lost, and nothing waits."""
    for handler in _handlers():
        handler.set_form(format)
    _set_level(level)


def _set_level(level: str) -> None:
    logging.getLogger().setLevel(max(logging.WARNING, LEVELS[level]))
    logging.getLogger(ROOT).setLevel(LEVELS[level])


def end(within_s: float = ENDS_WITHIN_S) -> None:
    """Writes counted and queued lines, for so long at the most. Called at exit, too."""
    with _repeats_lock:
        lines = _repeats.rest()
    _write_counted(lines)
    for handler in _handlers():
        handler.end(within_s)


def lines_dropped() -> int:
    """Since `setup`: lines that nobody read in time."""
    return sum(handler.dropped for handler in _handlers())


_repeats: Repeats[tuple[Any, ...]] = Repeats()
_repeats_lock = threading.Lock()


def _write_counted(lines: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> None:
    for (logger, level, event, *_), fields in lines:
        _write(logger, level, event, None, fields)


def _write_lines_due() -> float | None:
    """Returns in how many seconds there may be more."""
    with _repeats_lock:
        lines = _repeats.due(time.monotonic())
        next_s = _repeats.next_s
    _write_counted(lines)
    return None if next_s is None else max(0.0, next_s - time.monotonic())


def _handlers() -> list[_Lines]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, _Lines)]


class _Lines(logging.Handler):
    def __init__(self, stream: TextIO, format: str) -> None:
        super().__init__()
        self._stream = stream
        self._encoding = stream.encoding or "utf-8"
        self.set_form(format)
        # A library that set a level of its own would pass the root's by.
        self.addFilter(lambda record: record.levelno >= logging.WARNING or _is_ours(record))
        self._writer: LogWriter | None = None
        if (descriptor := _descriptor(stream)) is not None:
            self._writer = LogWriter(descriptor, self._render_dropped, _write_lines_due)

    def set_form(self, format: str) -> None:
        is_terminal = self._stream.isatty()
        human = format == "human" or (format == "auto" and is_terminal)
        colour = human and is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.setFormatter(Human(colour) if human else Json())

    @property
    def dropped(self) -> int:
        return self._writer.dropped if self._writer else 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._render(record)
            if self._writer:
                self._writer.put(line, is_urgent=record.levelno >= logging.WARNING)
            else:
                self._stream.write(line.decode(self._encoding))
                self._stream.flush()
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Nothing: the log's reader is gone, and the work goes on."""

    def end(self, within_s: float) -> None:
        if self._writer:
            self._writer.close(within_s)

    def close(self) -> None:
        self.end(ENDS_WITHIN_S)
        super().close()

    def _render(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + "\n").encode(self._encoding, "backslashreplace")

    def _render_dropped(self, lines: int) -> bytes:
        record = logging.LogRecord(f"{ROOT}.log", logging.WARNING, "", 0, "log.lines_dropped", (), None)
        record.fields = {
            "lines": lines,
            "hint": "the reader of this log fell behind: a full disk, a stopped terminal or a slow log collector?",
        }
        return self._render(record)


def _descriptor(stream: TextIO) -> int | None:
    """None: a stream in memory, which is written to at once."""
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name == ROOT or record.name.startswith(f"{ROOT}.")


def _level_of(record: logging.LogRecord) -> str:
    return next((name for name, number in reversed(LEVELS.items()) if record.levelno >= number), "debug")


def _event_and_fields(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """Event and fields, cleaned of nothing yet but each small and of a type that JSON knows."""
    if isinstance(fields := getattr(record, "fields", None), dict):
        event = str(record.msg)
    else:
        event = ROOT if _is_ours(record) else f"library.{record.name}"
        fields = {"message": _safely(record.getMessage)}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = record.exc_info[1]
    values = {(f"field_{name}" if name in _RESERVED else name): _value(value) for name, value in fields.items()}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        text = _safely(lambda: "".join(traceback.format_exception(error)).rstrip("\n"))
        values["traceback"] = _cut_front(text, TRACEBACK_LIMIT_BYTES)
    return event, values


def _safely(render: Callable[[], str]) -> str:
    try:
        return render()
    except Exception as error:
        return f"<cannot be shown: {type(error).__name__}>"


def _value(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 256 else "<a number of many digits>"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return _list(value)
    return _cut(_safely(lambda: _text(value)), FIELD_LIMIT_BYTES)


def _list(values: Sequence[Any]) -> list[Any]:
    """As many as fit into a field."""
    shown: list[Any] = []
    room_bytes = FIELD_LIMIT_BYTES
    for each in values:
        value = _value(_text(each) if isinstance(each, list | tuple) else each)
        size_bytes = len(str(value).encode("utf-8", "surrogatepass"))
        if size_bytes > room_bytes:
            return [*shown, _cut(str(value), room_bytes) if room_bytes > _LEAST_SHOWN_BYTES else "…"]
        shown.append(value)
        room_bytes -= size_bytes + 1
    return shown


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        # One byte more than is shown, so that the cut shows.
        return bytes(value[: FIELD_LIMIT_BYTES + 1]).decode("utf-8", "backslashreplace")
    if isinstance(value, BaseException):
        text = str(value)
        if type(value).__module__.startswith(f"{ROOT}."):
            return text or type(value).__name__
        return f"{type(value).__name__}: {text}" if text else type(value).__name__
    if isinstance(value, list | tuple | set | frozenset):
        return ", ".join(_text(each) for each in value)
    if isinstance(value, dict):
        return ", ".join(f"{_text(name)}={_text(each)}" for name, each in value.items())
    return str(value)


def _cut(text: str, limit_bytes: int) -> str:
    if len(text) * 4 <= limit_bytes:
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= limit_bytes:
        return text
    return encoded[: limit_bytes - 3].decode("utf-8", "ignore") + "…"


def _cut_front(text: str, limit_bytes: int) -> str:
    """Keeps the end: of a traceback that is where it happened."""
    encoded = text.encode("utf-8", "surrogatepass")
    return text if len(encoded) <= limit_bytes else "…" + encoded[-(limit_bytes - 3) :].decode("utf-8", "ignore")


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event_and_fields(record)
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": moment.replace("+00:00", "Z"), "level": _level_of(record), "event": event, **fields}
        # Escaped after encoding, in JSON's own way, so that a reader gets back the very text.
        return safe_json(json.dumps(line, ensure_ascii=False, separators=(",", ":")))


def _one_blank(text: str) -> str:
    """For several: no text fills a row of the terminal, so that what follows looks like a line of its own."""
    return _BLANKS.sub(" ", text)


class Human(logging.Formatter):
    def __init__(self, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event_and_fields(record)
        level, traceback_text = _level_of(record), fields.pop("traceback", "")
        clock = (
            f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%d %H:%M:%S}.{int(record.created * 1000) % 1000:03d}Z"
        )
        phrase = phrase_of(event, fields)
        rest = " ".join(
            [self._field(name, value) for name, value in fields.items() if phrase is None or name not in phrase.fields]
        )
        name = printable(event)
        if phrase is not None:
            name = f"{_one_blank(printable(phrase.text))}  {self._painted(name, _DIM)}"
        line = f"{self._painted(clock, _DIM)} {self._painted(_SHORT[level], _COLOURS[level])} {name}  {rest}".rstrip()
        for row in traceback_text.split("\n") if traceback_text else ():
            line += "\n    " + printable(row)
        return line

    def _painted(self, text: str, paint: str) -> str:
        return f"{paint}{text}{_RESET}" if self._colour else text

    def _field(self, name: str, value: Any) -> str:
        if isinstance(value, list):
            value = _text(value)
        if isinstance(value, str):
            shown = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
        else:
            shown = json.dumps(value)
        return f"{self._painted(f'{name}=', _DIM)}{printable(shown)}"
