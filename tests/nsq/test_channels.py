"""Which channels a topic has, by a real nsqd and a nsqlookupd; and that it is not known where nobody can say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsqdigest.config import Address
from nsqdigest.nsq.channels import channels_of, read_lookupd, read_nsqd
from support import settings as usual
from support.ports import HOST, free_port
from support.servers import Nsqd

pytestmark = pytest.mark.integration


def tcp_of(nsqd: Nsqd) -> Address:
    """Such that its HTTP port is the one behind it."""
    return Address(HOST, nsqd.ports[1] - 1)


async def test_an_nsqd_is_asked_where_no_nsqlookupd_is(nsqd: Nsqd) -> None:
    assert await channels_of(usual.NSQ, [tcp_of(nsqd)], "dead") == set()
    for name in ("archive", "nsqdigest"):
        nsqd.create_channel("dead", name)
    nsqd.create_channel("other", "else")
    assert await channels_of(usual.NSQ, [tcp_of(nsqd)], "dead") == {"archive", "nsqdigest"}


async def test_where_one_cannot_be_asked_it_is_not_known(nsqd: Nsqd) -> None:
    nobody = Address(HOST, free_port() - 1)
    assert await channels_of(usual.NSQ, [tcp_of(nsqd), nobody], "dead") is None
    lookupds = replace(usual.NSQ, lookupd_http_addresses=(Address(HOST, free_port()),))
    assert await channels_of(lookupds, [tcp_of(nsqd)], "dead") is None


async def test_what_is_no_answer_of_an_nsqd_is_not_believed(nsqd: Nsqd) -> None:
    speaks_nsq = Address(HOST, nsqd.ports[0] - 1)
    assert await channels_of(usual.NSQ, [speaks_nsq], "dead") is None


def test_answers_are_read() -> None:
    assert read_lookupd(b'{"channels": ["a", "b"]}') == {"a", "b"}
    stats = b'{"topics": [{"topic_name": "t", "channels": [{"channel_name": "a", "depth": 3}]}]}'
    assert (read_nsqd(stats, "t"), read_nsqd(stats, "u")) == ({"a"}, set())
