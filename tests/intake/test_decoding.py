"""What a batch is decoded to: records with their messages, letters with their reasons, and what no route takes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from nsqdigest.base.metrics import Metrics
from nsqdigest.intake import decoding
from nsqdigest.intake.batch import Arrival, Batch
from nsqdigest.intake.decoding import Decoder
from nsqdigest.intake.routing import Router
from nsqdigest.nsq.frames import Message
from support.routes import LIMITS, intake_route

pytestmark = pytest.mark.unit

NOW_S, REPEAT_S = 1000.0, 45.0
NOW_MS = 1_700_000_000_000
GOOD, UNMATCHED, BAD = b'{"user":"u","kind":"a"}', b'{"user":"u","kind":"b"}', b"no json"
CONNECTION = cast(Any, "nsqd")
ONE_ROUTE = (intake_route(match=[("kind", ["a"])]),)


class _Time:
    @staticmethod
    def monotonic() -> float:
        return NOW_S


@pytest.fixture(autouse=True)
def _time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "time", _Time)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[dict[str, Any]]]:
    caplog.set_level(logging.DEBUG, "nsqdigest")
    return lambda event: [vars(record)["fields"] for record in caplog.records if record.getMessage() == event]


def decoder(*routes: Any, metrics: Metrics | None = None) -> Decoder:
    return Decoder("events", Router(routes or ONE_ROUTE, LIMITS), metrics or Metrics())


def arrival(*bodies: bytes, held_s: float = 0.0, attempts: int = 1) -> Arrival:
    arrived = [Message(b"%016d" % number, 0, attempts, body) for number, body in enumerate(bodies)]
    return Arrival(CONNECTION, arrived, 1, NOW_S - held_s + REPEAT_S, NOW_S - held_s + 60)


def sources(batch: Batch) -> list[object]:
    return [record.source for record in batch.records]


def test_a_record_carries_the_message_that_it_was_made_from() -> None:
    arrivals = [arrival(GOOD, UNMATCHED, BAD), arrival(GOOD)]
    batch, _ = decoder().decode(arrivals, NOW_MS)
    assert batch.arrivals == arrivals
    assert sources(batch) == [arrivals[0].messages[0], arrivals[1].messages[0]]


def test_an_event_of_several_routes_makes_a_record_of_each() -> None:
    routes = [intake_route(number=number, name=f"r{number}") for number in range(3)]
    one = arrival(GOOD, GOOD)
    batch, _ = decoder(*routes).decode([one], NOW_MS)
    assert [record.route for record in batch.records] == [0, 1, 2] * 2
    assert sources(batch) == [one.messages[0]] * 3 + [one.messages[1]] * 3


def test_what_cannot_be_read_is_a_letter_with_the_reason() -> None:
    one = arrival(GOOD, BAD)
    batch, _ = decoder().decode([one], NOW_MS)
    (letter,) = batch.letters.values()
    assert list(batch.letters) == [letter.message] == [one.messages[1]]
    assert (letter.reason, letter.whole) == ("not-json", None)
    assert letter.detail


def test_where_one_route_takes_an_event_and_another_cannot_it_makes_a_record_and_a_letter() -> None:
    routes = (intake_route(), intake_route("{other}", number=1, name="s"))
    one = arrival(b'{"user":"u"}', b'{"user":"u","other":"o"}')
    half, whole = one.messages
    batch, _ = decoder(*routes).decode([one], NOW_MS)
    assert sources(batch) == [half, whole, whole]
    assert list(batch.letters) == [half]


def test_what_no_route_takes_is_counted_and_logged(logged: Callable[[str], list[dict[str, Any]]]) -> None:
    metrics = Metrics()
    batch, _ = decoder(metrics=metrics).decode([arrival(UNMATCHED, b'{"user":"u","kind":"z","last":1}')], NOW_MS)
    assert (batch.records, batch.letters) == ([], {})
    assert metrics.value("events_unmatched_total", topic="events") == 2
    (line,) = logged("consumer.event.unmatched")
    assert (line["events"], line["fields_of_one"]) == (2, ["user", "kind", "last"])


def test_where_every_event_is_taken_nothing_is_logged(logged: Callable[[str], list[dict[str, Any]]]) -> None:
    metrics = Metrics()
    decoder(metrics=metrics).decode([arrival(GOOD)], NOW_MS)
    assert metrics.value("events_unmatched_total", topic="events") is None
    assert logged("consumer.event.unmatched") == []


def test_a_body_that_the_program_makes_a_mistake_at_is_a_letter_and_its_neighbours_are_records(
    monkeypatch: pytest.MonkeyPatch, logged: Callable[[str], list[dict[str, Any]]]
) -> None:
    subject = decoder()
    records_of = subject._router.records_of

    def mistaken(message: Message, *others: Any) -> Any:
        if message.body == UNMATCHED:
            raise KeyError("a mistake")
        return records_of(message, *others)

    monkeypatch.setattr(subject._router, "records_of", mistaken)
    one = arrival(GOOD, UNMATCHED, GOOD)
    batch, _ = subject.decode([one], NOW_MS)
    assert sources(batch) == [one.messages[0], one.messages[2]]
    (letter,) = batch.letters.values()
    assert (letter.message, letter.reason, letter.detail) == (one.messages[1], "bug", "KeyError: 'a mistake'")
    assert [line["message"] for line in logged("consumer.decode.bug")] == [one.messages[1].id]


@pytest.mark.parametrize(("held_s", "may_repeat"), [(44.9, False), (45.0, True), (59.0, True)])
def test_what_was_held_for_long_may_be_a_repeat(held_s: float, may_repeat: bool) -> None:
    batch, _ = decoder().decode([arrival(GOOD, held_s=held_s), arrival(GOOD)], NOW_MS)
    assert [record.possible_repeat for record in batch.records] == [may_repeat, False]


def test_what_nsqd_hands_over_again_may_be_a_repeat() -> None:
    batch, _ = decoder().decode([arrival(GOOD, attempts=2), arrival(GOOD)], NOW_MS)
    assert [record.possible_repeat for record in batch.records] == [True, False]


class Slow:
    """A clock that moves on between any two looks at it."""

    def __init__(self, step_s: float) -> None:
        self._now_s, self._step_s = NOW_S, step_s

    def monotonic(self) -> float:
        self._now_s += self._step_s
        return self._now_s


LARGE = b'{"user":"u","kind":"a","x":"%s"}' % (b"x" * (decoding.PART_BYTES * 3 // 4))


def decoded_in_time(monkeypatch: pytest.MonkeyPatch, step_s: float, *arrivals: Arrival) -> tuple[Batch, list[Arrival]]:
    monkeypatch.setattr(decoding, "time", Slow(step_s))
    return decoder().decode(arrivals, NOW_MS)


def test_when_its_time_is_over_the_rest_is_left_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = arrival(LARGE, LARGE), arrival(LARGE, LARGE, LARGE), arrival(GOOD)
    batch, left = decoded_in_time(monkeypatch, 0.3 * decoding.DECODE_S, first, second, third)
    assert batch.arrivals == [first, second._replace(messages=second.messages[:1])]
    assert sources(batch) == [*first.messages, second.messages[0]]
    assert left == [second._replace(messages=second.messages[1:]), third]


def test_an_arrival_that_was_not_begun_is_left_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = arrival(LARGE, LARGE, LARGE), arrival(LARGE)
    assert decoded_in_time(monkeypatch, 0.3 * decoding.DECODE_S, first, second)[1] == [second]


def test_however_little_time_there_is_one_part_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    one = arrival(LARGE, LARGE)
    batch, left = decoded_in_time(monkeypatch, 2 * decoding.DECODE_S, one, one)
    assert sources(batch) == one.messages[:1]
    assert left == [one._replace(messages=one.messages[1:]), one]


def test_the_clock_is_read_once_for_a_part_of_small_events(monkeypatch: pytest.MonkeyPatch) -> None:
    many = arrival(*[GOOD] * (2 * decoding.PART_MESSAGES + 1))
    batch, left = decoded_in_time(monkeypatch, 0.4 * decoding.DECODE_S, many)
    assert len(batch.records) == 2 * decoding.PART_MESSAGES
    assert [len(each.messages) for each in left] == [1]


@pytest.mark.parametrize("bad", [b'{"user":"u","kind":"a","x":1e999}', b'{"user":"u","kind":"a","x":"\xff"}'])
@pytest.mark.parametrize("place", [0, 70, 99])
def test_one_bad_event_among_many_is_the_letter(bad: bytes, place: int) -> None:
    many = arrival(*(bad if number == place else GOOD for number in range(100)))
    batch, _ = decoder().decode([many], NOW_MS)
    assert list(batch.letters) == [many.messages[place]]
    assert len(batch.records) == 99


def test_a_timestamp_is_compared_with_the_clock_of_the_store() -> None:
    route = intake_route(timestamp="at")
    ahead_ms = NOW_MS + LIMITS.future_ms
    batch, _ = decoder(route).decode(
        [arrival(*(b'{"user":"u","at":%d}' % at_ms for at_ms in (ahead_ms, ahead_ms + 1)))], NOW_MS
    )
    assert (len(batch.records), len(batch.letters)) == (1, 1)
