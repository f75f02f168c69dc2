"""dead_store.py: digests that were buried are listed, found, sent again and dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from nsqdigest.store.answers import Ended
from nsqdigest.store.dead import Dead, Details, Revival
from nsqdigest.store.head import Head
from nsqdigest.store.keys import is_own, own_timeline
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from support.servers import RedisServer
from support.store import Scripts, inconsistencies
from support.stores import USERS, OpenStore, add, bury_digest, close_digest, open_digest, rec, url_as

pytestmark = pytest.mark.integration

LEASE_MS = 60_000
LONG_AGO_MS = 1_600_000_000_000


def told_long_ago(opened: Head) -> Head:
    """After 4 attempts."""
    return opened._replace(
        iteration=7,
        opened_ms=LONG_AGO_MS,
        next_earliest_ms=LONG_AGO_MS + 5,
        superseded=2,
        dropped_capacity=3,
        attempts=4,
    )


async def bury(store: Store, digest_id: str, timeline: str = "t", partition: int = 0) -> Dead:
    """As it was told long ago, after 4 attempts."""
    now_ms = store.clock.now_ms()
    name = timeline.encode()
    await add(store, rec(b"k", 1, timeline=name), rec(b"l", 2, timeline=name), partition=partition)
    (claim,) = (await store.digests.claim(partition, [("r", 0)], [9], LEASE_MS)).claims
    opened = await open_digest(store, claim, digest_id, [now_ms])
    assert isinstance(opened, Head)
    details = Details(told_long_ago(opened), "r", timeline, "out", "refused", "status 422")
    after = Schedule(now_ms + LEASE_MS, now_ms + LEASE_MS)
    assert await bury_digest(store, claim, digest_id, after, details.encode()) is Ended.DONE
    dead = await store.dead.find(digest_id)
    assert dead is not None
    return dead


@pytest.fixture(params=USERS)
def store_url(redis_url: str, shared_redis: RedisServer, request: pytest.FixtureRequest) -> str:
    return url_as(request.param, shared_redis, redis_url)


async def test_what_is_told_of_a_dead_digest_is_what_it_was_buried_with(store: Store) -> None:
    before_ms = store.clock.now_ms()
    dead = await bury(store, "id-1", "user:é")
    assert (dead.id, dead.route, dead.partition) == ("id-1", "r", 0)
    assert 0 <= dead.since_ms - before_ms < 10_000
    assert (dead.details.reason, dead.details.cause, dead.details.head.attempts) == ("refused", "status 422", 4)
    assert (dead.details.timeline, dead.details.head.total) == ("user:é", 2)


async def test_they_are_listed_in_pages_those_longest_dead_first(store: Store, plain: Scripts) -> None:
    for n in range(5):
        await bury(store, f"id-{n}", f"{n}")
        plain.command("ZADD", plain.key("dead"), n, f"id-{n}")
    assert [dead.id for dead in await store.dead.page(0, 0, 2)] == ["id-0", "id-1"]
    assert [dead.id for dead in await store.dead.page(0, 3, 9)] == ["id-3", "id-4"]
    assert await store.dead.page(0, 5) == []


async def test_what_is_not_dead_is_not_found(store: Store) -> None:
    await bury(store, "id-1")
    assert await store.dead.find("id-2") is None


async def test_a_revived_digest_is_claimed_and_goes_out_as_it_was(store: Store) -> None:
    dead = await bury(store, "id-1")
    assert await store.dead.revive(dead) is Revival.REVIVED
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    assert (is_own(claim.timeline), claim.shown_timeline) == (True, "t")
    opened = await open_digest(store, claim, "not taken", [0])
    assert isinstance(opened, Head)
    assert (opened.id, opened.opened_ms, opened.iteration, opened.attempt) == ("id-1", LONG_AGO_MS, 7, 5)
    assert (opened.superseded, opened.dropped_capacity, opened.next_earliest_ms) == (2, 3, LONG_AGO_MS + 5)
    assert store.clock.now_ms() - opened.since_ms < 10_000
    assert opened.tries == 0
    page = await store.digests.page(claim, opened, 0, 2)
    assert page is not None
    assert [record.key for record in page if record] == [b"l", b"k"]


async def test_delivered_it_is_nowhere_any_more(store: Store, plain: Scripts) -> None:
    dead = await bury(store, "id-1")
    before = set(plain.dump())
    await store.dead.revive(dead)
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    opened = await open_digest(store, claim, "not taken", [0])
    assert isinstance(opened, Head)
    now_ms = store.clock.now_ms()
    assert await close_digest(store, claim, "id-1", Schedule(now_ms, now_ms)) is Ended.DONE
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims
    await open_digest(store, claim, "not taken", [0])
    gone = {plain.key(kind) for kind in ("dead", "dead:details", "dead-set:id-1", "dead-values:id-1")}
    assert set(plain.dump()) == before - gone
    assert (await store.operations.ledger("r"))["delivered"] == 2
    assert inconsistencies(plain.tag, plain.contents()) == []


async def test_revived_twice_it_goes_out_once(store: Store) -> None:
    dead = await bury(store, "id-1")
    answers = await asyncio.gather(*(store.dead.revive(dead) for _ in range(4)))
    assert sorted(answers) == [Revival.ALREADY] * 3 + [Revival.REVIVED]
    assert len((await store.digests.claim(0, [("r", 0)], [9], LEASE_MS)).claims) == 1


async def test_what_was_dropped_meanwhile_is_not_revived(store: Store) -> None:
    dead = await bury(store, "id-1")
    assert await store.dead.drop(dead) == 2
    assert await store.dead.revive(dead) is Revival.UNKNOWN


async def test_a_revived_digest_can_be_deleted_while_it_is_on_its_way(store: Store) -> None:
    dead = await bury(store, "id-1")
    await store.dead.revive(dead)
    assert await store.operations.delete("r", own_timeline("id-1", "t")) == 2
    assert (await store.operations.ledger("r"))["deleted"] == 2


async def test_it_stays_in_the_partition_where_it_was_buried(open_store: OpenStore, redis_url: str) -> None:
    store = open_store(redis_url, partitions=4)
    await store.start()
    partition = store.timelines.partition_of(b"t")
    other = store.timelines.partition_of(own_timeline("id-1", "t").encode())
    assert partition != other  # else this shows nothing
    dead = await bury(store, "id-1", partition=partition)
    assert dead.partition == partition
    await store.dead.revive(dead)
    (claim,) = (await store.digests.claim(partition, [("r", 0)], [9], LEASE_MS)).claims
    assert isinstance(await open_digest(store, claim, "not taken", [0]), Head)
    assert await store.operations.delete("r", own_timeline("id-1", "t")) == 2


# -- written by another version


def rewritten(plain: Scripts, digest_id: str, change: Callable[[dict[str, Any]], object]) -> None:
    details = json.loads(plain.command("HGET", plain.key("dead:details"), digest_id))
    change(details)
    plain.command("HSET", plain.key("dead:details"), digest_id, json.dumps(details))


async def test_fields_of_a_newer_version_are_passed_over(store: Store, plain: Scripts) -> None:
    dead = await bury(store, "id-1")
    rewritten(plain, "id-1", lambda details: details.update(later=1))
    rewritten(plain, "id-1", lambda details: details["head"].update(too_old=3))
    assert await store.dead.find("id-1") == dead
    assert await store.dead.page(0, 0) == [dead]


@pytest.mark.parametrize(
    "details",
    [b"", b"\xff", b"[]", b"7", b"{}", b'{"head":[]}', b'{"head":{"id":"id-1"}}', b'{"head":{"id":1},"reason":"x"}'],
)
async def test_a_digest_with_details_that_nobody_can_read_is_left_out_and_hides_no_other(
    store: Store, plain: Scripts, details: bytes
) -> None:
    await bury(store, "id-1", "a")
    other = await bury(store, "id-2", "b")
    plain.command("HSET", plain.key("dead:details"), "id-1", details)
    assert await store.dead.find("id-1") is None
    assert await store.dead.find("id-2") == other
    assert await store.dead.page(0, 0) == [other]


async def test_the_limit_holds_beside_details_that_nobody_can_read(
    open_store: OpenStore, redis_url: str, plain: Scripts
) -> None:
    store = open_store(redis_url, dead_digests=20)
    await store.start()
    for number in range(40):
        await bury(store, f"id-{number}", f"t{number}")
    plain.command("HSET", plain.key("dead:details"), *(word for n in range(18) for word in (f"id-{n}", "?")))
    page = await store.dead.over_limit(0, 0, 100)
    assert ([dead.id for dead in page.found], page.unreadable) == ([f"id-{number}" for number in range(18, 36)], 18)
    page = await store.dead.over_limit(0, 36, 1)
    assert [dead.id for dead in page.found] == ["id-36"]


async def test_fields_that_an_older_version_did_not_write_are_empty(store: Store, plain: Scripts) -> None:
    dead = await bury(store, "id-1")
    rewritten(plain, "id-1", lambda details: details.pop("cause"))
    rewritten(plain, "id-1", lambda details: details["head"].pop("dropped_capacity"))
    found = await store.dead.find("id-1")
    assert found is not None
    assert found.details == dead.details._replace(cause="", head=dead.details.head._replace(dropped_capacity=0))
    assert await store.dead.revive(found) is Revival.REVIVED


async def test_the_one_text_of_an_older_version_is_taken_for_the_answer(store: Store, plain: Scripts) -> None:
    await bury(store, "id-1")

    def of_old(details: dict[str, Any]) -> None:
        del details["cause"], details["answer"], details["status"]
        details["detail"] = "422 Unprocessable Entity: no such room"

    rewritten(plain, "id-1", of_old)
    found = await store.dead.find("id-1")
    assert found is not None
    assert found.details[-3:] == ("", "422 Unprocessable Entity: no such room", 0)


def test_details_with_halves_of_characters_can_be_stored() -> None:
    head = Head("id", 1, 0, 1, 0, 0, 0, 0, 0, 0)
    text = Details(head, "r", "t", "out", "refused", "554", "554 unzul\udce4ssig").encode()
    assert Details.decode(text).answer == "554 unzul\\udce4ssig"
