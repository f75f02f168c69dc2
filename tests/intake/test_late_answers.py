"""Which answers nsqd may refuse because they came too late, and in which epoch their messages arrived."""

from __future__ import annotations

from typing import Any, cast

import pytest

from nsqdigest.intake import late_answers as module
from nsqdigest.intake.batch import Arrival
from nsqdigest.intake.late_answers import LateAnswers
from nsqdigest.nsq.frames import Message

pytestmark = pytest.mark.unit


class Connection:
    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open


def arrival(connection: Connection, *ids: bytes, epoch: int = 1) -> Arrival:
    return Arrival(cast(Any, connection), [Message(each, 0, 1, b"") for each in ids], epoch, 45.0, 60.0)


def refused(late: LateAnswers, connection: Connection, *ids: bytes) -> list[int | None]:
    return [late.refused(cast(Any, connection), each) for each in ids]


def test_a_late_answer_that_is_refused_is_of_the_epoch_of_its_arrival_once() -> None:
    late, connection = LateAnswers(), Connection()
    late.remember(arrival(connection, b"1", b"2", epoch=7))
    assert refused(late, connection, b"1", b"1", b"2", b"3") == [7, None, 7, None]


def test_ids_of_two_connections_are_apart() -> None:
    late, first, second = LateAnswers(), Connection(), Connection()
    late.remember(arrival(first, b"1", epoch=1))
    late.remember(arrival(second, b"1", epoch=2))
    assert refused(late, first, b"1") + refused(late, second, b"1") == [1, 2]


def test_of_a_connection_that_is_gone_nothing_is_remembered() -> None:
    late, gone, other = LateAnswers(), Connection(), Connection()
    late.remember(arrival(gone, b"1"))
    late.remember(arrival(other, b"1"))
    late.forget(cast(Any, gone))
    assert refused(late, gone, b"1") + refused(late, other, b"1") == [None, 1]
    closed = Connection(is_open=False)
    late.remember(arrival(closed, b"1"))
    assert refused(late, closed, b"1") == [None]


def test_so_many_are_remembered_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 2)
    late, connection = LateAnswers(), Connection()
    late.remember(arrival(connection, b"1", b"2", b"3"))
    assert refused(late, connection, b"1", b"2", b"3") == [None, 1, 1]
