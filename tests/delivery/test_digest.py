"""A digest's body: the shape that receivers know, values byte for byte, groups, and what is left out for length."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.delivery.digest import Builder, Names, rfc3339, usual_body
from nsqdigest.delivery.grouped import GroupedBuilder
from nsqdigest.store.head import Head
from nsqdigest.store.record import Columns, StoredRecord

pytestmark = pytest.mark.unit

HEAD = Head(
    id="018bcfe5-6b7b-7000-8000-000000000000", iteration=3, opened_ms=1_763_456_400_123, total=17, superseded=2,
    dropped_capacity=5, next_earliest_ms=1_763_456_700_007, since_ms=1_763_456_300_000, attempts=4, tries=6,
)  # fmt: skip
NAMES = Names("events", "user:42", "out")
FIRST_MS, LAST_MS = 1_700_000_000_123, 1_700_000_009_456
MAX_BODY_BYTES = 256 * 1024

Records = list[tuple[bytes, int, bytes]]


def made(head: Head, names: Names, max_body_bytes: int, group: str) -> Builder | GroupedBuilder:
    if group:
        return GroupedBuilder(head, names, max_body_bytes, tuple(group.split(".")))
    return Builder(head, names, max_body_bytes)


def body(
    records: Records, head: Head = HEAD, group: str = "", max_body_bytes: int = MAX_BODY_BYTES, *, names: Names = NAMES,
    first_ms: int = FIRST_MS, last_ms: int = LAST_MS,
) -> bytes:  # fmt: skip
    builder = made(head, names, max_body_bytes, group)
    builder.add([StoredRecord(*record) for record in records])
    return builder.body(first_ms, last_ms)


def data(*args: Any, **kwargs: Any) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(body(*args, **kwargs))["data"]
    return parsed


def shape(value: Any) -> Any:
    """Names and kinds, without the values."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value)


# -- the shape


def test_a_digest_has_the_shape_that_receivers_know() -> None:
    digest = json.loads(body([(b"k", 1_700_000_009_456, b'{"user":42}')]))
    assert shape(digest) == {
        "type": str,
        "timestamp": str,
        "data": {
            "id": str, "route": str, "timeline": str, "sink": str, "iteration": int, "first": int, "last": int,
            "total": int, "shown": int, "superseded": int, "dropped": {"capacity": int},
            "records": [{"key": str, "timestamp": int, "value": {"user": int}}], "next_earliest": str,
        },
    }  # fmt: skip


def test_grouped_it_has_groups_in_place_of_records() -> None:
    digest = json.loads(body([(b"k", 1, b'{"g":"a"}')], group="g"))
    ungrouped = json.loads(body([(b"k", 1, b'{"g":"a"}')]))
    assert set(digest["data"]) == set(ungrouped["data"]) - {"records"} | {"groups"}
    assert shape(digest["data"]["groups"]) == [
        {"group": str, "count": int, "records": [{"key": str, "timestamp": int, "value": {"g": str}}]}
    ]


def test_every_fact_is_told() -> None:
    digest = json.loads(body([(b"k", 1_700_000_009_456, b"{}")]))
    assert digest == {
        "type": "digest",
        "timestamp": "2025-11-18T09:00:00.123Z",
        "data": {
            "id": HEAD.id, "route": "events", "timeline": "user:42", "sink": "out", "iteration": 3,
            "first": 1_700_000_000_123, "last": 1_700_000_009_456, "total": 17, "shown": 1, "superseded": 2,
            "dropped": {"capacity": 5}, "records": [{"key": "k", "timestamp": 1_700_000_009_456, "value": {}}],
            "next_earliest": "2025-11-18T09:05:00.007Z",
        },
    }  # fmt: skip


@pytest.mark.parametrize("group", ["", "g"])
def test_a_digest_without_records_still_parses(group: str) -> None:
    digest = data([], group=group)
    assert digest["shown"] == 0
    assert digest["groups" if group else "records"] == []


@pytest.mark.parametrize(
    ("instant_ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_763_456_400_123, "2025-11-18T09:00:00.123Z"),
        (1_763_456_400_999, "2025-11-18T09:00:00.999Z"),
        (1_763_456_399_999, "2025-11-18T08:59:59.999Z"),
        (4_102_444_799_999, "2099-12-31T23:59:59.999Z"),
    ],
)
def test_instants_are_rfc_3339_with_milliseconds(instant_ms: int, text: str) -> None:
    assert rfc3339(instant_ms) == text


# -- records


@pytest.mark.parametrize(
    "value",
    [
        b'{"n":1.50,"e":1E5,"z":-0.0}',
        b'{"big":123456789012345678901234567890}',
        b'{"a":1,"a":2}',
        b'{"s":"\\u0041\\/\\u00e9","t":"\xc3\xa9"}',
        b' {\n "a" : [ 1 , 2 ] }\t',
        b'{"x":1e999}',
    ],
)
@pytest.mark.parametrize("group", ["", "g"])
def test_a_value_goes_in_byte_for_byte(value: bytes, group: str) -> None:
    assert b'"value":' + value + b"}" in body([(b"k", 1, value)], group=group)


def test_records_stay_in_the_order_they_were_given_newest_first() -> None:
    records: Records = [(b"k%d" % number, 1_000 - number, b'{"g":"a"}') for number in range(50)]
    assert [record["key"] for record in data(records)["records"]] == [f"k{number}" for number in range(50)]
    assert [record["timestamp"] for record in data(records, group="g")["groups"][0]["records"]] == [
        1_000 - number for number in range(50)
    ]


@pytest.mark.parametrize("text", ['a"b', "a\\b", "é😀", "\u2028", "</script>", "{}", "a\tb"])
def test_any_text_in_names_comes_out_as_it_was(text: str) -> None:
    digest = data([(text.encode(), 1, b"{}")], names=Names(text, text, "out"))
    assert (digest["records"][0]["key"], digest["timeline"], digest["route"]) == (text, text, text)


@pytest.mark.parametrize("code", range(128))
def test_any_character_of_a_key_comes_out_as_it_was_and_changes_no_other(code: int) -> None:
    records: Records = [(b"before", 3, b"{}"), (b"a%cb" % code, 2, b"{}"), (b"behind", 1, b"{}")]
    assert [record["key"] for record in data(records)["records"]] == ["before", f"a{chr(code)}b", "behind"]


some_records = st.lists(
    st.tuples(st.text(max_size=20), st.integers(0, 2**53), st.dictionaries(st.text(), st.text())), max_size=8
)


@given(some_records)
def test_whatever_is_in_keys_and_values_the_digest_parses_to_it(records: list[tuple[str, int, dict[str, str]]]) -> None:
    digest = data([(key.encode(), timestamp_ms, json.dumps(value).encode()) for key, timestamp_ms, value in records])
    assert [(record["key"], record["timestamp"], record["value"]) for record in digest["records"]] == records


def test_the_same_snapshot_gives_the_same_bytes() -> None:
    records: Records = [(b"k%d" % number, number, b'{"g":"%d"}' % (number % 3)) for number in range(20)]
    assert body(records) == body(list(records))
    assert body(records, group="g") == body(list(records), group="g")


def test_a_body_has_no_line_break_of_its_own() -> None:
    assert b"\n" not in body([(b"a\nb", 1, b"{}")], names=NAMES._replace(timeline="x\ny"))


# -- groups


def groups(values: list[bytes], path: str = "g") -> list[tuple[Any, list[str]]]:
    records = [(b"%d" % number, 1, value) for number, value in enumerate(values)]
    found = data(records, group=path)["groups"]
    return [(group["group"], [record["key"] for record in group["records"]]) for group in found]


def test_records_are_grouped_by_the_field_in_the_order_of_their_newest() -> None:
    assert groups([b'{"g":"b"}', b'{"g":"a"}', b'{"g":"b"}', b'{"g":"c"}', b'{"g":"a"}']) == [
        ("b", ["0", "2"]), ("a", ["1", "4"]), ("c", ["3"]),
    ]  # fmt: skip


@pytest.mark.parametrize("value", [b"{}", b'{"g":null}', b'{"g":[1]}', b'{"g":{"a":1}}', b'{"h":"a"}', b'{"g":1e999}'])
def test_records_without_the_field_are_grouped_under_null(value: bytes) -> None:
    assert groups([b'{"g":"a"}', value, b"{}"]) == [("a", ["0"]), (None, ["1", "2"])]


@pytest.mark.parametrize(
    ("value", "group"), [(b"7", 7), (b"true", True), (b"1.5", 1.5), (b'"7"', "7"), (b'""', ""), (b'"null"', "null")]
)
def test_text_numbers_and_truth_are_groups(value: bytes, group: Any) -> None:
    ((found, _),) = groups([b'{"g":%s}' % value])
    assert found == group
    assert type(found) is type(group)


def test_groups_of_other_kinds_stand_apart() -> None:
    assert [group for group, _ in groups([b'{"g":1}', b'{"g":true}', b'{"g":"1"}', b"{}"])] == [1, True, "1", None]


def test_the_same_text_escaped_otherwise_is_the_same_group() -> None:
    assert groups([b'{"g":"A\xc3\xa9"}', b'{"g":"\\u0041\\u00e9"}']) == [("Aé", ["0", "1"])]


def test_the_path_of_a_group_may_lie_deeper() -> None:
    assert groups([b'{"a":{"b":"x"}}', b'{"a":"x"}', b'{"a":{}}'], "a.b") == [("x", ["0"]), (None, ["1", "2"])]


def test_of_duplicate_fields_the_last_is_the_group() -> None:
    assert groups([b'{"g":"a","g":"b"}']) == [("b", ["0"])]


@pytest.mark.parametrize("other", [b"1e999", b"9" * 5_000])
def test_a_number_that_only_the_receiver_can_read_does_not_hide_the_group(other: bytes) -> None:
    assert b'"groups":[{"group":"a","count":1,' in body([(b"k", 1, b'{"x":%s,"g":"a"}' % other)], group="g")


# -- trimming


def test_a_body_is_never_longer_than_its_limit() -> None:
    for limit_bytes in range(2_000, 6_000, 97):
        for group in ("", "g"):
            records: Records = [
                (b'k"%d' % number, number, b'{"g":"%s"}' % (b"x" * (number % 40))) for number in range(200)
            ]
            assert len(body(records, group=group, max_body_bytes=limit_bytes)) <= limit_bytes


@pytest.mark.parametrize(
    "names",
    [NAMES._replace(route="n" * 3_000), NAMES._replace(timeline="n" * 3_000), NAMES._replace(sink="n" * 3_000)],
    ids=["route", "timeline", "sink"],
)
def test_whatever_has_a_long_name_a_body_is_never_longer_than_its_limit(names: Names) -> None:
    records: Records = [(b"k%d" % number, number, b"{}") for number in range(500)]
    digest = body(records, max_body_bytes=8_192, names=names)
    assert 7_000 < len(digest) <= 8_192


@pytest.mark.parametrize("group", ["", "g"])
def test_thousands_of_small_records_are_counted_with_what_stands_between_them(group: str) -> None:
    records: Records = [(b"k", 1, b"{}")] * 10_000
    assert len(body(records, group=group, max_body_bytes=65_536)) <= 65_536


@pytest.mark.parametrize("group", ["", "g"])
def test_a_list_that_is_a_little_too_long_is_cut(group: str) -> None:
    records: Records = [(b"k", 1, b"{}")] * 3_000
    whole_bytes = len(body(records, group=group, max_body_bytes=1 << 20))
    for limit_bytes in range(whole_bytes - 6_000, whole_bytes, 500):
        assert len(body(records, group=group, max_body_bytes=limit_bytes)) <= limit_bytes


def first_limits(records: Records, group: str) -> list[int]:
    """The smallest limit at which the first of them is shown, the first two, and so on."""
    found: list[int] = []
    for limit_bytes in range(1_024, 2_048):
        shown = data(records, group=group, max_body_bytes=limit_bytes)["shown"]
        found += [limit_bytes] * (shown - len(found))
    assert len(found) == len(records)
    return found


def lengths(records: Records, group: str) -> list[int]:
    """Of the bodies of the first of them, of the first two, and so on."""
    return [len(body(records[:count], group=group)) for count in range(1, len(records) + 1)]


def differences(numbers: list[int]) -> list[int]:
    return [later - earlier for earlier, later in itertools.pairwise(numbers)]


@pytest.mark.parametrize("key", [b"k", b'k"'], ids=["plain", "escaped"])
@pytest.mark.parametrize("group", ["", "g"])
def test_each_further_record_is_shown_from_as_many_bytes_on_as_it_adds_to_the_body(key: bytes, group: str) -> None:
    """The last one too, with which the list is whole and is taken at once."""
    records: Records = [(key, 1, b'{"g":1,"x":"%s"}' % (b"x" * length)) for length in (3, 0, 11, 2, 7, 5)]
    assert differences(first_limits(records, group)) == differences(lengths(records, group))


def test_all_but_names_and_records_has_a_kibibyte_for_itself() -> None:
    """Who changes it has digests that were cut go out with other bytes when they are tried again."""
    names, record = b'"events""user:42""out"', b'{"group":,"records":[]},{"key":"k","timestamp":1,"value":{}},'
    assert first_limits([(b"k", 1, b"{}")], "") == [1_024 + len(names) + len(record)]


@pytest.mark.parametrize("group", ["", "g"])
@pytest.mark.parametrize("at_once", [1, 7])
def test_a_body_that_is_filled_page_by_page_is_as_long_as_its_limit_allows_and_no_longer(
    at_once: int, group: str
) -> None:
    limit_bytes = 16_384
    builder = made(HEAD, NAMES, limit_bytes, group)
    for start in range(0, 700, at_once):
        numbers = range(start, start + at_once)
        builder.add([StoredRecord(b"k%d" % number, 1_000 - number, b'{"g":"%s"}' % (b"x" * 40)) for number in numbers])
    assert builder.is_full is not bool(group)
    whole = builder.body(FIRST_MS, LAST_MS)
    digest = json.loads(whole)["data"]
    assert limit_bytes // 2 < len(whole) <= limit_bytes
    records = digest["groups"][0]["records"] if group else digest["records"]
    assert [record["key"] for record in records] == [f"k{number}" for number in range(digest["shown"])]


def test_what_does_not_fit_is_left_out_and_the_totals_stay() -> None:
    head = HEAD._replace(total=500)
    digest = data([(b"k%d" % number, number, b"{}") for number in range(500)], head, max_body_bytes=4_096)
    assert 10 < digest["shown"] < 500
    assert digest["shown"] == len(digest["records"])
    assert (digest["total"], digest["first"], digest["last"]) == (500, FIRST_MS, LAST_MS)


def test_in_groups_shown_counts_the_records_of_all() -> None:
    digest = data([(b"k", 1, b'{"g":%d}' % (number % 7)) for number in range(500)], group="g", max_body_bytes=4_096)
    assert digest["shown"] == sum(len(group["records"]) for group in digest["groups"]) < 500


def test_the_newest_are_shown_and_nothing_behind_the_first_that_does_not_fit() -> None:
    small, large = b'{"x":1}', b'{"x":"%s"}' % (b"x" * 4_000)
    digest = data([(b"a", 3, small), (b"b", 2, large), (b"c", 1, small)], max_body_bytes=4_096)
    assert [record["key"] for record in digest["records"]] == ["a"]


@pytest.mark.parametrize("group", ["", "g"])
def test_of_the_pages_behind_one_that_did_not_fit_nothing_is_shown(group: str) -> None:
    builder = made(HEAD, NAMES, 4_096, group)
    for key, value in ((b"a", b"{}"), (b"b", b'{"x":"%s"}' % (b"x" * 4_000)), (b"c", b"{}")):
        builder.add([StoredRecord(key, 1, value)])
    whole = builder.body(FIRST_MS, LAST_MS)
    assert (whole.count(b'"key":"a"'), whole.count(b'"key":')) == (1, 1)
    assert json.loads(whole)["data"]["shown"] == 1


def test_a_body_does_not_depend_on_the_pages_that_its_records_came_in() -> None:
    records = [StoredRecord(b"%d" % n, 10_000 - n, b'"%s"' % (b"x" * 100)) for n in range(64)]
    for limit_bytes in range(2_000, 12_000, 7):
        bodies = set()
        for pages in ([records], [records[:16], [], records[16:50], records[50:]], [[], *([each] for each in records)]):
            builder = Builder(HEAD, NAMES, limit_bytes)
            for page in pages:
                builder.add(page)
            bodies.add(builder.body(FIRST_MS, LAST_MS))
        assert len(bodies) == 1, limit_bytes


def test_a_builder_that_is_full_says_so() -> None:
    builder = Builder(HEAD, NAMES, 2_048)
    assert not builder.is_full
    builder.add([StoredRecord(b"a", 1, b"{}")])
    assert not builder.is_full
    builder.add([StoredRecord(b"b", 1, b'{"x":"%s"}' % (b"x" * 2_000))])
    assert builder.is_full


def test_the_largest_numbers_and_names_leave_room_for_themselves() -> None:
    names = Names("r" * 64, '"' * 4_096, "s" * 64)
    head = HEAD._replace(iteration=2**53, total=2**53, superseded=2**53, dropped_capacity=2**53)
    records: Records = [(b"k%d" % n, n, b"{}") for n in range(1_000)]
    limit_bytes = 16 * 1024
    whole = body(records, head, max_body_bytes=limit_bytes, names=names, first_ms=2**53, last_ms=2**53)
    assert len(whole) <= limit_bytes


def test_the_number_of_an_attempt_is_not_in_the_body() -> None:
    """Each attempt of an id goes out with the same bytes."""
    again = HEAD._replace(attempts=9, tries=11)
    assert body([(b"k", 1, b"{}")], again) == body([(b"k", 1, b"{}")])


# -- in one go, from what Redis returned

PLAIN_NAMES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
some_columns = st.lists(
    st.tuples(
        st.one_of(PLAIN_NAMES, st.text(max_size=5)).map(str.encode),
        st.one_of(st.integers(10**15, 9 * 10**15), st.integers(-(2**53), 2**53)),
        st.one_of(st.just(b'{"a":1}'), st.none()),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda record: record[0],
)


def columns(*records: tuple[bytes, int, bytes | None]) -> Columns:
    """As Redis returns them."""
    keys, timestamps_us, values = (list(column) for column in zip(*records, strict=True))
    return Columns(keys, [redis_score(-timestamp_us) for timestamp_us in timestamps_us], values)


def redis_score(number: int) -> bytes:
    return b"%.17g" % number


def built(records: Columns, max_body_bytes: int, names: Names = NAMES) -> bytes:
    builder = Builder(HEAD, names, max_body_bytes)
    there = [record for record in records.records() if record is not None]
    builder.add(there)
    return builder.body(there[-1].timestamp_ms, there[0].timestamp_ms)


@given(some_columns, st.sampled_from([1150, 1200, 1400, MAX_BODY_BYTES]), PLAIN_NAMES)
def test_in_one_go_the_body_is_the_same_byte_for_byte(
    records: list[tuple[bytes, int, bytes | None]], max_body_bytes: int, name: str
) -> None:
    names, found = Names(name, f"é{name}", f"%s{name}"), columns(*records)
    body = usual_body(HEAD, names, found, max_body_bytes)
    assert body is None or body == built(found, max_body_bytes, names)


US = 1_700_000_000_123_456


@pytest.mark.parametrize("count", [1, 2, 64])
def test_usual_records_go_in_one_go(count: int) -> None:
    found = columns(*((b"k%d" % number, US - number, b"%d" % number) for number in range(count)))
    assert usual_body(HEAD, NAMES, found, MAX_BODY_BYTES) == built(found, MAX_BODY_BYTES)


@pytest.mark.parametrize(
    "unusual",
    [
        (b'"', US, b"1"), (b"\xc3\xa9", US, b"1"), (b"k", US, None), (b"k", 10**15 - 1, b"1"), (b"k", -US, b"1"),
        (b"k", 0, b"1"), (b"k", US, b"1" * 900),
    ],
)  # fmt: skip
def test_one_unusual_record_is_left_to_the_builder(unusual: tuple[bytes, int, bytes | None]) -> None:
    assert usual_body(HEAD, NAMES, columns(unusual, (b"other", US, b"1")), 1900) is None


@pytest.mark.parametrize("score", [b"-1.7000000000e+15", b"-17000000000000000", b"--700000000000000"])
def test_a_score_of_another_form_is_not_cut(score: bytes) -> None:
    assert Columns([b"k"], [score], [b"1"]).usual_timestamps() is None
