"""What the demo says: the play, what arrives, and the sentences of the daemon's log, as lines for a display.

Invariants:
- A pipe gets the same text as a terminal.
- Text from events and logs is cleaned of control characters (`lines`).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nsqdigest.base import log
from nsqdigest.base.log_sentences import phrase_of
from nsqdigest.base.words import counted
from nsqdigest.demo.display import WIDEST
from nsqdigest.demo.lines import Part, wrapped

if TYPE_CHECKING:
    from nsqdigest.demo.account import Account
    from nsqdigest.demo.display import PlainDisplay
    from nsqdigest.demo.header import History
    from nsqdigest.demo.shop import Event

PARAGRAPH_WIDTH = 94
SPEAKER_WIDTH = 10
FRAME_ROWS = 25
"""Of a picture, below the header."""
NOISE_EVERY_S = 0.15
"""So often is a raw event shown, until the first digest that has several of those."""
LEAST_SWALLOWED = 3
_MARGIN = " " * 7
"""As wide as the time at the beginning of other lines."""


class Narrator:
    def __init__(self, display: PlainDisplay, clock: Callable[[], float] = time.monotonic) -> None:
        self._display = display
        self._clock = clock
        self._began_s = clock()
        self._page_url = ""
        self._is_noisy = True
        self._noise_s = 0.0
        self._noise: set[int] = set()
        """The numbers of the raw events that were shown."""
        self._moments_left = set(_MOMENTS)

    @property
    def on_reader_gone(self) -> Callable[[], None]:
        return self._display.on_reader_gone

    @on_reader_gone.setter
    def on_reader_gone(self, call: Callable[[], None]) -> None:
        self._display.on_reader_gone = call

    @property
    def now_s(self) -> float:
        """Since it began."""
        return self._clock() - self._began_s

    # -- lines

    def _line(self, *parts: Part, event: int = 0) -> None:
        self._display.line(*parts, event=event)

    @property
    def _time(self) -> Part:
        return "dim", f"{self.now_s:5.1f}  "

    def _speak(self, speaker: str, style: str, text: str, aside: str = "") -> None:
        """Wrapped where it is too long. The aside stands at the right where there is room for it."""
        first, *rest = self._wrapped(text, len(_MARGIN) + SPEAKER_WIDTH)
        self._line(
            self._time, (style, speaker.ljust(SPEAKER_WIDTH)), first,
            *([] if rest else self._aside(len(_MARGIN) + SPEAKER_WIDTH + len(first), aside)),
        )  # fmt: skip
        for line in rest:
            self._line(_MARGIN, " " * SPEAKER_WIDTH, line)

    def _aside(self, used: int, text: str) -> Sequence[Part]:
        room = self._display.width - used - len(text)
        return [("dim", " " * room + text)] if text and room >= 2 else []

    def _wrapped(self, text: str, indent: int, widest: int = WIDEST) -> list[str]:
        return wrapped(text, min(self._display.width, widest) - indent)

    def stop_the_process(self) -> None:
        """For Ctrl-Z: the terminal is the shell's meanwhile."""
        self._display.suspend()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._display.resume()

    # -- the header

    def header(self, history: History) -> None:
        width = self._display.width
        where = f"── the page: {self._page_url} " if self._page_url else "── nsqdigest demo "
        rule: list[Part] = [("dim", where + "─" * max(0, width - len(where)))]
        self._display.set_header([*history.lines(width), rule])

    def keep_frame(self) -> None:
        self._display.keep_frame(FRAME_ROWS)

    # -- the play

    def opening(self, seconds: int) -> None:
        length = f"about {seconds} s" if seconds else "until Ctrl-C"
        self._line(
            ("bold", "nsqdigest demo"), ("dim", f"   {length}; Ctrl-C ends it sooner" if seconds else f"   {length}")
        )
        self._line()
        for line in self._wrapped("a shop's services → nsqd → nsqdigest → Redis → digests → a webhook", 2):
            self._line("  ", ("digest", line))
        self._line()
        self._paragraph(
            "Five services of a shop publish errors and warnings. The first error of a service is delivered at once; "
            "what follows is gathered, and comes as one digest every few seconds: you see what the webhook gets. On "
            "the way two events are broken, Redis is stopped for a while, and the daemon is killed with kill -9 while "
            "it delivers. At the end the demo looks for each event, by its id, at the receiver."
        )
        self._line()

    def _paragraph(self, text: str) -> None:
        for line in self._wrapped(text, 2, PARAGRAPH_WIDTH):
            self._line("  ", line)

    def running(self, nsqd_port: int, redis_port: int, webhook_port: int) -> None:
        self.note(f"running: nsqd on {nsqd_port}, Redis on {redis_port}, a webhook on {webhook_port}")

    def page_is_at(self, url: str) -> None:
        self._page_url = url
        self.note(f"the page: {url}")

    def phase(self, text: str) -> None:
        self._is_noisy = False
        self._line()
        first, *rest = self._wrapped(text, len(_MARGIN) + 2)
        self._line(self._time, ("bold", "▶ " + first))
        for line in rest:
            self._line(_MARGIN, ("bold", "  " + line))
        self._line()

    def killed(self) -> None:
        self.phase(
            "kill -9: the daemon dies while it delivers this digest; its receiver has it, and nobody has noted that. A "
            "second daemon takes over."
        )
        self.keep_frame()

    def note(self, text: str) -> None:
        self._speak("demo", "good", text)

    def published(self, events: Sequence[Event]) -> None:
        """Of the first ones some are shown, as they come: this is what nobody wants to read."""
        if not (self._is_noisy and events and self.now_s >= self._noise_s):
            return
        self._noise_s = self.now_s + NOISE_EVERY_S
        event = events[0]
        self._noise.add(event.number)
        text = f"{event.service}: {event.severity}: {event.message}"
        self._line(self._time, ("dim", "event".ljust(SPEAKER_WIDTH)), ("dim", text), event=event.number)

    def published_broken(self, body: bytes) -> None:
        self._speak("shop", "bad", f"publishes a broken event: {_text(body)}")

    def dead_letter(self, reason: str, detail: str) -> None:
        self._speak("nsqd", "bad", f"receives its dead letter: {reason}: {detail}", "nsqdigest.dead")

    # -- digests

    def digest(self, data: dict[str, Any], numbers: Sequence[int]) -> None:
        """A head, and a row for each group (or kind of event) with its newest. `numbers`: of its events."""
        is_first_of_several = self._swallow(numbers)
        total, span_s = data["total"], (data["last"] - data["first"]) / 1000
        within = f" in {span_s:.1f} s" if span_s >= 0.1 else ""
        head = f" · digest {data['iteration']} · {counted(total, 'event')}{within}"
        next_s = datetime.fromisoformat(data["next_earliest"]).timestamp() - time.time()
        aside = f"the next one in {max(0.0, next_s):.1f} s at the earliest"
        used = len(_MARGIN) + 2 + len(data["timeline"]) + len(head)
        self._line(self._time, ("digest", "┌ "), ("bold", data["timeline"]), head, *self._aside(used, aside))
        rows = _summary(data)
        for number, (severity, what, count, message) in enumerate(rows, 1):
            kind: list[Part] = [f"{count:>3} ", (severity, severity.ljust(8)), what.ljust(16)]
            self._line(_MARGIN, ("digest", "│ " if number < len(rows) else "└ "), *kind, ("dim", message))
        if is_first_of_several:
            self.keep_frame()

    def _swallow(self, numbers: Sequence[int]) -> bool:
        """Takes the raw events of a digest away. Returns whether it is the first that stands for several of them."""
        swallowed = self._noise.intersection(numbers)
        self._noise -= swallowed
        self._display.take_away(swallowed)
        if not self._is_noisy or len(swallowed) < LEAST_SWALLOWED:
            return False
        self._is_noisy = False
        others = len(numbers) - len(swallowed)
        what = f"{len(swallowed)} of the dim lines" + (f" and {counted(others, 'event')} more" if others else "")
        self.note(f"{what} have become one message:")
        return True

    def digest_again(self) -> None:
        self.note("that digest came again with the same id and bytes: its receiver has it already")
        self.keep_frame()

    # -- the daemon's log

    @contextmanager
    def showing_the_log(self) -> Iterator[None]:
        """Inside, warnings of this process are shown: of its nsqd, its receivers and of libraries."""
        handler, root = _LogHandler(self), logging.getLogger()
        ours = logging.getLogger(log.ROOT)
        level = ours.level
        root.addHandler(handler)
        ours.setLevel(logging.INFO)
        try:
            yield
        finally:
            ours.setLevel(level)
            root.removeHandler(handler)

    def logged(self, level: int, event: str, fields: dict[str, Any], speaker: str = "daemon") -> None:
        """Lines with a phrase that the play is about, and all warnings."""
        if event in _NOT_SHOWN or (event == "consumer.topic.ramping" and fields.get("limit", 0) > 1):
            return
        if event not in _SHOWN and level < logging.WARNING:
            return
        phrase = phrase_of(event, fields)
        if phrase is not None:
            self._speak(speaker, "daemon", phrase.text, event)
        else:
            text = ", ".join(f"{name}: {value}" for name, value in fields.items())
            self._speak(speaker, "daemon", f"{event}  {text}")
        if event in self._moments_left:
            self._moments_left.remove(event)
            self.keep_frame()

    # -- the end

    def closing(self, account: Account, ledger: str, sentence: str, is_broken_off: bool) -> None:
        """`ledger`: what Redis counted. `sentence`: all of it in one."""
        self._display.close()
        twice = [f"{account.repeated} events shown twice"] if account.repeated else []
        again = f", {account.came_again} came twice with the same bytes" if account.came_again else ""
        rows = (
            ("published", account.published, f"events, {account.broken} of them broken"),
            ("delivered", account.delivered, ", ".join(["to the webhook, signed", *twice])),
            ("digests", len(account.digests), f"no id with two bodies{again}"),
            ("dead letters", account.dead_letters, "each with its reason"),
            ("lost", account.open, "had not arrived yet" if is_broken_off else "looked for by id at the receiver"),
        )
        self._line()
        for name, count, what in rows:
            style = "bold" if name != "lost" else "good" if account.is_right else "bad"
            self._row(name, (style, f"{count:>6,}"), what)
        if ledger:
            self._row("ledger", " " * 6, ledger)
        self._line()
        for complaint in account.complaints:
            for line in self._wrapped(complaint, 2):
                self._line("  ", ("bad", line))
        if not account.is_right:
            self._line("  ", ("bad", "Ended too early." if is_broken_off else "This should not have happened."))
        for line in self._wrapped(sentence, 2):
            self._line("  ", ("bold", line))
        if account.is_right:
            for line in self._wrapped("With an NSQ of your own: nsqdigest init, then nsqdigest run", 2):
                self._line("  ", ("dim", line))
        self.keep_frame()

    def _row(self, name: str, count: Part, what: str) -> None:
        """Of the bill."""
        first, *rest = self._wrapped(what, 24)
        self._line("  ", name.ljust(13), count, ("dim", f"   {first}"))
        for line in rest:
            self._line(" " * 24, ("dim", line))


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
        "scheduler.store.back", "scheduler.lease.ran_out",
    }
)  # fmt: skip
"""Events that the play is about; of others the warnings are shown."""
_NOT_SHOWN = frozenset({"config.advice", "consumer.message.dead_lettered"})
"""The advice is about the demo's own file; the arrival of a letter is shown instead."""
_MOMENTS = frozenset({"consumer.topic.probing", "consumer.topic.flowing"})
"""Those that a picture shows."""


def _summary(data: dict[str, Any]) -> list[tuple[str, str, int, str]]:
    """Severity, what, how many, the newest message: by group where there are groups, else by code. Newest first."""
    rows: dict[str, list[dict[str, Any]]] = {}
    if "groups" in data:
        rows = {str(group["group"]): [record["value"] for record in group["records"]] for group in data["groups"]}
    else:
        for record in data["records"]:
            rows.setdefault(record["value"]["code"], []).append(record["value"])
    return [(values[0]["severity"], what, len(values), values[0]["message"]) for what, values in rows.items()]


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")
