"""Fields that go from an event's JSON: every trace of them, and not a byte of anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.dropping import remover
from nsqdigest.base.templates import check_path

pytestmark = pytest.mark.unit


def without(body: str, *paths: str) -> str:
    return remover([check_path(path) for path in paths])(body.encode()).decode()


@pytest.mark.parametrize(
    ("body", "paths", "left"),
    [
        ('{"a":1,"b":2,"c":3}', ["a"], '{"b":2,"c":3}'),
        ('{"a":1,"b":2,"c":3}', ["b"], '{"a":1,"c":3}'),
        ('{"a":1,"b":2,"c":3}', ["c"], '{"a":1,"b":2}'),
        ('{"a":1,"b":2,"c":3}', ["a", "b"], '{"c":3}'),
        ('{"a":1,"b":2,"c":3}', ["a", "c"], '{"b":2}'),
        ('{"a":1,"b":2,"c":3}', ["a", "b", "c"], "{}"),
        ('{"a":1}', ["a"], "{}"),
        ('{ "a" : 1 , "b" : 1.50 }\n', ["a"], '{ "b" : 1.50 }\n'),
        ('{ "a" : 1 , "b" : 1.50 }\n', ["b"], '{ "a" : 1 }\n'),
        ('{"a":{"x":[1,{"y":"}"}]},"b":1E+05}', ["a"], '{"b":1E+05}'),
        ('{"a":"\\"}{,","b":"\\u0041\\/"}', ["a"], '{"b":"\\u0041\\/"}'),
        ('{"a":1,"b":2,"a":3}', ["a"], '{"b":2}'),
        ('{"\\u0061":1,"b":2}', ["a"], '{"b":2}'),
        ('{"u":{"mail":1,"id":2}}', ["u.mail"], '{"u":{"id":2}}'),
        ('{"u":{"mail":1},"u":{"mail":2,"id":3}}', ["u.mail"], '{"u":{},"u":{"id":3}}'),
        ('{"u":[{"mail":1,"id":2},[{"mail":3}],"mail"]}', ["u.mail"], '{"u":[{"id":2},[{}],"mail"]}'),
        ('{"u":{"mail":1,"id":2},"mail":3}', ["u", "u.mail"], '{"mail":3}'),
        ('{"u":{"a":{"b":1,"c":2}},"x":[{}]}', ["u.a.b", "u.z", "q"], '{"u":{"a":{"c":2}},"x":[{}]}'),
        ('{"u":"mail","x":{"mail":1}}', ["u.mail", "mail"], '{"u":"mail","x":{"mail":1}}'),
        ('{"ü":1,"\\u00fc":2,"b":3}', ["ü"], '{"b":3}'),
        ('{"b":"a","a b":1}', ["a"], '{"b":"a","a b":1}'),
        ("{}", ["a"], "{}"),
    ],
)
def test_what_is_left(body: str, paths: list[str], left: str) -> None:
    json.loads(left)
    assert without(body, *paths) == left


def test_a_body_without_any_of_the_fields_is_the_same_object() -> None:
    body = b'{"x":1,"y":{"z":[2]}}'
    assert remover([("a",), ("y", "b")])(body) is body


def test_the_deepest_body_that_limits_allow() -> None:
    body = '{"a":' * 500 + '{"secret":1}' + "}" * 500
    assert without(body, "a.secret") == body
    nested = '{"a":' + "[" * 510 + '{"secret":1}' + "]" * 510 + "}"
    assert without(nested, "a.secret") == nested.replace('"secret":1', "")


NAMES = st.sampled_from(["a", "b", "ab", "é", "a b"])


def objects(members: list[tuple[str, bool, str]]) -> str:
    return "{" + ",".join(f" {json.dumps(name, ensure_ascii=escaped)}: {text}" for name, escaped, text in members) + "}"


VALUES: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(["1", "1.50", "-0", "1e9", "true", "null", '"a"', '"\\"a\\""', '"\\u0061,}"', '"é"']),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{' , '.join(each)}]"),
        st.lists(st.tuples(NAMES, st.booleans(), inner), max_size=4).map(objects),
    ),
    max_leaves=12,
)


def expected(value: Any, paths: list[list[str]]) -> Any:
    """By the definition, over lists of pairs: objects are tuples here, so that duplicate names stay."""
    if isinstance(value, list):
        return [expected(each, paths) for each in value]
    if not isinstance(value, tuple):
        return value
    return tuple(
        (name, expected(below, [path[1:] for path in paths if path[0] == name and len(path) > 1]))
        for name, below in value
        if [name] not in paths
    )


def parsed(text: str) -> Any:
    return json.loads(
        text, object_pairs_hook=tuple, parse_float=lambda text: f"float {text}", parse_int=lambda text: f"int {text}"
    )


@given(
    st.lists(st.tuples(NAMES, st.booleans(), VALUES), max_size=5).map(objects),
    st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=3),
)
def test_it_takes_out_what_the_paths_name_and_nothing_else(body: str, paths: list[list[str]]) -> None:
    left = remover([tuple(path) for path in paths])(body.encode()).decode()
    assert parsed(left) == expected(parsed(body), paths)
