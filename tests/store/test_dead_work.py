"""dead_selection.py and dead_work.py: the dead digests that an operator means, each with one result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from nsqdigest.store import dead_selection
from nsqdigest.store.dead import Details
from nsqdigest.store.dead_selection import Selection
from nsqdigest.store.dead_work import DeadWork, Handled, Result
from nsqdigest.store.head import Head
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.store import Store
from support.servers import RedisServer
from support.store import Scripts
from support.stores import USERS, url_as

pytestmark = pytest.mark.integration

FOREVER_MS = 1 << 50


@pytest.fixture(params=USERS)
def store_url(redis_url: str, shared_redis: RedisServer, request: pytest.FixtureRequest) -> str:
    return url_as(request.param, shared_redis, redis_url)


def bury(
    plain: Scripts, digest_id: str, since_ms: int, *, route: str = "r", sink: str = "out", reason: str = "refused"
) -> None:
    """As finish.lua leaves it, with one record."""
    head = Head(digest_id, 1, since_ms, 1, 0, 0, since_ms, since_ms, 3, 3)
    details = Details(head, route, f"of {digest_id}", sink, reason, "422")
    plain.command("ZADD", plain.key("dead"), since_ms, digest_id)
    plain.command("HSET", plain.key("dead:details"), digest_id, details.encode())
    plain.command("ZADD", plain.key(f"dead-set:{digest_id}"), -1000, "k")
    plain.command("HSET", plain.key(f"dead-values:{digest_id}"), "k", "{}")
    plain.command("HINCRBY", plain.key(f"ledger:{route}"), "buried", 1)
    plain.command("HINCRBY", plain.key(f"ledger:{route}"), "added", 1)


async def all_of(handled: AsyncIterator[Handled]) -> list[tuple[str, Result]]:
    return [(each.id, each.result) async for each in handled]


# -- lists


async def test_the_newest_dead_come_first_and_the_rest_is_counted(store: Store, plain: Scripts) -> None:
    for number in range(2 * RECORDS_PER_CALL + 7):
        bury(plain, f"id-{number}", 1000 + number)
    found = await dead_selection.newest(store.dead, Selection(), 3)
    assert [dead.id for dead in found.dead] == ["id-1006", "id-1005", "id-1004"]
    assert (found.total, found.unreadable) == (1007, 0)


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (Selection(route="old"), {"b"}),
        (Selection(sink="hook"), {"c"}),
        (Selection(reason="too-old"), {"d"}),
        (Selection(timeline="of a"), {"a"}),
        (Selection(before_ms=2000), {"a", "b"}),
        (Selection(route="r", sink="hook"), {"c"}),
        (Selection(route="old", sink="hook"), set()),
    ],
)
async def test_filters(store: Store, plain: Scripts, wanted: Selection, ids: set[str]) -> None:
    bury(plain, "a", 1000)
    bury(plain, "b", 2000, route="old")
    bury(plain, "c", 3000, sink="hook")
    bury(plain, "d", 4000, reason="too-old")
    found = await dead_selection.newest(store.dead, wanted, 9)
    assert {dead.id for dead in found.dead} == ids
    assert found.total == len(ids)


async def test_what_cannot_be_read_is_counted(store: Store, plain: Scripts) -> None:
    bury(plain, "a", 1000)
    bury(plain, "b", 2000)
    plain.command("HSET", plain.key("dead:details"), "b", "nonsense")
    found = await dead_selection.newest(store.dead, Selection(), 9)
    assert ([dead.id for dead in found.dead], found.unreadable) == (["a"], 1)


async def test_its_records(store: Store, plain: Scripts) -> None:
    bury(plain, "a", 1000)
    dead = await store.dead.find("a")
    assert dead is not None
    (record,) = await store.dead.records(dead, 9)
    assert (record.key, record.timestamp_ms, record.value) == (b"k", 1, b"{}")


# -- replay and drop


@pytest.mark.parametrize("same_instant", [True, False])
async def test_all_of_several_pages_are_replayed_each_once(store: Store, plain: Scripts, same_instant: bool) -> None:
    """Those longest dead first, though each leaves the dead store on the way."""
    number_of_dead = 2 * RECORDS_PER_CALL + 7
    for number in range(number_of_dead):
        bury(plain, f"id-{number:04}", 1000 if same_instant else 1000 + number)
    done = await all_of(DeadWork(store.dead, ["r"]).selected(Selection(), FOREVER_MS, 10_000, replays=True))
    assert done == [(f"id-{number:04}", Result.REPLAYED) for number in range(number_of_dead)]
    assert (await store.dead.sizes()) == [0]
    assert (await store.operations.ledger("r"))["snapshots"] == number_of_dead


@pytest.mark.parametrize("same_instant", [True, False])
async def test_what_stays_is_looked_at_once(store: Store, plain: Scripts, same_instant: bool) -> None:
    for number in range(2 * RECORDS_PER_CALL + 7):
        bury(plain, f"id-{number:04}", 1000 if same_instant else 1000 + number, route="r" if number % 3 else "gone")
    done = await all_of(DeadWork(store.dead, ["r"]).selected(Selection(), FOREVER_MS, 10_000, replays=True))
    assert len(done) == len({digest_id for digest_id, _ in done}) == 1007
    assert {result for _, result in done} == {Result.REPLAYED, Result.ORPHAN}
    assert (await store.dead.sizes()) == [336]


async def test_more_than_a_page_of_one_instant_that_all_stay_are_looked_at_once(store: Store, plain: Scripts) -> None:
    for number in range(2 * RECORDS_PER_CALL + 7):
        bury(plain, f"id-{number:04}", 1000, route="gone")
    done = await all_of(DeadWork(store.dead, ["r"]).selected(Selection(), FOREVER_MS, 10_000, replays=True))
    assert done == [(f"id-{number:04}", Result.ORPHAN) for number in range(1007)]


async def test_no_more_than_the_limit_and_none_that_died_later(store: Store, plain: Scripts) -> None:
    for number in range(5):
        bury(plain, f"id-{number}", 1000 + number)
    work = DeadWork(store.dead, ["r"])
    assert await all_of(work.selected(Selection(), FOREVER_MS, 2, replays=False)) == [
        ("id-0", Result.DROPPED), ("id-1", Result.DROPPED),
    ]  # fmt: skip
    assert await all_of(work.selected(Selection(), 1003, 9, replays=False)) == [
        ("id-2", Result.DROPPED), ("id-3", Result.DROPPED),
    ]  # fmt: skip
    assert await store.dead.sizes() == [1]


async def test_each_id_has_its_result(store: Store, plain: Scripts) -> None:
    bury(plain, "a", 1000)
    bury(plain, "old", 1000, route="gone")
    bury(plain, "lost", 1000, reason="values-lost")
    named = DeadWork(store.dead, ["r"]).named(["a", "never", "old", "lost", "a"], replays=True)
    assert await all_of(named) == [
        ("a", Result.REPLAYED), ("never", Result.UNKNOWN), ("old", Result.ORPHAN), ("lost", Result.VALUES_LOST),
    ]  # fmt: skip
    dropped = DeadWork(store.dead, []).named(["a", "old", "lost"], replays=False)
    assert await all_of(dropped) == [("a", Result.UNKNOWN), ("old", Result.DROPPED), ("lost", Result.DROPPED)]
    assert (await store.operations.ledger("gone"))["deleted"] == 1


async def test_two_operators_at_once_replay_each_digest_once(store: Store, plain: Scripts) -> None:
    for number in range(50):
        bury(plain, f"id-{number}", 1000 + number)
    work = DeadWork(store.dead, ["r"])
    done = await asyncio.gather(*(all_of(work.selected(Selection(), FOREVER_MS, 100, replays=True)) for _ in range(3)))
    replayed = [digest_id for of_one in done for digest_id, result in of_one if result is Result.REPLAYED]
    assert sorted(replayed) == sorted(f"id-{number}" for number in range(50))
    assert all(result.is_done for of_one in done for _, result in of_one)
