"""Lines for a terminal, and words for people."""

from __future__ import annotations

import re

import pytest

from nsqdigest.base.screen import (
    CYAN,
    GREEN,
    RED,
    WIDTH_OF_A_PIPE,
    YELLOW,
    columns,
    cut,
    padded,
    painted,
    table,
    wrapped,
)
from nsqdigest.base.words import counted, listed, nearest

pytestmark = pytest.mark.unit


def test_a_line_is_wrapped_behind_its_margin_and_never_in_a_pipe() -> None:
    text = "one two three four five six seven eight nine"
    assert wrapped(text, "- ", "  ", 40) == ["- one two three four five six seven", "  eight nine"]
    assert wrapped(text, "- ", "  ", WIDTH_OF_A_PIPE) == [f"- {text}"]
    assert wrapped(text, "- ", "  ", 5) == wrapped(text, "- ", "  ", 40), "narrower than anybody's terminal"
    assert wrapped("", "- ", "  ", 40) == ["-"]


def test_only_who_asks_for_colour_gets_it() -> None:
    assert painted("x", RED, True) == "\x1b[38;5;160mx\x1b[0m"
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


HEADINGS = ("timeline", "records", "digest")
ROWS = [("user:ada", "4", "1 record: 01a1f3a1-681f"), ("zoë-日本", "0", ""), ("x" * 30, "12", "")]


@pytest.mark.parametrize("width", [0, *range(44, 100)])
def test_a_table_is_within_its_width_in_columns_that_stand_below_one_another(width: int) -> None:
    lines = table(HEADINGS, ROWS, right={1}, flexible={0, 2}, width=width)
    assert len(lines) == 4
    assert not width or max(map(columns, lines)) <= width
    ends = [columns(line[: re.search(rf"{end}\b", line).end()])  # type: ignore[union-attr]
            for line, end in zip(lines, ("records", " 4", " 0", " 12"), strict=True)]  # fmt: skip
    assert len(set(ends)) == 1
    assert not width or width < 70 or "1 record: 01a1f3a1-681f" in lines[1]


def test_where_there_is_no_room_for_its_columns_each_row_is_a_block_without_zeros() -> None:
    assert table(HEADINGS, ROWS[:2], right={1}, flexible={0, 2}, width=30) == [
        "user:ada", "  records  4", "  digest   1 record: 01a1f3a1-681f", "zoë-日本", "  records  0",
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "width", "kept"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("日本語", 4, "日…")])
def test_a_cut_is_seen_and_counts_columns(text: str, width: int, kept: str) -> None:
    assert cut(text, width) == kept


def luminance(number: int) -> float:
    """Of one of the 216 colours of a terminal of 256."""
    levels = [(number - 16) // step % 6 for step in (36, 6, 1)]
    red, green, blue = ((0.055 + (55 + 40 * level) / 255) / 1.055 if level else 0.0 for level in levels)
    return float(0.2126 * red**2.4 + 0.7152 * green**2.4 + 0.0722 * blue**2.4)


@pytest.mark.parametrize("paint", [GREEN, YELLOW, RED, CYAN])
def test_a_colour_can_be_read_on_black_and_on_white(paint: str) -> None:
    begin, _, number = paint.rpartition(";")
    light = luminance(int(number))
    assert begin == "38;5"
    assert min((light + 0.05) / 0.05, 1.05 / (light + 0.05)) > 3.8
