"""shown.py: what a publisher sent reaches no terminal raw, and no parser changed."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.shown import as_json, printable, raw_json

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("user:é-日本", "user:é-日本"),
        ("\x1b[31mred", "\\u001b[31mred"),
        ("a\nb\tc\x9b", "a\\u000ab\\u0009c\\u009b"),
        ("a\u202eb\u2066c\u200bd\ufeff", "a\\u202eb\\u2066c\\u200bd\\ufeff"),
        ("\U000e0041", "\\U000e0041"),
        ("\u2028\u2029\x7f", "\\u2028\\u2029\\u007f"),
        ("\udc80", "\\udc80"),
        ("user:\u3164ada", "user:\\u3164ada"),
        ("\uffa0\u115f\u2800\ufe0f\U000e0100", "\\uffa0\\u115f\\u2800\\ufe0f\\U000e0100"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


WITHOUT_A_SHAPE = ("FILLER", "VARIATION SELECTOR", "INVISIBLE", "JOINER", "BLANK", "VOWEL INHERENT", "NULL NOTEHEAD")


def test_no_character_that_is_named_for_not_being_seen_is_shown() -> None:
    unseen = [
        each for each in map(chr, range(sys.maxunicode + 1))
        if any(word in unicodedata.name(each, "") for word in WITHOUT_A_SHAPE)
        and unicodedata.category(each) != "Po" and each != "\N{BLANK SYMBOL}"  # these have a shape
    ]  # fmt: skip
    assert len(unseen) > 250
    assert [f"{ord(each):04x} {unicodedata.name(each)}" for each in unseen if printable(each) == each] == []


def test_a_long_text_is_cut() -> None:
    assert printable("abcdef", 4) == "abc…"
    assert printable("abcd", 4) == "abcd"


@pytest.mark.property
@given(st.text())
def test_whatever_it_is_it_can_be_printed(text: str) -> None:
    assert printable(text).isprintable()


@pytest.mark.property
@given(st.text(st.characters(codec="utf-8")))
def test_json_is_one_line_of_ascii_with_the_very_text(text: str) -> None:
    written = as_json({"text": text, "raw": raw_json(json.dumps(text, ensure_ascii=False).encode())})
    assert written.isascii()
    assert written.isprintable()
    assert json.loads(written) == {"text": text, "raw": text}


@pytest.mark.parametrize(
    "number", ["1.0000000000000000000000000000000000001", "1e999", "123456789012345678901234567890"]
)
def test_raw_json_keeps_numbers_and_duplicate_keys(number: str) -> None:
    assert as_json(raw_json(b'{"a": %s,\n "a": [ ]}' % number.encode())) == f'{{"a":{number},"a":[]}}'


@pytest.mark.parametrize("text", [b"", b"{", b"{} {}", b'"\xff"', b"\x1b[2J"])
def test_what_is_no_json_becomes_a_string(text: bytes) -> None:
    assert json.loads(as_json(raw_json(text))) == text.decode("utf-8", "backslashreplace")
