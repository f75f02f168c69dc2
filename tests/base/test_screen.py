"""Text for a terminal, and words for people."""

from __future__ import annotations

import pytest

from nsqdigest.base.screen import RED, WIDTH_OF_A_PIPE, painted, printable, wrapped
from nsqdigest.base.words import counted, listed, nearest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢", "plain é 漢"),
        ("\x1b[2J\r\n\t\x7f\x9b", r"\u001b[2J\u000d\u000a\u0009\u007f\u009b"),
        ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
        ("\u2028\u2029\ufeff", r"\u2028\u2029\ufeff"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_moves_a_cursor_or_reorders_a_line_is_shown_as_its_code(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_line_is_wrapped_behind_its_margin_and_never_in_a_pipe() -> None:
    text = "one two three four five six seven eight nine"
    assert wrapped(text, "- ", "  ", 40) == ["- one two three four five six seven", "  eight nine"]
    assert wrapped(text, "- ", "  ", WIDTH_OF_A_PIPE) == [f"- {text}"]
    assert wrapped(text, "- ", "  ", 5) == wrapped(text, "- ", "  ", 40), "narrower than anybody's terminal"
    assert wrapped("", "- ", "  ", 40) == ["-"]


def test_only_who_asks_for_colour_gets_it() -> None:
    assert painted("x", RED, True) == "\x1b[31mx\x1b[0m"
    assert painted("x", RED, False) == "x"


@pytest.mark.parametrize(
    ("word", "found"), [("max-in-flight", "max_in_flight"), ("Url", "url"), ("ulr", "url"), ("zebra", ""), ("", "")]
)
def test_the_nearest_word_is_the_one_that_is_meant(word: str, found: str) -> None:
    assert nearest(word, ("url", "max_in_flight")) == found


def test_lists_and_numbers_read_as_they_are_said() -> None:
    assert [listed(words) for words in ((), ("a",), ("a", "b"), ("a", "b", "c"))] == ["", "a", "a and b", "a, b and c"]
    assert listed(("a", "b"), "or") == "a or b"
    assert [counted(number, "event") for number in (0, 1, 1234)] == ["0 events", "1 event", "1,234 events"]
