"""Bodies to records: matching, names, timestamps, and every way in which an event is refused."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import isinf
from sys import getsizeof
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.reasons import DeadLetterReason as Reason
from nsqdigest.config import Limits
from nsqdigest.intake import bodies, names
from nsqdigest.intake.decoding import suspicions
from nsqdigest.intake.names import NAMES_BYTES
from nsqdigest.intake.routing import IntakeRoute, Router
from nsqdigest.intake.timestamps import LATEST_ARRIVAL_US, arrival_us
from nsqdigest.nsq.frames import Message
from nsqdigest.store.record import A_SILENT_END, AN_END, NO_END, Record
from support.routes import LIMITS, Refused, intake_route, routed
from support.settings import POLICY

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_000
MESSAGE_ID = b"0123456789abcdef"
MESSAGE_NS = 1_699_999_999_123_456_789
MEBIBYTE = 1 << 20


def filed(
    body: bytes, *routes: IntakeRoute, limits: Limits = LIMITS, possible_repeat: bool = False
) -> tuple[Refused | int, list[Record]]:
    router = Router(routes or (intake_route(),), limits)
    return routed(router, Message(MESSAGE_ID, MESSAGE_NS, 1, body), NOW_MS, possible_repeat)


def record_of(body: bytes, *routes: IntakeRoute, limits: Limits = LIMITS) -> Record:
    answer, records = filed(body, *routes, limits=limits)
    assert answer == 1, answer
    (record,) = records
    return record


def timelines_of(body: bytes, *routes: IntakeRoute) -> list[bytes]:
    return [record.timeline for record in filed(body, *routes)[1]]


def refusal(body: bytes, *routes: IntakeRoute, limits: Limits = LIMITS) -> Refused:
    answer, records = filed(body, *routes, limits=limits)
    assert isinstance(answer, Refused), answer
    assert records == []
    return answer


def timeline_of(value: str) -> bytes:
    return record_of(b'{"user":%s}' % value.encode()).timeline


# -- the record


def test_a_value_is_the_body_byte_for_byte() -> None:
    body = b' {"user": "ada",\t"n": 1.50, "user" : "bob" , "s":"\\u0041\\/"} \n'
    assert record_of(body).value == body


def test_without_a_key_template_a_record_is_known_by_the_messages_id_and_timestamp() -> None:
    assert record_of(b'{"user":"ada"}').key == b"%s-%d" % (MESSAGE_ID, MESSAGE_NS)


def test_a_key_template_is_filled_from_the_body() -> None:
    assert record_of(b'{"user":"ada","order":{"id":7}}', intake_route(key="order:{order.id}")).key == b"order:7"


def test_without_a_timestamp_field_the_messages_own_counts() -> None:
    assert record_of(b'{"user":"ada"}').timestamp_us == MESSAGE_NS // 1000


def test_a_record_carries_its_routes_number() -> None:
    assert record_of(b'{"user":"ada"}', intake_route(number=5)).route == 5


@pytest.mark.parametrize("possible_repeat", [True, False])
def test_a_record_says_whether_it_may_be_a_repeat(possible_repeat: bool) -> None:
    _, (record,) = filed(b'{"user":"ada"}', possible_repeat=possible_repeat)
    assert record.possible_repeat is possible_repeat


def test_a_template_without_fields_puts_all_events_into_one_timeline() -> None:
    assert record_of(b'{"anything":1}', intake_route("all")).timeline == b"all"


def test_an_empty_object_has_a_place_where_no_field_is_wanted() -> None:
    assert record_of(b"{}", intake_route("all")).value == b"{}"


# -- a field as text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"ada"', "ada"),
        ('"true"', "true"),
        ('"Zoë ☃ 😀"', "Zoë ☃ 😀"),
        ('"\\u00e9\\ud83d\\ude00"', "é😀"),
        ("42", "42"),
        ("-7", "-7"),
        ("0", "0"),
        ("12345678901234567890123", "12345678901234567890123"),
        ("true", "true"),
        ("false", "false"),
        ("1.5", "1.5"),
        ("1.50", "1.50"),
        ("1E5", "1E5"),
        ("1e+05", "1e+05"),
        ("-0.0", "-0.0"),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
    ],
)
def test_text_numbers_and_truth_become_a_timelines_name_as_written(value: str, text: str) -> None:
    assert timeline_of(value) == text.encode()


def test_a_number_within_is_taken_as_written_too() -> None:
    assert record_of(b'{"a":{"b":2.50},"b":1.0}', intake_route("v{a.b}")).timeline == b"v2.50"


def test_a_number_as_written_does_not_depend_on_numbers_that_no_template_names() -> None:
    assert record_of(b'{"user":1.50,"x":%s}' % (b"9" * 308)).timeline == b"1.50"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"{}", 'the field "user" is not there'),
        (b'{"user":null}', 'the field "user" is null'),
        (b'{"User":"ada"}', 'the field "user" is not there'),
    ],
)
def test_a_missing_field_is_named(body: bytes, detail: str) -> None:
    assert refusal(body) == Refused(Reason.MISSING_FIELD, f"route r: {detail}")


@pytest.mark.parametrize("body", [b'{"user":{}}', b'{"user":"ada"}', b'{"user":[{"id":1}]}', b'{"user":7}', b"{}"])
def test_a_path_through_what_is_no_object_is_a_missing_field(body: bytes) -> None:
    assert refusal(body, intake_route("{user.id}")) == Refused(
        Reason.MISSING_FIELD, 'route r: the field "user.id" is not there'
    )


@pytest.mark.parametrize(
    ("body", "name", "detail"),
    [
        (b'{"a":7,"user":{"name":"ada"}}', "a.b.c", "not there"),
        (b'{"a":{"b":7},"user":{"name":"ada"}}', "a.b.c", "not there"),
        (b'{"a":{"b":[]},"user":{"name":"ada"}}', "a.b.c", "not there"),
        (b'{"a":7,"user":{"name":"ada","x":null}}', "a.b", "not there"),
    ],
)
def test_what_is_no_object_for_one_route_hides_nothing_from_another(body: bytes, name: str, detail: str) -> None:
    answer, records = filed(
        body, intake_route(f"{{{name}}}", name="r"), intake_route("{user.name}:{user.name}", number=1)
    )
    assert answer == Refused(Reason.MISSING_FIELD, f'route r: the field "{name}" is {detail}')
    assert [(record.route, record.timeline) for record in records] == [(1, b"ada:ada")]


def test_where_one_field_is_no_object_those_that_are_there_and_those_that_are_not_are_told_apart() -> None:
    routes = [
        intake_route("{a.b}"),
        intake_route("{gone}", number=1),
        intake_route("{x.null}", number=2),
        intake_route("{x.y}-{z}", number=3),
    ]
    answer, records = filed(b'{"a":7,"x":{"y":true,"null":null},"z":1.50}', *routes)
    assert answer == Refused(Reason.MISSING_FIELD, 'route r: the field "x.null" is null')
    assert [(record.route, record.timeline) for record in records] == [(3, b"true-1.50")]


def test_a_field_and_a_field_below_it_may_both_be_asked_for() -> None:
    answer, records = filed(
        b'{"a":{"b":{"c":"x"}}}', intake_route("{a.b.c}", number=1), intake_route("{a}"), intake_route("{a.b.d}")
    )
    assert answer == Refused(Reason.MISSING_FIELD, 'route r: the field "a.b.d" is not there')
    assert [(record.route, record.timeline) for record in records] == [(1, b"x")]
    assert timelines_of(b'{"a":"x"}', intake_route("{a}"), intake_route("{a.b}")) == [b"x"]


def test_the_same_name_on_two_levels_is_two_fields() -> None:
    assert timelines_of(b'{"b":"x","c":{"b":"y","c":"z"}}', intake_route("{b}-{c.b}-{c.c}")) == [b"x-y-z"]


@pytest.mark.parametrize(("value", "what"), [("{}", "an object"), ("[]", "an array"), ('["ada"]', "an array")])
def test_an_object_or_array_is_no_text(value: str, what: str) -> None:
    answer = refusal(b'{"user":%s}' % value.encode())
    assert answer.reason is Reason.BAD_FIELD
    assert f'the field "user" is {what}' in answer.detail


BEYOND_A_DOUBLE = [
    b"1e999", b"-1e999", b"1E+999", b"1e309", b"1e0000999", b"1e999 ", b"1.7976931348623159e308", b"0.01e999",
    b"9" * 309, b"-" + b"9" * 309, b"1" + b"0" * 309, b"9" * 5_000, b"9" * 400 + b"." + b"9" * 400, b"9" * 310 + b"e-1",
    b"9" * 210 + b"e99", b"1" + b"0" * 9 + b"e300", b"1e" + b"9" * 400,
]  # fmt: skip
WITHIN_A_DOUBLE = [
    b"1e308", b"1E+99", b"-1.7976931348623157e308", b"1e-999", b"1" + b"0" * 308, b"0." + b"9" * 5_000,
    b"9" * 400 + b"e-390", b"0e-" + b"0" * 400, b"9" * 209 + b"e99", b'"1e999"', b'",1e999,"', b'"%s"' % (b"9" * 5_000),
    b'"\\",1e999,"', b"0." + b"0" * 400 + b"1e400", b'"3c9e9991-9e99-4a9e-9999-119e9999aa9e"',
]  # fmt: skip


@pytest.mark.parametrize("number", BEYOND_A_DOUBLE)
@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b'{"user":%s}', "at `$.user`"),
        (b'{"user":"ada","x":%s}', "at `$.x`"),
        (b'{"user":"ada","x":[1,{"y":%s}]}', "within `$.x`"),
        (b'{"x":{"y":"\xc3\xbc"},"y":[%s],"user":"ada"}', "within `$.y`"),
    ],
)
def test_a_number_that_a_double_cannot_hold_is_a_bad_field_wherever_it_stands(
    number: bytes, body: bytes, place: str
) -> None:
    assert refusal(body % number) == Refused(Reason.BAD_FIELD, f"Number out of range - {place}")


@pytest.mark.parametrize("number", WITHIN_A_DOUBLE)
@pytest.mark.parametrize("body", [b'{"user":"ada","x":%s}', b'{"user":"ada","x":[{"y":%s}]}'])
def test_a_number_that_a_double_holds_passes_and_digits_within_text_do(number: bytes, body: bytes) -> None:
    assert record_of(body % number).value == body % number


def test_a_number_beyond_a_double_that_a_later_field_hides_is_refused_too() -> None:
    assert refusal(b'{"user":"ada","x":1e999,"x":1}') == Refused(Reason.BAD_FIELD, "Number out of range")


@pytest.mark.parametrize(
    ("body", "reason"), [(b"[1e999]", Reason.NOT_AN_OBJECT), (b'{"user":"a","x":1e999', Reason.NOT_JSON)]
)
def test_a_body_that_is_no_object_is_refused_as_such_whatever_numbers_it_has(body: bytes, reason: Reason) -> None:
    assert refusal(body).reason is reason


NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: sign + whole + fraction + exponent,
    st.sampled_from(["", "-"]),
    st.builds(lambda first, more, zeros: f"{first}{more}" + "0" * zeros,
              st.integers(1, 9), st.integers(0, 10**12), st.integers(0, 320)) | st.just("0"),
    st.just("") | st.builds(lambda zeros, digits: "." + "0" * zeros + str(digits), st.integers(0, 330), st.integers(0)),
    st.just("") | st.builds(lambda letter, sign, zeros, power: letter + sign + "0" * zeros + str(power),
                            st.sampled_from("eE"), st.sampled_from(["", "+", "-"]), st.integers(0, 3),
                            st.integers(0, 350) | st.integers(0, 10**6)),
)  # fmt: skip


@given(
    NUMBERS,
    st.sampled_from([b'{"user":"a","x":%s}', b'{"user":"a","x":{"y":[0, %s\n]}}', b'{"x":[%s,"["],"user":"\xc3\xa9"}']),
)
def test_exactly_the_numbers_that_a_double_holds_pass(number: str, body: bytes) -> None:
    event = body % number.encode()
    suspected = suspicions([b'{"user":"before"}', event, b'{"user":"behind"}'])
    passes = True
    if suspected & bodies.NUMBERS:
        try:
            assert bodies.decode_numbers(event) == json.loads(event)
        except bodies.Rejected:
            passes = False
    assert passes == (not isinf(float(number)))


def test_of_duplicate_keys_the_last_counts() -> None:
    assert timeline_of('"ada","user":"bob"') == b"bob"


def test_of_duplicate_keys_within_the_last_counts() -> None:
    assert record_of(b'{"user":{"id":1,"id":2}}', intake_route("{user.id}")).timeline == b"2"


def test_a_duplicate_object_replaces_the_whole_of_the_first() -> None:
    assert refusal(b'{"user":{"id":1},"user":{"no":2}}', intake_route("{user.id}")).reason is Reason.MISSING_FIELD


def test_an_escaped_field_name_is_the_same_name() -> None:
    assert record_of(b'{"\\u0075ser":"ada"}').timeline == b"ada"


# -- names of timelines and keys


@pytest.mark.parametrize("value", ['"\\u0000"', '"a\\nb"', '"\\u007f"', '"\\u0085"', '"a\\u001fb"'])
def test_a_control_character_in_a_timelines_name_is_refused(value: str) -> None:
    answer = refusal(b'{"user":%s}' % value.encode())
    assert answer.reason is Reason.BAD_FIELD
    assert f"the timeline's name has the control character U+{ord(json.loads(value).strip('ab')):04X}" in answer.detail


def test_a_nul_in_a_key_is_refused() -> None:
    answer = refusal(b'{"user":"ada","id":"a\\u0000"}', intake_route(key="{id}"))
    assert answer == Refused(Reason.BAD_FIELD, "route r: the record's key has the control character U+0000")


def test_a_nul_in_a_value_that_nobody_asked_for_is_no_harm() -> None:
    assert record_of(b'{"user":"ada","x":"\\u0000"}').timeline == b"ada"


@pytest.mark.parametrize("template", ["{user}", "{user}{user}"])
def test_an_empty_name_is_refused(template: str) -> None:
    assert refusal(b'{"user":""}', intake_route(template)) == Refused(
        Reason.BAD_FIELD, "route r: the timeline's name would be empty"
    )


def test_a_name_as_long_as_the_limit_passes() -> None:
    assert len(timeline_of(json.dumps("x" * 256))) == 256


@pytest.mark.parametrize("name", ["x" * 257, "é" * 129])
def test_a_name_beyond_the_limit_in_bytes_is_refused(name: str) -> None:
    answer = refusal(b'{"user":%s}' % json.dumps(name).encode())
    assert answer.reason is Reason.BAD_FIELD
    assert "limits.key allows 256" in answer.detail


def test_a_key_that_comes_again_is_the_same_key() -> None:
    router, records = Router([intake_route(key="{id}")], LIMITS), list[Record]()
    for _ in range(3):
        router.records_of(Message(MESSAGE_ID, 0, 1, b'{"user":"ada","id":"\xc3\xbc"}'), NOW_MS, False, records.append)
    assert [record.key for record in records] == ["ü".encode()] * 3


def test_a_name_is_checked_each_time_it_comes() -> None:
    router = Router([intake_route()], LIMITS)
    for _ in range(3):
        for body, taken in ((b'{"user":"ada"}', True), (b'{"user":"a\\nb"}', False)):
            answer, _ = routed(router, Message(MESSAGE_ID, 0, 1, body), NOW_MS)
            assert (answer == 1) is taken


# -- matching


@pytest.mark.parametrize(
    ("wanted", "value", "matches"),
    [
        ("error", '"error"', True),
        ("error", '"Error"', False),
        ("1", "1", False),
        (1, "1", True),
        (1, "1.0", True),
        (1.0, "1", True),
        (1, "1e0", True),
        (1.5, "1.5", True),
        (1, "true", False),
        (0, "false", False),
        (True, "true", True),
        (True, "1", False),
        (True, '"true"', False),
        (False, "false", True),
        (False, "0", False),
        (0, "-0.0", True),
        (1, '"1"', False),
        (1, "null", False),
        (1, "[1]", False),
        (1, '{"1":1}', False),
        (2**53, str(2**53 + 1), False),
        (2**53 + 1, str(2**53 + 1), True),
        (1, "1" + "0" * 300, False),
    ],
)
def test_a_value_matches_its_own_kind_and_numbers_match_as_numbers(
    wanted: str | int | bool | float, value: str, matches: bool
) -> None:
    answer, _ = filed(b'{"user":"ada","m":%s}' % value.encode(), intake_route(match=[("m", (wanted,))]))
    assert answer == int(matches)


def test_one_of_several_values_is_enough() -> None:
    wanted = intake_route(match=[("kind", ("error", "fatal", 5))])
    assert [filed(b'{"user":"a","kind":%s}' % kind, wanted)[0] for kind in (b'"fatal"', b"5", b'"info"')] == [1, 1, 0]


def test_a_condition_that_is_no_equality_decides_like_one() -> None:
    some = [("code", (">= 500",)), ("path", ("api.*",)), ("env", ("!= test",))]
    events = ('"code":500,"path":"api.x"', '"code":499,"path":"api.x"', '"code":500,"path":"api.x","env":"test"')
    assert [filed(b'{"user":"u",%s}' % each.encode(), intake_route(match=some))[0] for each in events] == [1, 0, 0]
    assert [filed(b'{"user":"u",%s}' % each.encode(), intake_route(match=some[:1]))[0] for each in events] == [1, 0, 1]


def test_every_field_of_a_match_must_hold() -> None:
    both = intake_route(match=[("a", (1,)), ("b.c", ("x",))])
    bodies = (b'{"user":"u","a":1,"b":{"c":"x"}}', b'{"user":"u","a":1,"b":{"c":"y"}}', b'{"user":"u","b":{"c":"x"}}')
    assert [filed(body, both)[0] for body in bodies] == [1, 0, 0]


def test_an_event_without_the_matched_field_is_not_taken_and_not_refused() -> None:
    assert filed(b'{"user":"ada"}', intake_route(match=[("kind", ("error",))])) == (0, [])


def test_a_route_that_does_not_match_does_not_look_at_its_other_fields() -> None:
    assert filed(b'{"kind":"info"}', intake_route(match=[("kind", ("error",))])) == (0, [])


# -- what else a route does with a record


def test_a_record_of_an_event_that_meets_urgent_is_urgent() -> None:
    route = intake_route(urgent=[("level", ("fatal",)), ("code", (">= 500",))])
    for body, is_urgent in ((b'"level":"fatal","code":500', True), (b'"level":"fatal"', False), (b'"code":500', False)):
        assert record_of(b'{"user":"u",%s}' % body, route).is_urgent is is_urgent
    assert not record_of(b'{"user":"u","level":"fatal"}').is_urgent


@pytest.mark.parametrize(("on_cancel", "end"), [("tell", AN_END), ("silent", A_SILENT_END)])
def test_a_record_of_an_event_that_meets_cancel_ends_others(on_cancel: str, end: int) -> None:
    route = intake_route(key="{id}", cancel=[("status", ("resolved", "closed"))], on_cancel=on_cancel)
    assert record_of(b'{"user":"u","id":1,"status":"closed"}', route).end == end
    assert record_of(b'{"user":"u","id":1,"status":"firing"}', route).end == NO_END
    assert record_of(b'{"user":"u","id":1}', route).end == NO_END


def test_a_record_names_the_zone_of_its_timeline() -> None:
    policy = replace(POLICY, at=("0 9 * * *",), zone="{tz.area}/{tz.city}")
    router = Router([intake_route(drop=["tz"], policy=policy, name="zoned")], LIMITS)
    zones = []
    for tz in (
        b'{"area":"Europe","city":"Berlin"}', b'{"area":"Mars","city":"X"}', b'"Europe/Berlin"', b'{"area":"Europe"}',
    ):  # fmt: skip
        router.records_of(
            Message(MESSAGE_ID, MESSAGE_NS, 1, b'{"user":"u","tz":%s}' % tz),
            NOW_MS,
            False,
            lambda each: zones.append(each.zone),
        )
    assert zones == ["Europe/Berlin", "", "", ""]
    assert router.unknown_zones == {"zoned": (1, "Mars/X")}


def test_a_route_that_drops_fields_still_sees_them_and_stores_no_trace() -> None:
    body = b'{"user":"ada","user":{"mail":"m","id":1.50},"token":"t","at":1699999999.5}'
    route = intake_route(
        "{user.mail}", key="{token}", timestamp="at", match=[("token", ("t",))], drop=["user.mail", "token", "at"]
    )
    record = record_of(body, route)
    assert (record.timeline, record.key, record.timestamp_us // 1000) == (b"m", b"t", 1_699_999_999_500)
    assert record.value == b'{"user":"ada","user":{"id":1.50}}'


def test_each_route_drops_its_own() -> None:
    routes = [intake_route(drop=drop, number=number) for number, drop in enumerate([["a"], ["b"], []])]
    _, records = filed(b'{"user":"u","a":1,"b":2}', *routes)
    assert [record.value for record in records] == [
        b'{"user":"u","b":2}', b'{"user":"u","a":1}', b'{"user":"u","a":1,"b":2}',
    ]  # fmt: skip


def test_an_event_older_than_its_route_allows_is_taken_counted_and_not_filed() -> None:
    route = intake_route(timestamp="at", max_event_age_ms=60_000, name="young")
    router = Router([route, intake_route(number=1, name="any")], LIMITS)
    taken = []
    for age_ms in (60_000, 60_001, 3_600_000, -1000):
        message = Message(MESSAGE_ID, MESSAGE_NS, 1, b'{"user":"u","at":%d}' % (NOW_MS - age_ms))
        taken.append([record.route for record in routed(router, message, NOW_MS)[1]])
        assert routed(router, message, NOW_MS)[0] == 2
    assert taken == [[0, 1], [1], [1], [0, 1]]
    assert router.too_old == {"young": 4}


def test_without_a_timestamp_field_the_messages_own_age_counts() -> None:
    route = intake_route(max_event_age_ms=100)
    assert filed(b'{"user":"u"}', route) == (1, [])


# -- several routes


def test_one_event_may_match_several_routes() -> None:
    answer, records = filed(
        b'{"user":"ada","team":"x"}',
        intake_route("{user}", number=0),
        intake_route("{team}", number=1),
        intake_route("all", number=2),
    )
    assert answer == 3
    assert [(record.route, record.timeline) for record in records] == [(0, b"ada"), (1, b"x"), (2, b"all")]


def test_where_one_route_can_not_take_it_the_records_of_the_others_are_added() -> None:
    answer, records = filed(
        b'{"user":"ada"}',
        intake_route("{user}", number=0),
        intake_route("{team}", number=1, name="teams"),
        intake_route("all", number=2),
    )
    assert answer == Refused(Reason.MISSING_FIELD, 'route teams: the field "team" is not there')
    assert [record.route for record in records] == [0, 2]


# -- timestamps


def timestamp_of(value: str, limits: Limits = LIMITS) -> int:
    return record_of(
        b'{"user":"a","at":%s}' % value.encode(), intake_route(timestamp="at"), limits=limits
    ).timestamp_us // 1000  # fmt: skip


def bad_timestamp(value: str, limits: Limits = LIMITS) -> str:
    answer = refusal(b'{"user":"a","at":%s}' % value.encode(), intake_route(timestamp="at"), limits=limits)
    assert answer.reason is Reason.BAD_TIMESTAMP
    return answer.detail


@pytest.mark.parametrize(
    ("value", "timestamp_ms"),
    [
        ("1699999999", 1_699_999_999_000),
        ("1699999999.123", 1_699_999_999_123),
        ("1699999999123", 1_699_999_999_123),
        ("1.699999999123e12", 1_699_999_999_123),
        ("0", 0),
        ("1", 1_000),
        ("100000000000", 100_000_000_000),
        ('"2023-11-14T22:13:19Z"', 1_699_999_999_000),
        ('"2023-11-14t22:13:19z"', 1_699_999_999_000),
        ('"2023-11-14T22:13:19.123Z"', 1_699_999_999_123),
        ('"2023-11-14T22:13:19.123999Z"', 1_699_999_999_123),
        ('"2023-11-14T23:13:19.5+01:00"', 1_699_999_999_500),
        ('"2023-11-14T22:13:19-00:00"', 1_699_999_999_000),
        ('"1970-01-01T00:00:00Z"', 0),
    ],
)
def test_a_timestamp_is_seconds_milliseconds_or_rfc_3339(value: str, timestamp_ms: int) -> None:
    assert timestamp_of(value) == timestamp_ms


def test_a_timestamp_in_text_keeps_each_millisecond() -> None:
    second = datetime.fromtimestamp(1_317_042_263, UTC)
    router = Router([intake_route(timestamp="at")], LIMITS)
    records: list[Record] = []
    for ms in range(1_000):
        text = (second + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds")
        router.records_of(
            Message(MESSAGE_ID, 0, 1, b'{"user":"a","at":"%s"}' % text.encode()), NOW_MS, False, records.append
        )
    assert [record.timestamp_us - 1_317_042_263_000_000 for record in records] == list(range(0, 1_000_000, 1_000))


@pytest.mark.parametrize("second", [1, 1_317_042_263, 1_699_999_999])
def test_a_timestamp_in_seconds_with_a_fraction_keeps_each_millisecond(second: int) -> None:
    assert [timestamp_of(f"{second}.{ms:03d}") for ms in range(1, 200, 6)] == [
        second * 1_000 + ms for ms in range(1, 200, 6)
    ]


def test_a_timestamp_field_may_lie_deeper() -> None:
    assert record_of(b'{"user":"a","meta":{"at":5}}', intake_route(timestamp="meta.at")).timestamp_us == 5_000_000


def test_a_field_below_one_that_is_not_there_is_not_there_either() -> None:
    body = b'{"user":"a"}'
    answer, _ = filed(body, intake_route(timestamp="meta.at"))
    assert answer == Refused(Reason.BAD_TIMESTAMP, 'route r: the timestamp field "meta.at" is not there')
    answer, _ = filed(body, intake_route("{user}:{meta.id}"))
    assert answer == Refused(Reason.MISSING_FIELD, 'route r: the field "meta.id" is not there')
    assert filed(body, intake_route(match=[("meta.kind", ["a"])])) == (0, [])


@pytest.mark.parametrize("size_bytes", [319, 320, 321, 4300, 4301])
def test_bodies_around_the_lengths_at_which_more_is_checked_are_taken(size_bytes: int) -> None:
    body = b'{"user":"%s"}' % (b"a" * 8) + b" " * (size_bytes - 19)
    assert len(body) == size_bytes
    assert record_of(body, limits=replace(LIMITS, event_bytes=size_bytes)).value == body
    assert filed(body, limits=replace(LIMITS, event_bytes=size_bytes - 1))[1] == []


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ("null", "is not there"),
        ("true", "is true or false"),
        ("{}", "is an object"),
        ("[1]", "is an array"),
        ('""', "is neither a number nor RFC 3339"),
        ('"yesterday"', "is neither a number nor RFC 3339"),
        ('"1699999999"', "is neither a number nor RFC 3339"),
        ('"2023-11-14T22:13:19"', "has no zone; write one, like 2026-01-31T09:00:00Z"),
        ('"2023-11-14"', "has no zone"),
        ('"2023-02-30T00:00:00Z"', "is neither a number nor RFC 3339"),
        ('"0001-01-01T00:00:00+23:59"', "not between the years 1970 and 2112"),
        ("-1", "not between the years 1970 and 2112"),
        ("-0.001", "not between the years 1970 and 2112"),
        ("-1e308", "not between the years 1970 and 2112"),
        ("1e308", "not between the years 1970 and 2112"),
        ("9007199254740992", "not between the years 1970 and 2112"),
        ("1" + "0" * 300, "not between the years 1970 and 2112"),
        ('"2111-12-31T23:59:59-23:59"', "s ahead; limits.future allows 300 s"),
        ('"9999-12-31T23:59:59-23:59"', "not between the years 1970 and 2112"),
    ],
)
def test_a_timestamp_that_is_none_says_why(value: str, detail: str) -> None:
    said = bad_timestamp(value)
    assert 'route r: the timestamp field "at"' in said
    assert detail in said


def test_the_latest_instant_is_the_last_that_a_score_in_microseconds_holds_exactly() -> None:
    limits = replace(LIMITS, future_ms=2**53)
    assert timestamp_of(str(2**52 // 1000 - 1), limits) == 4_503_599_627_369
    assert "not between the years 1970 and 2112" in bad_timestamp(str(2**52 // 1000), limits)


@pytest.mark.parametrize(
    ("delay_ms", "us"),
    [(-86_400_000, 0), (-501, 0), (-500, 0), (-498, 1), (0, 250), (1, 250), (2, 251), (1498, 999), (10**9, 999)],
)
def test_the_arrival_is_less_than_a_millisecond_of_a_timestamp(delay_ms: int, us: int) -> None:
    assert arrival_us(1_700_000_000_000, (1_700_000_000_000 + delay_ms) * 1_000_000 + 999_999) == us


def test_of_equal_timestamps_with_keys_of_their_own_the_later_arrival_is_newer_and_an_end_the_newest() -> None:
    body = b'{"user":"a","at":%d}' % (MESSAGE_NS // 10**9)
    own, plain = intake_route(key="{user}", timestamp="at"), intake_route(timestamp="at")
    can_end, ends = (intake_route(key="{user}", timestamp="at", cancel=[("user", (user,))]) for user in "ba")
    assert record_of(body, own).timestamp_us > record_of(body, plain).timestamp_us
    assert record_of(body, own).timestamp_us // 1000 == record_of(body, plain).timestamp_us // 1000
    assert record_of(body, can_end).timestamp_us == record_of(body, own).timestamp_us, "a reload may add cancel"
    assert record_of(body, ends).timestamp_us == record_of(body, plain).timestamp_us + LATEST_ARRIVAL_US


def test_a_timestamp_that_is_missing_is_refused() -> None:
    assert refusal(b'{"user":"a"}', intake_route(timestamp="at")).reason is Reason.BAD_TIMESTAMP


def test_a_timestamp_may_lie_ahead_up_to_the_limit() -> None:
    assert timestamp_of(str(NOW_MS + 300_000)) == NOW_MS + 300_000
    assert "lies 300 s ahead; limits.future allows 300 s" in bad_timestamp(str(NOW_MS + 300_001))


def test_a_timestamp_may_lie_back_up_to_the_limit() -> None:
    limits = replace(LIMITS, past_ms=60_000)
    assert timestamp_of(str(NOW_MS - 60_000), limits) == NOW_MS - 60_000
    assert "lies 60 s back; limits.past allows 60 s" in bad_timestamp(str(NOW_MS - 60_001), limits)


def test_without_a_limit_a_timestamp_may_lie_back_as_far_as_1970() -> None:
    assert timestamp_of("1", replace(LIMITS, past_ms=0)) == 1_000


# -- bodies that are nothing


@pytest.mark.parametrize(
    "body", [b"", b" ", b"{", b"}", b'{"user":"ada"', b'{"user":"ada"}}', b'{"user":"ada"} x', b"{'user':'ada'}",
             b'{"user":"ada",}', b'{"user":NaN}', b'{"user":"a","x":NaN}', b'{"user":"a","x":Infinity}', b"user=ada",
             b'{"user":"a","x":01}', b'{"user":"a","x":.5}', b'{"user":"a\nb"}', b'{"user":"a","x":"\x01"}',
             b'{"user":"a","x":"\\x41"}', b"\xef\xbb\xbf" + b'{"user":"ada"}', b'{"user":"a"}\x00'],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: bytes) -> None:
    answer = refusal(body)
    assert answer.reason is Reason.NOT_JSON
    assert "without its second half" not in answer.detail


@pytest.mark.parametrize("body", [b"[]", b'["user"]', b'"user"', b"7", b"null", b"true", b'[{"user":"ada"}]'])
def test_json_that_is_no_object_is_refused(body: bytes) -> None:
    assert refusal(body) == Refused(Reason.NOT_AN_OBJECT, "the body is JSON, but not an object")


@pytest.mark.parametrize(
    "body",
    [
        b'{"user":"\xff"}',
        b'{"user":"a","x":"\xff"}',
        b'{"user":"a","x":"\xc3"}',
        b'{"user":"a","x":"\xed\xa0\x80"}',
        b'{"user":"a","\xfe":1}',
        b'{"user":"a","x":"\xc0\x80"}',
        b"\xff\xfe{\x00}\x00",
    ],
)
def test_what_is_not_utf8_is_refused_also_where_nobody_looks(body: bytes) -> None:
    answer = refusal(body)
    assert answer.reason is Reason.NOT_UTF8
    assert "is not UTF-8" in answer.detail


@pytest.mark.parametrize(
    "body",
    [
        b'{"user":"\\ud800"}',
        b'{"user":"a","x":"\\ud800"}',
        b'{"user":"a","x":"\\udc00"}',
        b'{"user":"a","x":["\\ud800\\u0041"]}',
        b'{"user":"a","\\udfff":1}',
    ],
)
def test_half_a_character_is_refused_and_named(body: bytes) -> None:
    answer = refusal(body)
    assert answer.reason is Reason.NOT_JSON
    assert "without its second half" in answer.detail


def test_a_pair_of_halves_is_one_character() -> None:
    assert timeline_of('"\\ud83d\\ude00"') == "😀".encode()


# -- too much


def test_a_body_as_large_as_the_limit_passes() -> None:
    body = b'{"user":"%s"}' % (b"x" * 40)
    assert record_of(body, limits=replace(LIMITS, event_bytes=len(body))).value == body


def test_a_larger_body_is_refused() -> None:
    body = b'{"user":"%s"}' % (b"x" * 40)
    assert refusal(body, limits=replace(LIMITS, event_bytes=len(body) - 1)) == Refused(
        Reason.TOO_LARGE, f"the body has {len(body)} bytes; limits.event allows {len(body) - 1}"
    )


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return b'{"user":"a","x":%s1%s}' % (opening * (depth - 1), closing * (depth - 1))


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"y":', b"}"), (b'[{"y":', b"}]")])
def test_depth_counts_the_outermost_brackets_as_1(opening: bytes, closing: bytes) -> None:
    each = opening.count(b"[") + opening.count(b"{")
    levels = 64 // each
    limits = replace(LIMITS, depth=1 + levels * each)
    assert record_of(nested(levels + 1, opening, closing), limits=limits).timeline == b"a"
    answer = refusal(nested(levels + 2, opening, closing), limits=limits)
    assert answer == Refused(Reason.TOO_DEEP, f"nested deeper than {limits.depth}, which is what limits.depth allows")


def test_with_a_depth_of_1_only_flat_objects_pass() -> None:
    limits = replace(LIMITS, depth=1)
    assert record_of(b'{"user":"a","x":"[{"}', limits=limits).timeline == b"a"
    assert refusal(b'{"user":"a","x":[]}', limits=limits).reason is Reason.TOO_DEEP


@pytest.mark.parametrize(
    "text",
    [b"[" * 500, b"{" * 500, b'\\"[' * 200, b"\\\\" + b"[" * 200, b'[\\\\\\"' + b"{" * 200, b"]" * 5 + b"[" * 99],
)
def test_brackets_within_strings_are_not_counted(text: bytes) -> None:
    assert record_of(b'{"user":"a","x":"%s"}' % text).timeline == b"a"


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert record_of(b'{"user":"a","x":[%s]}' % b",".join([b"[{}]"] * 1_000)).timeline == b"a"


HOSTILE = {
    "opening brackets": b"[" * MEBIBYTE,
    "opening braces": b'{"a":' * (MEBIBYTE // 5),
    "closing brackets": b"]" * MEBIBYTE,
    "a string without end": b'{"user":"' + b"x" * (MEBIBYTE - 9),
    "a string of escapes without end": b'{"user":"' + b"\\" * (MEBIBYTE - 9),
    "quotes": b'"' * MEBIBYTE,
    "escaped quotes": b'\\"' * (MEBIBYTE // 2),
    "strings without end and brackets": b'[{"' * (MEBIBYTE // 3),
    "a number without end": b'{"user":' + b"9" * (MEBIBYTE - 8),
    "blanks": b" " * MEBIBYTE,
    "NULs": b"\x00" * MEBIBYTE,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_body_is_refused_like_any_other(what: str) -> None:
    answer = refusal(HOSTILE[what], limits=replace(LIMITS, event_bytes=MEBIBYTE))
    assert answer.reason in (Reason.NOT_JSON, Reason.NOT_AN_OBJECT, Reason.TOO_DEEP, Reason.BAD_FIELD)
    assert len(answer.detail) < 200


def nesting(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max((nesting(each) for each in (value.values() if isinstance(value, dict) else value)), default=0)


@pytest.mark.parametrize("depth", [1, 2, 5])
@given(st.text(alphabet='[]{}"\\a:,', max_size=40))
def test_a_body_that_is_json_is_too_deep_exactly_when_it_is(depth: int, text: str) -> None:
    try:
        value = json.loads(text)
    except ValueError:
        return
    assert bodies.is_deeper_than(text.encode(), depth) == (nesting(value) > depth)


@given(
    st.recursive(
        st.text(alphabet='[]{}"\\', max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='"}[', max_size=2), inner),
    )
)
def test_the_depth_of_any_json_is_what_it_is(value: Any) -> None:
    body = json.dumps(value).encode()
    actual = nesting(value)
    assert not bodies.is_deeper_than(body, max(1, actual))
    if actual > 1:
        assert bodies.is_deeper_than(body, actual - 1)


def test_names_take_no_more_memory_than_they_may_and_keys_none() -> None:
    router = Router([intake_route("{t}", key="{k}")], replace(LIMITS, key_bytes=512))

    def feed(field: str, other: str, count: int) -> int:
        for number in range(count):
            body = b'{"%b":"%0400d","%b":"same"}' % (field.encode(), number, other.encode())
            assert router.records_of(Message(b"0" * 16, 1, 1, body), 1, False, lambda record: None) == 1
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = feed("k", "t", 100)
        assert feed("k", "t", 30_000) - before < 1 << 20
        assert feed("t", "k", 60_000) - before < NAMES_BYTES + (1 << 20)
    finally:
        tracemalloc.stop()


def test_names_are_remembered_until_they_take_up_too_much_and_then_all_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name_bytes = getsizeof("u1") + getsizeof(b"u1") + names._ENTRY_BYTES
    monkeypatch.setattr(names, "NAMES_BYTES", 2 * name_bytes)
    router = Router([intake_route()], LIMITS)
    remembered, ignored = [], list[Record]()
    for name in ("u1", "u2", "u2", "u3", "u4", "u5"):
        router.records_of(
            Message(MESSAGE_ID, MESSAGE_NS, 1, b'{"user":"%b"}' % name.encode()), NOW_MS, False, ignored.append
        )
        remembered.append(sorted(router._timelines.known))
    assert remembered == [["u1"], ["u1", "u2"], ["u1", "u2"], ["u3"], ["u3", "u4"], ["u5"]]


@pytest.mark.parametrize("template", ["a-{user}-b", "{user}-b", "a-{user}", "{user}"])
def test_what_stands_around_a_field_of_a_template_stays(template: str) -> None:
    assert record_of(b'{"user":"u"}', intake_route(template)).timeline == template.replace("{user}", "u").encode()


def test_the_names_of_an_events_fields_are_bounded_and_hold_no_value() -> None:
    assert bodies.field_names(b'{"a":"x","b":{"c":1}}') == ["a", "b"]
    many = json.dumps({"n" * 100 + str(number): "value" for number in range(1000)}).encode()
    assert len("".join(bodies.field_names(many))) <= 800


# -- why no route takes an event


def unmet(body: bytes, *matches: Any) -> list[tuple[int, str, Any]]:
    some = [intake_route("all", match=match, name=f"r{number}", number=number) for number, match in enumerate(matches)]
    return list(Router(some, LIMITS).unmet(body))


def test_the_first_condition_that_an_event_does_not_meet_is_named_with_what_it_has() -> None:
    conditions = [("a", [1]), ("b.c", ["x", True]), ("d", [2])]
    assert unmet(b'{"a":1,"b":{"c":"x"},"d":2}', conditions) == []
    assert unmet(b'{"a":1,"b":{"c":true},"d":3}', conditions) == [(0, "d", 3)]
    assert unmet(b'{"a":1.5,"b":{"c":"y"}}', conditions) == [(0, "a", 1.5)]
    assert unmet(b'{"a":1,"b":{"c":[1]}}', conditions) == [(0, "b.c", [1])]
    assert unmet(b'{"a":1,"b":{}}', conditions) == [(0, "b.c", msgspec.UNSET)]


def test_a_field_that_is_no_object_has_nothing_below_it() -> None:
    assert unmet(b'{"b":5}', [("b.c", ["x"])]) == [(0, "b.c", msgspec.UNSET)]
    assert unmet(b'{"b":null}', [("b.c", ["x"])]) == [(0, "b.c", msgspec.UNSET)]


def test_each_route_that_does_not_take_it_has_a_reason() -> None:
    assert unmet(b'{"a":2}', [("a", [1])], [], [("a", [2])], [("a", ["2"])]) == [(0, "a", 2), (3, "a", 2)]


# -- where the sink of a route sends it


def nowhere_without_a_room(timeline: str, value: bytes) -> str:
    return "" if b'"room"' in value else f"topic: {timeline} has no room"


def test_an_event_without_a_target_is_refused_for_its_route_alone() -> None:
    aimed = intake_route(number=1, name="aimed")._replace(why_no_target=nowhere_without_a_room)
    answer, records = filed(b'{"user":"ada"}', intake_route(), aimed)
    assert isinstance(answer, Refused)
    assert answer.reason is Reason.NO_TARGET
    assert answer.detail.startswith("route aimed: topic: ")
    assert [record.route for record in records] == [0]
    assert filed(b'{"user":"ada","room":1}', aimed)[0] == 1


def test_the_target_is_of_what_is_stored() -> None:
    aimed = intake_route(drop=("room",))._replace(why_no_target=nowhere_without_a_room)
    assert refusal(b'{"user":"ada","room":1}', aimed).reason is Reason.NO_TARGET


def test_an_end_needs_no_target_because_it_takes_out_a_record_that_has_one() -> None:
    aimed = intake_route(cancel=[("status", ["ok"])])._replace(why_no_target=nowhere_without_a_room)
    assert record_of(b'{"user":"ada","status":"ok"}', aimed).end == AN_END
