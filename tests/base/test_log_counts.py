"""Lines that are counted: none is lost, and a kind has one per period."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.log_counts import Repeats

pytestmark = pytest.mark.unit


def test_the_first_of_a_kind_is_a_line_at_once() -> None:
    repeats: Repeats[str] = Repeats()
    assert repeats.note("a", 10.0, 1.0, {})
    assert repeats.note("b", 10.0, 1.0, {})
    assert not repeats.note("a", 10.5, 1.0, {})


def test_repeats_become_one_line_with_the_newest_fields_and_the_sums() -> None:
    repeats: Repeats[str] = Repeats()
    for number in range(4):
        repeats.note("a", 10.0 + number / 10, 1.0, {"id": number, "records": 10}, adds=("records",))
    assert repeats.due(10.9) == []
    assert repeats.next_s == 11.0
    assert repeats.due(11.0) == [("a", {"id": 3, "records": 30, "times": 3})]


def test_a_single_repeat_is_shown_as_it_was() -> None:
    repeats: Repeats[str] = Repeats()
    repeats.note("a", 10.0, 1.0, {"id": 1})
    repeats.note("a", 10.5, 1.0, {"id": 2})
    assert repeats.due(11.0) == [("a", {"id": 2})]


def test_a_period_without_a_repeat_ends_the_kind() -> None:
    repeats: Repeats[str] = Repeats()
    repeats.note("a", 10.0, 1.0, {})
    assert repeats.due(11.0) == []
    assert repeats.next_s is None
    assert repeats.note("a", 11.5, 1.0, {})


def test_after_a_line_with_a_count_the_next_period_begins() -> None:
    repeats: Repeats[str] = Repeats()
    repeats.note("a", 10.0, 1.0, {})
    repeats.note("a", 10.5, 1.0, {})
    repeats.due(11.2)
    assert not repeats.note("a", 11.3, 1.0, {})
    assert repeats.next_s == 12.2


def test_the_rest_is_told_at_the_end() -> None:
    repeats: Repeats[str] = Repeats()
    for _ in range(3):
        repeats.note("a", 10.0, 60.0, {})
    repeats.note("b", 10.0, 60.0, {})
    assert repeats.rest() == [("a", {"times": 2})]
    assert repeats.rest() == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 3)), max_size=60))
def test_the_counts_add_up_and_a_kind_has_one_line_a_period(steps: list[tuple[str, float]]) -> None:
    repeats: Repeats[str] = Repeats()
    now_s, counted, told = 0.0, dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    told_at_s: dict[str, list[float]] = {kind: [] for kind in "abc"}

    def tell(lines: list[tuple[str, dict[str, Any]]]) -> None:
        for kind, line in lines:
            told[kind] += line.get("times", 1)
            told_at_s[kind].append(now_s)

    for kind, wait_s in steps:
        now_s += wait_s
        tell(repeats.due(now_s))
        counted[kind] += 1
        if repeats.note(kind, now_s, 1.0, {}):
            told[kind] += 1
            told_at_s[kind].append(now_s)
    for kind in "abc":
        assert all(later - earlier >= 0.999 for earlier, later in pairwise(told_at_s[kind]))
    tell(repeats.rest())
    assert told == counted
