"""timelines.py against real Redis: what each method does, and what each fault of Redis or of the network becomes."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from nsqdigest.config import Redis as RedisSettings
from nsqdigest.errors import Applied, StoreError, StoreMismatch, Unreachable
from nsqdigest.events import Record
from nsqdigest.layout import BYTES_PER_CALL, RECORDS_PER_CALL, calls_of, first_page, in_order, next_page
from nsqdigest.policy import Schedule
from nsqdigest.timelines import (
    Added,
    Answer,
    Claim,
    NotOpened,
    Opened,
    RedisClock,
    RoutePlan,
    StoredRecord,
    Timelines,
    ledger_balances,
)
from support.ports import HOST, free_port
from support.proxy import Mode, Proxy
from support.servers import RedisServer
from support.store import Rec, Scripts, inconsistencies
from support.waiting import until, wait_until

LEASE_MS = 60_000
PLAN = RoutePlan("r", capacity=1000, increment_ms=0, dedupe_window_ms=600_000)
T = b"t"
OpenStore = Callable[..., Timelines]


def rec(
    key: bytes = b"k", at_ms: int = 1, value: bytes = b"{}", timeline: bytes = T, possible_repeat: bool = False
) -> Record:
    return Record(0, timeline, key, 1000 * at_ms, value, possible_repeat)


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    made: list[Timelines] = []

    def make(
        url: str, routes: Iterable[RoutePlan] = (PLAN,), limit: int = 1000, connections: int = 16, **settings: Any
    ) -> Timelines:
        said: dict[str, Any] = {"namespace": "test", "timeout_ms": 5000, "partitions": 1} | settings
        store = Timelines(RedisSettings(url=url, **said), routes, limit, connections)
        made.append(store)
        return store

    yield make
    for store in made:
        await store.close(5)


@pytest.fixture
async def store(open_store: OpenStore, redis_url: str) -> Timelines:
    store = open_store(redis_url)
    await store.start()
    return store


@pytest.fixture
def plain(redis_client: redis.Redis) -> Scripts:
    """The same database, as the headers of the scripts describe it."""
    return Scripts(redis_client)


async def add(store: Timelines, *records: Record, route: str = "r", partition: int = 0, after_ms: int = 0) -> Added:
    at_ms = store.clock.now_ms() + after_ms
    return await store.add(route, partition, records or (rec(),), Schedule(at_ms, at_ms))


async def claim_one(store: Timelines, lease_ms: int = LEASE_MS, partition: int = 0) -> Claim:
    (claim,) = (await store.claim(partition, [("r", 0)], [500], lease_ms)).claims
    return claim


async def open_one(store: Timelines, claim: Claim, digest_id: str = "id-1") -> Opened:
    opened = await store.open(claim, LEASE_MS, digest_id, [store.clock.now_ms()])
    assert isinstance(opened, Opened)
    return opened


def at_once(store: Timelines) -> Schedule:
    return Schedule(store.clock.now_ms(), store.clock.now_ms())


# -- the way of a digest


async def test_a_digest_goes_all_its_way(store: Timelines, plain: Scripts) -> None:
    added = await add(store, rec(b"a", 1, b"one"), rec(b"b", 2, b"two"))
    assert (added.added, added.due_at_once) == (2, 1)
    claim = await claim_one(store)
    assert (claim.route, claim.timeline, claim.partition) == ("r", "t", 0)
    opened = await open_one(store, claim)
    assert (opened.again, opened.attempt, opened.iteration, opened.total) == (False, 1, 1, 2)
    assert (opened.first_ms, opened.last_ms) == (1, 2)
    assert await store.page(claim, opened, 0, 2) == [StoredRecord(b"b", 2, b"two"), StoredRecord(b"a", 1, b"one")]
    assert await store.renew(claim, LEASE_MS) is Answer.DONE
    assert await store.fail(claim, store.clock.now_ms()) is Answer.DONE
    again = await open_one(store, claim := await claim_one(store), "not taken")
    assert again == opened._replace(again=True, attempt=2)
    assert await store.close_digest(claim, "id-1", at_once(store)) is Answer.DONE
    assert await store.close_digest(claim, "id-1", at_once(store)) is Answer.ALREADY
    assert plain.memory(T) == {b"a": 1000, b"b": 2000}
    assert await store.open(await claim_one(store), LEASE_MS, "id-2", [0]) is NotOpened.EMPTY
    ledger = await store.ledger("r")
    assert ledger_balances(ledger)
    assert {field: value for field, value in ledger.items() if value} == {"added": 2, "delivered": 2}


async def test_every_call_with_a_stale_token_says_so(store: Timelines, plain: Scripts) -> None:
    await add(store)
    opened = await open_one(store, stale := await claim_one(store))
    await store.fail(stale, store.clock.now_ms())
    await claim_one(store)
    before = plain.dump()
    assert await store.open(stale, LEASE_MS, "other", [0]) is NotOpened.STALE
    assert await store.renew(stale, LEASE_MS) is Answer.STALE
    assert await store.fail(stale, 0) is Answer.STALE
    assert await store.defer(stale, 0, after_open=True) is Answer.STALE
    assert await store.close_digest(stale, opened.id, at_once(store)) is Answer.STALE
    assert await store.bury(stale, opened.id, at_once(store), b"{}") is Answer.STALE
    assert plain.dump() == before


async def test_a_deferred_attempt_does_not_count(store: Timelines) -> None:
    await add(store)
    claim = await claim_one(store)
    assert (await open_one(store, claim)).attempt == 1
    await store.defer(claim, store.clock.now_ms(), after_open=True)
    await store.defer(await claim_one(store), store.clock.now_ms(), after_open=False)
    assert (await open_one(store, await claim_one(store))).attempt == 1


async def test_a_lease_that_ran_out_is_taken_back(store: Timelines) -> None:
    await add(store)
    first = await claim_one(store, lease_ms=1)
    assert await until(lambda: store.maintenance(0, ["r"])) == 1
    assert (await claim_one(store)).token != first.token


async def test_two_workers_never_have_the_same_timeline(open_store: OpenStore, redis_url: str) -> None:
    workers = [open_store(redis_url) for _ in range(4)]
    for worker in workers:
        await worker.start()
    await add(workers[0], *(rec(timeline=b"%d" % n) for n in range(100)))
    taken = await asyncio.gather(*(worker.claim(0, [("r", 0)], [30], LEASE_MS) for worker in workers for _ in range(2)))
    names = [claim.timeline for claimed in taken for claim in claimed.claims]
    assert (len(names), len(set(names))) == (100, 100)


async def test_dead_digests_beyond_the_limit_are_told_and_dropped(store: Timelines, plain: Scripts) -> None:
    for n in range(4):
        await add(store, rec(), rec(b"l"), rec(b"m"))
        opened = await open_one(store, claim := await claim_one(store), f"id-{n}")
        assert await store.bury(claim, opened.id, at_once(store), b"details %d" % n) is Answer.DONE
        assert await store.bury(claim, opened.id, at_once(store), b"") is Answer.ALREADY
        plain.command("ZADD", plain.key("dead"), n, opened.id)  # so that their order does not hang on the clock
    assert await store.dead_over_limit(0) == []
    assert await store.dead_over_limit(0, 2) == [("id-0", b"details 0"), ("id-1", b"details 1")]
    assert await store.drop_dead(0, "id-0", "r") == 3
    assert await store.drop_dead(0, "id-0", "r") == 0
    assert ledger_balances(ledger := await store.ledger("r"))
    assert (ledger["buried"], ledger["deleted"]) == (9, 3)


# -- claims


async def test_a_route_draws_on_the_budget_whose_number_stands_beside_it(open_store: OpenStore, redis_url: str) -> None:
    names = ("one", "two", "three")
    store = open_store(redis_url, [PLAN._replace(name=name) for name in names])
    await store.start()
    for name in names:
        await add(store, *(rec(timeline=b"%d" % n) for n in range(3)), route=name)
    claimed = await store.claim(0, [("one", 1), ("two", 0), ("three", 1)], [2, 4], LEASE_MS)
    assert [claim.route for claim in claimed.claims] == ["one"] * 3 + ["two"] * 2 + ["three"]


async def test_it_tells_when_the_next_is_due(store: Timelines) -> None:
    assert (await store.claim(0, [("r", 0)], [1], LEASE_MS)).next_due_ms is None
    now_ms = store.clock.now_ms()
    await store.add("r", 0, [rec()], Schedule(now_ms + 5000, now_ms + 5000))
    assert (await store.claim(0, [("r", 0)], [1], LEASE_MS)).next_due_ms == now_ms + 5000


async def test_increments_of_the_route_postpone_its_digest(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, [PLAN._replace(increment_ms=10_000)])
    await store.start()
    now_ms = store.clock.now_ms()
    await store.add("r", 0, [rec(b"%d" % n) for n in range(3)], Schedule(now_ms, now_ms + 99_000))
    claimed = await store.claim(0, [("r", 0)], [1], LEASE_MS)
    assert (claimed.claims, claimed.next_due_ms) == ([], now_ms + 30_000)


# -- pages


async def test_pages_cover_the_snapshot_newest_first(store: Timelines) -> None:
    await add(store, *(rec(b"%02d" % n, n) for n in range(10)))
    opened = await open_one(store, claim := await claim_one(store))
    keys: list[bytes] = []
    while len(keys) < 10:
        page = await store.page(claim, opened, len(keys), 4)
        assert page
        keys += [record.key for record in page if record is not None]
    assert keys == [b"%02d" % n for n in reversed(range(10))]
    assert await store.page(claim, opened, 10, 4) == []


async def test_a_page_of_a_digest_that_was_closed_meanwhile_is_none_of_ours(store: Timelines) -> None:
    await add(store)
    opened = await open_one(store, claim := await claim_one(store))
    await store.close_digest(claim, opened.id, at_once(store))
    assert await store.page(claim, opened, 0, 1) is None
    await add(store, rec(b"next"))
    await open_one(store, await claim_one(store), "id-2")
    assert await store.page(claim, opened, 0, 1) is None


async def test_a_page_shows_where_records_and_values_are_gone(store: Timelines, plain: Scripts) -> None:
    await add(store, rec(b"a", 1), rec(b"b", 2))
    opened = await open_one(store, claim := await claim_one(store))
    plain.command("HDEL", plain.key("x", "r", T), "b")
    assert await store.page(claim, opened, 0, 2) == [None, StoredRecord(b"a", 1, b"{}")]
    plain.command("ZREM", plain.key("s", "r", T), "b")
    assert await store.page(claim, opened, 0, 2) is None


# -- names, sizes, partitions


@pytest.mark.parametrize(
    "name", ["a b", ":", "t:v:", "::i:r:t", "{other:1}:x", "}{", "ü🐙", '%s *?[a]"\\', "\u2028", "n", "x" * 4096]
)
async def test_any_text_may_name_a_timeline_and_a_record(store: Timelines, plain: Scripts, name: str) -> None:
    encoded = name.encode()
    await add(store, rec(encoded, timeline=encoded), rec(encoded, possible_repeat=True))
    claims = (await store.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    assert {claim.timeline for claim in claims} == {name, "t"}
    for claim in claims:
        opened = await open_one(store, claim, f"id of {claim.timeline}")
        assert opened.id == f"id of {claim.timeline}"
        assert await store.page(claim, opened, 0, 1) == [StoredRecord(encoded, 1, b"{}")]
        await store.close_digest(claim, opened.id, at_once(store))
    assert inconsistencies(plain.tag, {k: v for k, v in plain.contents().items() if k != plain.key("layout")}) == []


async def test_batches_are_packed_as_the_header_of_add_says(store: Timelines, plain: Scripts) -> None:
    records = [
        rec(b"k%d" % n, n, random.randbytes(n), timeline=b"t%d" % (n % 4), possible_repeat=n % 4 == 2 and n % 3 == 0)
        for n in range(40)
    ]
    await add(store, *records)
    by_store = plain.contents()
    schedule = plain.schedule(b"t0")
    assert schedule is not None
    names = [name for name in by_store if name != plain.key("layout")]
    plain.command("DEL", *names)
    plain.add(
        *(Rec(of.timeline, of.key, of.timestamp_us, of.value, of.possible_repeat) for of in records),
        base_ms=schedule[0],
    )
    assert plain.contents() == by_store


async def test_500_records_and_a_mebibyte_in_one_call(store: Timelines) -> None:
    value = random.randbytes(2000)
    assert (await add(store, *(rec(b"%d" % n, value=value) for n in range(RECORDS_PER_CALL)))).added == 500
    opened = await open_one(store, claim := await claim_one(store))
    page = await store.page(claim, opened, 0, 500)
    assert page is not None
    assert {record.value for record in page if record is not None} == {value}


async def test_a_timeline_stays_in_its_partition(open_store: OpenStore, redis_url: str, plain: Scripts) -> None:
    store = open_store(redis_url, partitions=4)
    await store.start()
    names = [b"%d" % n for n in range(64)]
    for name in names:
        await add(store, rec(timeline=name), partition=store.partition_of("r", name))
    for partition in range(4):
        theirs = {name for name in names if store.partition_of("r", name) == partition}
        assert 4 < len(theirs) < 40
        claims = (await store.claim(partition, [("r", 0)], [99], LEASE_MS)).claims
        assert {claim.timeline.encode() for claim in claims} == theirs
        assert {claim.partition for claim in claims} == {partition}
    assert (await store.ledger("r"))["added"] == 64
    tags = {name.partition(b"}")[0] for name in plain.contents()}
    assert tags == {b"{test:%d" % partition for partition in range(4)}


async def test_the_partition_of_a_timeline_is_for_ever(open_store: OpenStore, redis_url: str) -> None:
    """Another hash would lose what waits."""
    store = open_store(redis_url, partitions=32)
    names = (b"", b"user:42", "ü".encode())
    assert [store.partition_of("events", name) for name in names] == [10, 16, 10]
    assert [store.partition_of("errors", name) for name in names] == [29, 19, 22]


async def test_namespaces_do_not_meet(open_store: OpenStore, redis_url: str) -> None:
    one, two = open_store(redis_url, namespace="one"), open_store(redis_url, namespace="two", partitions=2)
    await one.start()
    await two.start()
    await add(one)
    assert (await two.claim(0, [("r", 0)], [9], LEASE_MS)).claims == []
    assert one.epoch != two.epoch


async def test_the_limit_on_timelines_is_shared_by_the_partitions(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, limit=7, partitions=2)
    await store.start()
    added = await add(store, *(rec(timeline=b"%d" % n) for n in range(9)))
    assert (added.added, added.over_timelines) == (9, 5)


# -- start


async def test_all_daemons_of_a_namespace_know_its_epoch(
    open_store: OpenStore, redis_url: str, redis_client: redis.Redis
) -> None:
    first, second, third = (open_store(redis_url) for _ in range(3))
    facts = await first.start()
    await second.start()
    assert (facts.role, first.epoch == second.epoch) == ("master", True)
    redis_client.flushall()
    await third.start()
    assert third.epoch != first.epoch


async def test_what_could_lose_events_is_warned_of(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer]
) -> None:
    careless = await open_store(redis_factory("--maxmemory-policy", "allkeys-lru").url).start()
    assert [warning.split()[0] for warning in careless.warnings()] == ["maxmemory-policy", "neither", "maxmemory"]
    careful = await open_store(redis_factory("--appendonly", "yes", "--maxmemory", "1gb").url).start()
    assert careful.warnings() == []
    saving = await open_store(redis_factory("--save", "900 1", "--maxmemory", "1gb").url).start()
    assert saving.warnings() == []


async def test_where_it_may_not_ask_for_settings_it_alarms_nobody(
    open_store: OpenStore, redis_server: RedisServer
) -> None:
    redis_server.cli("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all", "-config")
    facts = await open_store(f"redis://daemon:secret@{HOST}:{redis_server.port}/0").start()
    assert facts.persistent


async def test_another_number_of_partitions_is_refused_with_the_way_out(open_store: OpenStore, redis_url: str) -> None:
    await open_store(redis_url, partitions=4).start()
    with pytest.raises(StoreMismatch, match=r"redis.partitions = 4, the file says 8: write 4, or choose another"):
        await open_store(redis_url, partitions=8).start()
    await open_store(redis_url, partitions=4).start()


async def test_a_layout_of_another_version_is_refused_with_the_way_out(
    open_store: OpenStore, redis_url: str, plain: Scripts
) -> None:
    plain.hello(schema=2)
    with pytest.raises(StoreMismatch, match=r"layout 2, this version writes 1: run the version that wrote it"):
        await open_store(redis_url).start()


async def test_a_replica_is_refused_without_showing_the_password(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer]
) -> None:
    replica = redis_factory("--requirepass", "secret")
    replica.cli("REPLICAOF", HOST, free_port())
    with pytest.raises(Unreachable, match="names a replica") as refused:
        await open_store(replica.url).start()
    assert "secret" not in str(refused.value)


# -- the server's faults


async def fault(store: Timelines) -> StoreError:
    """What an add that must fail says."""
    with pytest.raises(StoreError) as raised:
        await store.add("r", 0, [rec(b"faulty")], Schedule(1, 1))
    return raised.value


async def assert_refused(store: Timelines, reason: str) -> None:
    error = await fault(store)
    assert (error.reason, error.applied) == (reason, Applied.NO)


@pytest.fixture
def own_store(open_store: OpenStore, redis_server: RedisServer) -> Timelines:
    """On a server of the test's own."""
    return open_store(redis_server.url)


def calls(server: RedisServer, command: str = "evalsha") -> int:
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def test_scripts_that_redis_forgot_are_loaded_once_more(own_store: Timelines, redis_server: RedisServer) -> None:
    await own_store.start()
    await add(own_store)
    loads = calls(redis_server, "script|load")
    redis_server.cli("SCRIPT", "FLUSH")
    assert (await add(own_store, rec(b"l"))).added == 1
    await add(own_store, rec(b"m"))
    assert calls(redis_server, "script|load") - loads == 1
    assert (await own_store.ledger("r"))["added"] == 3


async def test_after_a_restart_it_goes_on(own_store: Timelines, redis_server: RedisServer) -> None:
    await own_store.start()
    await add(own_store)
    redis_server.restart()
    with suppress(StoreError):  # a connection of before may be noticed only now
        await own_store.ledger("r")
    assert (await add(own_store)).added == 1


async def test_connection_refused(own_store: Timelines, redis_server: RedisServer) -> None:
    redis_server.kill()
    assert (await fault(own_store)).reason == "redis-connection"


async def test_a_full_redis(own_store: Timelines, redis_server: RedisServer) -> None:
    await own_store.start()
    await add(own_store)
    redis_server.cli("CONFIG", "SET", "maxmemory", 1)
    await assert_refused(own_store, "redis-full")
    opened = await open_one(own_store, claim := await claim_one(own_store))
    assert await own_store.close_digest(claim, opened.id, at_once(own_store)) is Answer.DONE


async def test_a_replica(own_store: Timelines, redis_server: RedisServer) -> None:
    redis_server.cli("REPLICAOF", HOST, free_port())
    await assert_refused(own_store, "redis-readonly")


async def test_a_replica_without_its_primary_that_does_not_serve_old_data(
    own_store: Timelines, redis_server: RedisServer
) -> None:
    redis_server.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
    redis_server.cli("REPLICAOF", HOST, free_port())
    await assert_refused(own_store, "redis-masterdown")


async def test_a_primary_without_the_replicas_it_wants(own_store: Timelines, redis_server: RedisServer) -> None:
    redis_server.cli("CONFIG", "SET", "min-replicas-to-write", 1)
    await assert_refused(own_store, "redis-noreplicas")


async def test_a_redis_that_can_not_save(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    server = redis_factory("--dir", str(data), "--save", "900 1")
    shutil.rmtree(data)
    server.cli("BGSAVE")
    wait_until(lambda: server.cli("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
    await assert_refused(open_store(server.url), "redis-misconf")


async def test_a_redis_that_is_busy_with_a_script(own_store: Timelines, redis_server: RedisServer) -> None:
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
    assert (await own_store.add("r", 0, [rec()], Schedule(1, 1))).added == 1


async def test_a_redis_that_loads_its_data(open_store: OpenStore, redis_factory: Callable[..., RedisServer]) -> None:
    server = redis_factory()
    if int(server.cli("INFO", "server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("this Redis can not be made to load slowly")
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


async def test_a_user_without_the_right_to_a_command_of_a_script(
    open_store: OpenStore, redis_server: RedisServer
) -> None:
    """It is refused where the script meets it, so what comes before was written."""
    redis_server.cli("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all", "-hset")
    error = await fault(open_store(f"redis://daemon:secret@{HOST}:{redis_server.port}/0"))
    assert (error.reason, error.applied) == ("redis-auth", Applied.AMBIGUOUS)
    assert "lua/add.lua:" in str(error)


@pytest.mark.parametrize("kind", ["w", "b", "c", "n", "i", "v"])
async def test_a_key_of_another_type(store: Timelines, plain: Scripts, kind: str) -> None:
    """The script ends where it meets it: what it wrote before stays, so nobody may rely on its not being applied."""
    key = plain.key(kind) if kind == "n" else plain.key(kind, "r", T if kind in "iv" else None)
    plain.command("RPUSH", key, "planted")
    error = await fault(store)
    assert (error.reason, error.applied) == ("redis-script", Applied.AMBIGUOUS)
    assert "WRONGTYPE" in str(error)
    assert "lua/add.lua:" in str(error) or "lua/lib/" in str(error)


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
async def far_store(open_store: OpenStore, proxy: Proxy) -> Timelines:
    """Behind the proxy, with one connection, the script loaded and one record there."""
    store = open_store(f"redis://{HOST}:{proxy.port}/0", timeout_ms=300, connections=1)
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
    far_store: Timelines, proxy: Proxy, redis_server: RedisServer, mode: Mode, reason: str
) -> None:
    before = calls(redis_server)
    proxy.mode = mode
    error = await fault(far_store)
    assert (error.reason, error.applied) == (reason, Applied.AMBIGUOUS)
    assert calls(redis_server) - before == 1
    proxy.mode = Mode.PASS
    assert (await far_store.ledger("r"))["added"] == 2
    again = await far_store.add("r", 0, [rec(b"faulty")], Schedule(1, 1))
    assert (again.added, again.repeated) == (0, 1)


async def test_a_network_that_stands_still_is_a_timeout(far_store: Timelines, proxy: Proxy) -> None:
    proxy.mode = Mode.PAUSE
    assert (await fault(far_store)).reason == "redis-timeout"


async def test_calls_that_wait_for_a_connection_do_not_wait_for_ever(far_store: Timelines, proxy: Proxy) -> None:
    proxy.mode = Mode.PAUSE
    answers = await asyncio.gather(*(add(far_store, rec(b"%d" % n)) for n in range(3)), return_exceptions=True)
    reasons = {answer.reason for answer in answers if isinstance(answer, StoreError)}
    assert (len(answers), reasons <= {"redis-timeout", "redis-connection"}) == (3, True)


async def test_a_redis_that_stands_still_is_a_timeout_and_runs_the_call_once_when_it_goes_on(
    far_store: Timelines, redis_server: RedisServer
) -> None:
    before = calls(redis_server)
    redis_server.pause()
    try:
        error = await fault(far_store)
    finally:
        redis_server.resume()
    assert (error.reason, error.applied) == ("redis-timeout", Applied.AMBIGUOUS)
    await until(lambda: calls(redis_server) - before == 1)
    assert (await far_store.ledger("r"))["added"] == 2


async def send_and_cancel(store: Timelines, proxy: Proxy, record: Record) -> None:
    """The caller goes while its request is on its way."""
    sent = proxy.requests_bytes
    caller = asyncio.create_task(store.add("r", 0, [record], Schedule(1, 1)))
    await until(lambda: proxy.requests_bytes > sent)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_a_caller_that_is_cancelled_leaves_the_call_and_the_connection_whole(
    far_store: Timelines, proxy: Proxy, redis_server: RedisServer
) -> None:
    with redis_server.client() as client:
        before, connections = calls(redis_server), int(client.info("clients")["connected_clients"])
        proxy.mode = Mode.PAUSE
        await send_and_cancel(far_store, proxy, rec(b"cancelled"))
        proxy.mode = Mode.PASS
        assert (await far_store.ledger("r"))["added"] == 2  # its own answer, not that of the call before
        assert calls(redis_server) - before == 1
        assert int(client.info("clients")["connected_clients"]) == connections


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


async def test_closing_waits_for_what_was_sent(far_store: Timelines, proxy: Proxy, redis_server: RedisServer) -> None:
    before = calls(redis_server)
    proxy.mode = Mode.PAUSE
    await send_and_cancel(far_store, proxy, rec(b"cancelled"))
    closing = asyncio.create_task(far_store.close(5))
    await asyncio.sleep(0)
    assert not closing.done()
    proxy.mode = Mode.PASS
    await closing
    assert calls(redis_server) - before == 1


async def test_closing_does_not_wait_for_ever(far_store: Timelines, proxy: Proxy) -> None:
    proxy.mode = Mode.PAUSE
    await send_and_cancel(far_store, proxy, rec(b"cancelled"))
    await far_store.close(0.01)


# -- the clock


def test_before_any_answer_there_is_no_time() -> None:
    with pytest.raises(StoreError):
        RedisClock().now_ms()


class Monotonic:
    """Time as the test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("nsqdigest.timelines.time.monotonic", lambda: self.now_s)


def test_the_clock_goes_on_between_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    time, clock = Monotonic(monkeypatch), RedisClock()
    clock.heard(5_000_000)
    time.now_s += 2
    assert clock.now_ms() == 5_002_000


def test_an_answer_that_was_long_on_its_way_does_not_set_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    time, clock = Monotonic(monkeypatch), RedisClock()
    clock.heard(5_000_000)
    time.now_s += 0.4
    clock.heard(5_000_100)
    assert 5_000_399 <= clock.now_ms() <= 5_000_400


@pytest.mark.parametrize("step_ms", [-3_600_000, -86_400_000, 3_600_000, 1])
def test_a_clock_that_was_set_is_followed(monkeypatch: pytest.MonkeyPatch, step_ms: int) -> None:
    time, clock = Monotonic(monkeypatch), RedisClock()
    clock.heard(500_000_000)
    time.now_s += 1
    clock.heard(500_001_000 + step_ms)
    assert clock.now_ms() == 500_001_000 + step_ms


async def test_every_answer_tells_the_time(store: Timelines, plain: Scripts) -> None:
    seconds, microseconds = plain.command("TIME")
    await add(store)
    assert 0 <= store.clock.now_ms() - (seconds * 1000 + microseconds // 1000) < 10_000


# -- how much a call carries


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([1], [1]),
        ([1] * 500, [500]),
        ([1] * 501, [500, 1]),
        ([1] * 1200, [500, 500, 200]),
        ([BYTES_PER_CALL], [1]),
        ([BYTES_PER_CALL, 1], [1, 1]),
        ([BYTES_PER_CALL + 9, BYTES_PER_CALL + 9], [1, 1]),
        ([BYTES_PER_CALL // 2] * 5, [2, 2, 1]),
    ],
)
def test_records_are_split_into_calls(sizes: list[int], expected: list[int]) -> None:
    values = {size: bytes(size) for size in sizes}
    records = [rec(value=values[size]) for size in sizes]
    split = calls_of(records)
    assert [len(call) for call in split] == expected
    assert [record for call in split for record in call] == records


def test_pages_are_as_large_as_the_records_before_allow() -> None:
    assert [first_page(total) for total in (1, 16, 17, 5000)] == [1, 16, 16, 16]
    assert next_page(16, 16 * 100, 5000) == RECORDS_PER_CALL
    assert next_page(16, 16 * 100, 3) == 3
    assert next_page(16, 16 * (BYTES_PER_CALL // 10), 5000) == 10
    assert next_page(16, 16 * 2 * BYTES_PER_CALL, 5000) == 1
    assert next_page(16, 0, 5000) == RECORDS_PER_CALL


def test_a_ledger_balances_when_all_that_was_added_is_somewhere() -> None:
    ends = {"open": 1, "snapshots": 2, "delivered": 4, "superseded": 8, "buried": 16, "deleted": 32}
    assert ledger_balances({"added": 63 + 64 + 128, "dropped:capacity": 64, "dropped:timelines": 128, **ends})
    assert ledger_balances({})
    assert not ledger_balances({"added": 64, **ends})


# -- the order within a page


def test_of_equal_timestamps_the_larger_key_comes_first() -> None:
    members = [b"a", b"-7", b"b", b"-7", b"c", b"-5"]
    assert in_order(members, is_last=True) == [(b"b", 7), (b"a", 7), (b"c", 5)]


def test_a_run_of_equal_timestamps_is_left_whole_to_the_next_page() -> None:
    members = [b"a", b"-7", b"b", b"-5", b"c", b"-5"]
    assert in_order(members, is_last=False) == [(b"a", 7)]
    assert in_order(members, is_last=True) == [(b"a", 7), (b"c", 5), (b"b", 5)]


def test_a_page_of_nothing_but_equal_timestamps_is_given_all_the_same() -> None:
    assert in_order([b"a", b"-5", b"b", b"-5"], is_last=False) == [(b"b", 5), (b"a", 5)]


async def test_what_nsqd_took_in_within_one_millisecond_is_paged_newest_first(store: Timelines) -> None:
    total = 50
    records = [Record(0, T, b"%03d" % n, 1_700_000_000_000_000 + n // 3, b"%d" % n, False) for n in range(total)]
    await store.add("r", 0, random.sample(records, total), Schedule(0, 0))
    claim = await claim_one(store)
    opened = await store.open(claim, LEASE_MS, "id", [0])
    assert isinstance(opened, Opened)
    assert opened.first_ms == opened.last_ms == 1_700_000_000_000
    found: list[bytes] = []
    while len(found) < total:
        page = await store.page(claim, opened, len(found), 16)
        assert page
        found += [record.value for record in page if record is not None]
    assert found == [b"%d" % n for n in reversed(range(total))]
