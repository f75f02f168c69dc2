"""Servers of a Cluster that answer what the test says: which map is used, when it is read again, and which servers are
forgotten. What a real Cluster does is tested in test_cluster.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import AskError, MovedError

from nsqdigest.config import Address
from nsqdigest.store.servers import base
from support.ports import HOST
from support.scripted_redis import HANG_UP, Answer, Words
from support.scripted_sets import (
    LAST_SLOT,
    LONG_MS,
    ODD,
    A,
    B,
    C,
    address_of,
    cluster_url,
    hangs_up,
    opened,
    patient,
    refusal,
    scripted,
    stays_silent,
)
from support.waiting import until

pytestmark = pytest.mark.integration

__all__ = ["patient"]


# -- what servers of a Cluster say

Slots = list[list[Any]]


def parts(*owned: tuple[int, int, Address]) -> Slots:
    """As CLUSTER SLOTS says it, with a replica beside each."""
    replica = [b"10.0.9.9", 6379, b"id", []]
    return [[first, last, [to.host.encode(), to.port, b"id", []], replica] for first, last, to in owned]


def tells(slots: Any, state: str = "ok", *, after: asyncio.Event | None = None) -> Answer:
    """A server of a Cluster. `after`: says nothing before that."""

    async def answer(words: Words) -> Any:
        if after is not None:
            await after.wait()
        return f"cluster_state:{state}\r\ncluster_slots_assigned:16384\r\n".encode() if words[1] == b"INFO" else slots

    return answer


ALL_A = parts((0, LAST_SLOT, A))
ALL_B = parts((0, LAST_SLOT, B))


async def test_each_slot_has_the_server_that_the_map_says() -> None:
    halves = parts((0, 5460, A), (5461, 10922, B), (10923, 16383, C))
    async with scripted(tells(halves)) as servers, opened(cluster_url(servers)) as found:
        wanted = {0: A, 1: A, 5460: A, 5461: B, 10922: B, 10923: C, 16383: C}
        assert {slot: await address_of(found, slot) for slot in wanted} == wanted
        assert str(await found.server_for(5461)) == str(B)
        assert [node.address for node in await found.primaries()] == [A, B, C]
        assert servers[0].count(b"CLUSTER", b"SLOTS") == servers[0].count(b"CLUSTER", b"INFO") == 2


async def test_a_slot_that_nobody_has_is_looked_for_again_by_the_next_call() -> None:
    async with scripted(tells(parts((1, LAST_SLOT - 1, A)))) as servers, opened(cluster_url(servers)) as found:
        for slot in (0, LAST_SLOT):
            error = await refusal(found, slot)
            assert (error.reason, str(slot) in str(error)) == ("redis-clusterdown", True)
        assert [await address_of(found, slot) for slot in (1, LAST_SLOT - 1)] == [A, A]
        servers[0].answer = tells(ALL_A)
        await refusal(found, 0)  # by then it was not stale any more
        assert await address_of(found, 0) == A


@pytest.mark.parametrize("name", [b"", None, b"?"])
async def test_a_server_without_a_name_is_the_one_that_was_asked(name: bytes | None) -> None:
    async with (
        scripted(tells([[0, LAST_SLOT, [name, 7001, b"id", []]]])) as servers,
        opened(cluster_url(servers)) as found,
    ):
        assert await address_of(found) == Address(HOST, 7001)


async def first_then_second(first: Answer, second: Slots, state: str = "ok") -> Address | None:
    """What is believed of two servers, one of which answers when the other has."""
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def heard_first(words: Words) -> Any:
        said = first(words)
        said = await said if asyncio.iscoroutine(said) else said
        if words[1] == b"SLOTS" or said is HANG_UP:
            loop.call_later(0.05, go_on.set)  # until it has been heard
        return said

    async with (
        scripted(heard_first, tells(second, state, after=go_on)) as servers,
        opened(cluster_url(servers)) as found,
    ):
        return await address_of(found)


def cannot_say(words: Words) -> Any:
    """Well, but for its map."""
    return b"cluster_state:ok" if words[1] == b"INFO" else "-ERR odd"


def hides_its_state(words: Words) -> Any:
    return "-NOPERM this user has no right" if words[1] == b"INFO" else ALL_A


@pytest.mark.parametrize(
    ("first", "second", "state", "expected"),
    [
        (tells(ALL_A, "fail"), ALL_B, "ok", B),
        (tells(ALL_A), ALL_B, "ok", A),
        (tells(ALL_A), ALL_B, "fail", A),
        (tells(ALL_A, "fail"), ALL_B, "fail", A),
        (hangs_up, ALL_B, "ok", B),
        (hangs_up, ALL_B, "fail", B),
        (cannot_say, ALL_B, "ok", B),
        (tells([[0, "x"]]), ALL_B, "ok", B),
        (hides_its_state, ALL_B, "ok", B),
        (hides_its_state, [], "fail", A),
    ],
    ids=[
        "well last",
        "well first",
        "only the first is well",
        "none is well",
        "one hangs up",
        "one hangs up, none is well",
        "well without a map",
        "odd",
        "the state is not told",
        "the state is not told, no map",
    ],
)
async def test_who_says_that_the_cluster_is_well_is_believed_before_others(
    first: Answer, second: Slots, state: str, expected: Address
) -> None:
    assert await first_then_second(first, second, state) == expected


@pytest.mark.parametrize(
    ("answer", "reason", "expected"),
    [
        (hangs_up, "redis-cluster", "no server of the Cluster answers"),
        (cannot_say, "redis-cluster", "odd"),
        (tells([]), "redis-cluster", "no server of the Cluster answers"),
        (tells(7), "redis-cluster", ODD),
        (tells([[0, 1]]), "redis-cluster", ODD),
        (tells([[0, 1, [b"\xff", 1]]]), "redis-cluster", ODD),
        (tells("-ERR This instance has cluster support disabled"), "redis-mode", "write redis:// instead of"),
    ],
)
async def test_where_no_map_can_be_had_it_says_why(answer: Answer, reason: str, expected: str) -> None:
    async with scripted(answer) as servers, opened(cluster_url(servers)) as found:
        error = await refusal(found)
        assert (error.reason, expected in str(error)) == (reason, True)
        servers[0].answer = tells(ALL_A)
        assert await address_of(found) == A


@pytest.mark.usefixtures("patient")
async def test_one_that_is_well_is_enough() -> None:
    async with (
        scripted(stays_silent, tells(ALL_A), stays_silent) as servers,
        opened(cluster_url(servers), LONG_MS) as found,
    ):
        assert await address_of(found) == A


async def test_silent_ones_get_no_more_than_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "DISCOVERY_S", 0.02)
    async with scripted(stays_silent, stays_silent) as servers, opened(cluster_url(servers), LONG_MS) as found:
        assert str(await refusal(found)).count("no answer within 0.02 s") == 2


# -- a Cluster that changes


async def test_a_cluster_is_looked_at_again_once_it_is_stale_only() -> None:
    async with scripted(tells(ALL_A)) as servers, opened(cluster_url(servers)) as found:
        node = await found.server_for(0)
        assert await found.server_for(7) is node
        assert servers[0].count(b"CLUSTER", b"SLOTS") == 1
        await found.mark_stale(node)
        servers[0].answer = tells(ALL_B)
        assert await address_of(found) == B
        assert await address_of(found) == B
        assert servers[0].count(b"CLUSTER", b"SLOTS") == 2


async def test_a_stale_server_of_a_cluster_is_connected_to_anew() -> None:
    async with scripted(tells([[0, LAST_SLOT, [b"", 0, b"id"]]])) as servers, opened(cluster_url(servers)) as found:
        servers[0].answer = tells(parts((0, LAST_SLOT, servers[0].address)))
        node = await found.server_for(0)
        assert servers[0].accepted == 1
        await found.mark_stale(node)
        assert await found.server_for(0) is node
        assert servers[0].accepted == 2


@pytest.mark.parametrize(("host", "expected"), [("10.0.0.2", B), ("", Address(HOST, 6379))])
async def test_an_ask_leads_one_call_elsewhere_and_a_moved_all_that_follow(host: str, expected: Address) -> None:
    async with scripted(tells(ALL_A)) as servers, opened(cluster_url(servers)) as found:
        servers[0].answer = tells(parts((0, LAST_SLOT, servers[0].address)))
        asked = await found.server_for(5)
        other = await found.redirected(asked, 5, AskError(f"5 {host}:6379"), for_good=False)
        assert (other.address, str(other)) == (expected, str(expected))
        assert await found.server_for(5) is asked
        assert servers[0].count(b"CLUSTER", b"SLOTS") == 1
        assert await found.redirected(asked, 5, MovedError(f"5 {host}:6379"), for_good=True) is other
        servers[0].answer = tells(parts((0, LAST_SLOT, expected)))
        assert await found.server_for(5) is other
        assert servers[0].count(b"CLUSTER", b"SLOTS") == 2


async def test_what_a_well_map_no_longer_names_is_forgotten() -> None:
    async with scripted(tells(ALL_A), tells([], "fail")) as (named, told):
        halves = parts((0, 8191, named.address), (8192, LAST_SLOT, told.address))
        whole = parts((0, LAST_SLOT, named.address))
        told.answer = tells(halves, "fail")
        named.answer = tells(halves)
        async with opened(cluster_url([named])) as found:
            first = await found.primaries()
            assert [node.address for node in first] == [named.address, told.address]
            named.answer = tells(whole, "fail")
            await found.primaries()  # asks both, and forgets none: nobody is well
            await until(lambda: told.connections == 1)
            assert told.count(b"CLUSTER", b"SLOTS") == 1
            again = await found.primaries()
            assert told.count(b"CLUSTER", b"SLOTS") == 2
            assert set(again) <= set(first)
            named.answer = tells(whole)
            assert await found.primaries() == [first[0]]
            await until(lambda: told.connections == 0)
            asked = told.count(b"CLUSTER", b"SLOTS")
            assert await found.primaries() == [first[0]]
            assert told.count(b"CLUSTER", b"SLOTS") == asked
        await until(lambda: named.connections == 0)
