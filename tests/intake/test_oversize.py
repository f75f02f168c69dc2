"""Messages above limits.event: which become letters, which go back, and when there is room again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nsqdigest.intake import oversize as module
from nsqdigest.intake.batch import Arrival, BatchResult, Verdict
from nsqdigest.intake.letters import BODY_BYTES
from nsqdigest.intake.oversize import Oversize
from nsqdigest.nsq.frames import Message

pytestmark = pytest.mark.unit

CONNECTION = cast(Any, "nsqd")
EPOCH = 3
LIMIT_BYTES = 1000


class Letters:
    held_bytes = 0


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture
def oversize(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> Oversize:
    monkeypatch.setattr(module, "OVERSIZE_BYTES", 4000)
    return Oversize(LIMIT_BYTES, cast(Any, letters))


def arrival(*sizes_bytes: int) -> Arrival:
    sent = [Message(b"%016d" % number, 0, 1, b"x" * size) for number, size in enumerate(sizes_bytes)]
    return Arrival(CONNECTION, sent, EPOCH, 45.0, 60.0)


def letters_of(result: BatchResult) -> list[Message]:
    return [letter.message for _, letters in result.letters for letter in letters]


def test_a_message_above_the_limit_is_a_letter_and_one_of_the_limit_is_not(oversize: Oversize) -> None:
    came = arrival(1001, 1000, 5)
    large, exact, small = came.messages
    rest, result = oversize.take_out(came)
    assert rest == came._replace(messages=[exact, small])
    assert (letters_of(result), result.give_back, result.finish) == ([large], [], [])
    assert (result.verdict, result.messages_by_epoch) == (Verdict.NOT_ASKED, {EPOCH: 1})
    ((connection, [letter]),) = result.letters
    assert (connection, letter.reason, letter.detail) == (
        CONNECTION, "too-large", "the body has 1001 bytes; limits.event allows 1000",
    )  # fmt: skip
    assert letter.whole is not None
    assert letter.whole.length == 1001
    assert not oversize.is_full


def test_no_more_is_held_than_there_is_room_for_and_the_rest_goes_back(oversize: Oversize, letters: Letters) -> None:
    came = arrival(2000, 2000, 1001, 5)
    first, second, beyond, small = came.messages
    rest, result = oversize.take_out(came)
    assert letters_of(result) == [first, second]
    assert result.give_back == [(CONNECTION, [beyond])]
    assert result.messages_by_epoch == {EPOCH: 3}
    assert rest.messages == [small]
    letters.held_bytes = 4000
    assert oversize.is_full


def test_letters_that_wait_take_up_room(oversize: Oversize, letters: Letters) -> None:
    letters.held_bytes = 3000
    came = arrival(1001)
    _, result = oversize.take_out(came)
    assert (result.letters, result.give_back) == ([], [(CONNECTION, came.messages)])


def test_it_is_full_until_half_of_the_room_is_free_and_then_until_something_goes_back(
    oversize: Oversize, letters: Letters
) -> None:
    letters.held_bytes = 4000
    oversize.take_out(arrival(1001))
    for held_bytes, is_full in ((2001, True), (2000, False), (4000, False)):
        letters.held_bytes = held_bytes
        assert oversize.is_full is is_full
    oversize.take_out(arrival(1001))
    assert oversize.is_full
    letters.held_bytes = 2500
    oversize.take_out(arrival(1001))  # for which there is room
    assert oversize.is_full


def test_of_a_body_only_what_a_letter_holds_takes_up_room(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERSIZE_BYTES", 2 * BODY_BYTES)
    came = arrival(3 * BODY_BYTES, 3 * BODY_BYTES)
    _, result = Oversize(LIMIT_BYTES, cast(Any, letters)).take_out(came)
    assert letters_of(result) == came.messages
    assert [len(message.body) for message in came.messages] == [BODY_BYTES] * 2
