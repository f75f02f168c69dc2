"""Hand-overs of one message are known by id and timestamp, and share the fate of the first."""

from __future__ import annotations

import pytest

from nsqdigest.config import Address
from nsqdigest.errors import NsqdigestError, NsqdRefused
from nsqdigest.handovers import Again, MessagesOf, Tied, firsts
from nsqdigest.transport.connection import ConnectionOptions, NsqConnection
from nsqdigest.transport.frames import Message


class Nobody:
    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None: ...

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None: ...

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None: ...


@pytest.fixture
def connections() -> tuple[NsqConnection, NsqConnection]:
    def make() -> NsqConnection:
        return NsqConnection(Address("127.0.0.1", 1), ConnectionOptions(heartbeat_interval_ms=1_000), Nobody())

    return make(), make()


def message(number: int, attempts: int = 1, timestamp_ns: int = 1) -> Message:
    return Message(b"%016d" % number, timestamp_ns, attempts, b"x")


def test_of_several_hand_overs_the_first_is_found() -> None:
    one, other, again, third = message(1), message(2), message(1, 2), message(1, 3)
    found = firsts([one, other, again, third])
    assert found[again.id, again.timestamp_ns] is one
    assert found[other.id, other.timestamp_ns] is other


def test_an_equal_id_with_another_timestamp_is_another_message() -> None:
    assert len(firsts([message(1, timestamp_ns=1), message(1, 2, timestamp_ns=2)])) == 2


def test_on_another_connection_the_hand_over_ends_there(connections: tuple[NsqConnection, NsqConnection]) -> None:
    here, there = connections
    first, second, bystander = message(1), message(1, 2), message(2)
    tied = Tied()
    tied.tie([Again(first, there, second)])
    ends: MessagesOf = {here: [bystander, first]}
    tied.join(ends)
    assert ends == {here: [bystander, first], there: [second]}


def test_on_the_same_connection_one_word_ends_both(connections: tuple[NsqConnection, NsqConnection]) -> None:
    here, _ = connections
    here.in_flight = 3
    first = message(1)
    tied = Tied()
    tied.tie([Again(first, here, message(1, 2)), Again(first, here, message(1, 3))])
    ends: MessagesOf = {here: [first]}
    tied.join(ends)
    assert ends == {here: [first]}
    assert here.in_flight == 1


def test_a_hand_over_ends_once(connections: tuple[NsqConnection, NsqConnection]) -> None:
    here, there = connections
    first = message(1)
    tied = Tied()
    tied.tie([Again(first, there, message(1, 2))])
    tied.join({here: [first]})
    ends: MessagesOf = {here: [first]}
    tied.join(ends)
    assert ends == {here: [first]}


def test_what_ends_untied_ends_alone(connections: tuple[NsqConnection, NsqConnection]) -> None:
    here, there = connections
    tied = Tied()
    tied.tie([Again(message(1), there, message(1, 2))])
    ends: MessagesOf = {here: [message(3)]}
    tied.join(ends)
    assert there not in ends
