"""Whose turn upkeep is, and what it mends: rights taken away for a moment while daemons are at work leave
something half done, and nothing is lost."""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain

import pytest
import redis

from nsqdigest.audit.ledger import balances, unfinished
from nsqdigest.base.errors import StoreError
from nsqdigest.store.answers import Claim
from nsqdigest.store.head import Head
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from nsqdigest.store.upkeep import PAGES_PER_TURN
from support.ports import HOST
from support.servers import RedisServer
from support.store import LEASE_MS, Scripts, inconsistencies
from support.stores import PLAN, OpenStore, close_digest, open_digest, rec
from support.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

RIGHTS = ("hset", "hsetnx", "zadd", "zrem", "hincrby", "hdel", "rename", "renamenx", "unlink", "incrby", "decr")
TIMELINES = 5
HOUR_MS = 3_600_000


class Receiver:
    def __init__(self) -> None:
        self.shown: dict[str, set[bytes]] = {}
        self.minted = 0

    async def carry(self, store: Store, claim: Claim) -> None:
        self.minted += 1
        opened = await open_digest(store, claim, f"id-{self.minted}", [0])
        page = await store.digests.page(claim, opened, 0, opened.total) if isinstance(opened, Head) else None
        if not isinstance(opened, Head) or page is None:
            return
        keys = {record.key for record in page if record is not None}
        assert len(keys) == opened.total
        assert self.shown.setdefault(opened.id, keys) == keys
        now_ms = store.clock.now_ms()
        await close_digest(store, claim, opened.id, Schedule(now_ms, now_ms))

    async def work(self, store: Store, lease_ms: int) -> int:
        """Returns how many timelines were claimed. What Redis refuses is left to the next round."""
        try:
            await store.upkeep.maintain(0, ["r"], lease_ms)
            claims = (await store.digests.claim(0, [("r", 0)], [TIMELINES], lease_ms)).claims
        except StoreError:
            return 1
        outcomes = await asyncio.gather(*(self.carry(store, claim) for claim in claims), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, StoreError):
                raise outcome
        return len(claims)


async def publish(store: Store, first: int, waiting: dict[int, bool]) -> None:
    """As nsqd hands over: again, and as a possible repeat, what was not finished."""
    for number in range(first, first + 10):
        waiting[number] = False
    for number, is_repeat in list(waiting.items()):
        record = rec(b"%d" % number, number, timeline=b"%d" % (number % TIMELINES), possible_repeat=is_repeat)
        try:
            now_ms = store.clock.now_ms()
            await store.timelines.add("r", 0, [record], Schedule(now_ms, now_ms))
            del waiting[number]
        except StoreError:
            waiting[number] = True


@pytest.fixture
def plain(redis_server: RedisServer) -> Iterator[Scripts]:
    with redis_server.client() as client:
        yield Scripts(client)


@pytest.mark.parametrize("seed", range(2))
async def test_rights_taken_away_for_a_moment_strand_and_lose_nothing(
    open_store: OpenStore, redis_server: RedisServer, plain: Scripts, seed: int
) -> None:
    redis_server.cli("ACL", "SETUSER", "daemon", "on", ">secret", "~*", "+@all")
    store = open_store(f"redis://daemon:secret@{HOST}:{redis_server.port}/0")
    await store.start()
    receiver, waiting, published = Receiver(), dict[int, bool](), 0
    for round_number in range(3 * len(RIGHTS)):
        right = RIGHTS[(seed + round_number) % len(RIGHTS)]
        if round_number % 3 == 2:
            redis_server.cli("ACL", "SETUSER", "daemon", f"-{right}")
        await publish(store, published, waiting)
        published += 10
        await receiver.work(store, lease_ms=50)
        redis_server.cli("ACL", "SETUSER", "daemon", "+@all")
    async with asyncio.timeout(PATIENCE_S):
        while waiting:
            await publish(store, published, waiting)
            published += 10
        for _ in range(1000):
            if not await receiver.work(store, lease_ms=50) and not plain.schedules():
                break
            await asyncio.sleep(0.02)
    digests_of = defaultdict[bytes, set[str]](set)
    for digest_id, keys in receiver.shown.items():
        for key in keys:
            digests_of[key].add(digest_id)
    assert digests_of.keys() == {b"%d" % number for number in range(published)}
    assert all(len(ids) == 1 for ids in digests_of.values())
    await store.upkeep.maintain(0, ["r"], LEASE_MS)
    ledger = await store.operations.ledger("r")
    assert balances(ledger)
    assert unfinished(ledger) == 0
    named = {b"layout", b"routes"}
    contents = {name: value for name, value in plain.contents().items() if name.split(b":")[2] not in named}
    assert inconsistencies(plain.tag, contents) == []


# -- whose turn it is


async def has_turn(store: Store, routes: Sequence[str] = ("r",), work: str = "work", every_ms: int = HOUR_MS) -> bool:
    return await store.upkeep.has_turn(0, work, routes, every_ms)


async def test_of_daemons_with_the_same_routes_one_has_the_turn(open_store: OpenStore, redis_url: str) -> None:
    daemons = [open_store(redis_url) for _ in range(3)]
    for daemon in daemons:
        await daemon.start()
    assert [await has_turn(daemon) for daemon in daemons] == [True, False, False]
    assert [await has_turn(daemon, work="other work") for daemon in daemons] == [True, False, False]
    assert [await has_turn(daemon, every_ms=0) for daemon in daemons] == [True, True, True]


async def test_daemons_with_other_routes_each_do_their_own(open_store: OpenStore, redis_url: str) -> None:
    here = open_store(redis_url, [PLAN, PLAN._replace(name="s")])
    there = open_store(redis_url, [PLAN._replace(increment_ms=1)])
    for daemon in (here, there):
        await daemon.start()
    assert [await has_turn(here), await has_turn(there), await has_turn(here)] == [True, True, False]
    assert [await has_turn(here, ["s", "r"]), await has_turn(here, ["r", "s"])] == [True, False], "in any order"
    assert await has_turn(here, every_ms=HOUR_MS + 1)


async def test_a_turn_ends_a_little_before_the_work_is_to_be_done_again(
    store: Store, redis_client: redis.Redis
) -> None:
    await has_turn(store)
    ((whose, began_ms),) = redis_client.hgetall("{test:0}:turns").items()
    for ago_ms, is_over in ((0.85 * HOUR_MS, False), (0.95 * HOUR_MS, True)):
        redis_client.hset("{test:0}:turns", whose, int(began_ms) - int(ago_ms))
        assert await has_turn(store) == is_over


async def test_a_census_is_done_when_it_has_seen_every_timeline(store: Store, redis_client: redis.Redis) -> None:
    plain = Scripts(redis_client)
    many = [(b"t%d" % number, struct.pack(">QQI", 1, 1, 0)) for number in range(RECORDS_PER_CALL * PAGES_PER_TURN * 2)]
    for first in range(0, len(many), 5000):
        plain.command("HSET", plain.key("schedule", "r"), *chain.from_iterable(many[first : first + 5000]))
    turns = 0
    while not store.upkeep.is_census_done(0, ["r"]):
        await store.upkeep.maintain(0, ["r"], LEASE_MS)
        turns += 1
    assert turns > 1
    assert plain.command("ZCARD", plain.key("waiting", "r")) == len(many)
