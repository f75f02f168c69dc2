"""What a field has to be: every way to write it, what meets it, what is a mistake, and how it is told."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.conditions import Condition, ConditionError

pytestmark = pytest.mark.unit

NOTHING: tuple[Any, ...] = (msgspec.UNSET, None, {}, [], [3], {"a": 3})


def met(condition: Any, *values: Any) -> list[bool]:
    holds = Condition.of(condition if isinstance(condition, list) else [condition]).test()
    return [holds(value) for value in values]


@pytest.mark.parametrize(
    ("condition", "yes", "no"),
    [
        ("error", ["error"], ["Error", "errors", "", 1, True]),
        (["error", "fatal"], ["error", "fatal"], ["info", 1]),
        (["error", 5, True], ["error", 5, 5.0, True], ["5", 1, False, "true", 4]),
        (">= 3", [3, 3.0, 4, 10**400], [2, 2.9, -4, "3", "4", True]),
        ("> 3", [3.1, 4], [3, 3.0, True]),
        ("<= 3", [3, -1, False + 0.0], [3.1, "1", False]),
        ("< 3", [2.9, -(10**400)], [3, "2", False]),
        (">=3", [3], [2]),
        ("> -1.5e2", [-149], [-150, -151]),
        (">= 400 and < 500", [400, 499.9], [399, 500, "404"]),
        (["< 0", "> 10", "n/a"], [-1, 11, "n/a"], [0, 10, "x"]),
        ("api.*", ["api.", "api.users"], ["api", "xapi.", 1]),
        (["api.*", "web*"], ["api.x", "web"], ["ap", "we"]),
        (["api.*", "exact", 7], ["api.x", "exact", 7], ["exactly", 8]),
        ("*", ["", "x", 0, 1.5, False], []),
        ("!= test", ["prod", "", 1, True], ["test"]),
        (["!= a", "!= b"], ["c", 1], ["a", "b"]),
        ("!= 5", [6, "x", True], [5, 5.0, "5"]),
        ('!= "5"', [5, "x"], ["5"]),
        ("!= 1.50", [1, 2], [1.5, "1.5"]),
        ("!= true", [False, 1, "x"], [True, "true"]),
        ("!= tmp*", ["x", "tm"], ["tmp", "tmp.1"]),
        ('!= "tmp*"', ["tmp.1"], ["tmp*"]),
        ('!= ""', ["x", 0], [""]),
        ("= >= 3", [">= 3"], [3, 4]),
        ("= !=", ["!="], ["", "x"]),
        ("= api.*", ["api.*"], ["api.x"]),
        ("= =", ["="], ["= ="]),
        ("= ", [""], [" ", "x"]),
        ("", [""], ["x", 0]),
    ],
)  # fmt: skip
def test_what_meets_a_condition(condition: Any, yes: list[Any], no: list[Any]) -> None:
    assert met(condition, *yes, *no) == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize("condition", ["error", 5, True, ">= 3", "< 3", "api.*", "*", ["a", 1], "= x"])
def test_a_field_without_a_value_meets_no_condition(condition: Any) -> None:
    assert not any(met(condition, *NOTHING))


@pytest.mark.parametrize("condition", ["!= x", "!= 5", "!= *", "!= api.*", ["!= a", "!= b"]])
def test_a_field_without_a_value_is_different_from_every_value(condition: Any) -> None:
    assert all(met(condition, *NOTHING))


@pytest.mark.parametrize(
    ("condition", "problem", "remedy"),
    [
        (">= high", "compares with what is no number", 'for this very text "= >= high"'),
        ("<b>", "compares with what is no number", 'for this very text "= <b>"'),
        (">= 1 and high", "compares with what is no number", '">= 400 and < 500"'),
        ("> 1e999", "has a number that is too large", "write a smaller one"),
        ("> 5 and < 3", "is a range in which there is no number", '">= 400 and < 500"'),
        ("!=", "has nothing behind it", '"!= x"'),
        ("!= null", "is no value of a field", 'write "*"'),
        ("== error", 'begins with "=="', 'write "error"'),
        ("=> 3", "has its two characters the wrong way round", 'write ">= 3"'),
        ("=<3", "has its two characters the wrong way round", 'write "<= 3"'),
        ("<> x", 'begins with "<>"', 'write "!= x"'),
        ("=~ err.*", "is a pattern, and patterns are not looked for", 'write how they begin: "err*"'),
        ("!~err", "is a pattern, and patterns are not looked for", "list the values"),
        (["!= a", "b"], 'has values with "!=" and others', 'before each of them, or before none'),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_named_with_its_remedy(condition: Any, problem: str, remedy: str) -> None:
    with pytest.raises(ConditionError) as caught:
        met(condition)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (["error", "fatal"], '"error" or "fatal"'),
        (">= 3", "a number from 3 up"),
        ("> 3", "a number above 3"),
        (">= 400 and < 500", "a number from 400 up and below 500"),
        (["<= 0", "n/a"], 'a number up to 0 or "n/a"'),
        ("api.*", 'a text that begins with "api."'),
        ("*", "any text, number, true or false"),
        (["!= a", "!= 5"], 'anything but "a" or 5'),
        ("= >= 3", '">= 3"'),
    ],
)
def test_a_condition_in_words(condition: Any, words: str) -> None:
    assert Condition.of(condition if isinstance(condition, list) else [condition]).described(json.dumps) == words


@pytest.mark.parametrize(
    "condition", ["x", 5, False, ">= 3", "> 3", "< 3", "<= 3", "api.*", "*", ">= 1 and < 3", "= *"]
)
def test_the_sample_meets_its_condition(condition: Any) -> None:
    assert met(condition, Condition.of([condition]).sample) == [True]


def test_a_sample_of_what_must_differ_has_no_such_field() -> None:
    assert Condition.of(["!= x"]).sample is None


@given(st.text(max_size=20))
def test_every_text_can_be_written(text: str) -> None:
    assert met(f"= {text}", text, f"{text}x") == [True, False]


@given(st.text(max_size=20), st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)))
def test_whatever_the_value_a_condition_answers_and_its_negation_differs(text: str, value: Any) -> None:
    quoted = f'!= "{text}"'
    assert met(f"= {text}", value) != met(quoted, value)
