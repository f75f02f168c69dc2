"""The writes of a batch on a real Redis: all partitions at a time, and records that the script cannot work with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
import redis

from nsqdigest.base.errors import StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.intake.writer import Place, StoreWriter, WriteResult, calls_of
from nsqdigest.nsq.frames import Message
from nsqdigest.store.answers import Added
from nsqdigest.store.packing import BYTES_PER_CALL, RECORDS_PER_CALL
from nsqdigest.store.record import Record
from nsqdigest.store.schedule import Plan, Schedule
from nsqdigest.store.store import Store
from support import settings
from support.ports import HOST
from support.routes import intake_route
from support.servers import RedisServer
from support.store import Scripts
from support.stores import PLAN, OpenStore, limited_url, rec

pytestmark = pytest.mark.integration

POLICY = replace(settings.POLICY, minimum_delay_ms=1000, maximum_delay_ms=1000)


@pytest.fixture
async def store(open_store: OpenStore, redis_url: str, shared_redis: RedisServer) -> Store:
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
        for n, record in enumerate(self.records):
            record.route = route
            record.source = Message(b"%016d" % n, n, 1, b"{}")
        self.metrics = Metrics()

    @property
    def sources(self) -> list[object]:
        return [record.source for record in self.records]

    def timelines_of(self, sources: Iterable[object]) -> list[bytes]:
        wanted = set(sources)
        return sorted({record.timeline for record in self.records if record.source in wanted})

    def places(self, store: Store, routes: Sequence[str] = ("r",)) -> frozenset[Place]:
        return frozenset((routes[each.route], store.timelines.partition_of(each.timeline)) for each in self.records)

    async def write(self, store: Store, routes: Sequence[str] = ("r",)) -> WriteResult:
        intake_routes = [intake_route(number=number, name=name, policy=POLICY) for number, name in enumerate(routes)]
        writer = StoreWriter(intake_routes, store.timelines, self.metrics)
        return await writer.write(self.records, store.clock.now_ms())


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
    written = await batch.write(store, ("r", "s"))
    assert written == WriteResult(due=batch.places(store, ("r", "s")))
    assert ((await store.operations.ledger("r"))["added"], (await store.operations.ledger("s"))["added"]) == (50, 50)
    assert batch.metrics.total("records_added_total") == 100


async def test_a_timeline_begins_when_its_batch_was_decoded(store: Store, plain: Scripts) -> None:
    decoded_ms = store.clock.now_ms() - 300
    writer = StoreWriter([intake_route(policy=POLICY)], store.timelines, Metrics())
    await writer.write(Batch(b"t").records, decoded_ms)
    assert plain.schedule(b"t") == (*Plan(POLICY).beginning(decoded_ms), 1)


@pytest.mark.parametrize("kind", ["set", "values"])
@pytest.mark.parametrize("planted", [[b"t0"], [b"t63"], [b"t5", b"t6"], [b"t1", b"t31", b"t62"], names(64)])
async def test_only_what_was_planted_is_refused(
    store: Store, plain: Scripts, kind: str, planted: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    for timeline in planted:
        plant(plain, kind, timeline)
    batch = Batch(*names(64))
    written = await batch.write(store)
    assert not written.not_stored
    assert written.failure is None
    assert batch.timelines_of(written.refused) == sorted(planted)
    assert (await store.operations.ledger("r")).get("added", 0) == 64 - len(planted)
    assert [record.msg for record in caplog.records] == ["consumer.timeline.refused_by_store"] * len(planted)
    wanted = "zset" if kind == "set" else "hash"
    assert f"{{test:0}}:{kind}:r:{planted[0].decode()} is a list, not a {wanted}" in written.refused.values()


async def test_several_records_of_a_planted_timeline_go_together(store: Store, plain: Scripts) -> None:
    plant(plain, "set", b"t1")
    batch = Batch(b"t0", b"t1", b"t2", b"t1", b"t1")
    written = await batch.write(store)
    assert written.refused.keys() == {batch.sources[n] for n in (1, 3, 4)}
    assert written.due == {("r", 0)}


@pytest.mark.parametrize("kind", ["waiting", "schedule", "ledger", "count"])
async def test_where_a_key_is_planted_that_all_share_nothing_is_refused(
    store: Store, plain: Scripts, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    plant(plain, kind)
    for batch in (Batch(*names(4)), Batch(b"t")):
        written = await batch.write(store)
        assert written.refused == {}
        assert written.not_stored == set(batch.sources)
        assert written.failure is not None
        assert written.failure.reason == "redis-script"
    assert {record.msg for record in caplog.records} == {"consumer.store.damaged"}


async def test_a_shared_key_that_only_some_of_them_touch_is_not_their_fault(store: Store, plain: Scripts) -> None:
    """The losses: only a record that another supersedes is counted there, and after it was stored."""
    first = Batch(b"t1")
    await first.write(store)
    plant(plain, "losses")
    batch = Batch(b"t0", b"t1")
    batch.records[1] = Record(0, b"t1", first.records[0].key, 9_000, b"newer", False)
    written = await batch.write(store)
    assert written.refused == {}
    assert plain.open_set(b"t1") == {first.records[0].key: (9_000, b"newer")}


async def test_once_mended_it_goes_in(store: Store, plain: Scripts) -> None:
    plant(plain, "set", b"t1")
    batch = Batch(*names(3))
    assert len((await batch.write(store)).refused) == 1
    plain.command("DEL", plain.key("set", "r", b"t1"))
    assert await batch.write(store) == WriteResult(due=frozenset([("r", 0)]))


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
    await warm.write(store)
    server.cli("CONFIG", "SET", *setting)
    before = script_calls(server)
    batch = Batch(*names(64))
    written = await batch.write(store)
    assert script_calls(server) - before == 1
    assert (written.refused, len(written.not_stored)) == ({}, 64)


async def test_a_failure_on_the_way_leaves_the_rest_unsafe_and_refuses_nothing(
    store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the third call on Redis is out of reach: what went in before is safe, the rest comes again."""
    plant(plain, "set", b"t0")
    sent, add = 0, store.timelines.add

    async def add_or_fail(*arguments: object) -> object:
        nonlocal sent
        sent += 1
        if sent > 2:
            raise StoreError("redis-timeout", "")
        return await add(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store.timelines, "add", add_or_fail)
    batch = Batch(*names(8))
    written = await batch.write(store)
    assert written.refused == {}
    assert written.failure is not None
    assert written.failure.reason == "redis-timeout"
    assert b"t0" in batch.timelines_of(written.not_stored)
    safe = set(names(8)) - set(batch.timelines_of(written.not_stored))
    assert all(plain.open_set(timeline) for timeline in safe)


# -- whose fault a failing script is


def let_add_fail(monkeypatch: pytest.MonkeyPatch, store: Store, reasons: Mapping[bytes, str]) -> list[set[bytes]]:
    """Where a call has a record of such a timeline it fails for this reason. Returns what was asked of each call."""
    asked: list[set[bytes]] = []
    add = store.timelines.add

    async def add_or_fail(route: str, partition: int, records: Sequence[Record], first: Schedule) -> Added:
        asked.append({record.timeline for record in records})
        for timeline, reason in reasons.items():
            if timeline in asked[-1]:
                raise StoreError(reason, timeline.decode())
        return await add(route, partition, records, first)

    monkeypatch.setattr(store.timelines, "add", add_or_fail)
    return asked


async def test_a_timeline_that_fails_beside_others_that_do_not_is_at_fault(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_add_fail(monkeypatch, store, {b"t1": "redis-script"})
    batch = Batch(b"t0", b"t1", b"t2")
    written = await batch.write(store)
    assert written == WriteResult(refused={batch.sources[1]: "redis-script: t1"}, due=frozenset([("r", 0)]))


async def test_a_timeline_that_fails_alone_may_not_be_at_fault(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    let_add_fail(monkeypatch, store, {b"t0": "redis-script"})
    batch = Batch(b"t0", b"t0")
    written = await batch.write(store)
    assert not written.refused
    assert written.not_stored == set(batch.sources)
    assert written.failure is not None
    assert written.failure.reason == "redis-script"


async def test_a_timeline_that_fails_while_a_shared_key_is_wrong_may_not_be_at_fault(
    store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its neighbours went in, but perhaps they did not need that key."""
    plant(plain, "losses")
    let_add_fail(monkeypatch, store, {b"t1": "redis-script"})
    batch = Batch(b"t0", b"t1")
    written = await batch.write(store)
    assert not written.refused
    assert written.not_stored == {batch.sources[1]}
    assert written.failure is not None


async def test_where_it_may_not_look_at_the_keys_nobody_is_at_fault(
    open_store: OpenStore, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_server.cli("ACL", "SETUSER", "blind", "on", ">secret", "~*", "+@all")
    store = open_store(f"redis://blind:secret@{HOST}:{redis_server.port}/0")
    await store.start()
    redis_server.cli("ACL", "SETUSER", "blind", "-type")
    let_add_fail(monkeypatch, store, {b"t1": "redis-script"})
    batch = Batch(b"t0", b"t1")
    written = await batch.write(store)
    assert not written.refused
    assert written.not_stored == {batch.sources[1]}
    assert written.failure is not None
    assert written.failure.reason == "redis-auth"


async def test_after_another_failure_a_call_is_not_split_any_further(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[bytes]] = []
    batch = Batch(*names(4))
    reasons = iter(["redis-script", "redis-script", "redis-timeout"])

    async def fail(route: str, partition: int, records: Sequence[Record], first: Schedule) -> Added:
        asked.append({record.timeline for record in records})
        raise StoreError(next(reasons), "")

    monkeypatch.setattr(store.timelines, "add", fail)
    written = await batch.write(store)
    assert asked == [set(names(4)), {b"t0", b"t1"}, {b"t2", b"t3"}]
    assert not written.refused
    assert written.not_stored == set(batch.sources)
    assert written.failure is not None
    assert written.failure.reason == "redis-timeout"


# -- which records go where


@pytest.mark.parametrize(("routes", "partitions"), [(1, 1), (1, 2), (1, 8), (2, 1), (2, 2)])
async def test_each_record_goes_to_its_route_and_partition(
    open_store: OpenStore, redis_url: str, monkeypatch: pytest.MonkeyPatch, routes: int, partitions: int
) -> None:
    called = ("r", "s")[:routes]
    store = open_store(redis_url, [PLAN._replace(name=name) for name in called], partitions=partitions)
    await store.start()
    gone: set[tuple[str, int, bytes]] = set()
    add = store.timelines.add

    async def add_and_note(route: str, partition: int, records: Sequence[Record], first: Schedule) -> Added:
        gone.update((route, partition, record.timeline) for record in records)
        return await add(route, partition, records, first)

    monkeypatch.setattr(store.timelines, "add", add_and_note)
    batch = Batch(*names(20))
    for record in batch.records[::routes]:
        record.route = routes - 1
    written = await batch.write(store, called)
    assert written == WriteResult(due=batch.places(store, called))
    assert gone == {
        (called[each.route], store.timelines.partition_of(each.timeline), each.timeline) for each in batch.records
    }


async def test_a_failure_in_one_partition_leaves_the_others_alone(
    open_store: OpenStore, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(redis_url, partitions=8)
    await store.start()
    batch = Batch(*names(40))
    in_0, in_1 = ({name for name in names(40) if store.timelines.partition_of(name) == number} for number in (0, 1))
    assert len(in_0) > 1
    refused = min(in_1)
    let_add_fail(monkeypatch, store, dict.fromkeys(in_0, "redis-timeout") | {refused: "redis-script"})
    written = await batch.write(store)
    assert batch.timelines_of(written.not_stored) == sorted(in_0)
    assert batch.timelines_of(written.refused) == [refused]
    assert written.failure is not None
    assert written.failure.reason == "redis-timeout"
    assert written.due == batch.places(store) - {("r", 0)}


async def test_nothing_is_filed_without_a_call(store: Store) -> None:
    assert await Batch().write(store) == WriteResult()


async def test_what_a_later_call_of_a_batch_refuses_is_told_of_its_own_message(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_add_fail(monkeypatch, store, {b"t": "redis-script"})
    batch = Batch(*[b"many"] * RECORDS_PER_CALL, b"t", b"many")
    written = await batch.write(store)
    assert written.refused == {batch.sources[RECORDS_PER_CALL]: "redis-script: t"}
    assert not written.not_stored
    assert written.failure is None


async def test_after_a_failure_the_calls_that_follow_are_not_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = let_add_fail(monkeypatch, store, {b"first": "redis-timeout"})
    batch = Batch(*[b"first"] * RECORDS_PER_CALL, b"second", b"third")
    written = await batch.write(store)
    assert asked == [{b"first"}]
    assert batch.timelines_of(written.not_stored) == [b"first", b"second", b"third"]


async def test_a_call_that_went_well_before_a_failure_does_not_let_the_calls_behind_it_be_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = let_add_fail(monkeypatch, store, {b"second": "redis-timeout"})
    of_each = [name for name in (b"first", b"second", b"third") for _ in range(RECORDS_PER_CALL)]
    batch = Batch(*of_each)
    written = await batch.write(store)
    assert asked == [{b"first"}, {b"second"}]
    assert batch.timelines_of(written.not_stored) == [b"second", b"third"]


# -- what one call carries


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


# -- what is counted


async def test_what_was_not_kept_is_counted_with_its_reason(
    open_store: OpenStore, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(redis_url, [PLAN._replace(capacity=2)], limit=1)
    await store.start()
    metrics = Metrics()
    for timelines in ([b"t"] * 3, [b"t", b"another", b"a-third"]):
        batch = Batch(*timelines)
        batch.metrics = metrics
        await batch.write(store)
        found = {
            reason: metrics.value("records_not_kept_total", route="r", reason=reason)
            for reason in ("superseded", "capacity", "timelines")
        }
        assert found["superseded"] is None  # of what did not happen there is no count
        assert found["capacity"]
        assert found["timelines"] == (2 if b"another" in timelines else None)
    (said,) = [record for record in caplog.records if record.msg == "consumer.timelines.limit_reached"]
    assert said.levelname == "ERROR"
