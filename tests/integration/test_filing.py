"""filing.py against real Redis: all partitions at a time, and records that the script cannot work with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import redis

from nsqdigest.errors import StoreError
from nsqdigest.events import Record
from nsqdigest.filing import Filed, FiledRoute, Filing
from nsqdigest.metrics import Metrics
from nsqdigest.policy import Plan
from nsqdigest.timelines import Timelines
from nsqdigest.transport.frames import Message
from support import settings
from support.servers import RedisServer
from support.store import Scripts
from support.stores import PLAN, OpenStore, limited_url, rec

POLICY = replace(settings.POLICY, minimum_delay_ms=1000, maximum_delay_ms=1000)


@pytest.fixture
async def store(open_store: OpenStore, redis_url: str, shared_redis: RedisServer) -> Timelines:
    store = open_store(limited_url(shared_redis))
    await store.start()
    return store


@pytest.fixture
def plain(redis_client: redis.Redis) -> Scripts:
    return Scripts(redis_client)


class Batch:
    """A record of each of these timelines, each out of a message of its own."""

    def __init__(self, *timelines: bytes, route: int = 0) -> None:
        self.records = [rec(b"%d" % n, timeline=name) for n, name in enumerate(timelines)]
        for record in self.records:
            record.route = route
        self.owners = [Message(b"%016d" % n, n, 1, b"{}") for n in range(len(timelines))]
        self.metrics = Metrics()

    def timelines_of(self, identities: set[int]) -> list[bytes]:
        pairs = zip(self.records, self.owners, strict=True)
        return sorted({record.timeline for record, owner in pairs if id(owner) in identities})

    async def file(self, store: Timelines, routes: Sequence[str] = ("r",)) -> Filed:
        filed_routes = {number: FiledRoute(name, Plan(POLICY)) for number, name in enumerate(routes)}
        return await Filing(filed_routes, store, self.metrics).file(self.records, self.owners)


def plant(plain: Scripts, kind: str, timeline: bytes | None = None) -> None:
    plain.command("DEL", key := plain.key(kind, "" if kind == "count" else "r", timeline))
    plain.command("RPUSH", key, "planted")


def names(count: int) -> list[bytes]:
    return [b"t%d" % n for n in range(count)]


async def test_a_batch_of_several_routes_and_partitions_goes_in_whole(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, [PLAN, PLAN._replace(name="s")], partitions=8)
    await store.start()
    batch = Batch(*names(100))
    for record in batch.records[::2]:
        record.route = 1
    filed = await batch.file(store, ("r", "s"))
    assert filed == Filed(set(), {}, None, 100)
    assert ((await store.ledger("r"))["added"], (await store.ledger("s"))["added"]) == (50, 50)
    assert batch.metrics.total("records_added_total") == 100


@pytest.mark.parametrize("kind", ["set", "values"])
@pytest.mark.parametrize("planted", [[b"t0"], [b"t63"], [b"t5", b"t6"], [b"t1", b"t31", b"t62"], names(64)])
async def test_only_what_was_planted_is_refused(
    store: Timelines, plain: Scripts, kind: str, planted: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    for timeline in planted:
        plant(plain, kind, timeline)
    batch = Batch(*names(64))
    filed = await batch.file(store)
    assert (filed.unsafe, filed.failure) == (set(), None)
    assert batch.timelines_of(set(filed.refused)) == sorted(planted)
    assert (await store.ledger("r")).get("added", 0) == 64 - len(planted)
    assert [record.msg for record in caplog.records] == ["consumer.timeline.refused_by_store"] * len(planted)
    wanted = "zset" if kind == "set" else "hash"
    assert f"{{test:0}}:{kind}:r:{planted[0].decode()} is a list, not a {wanted}" in filed.refused.values()


async def test_several_records_of_a_planted_timeline_go_together(store: Timelines, plain: Scripts) -> None:
    plant(plain, "set", b"t1")
    batch = Batch(b"t0", b"t1", b"t2", b"t1", b"t1")
    filed = await batch.file(store)
    assert filed.refused.keys() == {id(batch.owners[n]) for n in (1, 3, 4)}
    assert filed.due_at_once == 2


@pytest.mark.parametrize("kind", ["waiting", "schedule", "ledger", "count"])
async def test_where_a_key_is_planted_that_all_share_nothing_is_refused(
    store: Timelines, plain: Scripts, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    plant(plain, kind)
    for batch in (Batch(*names(4)), Batch(b"t")):
        filed = await batch.file(store)
        assert filed.refused == {}
        assert filed.unsafe == {id(owner) for owner in batch.owners}
        assert filed.failure is not None
        assert filed.failure.reason == "redis-script"
    assert {record.msg for record in caplog.records} == {"consumer.store.damaged"}


async def test_a_shared_key_that_only_some_of_them_touch_is_not_their_fault(store: Timelines, plain: Scripts) -> None:
    """The losses: only a record that another supersedes is counted there, and after it was stored."""
    first = Batch(b"t1")
    await first.file(store)
    plant(plain, "losses")
    batch = Batch(b"t0", b"t1")
    batch.records[1] = Record(0, b"t1", first.records[0].key, 9_000, b"newer", False)
    filed = await batch.file(store)
    assert filed.refused == {}
    assert plain.open_set(b"t1") == {first.records[0].key: (9_000, b"newer")}


async def test_once_mended_it_goes_in(store: Timelines, plain: Scripts) -> None:
    plant(plain, "set", b"t1")
    batch = Batch(*names(3))
    assert len((await batch.file(store)).refused) == 1
    plain.command("DEL", plain.key("set", "r", b"t1"))
    assert await batch.file(store) == Filed(set(), {}, None, 1)


def script_calls(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


@pytest.mark.parametrize("setting", [("maxmemory", "1"), ("min-replicas-to-write", "1")])
async def test_other_failures_are_never_split(
    open_store: OpenStore, redis_factory: Callable[..., RedisServer], setting: tuple[str, str]
) -> None:
    server = redis_factory()
    store = open_store(server.url)
    await store.start()
    warm = Batch(b"t")
    await warm.file(store)
    server.cli("CONFIG", "SET", *setting)
    before = script_calls(server)
    batch = Batch(*names(64))
    filed = await batch.file(store)
    assert script_calls(server) - before == 1
    assert (filed.refused, len(filed.unsafe)) == ({}, 64)


async def test_a_failure_on_the_way_leaves_the_rest_unsafe_and_refuses_nothing(
    store: Timelines, plain: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third call on Redis is out of reach: what went in before is safe, the rest comes again."""
    plant(plain, "set", b"t0")
    sent, add = 0, store.add

    async def add_or_fail(*arguments: object) -> object:
        nonlocal sent
        sent += 1
        if sent > 2:
            raise StoreError("redis-timeout", "")
        return await add(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "add", add_or_fail)
    batch = Batch(*names(8))
    filed = await batch.file(store)
    assert filed.refused == {}
    assert filed.failure is not None
    assert filed.failure.reason == "redis-timeout"
    assert b"t0" in batch.timelines_of(filed.unsafe)
    safe = set(names(8)) - set(batch.timelines_of(filed.unsafe))
    assert all(plain.open_set(timeline) for timeline in safe)
