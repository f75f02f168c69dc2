"""targets.py and fields.py: an option's template over a digest and its newest record becomes one text, or the digest
has no target.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.templates import Template, TemplateError
from nsqdigest.delivery import targets
from nsqdigest.delivery.fields import NoText, text_at
from nsqdigest.delivery.targets import Filler, NoTarget, Source
from nsqdigest.intake.bodies import Rejected
from nsqdigest.intake.names import renderer
from nsqdigest.intake.shapes import Shape

pytestmark = pytest.mark.unit

EVENT = (
    b'{"user": {"id": 42}, "n": 1.50, "up": true, "route": "r", "timeline": "t", "a": [1], "nil": null, "s": "\\u00e9"}'
)


def as_it_is(_: int) -> Callable[[str], str]:
    return str


def filled(text: str, event: bytes = EVENT) -> str:
    return Filler("url", targets.parse(text), as_it_is).text(Source("events", "user:42", event))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{route}", "events"),
        ("{timeline}", "user:42"),
        ("{.route} {.timeline}", "r t"),
        ("a{user.id}b{n}c{up}", "a42b1.50ctrue"),
        ("{s}", "é"),
        ("plain", "plain"),
    ],
)
def test_what_a_template_becomes(text: str, expected: str) -> None:
    assert filled(text) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{tenant}", 'url: the field "tenant" is not there'),
        ("{user.name}", 'url: the field "user.name" is not there'),
        ("{user.id.x}", 'url: the field "user.id.x" is not there'),
        ("{nil}", 'url: the field "nil" is null'),
        ("{user}", 'url: the field "user" is an object'),
        ("{a}", 'url: the field "a" is an array'),
    ],
)
def test_without_a_value_there_is_no_target(text: str, problem: str) -> None:
    with pytest.raises(NoTarget) as raised:
        filled(text)
    assert (str(raised.value), raised.value.quoting) == (problem, "")


@pytest.mark.parametrize("event", [b"", b"[]", b"{", b'{"tenant": "\\ud800"}', b"\xff"])
def test_a_value_that_is_no_event_has_no_target(event: bytes) -> None:
    with pytest.raises(NoTarget):
        filled("{tenant}", event)


def test_a_refused_value_is_quoted_apart_from_the_message_and_printable() -> None:
    def refuse(_: str) -> str:
        raise ValueError("is not good")

    with pytest.raises(NoTarget) as raised:
        Filler("topic", targets.parse("{x}"), lambda _: refuse).text(Source("r", "t", b'{"x": "\\u001b[31m\\u202e"}'))
    assert str(raised.value) == 'topic: the field "x" is not good'
    assert raised.value.quoting == "\\u001b[31m\\u202e"


def test_a_refused_name_of_the_digest_is_named_as_that() -> None:
    def refuse(_: str) -> str:
        raise ValueError("is not good")

    with pytest.raises(NoTarget, match=r"^topic: \{timeline\} is not good$"):
        Filler("topic", targets.parse("{timeline}"), lambda _: refuse).text(Source("r", "t", b"{}"))


def test_the_fields_of_the_event_are_known() -> None:
    template = targets.parse("{route}{timeline}{.route}{user.id}{user.id}{route.x}")
    assert targets.event_paths(template) == (("route",), ("user", "id"), ("route", "x"))


@pytest.mark.parametrize("text", ["{{ x }}", "${x}", "{x", "x}", "{}", "{.x}", "{..route}", "{a[0]}"])
def test_mistakes_are_those_of_a_routes_template(text: str) -> None:
    with pytest.raises(TemplateError):
        targets.parse(text)
    with pytest.raises(TemplateError):
        Template.parse("{.route}")


scalars = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=20),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(value=scalars, spaces=st.sampled_from(["", " ", "\n\t"]))
def test_a_field_is_the_same_text_as_in_the_name_of_a_timeline(value: Any, spaces: str) -> None:
    body = f'{{"other": 1e999,"a":{{"b":{spaces}{json.dumps(value)}{spaces}}}}}'.encode()
    shape = Shape([("a", "b")])
    import msgspec

    event = msgspec.json.Decoder(shape.type).decode(body)
    assert text_at(body, ("a", "b")) == renderer(Template.parse("{a.b}"), shape)(event, body)


@given(value=st.one_of(st.none(), st.lists(st.integers(), max_size=2), st.dictionaries(st.text(max_size=2), st.none())))
def test_what_has_no_text_here_has_none_there(value: Any) -> None:
    import msgspec

    body = json.dumps({"a": value}).encode()
    shape = Shape([("a",)])
    with pytest.raises(NoText):
        text_at(body, ("a",))
    with pytest.raises(Rejected):
        renderer(Template.parse("{a}"), shape)(msgspec.json.Decoder(shape.type).decode(body), body)
