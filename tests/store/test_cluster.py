"""The store on a Redis Cluster: each partition on the server that has its slot, also while slots and servers move."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from nsqdigest.audit.ledger import balances
from nsqdigest.base.errors import Applied, StoreError, Unreachable
from nsqdigest.config import Address, load
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.store.access import now_ms, operating
from nsqdigest.store.answers import Ended
from nsqdigest.store.dead import DeadStore
from nsqdigest.store.digests import Opening
from nsqdigest.store.head import Head
from nsqdigest.store.inspection import Inspector
from nsqdigest.store.listing import Lister, Wanted
from nsqdigest.store.namespace import reading
from nsqdigest.store.operations import Flushed, Operations
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.servers.cluster import Cluster
from nsqdigest.store.store import Store
from support.daemon import toml
from support.delivering import Delivering
from support.ports import HOST
from support.publishing import Background
from support.redis_sets import ClusterServer, RedisCluster
from support.stage import NAMESPACE, PROVE, Stage
from support.store import Scripts, inconsistencies
from support.stores import PLAN, OpenStore, add, close_digest, limited_url, open_digest, rec, redis_settings
from support.waiting import until, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers, pytest.mark.every_redis]

EVENTS = 60_000 if PROVE else 6_000
EVENTS_PER_S = 2_000
SETTLED_WITHIN_S = 90.0
PARTITIONS = 32


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, redis_binary: str) -> Iterator[RedisCluster]:
    """Three primaries. A test leaves each slot with one owner; which of them it is does not matter."""
    with RedisCluster(tmp_path_factory.mktemp("cluster"), replicas=0, binary=redis_binary) as cluster:
        yield cluster


@pytest.fixture
async def store(cluster: RedisCluster, open_store: OpenStore) -> Store:
    for server in cluster.servers:
        server.cli("FLUSHALL")
    store = open_store(cluster.url, partitions=0, timeout_ms=2000)
    await store.start()
    return store


def slot_of(partition: int, namespace: str = "test") -> int:
    return int(key_slot(b"{%s:%d}:" % (namespace.encode(), partition)))


def other_than(cluster: RedisCluster, server: ClusterServer) -> ClusterServer:
    return next(each for each in cluster.servers if each is not server)


async def error_of(store: Store, partition: int = 0) -> StoreError:
    with pytest.raises(StoreError) as raised:
        await add(store, partition=partition)
    return raised.value


def moves(cluster: RedisCluster, slot: int) -> tuple[ClusterServer, ClusterServer]:
    """The slot is on its way from one to the other."""
    source = cluster.primary_of(slot)
    target = other_than(cluster, source)
    target.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", source.identity)
    source.cli("CLUSTER", "SETSLOT", slot, "MIGRATING", target.identity)
    return source, target


def half_of_its_keys_moved(cluster: RedisCluster, slot: int) -> ClusterServer:
    """Returns where they are on their way to."""
    source, target = moves(cluster, slot)
    keys = sorted(source.cli("CLUSTER", "GETKEYSINSLOT", slot, 10_000))
    source.cli("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys[::2])
    return target


async def test_partitions_are_spread_over_the_servers(store: Store, cluster: RedisCluster) -> None:
    assert store.namespace.partitions == PARTITIONS
    await asyncio.gather(*(add(store, partition=partition) for partition in range(PARTITIONS)))
    assert all(server.cli("DBSIZE") > PARTITIONS for server in cluster.servers)
    assert (await store.operations.ledger("r"))["added"] == PARTITIONS


async def test_a_file_that_names_a_cluster_spreads_its_timelines(cluster: RedisCluster, tmp_path: Path) -> None:
    for server in cluster.servers:
        server.cli("FLUSHALL")
    path = tmp_path / "nsqdigest.toml"
    route = {"name": "r", "topic": "events", "timeline": "{user}", "sink": "out"}
    settings: dict[str, dict[str, Any]] = {
        "nsq": {"nsqd_tcp_addresses": ["127.0.0.1:4150"]},
        "redis": {"url": cluster.url, "namespace": "test"},
        "sinks.out": {"type": "log"},
    }
    path.write_text(toml(settings, [route]), encoding="utf-8")
    store = Store(load(path, {}, KINDS).redis, [PLAN], 1000)
    try:
        await store.start()
        for number in range(300):
            timeline = b"t%d" % number
            await add(store, rec(timeline=timeline), partition=store.timelines.partition_of(timeline))
        assert cluster.cli("HGET", "{test:0}:layout", "partitions") == b"32"
        assert (await store.operations.ledger("r"))["added"] == 300
        assert all(server.cli("DBSIZE") > PARTITIONS for server in cluster.servers)
    finally:
        await store.close(5)


async def test_servers_that_the_map_no_longer_names_are_forgotten(store: Store, cluster: RedisCluster) -> None:
    servers = store.namespace._client._servers
    assert isinstance(servers, Cluster)
    gone = [servers._node(Address(HOST, port)) for port in (1, 2)]
    await asyncio.gather(*(node.exchange([[b"PING"]]) for node in gone), return_exceptions=True)
    await store.look()
    assert {each.port for each in servers._nodes} == {server.port for server in cluster.servers}


@pytest.fixture
async def limited_store(cluster: RedisCluster, open_store: OpenStore, store: Store) -> Store:
    """As a user with the rights that docs/redis.md gives."""
    login = {limited_url(server).partition("@")[0].removeprefix("redis://") for server in cluster.servers}.pop()
    limited = open_store(cluster.url.replace("://", f"://{login}@"), partitions=0)
    await limited.start()
    return limited


async def test_a_digest_goes_all_its_way_on_every_server(limited_store: Store) -> None:
    store = limited_store
    for partition in range(PARTITIONS):
        await add(store, rec(b"a"), rec(b"b", 2), partition=partition)
        (claim,) = (await store.digests.claim(partition, [("r", 0)], [9], 60_000)).claims
        opened = await open_digest(store, claim, f"id-{partition}", [store.clock.now_ms()])
        assert isinstance(opened, Head)
        page = await store.digests.page(claim, opened, 0, 2)
        assert page is not None
        assert len(page) == 2
        assert await close_digest(store, claim, opened.id, Schedule(0, 0)) is Ended.DONE
    ledger = await store.operations.ledger("r")
    assert (ledger["delivered"], balances(ledger)) == (2 * PARTITIONS, True)


async def test_scripts_that_one_server_forgot_are_loaded_there(store: Store, cluster: RedisCluster) -> None:
    server = cluster.primary_of(slot_of(5))
    server.cli("SCRIPT", "FLUSH")
    assert (await add(store, partition=5)).added == 1


async def test_a_slot_that_was_moved_is_followed_at_once(store: Store, cluster: RedisCluster) -> None:
    await add(store, partition=1)
    cluster.move_slot(slot_of(1), other_than(cluster, cluster.primary_of(slot_of(1))))
    assert (await add(store, rec(b"l"), partition=1)).added == 1
    (claim,) = (await store.digests.claim(1, [("r", 0)], [9], 60_000)).claims
    opened = await open_digest(store, claim, "id", [0])
    assert isinstance(opened, Head)
    assert opened.total == 2


async def test_keys_that_went_ahead_are_asked_for_on_the_other_side(store: Store, cluster: RedisCluster) -> None:
    """The slot is still the old server's, and it has none of its keys any more."""
    tag = b"{other:0}:"
    keys = [tag + b"layout", tag + b"routes"]

    async def hello(epoch: str) -> bytes:
        said = await store.namespace._run(tag, "hello", keys, [b"", 1, 1, epoch, "r"])
        return bytes(said[2])

    assert await hello("first") == b"first"
    source, target = moves(cluster, key_slot(tag))
    try:
        source.cli("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
        reads = [[b"HGET", keys[0], b"epoch"], [b"EXISTS", tag + b"nothing"], [b"HLEN", keys[1]]]
        assert await store.namespace._client.send(tag, reads) == [b"first", 0, 1]
        target.cli("SCRIPT", "FLUSH")
        assert await hello("second") == b"first"
    finally:
        cluster.move_slot(key_slot(tag), target)


async def test_keys_on_both_sides_are_tryagain_and_nothing_was_done(store: Store, cluster: RedisCluster) -> None:
    await add(store, partition=2)
    slot = slot_of(2)
    source, target = moves(cluster, slot)
    key = b"{test:2}:waiting:r"
    source.cli("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", key)
    error = await error_of(store, 2)
    assert (error.reason, error.applied) == ("redis-tryagain", Applied.NO)
    cluster.move_slot(slot, target)
    assert (await add(store, rec(b"l"), partition=2)).added == 1
    assert (await store.operations.ledger("r"))["added"] == 2


async def test_calls_on_many_digests_wait_for_a_slot_that_moves_and_each_goes_out_once(
    store: Store, cluster: RedisCluster
) -> None:
    partition, slot = 4, slot_of(4)
    names = {f"t{number}" for number in range(20)}
    await add(store, *(rec(timeline=name.encode()) for name in names), partition=partition)
    claims = (await store.digests.claim(partition, [("r", 0)], [len(names)], 60_000)).claims
    stage = Delivering(store.digests, store.dead, limit=len(names))
    try:
        target = half_of_its_keys_moved(cluster, slot)
        opening = asyncio.create_task(stage.opener.open(partition, stage.deliveries(claims)))
        await until(lambda: bool(stage.windows), 10, "open to be refused")
        assert stage.sink.sent == []
        cluster.move_slot(slot, target)
        stage.sink.may_answer.clear()
        await opening
        await until(lambda: len(stage.sink.sent) == len(names), 10, "all to be sent")
        refused = len(stage.windows)
        target = half_of_its_keys_moved(cluster, slot)
        stage.sink.may_answer.set()
        await until(lambda: len(stage.windows) > refused, 10, "finish to be refused")
        cluster.move_slot(slot, target)
        await stage.quiet()
    finally:
        await stage.stop()
    assert set(stage.sink.timelines) == names
    assert len(stage.sink.sent) == len(names)
    assert stage.metrics.total("digests_stale_total") == stage.metrics.total("store_errors_total") == 0
    ledger = await store.operations.ledger("r")
    assert (ledger["delivered"], ledger["snapshots"], ledger["open"]) == (len(names), 0, 0)


async def test_records_are_read_on_both_sides_of_a_slot_that_moves(store: Store, cluster: RedisCluster) -> None:
    partition, slot = 5, slot_of(5)
    names = [f"t{number}" for number in range(20)]
    await add(store, *(rec(timeline=name.encode()) for name in names), partition=partition)
    claims = (await store.digests.claim(partition, [("r", 0)], [len(names)], 60_000)).claims
    openings = [Opening(claim, claim.timeline) for claim in claims]
    heads = await store.digests.open(partition, openings, {"r": [0]})
    digests = [(claim, head) for claim, head in zip(claims, heads, strict=True) if isinstance(head, Head)]
    target = half_of_its_keys_moved(cluster, slot)
    try:
        found = await store.digests.read(partition, digests)
        assert [each and each.records() for each in found] == [[(b"k", 1, b"{}")]] * len(names)
    finally:
        cluster.move_slot(slot, target)


async def test_a_slot_of_nobody_is_clusterdown(store: Store, cluster: RedisCluster) -> None:
    slot = slot_of(3)
    owner = cluster.primary_of(slot)
    for server in cluster.servers:
        server.cli("CLUSTER", "DELSLOTS", slot)
    try:
        error = await error_of(store, 3)
        assert (error.reason, error.applied) == ("redis-clusterdown", Applied.NO)
    finally:
        owner.cli("CLUSTER", "ADDSLOTS", slot)
        await until(cluster.is_well, 20)

    async def is_added() -> bool:
        with suppress(StoreError):
            await add(store, partition=3)
        return (await store.operations.ledger("r")).get("added") == 1

    await until(is_added, 20)


async def test_a_server_that_stands_still_holds_only_its_own_partitions(
    cluster: RedisCluster, open_store: OpenStore, store: Store
) -> None:
    patient = open_store(cluster.url, partitions=0, timeout_ms=20_000)
    await patient.start()
    await asyncio.gather(*(add(patient, partition=partition) for partition in range(PARTITIONS)))  # connected to all
    still = cluster.primary_of(slot_of(0))
    theirs = {partition for partition in range(PARTITIONS) if cluster.primary_of(slot_of(partition)) is still}
    still.pause()
    try:
        calls = [asyncio.create_task(add(patient, partition=partition)) for partition in range(PARTITIONS)]
        await asyncio.gather(*(call for partition, call in enumerate(calls) if partition not in theirs))
        assert {partition for partition, call in enumerate(calls) if not call.done()} == theirs
    finally:
        still.resume()
    await asyncio.gather(*calls, return_exceptions=True)
    await until(cluster.is_well, 20)


async def test_a_single_server_is_no_cluster_and_the_other_way_round(
    cluster: RedisCluster, open_store: OpenStore, redis_url: str
) -> None:
    with pytest.raises(Unreachable, match=r"is not a server of a Cluster; write redis:// instead"):
        await open_store(redis_url.replace("redis://", "redis+cluster://").removesuffix("/0")).start()
    with pytest.raises(Unreachable, match=r"is a server of a Cluster; write redis\+cluster:// instead of redis://"):
        await open_store(cluster.servers[0].url).start()


async def test_no_server_of_a_cluster_in_reach_is_said_with_each_of_them(open_store: OpenStore) -> None:
    store = open_store("redis+cluster://127.0.0.1:1,127.0.0.1:2", partitions=0)
    with pytest.raises(StoreError, match=r"no server of the Cluster answers: .*127.0.0.1:1.*127.0.0.1:2") as raised:
        await store.start()
    assert (raised.value.reason, raised.value.applied) == ("redis-cluster", Applied.NO)


# -- under load


def whole_contents(servers: list[ClusterServer]) -> dict[bytes, dict[bytes, object]]:
    """By hash tag."""
    found: dict[bytes, dict[bytes, object]] = {}
    for server in servers:
        with server.client() as client:
            for name, value in Scripts(client).contents().items():
                tag, _, kind = name.partition(b"}:")
                if kind not in (b"layout", b"routes", b"turns"):
                    found.setdefault(tag + b"}:", {})[name] = value
    return found


def test_a_killed_primary_and_moving_slots_lose_nothing_and_show_nothing_twice(
    stage: Stage, tmp_path: Path, redis_binary: str
) -> None:
    with RedisCluster(tmp_path / "cluster", binary=redis_binary) as cluster:
        stage.use(cluster)
        nsqd = stage.nsqd()
        stage.receiver()
        daemon = stage.daemon({"redis": {"durability": "replica"}, "nsq": {"msg_timeout": "5s"}})
        daemon.start()
        publisher = stage.publisher(nsqd)
        with Background(publisher, EVENTS, per_s=EVENTS_PER_S) as load:
            wait_until(lambda: load.reached(0.2), 60, "a part of the load")
            first, second, *_ = cluster.primaries()
            mine = [p for p in range(PARTITIONS) if cluster.primary_of(slot_of(p, NAMESPACE)) is first]
            for partition in mine[:4]:
                cluster.move_slot(slot_of(partition, NAMESPACE), second)
            victim, slot = first, slot_of(mine[-1], NAMESPACE)
            victim.kill()
            cluster.wait_for_another(victim, slot)
            victim.start()  # a replica from now on: without one its partitions would wait
        stage.wait_until_all_is_delivered(SETTLED_WITHIN_S)
        stage.check()
        assert stage.shown_twice() == []
        assert daemon.said("store.data_lost") == []
        daemon.term()  # a timeline that is forgotten while its keys are read one by one would look torn
        assert daemon.wait(SETTLED_WITHIN_S) == 0
        for tag, contents in whole_contents(cluster.primaries()).items():
            assert inconsistencies(tag, contents) == []


# -- commands of an operator


async def test_commands_work_on_all_partitions(store: Store, cluster: RedisCluster) -> None:
    """As a user with all rights, from a connection of their own."""
    for number in range(100):
        name = b"%d" % number
        await add(store, rec(timeline=name), partition=store.timelines.partition_of(name), after_ms=60_000 + number)
    settings = redis_settings(cluster.url, partitions=0, timeout_ms=2000)
    async with reading(settings, "f.toml") as namespace:
        listing = await Lister(namespace, {"r": 0}, await now_ms(namespace)).first(10, Wanted())
        assert len({namespace.partition_of(each.name.encode()) for each in listing.timelines}) > 1
        assert (len(listing.timelines), listing.total) == (10, 100)
        (place,) = await Inspector(namespace).find("42", ["r"])
        assert await Inspector(namespace).look(place, 0) is not None
        assert await DeadStore(namespace, 10).sizes() == [0] * PARTITIONS
    async with operating(settings, "f.toml") as namespace:
        assert await Operations(namespace).flush("r", "42") is Flushed.DUE
        steps = [step async for step in Operations(namespace).delete_all("r")]
        assert sum(step.timelines for step in steps) == 100
