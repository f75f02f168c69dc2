"""finding.py: the nsqds of a topic, from the file and from real nsqlookupds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsqdigest.config import Address
from nsqdigest.nsq.finding import Nsqds, nsqds_of
from support.lookupd import Reply, ScriptedLookupd, http, naming
from support.ports import HOST, free_port
from support.settings import NSQ

pytestmark = pytest.mark.integration

HERE = Address(HOST, 4150)


async def test_those_of_the_file_come_first_and_each_once() -> None:
    async with ScriptedLookupd(naming((HOST, 4160), (HOST, 4150))) as lookupd:
        settings = replace(NSQ, nsqd_tcp_addresses=(HERE,), lookupd_http_addresses=(Address(*lookupd.http_address),))
        assert await nsqds_of(settings, "dead") == Nsqds([HERE, Address(HOST, 4160)], [])


async def test_without_a_nsqlookupd_it_is_the_file_alone() -> None:
    assert await nsqds_of(replace(NSQ, nsqd_tcp_addresses=(HERE,)), "dead") == Nsqds([HERE], [])


async def test_a_nsqlookupd_in_trouble_hides_no_other() -> None:
    async with ScriptedLookupd(naming((HOST, 4160))) as well, ScriptedLookupd(Reply(http("500 Oh", b""))) as unwell:
        down = Address(HOST, free_port())
        lookupds = Address(*unwell.http_address), down, Address(*well.http_address)
        found = await nsqds_of(replace(NSQ, lookupd_http_addresses=lookupds), "dead")
    assert found.addresses == [Address(HOST, 4160)]
    assert sorted(problem.split(": ")[0] for problem in found.problems) == sorted(
        f"nsqlookupd at {each}" for each in lookupds[:2]
    )


async def test_an_nsqd_that_the_file_does_not_allow_is_left_out() -> None:
    async with ScriptedLookupd(naming((HOST, 4160), ("evil.example", 4150))) as lookupd:
        settings = replace(NSQ, lookupd_http_addresses=(Address(*lookupd.http_address),), allow_nsqds=("127.0.0.0/8",))
        assert await nsqds_of(settings, "dead") == Nsqds([Address(HOST, 4160)], [])


async def test_a_topic_that_nobody_has() -> None:
    async with ScriptedLookupd(Reply(http("404 Not Found", b'{"message":"TOPIC_NOT_FOUND"}'))) as lookupd:
        settings = replace(NSQ, lookupd_http_addresses=(Address(*lookupd.http_address),))
        assert await nsqds_of(settings, "dead") == Nsqds([], [])
