"""redis_client.py before servers that say what the test wants: what is sent where, how often, and what becomes of it.
What real servers refuse stands in test_store_errors.py."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nsqdigest.base.errors import Applied, StoreError, Unreachable
from nsqdigest.base.metrics import Histogram
from nsqdigest.store import scripts
from nsqdigest.store.servers.client import RedisClient
from nsqdigest.store.servers.facts import ServerFacts
from nsqdigest.store.servers.resp import script_call
from support.ports import HOST
from support.scripted_redis import HANG_UP, SILENCE, Answer, ScriptedRedis, Words
from support.stores import redis_settings
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

LAST_SLOT = 16383
SCRIPT = scripts.load("hello")
CALL = (b"EVALSHA", SCRIPT.sha, b"1", b"{test:0}:k", b"argument")
LOAD = (b"SCRIPT", b"LOAD", SCRIPT.text)
NOSCRIPT = "-NOSCRIPT No matching script."


@asynccontextmanager
async def opened(url: str, connections: int = 4, **settings: Any) -> AsyncIterator[RedisClient]:
    client = RedisClient(redis_settings(url, **settings), connections)
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            yield client
    finally:
        await client.close(0)


async def run(client: RedisClient, **options: Any) -> Any:
    call = script_call(SCRIPT.sha, [b"{test:0}:k"], [b"argument"])
    return await client.run(b"{test:0}", SCRIPT, call, **options)


async def refusal(client: RedisClient, **options: Any) -> StoreError:
    with pytest.raises(StoreError) as raised:
        await run(client, **options)
    return raised.value


def in_turn(*answers: Any) -> Answer:
    """To each EVALSHA the next of these, the last one for ever; everything else is OK, a WAIT confirms 2."""
    left = list(answers)

    def answer(words: Words) -> Any:
        if words[0] == b"EVALSHA":
            return left.pop(0) if len(left) > 1 else left[0]
        return 2 if words[0] == b"WAIT" else "OK"

    return answer


def of_a_cluster(server: ScriptedRedis, answer: Answer, *, last: int = LAST_SLOT, others: Sequence[Any] = ()) -> None:
    """Lets it have the slots up to `last`."""

    def told(words: Words) -> Any:
        if words[0] != b"CLUSTER":
            return answer(words)
        return b"cluster_state:ok" if words[1] == b"INFO" else [[0, last, [b"", server.address.port, b"id"]], *others]

    server.answer = told


def said_to(server: ScriptedRedis) -> list[Words]:
    return [words for words in server.asked if words[0] != b"CLUSTER"]


# -- one call


async def test_a_call_is_one_command_on_one_connection_and_its_time_is_told() -> None:
    times = Histogram([PATIENCE_S])
    async with ScriptedRedis(in_turn([b"answer", 7])) as server, opened(server.url) as client:
        assert await run(client) == [b"answer", 7]
        client.times = {"hello": times}
        assert await run(client, durable=True) == [b"answer", 7]  # durability is "reply": nothing to wait for
        server.answer = in_turn("-OOM command not allowed")
        await refusal(client)
        assert (server.asked, server.accepted) == ([CALL] * 3, 1)
    assert times.counts == [2, 0]
    assert times.total > 0


async def test_an_answer_that_nobody_asked_for_ends_the_connection_and_the_call() -> None:
    """Which of the two is the call's answer, nobody knows."""
    async with ScriptedRedis(in_turn("OK\r\n+MORE", b"answer")) as server, opened(server.url) as client:
        error = await refusal(client)
        assert (error.reason, error.applied) == ("redis-connection", Applied.AMBIGUOUS)
        assert await run(client) == b"answer"
        assert server.accepted == 2


async def test_where_nothing_is_asked_nothing_is_waited_for() -> None:
    async with ScriptedRedis(in_turn(b"answer")) as server, opened(server.url) as client:
        assert await client.send(b"{test:0}", []) == []
        assert await run(client) == b"answer"


async def test_a_script_that_is_not_there_is_loaded_before_the_call_that_goes_again() -> None:
    async with ScriptedRedis(in_turn(NOSCRIPT, [b"answer"])) as server, opened(server.url) as client:
        assert await run(client) == [b"answer"]
        assert server.asked == [CALL, LOAD, CALL]


async def test_a_script_that_is_never_there_is_given_up() -> None:
    async with ScriptedRedis(in_turn(NOSCRIPT)) as server, opened(server.url) as client:
        error = await refusal(client)
        assert (error.reason, error.applied) == ("redis-noscript", Applied.NO)
        assert server.asked == [CALL, LOAD, CALL, LOAD, CALL, LOAD, CALL]


async def test_a_script_that_cannot_be_loaded_fails_with_what_the_load_said() -> None:
    def answer(words: Words) -> Any:
        return NOSCRIPT if words[0] == b"EVALSHA" else "-NOPERM no right to script|load"

    async with ScriptedRedis(answer) as server, opened(server.url) as client:
        assert (await refusal(client)).reason == "redis-auth"
        assert server.count(b"EVALSHA") == 2


# -- what must last


@pytest.mark.parametrize("confirmed", [2, 3])
async def test_a_durable_call_waits_for_its_replicas_in_the_same_round_trip(confirmed: int) -> None:
    def answer(words: Words) -> Any:
        return confirmed if words[0] == b"WAIT" else [b"answer"]

    async with (
        ScriptedRedis(answer) as server,
        opened(server.url, durability="replica", replicas=2, timeout_ms=3000) as client,
    ):
        assert await run(client, durable=True) == [b"answer"]
        assert await run(client) == [b"answer"]
    assert server.asked == [CALL, (b"WAIT", b"2", b"1500"), CALL]


async def test_fewer_replicas_than_asked_for_are_an_ambiguous_failure() -> None:
    def answer(words: Words) -> Any:
        return 1 if words[0] == b"WAIT" else [b"answer"]

    async with (
        ScriptedRedis(answer) as server,
        opened(server.url, durability="replica", replicas=2) as client,
    ):
        error = await refusal(client, durable=True)
    assert (error.reason, error.applied) == ("redis-replicas", Applied.AMBIGUOUS)
    assert "1 of 2 replicas confirmed within 2500 ms" in str(error)


async def test_one_replica_may_be_all_that_is_asked_for() -> None:
    async with (
        ScriptedRedis(in_turn([b"answer"])) as server,
        opened(server.url, durability="replica", replicas=1) as client,
    ):
        assert await run(client, durable=True) == [b"answer"]
    assert server.count(b"WAIT", b"1") == 1


async def test_replicas_are_never_waited_for_without_a_limit() -> None:
    async with opened("redis://127.0.0.1:1/0", timeout_ms=1, durability="replica") as client:
        assert client._wait_ms == 1  # WAIT takes 0 for ever


async def test_with_its_script_what_waits_goes_again_too() -> None:
    async with (
        ScriptedRedis(in_turn(NOSCRIPT, [b"answer"])) as server,
        opened(server.url, durability="replica", replicas=1) as client,
    ):
        assert await run(client, durable=True) == [b"answer"]
    wait = (b"WAIT", b"1", b"2500")
    assert server.asked == [CALL, wait, LOAD, CALL, wait]


# -- what becomes of a failure


@pytest.mark.parametrize(
    ("answer", "reason", "needs_check"),
    [
        (HANG_UP, "redis-connection", True),
        ("-READONLY You can't write against a read only replica.", "redis-readonly", True),
        ("-LOADING Redis is loading the dataset in memory", "redis-loading", True),
        ("-MASTERDOWN Link with MASTER is down", "redis-masterdown", True),
        ("-CLUSTERDOWN The cluster is down", "redis-clusterdown", True),
        ("-OOM command not allowed when used memory > 'maxmemory'.", "redis-full", False),
        ("-NOREPLICAS Not enough good replicas to write.", "redis-noreplicas", False),
        ("-NOPERM no right to evalsha", "redis-auth", False),
    ],
)
async def test_a_failure_is_a_store_error_and_may_call_for_a_check(answer: Any, reason: str, needs_check: bool) -> None:
    async with ScriptedRedis(in_turn(answer, [b"answer"])) as server, opened(server.url, 1) as client:
        error = await refusal(client)
        assert (error.reason, client.needs_check.is_set()) == (reason, needs_check)
        assert error.__cause__ is not None
        assert server.count(b"EVALSHA") == 1
        assert await run(client) == [b"answer"]
        assert server.accepted == (2 if needs_check else 1)


async def test_an_answer_that_does_not_come_is_a_time_out() -> None:
    async with ScriptedRedis(in_turn([b"answer"], SILENCE)) as server, opened(server.url, timeout_ms=1000) as client:
        assert await run(client) == [b"answer"]  # connecting is over
        error = await refusal(client)
        assert (error.reason, error.applied) == ("redis-timeout", Applied.AMBIGUOUS)
        assert client.needs_check.is_set()


# -- to another server


@pytest.mark.parametrize("host", [HOST, ""])  # nothing: the host of the one that says so
@pytest.mark.parametrize(("word", "before"), [("MOVED", []), ("ASK", [(b"ASKING",)])])
async def test_a_call_goes_where_a_server_of_the_cluster_points(word: str, before: list[Words], host: str) -> None:
    async with ScriptedRedis() as first, ScriptedRedis(in_turn([b"answer"])) as second:
        of_a_cluster(first, in_turn(f"-{word} 5 {host}:{second.address.port}"))
        async with opened(f"redis+cluster://{first.address}") as client:
            assert await run(client) == [b"answer"]
            assert (said_to(first), said_to(second)) == ([CALL], [*before, CALL])
            assert not client.needs_check.is_set()
            of_a_cluster(first, in_turn([b"own answer"]))
            assert await run(client) == [b"own answer"]
            assert first.count(b"CLUSTER", b"SLOTS") == (2 if word == "MOVED" else 1)


async def test_where_it_asks_the_script_is_loaded_before_the_asking() -> None:
    async with ScriptedRedis() as first, ScriptedRedis(in_turn(NOSCRIPT, [b"answer"])) as second:
        of_a_cluster(first, in_turn(f"-ASK 5 {second.address}"))
        async with opened(f"redis+cluster://{first.address}") as client:
            assert await run(client) == [b"answer"]
    assert said_to(second) == [(b"ASKING",), CALL, LOAD, (b"ASKING",), CALL]


async def test_servers_that_point_at_each_other_are_given_up() -> None:
    async with ScriptedRedis() as first, ScriptedRedis() as second:
        of_a_cluster(first, in_turn(f"-MOVED 5 {second.address}"))
        second.answer = in_turn(f"-MOVED 5 {first.address}")
        async with opened(f"redis+cluster://{first.address}") as client:
            error = await refusal(client)
    assert (error.reason, error.applied) == ("redis-moved", Applied.NO)
    assert (said_to(first), said_to(second)) == ([CALL] * 2, [CALL] * 2)


async def test_a_tag_leads_to_the_server_that_has_its_slot() -> None:
    async with ScriptedRedis() as first, ScriptedRedis(lambda words: b"second") as second:
        others = [[8192, LAST_SLOT, [HOST.encode(), second.address.port, b"id"]]]
        of_a_cluster(first, lambda words: b"first", last=8191, others=others)
        async with opened(f"redis+cluster://{first.address}") as client:
            for _ in range(2):
                # Slots 5061 and 12182.
                found = [await client.send(tag, [[b"GET", tag]]) for tag in (b"bar", b"foo")]
                assert found == [[b"first"], [b"second"]]


# -- reads


def echo(words: Words) -> Any:
    """What was asked for; `elsewhere` is on its way to the other server, and `odd` of another type."""
    return "-WRONGTYPE Operation against a key" if words[1] == b"odd" else words[1]


def pointing_to(other: ScriptedRedis) -> Answer:
    return lambda words: f"-ASK 5 {other.address}" if words[1].startswith(b"elsewhere") else echo(words)


def gets(*keys: bytes) -> list[list[bytes]]:
    return [[b"GET", key] for key in keys]


@pytest.mark.parametrize("method", ["send", "send_together"])
async def test_only_what_is_on_its_way_is_read_elsewhere(method: str) -> None:
    keys = [b"a", b"elsewhere-1", b"b", b"elsewhere-2", b"c"]
    async with ScriptedRedis() as first, ScriptedRedis(lambda words: b"from the other") as second:
        of_a_cluster(first, pointing_to(second))
        async with opened(f"redis+cluster://{first.address}") as client:
            found = await getattr(client, method)(b"tag", gets(*keys))
            assert found == [b"a", b"from the other", b"b", b"from the other", b"c"]
            assert not client.needs_check.is_set()
        assert [words[1] for words in said_to(second) if words[0] == b"GET"] == [b"elsewhere-1", b"elsewhere-2"]


@pytest.mark.parametrize("method", ["send", "send_together"])
async def test_what_is_refused_fails_the_read(method: str) -> None:
    async with ScriptedRedis(echo) as server, opened(server.url) as client:
        assert await getattr(client, method)(b"tag", gets(b"a", b"b")) == [b"a", b"b"]
        assert server.count(b"GET") == 2
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await getattr(client, method)(b"tag", gets(b"a", b"odd", b"b"))


async def test_what_is_read_in_one_moment_goes_together_and_fails_alone() -> None:
    async with ScriptedRedis(echo) as server, opened(server.url, 16) as client:

        async def a_turn_later() -> list[Any]:
            await asyncio.sleep(0)
            return await client.send_together(b"tag", gets(b"late"))

        asked = [gets(b"a", b"b"), gets(b"odd"), gets(b"c"), gets()]
        found = await asyncio.gather(
            *(client.send_together(b"tag", commands) for commands in asked), a_turn_later(), return_exceptions=True
        )
        assert isinstance(found.pop(1), StoreError)
        assert found == [[b"a", b"b"], [b"c"], [], [b"late"]]
        assert server.accepted == 1
        assert await client.send_together(b"tag", gets(b"d")) == [b"d"]


# -- whoever awaited it may go


class Slow:
    """Answers EVALSHA when it may, everything else at once."""

    def __init__(self, answer: Any = b"answer") -> None:
        self.go_on = asyncio.Event()
        self._answer = answer

    async def __call__(self, words: Words) -> Any:
        if words[0] == b"EVALSHA":
            await self.go_on.wait()
        return [self._answer] if isinstance(self._answer, bytes) else self._answer


on_a_new_or_an_open_connection = pytest.mark.parametrize("is_open", [False, True], ids=["new", "open"])


async def begun(client: RedisClient, server: ScriptedRedis, *, is_open: bool) -> asyncio.Task[Any]:
    """A call that was sent."""
    if is_open:
        await asyncio.gather(client.send(b"tag", gets(b"before")), return_exceptions=True)
    call = asyncio.create_task(run(client))
    await until(lambda: server.count(b"EVALSHA"))
    return call


@on_a_new_or_an_open_connection
async def test_a_call_whose_caller_went_leaves_a_clean_connection(is_open: bool) -> None:
    slow = Slow()
    async with ScriptedRedis(slow) as server, opened(server.url, 1) as client:
        call = await begun(client, server, is_open=is_open)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        slow.go_on.set()
        assert await run(client) == [b"answer"]
        assert server.accepted == 1
        await until(lambda: not client._servers.is_busy)


@on_a_new_or_an_open_connection
async def test_a_failure_that_nobody_waits_for_is_no_complaint(is_open: bool) -> None:
    slow = Slow(HANG_UP if not is_open else b"answer")
    complaints: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with ScriptedRedis(slow) as server, opened(server.url, 1) as client:
        call = await begun(client, server, is_open=is_open)
        call.cancel()
        await asyncio.wait([call])
        if is_open:
            server.hang_up()
        slow.go_on.set()
        await until(lambda: not client._servers.is_busy)
        del call
        gc.collect()
        await asyncio.sleep(0)
    assert complaints == []


@pytest.mark.parametrize("is_of_sentinels", [False, True])
async def test_a_failure_of_what_others_share_is_no_complaint_when_all_are_gone(is_of_sentinels: bool) -> None:
    """One round trip, or one look for the primary."""
    complaints: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with ScriptedRedis(lambda words: SILENCE) as server:
        url = f"redis+sentinel://{server.address}/name/0" if is_of_sentinels else server.url
        async with opened(url) as client:
            before = len(asyncio.all_tasks())
            calls = [asyncio.create_task(client.send_together(b"tag", gets(b"key"))) for _ in range(2)]
            await until(lambda: server.asked)
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            server.hang_up()
            await until(lambda: not client._servers.is_busy)
            await until(lambda: len(asyncio.all_tasks()) <= before)
            del call, calls
            gc.collect()
            await asyncio.sleep(0)
    assert complaints == []


@on_a_new_or_an_open_connection
@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_closing_waits_for_what_was_sent_and_closes_the_connections(is_open: bool, is_waited_for: bool) -> None:
    slow = Slow()
    async with ScriptedRedis(slow) as server, opened(server.url) as client:
        call = await begun(client, server, is_open=is_open)
        if not is_waited_for:
            call.cancel()
        closing = asyncio.create_task(client.close(PATIENCE_S))
        for _ in range(5):
            await asyncio.sleep(0)
        assert server.connections == 1
        slow.go_on.set()
        await asyncio.wait([call])
        assert call.cancelled() if not is_waited_for else call.result() == [b"answer"]
        await closing
        await until(lambda: server.connections == 0)


async def test_closing_waits_no_longer_than_it_may() -> None:
    async with ScriptedRedis(in_turn(SILENCE)) as server, opened(server.url) as client:
        call = asyncio.create_task(run(client))
        await until(lambda: server.asked)
        await client.close(0.01)
        assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], StoreError)


# -- what servers say of themselves


SAID = {
    "redis_version": "7.0.15", "redis_mode": "standalone", "role": "master", "run_id": "abc", "master_replid": "def",
    "connected_slaves": "2", "maxmemory_policy": "noeviction", "maxmemory": "1000", "aof_enabled": "1",
}  # fmt: skip
SECTION_OF = {"role": b"replication", "connected_slaves": b"replication", "master_replid": b"replication",
              "maxmemory": b"memory", "maxmemory_policy": b"memory", "aof_enabled": b"persistence"}  # fmt: skip
ALWAYS = {b"appendfsync": b"always", b"save": b""}


def describes(config: Mapping[bytes, Any] | None = None, **said: str) -> Answer:
    """A server with these settings; one that is an error or a list is the answer itself."""

    def answer(words: Words) -> Any:
        if words[0] == b"TIME":
            return [b"1700000000", b"999000"]
        if words[0] == b"INFO":
            lines = [f"{k}:{v}" for k, v in (SAID | said).items() if SECTION_OF.get(k, b"server") == words[1]]
            return ("# Section\r\n" + "\r\n".join(lines) + "\r\n").encode()
        value = (ALWAYS if config is None else config)[words[2]]
        return value if isinstance(value, list | str) else [words[2], value]

    return answer


async def test_facts_are_what_the_server_says_and_its_clock_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    async with ScriptedRedis(describes()) as server, opened(server.url, durability="fsync") as client:
        monkeypatch.setattr(client.clock, "observe", heard.append)
        (facts,) = await client.facts()
    assert facts == ServerFacts.of(f"redis://{server.address}/0", SAID, {"appendfsync": "always", "save": ""})
    assert heard == [1_700_000_000_999]


REFUSED = "-NOPERM no right to config|get"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({b"appendfsync": b"no", b"save": b"900 1"}, True),
        ({b"appendfsync": b"no", b"save": b""}, False),
        ({b"appendfsync": REFUSED, b"save": b"900 1"}, None),
        ({b"appendfsync": b"no", b"save": REFUSED}, None),
        ({b"appendfsync": [], b"save": b"900 1"}, None),
        ({b"appendfsync": b"no", b"save": []}, None),
        ({b"appendfsync": REFUSED, b"save": REFUSED}, None),
    ],
)
async def test_settings_that_it_may_not_ask_for_are_unknown(config: dict[bytes, Any], expected: bool | None) -> None:
    async with ScriptedRedis(describes(config, aof_enabled="0")) as server, opened(server.url) as client:
        (facts,) = await client.facts()
    assert facts.persistent is expected


@pytest.mark.parametrize(
    ("said", "durability", "expected"),
    [
        ({"redis_mode": "cluster"}, "reply", "is a server of a Cluster"),
        ({"aof_enabled": "0"}, "fsync", "set appendonly yes"),
        ({"redis_mode": "sentinel"}, "reply", "is a Sentinel; write redis[+]sentinel://"),
        ({"redis_mode": "", "server_mode": "sentinel"}, "reply", "is a Sentinel"),
    ],
)
async def test_a_server_that_must_not_be_used_is_refused(said: dict[str, str], durability: str, expected: str) -> None:
    async with ScriptedRedis(describes(None, **said)) as server, opened(server.url, durability=durability) as client:
        with pytest.raises(Unreachable, match=expected):
            await client.facts()


async def test_a_replica_is_waited_for_like_a_server_that_is_away() -> None:
    async with ScriptedRedis(describes(None, role="slave")) as server, opened(server.url) as client:
        with pytest.raises(StoreError, match="names a replica") as raised:
            await client.facts()
    assert (raised.value.reason, raised.value.applied) == ("redis-readonly", Applied.NO)


async def test_facts_that_it_may_not_have_are_a_store_error() -> None:
    def answer(words: Words) -> Any:
        return "-NOPERM no right to info" if words == (b"INFO", b"server") else describes()(words)

    async with ScriptedRedis(answer) as server, opened(server.url) as client:
        with pytest.raises(StoreError) as raised:
            await client.facts()
    assert raised.value.reason == "redis-auth"


async def test_a_primary_that_is_a_replica_by_now_is_stale() -> None:
    async with ScriptedRedis(describes(role="slave")) as server:
        of_a_cluster(server, describes(role="slave", redis_mode="cluster"))
        async with opened(f"redis+cluster://{server.address}") as client:
            with pytest.raises(StoreError, match="is a replica by now") as raised:
                await client.facts()
            assert (raised.value.reason, raised.value.applied) == ("redis-readonly", Applied.NO)
            looks = server.count(b"CLUSTER", b"SLOTS")
            of_a_cluster(server, in_turn([b"answer"]))
            await run(client)
            assert server.count(b"CLUSTER", b"SLOTS") == looks + 1


async def test_a_primary_of_a_cluster_tells_its_facts() -> None:
    async with ScriptedRedis() as server:
        of_a_cluster(server, describes(redis_mode="cluster"))
        async with opened(f"redis+cluster://{server.address}") as client:
            assert [facts.name for facts in await client.facts()] == [str(server.address)]


def test_a_warning_is_said_once_with_those_it_is_about() -> None:
    facts = [
        ServerFacts.of(name, SAID | changes, None)
        for name, changes in (("a:1", {"maxmemory": "0"}), ("b:2", {}), ("c:3", {"maxmemory": "0"}))
    ]
    single = RedisClient(redis_settings("redis://h/0"), 1).warnings(facts)
    cluster = RedisClient(redis_settings("redis+cluster://h"), 1).warnings(facts)
    assert [warning.startswith("maxmemory is not set") for warning in single] == [True]
    assert [warning.startswith("a:1, c:3: maxmemory is not set") for warning in cluster] == [True]


@pytest.mark.parametrize(
    ("durability", "expected"), [("reply", []), ("fsync", []), ("replica", ["redis.replicas is 3, and 2 are"])]
)
def test_replicas_are_missed_only_where_they_are_waited_for(durability: str, expected: list[str]) -> None:
    client = RedisClient(redis_settings("redis://h/0", durability=durability, replicas=3), 1)
    found = client.warnings([ServerFacts.of("a:1", SAID, None)])
    assert [warning[: len(start)] for warning, start in zip(found, expected, strict=True)] == expected
