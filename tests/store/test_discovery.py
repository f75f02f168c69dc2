"""redis_servers.py before servers that say what the test wants: which answers of Sentinels and of a Cluster are
believed, when it looks again, and what it lets go of. What real sets of servers do stands in test_sentinel.py and
test_cluster.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from redis.exceptions import AskError, MovedError

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.config import Address
from nsqdigest.store.servers import discovery
from nsqdigest.store.servers.discovery import Servers, servers_of
from nsqdigest.store.servers.node import Command, Node
from support.ports import HOST, free_port
from support.scripted_redis import HANG_UP, SILENCE, Answer, ScriptedRedis, Words
from support.stores import redis_settings
from support.waiting import until

pytestmark = pytest.mark.integration

PATIENCE_S = 5.0
"""What ought to come at once comes within this."""
LONG_S = 30.0
LAST_SLOT = 16383

A, B, C = (Address(f"10.0.0.{number}", 6379) for number in (1, 2, 3))


@asynccontextmanager
async def opened(url: str, timeout_ms: int = 5000, connections: int = 2) -> AsyncIterator[Servers]:
    servers = servers_of(redis_settings(url, timeout_ms=timeout_ms), connections)
    try:
        yield servers
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await servers.close()


@asynccontextmanager
async def scripted(*answers: Answer) -> AsyncIterator[list[ScriptedRedis]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedRedis(answer)) for answer in answers]


def sentinels_url(servers: Sequence[ScriptedRedis], name: str = "main") -> str:
    return f"redis+sentinel://{','.join(str(server.address) for server in servers)}/{name}/0"


def cluster_url(servers: Sequence[ScriptedRedis]) -> str:
    return f"redis+cluster://{','.join(str(server.address) for server in servers)}"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look waits for ever, as far as a test is concerned."""
    monkeypatch.setattr(discovery, "_LOOK_S", LONG_S)


async def refusal(servers: Servers, slot: int = 0) -> StoreError:
    with pytest.raises(StoreError) as raised:
        async with asyncio.timeout(PATIENCE_S):
            await servers.of(slot)
    assert raised.value.applied is Applied.NO
    return raised.value


async def address_of(servers: Servers, slot: int = 0) -> Address | None:
    async with asyncio.timeout(PATIENCE_S):
        return (await servers.of(slot)).address


def left_running() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(("look", "who", "forget"))]


# -- a single server


async def test_the_server_that_is_named_has_every_slot_whatever_it_is_doubted() -> None:
    async with scripted(lambda words: "PONG") as (server,), opened(server.url) as servers:
        node = await servers.of(0)
        await servers.doubt(node)
        assert [await servers.of(LAST_SLOT), *await servers.primaries()] == [node, node]


async def test_its_name_in_messages_is_without_the_password_that_it_is_asked_with() -> None:
    async with scripted(lambda words: "PONG") as (server,):
        async with opened(f"redis://:secret@{server.address}/0") as servers:
            node = await servers.of(0)
            await node.exchange([[b"PING"]])
        assert str(node) == f"redis://***@{server.address}/0"
        assert server.started[0] == (b"AUTH", b"secret")


async def test_after_a_doubt_a_single_server_is_connected_to_anew() -> None:
    async with scripted(lambda words: "PONG") as (server,), opened(server.url) as servers:
        for doubted in (False, True, False):
            node = await servers.of(0)
            if doubted:
                await servers.doubt(node)
            await node.exchange([[b"PING"]])
        assert server.accepted == 2


async def test_a_single_server_that_points_elsewhere_is_one_of_a_cluster() -> None:
    async with scripted(lambda words: "PONG") as (server,), opened(server.url) as servers:
        with pytest.raises(StoreError, match=r"write redis\+cluster:// instead") as raised:
            await servers.redirected(await servers.of(0), 5, MovedError("5 10.0.0.1:6379"), for_good=True)
        assert (raised.value.reason, raised.value.applied) == ("redis-mode", Applied.NO)


async def test_a_single_server_gets_the_time_out_of_the_settings() -> None:
    async with scripted(lambda words: SILENCE) as (server,), opened(server.url, timeout_ms=50) as servers:
        with pytest.raises(Exception, match="Timeout reading"):
            async with asyncio.timeout(PATIENCE_S):
                await (await servers.of(0)).exchange([[b"PING"]])


async def test_closed_it_has_no_connection_any_more() -> None:
    async with scripted(lambda words: "PONG") as (server,):
        async with opened(server.url) as servers:
            await (await servers.of(0)).exchange([[b"PING"]])
            assert server.connections == 1
        await until(lambda: server.connections == 0)


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


def hangs_up(_words: Words) -> object:
    return HANG_UP


def stays_silent(_words: Words) -> object:
    return SILENCE


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
ODD = "it answered something else"


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
        listed = {first + "redis-unknown: IDONTKNOW No such master with that name", third + ODD}
        assert set(str(await refusal(found)).partition("a majority has to: ")[2].split("; ")) == listed


async def test_they_are_asked_for_the_primary_of_this_name_by_both_words() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers, "orders")) as found:
        await found.of(0)
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
    async with scripted(names(A), stays_silent, names(A)) as servers, opened(sentinels_url(servers), 30_000) as found:
        assert await address_of(found) == A


@pytest.mark.usefixtures("patient")
async def test_sentinels_get_no_more_than_the_time_out_of_the_settings() -> None:
    async with scripted(stays_silent) as servers, opened(sentinels_url(servers), timeout_ms=50) as found:
        assert (await refusal(found)).reason == "redis-sentinel"


# -- when it looks, and who waits for it


async def test_what_is_known_is_used_until_it_is_doubted() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        node = await found.of(0)
        assert servers[0].count(b"SENTINEL", b"MASTER") == 1
        assert await found.of(LAST_SLOT) is node
        assert servers[0].count(b"SENTINEL", b"MASTER") == 1
        await found.doubt(node)
        assert await found.of(0) is node  # its address is the same
        assert await found.of(0) is node
        assert servers[0].count(b"SENTINEL", b"MASTER") == 2
        assert await found.primaries() == [node]
        assert servers[0].count(b"SENTINEL", b"MASTER") == 3


async def test_all_who_ask_meanwhile_share_one_look_and_any_of_them_may_go() -> None:
    go_on = asyncio.Event()

    async def answer(words: Words) -> Any:
        await go_on.wait()
        return names(A)(words)

    async with scripted(answer) as servers, opened(sentinels_url(servers)) as found:
        first, *others = [asyncio.create_task(found.of(0)) for _ in range(5)]
        await until(lambda: servers[0].asked)
        first.cancel()
        await asyncio.wait([first])
        go_on.set()
        async with asyncio.timeout(PATIENCE_S):
            assert {node.address for node in await asyncio.gather(*others)} == {A}
        assert servers[0].count(b"SENTINEL", b"MASTER") == 1


async def test_a_doubt_that_comes_during_a_look_is_about_what_it_finds() -> None:
    go_on = asyncio.Event()

    async def answer(words: Words) -> Any:
        await go_on.wait()
        return names(A)(words)

    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        node = await found.of(0)
        servers[0].answer = answer
        look = asyncio.create_task(found.primaries())
        await until(lambda: servers[0].count(b"SENTINEL") > 2)
        await found.doubt(node)
        go_on.set()
        await look
        before = servers[0].count(b"SENTINEL", b"MASTER")
        await found.of(0)
        assert servers[0].count(b"SENTINEL", b"MASTER") == before + 1


async def test_a_look_that_failed_is_made_again_by_the_next_call() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        node = await found.of(0)
        await found.doubt(node)
        servers[0].answer = refuses
        for _ in range(2):
            assert (await refusal(found)).reason == "redis-sentinel"  # what was known is not used meanwhile
        servers[0].answer = names(A)
        assert await found.of(0) is node


async def test_a_primary_that_was_replaced_is_not_doubted_any_more() -> None:
    async with scripted(names(A)) as servers, opened(sentinels_url(servers)) as found:
        former = await found.of(0)
        servers[0].answer = names(B, 2)
        (node,) = await found.primaries()
        assert node.address == B
        await found.doubt(former)
        before = servers[0].count(b"SENTINEL", b"MASTER")
        assert await found.of(0) is node
        assert servers[0].count(b"SENTINEL", b"MASTER") == before


@pytest.mark.usefixtures("patient")
async def test_a_sentinel_that_has_not_answered_is_asked_again_by_the_next_look() -> None:
    async with (
        scripted(names(A), names(A), stays_silent) as servers,
        opened(sentinels_url(servers), timeout_ms=30_000) as found,
    ):
        await found.primaries()
        await until(lambda: servers[2].accepted == 1 and servers[2].asked)
        await found.primaries()
        await until(lambda: servers[2].accepted == 2)


# -- what it lets go of


async def test_a_doubted_primary_is_connected_to_anew() -> None:
    async with scripted(lambda words: "PONG") as (primary,), scripted(names(primary.address)) as servers:
        async with opened(sentinels_url(servers)) as found:
            await (await found.of(0)).exchange([[b"PING"]])
            await found.doubt(await found.of(0))
            await (await found.of(0)).exchange([[b"PING"]])
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
        former = await found.of(0)
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
        async with opened(sentinels_url(servers), timeout_ms=30_000) as found:
            waiting = asyncio.create_task(found.of(0))
            await until(lambda: servers[0].asked)
        assert left_running() == []
        with pytest.raises(asyncio.CancelledError):
            await waiting


@pytest.mark.usefixtures("patient")
async def test_closed_nothing_of_it_runs_any_more() -> None:
    async with scripted(names(A), stays_silent, names(A)) as servers:
        async with opened(sentinels_url(servers), timeout_ms=30_000) as found:
            await found.of(0)
            await until(lambda: servers[1].asked)
            assert len(left_running()) == 1
        assert left_running() == []
        await until(lambda: sum(server.connections for server in servers) == 0)


async def test_closing_waits_for_a_question_that_is_still_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that has no connection yet: closing the connections does not end it."""
    go_on = asyncio.Event()
    ask = discovery._ask

    async def late(node: Node, commands: Sequence[Command]) -> list[Any] | Exception:
        if node.name == f"sentinel {servers[1].address}":
            await go_on.wait()
            return TimeoutError()
        return await ask(node, commands)

    monkeypatch.setattr(discovery, "_ask", late)
    async with scripted(names(A), names(A), names(A)) as servers, opened(sentinels_url(servers)) as found:
        await found.of(0)
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
        assert isinstance(found, discovery._Looking)
        await until(lambda: found._ending == set())


async def test_closed_before_it_was_used() -> None:
    for url in (f"redis+sentinel://{HOST}:{free_port()}/main/0", f"redis+cluster://{HOST}:{free_port()}"):
        async with opened(url):
            pass


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
        assert str(await found.of(5461)) == str(B)
        assert [node.address for node in await found.primaries()] == [A, B, C]
        assert servers[0].count(b"CLUSTER", b"SLOTS") == servers[0].count(b"CLUSTER", b"INFO") == 2


async def test_a_slot_that_nobody_has_is_looked_for_again_by_the_next_call() -> None:
    async with scripted(tells(parts((1, LAST_SLOT - 1, A)))) as servers, opened(cluster_url(servers)) as found:
        for slot in (0, LAST_SLOT):
            error = await refusal(found, slot)
            assert (error.reason, str(slot) in str(error)) == ("redis-clusterdown", True)
        assert [await address_of(found, slot) for slot in (1, LAST_SLOT - 1)] == [A, A]
        servers[0].answer = tells(ALL_A)
        await refusal(found, 0)  # by then it was not doubted any more
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
        opened(cluster_url(servers), 30_000) as found,
    ):
        assert await address_of(found) == A


async def test_silent_ones_get_no_more_than_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_LOOK_S", 0.02)
    async with scripted(stays_silent, stays_silent) as servers, opened(cluster_url(servers), 30_000) as found:
        began_s = time.monotonic()
        assert str(await refusal(found)).count("no answer within 0.02 s") == 2
        assert time.monotonic() - began_s < 0.9


# -- a Cluster that changes


async def test_a_cluster_is_looked_at_again_after_a_doubt_only() -> None:
    async with scripted(tells(ALL_A)) as servers, opened(cluster_url(servers)) as found:
        node = await found.of(0)
        assert await found.of(7) is node
        assert servers[0].count(b"CLUSTER", b"SLOTS") == 1
        await found.doubt(node)
        servers[0].answer = tells(ALL_B)
        assert await address_of(found) == B
        assert await address_of(found) == B
        assert servers[0].count(b"CLUSTER", b"SLOTS") == 2


async def test_a_doubted_server_of_a_cluster_is_connected_to_anew() -> None:
    async with scripted(tells([[0, LAST_SLOT, [b"", 0, b"id"]]])) as servers, opened(cluster_url(servers)) as found:
        servers[0].answer = tells(parts((0, LAST_SLOT, servers[0].address)))
        node = await found.of(0)
        assert servers[0].accepted == 1
        await found.doubt(node)
        assert await found.of(0) is node
        assert servers[0].accepted == 2


@pytest.mark.parametrize(("host", "expected"), [("10.0.0.2", B), ("", Address(HOST, 6379))])
async def test_an_ask_leads_one_call_elsewhere_and_a_moved_all_that_follow(host: str, expected: Address) -> None:
    async with scripted(tells(ALL_A)) as servers, opened(cluster_url(servers)) as found:
        servers[0].answer = tells(parts((0, LAST_SLOT, servers[0].address)))
        asked = await found.of(5)
        other = await found.redirected(asked, 5, AskError(f"5 {host}:6379"), for_good=False)
        assert (other.address, str(other)) == (expected, str(expected))
        assert await found.of(5) is asked
        assert servers[0].count(b"CLUSTER", b"SLOTS") == 1
        assert await found.redirected(asked, 5, MovedError(f"5 {host}:6379"), for_good=True) is other
        servers[0].answer = tells(parts((0, LAST_SLOT, expected)))
        assert await found.of(5) is other
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
