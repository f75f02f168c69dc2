"""letter_reading.py: what a dead letter holds, and whether its event may go again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.config import Address, Limits
from nsqdigest.intake.letter_reading import Choice, DeadEvent, Judge, NoLetter, Stays, read
from nsqdigest.intake.letters import BODY_BYTES, DeadLetters, Letter
from nsqdigest.intake.routing import IntakeRoute, Router
from nsqdigest.nsq.connection import ConnectionOptions
from nsqdigest.nsq.frames import Message
from nsqdigest.nsq.publisher import Publisher
from nsqdigest.store.schedule import Plan
from support.settings import POLICY, ROUTE

pytestmark = pytest.mark.unit

NOW_MS = 1_800_000_000_000
ANY = Choice()
LIMITS = Limits(
    event_bytes=1 << 20, key_bytes=256, depth=64, timelines=1000, dead_digests=1000, future_ms=1000, past_ms=0
)


def letter(body: bytes, reason: DeadLetterReason = DeadLetterReason.MISSING_FIELD, topic: str = "t") -> bytes:
    """As a daemon publishes it."""
    publisher = Publisher(ConnectionOptions(heartbeat_interval_ms=30_000))
    message = Message(b"0123456789abcdef", 1_700_000_000_000_000_000, 2, body)
    written = Letter(message, reason, "why")
    return DeadLetters(publisher, "dead", "ch").encoded(Address("127.0.0.1", 4150), topic, written)


def judge(choice: Choice = ANY, **route: Any) -> Judge:
    router = Router([IntakeRoute(0, replace(ROUTE, **route), Plan(POLICY))], LIMITS)
    return Judge({"t": router}, choice)


def stays(event: DeadEvent, judged_by: Judge | None = None) -> Stays | None:
    refusal = (judged_by or judge()).refusal(event, NOW_MS)
    return refusal[0] if refusal else None


@given(st.binary(max_size=200))
def test_a_letter_is_read_as_it_was_written(body: bytes) -> None:
    event = read(letter(body))
    assert (event.body, event.length, event.reason, event.topic) == (body, len(body), "missing-field", "t")
    assert (event.detail, event.nsqd, event.timestamp) == ("why", "127.0.0.1:4150", 1_700_000_000_000_000_000)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"null", b"not json", b"\xff", b'{"reason": 1}', b"[" * 100_000,
     letter(b"{}").replace(b'"body":"', b'"body":"!'), letter(b"{}").replace(b'"topic":"t",', b"")],
)  # fmt: skip
def test_anything_else_is_no_letter(text: bytes) -> None:
    with pytest.raises(NoLetter):
        read(text)


def test_an_event_that_the_file_takes_now_goes_again() -> None:
    assert stays(read(letter(b'{"x": "ada"}'))) is None


@pytest.mark.parametrize(
    ("body", "route", "why"),
    [
        (b'{"y": 1}', {}, Stays.STILL_BAD),
        (b"nonsense", {}, Stays.STILL_BAD),
        (b"\xff", {}, Stays.STILL_BAD),
        (b'{"x": "a", "at": 99}', {"timestamp": "when"}, Stays.STILL_BAD),
        (b'{"x": "a"}', {"match": (("x", ("b",)),)}, Stays.UNMATCHED),
    ],
)
def test_one_that_it_does_not_take_stays(body: bytes, route: dict[str, Any], why: Stays) -> None:
    assert stays(read(letter(body)), judge(**route)) is why


def test_one_that_the_letter_holds_in_part_stays() -> None:
    body = b'{"x": "%s"}' % (b"a" * BODY_BYTES)
    refusal = judge().refusal(read(letter(body)), NOW_MS)
    assert refusal == (Stays.CUT_OFF, f"the letter holds {BODY_BYTES:,} of {len(body):,} bytes")


def test_one_whose_hash_is_another_stays() -> None:
    written = json.loads(letter(b'{"x": "ada"}'))
    assert stays(read(json.dumps({**written, "sha256": "0" * 64}).encode())) is Stays.CUT_OFF


def test_one_of_a_topic_that_the_file_does_not_read_stays_unless_it_is_named() -> None:
    event = read(letter(b"whatever", topic="elsewhere"))
    assert stays(event) is Stays.OTHER_TOPIC
    assert stays(event, judge(Choice(topic="elsewhere"))) is None


@pytest.mark.parametrize(
    ("choice", "is_taken"),
    [
        (Choice(), True),
        (Choice(reason="missing-field"), True),
        (Choice(reason="not-json"), False),
        (Choice(topic="t"), True),
        (Choice(topic="u"), False),
        (Choice(contains=b"ada"), True),
        (Choice(contains=b"bob"), False),
        (Choice(reason="missing-field", topic="t", contains="é".encode()), True),
    ],
)
def test_a_choice(choice: Choice, is_taken: bool) -> None:
    event = read(letter('{"x": "ada é"}'.encode()))
    assert choice.takes(event) is is_taken
    assert (stays(event, judge(choice)) is Stays.NOT_SELECTED) is not is_taken
