"""What the demo writes: never wider than it may, coloured only where it may be."""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from nsqdigest.base import log
from nsqdigest.demo.account import Account
from nsqdigest.demo.display import PlainDisplay
from nsqdigest.demo.header import History
from nsqdigest.demo.narrator import Narrator
from nsqdigest.demo.shop import Event

pytestmark = pytest.mark.unit

LONG = "a line that is much too long for any terminal that people have, and goes on " * 4
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Stream(io.TextIOWrapper):
    """A terminal, a pipe, or a pipe without a reader."""

    def __init__(self, *, terminal: bool = False, encoding: str = "utf-8", gone: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self._terminal = terminal
        self._gone = gone

    def isatty(self) -> bool:
        return self._terminal

    def fileno(self) -> int:
        return 1

    def write(self, text: str) -> int:
        if self._gone:
            raise BrokenPipeError
        return super().write(text)

    @property
    def text(self) -> str:
        self.seek(0)
        return self.read()


def digest(message: str = "card declined") -> dict[str, Any]:
    value = {"id": 1, "severity": "error", "code": "card_declined", "message": message}
    return {
        "id": "0193", "timeline": "payments", "iteration": 2, "first": 1_000, "last": 4_000, "total": 2, "shown": 2,
        "records": [{"key": str(key), "timestamp": 1, "value": value} for key in range(2)],
        "next_earliest": "2026-11-18T09:00:00.000Z",
    }  # fmt: skip


def grouped() -> dict[str, Any]:
    data = digest()
    return {**data, "groups": [{"group": "mail", "records": data.pop("records")}]}


def narrator_on(stream: Stream) -> Narrator:
    return Narrator(PlainDisplay(stream))


def raw(number: int, message: str = "card declined") -> Event:
    return Event(number, b"", "payments", "error", message)


def tell_everything(narrator: Narrator) -> None:
    narrator.opening(30)
    narrator.running(1, 2, 3)
    narrator.page_is_at("http://127.0.0.1:4180/")
    narrator.header(History())
    narrator.published([raw(1, LONG)])
    narrator.phase(LONG)
    narrator.note(LONG)
    narrator.published_broken(LONG.encode())
    narrator.dead_letter("not-json", LONG)
    narrator.digest(digest(LONG), [1, 2])
    narrator.digest(grouped(), [1, 2])
    narrator.digest_again()
    narrator.killed()
    narrator.logged(logging.WARNING, "library.asyncio", {"message": LONG})
    account = Account()
    account.complaints.append(LONG)
    narrator.closing(account, LONG, LONG, is_broken_off=False)


@pytest.fixture
def columns(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")

    def set_columns(count: int) -> None:
        monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((count, 24)))

    return set_columns


@pytest.mark.parametrize("width", [40, 80, 100, 300])
def test_no_line_is_wider_than_the_terminal(columns: Callable[[int], None], width: int) -> None:
    columns(width)
    stream = Stream(terminal=True)
    tell_everything(narrator_on(stream))
    assert max(len(line) for line in ESCAPES.sub("", stream.text).splitlines()) <= width


def test_a_terminal_gets_colours(columns: Callable[[int], None]) -> None:
    columns(80)
    stream = Stream(terminal=True)
    tell_everything(narrator_on(stream))
    assert "\x1b[1m" in stream.text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_colours_gets_none(
    columns: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    columns(80)
    monkeypatch.setenv(name, value)
    stream = Stream(terminal=True)
    tell_everything(narrator_on(stream))
    assert "\x1b" not in stream.text


def test_a_pipe_gets_no_colours() -> None:
    stream = Stream()
    tell_everything(narrator_on(stream))
    assert "\x1b" not in stream.text
    assert "digest 2 · 2 events in 3.0 s" in stream.text


def test_a_stream_of_plain_ascii_gets_plain_ascii() -> None:
    stream = Stream(encoding="ascii")
    tell_everything(narrator_on(stream))
    assert "+ payments - digest 2" in stream.text


def test_the_events_of_a_digest_are_summed_up_by_code_and_by_group() -> None:
    stream = Stream()
    narrator = narrator_on(stream)
    narrator.digest(digest(), [1, 2])
    narrator.digest(grouped(), [1, 2])
    rows = [line.split() for line in stream.text.splitlines() if "└" in line]
    assert rows == [
        ["└", "2", "error", "card_declined", "card", "declined"],
        ["└", "2", "error", "mail", "card", "declined"],
    ]


def test_text_of_events_controls_no_terminal() -> None:
    stream = Stream()
    narrator_on(stream).digest(digest("\x1b[2J\r\n宽"), [1, 2])
    assert "?[2J???" in stream.text


def test_a_reader_who_is_gone_is_told_and_not_an_error() -> None:
    told: list[int] = []
    narrator = narrator_on(Stream(gone=True))
    narrator.on_reader_gone = lambda: told.append(1)
    narrator.note("anyone?")
    assert told


def test_a_warning_of_the_daemon_without_words_of_its_own_is_shown_with_its_fields() -> None:
    stream = Stream()
    with narrator_on(stream).showing_the_log():
        log.get("test").warning("test.odd", reason="none")
        log.get("test").info("test.usual", reason="none")
    log.get("test").info("test.later")
    assert "test.odd reason: none" in re.sub(" +", " ", stream.text)
    assert "test.usual" not in stream.text
    assert "test.later" not in stream.text


def test_an_event_whose_fields_are_others_than_its_sentence_needs_is_shown_with_them() -> None:
    stream = Stream()
    with narrator_on(stream).showing_the_log():
        log.get("test").info("consumer.topic.probing", something="else")
    assert "consumer.topic.probing something: else" in re.sub(" +", " ", stream.text)


def test_the_first_digest_of_several_shown_events_takes_them_away() -> None:
    now_s = iter(range(100))
    display = PlainDisplay(Stream())
    narrator = Narrator(display, clock=lambda: float(next(now_s)))
    for number in range(1, 6):
        narrator.published([raw(number)])
    assert len(display.page.lines) == 5
    narrator.digest(digest(), [1, 2, 4, 77, 78])
    assert [line.event for line in display.page.lines if line.event] == [3, 5]
    said = ["".join(text for _, text in line.runs) for line in display.page.lines]
    assert "3 of the dim lines and 2 events more have become one message:" in said[2]
    narrator.published([raw(9)])
    assert not any(line.event == 9 for line in display.page.lines), "it goes on"


def test_raw_events_are_shown_more_seldom_than_they_come() -> None:
    display = PlainDisplay(Stream())
    narrator = Narrator(display, clock=lambda: 0.0)
    for number in range(1, 50):
        narrator.published([raw(number)])
    assert [line.event for line in display.page.lines] == [1]


def test_the_log_of_a_daemon_is_told_in_sentences_by_its_speaker() -> None:
    stream = Stream()
    fields = {"topic": "shop", "reason": "probe-failed", "backoff_level": 2, "wait_s": 0.5}
    narrator_on(stream).logged(logging.INFO, "consumer.topic.backoff", fields, "daemon 2")
    assert "daemon 2  topic shop's probe failed (level 2): takes nothing for 0.5 s" in stream.text
