"""What becomes of a batch: each message in one list of the result, by connection, and the verdict that follows."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nsqdigest.base.errors import StoreError
from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.intake.batch import Arrival, Batch, Verdict
from nsqdigest.intake.letters import Letter
from nsqdigest.intake.writer import WriteResult
from nsqdigest.nsq.frames import Message
from nsqdigest.store.record import Record

pytestmark = pytest.mark.unit

A, B = cast(Any, "first nsqd"), cast(Any, "second nsqd")
REPEAT_S, EXPIRED_S = 45.0, 60.0
NOW_MS = 1_700_000_000_000
FAILURE = StoreError("redis-timeout", "as the test says")
DUE = frozenset([("r", 0), ("s", 1)])


def messages(count: int) -> list[Message]:
    return [Message(b"%016d" % number, 0, 1, b"{}") for number in range(count)]


def batch_of(*arrivals: tuple[Any, list[Message]], epochs: tuple[int, ...] = (1, 1, 1)) -> Batch:
    """With a record of each message."""
    batch = Batch(
        [
            Arrival(connection, arrived, epoch, REPEAT_S, EXPIRED_S)
            for (connection, arrived), epoch in zip(arrivals, epochs, strict=False)
        ],
        NOW_MS,
    )
    for _, arrived in arrivals:
        batch.records += [Record(0, b"t", message.id, 1, b"{}", False, message) for message in arrived]
    return batch


def refuse(batch: Batch, message: Message) -> Letter:
    batch.records = [record for record in batch.records if record.source is not message]
    batch.letters[message] = Letter(message, DeadLetterReason.NOT_JSON, "it is none")
    return batch.letters[message]


def test_what_is_stored_is_finished_by_connection() -> None:
    one, two, three, four = messages(4)
    batch = batch_of((A, [one]), (B, [two]), (A, [three, four]))
    result = batch.conclude(WriteResult(), 0.0)
    assert result.finish == [(A, [one, three, four]), (B, [two])]
    assert (result.give_back, result.letters, result.late) == ([], [], [])
    assert (result.verdict, result.due) == (Verdict.STORED, frozenset())


def test_each_message_stands_in_one_list() -> None:
    stored, lost, poison, refused, other = messages(5)
    batch = batch_of((A, [stored, lost, poison, refused]), (B, [other]))
    letter = refuse(batch, poison)
    result = batch.conclude(WriteResult(frozenset([lost]), {refused: "a list"}, FAILURE, DUE), 0.0)
    assert result.finish == [(A, [stored]), (B, [other])]
    assert result.give_back == [(A, [lost])]
    assert result.letters == [(A, [letter, Letter(refused, DeadLetterReason.REFUSED_BY_STORE, "a list")])]
    assert (result.verdict, result.due) == (Verdict.FAILED, DUE)


def test_the_letters_of_each_connection_stand_together() -> None:
    one, two, three = messages(3)
    batch = batch_of((A, [one]), (B, [two]), (A, [three]))
    letters = [refuse(batch, message) for message in (one, two, three)]
    assert batch.conclude(WriteResult(), 0.0).letters == [(A, [letters[0], letters[2]]), (B, [letters[1]])]


def test_a_message_that_is_stored_for_one_route_and_poison_for_another_is_a_letter() -> None:
    (message,) = messages(1)
    batch = batch_of((A, [message]))
    letter = batch.letters[message] = Letter(message, DeadLetterReason.MISSING_FIELD, "route s")
    result = batch.conclude(WriteResult(), 0.0)
    assert (result.letters, result.finish, result.verdict) == ([(A, [letter])], [], Verdict.STORED)


def test_an_outage_makes_no_letter_of_what_is_not_stored() -> None:
    rejected, refused = messages(2)
    batch = batch_of((A, [rejected, refused]))
    batch.letters[rejected] = Letter(rejected, DeadLetterReason.MISSING_FIELD, "route s")
    result = batch.conclude(WriteResult(frozenset([rejected, refused]), {refused: "a list"}, FAILURE), 0.0)
    assert (result.give_back, result.letters) == ([(A, [rejected, refused])], [])


def test_what_was_rejected_before_keeps_its_reason_where_the_store_refuses_it_too() -> None:
    (message,) = messages(1)
    batch = batch_of((A, [message]))
    letter = batch.letters[message] = Letter(message, DeadLetterReason.MISSING_FIELD, "route s")
    assert batch.conclude(WriteResult(refused={message: "a list"}), 0.0).letters == [(A, [letter])]


def test_a_batch_that_only_makes_letters_shows_nothing_about_the_store() -> None:
    poison, refused = messages(2)
    batch = batch_of((A, [poison]), (A, [refused]), epochs=(3, 4))
    refuse(batch, poison)
    result = batch.conclude(WriteResult(refused={refused: "a list"}), 0.0)
    assert (result.verdict, result.messages_by_epoch) == (Verdict.NOT_ASKED, {3: 1, 4: 1})


def test_one_record_that_is_stored_shows_that_the_store_is_well() -> None:
    refused, stored = messages(2)
    result = batch_of((A, [refused, stored])).conclude(WriteResult(refused={refused: "a list"}), 0.0)
    assert result.verdict is Verdict.STORED


def test_messages_are_counted_by_the_epoch_of_their_arrival() -> None:
    result = batch_of((A, messages(2)), (B, messages(3)), (A, messages(4)), epochs=(1, 2, 1)).conclude(
        WriteResult(), 0.0
    )
    assert result.messages_by_epoch == {1: 6, 2: 3}


@pytest.mark.parametrize(("now_s", "is_late"), [(44.9, False), (45.0, True), (99.0, True)])
def test_what_is_answered_when_its_time_is_nearly_over_is_late(now_s: float, is_late: bool) -> None:
    batch = batch_of((A, messages(1)))
    assert batch.conclude(WriteResult(), now_s).late == (batch.arrivals if is_late else [])


# -- what has no answer yet


def test_letters_and_what_was_finished_for_several_connections_are_each_unanswered_once() -> None:
    one, two, three, four = messages(4)
    batch = batch_of((A, [one]), (B, [two]), (A, [three]), (B, [four]), epochs=(1, 1, 1, 1))
    for message in (one, two):
        refuse(batch, message)
    batch.conclude(WriteResult(), 0.0)
    found = list(batch.unanswered())
    assert found == [(B, [two]), (A, [one]), (B, [four]), (A, [three])]


def test_where_a_timeline_is_due_is_passed_on() -> None:
    assert batch_of((A, messages(1))).conclude(WriteResult(due=DUE), 0.0).due == DUE


def test_before_its_write_has_ended_everything_is_unanswered() -> None:
    one, two = messages(2)
    batch = batch_of((A, [one]), (B, [two]), epochs=(1, 2))
    assert sorted(batch.unanswered()) == [(A, [one]), (B, [two])]
    assert list(batch.unanswered()) == []
    failed = batch.fail()
    assert (failed.messages_by_epoch, failed.due) == ({1: 1, 2: 1}, frozenset())


def test_after_its_write_what_was_not_taken_out_is_unanswered() -> None:
    stored, lost, poison, other = messages(4)
    batch = batch_of((A, [stored, lost, poison]), (B, [other]))
    refuse(batch, poison)
    result = batch.conclude(WriteResult(frozenset([lost]), failure=FAILURE), 0.0)
    assert result.finish.pop() == (B, [other])
    left = [message for _, group in batch.unanswered() for message in group]
    assert sorted(left, key=lambda message: message.id) == [stored, lost, poison]
    assert list(batch.unanswered()) == []


def test_what_failed_goes_back_where_it_has_no_answer() -> None:
    stored, other = messages(2)
    batch = batch_of((A, [stored]), (B, [other]))
    batch.conclude(WriteResult(), 0.0).finish.pop()
    failed = batch.fail()
    assert (failed.verdict, failed.give_back, failed.finish) == (Verdict.FAILED, [(A, [stored])], [])
    assert batch.result is failed


def test_a_group_is_unanswered_until_the_iteration_goes_on() -> None:
    stored, lost, poison = messages(3)
    batch = batch_of((A, [stored]), (A, [lost]), (B, [poison]))
    refuse(batch, poison)
    batch.conclude(WriteResult(frozenset([lost]), failure=FAILURE), 0.0)
    found = []
    for _ in range(3):
        assert next(batch.unanswered()) == next(batch.unanswered())  # as if its handling had raised
        groups = batch.unanswered()
        found.append(next(groups))
        next(groups, None)
    assert found == [(B, [poison]), (A, [stored]), (A, [lost])]
    assert list(batch.unanswered()) == []
