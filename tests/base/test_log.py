"""Logs: one line an event, safe for whoever reads it, and never in the way of the work."""

from __future__ import annotations

import io
import json
import logging
import re
import time
import timeit
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base import log
from nsqdigest.base.errors import ConnectionLost
from nsqdigest.base.screen import RED
from nsqdigest.config import Secret

pytestmark = pytest.mark.unit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("nsqdigest")
    handlers, levels = root.handlers[:], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def lines(level: str = "info", style: str = "json") -> io.StringIO:
    stream = io.StringIO()
    log.setup(level, style, stream)
    return stream


def logged(**fields: Any) -> dict[str, Any]:
    """The fields of one event, as a reader of the JSON gets them."""
    stream = lines()
    log.get("test").info("test.event", **fields)
    line: dict[str, Any] = json.loads(stream.getvalue())
    return {name: value for name, value in line.items() if name not in ("time", "level", "event")}


def human(event: str = "test.event", **fields: Any) -> str:
    stream = lines(style="human")
    log.get("test").info(event, **fields)
    return stream.getvalue()


def fields_of(line: str) -> list[tuple[str, Any]]:
    return list(json.loads(line).items())[3:]


def test_bound_fields_begin_each_line_of_the_bound_logger_alone() -> None:
    stream = lines()
    plain = log.get("test")
    bound = plain.bind(topic="events").bind(nsqd="a:1")
    bound.info("test.event", rdy=5)
    plain.info("test.event", rdy=5)
    first, second = stream.getvalue().splitlines()
    assert fields_of(first) == [("topic", "events"), ("nsqd", "a:1"), ("rdy", 5)]
    assert fields_of(second) == [("rdy", 5)]


def test_a_field_of_the_call_comes_before_the_bound_one() -> None:
    stream = lines()
    log.get("test").bind(topic="events").info("test.event", topic="others")
    assert fields_of(stream.getvalue()) == [("topic", "others")]


def test_bound_fields_tell_kinds_apart_and_are_shown_once() -> None:
    stream = lines()
    for topic in ("bound-a", "bound-b"):
        log.get("test").bind(topic=topic).counted("info", "test.bound", by=("topic",), id=1)
    assert [fields_of(line) for line in stream.getvalue().splitlines()] == [
        [("topic", "bound-a"), ("id", 1)],
        [("topic", "bound-b"), ("id", 1)],
    ]


def test_json_is_one_object_a_line() -> None:
    stream = lines()
    log.get("consumer").warning("consumer.topic.backoff", level=1, wait_s=2.1, topic="events")
    assert stream.getvalue().endswith("}\n")
    line = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    # A field that would take the name of one of the three steps aside.
    assert line == {
        "level": "warning",
        "event": "consumer.topic.backoff",
        "field_level": 1,
        "wait_s": 2.1,
        "topic": "events",
    }


CLOCK = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z"


def test_for_people_it_is_a_clock_a_level_an_event_and_fields() -> None:
    stream = lines(style="human")
    log.get("consumer").warning("test.event", attempt=1, wait_s=2.1, why="no answer", last=None, of=["a", 1])
    expected = r'WARN  test\.event  attempt=1 wait_s=2\.1 why="no answer" last=null of="a, 1"'
    assert re.fullmatch(rf"{CLOCK} {expected}\n", stream.getvalue())
    assert human().endswith(" INFO  test.event\n")


def test_for_people_an_event_with_a_sentence_begins_with_it() -> None:
    shown = human("consumer.nsqd.found", topic="events", nsqd="127.0.0.1:4150", lookupd="127.0.0.1:4161", odd=7)
    expected = (
        "INFO  nsqlookupd 127.0.0.1:4161 names an nsqd for topic events: 127.0.0.1:4150  consumer.nsqd.found  odd=7"
    )
    assert re.fullmatch(rf"{CLOCK} {re.escape(expected)}\n", shown)


def test_what_a_sentence_needs_and_the_event_has_not_leaves_the_event_and_its_fields() -> None:
    assert human("consumer.nsqd.found", topic="events").endswith(" INFO  consumer.nsqd.found  topic=events\n")


def test_the_clock_for_people_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        shown = datetime.fromisoformat(human().split(" INFO")[0])
        assert abs(shown.timestamp() - time.time()) < 60
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("style", "stream", "is_json"),
    [("auto", io.StringIO, True), ("auto", Terminal, False), ("human", io.StringIO, False), ("json", Terminal, True)],
)
def test_auto_looks_for_a_terminal(style: str, stream: type[io.StringIO], is_json: bool) -> None:
    output = stream()
    log.setup("info", style, output)
    log.get("test").info("test.event")
    assert output.getvalue().startswith("{") is is_json


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(stream: io.StringIO) -> str:
        log.setup("info", "human", stream)
        log.get("test").error("test.event", attempt=1)
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert f"\x1b[{RED}mERROR\x1b[0m" in written(Terminal())
    assert "\x1b" not in written(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in written(Terminal())
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in written(Terminal())


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_levels(level: str, expected: list[str]) -> None:
    stream = lines(level)
    logger = log.get("test")
    for write in (logger.debug, logger.info, logger.warning, logger.error):
        write("test.event")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == expected


def test_a_module_may_give_its_own_name() -> None:
    stream = lines()
    log.get("nsqdigest.log").info("test.event")
    log.get("nsqdigest").info("test.event")
    assert len(stream.getvalue().splitlines()) == 2
    assert "nsqdigest.nsqdigest" not in logging.Logger.manager.loggerDict


def test_setting_up_again_replaces_and_leaves_others_alone() -> None:
    other = logging.NullHandler()
    logging.getLogger().addHandler(other)
    first, second = lines(), lines()
    log.get("test").info("test.event")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1
    assert other in logging.getLogger().handlers


def test_level_and_form_change_without_an_end_of_the_stream() -> None:
    stream = lines()
    write = log.get("test").debug
    write("test.event")
    log.change("debug", "human")
    write("test.event")
    log.change("info", "json")
    write("test.event")
    log.get("test").info("test.event")
    [human_line, json_line] = stream.getvalue().splitlines()
    assert "DEBUG test.event" in human_line
    assert json.loads(json_line)["event"] == "test.event"


def test_stderr_is_where_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("info", "json")
    log.get("test").info("test.event")
    captured = capsys.readouterr()
    assert '"event":"test.event"' in captured.err
    assert captured.out == ""


# -- fields


def test_fields_keep_their_type_where_json_has_it() -> None:
    fields = {"whole": 5, "part": 0.5, "on": True, "none": None, "text": "é", "path": Path("/a/b")}
    assert logged(**fields) == {**fields, "path": "/a/b"}


def test_lists_stay_lists_of_what_fits_into_a_field() -> None:
    assert logged(a=[1, "a", None, 0.5], b=(b"x", Path("/a")), c=[], d=[[1, 2], {"a": 1}]) == {
        "a": [1, "a", None, 0.5], "b": ["x", "/a"], "c": [], "d": ["1, 2", "a=1"],
    }  # fmt: skip
    (many,) = logged(many=["x" * 99] * 50).values()
    assert many == [*["x" * 99] * 10, "x" * 21 + "…"]
    (many,) = logged(many=["x" * 63] * 50).values()
    assert many == [*["x" * 63] * 16, "…"]


def test_fields_that_json_has_no_type_for_become_text() -> None:
    assert logged(table={"a": b"b"}, nan=float("nan"), inf=float("-inf"), huge=10**5000) == {
        "table": "a=b",
        "nan": "nan",
        "inf": "-inf",
        "huge": "<a number of many digits>",
    }


def test_bytes_are_shown_as_text_as_far_as_they_are() -> None:
    assert logged(id=b"0a1b", body=b"a\xff\x00", view=memoryview(b"xy")) == {
        "id": "0a1b",
        "body": "a\\xff\x00",
        "view": "xy",
    }


def test_a_secret_stays_one() -> None:
    assert "hunter2" not in str(logged(token=Secret("hunter2"), all=[Secret("hunter2")]))


def test_an_error_is_text_and_its_traceback_comes_on_request() -> None:
    try:
        raise OSError(111, "Connection refused")
    except OSError as caught:
        error = caught
    assert logged(error=error) == {"error": "ConnectionRefusedError: [Errno 111] Connection refused"}
    assert logged(error=ConnectionLost("nsqd 127.0.0.1:4150 fell silent")) == {
        "error": "nsqd 127.0.0.1:4150 fell silent"
    }
    assert logged(error=TimeoutError()) == {"error": "TimeoutError"}
    assert "in test_an_error_is_text_and_its_traceback" in logged(exc_info=error)["traceback"]
    shown = human(exc_info=error)
    assert shown.splitlines()[1] == "    Traceback (most recent call last):"
    assert shown.splitlines()[-1] == "    ConnectionRefusedError: [Errno 111] Connection refused"


@pytest.mark.parametrize("value", ["x" * 5000, "é" * 5000, b"\xff" * 5000, ["y" * 5000], ValueError("z" * 5000)])
def test_a_field_has_at_most_1_kib(value: Any) -> None:
    (text,) = logged(value=value).values()
    (text,) = text if isinstance(text, list) else [text]
    assert 1000 < len(text.encode()) <= 1024
    assert text.endswith("…")


def test_1_kib_is_left_whole() -> None:
    assert logged(value="x" * 1024) == {"value": "x" * 1024}


def test_of_a_long_traceback_the_end_is_kept() -> None:
    text = logged(exc_info=ValueError("x" * 50_000 + "end"))["traceback"]
    assert len(text.encode()) <= 16 * 1024
    assert text.startswith("…")
    assert text.endswith("end")


def test_what_can_not_be_shown_is_said_so() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    assert logged(value=Broken()) == {"value": "<cannot be shown: RuntimeError>"}


def test_no_name_of_a_field_looks_like_a_line_of_the_log() -> None:
    fake = "x" + 70 * " " + "2026-11-19 12:00:01.000Z ERROR Redis has lost 9,120 records"
    shown = human("consumer.event.unmatched", topic="t", events=1, fields_of_one=["user", fake, "b\u3164c"])
    assert 'one with the fields user, "x 2026-11-19 12:00:01.000Z ERROR' in shown
    assert '"b\\u3164c"' in shown


@given(st.text(st.characters(), max_size=50), st.sampled_from(["json", "human"]))
def test_no_text_breaks_a_line_or_steers_a_terminal(text: str, style: str) -> None:
    stream = lines(style=style)
    log.get("test").info("test.event", value=text, name=text)
    logging.getLogger("other").warning("%s", text)
    written = stream.getvalue()
    assert written.count("\n") == 2
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", written)
    written.encode("utf-8")
    if style == "json":
        assert [json.loads(line).get("value", text) for line in written.splitlines()] == [text, text]


# -- libraries


def test_libraries_come_from_warning_on_under_their_name() -> None:
    stream = lines("debug")
    logger = logging.getLogger("tornado.access")
    logger.info("not this")
    logger.warning("%d %s", 500, "GET /")
    (line,) = [json.loads(each) for each in stream.getvalue().splitlines()]
    assert (line["event"], line["message"]) == ("library.tornado.access", "500 GET /")


def test_a_library_with_a_level_of_its_own_is_no_louder() -> None:
    stream = lines()
    logger = logging.getLogger("loud.library")
    logger.setLevel(logging.DEBUG)
    logger.info("not this")
    assert stream.getvalue() == ""


def test_a_librarys_exception_comes_with_its_traceback() -> None:
    stream = lines()
    try:
        raise ValueError("bad")
    except ValueError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    line = json.loads(stream.getvalue())
    assert (line["level"], line["error"]) == ("error", "ValueError: bad")
    assert line["traceback"].endswith("ValueError: bad")


def test_a_librarys_wrong_arguments_are_survived() -> None:
    record = logging.makeLogRecord({"name": "other", "levelno": logging.ERROR, "msg": "%d", "args": ("text",)})
    assert json.loads(log.Json().format(record))["message"] == "<cannot be shown: TypeError>"


# -- never in the way


def test_a_stream_that_is_gone_stops_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    stream = lines()
    stream.close()
    log.get("test").error("test.event")
    assert capsys.readouterr().err == ""


def test_a_stream_that_knows_ascii_alone_gets_it() -> None:
    raw = io.BytesIO()
    log.setup("info", "json", io.TextIOWrapper(raw, encoding="ascii", write_through=True))
    log.get("test").info("test.event", value="é")
    assert rb"\xe9" in raw.getvalue()


def test_what_is_off_costs_next_to_nothing() -> None:
    lines("info")
    logger = log.get("test")
    on = min(timeit.repeat(lambda: logger.info("test.event", attempt=1), number=500, repeat=5))
    off = min(timeit.repeat(lambda: logger.debug("test.event", attempt=1), number=500, repeat=5))
    assert off * 5 < on
