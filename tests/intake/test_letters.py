"""Letters to the dead-letter topic: which of them are safe, and which messages must not be finished."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.config import Address
from nsqdigest.demo.servers.nsqd import Connection, EmbeddedNsqd, Options
from nsqdigest.intake.letters import DeadLetters, Letter
from nsqdigest.nsq.connection import ConnectionOptions
from nsqdigest.nsq.frames import Message
from nsqdigest.nsq.publisher import Publisher
from support.nsqclient import NsqClient
from support.servers import Nsqd

pytestmark = pytest.mark.integration

TOPIC = "dead"


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    publisher = Publisher(ConnectionOptions(heartbeat_interval_ms=30_000))
    yield publisher
    await publisher.close()


def letters_of(*sizes_bytes: int) -> list[Letter]:
    return [
        Letter(Message(b"%016d" % number, 1_000 + number, 1, b"x" * size), DeadLetterReason.NOT_JSON, "it is not")
        for number, size in enumerate(sizes_bytes)
    ]


async def sent(address: tuple[str, int], count: int) -> list[dict[str, Any]]:
    async with await NsqClient.connect(address) as client:
        await client.identify()
        await client.sub(TOPIC, "ch")
        client.rdy(count + 1)
        letters = [json.loads(message.body) for message in await client.take(count)]
        return sorted(letters, key=lambda letter: str(letter["id"]))


async def test_a_letter_too_large_for_nsqd_is_shortened_and_the_others_stay_whole(
    nsqd_factory: Callable[..., Nsqd], publisher: Publisher
) -> None:
    nsqd = nsqd_factory("--max-msg-size=3000")
    letters = letters_of(10, 100_000, 20)
    unsent = await DeadLetters(publisher, TOPIC, "ch").publish(Address(*nsqd.tcp_address), "events", letters)
    assert unsent is None
    first, shortened, last = await sent(nsqd.tcp_address, 3)
    assert (first["length"], len(first["body"])) == (10, 16)
    assert (shortened["length"], len(shortened["body"])) == (100_000, 1_368)
    assert (last["length"], len(last["body"])) == (20, 28)


async def test_what_was_acknowledged_before_a_failure_is_not_kept(publisher: Publisher) -> None:
    numbers = itertools.count(1)

    def hang_up_on_the_second(connection: Connection, name: str, _: tuple[str, ...]) -> bytes | None:
        if name != "MPUB" or next(numbers) != 2:
            return None
        connection.abort()
        return b""

    async with EmbeddedNsqd(Options()) as nsqd:
        nsqd.script.answer = hang_up_on_the_second
        letters = letters_of(*[700_000] * 12)
        unsent = await DeadLetters(publisher, TOPIC, "ch").publish(Address(*nsqd.tcp_address), "events", letters)
        assert unsent is not None
        assert "nsqd may have it or not" in str(unsent.error)
        safe = await sent(nsqd.tcp_address, 12 - len(unsent.messages))
    assert [letter["id"].encode() for letter in safe] == [letter.message.id for letter in letters[: len(safe)]]
    assert unsent.messages == [letter.message for letter in letters[len(safe) :]]


async def test_without_a_topic_all_are_kept(publisher: Publisher) -> None:
    letters = letters_of(1, 2)
    unsent = await DeadLetters(publisher, "", "ch").publish(Address("127.0.0.1", 1), "events", letters)
    assert unsent is not None
    assert unsent.messages == [letter.message for letter in letters]
    assert "nowhere to put" in str(unsent.error)
