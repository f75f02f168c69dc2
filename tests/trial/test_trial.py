"""What a good event becomes: every route that takes it, with timeline, key, time, group and sink."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.config import parse_text
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.nsq.frames import Message
from nsqdigest.trial import report
from nsqdigest.trial.events import Event
from nsqdigest.trial.trial import Result, Trial, Tried

pytestmark = pytest.mark.unit

NOW_MS = 1_700_000_000_000
FILE = """\
[nsq]
nsqd_tcp_addresses = ["127.0.0.1:4150"]

[sinks.out]
type = "log"

[sinks.other]
type = "log"

[policies.slow]

[[routes]]
name = "all"
topic = "events"
timeline = "{user}"
sink = "out"

[[routes]]
name = "orders"
topic = "events"
match = {kind = "order", "meta.live" = true}
timeline = "orders of {user}"
key = "{order.id}-{order.n}"
timestamp = "meta.at"
group = "order.kind"
policy = "slow"
sink = "other"

[[routes]]
name = "elsewhere"
topic = "others"
timeline = "{user}"
sink = "out"
"""
ORDER = (
    b'{"user": "ada", "kind": "order", "order": {"id": 1.50, "n": 2, "kind": "new"}, '
    b'"meta": {"live": true, "at": "2023-11-14T22:13:20.123Z"}}'
)
ALL: dict[str, Any] = {
    "route": "all", "timeline": "ada", "key": None, "timestamp": None, "group": None, "urgent": False,
    "cancels": False, "zone": None, "dropped": [], "policy": "default", "sink": "out", "target": None,
    "no_target": None,
}  # fmt: skip


def tried(body: bytes, topic: str = "events", file: str = FILE) -> Tried:
    return Trial(parse_text(file, "f.toml", {}, KINDS), topic).try_event(Event(1, body), NOW_MS)


def answer(*some: Tried) -> dict[str, Any]:
    """As a script reads it."""
    decoded: dict[str, Any] = json.loads(json.dumps(report.as_json("events", some)))
    return decoded


def shown(*some: Tried, dead_letter_topic: str = "nsqdigest.dead", **look: Any) -> list[str]:
    return list(report.lines(some, dead_letter_topic, **look))


def test_each_route_that_takes_it_is_there_with_all_that_it_makes_of_it() -> None:
    (only,) = answer(tried(ORDER))["events"]
    orders = {
        "route": "orders", "timeline": "orders of ada", "key": "1.50-2", "timestamp": 1_700_000_000_123,
        "group": "new", "urgent": False, "cancels": False, "zone": None, "dropped": [],
        "policy": "slow",
        "sink": "other", "target": None, "no_target": None,
    }  # fmt: skip
    assert only == {
        "line": 1, "result": "taken", "routes": [ALL, orders], "dead_letter": None, "unmet": [], "too_old": [],
        "hints": [],
    }  # fmt: skip
    assert answer(tried(ORDER))["ok"] is True


def test_for_people_it_is_a_line_for_each_fact() -> None:
    assert shown(tried(ORDER)) == [
        "taken by 2 routes",
        "  route     all",
        "  timeline  ada",
        "  key       the message's own",
        "  time      the message's own",
        "  policy    default",
        "  sink      out",
        "",
        "  route     orders",
        "  timeline  orders of ada",
        "  key       1.50-2",
        "  time      2023-11-14T22:13:20.123Z",
        '  group     "new"',
        "  policy    slow",
        "  sink      other",
    ]


def test_of_several_events_each_record_is_one_line_and_the_last_line_counts() -> None:
    events = [
        tried(ORDER),
        tried(b'{"user":1}')._replace(event=Event(2, b"")),
        tried(b"x")._replace(event=Event(4, b"")),
    ]
    rows = shown(*events)
    assert rows[:5] == [
        "line 1: taken by 2 routes",
        "  route     all: timeline ada, sink out",
        "  route     orders: timeline orders of ada, key 1.50-2, time 2023-11-14T22:13:20.123Z, "
        'group "new", policy slow, sink other',
        "line 2: taken by 1 route",
        "  route     all: timeline 1, sink out",
    ]
    assert rows[5] == "line 4: dead letter: not-json"
    assert rows[-2:] == ["", "3 events: 2 taken, 1 dead letter"]
    assert not report.is_fine(events)


def test_on_a_terminal_no_line_is_wider_and_the_head_has_a_colour() -> None:
    some = [tried(ORDER), tried(b'{"usr": 1}')]
    assert max(map(len, shown(*some, width=60))) <= 60
    assert "".join(shown(*some)).count("\x1b") == 0
    coloured = shown(*some, colour=True)
    assert coloured[0] == "\x1b[1;38;5;28mline 1: taken by 2 routes\x1b[0m"
    assert any(row.startswith("\x1b[1;38;5;160m") for row in coloured)


def test_what_a_publisher_sent_moves_no_cursor() -> None:
    body = json.dumps({"user": "a\u202eb\u2028", "kind": "\x1b[2J", "meta": {}}).encode()
    rows = shown(tried(body))
    assert "  timeline  a\\u202eb\\u2028" in rows
    file = FILE.replace('name = "all"\n', 'name = "all"\nmatch = {kind = "x"}\ngroup = "kind"\n')
    assert any(r"kind is \"" not in row and "\\u001b[2J" in row for row in shown(tried(body, file=file)))
    assert all(row.isprintable() for row in [*rows, *shown(tried(body, file=file))])


def test_one_route_may_take_what_is_a_dead_letter_of_another() -> None:
    event = tried(ORDER.replace(b'"n": 2', b'"n": null'))
    (only,) = answer(event)["events"]
    assert (only["result"], only["routes"]) == ("dead-letter", [ALL])
    assert only["dead_letter"] == {"reason": "missing-field", "detail": 'route orders: the field "order.n" is null'}
    assert shown(event)[:5] == [
        "dead letter: missing-field (and taken by 1 route)",
        '  detail    route orders: the field "order.n" is null',
        "  goes to   the topic nsqdigest.dead",
        "",
        "  route     all",
    ]


def test_without_a_topic_for_dead_letters_it_goes_back() -> None:
    assert "  goes to   nsqd again: nsq.dead_letter_topic is empty" in shown(tried(b"x"), dead_letter_topic="")


def test_a_group_that_an_event_does_not_have_is_null_and_what_may_be_meant_is_told() -> None:
    event = tried(ORDER.replace(b'"kind": "new"', b'"knid": "new"'))
    assert event.result is Result.TAKEN
    assert event.places[1].group is None
    rows = shown(event)
    assert '  group     null: it has no text, number, true or false in "order.kind"' in rows
    assert rows[-1] == '  -> it has no "order.kind"; did you mean "order.knid"?'


def test_only_the_routes_of_the_topic_are_asked() -> None:
    assert [place.route for place in tried(ORDER, "others").places] == ["elsewhere"]


def test_why_a_route_does_not_take_it_is_the_first_condition_that_it_does_not_meet() -> None:
    file = FILE.replace('name = "all"\n', 'name = "all"\nmatch = {user = ["bob", 1, true]}\n')
    (only,) = answer(tried(b'{"user": {"id": 1}, "kind": "order", "meta": 1}', file=file))["events"]
    assert (only["result"], only["routes"]) == ("unmatched", [])
    assert only["unmet"] == [
        {"route": "all", "field": "user", "there": True, "found": {"id": 1}, "wanted": ["bob", 1, True]},
        {"route": "orders", "field": "meta.live", "there": False, "found": None, "wanted": [True]},
    ]
    assert shown(tried(b'{"user": "\xc3\xa9", "kind": []}', file=file)) == [
        "no route takes it: it would be finished, and counted",
        '  route     all: user is "é"; it takes "bob", 1 or true',
        '  route     orders: kind is an array; it takes "order"',
    ]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ('">= 3"', "a number from 3 up"),
        ('["api.*", "!"]', 'a text that begins with "api." or "!"'),
        ('["!= ada", "!= 5"]', 'anything but "ada" or 5'),
    ],
)
def test_a_condition_that_is_not_met_is_told_in_words(condition: str, wanted: str) -> None:
    file = FILE.replace('name = "all"\n', f'name = "all"\nmatch = {{user = {condition}}}\n')
    assert shown(tried(b'{"user": "ada"}', file=file))[1] == f'  route     all: user is "ada"; it takes {wanted}'


SPECIAL = """\
urgent = {kind = "order"}
key = "{user}"
cancel = {"order.kind" = "new"}
drop = ["order.id", "meta", "token"]
max_event_age = "1h"
timestamp = "meta.at"
"""


def test_what_else_a_route_does_with_an_event_is_shown() -> None:
    file = FILE.replace('name = "all"\n', f'name = "all"\n{SPECIAL}')
    rows = shown(tried(ORDER, file=file))
    assert "  drops     order.id, meta" in rows
    assert "  urgent    due at once, whatever its policy" in rows
    assert "  cancels   takes out the record of its key that waits; both go, unless a digest showed one" in rows
    place = answer(tried(ORDER, file=file))["events"][0]["routes"][0]
    assert (place["dropped"], place["urgent"], place["cancels"]) == (["order.id", "meta"], True, True)


@pytest.mark.parametrize(
    ("field", "shown_as"),
    [
        ('"tz": "Asia/Tokyo"', "Asia/Tokyo"),
        ('"tz": "Mars"', 'UTC, unless the timeline has another one: "Mars" is no zone'),
        ('"x": 1', "UTC, unless the timeline has another one: the event names none"),
    ],
)
def test_the_zone_that_an_event_names_is_shown(field: str, shown_as: str) -> None:
    file = FILE + '[policies.default]\nat = "0 9 * * *"\nzone = "{tz}"\n'
    assert f"  zone      {shown_as}" in shown(tried(b'{"user": "ada", %s}' % field.encode(), file=file))


def test_an_event_that_is_too_old_for_all_routes_is_no_good_event() -> None:
    file = FILE.replace('name = "all"\n', f'name = "all"\n{SPECIAL}')
    old = tried(b'{"user": "ada", "meta": {"at": 1699990000}}', file=file)
    assert not report.is_fine([old])
    assert shown(old) == [
        "too old for every route that takes it: it would be finished, and counted",
        "  route     all: not filed, for the event is older than its max_event_age",
    ]
    (event,) = answer(old)["events"]
    assert (event["result"], event["too_old"], event["routes"]) == ("too-old", ["all"], [])


def test_an_event_that_is_too_old_for_one_route_is_told_of_it() -> None:
    file = FILE.replace('name = "orders"\n', 'name = "orders"\nmax_event_age = "1s"\n')
    rows = shown(tried(ORDER.replace(b"22:13:20", b"20:13:20"), file=file))
    assert rows[0] == "taken by 1 route"
    assert "  route     orders: not filed, for the event is older than its max_event_age" in rows


def test_a_group_that_nothing_there_is_like_is_no_matter() -> None:
    file = FILE.replace('group = "order.kind"', 'group = "order.severity"')
    event = tried(ORDER, file=file)
    assert (event.places[1].group, event.hints) == (None, [])


def test_it_is_a_message_of_now_that_was_never_handed_over_before(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(parse_text(FILE, "f.toml", {}, KINDS), "events")
    seen: list[tuple[Any, ...]] = []

    class Asked:
        @staticmethod
        def records_of(message: Message, now_ms: int, possible_repeat: bool, _: object) -> int:
            seen.append(
                (len(message.id), message.timestamp_ns, message.attempts, message.body, now_ms, possible_repeat)
            )
            return 0

        @staticmethod
        def unmet(_: bytes) -> list[Any]:
            return []

    monkeypatch.setattr(trial, "_router", Asked)
    trial.try_event(Event(1, ORDER), NOW_MS)
    assert seen == [(16, NOW_MS * 1_000_000, 1, ORDER, NOW_MS, False)]


def test_a_mistake_of_the_program_is_a_dead_letter_as_in_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(parse_text(FILE, "f.toml", {}, KINDS), "events")

    def broken(*_: object) -> int:
        raise KeyError("x")

    monkeypatch.setattr(trial, "_router", type("Router", (), {"records_of": broken}))
    event = trial.try_event(Event(1, ORDER), NOW_MS)
    assert (event.reason, event.detail) == (DeadLetterReason.BUG, "KeyError: 'x'")


@pytest.mark.parametrize(
    "body",
    [
        b"{" * 100_000,
        b'{"a":' * 60 + b"1" + b"}" * 60,
        b'{"user":null,"x":1e999}',
        b'{"usr":[' + b"1," * 9_000 + b"1]}",
    ],
)
def test_a_hint_is_never_what_fails(body: bytes) -> None:
    assert tried(body).result is Result.DEAD_LETTER
