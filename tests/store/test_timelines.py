"""timelines.py against real Redis: what each method does, and what each fault of Redis or of the network becomes."""

from __future__ import annotations

import asyncio
import random

import pytest

from nsqdigest.audit.ledger import balances
from nsqdigest.base.errors import StoreError
from nsqdigest.store.answers import Claim, Ended, NotOpened
from nsqdigest.store.dead import Details
from nsqdigest.store.head import Head
from nsqdigest.store.keys import partition_limit
from nsqdigest.store.packing import BYTES_PER_CALL, RECORDS_PER_CALL, first_page, next_page
from nsqdigest.store.record import AN_END, Record, StoredRecord
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.servers.facts import RedisClock
from nsqdigest.store.store import Store
from support.servers import RedisServer
from support.store import Rec, Scripts, inconsistencies
from support.stores import (
    PLAN,
    USERS,
    OpenStore,
    T,
    add,
    bury_digest,
    close_digest,
    defer_digest,
    fail_digest,
    open_digest,
    rec,
    url_as,
)
from support.waiting import until

pytestmark = pytest.mark.integration

LEASE_MS = 60_000


@pytest.fixture(params=USERS)
def store_url(redis_url: str, shared_redis: RedisServer, request: pytest.FixtureRequest) -> str:
    return url_as(request.param, shared_redis, redis_url)


async def claim_one(store: Store, lease_ms: int = LEASE_MS, partition: int = 0) -> Claim:
    (claim,) = (await store.digests.claim(partition, [("r", 0)], [500], lease_ms)).claims
    return claim


async def open_one(store: Store, claim: Claim, digest_id: str = "id-1") -> Head:
    opened = await open_digest(store, claim, digest_id, [store.clock.now_ms()])
    assert isinstance(opened, Head)
    return opened


def details_of(opened: Head) -> Details:
    return Details(opened, "r", "t", "out", "refused", "status 422")


def at_once(store: Store) -> Schedule:
    return Schedule(store.clock.now_ms(), store.clock.now_ms())


# -- the way of a digest


async def test_a_digest_goes_all_its_way(store: Store, plain: Scripts) -> None:
    added = await add(store, rec(b"a", 1, b"one"), rec(b"b", 2, b"two"))
    assert (added.added, added.due_at_once) == (2, 1)
    claim = await claim_one(store)
    assert (claim.route, claim.timeline, claim.partition) == ("r", "t", 0)
    opened = await open_one(store, claim)
    assert (opened.attempt, opened.iteration, opened.total) == (1, 1, 2)
    assert await store.digests.oldest_ms(claim) == 1
    assert await store.digests.page(claim, opened, 0, 2) == [
        StoredRecord(b"b", 2, b"two"),
        StoredRecord(b"a", 1, b"one"),
    ]
    assert await store.digests.renew(claim, LEASE_MS)
    assert await fail_digest(store, claim, store.clock.now_ms()) is Ended.DONE
    again = await open_one(store, claim := await claim_one(store), "not taken")
    assert again == opened._replace(attempts=1, tries=1)
    assert await close_digest(store, claim, "id-1", at_once(store)) is Ended.DONE
    assert await close_digest(store, claim, "id-1", at_once(store)) is Ended.ALREADY
    assert plain.memory(T) == {b"a": 1000, b"b": 2000}
    assert await open_digest(store, await claim_one(store), "id-2", [0]) is NotOpened.EMPTY
    ledger = await store.operations.ledger("r")
    assert balances(ledger)
    assert {field: value for field, value in ledger.items() if value} == {"added": 2, "delivered": 2}


async def test_every_call_with_a_stale_token_says_so(store: Store, plain: Scripts) -> None:
    await add(store)
    opened = await open_one(store, stale := await claim_one(store))
    await fail_digest(store, stale, store.clock.now_ms())
    await claim_one(store)
    before = plain.dump()
    assert await open_digest(store, stale, "other", [0]) is NotOpened.STALE
    assert not await store.digests.renew(stale, LEASE_MS)
    assert await fail_digest(store, stale, 0) is Ended.STALE
    assert await defer_digest(store, stale, 0) is Ended.STALE
    assert await close_digest(store, stale, opened.id, at_once(store)) is Ended.STALE
    assert await bury_digest(store, stale, opened.id, at_once(store), b"{}") is Ended.STALE
    assert plain.dump() == before


async def test_a_deferred_attempt_does_not_count(store: Store) -> None:
    await add(store)
    claim = await claim_one(store)
    assert (await open_one(store, claim)).attempt == 1
    await defer_digest(store, claim, store.clock.now_ms())
    await defer_digest(store, await claim_one(store), store.clock.now_ms())
    assert (await open_one(store, await claim_one(store))).attempt == 1


async def ran_out(store: Store) -> int:
    return (await store.upkeep.maintain(0, ["r"], LEASE_MS)).ran_out


async def test_a_lease_that_ran_out_is_taken_back(store: Store) -> None:
    await add(store)
    first = await claim_one(store, lease_ms=1)
    assert await until(lambda: ran_out(store)) == 1
    assert (await claim_one(store)).token != first.token


async def test_two_workers_never_have_the_same_timeline(open_store: OpenStore, redis_url: str) -> None:
    workers = [open_store(redis_url) for _ in range(4)]
    for worker in workers:
        await worker.start()
    await add(workers[0], *(rec(timeline=b"%d" % n) for n in range(100)))
    taken = await asyncio.gather(
        *(worker.digests.claim(0, [("r", 0)], [30], LEASE_MS) for worker in workers for _ in range(2))
    )
    names = [claim.timeline for claimed in taken for claim in claimed.claims]
    assert (len(names), len(set(names))) == (100, 100)


async def test_dead_digests_beyond_the_limit_are_told_and_dropped(
    open_store: OpenStore, redis_url: str, plain: Scripts
) -> None:
    store, roomy = open_store(redis_url, dead_digests=2), open_store(redis_url, dead_digests=4)
    await store.start()
    for n in range(4):
        await add(store, rec(), rec(b"l"), rec(b"m"))
        opened = await open_one(store, claim := await claim_one(store), f"id-{n}")
        assert await bury_digest(store, claim, opened.id, at_once(store), details_of(opened).encode()) is Ended.DONE
        assert await bury_digest(store, claim, opened.id, at_once(store), b"") is Ended.ALREADY
        plain.command("ZADD", plain.key("dead"), n, opened.id)  # so that their order does not hang on the clock
    assert (await roomy.dead.over_limit(0, 0, 9)).found == []
    assert [dead.id for dead in (await store.dead.over_limit(0, 0, 9)).found] == ["id-0", "id-1"]
    (oldest,) = (await store.dead.over_limit(0, 0, 1)).found
    assert oldest.id == "id-0"
    assert await store.dead.drop(oldest) == 3
    assert await store.dead.drop(oldest) is None
    assert balances(ledger := await store.operations.ledger("r"))
    assert (ledger["buried"], ledger["deleted"]) == (9, 3)


@pytest.mark.parametrize("limit", [1, 32, 320])
async def test_as_many_timelines_as_the_limit_says_are_taken_in_whatever_partitions_they_are_in(
    open_store: OpenStore, redis_url: str, limit: int
) -> None:
    store = open_store(redis_url, limit=limit, partitions=32)
    await store.start()
    by_partition: dict[int, list[Record]] = {}
    for n in range(limit):
        name = b"user:%d" % n
        by_partition.setdefault(store.timelines.partition_of(name), []).append(rec(timeline=name))
    added = [await add(store, *records, partition=partition) for partition, records in by_partition.items()]
    assert sum(each.dropped_timelines for each in added) == 0


async def test_in_one_partition_there_are_no_more_timelines_than_the_limit_says(store: Store) -> None:
    added = await add(store, *(rec(timeline=b"%d" % n) for n in range(1001)), partition=0)
    assert added.dropped_timelines == 1


# -- claims


async def test_a_route_draws_on_the_budget_whose_number_stands_beside_it(open_store: OpenStore, redis_url: str) -> None:
    names = ("one", "two", "three")
    store = open_store(redis_url, [PLAN._replace(name=name) for name in names])
    await store.start()
    for name in names:
        await add(store, *(rec(timeline=b"%d" % n) for n in range(3)), route=name)
    claimed = await store.digests.claim(0, [("one", 1), ("two", 0), ("three", 1)], [2, 4], LEASE_MS)
    assert [claim.route for claim in claimed.claims] == ["one"] * 3 + ["two"] * 2 + ["three"]


async def test_it_tells_when_the_next_is_due(store: Store) -> None:
    assert (await store.digests.claim(0, [("r", 0)], [1], LEASE_MS)).next_due_ms is None
    now_ms = store.clock.now_ms()
    await store.timelines.add("r", 0, [rec()], Schedule(now_ms + 5000, now_ms + 5000))
    assert (await store.digests.claim(0, [("r", 0)], [1], LEASE_MS)).next_due_ms == now_ms + 5000


async def test_increments_of_the_route_postpone_its_digest(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, [PLAN._replace(increment_ms=10_000)])
    await store.start()
    now_ms = store.clock.now_ms()
    await store.timelines.add("r", 0, [rec(b"%d" % n) for n in range(3)], Schedule(now_ms, now_ms + 99_000))
    claimed = await store.digests.claim(0, [("r", 0)], [1], LEASE_MS)
    assert (claimed.claims, claimed.next_due_ms) == ([], now_ms + 30_000)


# -- pages


async def test_pages_cover_the_snapshot_newest_first(store: Store) -> None:
    await add(store, *(rec(b"%02d" % n, n) for n in range(10)))
    opened = await open_one(store, claim := await claim_one(store))
    keys: list[bytes] = []
    while len(keys) < 10:
        page = await store.digests.page(claim, opened, len(keys), 4)
        assert page
        keys += [record.key for record in page if record is not None]
    assert keys == [b"%02d" % n for n in reversed(range(10))]
    assert await store.digests.page(claim, opened, 10, 4) == []


async def test_a_page_of_a_digest_that_was_closed_meanwhile_is_none_of_ours(store: Store) -> None:
    await add(store)
    opened = await open_one(store, claim := await claim_one(store))
    await close_digest(store, claim, opened.id, at_once(store))
    assert await store.digests.page(claim, opened, 0, 1) is None
    await add(store, rec(b"next"))
    await open_one(store, await claim_one(store), "id-2")
    assert await store.digests.page(claim, opened, 0, 1) is None


async def test_a_page_shows_where_records_and_values_are_gone(store: Store, plain: Scripts) -> None:
    await add(store, rec(b"a", 1), rec(b"b", 2))
    opened = await open_one(store, claim := await claim_one(store))
    plain.command("HDEL", plain.key("digest-values", "r", T), "b")
    assert await store.digests.page(claim, opened, 0, 2) == [None, StoredRecord(b"a", 1, b"{}")]
    plain.command("ZREM", plain.key("digest", "r", T), "b")
    assert await store.digests.page(claim, opened, 0, 2) is None


# -- names, sizes, partitions


@pytest.mark.parametrize(
    "name", ["a b", ":", "t:v:", "::i:r:t", "{other:1}:x", "}{", "ü🐙", '%s *?[a]"\\', "\u2028", "n", "x" * 4096]
)
async def test_any_text_may_name_a_timeline_and_a_record(store: Store, plain: Scripts, name: str) -> None:
    encoded = name.encode()
    await add(store, rec(encoded, timeline=encoded), rec(encoded, possible_repeat=True))
    claims = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    assert {claim.timeline for claim in claims} == {name, "t"}
    for claim in claims:
        opened = await open_one(store, claim, f"id-{claims.index(claim)}")
        assert opened.id == f"id-{claims.index(claim)}"
        assert await store.digests.page(claim, opened, 0, 1) == [StoredRecord(encoded, 1, b"{}")]
        await close_digest(store, claim, opened.id, at_once(store))
    assert inconsistencies(plain.tag, {k: v for k, v in plain.contents().items() if k != plain.key("layout")}) == []


async def test_batches_are_packed_as_the_header_of_add_says(store: Store, plain: Scripts) -> None:
    records = [
        rec(b"k%d" % n, n, random.randbytes(n), timeline=b"t%d" % (n % 4), possible_repeat=n % 4 == 2 and n % 3 == 0)
        for n in range(40)
    ]
    await add(store, *records)
    by_store = plain.contents()
    schedule = plain.schedule(b"t0")
    assert schedule is not None
    names = [name for name in by_store if name not in (plain.key("layout"), plain.key("routes"))]
    plain.command("DEL", *names)
    plain.add(
        *(Rec(of.timeline, of.key, of.timestamp_us, of.value, of.possible_repeat) for of in records),
        base_ms=schedule[0],
    )
    assert plain.contents() == by_store


async def test_500_records_and_a_mebibyte_in_one_call(store: Store) -> None:
    value = random.randbytes(2000)
    assert (await add(store, *(rec(b"%d" % n, value=value) for n in range(RECORDS_PER_CALL)))).added == 500
    opened = await open_one(store, claim := await claim_one(store))
    page = await store.digests.page(claim, opened, 0, 500)
    assert page is not None
    assert {record.value for record in page if record is not None} == {value}


async def test_a_timeline_stays_in_its_partition(open_store: OpenStore, redis_url: str, plain: Scripts) -> None:
    store = open_store(redis_url, partitions=4)
    await store.start()
    names = [b"%d" % n for n in range(64)]
    for name in names:
        await add(store, rec(timeline=name), partition=store.timelines.partition_of(name))
    for partition in range(4):
        theirs = {name for name in names if store.timelines.partition_of(name) == partition}
        assert 4 < len(theirs) < 40
        claims = (await store.digests.claim(partition, [("r", 0)], [99], LEASE_MS)).claims
        assert {claim.timeline.encode() for claim in claims} == theirs
        assert {claim.partition for claim in claims} == {partition}
    assert (await store.operations.ledger("r"))["added"] == 64
    tags = {name.partition(b"}")[0] for name in plain.contents()}
    assert tags == {b"{test:%d" % partition for partition in range(4)}


async def test_the_partition_of_a_timeline_is_for_ever(open_store: OpenStore, redis_url: str) -> None:
    """Another hash would lose what waits."""
    store = open_store(redis_url, partitions=32)
    names = (b"", b"user:42", "ü".encode())
    assert [store.timelines.partition_of(name) for name in names] == [0, 6, 21]


async def test_namespaces_do_not_meet(open_store: OpenStore, redis_url: str) -> None:
    one, two = open_store(redis_url, namespace="one"), open_store(redis_url, namespace="two", partitions=2)
    await one.start()
    await two.start()
    await add(one)
    assert (await two.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims == []
    assert one.namespace.epochs[0] not in two.namespace.epochs


def test_a_partition_may_have_its_share_of_a_limit_and_what_chance_adds() -> None:
    assert [partition_limit(limit, 32) for limit in (1, 320, 1_000_000)] == [1, 29, 32_311]
    assert partition_limit(1_000_000, 1) == 1_000_000


# -- the clock


def test_before_any_answer_there_is_no_time() -> None:
    with pytest.raises(StoreError):
        RedisClock().now_ms()


class Monotonic:
    """Time as the test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr("nsqdigest.store.servers.facts.time.monotonic", lambda: self.now_s)


def test_the_clock_goes_on_between_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    time, clock = Monotonic(monkeypatch), RedisClock()
    clock.observe(5_000_000)
    time.now_s += 2
    assert clock.now_ms() == 5_002_000


def test_an_answer_that_was_long_on_its_way_does_not_set_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    time, clock = Monotonic(monkeypatch), RedisClock()
    clock.observe(5_000_000)
    time.now_s += 0.4
    clock.observe(5_000_100)
    assert 5_000_399 <= clock.now_ms() <= 5_000_400


@pytest.mark.parametrize("step_ms", [-3_600_000, -86_400_000, 3_600_000, 1])
def test_a_clock_that_was_set_is_followed(monkeypatch: pytest.MonkeyPatch, step_ms: int) -> None:
    time, clock = Monotonic(monkeypatch), RedisClock()
    clock.observe(500_000_000)
    time.now_s += 1
    clock.observe(500_001_000 + step_ms)
    assert clock.now_ms() == 500_001_000 + step_ms


async def test_every_answer_tells_the_time(store: Store, plain: Scripts) -> None:
    seconds, microseconds = plain.command("TIME")
    await add(store)
    assert 0 <= store.clock.now_ms() - (seconds * 1000 + microseconds // 1000) < 10_000


# -- how much a call carries


def test_pages_are_as_large_as_the_records_before_allow() -> None:
    assert [first_page(total) for total in (1, 16, 17, 5000)] == [1, 16, 16, 16]
    assert next_page(16, 16 * 100, 5000) == RECORDS_PER_CALL
    assert next_page(16, 16 * 100, 3) == 3
    assert next_page(16, 16 * (BYTES_PER_CALL // 10), 5000) == 10
    assert next_page(16, 16 * 2 * BYTES_PER_CALL, 5000) == 1
    assert next_page(16, 0, 5000) == RECORDS_PER_CALL


# -- the order of records


async def test_of_equal_timestamps_the_smaller_key_counts_as_newer_for_capacity_and_pages_alike(
    open_store: OpenStore, redis_url: str
) -> None:
    store = open_store(redis_url, [PLAN._replace(capacity=40)])
    await store.start()
    names = [b"k%02d" % n for n in range(50)]
    await add(store, *(rec(key) for key in random.sample(names, len(names))))
    opened = await open_one(store, claim := await claim_one(store))
    pages = [await store.digests.page(claim, opened, start, 16) for start in (0, 16, 32)]
    assert [record.key for page in pages for record in page or () if record is not None] == names[:40]


async def test_what_nsqd_took_in_within_one_millisecond_is_paged_newest_first(store: Store) -> None:
    total = 50
    records = [Record(0, T, b"%03d" % n, 1_700_000_000_000_000 + n // 3, b"%d" % n, False) for n in range(total)]
    await store.timelines.add("r", 0, random.sample(records, total), Schedule(0, 0))
    claim = await claim_one(store)
    opened = await open_digest(store, claim, "id", [0])
    assert isinstance(opened, Head)
    found: list[bytes] = []
    while len(found) < total:
        page = await store.digests.page(claim, opened, len(found), 16)
        assert page
        found += [record.value for record in page if record is not None]
    assert found == [b"%d" % n for n in sorted(range(total), key=lambda n: (-(n // 3), n))]


async def test_an_end_is_known_as_long_as_it_may_wait_and_the_window_afterwards(
    open_store: OpenStore, store_url: str, plain: Scripts
) -> None:
    store = open_store(store_url, [PLAN._replace(longest_ms=2_000_000, has_ends=True)])
    await store.start()
    await add(store, Record(0, T, b"k", 1000, b"ended", possible_repeat=False, end=AN_END))
    left_ms = plain.command("PTTL", plain.key("ends", "r", T))
    assert 2_000_000 + PLAN.dedupe_window_ms - 60_000 < left_ms <= 2_000_000 + PLAN.dedupe_window_ms


async def deliver(store: Store, digest_id: str) -> None:
    await open_one(store, claim := await claim_one(store), digest_id)
    assert await close_digest(store, claim, digest_id, at_once(store)) is Ended.DONE


@pytest.mark.parametrize("store_routes", [[PLAN._replace(capacity=5)]])
async def test_a_small_timeline_knows_within_the_window_what_it_delivered(store: Store) -> None:
    for number in range(12):
        await add(store, *[rec(b"%d" % each, number) for each in range(5 * number, 5 * number + 5)])
        await deliver(store, f"id-{number}")
    again = await add(store, *[rec(b"%d" % each, each // 5, possible_repeat=True) for each in range(60)])
    assert again.dropped_duplicate == 60
    assert store.digests.take_forgotten() == {}


@pytest.mark.parametrize("store_routes", [[PLAN._replace(capacity=600)]])
async def test_keys_that_are_forgotten_within_the_window_are_counted(store: Store) -> None:
    for number in range(3):
        for part in (range(0, 300), range(300, 600)):
            await add(store, *[rec(b"%d %d" % (number, each), number) for each in part])
        await deliver(store, f"id-{number}")
    assert store.digests.take_forgotten() == {"r": 600}
    assert store.digests.take_forgotten() == {}
    again = await add(store, *[rec(b"%d 7" % number, number, possible_repeat=True) for number in range(3)])
    assert (again.added, again.dropped_duplicate) == (3, 2)
