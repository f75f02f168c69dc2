"""The commands that nsqd has not answered: each answer goes to the oldest of them, whoever still waits for it."""

from __future__ import annotations

import asyncio

import pytest

from nsqdigest.base.errors import ConnectionLost
from nsqdigest.nsq.requests import Requests

pytestmark = pytest.mark.unit

BROKEN = ConnectionLost("as the test says")


async def test_answers_go_to_the_commands_in_their_order() -> None:
    requests = Requests()
    first, second = requests.add(), requests.add()
    requests.answer_first(b"one")
    requests.answer_first(BROKEN)
    assert await first == b"one"
    with pytest.raises(ConnectionLost):
        await second
    assert not requests


async def test_the_answer_that_nobody_waits_for_any_more_is_not_the_next_ones() -> None:
    requests = Requests()
    first, second = requests.add(), requests.add()
    first.cancel()
    requests.answer_first(b"one")
    requests.answer_first(b"two")
    assert await second == b"two"


async def test_at_the_end_all_of_them_fail() -> None:
    requests = Requests()
    cancelled, *others = [requests.add() for _ in range(3)]
    cancelled.cancel()
    requests.fail_all(BROKEN)
    assert await asyncio.gather(*others, return_exceptions=True) == [BROKEN, BROKEN]
    assert not requests
