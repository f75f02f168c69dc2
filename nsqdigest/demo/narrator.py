"""The output of the demo, line by line, so that a pipe or a file gets the same text as a terminal.

Invariants:
- No line is wider than the terminal; only a terminal gets colour, and NO_COLOR turns it off.
- Text from events and logs is cleaned of control characters.
- A reader that is gone (a closed pipe) is no error here: `on_reader_gone` is called.
"""

from __future__ import annotations

import logging
import os
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from nsqdigest.base import log
from nsqdigest.base.log_sentences import phrase_of

if TYPE_CHECKING:
    from nsqdigest.demo.account import Account

WIDTH_OF_A_PIPE = 100
WIDEST, NARROWEST = 110, 40
PARAGRAPH_WIDTH = 94
SPEAKER_WIDTH = 8
_MARGIN = " " * 7
"""As wide as the time at the beginning of other lines."""

_STYLES = {
    "dim": "2", "bold": "1", "daemon": "33", "good": "32", "bad": "31", "digest": "36",
    "fatal": "1;31", "error": "31", "warning": "33",
}  # fmt: skip
_ASCII = str.maketrans({"┌": "+", "│": "|", "└": "+", "→": ">", "▶": ">", "·": "-", "…": "~"})

Part = str | tuple[str, str]
"""Text, or a style and text."""


class Narrator:
    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._began_s = clock()
        is_terminal = stream.isatty()
        self._is_terminal = is_terminal
        self._colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._ascii = not _can_show(stream, "┌│└→▶·…")
        self.on_reader_gone: Callable[[], None] = lambda: None
        self._reader_is_gone = False

    @property
    def width(self) -> int:
        if not self._is_terminal:
            return WIDTH_OF_A_PIPE
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            columns = 80
        return max(NARROWEST, min(columns or 80, WIDEST))

    # -- lines

    def _line(self, *parts: Part) -> None:
        """One line, cut where the terminal ends."""
        room = self.width
        written = []
        for part in parts:
            style, text = part if isinstance(part, tuple) else ("", part)
            text = _clean(text)
            if len(text) > room:
                text = text[: max(0, room - 1)] + "…"[:room]
            room -= len(text)
            if text:
                written.append(f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and self._colour else text)
        self._write("".join(written).rstrip() + "\n")

    def _write(self, text: str) -> None:
        try:
            if not self._reader_is_gone:
                self._stream.write(text.translate(_ASCII) if self._ascii else text)
                self._stream.flush()
        except OSError:  # a pipe that nobody reads any more, or a terminal that was closed
            self._reader_is_gone = True
        if self._reader_is_gone:
            self.on_reader_gone()

    @property
    def _time(self) -> Part:
        return "dim", f"{self._clock() - self._began_s:5.1f}  "

    def _speak(self, speaker: str, style: str, text: str, aside: str = "") -> None:
        """Wrapped where it is too long. The aside stands at the right where there is room for it."""
        first, *rest = self._wrapped(text, len(_MARGIN) + SPEAKER_WIDTH)
        room = self.width - len(_MARGIN) - SPEAKER_WIDTH - len(first) - len(aside)
        with_aside: list[Part] = [("dim", " " * room + aside)] if aside and room >= 2 and not rest else []
        self._line(self._time, (style, speaker.ljust(SPEAKER_WIDTH)), first, *with_aside)
        for line in rest:
            self._line(_MARGIN, " " * SPEAKER_WIDTH, line)

    def _wrapped(self, text: str, indent: int, widest: int = WIDEST) -> list[str]:
        return textwrap.wrap(_clean(text), min(self.width, widest) - indent) or [""]

    def close(self) -> None:
        """Keeps the interpreter from an error at exit, about text that a closed pipe did not take."""
        if self._reader_is_gone:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    # -- the play

    def opening(self, seconds: int) -> None:
        length = f"about {seconds} s" if seconds else "until Ctrl-C"
        self._line(
            ("bold", "nsqdigest demo"), ("dim", f"   {length}; Ctrl-C ends it sooner" if seconds else f"   {length}")
        )
        self._line()
        self._line(("digest", "  a shop's services → nsqd → nsqdigest → Redis → digests → a webhook"))
        self._line()
        self._paragraph(
            "Five services of a shop publish errors and warnings. The first error of a service is delivered at once; "
            "what follows is gathered, and comes as one digest every few seconds: you see what the webhook gets. On "
            "the way two events are broken, and Redis is stopped for a while: watch the daemon step back, probe and "
            "recover. At the end the demo looks for each event, by its id, at the receiver."
        )
        self._line()

    def _paragraph(self, text: str) -> None:
        for line in self._wrapped(text, 2, PARAGRAPH_WIDTH):
            self._line("  ", line)

    def running(self, nsqd_port: int, redis_port: int, webhook_port: int) -> None:
        self.note(f"running: nsqd on {nsqd_port}, Redis on {redis_port}, a webhook on {webhook_port}")

    def phase(self, text: str) -> None:
        self._line()
        first, *rest = self._wrapped(text, len(_MARGIN) + 2)
        self._line(self._time, ("bold", "▶ " + first))
        for line in rest:
            self._line(_MARGIN, ("bold", "  " + line))
        self._line()

    def note(self, text: str) -> None:
        self._speak("demo", "good", text)

    def published_broken(self, body: bytes) -> None:
        self._speak("shop", "bad", f"publishes a broken event: {_text(body)}")

    def dead_letter(self, reason: str, detail: str) -> None:
        self._speak("nsqd", "bad", f"receives its dead letter: {reason}: {detail}", "nsqdigest.dead")

    # -- digests

    def digest(self, data: dict[str, Any]) -> None:
        """A head, a row for each group (or kind of event) with its newest, and when the next may come."""
        total, span_s = data["total"], (data["last"] - data["first"]) / 1000
        events = "1 event" if total == 1 else f"{total} events"
        within = f" in {span_s:.1f} s" if span_s >= 0.1 else ""
        self._line(
            self._time,
            ("digest", "┌ "),
            ("bold", data["timeline"]),
            f" · digest {data['iteration']} · {events}{within}",
        )
        for severity, what, count, message in _summary(data):
            kind: list[Part] = [f"{count:>3} ", (severity, severity.ljust(8)), what.ljust(16)]
            self._line(_MARGIN, ("digest", "│ "), *kind, ("dim", message))
        next_s = datetime.fromisoformat(data["next_earliest"]).timestamp() - time.time()
        self._line(_MARGIN, ("digest", "└ "), ("dim", f"the next one in {max(0.0, next_s):.1f} s at the earliest"))

    def digest_again(self) -> None:
        self.note("that digest came again, with the same id and the same bytes: its receiver has it already")

    # -- the daemon's log

    @contextmanager
    def showing_the_log(self) -> Iterator[None]:
        """Inside, log lines of the daemon and of libraries are shown: those with a phrase, and all warnings."""
        handler, root, ours = _LogHandler(self), logging.getLogger(), logging.getLogger(log.ROOT)
        level = ours.level
        root.addHandler(handler)
        ours.setLevel(logging.INFO)
        try:
            yield
        finally:
            ours.setLevel(level)
            root.removeHandler(handler)

    def logged(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if event in _NOT_SHOWN or (event == "consumer.topic.ramping" and fields["limit"] > 1):
            return
        if event not in _SHOWN and level < logging.WARNING:
            return
        phrase = phrase_of(event, fields)
        if phrase is not None:
            self._speak("daemon", "daemon", phrase.text, event)
        else:
            text = ", ".join(f"{name}: {value}" for name, value in fields.items())
            self._speak("daemon", "daemon", f"{event}  {text}")

    # -- the end

    def closing(self, account: Account, stored: int | None, is_broken_off: bool) -> None:
        shown_twice = f", {account.repeated} shown twice" if account.repeated else ""
        rows = (
            ("published", account.published, f"events, {account.broken} of them broken"),
            ("stored", stored, "in Redis"),
            ("delivered", account.delivered, f"to the webhook, signed{shown_twice}"),
            ("digests", len(account.digests), "no id with two bodies"),
            ("dead letters", account.dead_letters, "each with its reason"),
            ("lost", account.open, "had not arrived yet" if is_broken_off else "looked for by id at the receiver"),
        )
        self._line()
        for name, count, what in rows:
            style = "bold" if name != "lost" else "good" if account.is_right else "bad"
            self._line("  ", name.ljust(13), (style, f"{'?' if count is None else count:>6}"), ("dim", f"   {what}"))
        self._line()
        for complaint in account.complaints:
            self._line("  ", ("bad", complaint))
        if account.is_right:
            self._line("  ", ("good", "Nothing was lost."), " With an NSQ of your own: nsqdigest run -c nsqdigest.toml")
        else:
            self._line("  ", ("bad", "Ended too early." if is_broken_off else "This should not have happened."))


class _LogHandler(logging.Handler):
    def __init__(self, narrator: Narrator) -> None:
        super().__init__()
        self._narrator = narrator

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = getattr(record, "fields", None)
            if fields is not None:
                self._narrator.logged(record.levelno, str(record.msg), fields)
            else:
                self._narrator.logged(record.levelno, f"library.{record.name}", {"message": record.getMessage()})
        except Exception:
            self.handleError(record)  # a log line never breaks the daemon


_SHOWN = frozenset(
    {
        "connection.compression.not_offered", "consumer.store.failed", "consumer.topic.backoff",
        "consumer.topic.probing", "consumer.topic.ramping", "consumer.topic.flowing", "scheduler.sink.backoff",
        "discovery.lookupd.failed", "discovery.address.unusable", "scheduler.claim.found", "scheduler.store.failed",
        "scheduler.store.back",
    }
)  # fmt: skip
"""Events that the play is about; of others the warnings are shown."""
_NOT_SHOWN = frozenset({"consumer.message.dead_lettered"})
"""The arrival of the letter is shown instead."""


def _summary(data: dict[str, Any]) -> list[tuple[str, str, int, str]]:
    """Severity, what, how many, the newest message: by group where there are groups, else by code. Newest first."""
    rows: dict[str, list[dict[str, Any]]] = {}
    if "groups" in data:
        rows = {str(group["group"]): [record["value"] for record in group["records"]] for group in data["groups"]}
    else:
        for record in data["records"]:
            rows.setdefault(record["value"]["code"], []).append(record["value"])
    return [(values[0]["severity"], what, len(values), values[0]["message"]) for what, values in rows.items()]


def _clean(text: str) -> str:
    """Only printable characters of one column each, so that the length of a line is its width."""
    return "".join(
        character if character.isprintable() and unicodedata.east_asian_width(character) not in "WF" else "?"
        for character in text
    )


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
