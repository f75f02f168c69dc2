"""What a publisher decides: which bodies share a command, what a refusal means, which nsqd is next."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqdigest.base.errors import Applied, NsqdRefused, PublishError
from nsqdigest.config import Address
from nsqdigest.nsq.publish_rules import (
    count_of_next,
    in_order,
    is_of_one_command,
    learned_max_body_bytes,
    learned_max_shared_bytes,
    least_busy,
    parts_of,
    refusal,
    refuse_what_no_nsqd_takes,
)

pytestmark = pytest.mark.unit

A, B, C = Address("a", 1), Address("b", 2), Address("c", 3)


@given(bodies=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=40), limit=st.integers(10, 200))
def test_bodies_are_split_in_order_and_every_mpub_fits(bodies: list[bytes], limit: int) -> None:
    parts: list[list[bytes]] = []
    start = 0
    while start < len(bodies):
        count = count_of_next(bodies, start, limit)
        parts.append(bodies[start : start + count])
        start += count
    assert [body for part in parts for body in part] == bodies
    for part in parts:
        assert len(part) == 1 or 4 + sum(4 + len(body) for body in part) <= limit
    for part, following in itertools.pairwise(parts):
        # No command is left half empty: the next body would not have fitted.
        assert 4 + sum(4 + len(body) for body in [*part, following[0]]) > limit


def test_a_body_that_fits_to_the_byte_goes_with_the_others() -> None:
    assert count_of_next([b"x" * 10, b"y" * 10], 0, 4 + 14 + 14) == 2
    assert count_of_next([b"x" * 10, b"y" * 10], 0, 4 + 14 + 13) == 1


@given(
    messages=st.lists(st.tuples(st.sampled_from("abc"), st.binary(min_size=1, max_size=40)), max_size=30),
    limit=st.integers(10, 200),
    shared=st.integers(0, 40),
    data=st.data(),
)
def test_every_message_is_in_one_command_with_others_that_fit(
    messages: list[tuple[str, bytes]], limit: int, shared: int, data: st.DataObject
) -> None:
    numbers = sorted(data.draw(st.sets(st.sampled_from(range(len(messages)))))) if messages else []
    parts = parts_of(messages, numbers, limit, shared)
    assert sorted(number for part in parts for number in part.numbers) == numbers
    for part in parts:
        bodies = [messages[number][1] for number in part.numbers]
        assert {messages[number][0] for number in part.numbers} == {part.topic}
        assert list(part.numbers) == sorted(part.numbers)
        assert len(bodies) == 1 or all(len(body) <= shared for body in bodies)
        assert len(bodies) == 1 or 4 + sum(4 + len(body) for body in bodies) <= limit
    larger = [len(messages[part.numbers[0]][1]) > shared for part in parts]
    assert larger == sorted(larger), "what may be refused stands last"


def test_messages_to_one_topic_are_one_command() -> None:
    messages = [("a", b"1"), ("b", b"2"), ("a", b"3"), ("a", b"large")]
    assert parts_of(messages, range(4), 100, 4) == [("a", [0, 2]), ("b", [1]), ("a", (3,))]
    assert parts_of(messages, range(4), 100, 5) == [("a", [0, 2, 3]), ("b", [1])]


@pytest.mark.parametrize(
    "topic", ["", "t" * 65, "a b", "a\nPUB b", "a\n", "ä", "a#b", "#ephemeral", "t" * 55 + "#ephemeral"]
)
def test_a_name_that_no_topic_can_have_is_refused_before_it_is_sent(topic: str) -> None:
    with pytest.raises(PublishError, match="E_BAD_TOPIC") as caught:
        refuse_what_no_nsqd_takes(topic, [b"x"])
    assert (caught.value.code, caught.value.applied) == ("E_BAD_TOPIC", Applied.NO)


@pytest.mark.parametrize("topic", ["t" * 64, "a.b-c_D9", "t#ephemeral"])
def test_names_that_topics_can_have(topic: str) -> None:
    refuse_what_no_nsqd_takes(topic, [b"x"])


def test_an_empty_message_is_named_by_its_place() -> None:
    with pytest.raises(PublishError, match="message 1 of 2 for events is empty") as caught:
        refuse_what_no_nsqd_takes("events", [b"x", b""])
    assert caught.value.code == "E_BAD_MESSAGE"


@pytest.mark.parametrize(
    ("error", "count", "limit"),
    [
        (NsqdRefused("E_BAD_BODY", "MPUB body too big 5242892 > 65536"), 2, 65536),
        (NsqdRefused("E_BAD_BODY", "MPUB body too big 5242892 > 65536"), 1, None),
        (NsqdRefused("E_BAD_BODY", "MPUB invalid message count 9"), 2, None),
        (NsqdRefused("E_BAD_MESSAGE", "MPUB message too big 20 > 10"), 2, None),
    ],
)
def test_a_refused_size_teaches_the_limit_where_splitting_helps(
    error: NsqdRefused, count: int, limit: int | None
) -> None:
    assert learned_max_body_bytes(error, count) == limit


@pytest.mark.parametrize(
    ("error", "count", "limit"),
    [
        (NsqdRefused("E_BAD_MESSAGE", "MPUB message too big 20 > 10"), 2, 10),
        (NsqdRefused("E_BAD_MESSAGE", "MPUB message too big 20 > 10"), 1, None),
        (NsqdRefused("E_BAD_MESSAGE", "MPUB failed to read message body"), 2, 0),
        (NsqdRefused("E_BAD_BODY", "MPUB body too big 20 > 10"), 2, None),
    ],
)
def test_a_refused_message_teaches_which_ones_go_together(error: NsqdRefused, count: int, limit: int | None) -> None:
    assert learned_max_shared_bytes(error, count) == limit


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("E_BAD_TOPIC", True),
        ("E_BAD_MESSAGE", True),
        ("E_BAD_BODY", True),
        ("E_UNAUTHORIZED", True),
        ("E_PUB_FAILED", False),
        ("E_MPUB_FAILED", False),
        ("E_AUTH_FIRST", False),
        ("E_INVALID", False),
    ],
)
def test_which_refusals_say_nothing_of_the_other_commands(code: str, expected: bool) -> None:
    assert is_of_one_command(NsqdRefused(code, "why")) is expected


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NsqdRefused("E_BAD_MESSAGE", "PUB message too big 2000 > 1000"), "--max-msg-size=2000 or more"),
        (NsqdRefused("E_BAD_BODY", "MPUB body too big 2000 > 1000"), "--max-body-size=2000 or more"),
        (NsqdRefused("E_UNAUTHORIZED", "AUTH failed"), "permit this client at nsqd's auth server to publish to events"),
        (NsqdRefused("E_SOMETHING_NEW", "why"), "refused a publish to events: E_SOMETHING_NEW: why"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_place_the_cause_and_the_remedy(error: NsqdRefused, said: str) -> None:
    translated = refusal(error, "nsqd at a:1", "events")
    assert str(translated).startswith(f"nsqd at a:1 refused a publish to events: {error}")
    assert said in str(translated)
    assert (translated.code, translated.applied) == (error.code, Applied.NO)


@pytest.mark.parametrize("code", ["E_PUB_FAILED", "E_MPUB_FAILED"])
def test_where_nsqd_failed_while_it_queued_messages_may_be_there(code: str) -> None:
    assert refusal(NsqdRefused(code, "exiting"), "nsqd at a:1", "events").applied is Applied.AMBIGUOUS


def test_addresses_are_tried_as_they_are_named_and_those_that_rest_last() -> None:
    assert in_order([A, B, A, C], {}, 10.0) == [A, B, C]
    assert in_order([A, B, C], {A: 12.0, B: 11.0, C: 10.0}, 10.0) == [C, B, A]


def test_the_connection_with_the_least_to_do_is_taken_the_oldest_of_equals() -> None:
    assert least_busy({"a": 2, "b": 1, "c": 1}) == "b"
    assert least_busy({}) is None
