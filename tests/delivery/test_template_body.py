"""A body of the operator's own: what a template sees, how its text is encoded, what it cannot do, and what is said."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.delivery.bodies import values
from nsqdigest.delivery.bodies.base import JSON, BodyFailed
from nsqdigest.delivery.bodies.checking import Fault, fault_of
from nsqdigest.delivery.bodies.sample import digest_json
from nsqdigest.delivery.bodies.template import LONGEST_S, Template
from nsqdigest.delivery.digest import Names
from nsqdigest.delivery.grouped import GroupedBuilder
from nsqdigest.store.record import StoredRecord
from support.delivering import HEAD
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.unit

NAMES = Names("events", "user:42", "out")
LIMIT_BYTES = 64 * 1024
MEBIBYTE = 1 << 20


def template(
    text: str, content_type: str = JSON, limit_bytes: int = LIMIT_BYTES, now_s: Callable[[], float] = time.monotonic
) -> Template:
    return Template(text, content_type, limit_bytes, now_s)


def digest(*events: Any, group: str = "", timeline: str = "user:42") -> bytes:
    return digest_json(events or ({"message": "failed"},), NAMES._replace(timeline=timeline), (group,) if group else ())


def raw_digest(value: bytes) -> bytes:
    builder = GroupedBuilder(HEAD, NAMES, LIMIT_BYTES, ("g",))
    builder.add([StoredRecord(b"k", 1, value)])
    return builder.body(1, 1)


def made(text: str, *events: Any, content_type: str = "text/plain", group: str = "") -> str:
    return template(text, content_type)(digest(*events, group=group)).decode()


def failure(text: str, document: bytes = b"", content_type: str = "text/plain", **kwargs: Any) -> BodyFailed:
    with pytest.raises(BodyFailed) as raised:
        template(text, content_type, **kwargs)(document or digest())
    return raised.value


# -- what it sees


def test_it_sees_the_digest_as_a_webhook_gets_it() -> None:
    document = digest({"message": "a"}, {"message": "b"})
    whole = json.loads(document)
    assert made("{{ type }} {{ timestamp }}") == f"digest {whole['timestamp']}"
    for name, value in whole["data"].items():
        if name not in ("records", "dropped"):
            assert template(f"{{{{ data.{name} }}}}", "text/plain")(document).decode() == str(value)
    assert json.loads(template("{{ data.records | tojson }}")(document)) == whole["data"]["records"]
    assert made("{{ data.dropped.capacity }}") == "0"


def test_it_sees_groups_with_their_counts_and_all_records() -> None:
    events = [{"g": "a", "n": 1}, {"g": "b", "n": 2}, {"g": "a", "n": 3}]
    assert made("{% for g in data.groups %}{{ g.group }}={{ g.count }} {% endfor %}", *events, group="g") == "a=2 b=1 "
    assert made("{% for r in data.records %}{{ r.value.n }}{% endfor %}", *events, group="g") == "123"
    assert made("{{ data.groups[0].records[1].value.n }}", *events, group="g") == "3"
    assert made("{{ data.groups | length }}", *events) == "0"


@pytest.mark.parametrize("number", [b"1.50", b"1E5", b"-0.0", b"1e999", b"123456789012345678901234567890"])
def test_numbers_stay_as_they_were_written(number: bytes) -> None:
    document = raw_digest(b'{"n":%s}' % number)
    for text in ("{{ data.records[0].value.n }}", "{{ data.records[0].value.n | tojson }}"):
        assert template(text)(document) == number


def test_of_duplicate_fields_it_sees_the_last() -> None:
    assert template("{{ data.records[0].value.a }}")(raw_digest(b'{"a":1,"a":2}')) == b"2"


def test_an_event_nested_as_deep_as_events_may_be_goes_through() -> None:
    value = b'{"a":' * 511 + b"{}" + b"}" * 511
    assert json.loads(template("{{ data.records[0].value | tojson }}")(raw_digest(value))) == json.loads(value)


@pytest.mark.parametrize("name", ["items", "keys", "get", "values", "update", "__class__", "copy", "count", "title"])
def test_a_field_named_like_a_method_is_the_field(name: str) -> None:
    """Else a publisher would choose what a template calls."""
    assert made(f"{{{{ data.records[0].value.{name} }}}}", {name: "mine"}) == "mine"
    assert made(f"{{{{ data.records[0].value.{name} | default('none') }}}}") == "none"


def test_nothing_in_what_is_not_there_is_there_and_a_default_takes_its_place() -> None:
    assert made("{{ data.records[0].value.user.name[0].first | default('nobody') }}", {"user": None}) == "nobody"


# -- how text goes out

odd = st.text(max_size=60) | st.sampled_from(['"', "\\", '\\"', "\n", "\x00", "\u2028", "</script>", "é😀", "{{ x }}"])


@given(odd)
def test_text_is_encoded_for_the_inside_of_a_json_string(text: str) -> None:
    written = (
        '{"a": "<{{ x(data.records[0]) }}>", "b": "{{ data.records[0].value.m }}",'
        ' "c": {{ data.records[0].value.m | tojson }}, "d": "{{ kept }}", "e": "{{ data.records[0].value.m ~ kept }}",'
        ' "f": "{{ [kept, kept] | join(data.timeline) }}",'
        ' "g": "{{ data.records[0].value.m + data.timeline }}", "h": "{{ kept | trim }}"}'
    )
    head = "{% macro x(r) %}{{ r.value.m }}{% endmacro %}{% set kept %}{{ data.records[0].value.m }}{% endset %}"
    body = json.loads(template(head + written)(digest({"m": text}, timeline=text)))
    expected = {
        "a": f"<{text}>", "b": text, "c": text, "d": text, "e": text * 2, "f": text * 3, "g": text * 2,
    }  # fmt: skip
    assert {name: body[name] for name in expected} == expected
    assert text.strip().startswith(body["h"].strip())


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", r"\"<&>\""),
        ("application/problem+json; charset=utf-8", r"\"<&>\""),
        ("text/html", "&#34;&lt;&amp;&gt;&#34;"),
        ("application/xml", "&#34;&lt;&amp;&gt;&#34;"),
        ("text/plain; charset=utf-8", '"<&>"'),
    ],
)
def test_the_content_type_decides_how_text_is_encoded(content_type: str, expected: str) -> None:
    text = '"{{ data.records[0].value.m }}"'
    assert template(text, content_type)(digest({"m": '"<&>"'})).decode() == f'"{expected}"'


def test_words_for_what_is_no_text() -> None:
    assert made("{{ x }} {{ y }} {{ z }} {{ 1.5 }}".replace("x", "none").replace("y", "true").replace("z", "3")) == (
        "null true 3 1.5"
    )


def test_the_same_digest_makes_the_same_bytes() -> None:
    text = "{% for k, v in data.records[0].value | items %}{{ k }}={{ v }} {% endfor %}"
    bodies = {made(text, {"b": 1, "a": 2}) for _ in range(5)}
    assert bodies == {"b=1 a=2 "}


def test_what_would_be_too_large_shows_fewer_records() -> None:
    counts = "{{ data.shown }} of {{ data.total }}, {{ data.not_shown }}"
    text = '[{% for r in data.records %}"{{ r.value.m }}",{% endfor %}"' + counts + '"]'
    document = digest(*({"m": "x" * 100} for _ in range(100)))
    body = template(text, limit_bytes=4_096)(document)
    assert len(body) <= 4_096
    shown = json.loads(body)
    assert (len(shown), shown[-1]) == (26, "25 of 100, 75")


# -- what it cannot do

ENDLESS = {
    "loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "a recursive loop": "{% for a in range(9) recursive %}{{ loop(range(9)) if loop.depth < 90 }}{% endfor %}",
    "macros": "{% macro m(n) %}{{ m(n - 1) if n }}{{ m(n - 1) if n }}{% endmacro %}{{ m(60) }}",
    "a macro without an end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "literal text": "{% for a in range(100000) %}" + "x" * 10_000 + "{% endfor %}",
    "kept literal text": "{% set x %}{% for a in range(100000) %}" + "x" * 10_000 + "{% endfor %}{% endset %}",
    "text doubled by ~": "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "text doubled by +": "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "text doubled by a block": (
        "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}"
    ),
    "text doubled by a filter": (
        "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = n.s | replace('x', 'xx') %}{% endfor %}"
    ),
    "text doubled by join": (
        "{% set n = namespace(s='x') %}{% for i in range(64) %}{% set n.s = [n.s, n.s] | join %}{% endfor %}"
    ),
    "lists doubled by +": "{% set n = namespace(s=[1]) %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "lists doubled by lists": (
        "{% set n = namespace(s=[1]) %}{% for i in range(64) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson }}"
    ),
    "lists doubled by arguments": (
        "{% set n = namespace(s=[1]) %}{% macro m() %}{% set n.s = varargs %}{% endmacro %}"
        "{% for i in range(64) %}{{ m(n.s, n.s) }}{% endfor %}"
    ),
    "lists doubled by a default": (
        "{% set n = namespace(a=1, b=1) %}{% for i in range(64) %}"
        "{% set n.a = [0, 0] | map('default', n.a, true) | list %}"
        "{% set n.b = [0, 0] | map('default', n.b, true) | list %}{% endfor %}{{ n.a == n.b }}"
    ),
    "lists doubled by groups": (
        "{% set n = namespace(a=[[1, [1]]], b=[[1, [1]]]) %}{% for i in range(64) %}"
        "{% set n.a = n.a | groupby(1) | list %}{% set n.b = n.b | groupby(1) | list %}{% endfor %}{{ n.a == n.b }}"
    ),
    "many lists": "".join(f"{{% set a{n} = range(100000) | batch(1) | list %}}" for n in range(100)),
    "many copies": "{% set a = range(100000) | list %}{% for i in range(100000) %}{% set b = a | list %}{% endfor %}",
    "filters on filters": (
        "{% for i in range(100000) %}{% set a = range(100000) | map('batch', 1) | map('list') | list %}{% endfor %}"
    ),
    "a long range": "{{ range(10 ** 9) | list | length }}",
    "batches": "{{ [1] | batch(10 ** 9, 'x') | list | length }}",
    "a large number": "{{ 10 ** 10 }}{{ 9 ** (9 ** 9) }}",
    "a number made larger": "{% set n = namespace(s=3) %}{% for i in range(64) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "digits": "{{ 5 | round(-(10 ** 9)) }}{{ 1 // 0 }}",
    "repeated text": "{{ 'x' * 10 ** 9 }}",
    "formatted text": "{{ '%1000000000d' % 1 }}",
    "comparing lists": (
        "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(64) %}"
        "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_a_template_without_an_end_or_a_measure_is_stopped(text: str) -> None:
    tracemalloc.start()
    began_s = time.monotonic()
    try:
        failure(text)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 * MEBIBYTE
    assert time.monotonic() - began_s < LONGEST_S + PATIENCE_S, "tracing makes it many times slower"


def test_one_that_takes_too_long_is_stopped_by_the_clock() -> None:
    ticks = iter(range(1_000))
    failed = failure("{% for a in range(100000) %}{% endfor %}", now_s=lambda: next(ticks) / 10)
    assert (failed.line, failed.problem) == (1, "takes too long")


FORBIDDEN = (
    "{{ ''.__class__.__mro__ }}", "{{ data.__class__ }}", "{{ data.records.append(1) }}", "{{ data.update({'a': 1}) }}",
    "{{ data['__class__'] }}", "{{ ''['format'] }}", "{{ '{0.__class__}'.format(data) }}", "{{ self.__init__ }}",
    "{{ range.__globals__ }}", "{{ cycler.__init__.__globals__ }}", "{{ namespace.__class__ }}", "{{ lipsum }}",
    "{{ data | attr('__class__') }}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{{ range }}",
    "{% autoescape false %}{% endautoescape %}", "{{ data.records | map('upper') }}", "{{ [1, 2] | random }}",
    "{{ data }}", "{{ '<b>' | safe }}", "{{ loop }}", "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "{{ dict.mro() }}",
)  # fmt: skip


@pytest.mark.parametrize("text", FORBIDDEN)
def test_what_a_template_may_not_is_a_failure(text: str) -> None:
    failure(text)


# -- what is said

FAILURES = [
    ('{"a": "{{ dta.total }}"}', 1, '"dta" is not there', 'did you mean "data"?'),
    ("\n\n{{ data.totl }}", 3, '"totl" is not there', 'did you mean "total"?'),
    ("\n{{ data.records[0].value.user }}", 2, '"user" is not there', 'write {{ … | default("") }}'),
    ("{{ data.records[7].key }}", 1, "element 7 is not there", "default"),
    ("{% macro m(r) %}\n{{ r.value.x }}\n{% endmacro %}\n{{ m(data.records[0]) }}", 2, '"x" is not there', "default"),
    ("{{ data.records[0].value.items() }}", 1, "data has fields and no methods", "{{ x | items }}"),
    ("{{ data.timeline.upper() }}", 1, "data has fields and no methods", "{{ x | upper }}"),
    ("a\n{{ data.records[0].value }}", 2, "shows an object", "tojson"),
    ("{% for x in data.records %}", 1, "unexpected end of template", "correct it there"),
    ("a\n{{ data.timeline | uper }}", 2, "no filter named 'uper'", 'did you mean "upper"?'),
    ("{{ data.total + 'x' }}", 1, "adds text and something else", "write ~"),
    ("{{ data.total | int // 0 }}", 1, "fails with ZeroDivisionError", "test the values"),
    ("{{ 'a' < 1 }}", 1, "does what these values cannot", "is number"),
    ("{% filter upper %}{{ data.timeline }}{% endfilter %}", 1, "encoded already", "where the text comes from"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "problem", "remedy"), FAILURES)
def test_a_failure_names_the_line_the_problem_and_the_remedy(text: str, line: int, problem: str, remedy: str) -> None:
    failed = failure(text)
    assert failed.line == line
    assert problem in failed.problem
    assert remedy in failed.remedy


@pytest.mark.parametrize("text", ['{"a": {{ data.timeline }}}', '{"a": 1,}', "", '{"a": "{{ data.timeline }}', "{} {}"])
def test_a_json_body_is_json(text: str) -> None:
    failed = failure(text, content_type=JSON)
    assert "makes what is no JSON" in failed.problem
    assert "tojson" in failed.remedy


@pytest.mark.parametrize(
    "text",
    [
        "{{ data[data.records[0].value.m] }}", "{{ data.records[0].value[data.records[0].value.m].x }}",
        "{% macro x() %}{% endmacro %}{{ x(**{data.records[0].value.m: 1}) }}", '"{{ data.records[0].value.m + 1 }}"',
        "{{ data.records[0].value.m | round }}", "{ {{ data.records[0].value.m }}", "{{ data.records[0].value.m < 1 }}",
    ],
)  # fmt: skip
def test_a_failure_quotes_nothing_of_an_event(text: str) -> None:
    failed = failure(text, digest({"m": "s3cret"}), JSON)
    assert "s3cret" not in str(failed)


# -- before it is used


def fault(text: str, content_type: str = JSON, grouped: tuple[bool, ...] = (False, True)) -> Fault | None:
    return fault_of(text, content_type, LIMIT_BYTES, grouped, time.monotonic)


FINE = (
    '{"a": "{{ data.timeline }}"}',
    '[{% for r in data.records %}{{ r.value | tojson }}{{ "," if not loop.last }}{% endfor %}]',
    '{"a": "{{ data.records[0].value.message | default("") }}"}',
    '[{% for g in data.groups %}{"n": {{ g.count }}, "g": {{ g.group | tojson }}},{% endfor %} 0]',
)


@pytest.mark.parametrize("text", FINE)
def test_a_template_that_is_fine_has_no_fault(text: str) -> None:
    assert fault(text) is None


@pytest.mark.parametrize(
    "text",
    [
        '"{{ data.records[0].value.message }}"',
        '"{{ data.records[0].value.user.name.first | upper }}"',
        '"{{ data.records[0].value.amount * 2 + 1 }}"',
        '"{{ (data.records[0].value.amount / 100) | round(2) }}"',
        '"{% for x in data.records[0].value.things %}{{ x.name }}{% endfor %}{{ data.records[0].value.usr.id }}"',
        '"{{ data.records | map(attribute="value.amount") | sum }}"',
        '"{{ data.records[0].value.things[:2] | join(", ") }}{{ data.records[0].value.a > 3 }}"',
        '"{% for k, v in data.records[0].value.tags | items %}{{ k }}{{ v }}{% endfor %}{{ data.records[0].value.b }}"',
    ],
)
def test_fields_of_events_that_nobody_knows_are_no_fault_but_a_warning(text: str) -> None:
    found = fault(text)
    assert found is not None
    assert found.is_warning, found
    assert "fails for events that lack a field" in found.problem


@pytest.mark.parametrize(
    ("text", "content_type", "sample"),
    [
        ('"{{ data.totl }}"', JSON, "one event"),
        ("{% if data.total == 1 %}1{% else %}{{ x }}{% endif %}", "text/plain", "many events"),
        ('{{ \'{"a": "\' ~ data.timeline }}', "text/plain; charset=utf-8", ""),
        ("{{ data.groups | map(attribute='group') | sort | first }}", "text/plain", "groups of every kind"),
    ],
)
def test_a_fault_shows_with_the_sample_that_has_it(text: str, content_type: str, sample: str) -> None:
    found = fault(text, content_type, (True,))
    assert (found is None) is not bool(sample)
    if found is not None:
        assert f"(sample: {sample}" in found.problem
        assert not found.is_warning


def test_only_the_digests_that_its_routes_have_are_tried() -> None:
    text = '"{{ data.groups[0].count }}"'
    assert fault(text, grouped=(True,)) is None
    assert fault(text, grouped=(False,)) is not None


def test_a_sample_that_asks_for_more_than_an_event_has_is_no_property_of_real_digests() -> None:
    assert isinstance(values.parse(b'{"a":{}}')["a"], values.Event)
    assert "is not there" in str(failure("{{ data.records[0].value.message_of_mine }}"))
