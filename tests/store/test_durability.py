"""What an acknowledged event waits for (`redis.durability`), and how a loss shows where it waits for too little."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nsqdigest.base.errors import Applied, StoreError, Unreachable
from nsqdigest.base.metrics import Metrics
from nsqdigest.store.answers import Claim
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from nsqdigest.store.watch import StoreWatch
from support.ports import HOST
from support.proxy import Mode, Proxy
from support.redis_sets import AT_ONCE, replica_of
from support.servers import RedisServer
from support.stage import PROVE
from support.stores import OpenStore, add, limited_url, open_digest, rec
from support.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.every_redis]

BEFORE, AFTER = (500, 500) if PROVE else (40, 40)
TIMEOUT_MS = 1200


class Pair(NamedTuple):
    """A primary, reached through a wire of its own; and a replica of it, which hears of it through another."""

    primary: RedisServer
    replica: RedisServer
    to_primary: Proxy
    link: Proxy

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.to_primary.port}/0"

    async def fail_over(self) -> None:
        """The primary dies, and the replica has its place."""
        self.primary.kill()
        await asyncio.to_thread(self.replica.cli, "REPLICAOF", "NO", "ONE")
        self.to_primary.server_port = self.replica.port


@pytest.fixture
async def pair(redis_factory: Callable[..., RedisServer], tmp_path: Path) -> AsyncIterator[Pair]:
    primary = redis_factory(*AT_ONCE)
    async with Proxy(primary.port) as to_primary, Proxy(primary.port) as link:
        replica = await asyncio.to_thread(replica_of, primary, tmp_path / "replica", link.port)
        yield Pair(primary, replica, to_primary, link)
        replica.kill()
        replica.forget()


async def acknowledged(store: Store, first: int, count: int) -> set[bytes]:
    """Keys of the records of which the store said that they are safe; what fails is sent once more."""
    safe = set()
    for number in range(first, first + count):
        record = rec(b"%d" % number, timeline=b"%d" % (number % 7))
        for _ in range(2):
            try:
                await store.timelines.add("r", 0, [record], Schedule(1, 1))
            except StoreError:
                continue
            safe.add(record.key)
            break
    return safe


async def there(store: Store) -> set[bytes]:
    found: set[bytes] = set()
    for timeline in range(7):
        (members,) = await store.namespace.send(0, [[b"ZRANGE", b"{test:0}:set:r:%d" % timeline, 0, -1]])
        found.update(members)
    return found


async def reached_again(store: Store) -> None:
    async def looked() -> bool:
        try:
            await store.look()
        except StoreError:
            return False
        return True

    await until(looked)


async def test_with_replica_none_of_the_acknowledged_is_lost(pair: Pair, open_store: OpenStore) -> None:
    store = open_store(pair.url, timeout_ms=TIMEOUT_MS, durability="replica")
    await store.start()
    safe = await acknowledged(store, 0, BEFORE)
    assert len(safe) == BEFORE
    pair.link.mode = Mode.DROP_REPLIES
    assert await acknowledged(store, BEFORE, 1) == set()
    await pair.fail_over()
    await reached_again(store)
    assert safe <= await there(store)
    assert store.acknowledged.take_lost() == {}


async def test_with_reply_what_is_lost_is_counted(pair: Pair, open_store: OpenStore) -> None:
    store = open_store(pair.url, timeout_ms=1000)
    await store.start()
    safe = await acknowledged(store, 0, BEFORE)
    await store.namespace.send(0, [[b"WAIT", 1, 1000]])
    pair.link.mode = Mode.DROP_REPLIES
    safe |= await acknowledged(store, BEFORE, AFTER)
    assert len(safe) == BEFORE + AFTER
    await pair.fail_over()
    await reached_again(store)
    lost = safe - await there(store)
    assert len(lost) == AFTER
    assert store.acknowledged.take_lost() == {"r": AFTER}


async def test_a_loss_shows_in_the_next_add_as_well(pair: Pair, open_store: OpenStore) -> None:
    store = open_store(pair.url, timeout_ms=1000)
    await store.start()
    await acknowledged(store, 0, 5)
    await store.namespace.send(0, [[b"WAIT", 1, 1000]])
    pair.link.mode = Mode.DROP_REPLIES
    await acknowledged(store, 5, 4)
    await pair.fail_over()
    store.namespace.needs_check.clear()
    await acknowledged(store, 100, 10)
    assert store.acknowledged.take_lost() == {"r": 4}
    assert store.namespace.needs_check.is_set()


async def test_too_few_replicas_are_an_ambiguous_error_also_for_what_is_there_already(
    pair: Pair, open_store: OpenStore
) -> None:
    url = limited_url(pair.primary).replace(str(pair.primary.port), str(pair.to_primary.port))
    store = open_store(url, timeout_ms=TIMEOUT_MS, durability="replica")
    await store.start()
    pair.link.mode = Mode.DROP_REPLIES
    for _ in range(2):
        with pytest.raises(StoreError) as raised:
            await add(store)
        assert (raised.value.reason, raised.value.applied) == ("redis-replicas", Applied.AMBIGUOUS)
        assert "0 of 1 replicas confirmed within 600 ms" in str(raised.value)


async def test_what_is_sent_again_over_another_connection_waits_for_the_replica_too(
    pair: Pair, open_store: OpenStore
) -> None:
    """It changes nothing, and from Redis 7.2 on WAIT has nothing to wait for on a connection that wrote nothing."""
    first, second = (open_store(pair.url, timeout_ms=1500, durability="replica") for _ in range(2))
    await first.start()
    await second.start()
    pair.link.mode = Mode.DROP_REPLIES
    for store in (first, second, second):
        with pytest.raises(StoreError) as raised:
            await add(store)
        assert (raised.value.reason, raised.value.applied) == ("redis-replicas", Applied.AMBIGUOUS)
    assert (await first.operations.ledger("r"))["repeated"] == 2


async def claim_one(store: Store) -> Claim:
    (claim,) = (await store.digests.claim(0, [("r", 0)], [1], 60_000)).claims
    return claim


async def test_a_digest_is_opened_only_when_a_replica_has_it(pair: Pair, open_store: OpenStore) -> None:
    """So is one that was opened before, by a call whose wait fell short."""
    first, second = (open_store(pair.url, timeout_ms=1500, durability="replica") for _ in range(2))
    await first.start()
    await second.start()
    await add(first)
    claim = await claim_one(first)
    pair.link.mode = Mode.DROP_REPLIES
    for store in (first, second, second):
        with pytest.raises(StoreError) as raised:
            await open_digest(store, claim, "id", [0])
        assert (raised.value.reason, raised.value.applied) == ("redis-replicas", Applied.AMBIGUOUS)


async def test_replicas_that_are_missing_are_told_at_start(open_store: OpenStore, redis_url: str) -> None:
    facts = await open_store(redis_url, durability="replica", replicas=2).start()
    assert any(warning.startswith("redis.replicas is 2, and 0 are connected") for warning in facts.warnings)


# -- fsync


@pytest.mark.parametrize("options", [(), ("--appendonly", "yes"), ("--appendfsync", "always")])
async def test_fsync_is_refused_where_redis_does_not_write_before_it_answers(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer], options: tuple[str, ...]
) -> None:
    with pytest.raises(Unreachable, match=r'set appendonly yes and appendfsync always there, or write durability = "r'):
        await open_store(redis_factory(*options).url, durability="fsync").start()


async def test_fsync_is_refused_where_it_may_not_be_asked_for(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer]
) -> None:
    server = redis_factory("--appendonly", "yes", "--appendfsync", "always")
    with pytest.raises(Unreachable, match=r"may not ask .* for its appendfsync; give it \+config\|get"):
        await open_store(limited_url(server), durability="fsync").start()
    url = limited_url(server)
    server.cli("ACL", "SETUSER", "nsqdigest", "+config|get")
    await open_store(url, durability="fsync").start()


async def test_fsync_survives_the_death_of_redis(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer]
) -> None:
    server = redis_factory("--appendonly", "yes", "--appendfsync", "always")
    store = open_store(server.url, durability="fsync")
    await store.start()
    safe = await acknowledged(store, 0, BEFORE)
    server.kill()
    server.start()
    await reached_again(store)
    assert await there(store) == safe
    assert store.acknowledged.take_lost() == {}


# -- what a running daemon notices


@pytest.fixture
async def watched(open_store: OpenStore, redis_server: RedisServer) -> AsyncIterator[Watched]:
    store, metrics = open_store(redis_server.url), Metrics()
    watch = StoreWatch(store, metrics, every_s=0.02)
    watch.start((await store.start()).servers)
    yield store, metrics, watch
    assert not any(task.done() for task in watch.tasks)
    await watch.stop()


Watched = tuple[Store, Metrics, StoreWatch]


async def test_an_emptied_redis_is_said_and_counted_and_its_layout_written_again(
    watched: Watched, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store, metrics, watch = watched
    await add(store, rec(b"a"), rec(b"b"))
    redis_server.cli("FLUSHALL")
    # Two checks may find them, where Redis is emptied between the two questions of one.
    await until(lambda: metrics.total("store_records_lost_total") == 2)
    await until(lambda: metrics.total("store_partitions_lost_total") == 1)
    assert redis_server.cli("EXISTS", "{test:0}:layout") == 1
    assert [record.levelname for record in caplog.records if record.msg == "store.data_lost"] == ["ERROR", "ERROR"]
    assert watch.loss is not None
    assert (watch.loss.records, watch.loss.partitions) == (2, 1)
    await add(store)
    assert metrics.total("store_records_lost_total") == 2


async def test_an_older_dump_is_noticed(watched: Watched, redis_server: RedisServer) -> None:
    store, metrics, _ = watched
    await add(store, rec(b"a"))
    redis_server.cli("SAVE")
    await add(store, rec(b"b"), rec(b"c"))
    redis_server.kill()
    redis_server.start()
    await until(lambda: metrics.total("store_records_lost_total") == 2)
    assert metrics.total("store_partitions_lost_total") == 0
    await until(lambda: metrics.total("store_server_changes_total") == 1)  # it may be the next look that finds this


async def test_a_restart_without_loss_is_no_alarm(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = redis_factory("--appendonly", "yes", "--appendfsync", "always")
    store, metrics = open_store(server.url), Metrics()
    watch = StoreWatch(store, metrics, every_s=0.02)
    watch.start((await store.start()).servers)
    await add(store)
    server.restart()
    await until(lambda: metrics.total("store_server_changes_total") == 1)
    await watch.stop()
    assert metrics.total("store_records_lost_total") == 0
    assert [record.msg for record in caplog.records if record.levelname == "ERROR"] == []


INFO_PER_LOOK = 4


def times_asked(server: RedisServer) -> int:
    with server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return int(stats["cmdstat_info"]["calls"])


async def refused(store: Store) -> bool:
    try:
        await add(store)
    except StoreError as error:
        return (error.reason, error.applied) == ("redis-unfit", Applied.NO)
    return False


async def test_a_redis_that_became_unfit_is_said_once_and_not_written_to_until_it_is_fit_again(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = redis_factory("--appendonly", "yes", "--appendfsync", "always")
    store = open_store(server.url, durability="fsync")
    watch = StoreWatch(store, Metrics(), every_s=0.01)
    watch.start((await store.start()).servers)
    server.cli("CONFIG", "SET", "appendfsync", "everysec")
    await until(lambda: "store.unfit" in [record.msg for record in caplog.records])
    looks = times_asked(server)
    await until(lambda: times_asked(server) >= looks + 4 * INFO_PER_LOOK)
    assert await refused(store)
    server.cli("CONFIG", "SET", "appendfsync", "always")
    await until(lambda: "store.fit_again" in [record.msg for record in caplog.records])
    assert not await refused(store)
    await watch.stop()
    assert [record.msg for record in caplog.records].count("store.unfit") == 1


async def test_after_a_wipe_a_daemon_of_another_layout_stops_writing(
    open_store: OpenStore, redis_server: RedisServer
) -> None:
    """Another one, whose file says another number of partitions, was the first to write the layout again."""
    first, other = open_store(redis_server.url), open_store(redis_server.url, partitions=4)
    watch = StoreWatch(first, Metrics(), every_s=0.02)
    watch.start((await first.start()).servers)
    await add(first)
    await watch.stop()  # it might write the layout first
    redis_server.cli("FLUSHALL")
    await other.start()
    watch.start([])
    await until(lambda: refused(first))
    entries = redis_server.cli("DBSIZE")
    assert await refused(first)
    with pytest.raises(StoreError, match=r"redis\.partitions = 4"):
        await first.digests.claim(0, [("r", 0)], [1], 60_000)
    assert redis_server.cli("DBSIZE") == entries
    await watch.stop()
