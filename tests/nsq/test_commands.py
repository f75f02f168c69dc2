"""The bytes of commands: ours are pynsq's, whichever of the two put them together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nsq import protocol

from nsqdigest.demo.servers.nsqd_queues import Options
from nsqdigest.demo.servers.nsqd_session import split_mpub
from nsqdigest.nsq import commands

pytestmark = pytest.mark.unit

IDS = [b"%016x" % number for number in range(500)]


def test_fins_are_joined_to_one_write_as_if_each_were_sent() -> None:
    assert commands.fin(IDS) == b"".join(protocol.finish(message_id) for message_id in IDS)


def test_one_fin_is_one_command() -> None:
    assert commands.fin(IDS[:1]) == b"FIN 0000000000000000\n"


def test_nothing_to_finish_or_requeue_writes_nothing() -> None:
    assert commands.fin([]) == commands.req([]) == b""


def test_reqs_are_joined_each_with_its_own_delay() -> None:
    delays_ms = [(message_id, number * 7) for number, message_id in enumerate(IDS)]
    assert commands.req(delays_ms) == b"".join(protocol.requeue(*each) for each in delays_ms)


@given(bodies=st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=20))
def test_several_bodies_are_an_mpub(bodies: list[bytes]) -> None:
    command = commands.publish("events", bodies)
    assert command == protocol.mpub("events", bodies)
    assert split_mpub(command.partition(b"\n")[2][4:], Options()) == bodies


def test_one_body_is_a_pub() -> None:
    assert commands.publish("events", [b"x"]) == b"PUB events\n\x00\x00\x00\x01x"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (commands.sub("events", "ch"), b"SUB events ch\n"),
        (commands.rdy(0), b"RDY 0\n"),
        (commands.rdy(2500), b"RDY 2500\n"),
        (commands.auth("sécret"), b"AUTH\n\x00\x00\x00\x07s\xc3\xa9cret"),
        (commands.identify({"snappy": True}), b'IDENTIFY\n\x00\x00\x00\x10{"snappy": true}'),
        (commands.NOP, b"NOP\n"),
        (commands.CLS, b"CLS\n"),
        (commands.MAGIC_V2, b"  V2"),
    ],
)
def test_each_of_the_others_is_in_its_wire_spelling(command: bytes, expected: bytes) -> None:
    assert command == expected
