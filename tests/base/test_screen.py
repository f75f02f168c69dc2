"""Lines for a terminal, and words for people."""

from __future__ import annotations

import pytest

from nsqdigest.base.screen import RED, WIDTH_OF_A_PIPE, columns, padded, painted, wrapped
from nsqdigest.base.words import counted, listed, nearest

pytestmark = pytest.mark.unit


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


@pytest.mark.parametrize(("text", "wide"), [("ada", 3), ("日本", 4), ("e\u0301", 1), ("😀", 2), ("", 0)])
def test_columns_are_those_of_a_terminal(text: str, wide: int) -> None:
    assert columns(text) == wide
    assert padded(text, 5) == text + " " * (5 - wide)
