"""Whatever a publisher sends is answered, and what is filed is JSON that any strict reader parses, untouched."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqdigest.base.templates import Template, TemplateError, check_path
from nsqdigest.intake.routing import Router
from nsqdigest.nsq.frames import Message
from nsqdigest.store.record import Record
from support import routes
from support.events import NOW_MS, bodies, events
from support.routes import Refused, intake_route, routed

pytestmark = pytest.mark.property

DEPTH = 5
LIMITS = replace(routes.LIMITS, event_bytes=4096, key_bytes=64, depth=DEPTH)
ROUTER = Router(
    [
        intake_route("all", name="all"),
        intake_route("u:{user}", number=1, name="user", key="{user}-{a}"),
        intake_route("{user.a}", number=2, name="at", match=[("kind", ("error", 1, True, 1.5))], timestamp="at"),
    ],
    LIMITS,
)


def filed(body: bytes) -> tuple[Refused | int, list[Record]]:
    return routed(ROUTER, Message(b"0" * 16, NOW_MS * 1_000_000, 1, body), NOW_MS)


def refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(inner) for inner in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth_of(inner) for inner in value), default=0)
    return 0


@given(bodies)
@example(b'{"user":1.5,"x":' + b"9" * 4_000 + b"}")
@example(b'{"user":"u","kind":1' + b"0" * 400 + b"}")
@example(b'{"user":"u","kind":"error","at":-1e308}')
def test_whatever_comes_is_answered_and_nothing_is_raised(body: bytes) -> None:
    answer, records = filed(body)
    if isinstance(answer, Refused):
        assert answer.detail
    else:
        assert answer == len(records)


@given(bodies)
def test_what_is_filed_is_json_to_a_strict_reader(body: bytes) -> None:
    _, records = filed(body)
    for record in records:
        event = json.loads(record.value.decode("utf-8", "strict"), parse_constant=refuse_constant)
        assert isinstance(event, dict)
        json.dumps(event, ensure_ascii=False).encode("utf-8", "strict")  # no half characters anywhere


@given(bodies)
def test_a_value_is_the_body_untouched(body: bytes) -> None:
    assert all(record.value == body for record in filed(body)[1])


@given(bodies)
def test_what_is_filed_is_no_deeper_than_the_limit(body: bytes) -> None:
    assert all(depth_of(json.loads(record.value)) <= DEPTH for record in filed(body)[1])


@given(bodies)
def test_names_are_short_printable_utf8(body: bytes) -> None:
    for record in filed(body)[1]:
        for name in (record.timeline, record.key):
            text = name.decode("utf-8", "strict")
            assert 0 < len(name) <= LIMITS.key_bytes
            assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in text)


@given(bodies)
def test_timestamps_are_whole_milliseconds_within_all_time(body: bytes) -> None:
    for record in filed(body)[1]:
        assert isinstance(record.timestamp_us, int)
        assert 0 <= record.timestamp_us <= 1000 * (NOW_MS + LIMITS.future_ms)


@given(events)
def test_a_sound_event_always_has_its_place_in_a_route_that_asks_for_nothing(event: dict[str, Any]) -> None:
    body = json.dumps(event).encode("utf-8")
    if depth_of(event) <= DEPTH and len(body) <= LIMITS.event_bytes:
        _, records = filed(body)
        assert any(record.route == 0 for record in records)


def parsed(text: str) -> Template | str:
    """The template, or why it cannot be one."""
    try:
        return Template.parse(text)
    except TemplateError as error:
        return str(error)


@given(st.text(max_size=30) | st.lists(st.sampled_from(["{", "}", "{a}", "{a.b}", "{é}", '"', "\\", "x"])).map("".join))
def test_any_text_is_a_template_that_a_route_can_have_or_says_why_not(text: str) -> None:
    template = parsed(text)
    assert template
    if isinstance(template, Template):
        Router([intake_route(text, key=text)], LIMITS)
        assert all(check_path(field) for field in template.fields)


@given(st.text(st.characters(exclude_characters="{}$%<"), min_size=1, max_size=30))
def test_literal_text_stays_as_it_is(text: str) -> None:
    assert Template.parse(text).parts == (text,)
