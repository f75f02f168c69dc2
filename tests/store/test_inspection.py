"""inspection.py: a timeline by its name, and what is known of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nsqdigest.store.dead import Details
from nsqdigest.store.head import Head
from nsqdigest.store.inspection import Inspector, Place
from nsqdigest.store.keys import own_timeline
from nsqdigest.store.listing import State
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from support.servers import RedisServer
from support.store import Scripts
from support.stores import PLAN, USERS, OpenStore, add, bury_digest, close_digest, open_digest, rec, url_as

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
LEASE_MS = 60_000
OTHER = StoreRoute("other", capacity=2, increment_ms=1000, dedupe_window_ms=600_000)
HERE = Place(0, "r", "t")


@pytest.fixture(params=USERS)
def store_url(redis_url: str, shared_redis: RedisServer, request: pytest.FixtureRequest) -> str:
    return url_as(request.param, shared_redis, redis_url)


@pytest.fixture
def store_routes() -> Sequence[StoreRoute]:
    return PLAN, OTHER


@pytest.fixture
def inspector(store: Store) -> Inspector:
    return Inspector(store.namespace)


async def opened(store: Store) -> Head:
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    head = await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    assert isinstance(head, Head)
    return head


async def test_it_is_found_in_the_routes_that_have_it(store: Store, inspector: Inspector) -> None:
    await add(store)
    assert await inspector.find("t", ["r", "other"]) == [HERE]
    await add(store, route="other")
    assert await inspector.find("t", ["r", "other", "never"]) == [HERE, Place(0, "other", "t")]
    assert await inspector.find("t", ["never"]) == []
    assert await inspector.find("", ["r"]) == []


async def test_it_is_found_in_its_partition(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, partitions=8)
    await store.start()
    inspector = Inspector(store.namespace)
    for number in range(20):
        name = b"%d" % number
        await add(store, rec(timeline=name), partition=store.timelines.partition_of(name))
    for number in range(20):
        (place,) = await inspector.find(f"{number}", ["r"])
        assert await inspector.look(place, 0) is not None


async def test_what_waits(store: Store, inspector: Inspector) -> None:
    base_ms = store.clock.now_ms() + HOUR_MS
    records = [rec(b"%d" % number, number + 1) for number in range(3)]
    await store.timelines.add("other", 0, records, Schedule(base_ms, base_ms + HOUR_MS))
    known = await inspector.look(Place(0, "other", "t"), 1000)
    assert known is not None
    assert (known.state, known.at_ms, known.bound_ms) == (State.WAITING, base_ms + 2000, base_ms + HOUR_MS)
    assert (known.records, known.dropped_capacity, known.iteration, known.digest) == (2, 1, 0, None)


async def test_what_is_being_delivered(store: Store, inspector: Inspector) -> None:
    await add(store, rec(b"a", 1), rec(b"b", 2))
    await opened(store)
    await add(store, rec(b"c", 3))
    known = await inspector.look(HERE, 0)
    assert known is not None
    assert (known.state, known.records, known.iteration) == (State.LEASED, 1, 1)
    assert known.digest is not None
    assert (known.digest.id, known.digest.total) == ("id-1", 2)
    assert 0 < known.at_ms - known.now_ms <= LEASE_MS
    assert [record.key for record in await inspector.digest_records(HERE, 9)] == [b"b", b"a"]
    assert [record.key for record in await inspector.records(HERE, 9)] == [b"c"]


async def test_what_was_delivered(store: Store, inspector: Inspector) -> None:
    await add(store)
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    later_ms = store.clock.now_ms() + HOUR_MS
    await close_digest(store, claim, "id-1", Schedule(later_ms, later_ms))
    known = await inspector.look(HERE, 0)
    assert known is not None
    assert (known.last_id, known.iteration, known.digest, known.records) == ("id-1", 1, None, 0)
    assert (known.state, known.remembered) == (State.IDLE, 1)


async def test_the_newest_records_come_first_and_no_more_than_asked(store: Store, inspector: Inspector) -> None:
    await add(store, *(rec(b"%d" % number, number + 1, b'{"n":%d}' % number) for number in range(20)))
    found = await inspector.records(HERE, 3)
    assert [(record.key, record.timestamp_ms, record.value) for record in found] == [
        (b"19", 20, b'{"n":19}'), (b"18", 19, b'{"n":18}'), (b"17", 18, b'{"n":17}'),
    ]  # fmt: skip
    assert await inspector.records(HERE, 0) == []


async def test_a_record_without_a_value_is_left_out(store: Store, inspector: Inspector, plain: Scripts) -> None:
    await add(store, rec(b"a", 1), rec(b"b", 2))
    plain.command("HDEL", plain.key("values:r:t"), "a")
    assert [record.key for record in await inspector.records(HERE, 9)] == [b"b"]


async def test_one_that_is_nowhere_and_one_that_is_gone(store: Store, inspector: Inspector, plain: Scripts) -> None:
    await add(store)
    plain.command("ZREM", plain.key("waiting:r"), "t")
    known = await inspector.look(HERE, 0)
    assert known is not None
    assert known.state is None
    await store.operations.delete("r", "t")
    assert await inspector.look(HERE, 0) is None


async def test_a_revived_digest_is_found_by_its_id_and_beside_its_timeline(store: Store, inspector: Inspector) -> None:
    await add(store)
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    head = await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    assert isinstance(head, Head)
    later = Schedule(head.opened_ms + HOUR_MS, head.opened_ms + HOUR_MS)
    await bury_digest(store, claim, "id-1", later, Details(head, "r", "t", "out", "refused", "").encode())
    assert await inspector.revived_of("t", ["r"]) == []
    dead = await store.dead.find("id-1")
    assert dead is not None
    await store.dead.revive(dead)
    own = Place(0, "r", own_timeline("id-1", "t"))
    assert await inspector.find("t", ["r", "other"], "id-1") == [own]
    assert await inspector.revived_of("t", ["r", "other"]) == [own]
    assert await inspector.find("t", ["r"]) == [HERE]
    assert own.shown == "t"
