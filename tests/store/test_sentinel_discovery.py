"""Sentinels that answer what the test says: which answers are used, when they are asked again, and which connections
are closed. What real Sentinels do is tested in test_sentinel.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from nsqdigest.config import Address
from nsqdigest.store.servers import base
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.resp import Command
from support.ports import HOST, free_port
from support.scripted_redis import Answer, Words
from support.scripted_sets import (
    LAST_SLOT,
    LONG_MS,
    ODD,
    A,
    B,
    C,
    address_of,
    hangs_up,
    left_running,
    opened,
    patient,
    refusal,
    scripted,
    sentinels_url,
    stays_silent,
)
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

__all__ = ["patient"]


# -- what Sentinels say


def fields(address: Address, epoch: Any = 1, flags: str = "master") -> list[Any]:
    named = {"name": "main", "ip": address.host, "port": address.port, "flags": flags, "config-epoch": epoch}
    return [str(each).encode() for pair in named.items() for each in pair]


def names(address: Address, epoch: int = 1, flags: str = "master", told_of: Address | None = None) -> Answer:
    """A Sentinel. `told_of`: the server that MASTER still tells of, if not that one."""

    def answer(words: Words) -> Any:
        if words[1] == b"MASTER":
            return fields(told_of or address, epoch, flags)
        return [address.host.encode(), str(address.port).encode()]

    return answer


def says(master: Any, address: Any = None) -> Answer:
    """A Sentinel with an odd answer."""
    return lambda words: (address or [b"10.0.0.1", b"6379"]) if words[1] != b"MASTER" else master


def refuses(_words: Words) -> str:
    return "-IDONTKNOW No such master with that name"


@pytest.mark.parametrize(
    ("sentinels", "expected"),
    [
        ([names(A)], A),
        ([names(A), names(A), names(A)], A),
        ([names(A), names(A), hangs_up], A),
        ([refuses, names(A), names(A)], A),
        ([names(A), hangs_up, hangs_up, names(A), names(A)], A),
        ([names(A, 1), names(B, 2), hangs_up], B),
        ([names(B, 2), names(A, 1), hangs_up], B),
        ([hangs_up, names(A, 9), names(B, 10)], B),
        ([names(A, flags="s_down,master")], A),
        ([names(A, 1, "s_down,o_down,master"), names(B, 2), hangs_up], B),
        ([names(A, flags="s_down,o_down,master,failover_in_progress", told_of=B)], A),
        ([names(A, flags="o_down,master", told_of=Address(A.host, 6380))], A),
        ([names(Address("fd00::1", 6379))], Address("fd00::1", 6379)),
    ],
)
async def test_the_highest_epoch_among_a_majority_is_believed(sentinels: list[Answer], expected: Address) -> None:
    async with scripted(*sentinels) as servers, opened(sentinels_url(servers)) as found:
        assert await address_of(found) == expected
        assert [node.address for node in await found.primaries()] == [expected]


NONE_NAMED = "{} of {} Sentinels name a primary"
DOWN = r"the Sentinels hold 10.0.0.1:6379 for down and have no other"


@pytest.mark.parametrize(
    ("sentinels", "expected"),
    [
        ([hangs_up], NONE_NAMED.format(0, 1)),
        ([names(A), hangs_up], NONE_NAMED.format(1, 2)),
        ([names(A), refuses, hangs_up], NONE_NAMED.format(1, 3)),
        ([names(A), names(A), refuses, refuses], NONE_NAMED.format(2, 4)),
        ([names(A), names(A), refuses, refuses, refuses], NONE_NAMED.format(2, 5)),
        ([refuses], "No such master with that name"),
        ([names(A, flags="master,o_down")], DOWN),
        ([names(A), names(A, flags="o_down,s_down,master"), hangs_up], DOWN),
        ([names(A, flags="o_down,master"), names(A), hangs_up], DOWN),
        ([says([])], ODD),
        ([says(fields(A)[:-1])], ODD),
        ([says(fields(A, epoch="x"))], ODD),
        ([says(fields(A), [b"10.0.0.1"])], ODD),
        ([says(fields(A), [b"\xff", b"6379"])], ODD),
        ([says(fields(A), [b"10.0.0.1", b"port"])], ODD),
        ([says(7)], ODD),
        ([says(None)], ODD),
        ([says("-ERR none of yours")], "none of yours"),
    ],
)
async def test_where_no_majority_names_a_primary_that_is_up_there_is_none(
    sentinels: list[Answer], expected: str
) -> None:
    async with scripted(*sentinels) as servers, opened(sentinels_url(servers)) as found:
        error = await refusal(found)
        assert error.reason == "redis-sentinel"
        assert expected in str(error)


async def test_each_that_named_none_is_listed_with_its_reason() -> None:
    async with scripted(refuses, names(A), says(7)) as servers, opened(sentinels_url(servers)) as found:
        first, _, third = (f"sentinel {server.address}: " for server in servers)
        listed = {first + "redis-unknown: IDONTKNOW No such master with that name", f"{third}redis-protocol: {ODD}"}
        assert set(str(await refusal(found)).partition("a majority has to: ")[2].split("; ")) == listed


async def test_they_are_asked_for_the_primary_of_this_name_by_both_words() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers, "orders")) as found:
        await found.server_for(0)
        assert servers[0].asked == [
            (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", b"orders"),
            (b"SENTINEL", b"MASTER", b"orders"),
        ]


async def test_an_address_that_cannot_be_one_is_a_failure_of_the_look() -> None:
    async with scripted(names(Address(HOST, 70_000))) as servers, opened(sentinels_url(servers)) as found:
        error = await refusal(found)
        assert error.reason == "redis-unknown"
        assert "looking for servers" in str(error)
        servers[0].answer = names(A)
        assert await address_of(found) == A


@pytest.mark.usefixtures("patient")
async def test_a_majority_waits_for_nobody() -> None:
    async with scripted(names(A), stays_silent, names(A)) as servers, opened(sentinels_url(servers), LONG_MS) as found:
        assert await address_of(found) == A


@pytest.mark.usefixtures("patient")
async def test_sentinels_get_no_more_than_the_time_out_of_the_settings() -> None:
    async with scripted(stays_silent) as servers, opened(sentinels_url(servers), timeout_ms=50) as found:
        assert (await refusal(found)).reason == "redis-sentinel"


# -- when it looks, and who waits for it


async def test_what_is_known_is_used_until_it_is_stale() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        node = await found.server_for(0)
        assert servers[0].count(b"SENTINEL", b"MASTER") == 1
        assert await found.server_for(LAST_SLOT) is node
        assert servers[0].count(b"SENTINEL", b"MASTER") == 1
        await found.mark_stale(node)
        assert await found.server_for(0) is node  # its address is the same
        assert await found.server_for(0) is node
        assert servers[0].count(b"SENTINEL", b"MASTER") == 2
        assert await found.primaries() == [node]
        assert servers[0].count(b"SENTINEL", b"MASTER") == 3


async def test_all_who_ask_meanwhile_share_one_look_and_any_of_them_may_go() -> None:
    go_on = asyncio.Event()

    async def answer(words: Words) -> Any:
        await go_on.wait()
        return names(A)(words)

    async with scripted(answer) as servers, opened(sentinels_url(servers)) as found:
        first, *others = [asyncio.create_task(found.server_for(0)) for _ in range(5)]
        await until(lambda: servers[0].asked)
        first.cancel()
        await asyncio.wait([first])
        go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            assert {node.address for node in await asyncio.gather(*others)} == {A}
        assert servers[0].count(b"SENTINEL", b"MASTER") == 1


async def test_what_is_marked_stale_during_a_refresh_is_what_it_finds() -> None:
    go_on = asyncio.Event()

    async def answer(words: Words) -> Any:
        await go_on.wait()
        return names(A)(words)

    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        node = await found.server_for(0)
        servers[0].answer = answer
        look = asyncio.create_task(found.primaries())
        await until(lambda: servers[0].count(b"SENTINEL") > 2)
        await found.mark_stale(node)
        go_on.set()
        await look
        before = servers[0].count(b"SENTINEL", b"MASTER")
        await found.server_for(0)
        assert servers[0].count(b"SENTINEL", b"MASTER") == before + 1


async def test_a_look_that_failed_is_made_again_by_the_next_call() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        node = await found.server_for(0)
        await found.mark_stale(node)
        servers[0].answer = refuses
        for _ in range(2):
            assert (await refusal(found)).reason == "redis-sentinel"  # what was known is not used meanwhile
        servers[0].answer = names(A)
        assert await found.server_for(0) is node


async def test_a_primary_that_was_replaced_is_not_stale_any_more() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        former = await found.server_for(0)
        servers[0].answer = names(B, 2)
        (node,) = await found.primaries()
        assert node.address == B
        await found.mark_stale(former)
        before = servers[0].count(b"SENTINEL", b"MASTER")
        assert await found.server_for(0) is node
        assert servers[0].count(b"SENTINEL", b"MASTER") == before


@pytest.mark.usefixtures("patient")
async def test_a_sentinel_that_has_not_answered_is_asked_again_by_the_next_look() -> None:
    async with (
        scripted(names(A), names(A), stays_silent) as servers,
        opened(sentinels_url(servers), timeout_ms=LONG_MS) as found,
    ):
        await found.primaries()
        await until(lambda: servers[2].accepted == 1 and servers[2].asked)
        await found.primaries()
        await until(lambda: servers[2].accepted == 2)


# -- what it lets go of


async def test_a_stale_primary_is_connected_to_anew() -> None:
    async with scripted(lambda words: "PONG") as (primary,), scripted(names(primary.address)) as servers:
        async with opened(sentinels_url(servers)) as found:
            await (await found.server_for(0)).exchange([[b"PING"]])
            await found.mark_stale(await found.server_for(0))
            await (await found.server_for(0)).exchange([[b"PING"]])
            assert primary.accepted == 2
        await until(lambda: primary.connections == servers[0].connections == 0)


async def test_the_former_primary_is_let_go_once_its_last_call_has_ended() -> None:
    go_on = asyncio.Event()

    async def answer(words: Words) -> Any:
        if words == (b"GET", b"slow"):
            await go_on.wait()
        return b"value"

    async with (
        scripted(answer) as (primary,),
        scripted(names(primary.address)) as servers,
        opened(sentinels_url(servers)) as found,
    ):
        former = await found.server_for(0)
        call = asyncio.create_task(former.exchange([[b"GET", b"slow"]]))
        await until(lambda: primary.asked)
        servers[0].answer = names(B, 2)
        assert [node.address for node in await found.primaries()] == [B]
        assert primary.connections == 1
        go_on.set()
        assert await call == [b"value"]
        await until(lambda: primary.connections == 0)


@pytest.mark.usefixtures("patient")
async def test_closing_ends_the_look_that_is_under_way() -> None:
    async with scripted(stays_silent) as servers:
        async with opened(sentinels_url(servers), timeout_ms=LONG_MS) as found:
            waiting = asyncio.create_task(found.server_for(0))
            await until(lambda: servers[0].asked)
        assert left_running() == []
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.usefixtures("patient")
async def test_closed_nothing_of_it_runs_any_more() -> None:
    async with scripted(names(A), stays_silent, names(A)) as servers:
        async with opened(sentinels_url(servers), timeout_ms=LONG_MS) as found:
            await found.server_for(0)
            await until(lambda: servers[1].asked)
            assert len(left_running()) == 1
        assert left_running() == []
        await until(lambda: sum(server.connections for server in servers) == 0)


async def test_closing_waits_for_a_question_that_is_still_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that has no connection yet: closing the connections does not end it."""
    go_on = asyncio.Event()
    ask = base._ask

    async def late(node: Node, commands: Sequence[Command]) -> list[Any] | Exception:
        if node.name == f"sentinel {servers[1].address}":
            await go_on.wait()
            return TimeoutError()
        return await ask(node, commands)

    monkeypatch.setattr(base, "_ask", late)
    async with scripted(names(A), names(A), names(A)) as servers, opened(sentinels_url(servers)) as found:
        await found.server_for(0)
        closing = asyncio.create_task(found.close())
        await until(lambda: sum(server.connections for server in servers) == 0)
        await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        await closing
        assert left_running() == []


async def test_what_has_ended_is_kept_no_longer() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        for address in (A, B, C):
            servers[0].answer = names(address)
            await found.primaries()
        assert isinstance(found, base.DiscoveredServers)
        await until(lambda: found._background == set())


async def test_closed_before_it_was_used() -> None:
    for url in (f"redis+sentinel://{HOST}:{free_port()}/main/0", f"redis+cluster://{HOST}:{free_port()}"):
        async with opened(url):
            pass
