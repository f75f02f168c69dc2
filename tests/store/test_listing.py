"""listing.py: timelines in the order in which they are due, over all partitions, whatever their number."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nsqdigest.store.dead import Dead, Details
from nsqdigest.store.head import Head
from nsqdigest.store.listing import Lister, Listing, State, Wanted
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from support.servers import RedisServer
from support.store import Scripts
from support.stores import PLAN, USERS, OpenStore, bury_digest, close_digest, fail_digest, open_digest, rec, url_as

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
LEASE_MS = 60_000
SLOW = StoreRoute("slow", capacity=1000, increment_ms=1000, dedupe_window_ms=600_000)


@pytest.fixture(params=USERS)
def store_url(redis_url: str, shared_redis: RedisServer, request: pytest.FixtureRequest) -> str:
    return url_as(request.param, shared_redis, redis_url)


@pytest.fixture
def store_routes() -> Sequence[StoreRoute]:
    return PLAN, SLOW


def lister(store: Store, now_ms: int | None = None) -> Lister:
    return Lister(store.namespace, {"r": 0, "slow": 1000}, store.clock.now_ms() if now_ms is None else now_ms)


async def listed(store: Store, limit: int = 100, **wanted: object) -> Listing:
    return await lister(store).first(limit, Wanted(**wanted))  # type: ignore[arg-type]


async def put(store: Store, name: str, after_ms: int, route: str = "r", *, records: int = 1, most_ms: int = 0) -> None:
    at_ms, timeline = store.clock.now_ms() + after_ms, name.encode()
    batch = [rec(b"%d" % number, number + 1, timeline=timeline) for number in range(records)]
    partition = store.timelines.partition_of(timeline)
    await store.timelines.add(route, partition, batch, Schedule(at_ms, at_ms + most_ms))


async def claimed(store: Store, name: str) -> Head:
    """The digest of a timeline that is due."""
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    assert claim.timeline == name
    opened = await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    assert isinstance(opened, Head)
    return opened


def names(listing: Listing) -> list[str]:
    return [each.name for each in listing.timelines]


async def test_an_empty_store_has_none(store: Store) -> None:
    assert await listed(store) == Listing([], 0)


async def test_those_that_are_due_first_come_first_over_routes_and_partitions(
    open_store: OpenStore, redis_url: str
) -> None:
    store = open_store(redis_url, [PLAN, SLOW], partitions=8)
    await store.start()
    for number in range(30):
        await put(store, f"{number}", HOUR_MS + (number * 7919) % 30 * 1000, "r" if number % 2 else "slow")
    found = await listed(store, 10)
    expected = sorted(range(30), key=lambda number: (number * 7919) % 30)
    assert names(found) == [f"{number}" for number in expected[:10]]
    assert found.total == 30


async def test_records_that_came_later_postpone_it(store: Store) -> None:
    """The score that Redis has is the base alone."""
    await put(store, "many", HOUR_MS, "slow", records=1, most_ms=HOUR_MS)
    await put(store, "many", HOUR_MS, "slow", records=50, most_ms=HOUR_MS)
    await put(store, "few", HOUR_MS + 10_000, "slow", records=1, most_ms=HOUR_MS)
    found = await listed(store)
    assert names(found) == ["few", "many"]
    assert found.timelines[1].at_ms - found.timelines[0].at_ms == pytest.approx(39_000, abs=2_000)
    assert names(await listed(store, 1)) == ["few"]


@pytest.mark.parametrize("limit", [1, 7, RECORDS_PER_CALL, RECORDS_PER_CALL + 1, 2 * RECORDS_PER_CALL])
async def test_of_more_than_a_page_the_first_are_the_first_of_all(store: Store, limit: int) -> None:
    now_ms = store.clock.now_ms()
    for start in range(0, 1000, 250):
        base_ms = now_ms + HOUR_MS + start
        some = [rec(timeline=b"%d-%d" % (start, number)) for number in range(250)]
        await store.timelines.add("slow", 0, some, Schedule(base_ms, base_ms + HOUR_MS))
    found = await listed(store, limit)
    whole = await listed(store, 10_000)
    assert found.timelines == whole.timelines[:limit]
    assert (found.total, whole.total, len(whole.timelines)) == (1000, 1000, 1000)


async def test_the_states(store: Store) -> None:
    await put(store, "under way", 0)
    await claimed(store, "under way")
    await put(store, "now", -5_000)
    await put(store, "later", HOUR_MS)
    found = await listed(store)
    assert [(each.name, each.state) for each in found.timelines] == [
        ("under way", State.LEASED), ("now", State.DUE), ("later", State.WAITING),
    ]  # fmt: skip
    digest = found.timelines[0].digest
    assert digest is not None
    assert (digest.id, digest.total, found.timelines[0].records) == ("id-1", 1, 0)


async def test_what_was_delivered_and_got_nothing_new_is_not_due(store: Store) -> None:
    await put(store, "t", 0)
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    now_ms = store.clock.now_ms()
    await close_digest(store, claim, "id-1", Schedule(now_ms, now_ms))
    assert [each.state for each in (await listed(store)).timelines] == [State.IDLE]
    await put(store, "t", 0)
    assert [each.state for each in (await listed(store)).timelines] == [State.DUE]


async def test_one_that_is_to_be_tried_again(store: Store) -> None:
    await put(store, "t", 0)
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    await fail_digest(store, claim, store.clock.now_ms() + HOUR_MS)
    (only,) = (await listed(store)).timelines
    assert (only.state, only.digest_id) == (State.RETRYING, "id-1")
    assert only.digest is not None
    assert only.digest.attempts == 1


async def test_a_revived_digest_bears_the_name_of_its_timeline(store: Store) -> None:
    dead = await buried(store)
    await store.dead.revive(dead)
    await put(store, "other", HOUR_MS)
    found = await listed(store, only_revived=True)
    (only,) = found.timelines
    assert (only.shown, only.digest_id, only.is_revived, found.total) == ("t", "id-1", True, 1)
    assert (await listed(store)).total == 3  # the timeline that it came from waits on


async def buried(store: Store) -> Dead:
    await put(store, "t", 0)
    opened_of = await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)
    (claim,) = opened_of.claims
    opened = await open_digest(store, claim, "id-1", [store.clock.now_ms()])
    assert isinstance(opened, Head)
    later_ms = store.clock.now_ms() + HOUR_MS
    details = Details(opened, "r", "t", "out", "refused", "422")
    await bury_digest(store, claim, "id-1", Schedule(later_ms, later_ms), details.encode())
    found = await store.dead.find("id-1")
    assert found is not None
    return found


async def test_filters_count_what_they_take(store: Store) -> None:
    for number in range(20):
        await put(store, f"user:{number}", HOUR_MS if number % 2 else -1000)
    by_name = await listed(store, 3, text="user:1")
    assert (len(by_name.timelines), by_name.total) == (3, 11)
    by_state = await listed(store, 3, states=frozenset([State.DUE]))
    assert ({each.state for each in by_state.timelines}, by_state.total) == ({State.DUE}, 10)
    assert await listed(store, text="nobody") == Listing([], 0)


async def test_what_no_script_wrote_is_listed_and_stops_nothing(store: Store, plain: Scripts) -> None:
    await put(store, "t", HOUR_MS)
    now_ms = store.clock.now_ms()
    plain.command("ZADD", plain.key("waiting:r"), "+inf", b"\xff\xfe", now_ms, "no schedule")
    plain.command("HSET", plain.key("heads:r"), "no schedule", " id=")
    found = await listed(store)
    assert names(found) == ["no schedule", "t", "\\xff\\xfe"]
    assert [each.records for each in found.timelines] == [0, 1, 0]


async def test_no_more_is_read_than_was_allowed_and_that_is_said(store: Store) -> None:
    now_ms = store.clock.now_ms()
    for route in ("r", "slow"):
        some = [rec(timeline=b"%d" % number) for number in range(500)]
        await store.timelines.add(route, 0, some, Schedule(now_ms + HOUR_MS, now_ms + 2 * HOUR_MS))
    wanted, of_a_route = Wanted(text="7"), sum("7" in str(number) for number in range(500))
    whole = await lister(store).first(1000, wanted)
    assert (whole.total, whole.is_partial) == (2 * of_a_route, False)
    found = await lister(store).first(1000, wanted, most_read=500)
    assert (found.total, found.is_partial) == (of_a_route, True)
    exact = await lister(store).first(1000, wanted, most_read=1000)
    assert (exact.total, exact.is_partial) == (2 * of_a_route, False)
    first = await lister(store).first(5, Wanted(), most_read=500)
    assert (len(first.timelines), first.total, first.is_partial) == (5, 1000, True)
