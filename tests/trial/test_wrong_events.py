"""Wrong events, as publishers write them: `try` names the fault of each, and what to do about it."""

from __future__ import annotations

import gzip

import pytest

from nsqdigest.config import parse_text
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.trial import report
from nsqdigest.trial.events import Event
from nsqdigest.trial.trial import Result, Trial

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_000
FILE = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]

[sinks.out]
type = "log"

[[routes]]
name = "errors"
topic = "events"
match = {kind = ["error", "fatal"]}
timeline = "user:{user.id}"
key = "{order}"
timestamp = "at"
group = "kind"
sink = "out"
"""
TRIAL = Trial(parse_text(FILE, "f.toml", {}, KINDS), "events")
GOOD = b'{"user":{"id":42},"order":"o1","at":1700000000,"kind":"error"}'
AN_EVENT = 'an event is a JSON object, {"user": "ada"}'


def but(old: bytes, new: bytes) -> bytes:
    assert old in GOOD
    return GOOD.replace(old, new)


WRONG = {
    # what it is: the event, its result or reason, a part of the detail, a part of the hint
    "plain text": (b"login failed", "not-json", "invalid character (byte 0)", AN_EVENT),
    "a form": (b"user=ada&what=login", "not-json", "invalid character", "this is a form"),
    "XML": (b"<event user='ada'/>", "not-json", "invalid character", "this is XML or HTML"),
    "YAML": (b"user: ada", "not-json", "invalid character", AN_EVENT),
    "a Python dict": (b"{'user': 'ada'}", "not-json", "keys must be strings (byte 1)", "json.dumps(event)"),
    "JavaScript": (b'{user: "ada"}', "not-json", "keys must be strings", "names of fields stand in double quotes"),
    "curly quotes": ("{“user”: 1}".encode(), "not-json", "keys must be strings", "curly quotes"),
    "a comma too many": (b'{"user":"ada",}', "not-json", "trailing comma", "leave out the comma"),
    "cut off": (GOOD[:-5], "not-json", "truncated", "its end is missing"),
    "two in one": (GOOD + GOOD, "not-json", "trailing characters", "a message holds one event"),
    "blank": (b"  ", "not-json", "truncated", "this is blank"),
    "NaN": (but(b'"o1"', b"NaN"), "not-json", "invalid character", "no NaN and no Infinity"),
    "Python's None": (but(b'"o1"', b"None"), "not-json", "invalid character", "true, false and null"),
    "a comment": (but(b'{"user', b'{/* me */"user'), "not-json", "keys must be strings", "JSON has no comments"),
    "an escape of Python": (but(b"o1", rb"\x41"), "not-json", "invalid escape", r"a \ is written \\"),
    "half a character": (but(b"o1", rb"\ud800"), "not-json", "without its second half", "the whole character"),
    "digits without end": (but(b'"o1"', b"9" * 5000), "bad-field", "out of range", "publish it as text"),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, "not-json", "(byte 0)", "byte order mark"),
    "UTF-16": (GOOD.decode().encode("utf-16"), "not-utf8", "byte 0 of the body", "this is UTF-16"),
    "Latin-1": (but(b"o1", b"caf\xe9"), "not-utf8", "byte 30 of the body", "Latin-1"),
    "gzip": (gzip.compress(GOOD), "not-utf8", "is not UTF-8", "this is gzip"),
    "an array": (b"[" + GOOD + b"]", "not-an-object", "not an object", "each element of the array"),
    "a string": (b'"login failed"', "not-an-object", "not an object", AN_EVENT),
    "too deep": (but(b'"o1"', b"[" * 70 + b"]" * 70), "too-deep", "limits.depth", ""),
    "too large": (but(b"o1", b"x" * 70_000), "too-large", "70060 bytes; limits.event allows 65536", "limits.event"),
    "a field named otherwise": (but(b'"id"', b'"uid"'), "missing-field", '"user.id" is not', 'mean "user.uid"?'),
    "a field elsewhere": (
        but(b'"user":{"id":42}', b'"user":1,"actor":{"id":1}'), "missing-field", '"user.id" is not', 'mean "actor.id"?',
    ),
    "a field that is null": (but(b"42", b"null"), "missing-field", '"user.id" is null', ""),
    "another event": (b'{"kind":"error","x":1}', "missing-field", '"user.id" is not', "it has the fields kind, x"),
    "an object for a name": (but(b"42", b"{}"), "bad-field", '"user.id" is an object', ""),
    "an empty key": (but(b'"o1"', b'""'), "bad-field", "key would be empty", ""),
    "a line break in a key": (but(b"o1", rb"a\nb"), "bad-field", "control character U+000A", ""),
    "a key too long": (but(b"o1", b"x" * 300), "bad-field", "300 bytes; limits.key allows 256", ""),
    "a number beyond all": (but(b"1700000000", b"1e999"), "bad-field", "out of range", "publish it as text"),
    "a date in words": (but(b"1700000000", b'"yesterday"'), "bad-timestamp", "neither a number nor RFC 3339", ""),
    "a date without a zone": (but(b"1700000000", b'"2023-11-14T22:13:20"'), "bad-timestamp", "has no zone", ""),
    "a clock ahead": (but(b"1700000000", b"1700000900"), "bad-timestamp", "lies 900 s ahead; limits.future", ""),
    "microseconds": (but(b"1700000000", b"1700000000000000"), "bad-timestamp", "years 1970 and 2112", "microseconds"),
    "no timestamp": (but(b'"at"', b'"at_"'), "bad-timestamp", '"at" is not there', 'did you mean "at_"?'),
    "another value": (but(b'"error"', b'"info"'), "unmatched", 'kind is "info"; it takes "error" or "fatal"', ""),
    "another case": (but(b'"error"', b'"Error"'), "unmatched", 'kind is "Error"; it takes', ""),
    "no such field": (but(b'"kind"', b'"Kind"'), "unmatched", "kind is not there; it takes", 'did you mean "Kind"?'),
}  # fmt: skip


def shown(body: bytes) -> str:
    tried = TRIAL.try_event(Event(1, body), NOW_MS)
    return "\n".join(report.lines([tried], "nsqdigest.dead"))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_event_names_its_fault_and_the_remedy(what: str) -> None:
    body, result, detail, hint = WRONG[what]
    tried = TRIAL.try_event(Event(1, body), NOW_MS)
    assert (tried.reason or tried.result) == result
    text = " ".join(shown(body).split())
    assert detail in text
    if hint:
        assert f"-> {hint}" in text or any(hint in each for each in tried.hints), text
    else:
        assert "->" not in text, "a detail that says all needs no hint"
    assert not report.is_fine([tried])


def test_a_good_event_has_nothing_to_say() -> None:
    tried = TRIAL.try_event(Event(1, GOOD), NOW_MS)
    assert (tried.result, tried.hints) == (Result.TAKEN, [])


def test_the_place_of_a_mistake_in_json_is_marked() -> None:
    rows = shown(b'{"user": "ada", "what": None}').splitlines()
    assert rows[1] == "  detail    JSON is malformed: invalid character (byte 24)"
    assert rows[3] == " " * rows[2].index("None}") + "^"


def test_the_mark_stands_right_behind_what_a_terminal_would_not_show() -> None:
    rows = shown(b'{"a": "\xe2\x80\xae\xc3\xa9", "b": x}').splitlines()
    assert rows[2].strip() == r'{"a": "\u202e' + 'é", "b": x}'
    assert rows[2][rows[3].index("^")] == "x"
