"""What each fault of Redis, of its settings or of the network becomes: a reason, whether the write may have happened.
Each is provoked on a real server, and nothing is ever sent twice."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from nsqdigest.base.errors import Applied, StoreError, StoreMismatch
from nsqdigest.store.answers import Claim, Ended
from nsqdigest.store.head import Head
from nsqdigest.store.record import Record
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.scripts import Script
from nsqdigest.store.store import Store
from support.ports import HOST, free_port
from support.proxy import Mode, Proxy
from support.servers import RedisServer
from support.store import Scripts
from support.stores import OpenStore, T, add, close_digest, fail_digest, limited_url, open_digest, rec
from support.waiting import until, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.every_redis]

LEASE_MS = 60_000


async def claim_one(store: Store) -> Claim:
    (claim,) = (await store.digests.claim(0, [("r", 0)], [500], LEASE_MS)).claims
    return claim


async def open_one(store: Store, claim: Claim) -> Head:
    opened = await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    assert isinstance(opened, Head)
    return opened


def at_once(store: Store) -> Schedule:
    return Schedule(store.clock.now_ms(), store.clock.now_ms())


# -- start


async def test_all_daemons_of_a_namespace_know_its_epoch(
    open_store: OpenStore, redis_url: str, redis_client: redis.Redis
) -> None:
    first, second, third = (open_store(redis_url) for _ in range(3))
    facts = await first.start()
    await second.start()
    assert (facts.servers[0].role, first.namespace.epochs == second.namespace.epochs) == ("master", True)
    redis_client.flushall()
    await third.start()
    assert third.namespace.epochs != first.namespace.epochs


async def test_what_could_lose_events_is_warned_of(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer]
) -> None:
    careless = await open_store(redis_factory("--maxmemory-policy", "allkeys-lru").url).start()
    assert [warning.split()[0] for warning in careless.warnings] == ["maxmemory-policy", "neither", "maxmemory"]
    careful = await open_store(redis_factory("--appendonly", "yes", "--maxmemory", "1gb").url).start()
    assert careful.warnings == []
    saving = await open_store(redis_factory("--save", "900", "1", "--maxmemory", "1gb").url).start()
    assert saving.warnings == []


async def test_where_it_may_not_ask_for_settings_it_alarms_nobody(
    open_store: OpenStore, redis_server: RedisServer
) -> None:
    redis_server.cli("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all", "-config")
    facts = await open_store(f"redis://daemon:secret@{HOST}:{redis_server.port}/0").start()
    assert facts.warnings == [text for text in facts.warnings if text.startswith("maxmemory is not set")]


async def test_a_start_without_a_right_is_refused_with_the_remedy_and_writes_nothing(
    open_store: OpenStore, redis_server: RedisServer
) -> None:
    redis_server.cli("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all", "-hsetnx", "-zcount")
    store = open_store(f"redis://daemon:secret@{HOST}:{redis_server.port}/0")
    if "6.2" in redis_server.executable.name:
        await store.start()  # it cannot be asked
        return
    with pytest.raises(StoreError) as refused:
        await store.start()
    assert refused.value.reason == "redis-auth"
    words = "user daemon may not send hsetnx, zcount; ACL SETUSER daemon +hsetnx +zcount"
    assert str(refused.value) == f"redis-auth: {words}"
    assert redis_server.cli("DBSIZE") == 0
    redis_server.cli("ACL", "SETUSER", "daemon", "+hsetnx", "+zcount")
    await store.start()


async def test_another_number_of_partitions_is_refused_with_the_remedy(open_store: OpenStore, redis_url: str) -> None:
    await open_store(redis_url, partitions=4).start()
    with pytest.raises(StoreMismatch, match=r"redis.partitions = 4, the file says 8: write 4, or choose another"):
        await open_store(redis_url, partitions=8).start()
    await open_store(redis_url, partitions=4).start()


async def test_a_layout_of_another_version_is_refused_with_the_remedy(
    open_store: OpenStore, redis_url: str, plain: Scripts
) -> None:
    plain.hello(schema=1)
    with pytest.raises(StoreMismatch, match=r"layout 1, this version writes 4: run the version that wrote it"):
        await open_store(redis_url).start()


async def test_a_replica_is_refused_without_showing_the_password(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer]
) -> None:
    replica = redis_factory("--requirepass", "secret")
    replica.cli("REPLICAOF", HOST, free_port())
    with pytest.raises(StoreError, match="names a replica") as refused:
        await open_store(replica.url).start()
    assert (refused.value.reason, refused.value.applied) == ("redis-readonly", Applied.NO)
    assert "secret" not in str(refused.value)


# -- the server's faults


async def fault(store: Store) -> StoreError:
    """What an add that must fail says."""
    with pytest.raises(StoreError) as raised:
        await store.timelines.add("r", 0, [rec(b"faulty")], Schedule(1, 1))
    return raised.value


async def assert_refused(store: Store, reason: str) -> None:
    error = await fault(store)
    assert (error.reason, error.applied) == (reason, Applied.NO)


@pytest.fixture
def own_store(open_store: OpenStore, redis_server: RedisServer) -> Store:
    """On a server of the test's own."""
    return open_store(redis_server.url)


def calls(server: RedisServer, command: str = "evalsha") -> int:
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    found = stats.get(f"cmdstat_{command}") or stats.get(f"cmdstat_{command.partition('|')[0]}") or {"calls": 0}
    return int(found["calls"])  # Redis 6.2 counts no subcommands


async def test_scripts_that_redis_forgot_are_loaded_once_more(own_store: Store, redis_server: RedisServer) -> None:
    await own_store.start()
    await add(own_store)
    redis_server.cli("SCRIPT", "FLUSH")
    loads = calls(redis_server, "script|load")
    assert (await add(own_store, rec(b"l"))).added == 1
    await add(own_store, rec(b"m"))
    assert calls(redis_server, "script|load") - loads == 1
    assert (await own_store.operations.ledger("r"))["added"] == 3


async def test_after_a_restart_it_goes_on(own_store: Store, redis_server: RedisServer) -> None:
    await own_store.start()
    await add(own_store)
    redis_server.restart()
    with suppress(StoreError):  # a connection of before may be noticed only now
        await own_store.operations.ledger("r")
    assert (await add(own_store)).added == 1


async def test_connection_refused(own_store: Store, redis_server: RedisServer) -> None:
    redis_server.kill()
    assert (await fault(own_store)).reason == "redis-connection"


async def test_a_full_redis(own_store: Store, redis_server: RedisServer) -> None:
    await own_store.start()
    await add(own_store)
    redis_server.cli("CONFIG", "SET", "maxmemory", 1)
    await assert_refused(own_store, "redis-full")
    opened = await open_one(own_store, claim := await claim_one(own_store))
    assert await close_digest(own_store, claim, opened.id, at_once(own_store)) is Ended.DONE


async def test_a_replica(own_store: Store, redis_server: RedisServer) -> None:
    redis_server.cli("REPLICAOF", HOST, free_port())
    await assert_refused(own_store, "redis-readonly")


async def test_a_replica_without_its_primary_that_does_not_serve_old_data(
    own_store: Store, redis_server: RedisServer
) -> None:
    redis_server.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
    redis_server.cli("REPLICAOF", HOST, free_port())
    await assert_refused(own_store, "redis-masterdown")


async def test_a_primary_without_the_replicas_it_wants(own_store: Store, redis_server: RedisServer) -> None:
    redis_server.cli("CONFIG", "SET", "min-replicas-to-write", 1)
    await assert_refused(own_store, "redis-noreplicas")


async def test_a_redis_that_can_not_save(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    server = redis_factory("--dir", str(data), "--save", "900", "1")
    shutil.rmtree(data)
    server.cli("BGSAVE")
    wait_until(lambda: server.cli("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
    await assert_refused(open_store(server.url), "redis-misconf")


async def test_a_redis_that_is_busy_with_a_script(own_store: Store, redis_server: RedisServer) -> None:
    redis_server.cli("CONFIG", "SET", "lua-time-limit", 1)

    def stuck() -> None:
        with suppress(redis.ResponseError):  # it is killed
            redis_server.cli("EVAL", "while true do end", 0)

    def is_busy() -> bool:
        try:
            redis_server.cli("PING")
        except redis.ResponseError as error:
            return "BUSY" in str(error)
        return False

    script = asyncio.create_task(asyncio.to_thread(stuck))
    try:
        await until(is_busy)
        await assert_refused(own_store, "redis-busy")
    finally:
        redis_server.cli("SCRIPT", "KILL")
        await script
    assert (await own_store.timelines.add("r", 0, [rec()], Schedule(1, 1))).added == 1


async def test_a_script_that_an_operator_kills(own_store: Store, redis_server: RedisServer) -> None:
    """Redis kills none that has written, so nothing was."""
    redis_server.cli("CONFIG", "SET", "lua-time-limit", 1)
    endless = Script("endless", b"while true do end", b"", ())
    endless = replace(endless, sha=redis_server.cli("SCRIPT", "LOAD", endless.text))
    call = asyncio.create_task(own_store.namespace._client._call(0, [[b"EVALSHA", endless.sha, 0]], endless))

    def is_killed() -> bool:
        with suppress(redis.ResponseError):  # nothing runs yet
            redis_server.cli("SCRIPT", "KILL")
        return call.done()

    await until(is_killed)
    with pytest.raises(StoreError) as raised:
        await call
    assert (raised.value.reason, raised.value.applied) == ("redis-killed", Applied.NO)


async def test_a_redis_that_takes_no_more_clients(own_store: Store, redis_server: RedisServer) -> None:
    with redis_server.client() as other:
        other.ping()
        redis_server.cli("CONFIG", "SET", "maxclients", 1)
        await assert_refused(own_store, "redis-connections")
        other.config_set("maxclients", 100)
    assert (await own_store.timelines.add("r", 0, [rec()], Schedule(1, 1))).added == 1


async def test_a_right_that_was_taken_away_and_given_back(open_store: OpenStore, redis_server: RedisServer) -> None:
    redis_server.cli("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all")
    store = open_store(f"redis://daemon:secret@{HOST}:{redis_server.port}/0")
    await store.start()
    redis_server.cli("ACL", "SETUSER", "daemon", "-evalsha")
    await assert_refused(store, "redis-auth")
    redis_server.cli("ACL", "SETUSER", "daemon", "+evalsha")
    assert (await add(store)).added == 1


async def test_a_replica_that_became_the_primary_serves_again(own_store: Store, redis_server: RedisServer) -> None:
    await own_store.start()
    redis_server.cli("REPLICAOF", HOST, free_port())
    await assert_refused(own_store, "redis-readonly")
    redis_server.cli("REPLICAOF", "NO", "ONE")
    assert (await add(own_store)).added == 1


async def test_a_redis_that_loads_its_data(open_store: OpenStore, redis_factory: Callable[..., RedisServer]) -> None:
    server = redis_factory()
    if int(server.cli("INFO", "server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("this Redis cannot be made to load slowly")
    server = redis_factory("--enable-debug-command", "local", "--loading-process-events-interval-bytes", "1024")
    server.cli("DEBUG", "POPULATE", 200, "filler", 1000)
    server.cli("CONFIG", "SET", "key-load-delay", 2000)  # microseconds a key

    def is_loading() -> bool:
        try:
            server.cli("GET", "filler:1")
        except redis.BusyLoadingError:
            return True
        return False

    reload = asyncio.create_task(asyncio.to_thread(server.cli, "DEBUG", "RELOAD"))
    await until(is_loading)
    await assert_refused(open_store(server.url), "redis-loading")
    await reload


async def test_no_password(open_store: OpenStore, redis_factory: Callable[..., RedisServer]) -> None:
    server = redis_factory("--requirepass", "secret")
    await assert_refused(open_store(f"redis://{HOST}:{server.port}/0"), "redis-auth")


async def test_a_wrong_password(open_store: OpenStore, redis_factory: Callable[..., RedisServer]) -> None:
    server = redis_factory("--requirepass", "secret")
    store = open_store(f"redis://:wrong@{HOST}:{server.port}/0")
    await assert_refused(store, "redis-auth")


@pytest.mark.parametrize("missing", ["-evalsha", "resetkeys"])
async def test_a_user_without_the_rights(open_store: OpenStore, redis_server: RedisServer, missing: str) -> None:
    redis_server.cli("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all", missing)
    store = open_store(f"redis://daemon:secret@{HOST}:{redis_server.port}/0")
    await assert_refused(store, "redis-auth")


async def test_the_rights_that_the_docs_give_are_enough_for_a_digest(
    open_store: OpenStore, redis_server: RedisServer
) -> None:
    store = open_store(limited_url(redis_server))
    await store.start()
    await add(store, rec(b"a"), rec(b"b", 2), rec(b"b", 3, possible_repeat=True))
    opened = await open_one(store, claim := await claim_one(store))
    assert await fail_digest(store, claim, 0) is Ended.DONE
    redis_server.cli("SCRIPT", "FLUSH")
    again = await open_one(store, claim := await claim_one(store))
    assert (again.id, again.attempts) == (opened.id, 1)
    page = await store.digests.page(claim, opened, 0, 2)
    assert page is not None
    assert [record.key for record in page if record is not None] == [b"b", b"a"]
    assert await close_digest(store, claim, opened.id, at_once(store)) is Ended.DONE


async def test_a_user_without_the_right_to_a_command_of_a_script(
    open_store: OpenStore, redis_server: RedisServer
) -> None:
    """It is refused where the script meets it, so what comes before was written."""
    redis_server.cli("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all", "-hset")
    error = await fault(open_store(f"redis://daemon:secret@{HOST}:{redis_server.port}/0"))
    assert (error.reason, error.applied) == ("redis-auth", Applied.AMBIGUOUS)
    assert "lua/intake/add.lua:" in str(error)


@pytest.mark.parametrize("kind", ["waiting", "schedule", "ledger", "count", "set", "values"])
async def test_a_key_of_another_type(store: Store, plain: Scripts, kind: str) -> None:
    """The script ends where it meets it: what it wrote before stays, so nobody may rely on its not being applied."""
    key = plain.key(kind) if kind == "count" else plain.key(kind, "r", T if kind in ("set", "values") else None)
    plain.command("RPUSH", key, "planted")
    error = await fault(store)
    assert (error.reason, error.applied) == ("redis-script", Applied.AMBIGUOUS)
    assert "WRONGTYPE" in str(error)
    assert "lua/intake/add.lua:" in str(error) or "lua/lib/" in str(error)


async def test_more_calls_than_connections_wait_their_turn(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, connections=2)
    await store.start()
    answers = await asyncio.gather(*(add(store, rec(b"%d" % n), rec(b"x%d" % n)) for n in range(50)))
    assert sum(answer.added for answer in answers) == 100


# -- the network's faults


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[Proxy]:
    async with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def far_store(open_store: OpenStore, proxy: Proxy) -> Store:
    """Behind the proxy, with one connection, the script loaded and one record there."""
    store = open_store(f"redis://{HOST}:{proxy.port}/0", timeout_ms=1000, connections=1)
    await store.start()
    await add(store)
    return store


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (Mode.DROP_REPLIES, "redis-timeout"),
        (Mode.CUT_REPLIES, "redis-connection"),
        (Mode.RESET_REPLIES, "redis-connection"),
    ],
)
async def test_a_lost_reply_is_ambiguous_and_nothing_is_sent_again(
    far_store: Store, proxy: Proxy, redis_server: RedisServer, mode: Mode, reason: str
) -> None:
    before = calls(redis_server)
    proxy.mode = mode
    error = await fault(far_store)
    assert (error.reason, error.applied) == (reason, Applied.AMBIGUOUS)
    assert calls(redis_server) - before == 1
    proxy.mode = Mode.PASS
    assert (await far_store.operations.ledger("r"))["added"] == 2
    again = await far_store.timelines.add("r", 0, [rec(b"faulty")], Schedule(1, 1))
    assert (again.added, again.repeated) == (0, 1)


async def test_a_network_that_stands_still_is_a_timeout(far_store: Store, proxy: Proxy) -> None:
    proxy.mode = Mode.PAUSE
    assert (await fault(far_store)).reason == "redis-timeout"


async def test_calls_that_wait_for_a_connection_do_not_wait_for_ever(far_store: Store, proxy: Proxy) -> None:
    proxy.mode = Mode.PAUSE
    answers = await asyncio.gather(*(add(far_store, rec(b"%d" % n)) for n in range(3)), return_exceptions=True)
    reasons = {answer.reason for answer in answers if isinstance(answer, StoreError)}
    assert (len(answers), reasons <= {"redis-timeout", "redis-connections"}) == (3, True)


async def test_a_redis_that_stands_still_is_a_timeout_and_runs_the_call_once_when_it_goes_on(
    far_store: Store, redis_server: RedisServer
) -> None:
    before = calls(redis_server)
    redis_server.pause()
    try:
        error = await fault(far_store)
    finally:
        redis_server.resume()
    assert (error.reason, error.applied) == ("redis-timeout", Applied.AMBIGUOUS)
    await until(lambda: calls(redis_server) - before == 1)
    assert (await far_store.operations.ledger("r"))["added"] == 2


async def send_and_cancel(store: Store, proxy: Proxy, record: Record) -> None:
    """The caller goes while its request is on its way."""
    sent = proxy.requests_bytes
    caller = asyncio.create_task(store.timelines.add("r", 0, [record], Schedule(1, 1)))
    await until(lambda: proxy.requests_bytes > sent)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_caller_that_is_cancelled_leaves_the_call_and_the_connection_whole(
    far_store: Store, proxy: Proxy, redis_server: RedisServer
) -> None:
    def connections() -> set[str]:
        with redis_server.client() as client:
            return {each["id"] for each in client.client_list() if each["name"] == "nsqdigest"}

    before, calls_before = connections(), calls(redis_server)
    proxy.mode = Mode.PAUSE
    await send_and_cancel(far_store, proxy, rec(b"cancelled"))
    proxy.mode = Mode.PASS
    assert (await far_store.operations.ledger("r"))["added"] == 2  # its own answer, not that of the call before
    assert calls(redis_server) - calls_before == 1
    assert connections() == before


async def test_answers_find_their_callers_whoever_is_cancelled(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, connections=3)
    await store.start()

    async def one(number: int) -> tuple[int, int]:
        records = [rec(b"%d of %d" % (n, number), timeline=b"%d" % number) for n in range(number)]
        return number, (await add(store, *records)).added

    callers = [asyncio.create_task(one(number)) for number in range(1, 80)]
    for caller in random.sample(callers, 30):
        await asyncio.sleep(0)
        caller.cancel()
    for answer in await asyncio.gather(*callers, return_exceptions=True):
        if isinstance(answer, BaseException):
            assert isinstance(answer, asyncio.CancelledError)
        else:
            number, added = answer
            assert added == number


async def test_closing_waits_for_what_was_sent(far_store: Store, proxy: Proxy, redis_server: RedisServer) -> None:
    before = calls(redis_server)
    proxy.mode = Mode.PAUSE
    await send_and_cancel(far_store, proxy, rec(b"cancelled"))
    closing = asyncio.create_task(far_store.close(5))
    await asyncio.sleep(0)
    assert not closing.done()
    proxy.mode = Mode.PASS
    await closing
    assert calls(redis_server) - before == 1


async def test_closing_does_not_wait_for_ever(far_store: Store, proxy: Proxy) -> None:
    proxy.mode = Mode.PAUSE
    await send_and_cancel(far_store, proxy, rec(b"cancelled"))
    await far_store.close(0.01)


async def test_a_server_that_is_marked_stale_breaks_no_call(open_store: OpenStore, redis_url: str) -> None:
    """Its connections are made again; a call that takes one in that moment gets its answer all the same."""
    store = open_store(redis_url)
    await store.start()
    servers = store.namespace._client._servers
    node = await servers.server_for(0)

    async def call(number: int) -> None:
        for turn in range(40):
            assert (await add(store, rec(b"%d of %d" % (turn, number)))).added == 1

    callers = asyncio.gather(*(call(number) for number in range(8)))
    while not callers.done():
        await servers.mark_stale(node)
        await asyncio.sleep(0)
    await callers


async def test_once_a_server_is_stale_no_connection_of_before_is_used(
    open_store: OpenStore, redis_server: RedisServer
) -> None:
    store = open_store(redis_server.url, connections=1)
    await store.start()

    def connections() -> set[str]:
        with redis_server.client() as client:
            return {each["id"] for each in client.client_list() if each["name"] == "nsqdigest"}

    before = connections()
    await add(store)
    assert connections() == before
    await store.namespace._client._servers.mark_stale(await store.namespace._client._servers.server_for(0))
    await add(store)
    await until(lambda: connections() and not connections() & before)
