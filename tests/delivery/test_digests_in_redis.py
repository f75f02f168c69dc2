"""What delivery relies on in store/digests.py, call by call, against real Redis."""

from __future__ import annotations

import struct
import time
from contextlib import suppress

import pytest
import redis

from nsqdigest.store.answers import Claim, Ended, NotOpened
from nsqdigest.store.dead import Details
from nsqdigest.store.digests import Ending, Opening
from nsqdigest.store.head import Head
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from support.cutting_off import CutOff, Interruptible
from support.store import Claim as PlainClaim
from support.store import Scripts
from support.stores import OpenStore, add, open_store, rec

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
LEASE_MS = 60_000
PLANS = [StoreRoute("r", 2, 0, 60_000), StoreRoute("s", 5, 0, 60_000), StoreRoute("m", 2, 0, 60_000, merges=True)]


@pytest.fixture
async def store(open_store: OpenStore, redis_url: str) -> Store:
    store = open_store(redis_url, PLANS)
    await store.start()
    return store


@pytest.fixture
def plain(redis_client: redis.Redis) -> Scripts:
    return Scripts(redis_client)


async def claimed(store: Store, route: str = "r") -> Claim:
    (claim,) = (await store.digests.claim(0, [(route, 0)], [5], LEASE_MS)).claims
    return claim


async def opened(store: Store, claim: Claim, new_id: str = "id-1") -> Head | NotOpened:
    (answer,) = await store.digests.open(0, [Opening(claim, new_id)], {claim.route: [0]})
    return answer


def now(store: Store) -> Schedule:
    return Schedule(store.clock.now_ms(), store.clock.now_ms())


async def test_the_agenda_names_each_route_with_its_first_instant_and_tells_the_time(store: Store) -> None:
    began_ms = store.clock.now_ms()
    for route, after_ms in (("r", 0), ("s", 500), ("m", 60_000)):
        await store.timelines.add(route, 0, [rec()], Schedule(began_ms + after_ms, began_ms + after_ms))
    assert await store.digests.agenda(0, 1000) == {"r": began_ms, "s": began_ms + 500}
    assert abs(store.clock.now_ms() - began_ms) < 5000
    assert abs(store.clock.now_ms() - time.time() * 1000) < 1000


@pytest.mark.parametrize("infinite", ["inf", "-inf"])
async def test_an_infinite_score_that_something_else_wrote_is_an_instant_far_away(
    store: Store, plain: Scripts, infinite: str
) -> None:
    await add(store, rec(timeline=b"due"), route="s")
    plain.command("ZADD", plain.key("agenda"), infinite, plain.key("waiting", "r"))
    plain.command("ZADD", plain.key("waiting", "s"), "+inf", "never")
    agenda = await store.digests.agenda(0, 1000)
    assert agenda.get("r", 2**53) == (2**53 if infinite == "inf" else -(2**53))
    claimed = await store.digests.claim(0, [("s", 0)], [9], 60_000)
    assert ([claim.timeline for claim in claimed.claims], claimed.next_due_ms) == (["due"], 2**53)


async def test_records_are_read_newest_first_with_their_instants_and_values(store: Store) -> None:
    await add(store, rec(b"a", 5, b"1"), rec(b"b", 7, b"2"), rec(b"c", 6, b"3"), route="s")
    claim = await claimed(store, "s")
    head = await opened(store, claim)
    assert isinstance(head, Head)
    (found,) = await store.digests.read(0, [(claim, head)])
    assert found is not None
    records = found.records()
    assert records == [(b"b", 7, b"2"), (b"c", 6, b"3"), (b"a", 5, b"1")]
    assert await store.digests.page(claim, head, 1, 9) == records[1:]
    assert await store.digests.oldest_ms(claim) == 5


async def test_a_digest_under_another_id_is_not_ours(store: Store) -> None:
    await add(store, rec())
    claim = await claimed(store)
    head = await opened(store, claim)
    assert isinstance(head, Head)
    other = head._replace(id="id-2")
    assert await store.digests.read(0, [(claim, head), (claim, other)]) == [([b"k"], [b"-1000"], [b"{}"]), None]
    assert await store.digests.page(claim, other, 0, 1) is None


@pytest.mark.parametrize("head", [" id=id-1 what", " id=id-1 opened=soon", " iteration=1 id=\udcff"])
async def test_a_head_that_something_else_wrote_is_damaged_and_its_neighbour_is_opened(
    store: Store, redis_client: redis.Redis, head: str
) -> None:
    for timeline in (b"a", b"b"):
        await add(store, rec(timeline=timeline), route="s")
    claims = (await store.digests.claim(0, [("s", 0)], [5], LEASE_MS)).claims
    openings = [Opening(claim, f"id-{claim.timeline}") for claim in claims]
    await store.digests.open(0, openings, {"s": [0]})
    redis_client.hset(store.digests._of(claims[0])[0].heads, "a", head.encode("utf-8", "surrogateescape"))
    answers = await store.digests.open(0, openings, {"s": [0]})
    assert {claim.timeline: answer for claim, answer in zip(claims, answers, strict=True)}["a"] is NotOpened.DAMAGED
    assert {answer.id for answer in answers if isinstance(answer, Head)} == {"id-b"}


async def test_a_name_that_is_no_text_stops_no_claim_and_no_agenda(store: Store, redis_client: redis.Redis) -> None:
    await add(store, rec(timeline=b"a"))
    keys = store.digests._namespace.keys[0, "r"]
    redis_client.zadd(keys.waiting, {b"\xff": 0})
    redis_client.zadd(keys.agenda, {keys.waiting + b"\xff": 0})
    assert "r" in await store.digests.agenda(0, 1000)
    assert (await claimed(store)).timeline == "a"


async def test_several_in_one_read_each_with_its_own(store: Store) -> None:
    pairs = []
    for number, route in enumerate(("r", "s", "r", "s")):
        await add(store, rec(b"k", number + 1, timeline=b"%d" % number), route=route)
        claim = await claimed(store, route)
        head = await opened(store, claim, f"id-{number}")
        assert isinstance(head, Head)
        pairs.append((claim, head))
    found = await store.digests.read(0, pairs)
    assert [each and each.records() for each in found] == [[(b"k", number + 1, b"{}")] for number in range(4)]


async def test_only_a_route_that_merges_takes_newer_records_in(store: Store) -> None:
    for route, total, new_id in (("r", 1, "id-1"), ("m", 2, "id-2")):
        await add(store, rec(b"old", 1), route=route)
        claim = await claimed(store, route)
        await opened(store, claim)
        await add(store, rec(b"new", 2), route=route)
        again = await opened(store, claim, "id-2")
        assert isinstance(again, Head)
        assert (again.total, again.id) == (total, new_id)


async def test_more_keys_are_remembered_than_a_small_digest_may_have(store: Store, plain: Scripts) -> None:
    for number in range(3):
        await add(store, rec(b"a%d" % number, 10 + number), rec(b"b%d" % number, 20 + number))
        claim = await claimed(store)
        await opened(store, claim, f"id-{number}")
        assert await store.digests.finish(0, [Ending.close(claim, f"id-{number}", now(store))]) == [Ended.DONE]
    assert len(plain.memory(b"t")) == 6


async def test_a_bury_that_was_cut_off_is_ended_and_its_timeline_is_not_ours(store: Store, plain: Scripts) -> None:
    await add(store, rec())
    claim = await claimed(store)
    head = await opened(store, claim)
    assert isinstance(head, Head)
    key = plain.key("heads", "r")
    plain.command("HSET", key, "t", plain.command("HGET", key, "t") + b" burying=id-1")
    plain.command("HSET", plain.key("dead:details"), "id-1", Details(head, "r", "t", "out", "refused", "").encode())
    assert await opened(store, claim, "id-2") is NotOpened.STALE
    (dead,) = await store.dead.page(0, 0)
    assert (dead.id, dead.details.reason) == ("id-1", "refused")
    assert plain.tokens() == {}


async def test_a_lease_is_renewed_for_its_owner_only(store: Store) -> None:
    await add(store, rec())
    claim = await claimed(store)
    assert await store.digests.renew(claim, LEASE_MS)
    assert not await store.digests.renew(claim._replace(token="another"), LEASE_MS)


async def test_claims_name_their_routes(store: Store) -> None:
    for route in ("r", "s", "m"):
        await add(store, rec(timeline=f"of {route}".encode()), route=route)
    taken = await store.digests.claim(0, [("s", 0), ("r", 1), ("m", 0)], [5, 5], LEASE_MS)
    assert {claim.timeline: claim.route for claim in taken.claims} == {"of r": "r", "of s": "s", "of m": "m"}


@pytest.mark.parametrize("writes", range(1, 16))
async def test_a_digest_whose_burial_was_cut_off_is_sent_again_or_is_dead_with_its_details(
    store: Store, redis_client: redis.Redis, writes: int
) -> None:
    await add(store, rec(b"a"), route="s")
    claim = await claimed(store, "s")
    head = await opened(store, claim)
    assert isinstance(head, Head)
    details = Details(head, "s", claim.timeline, "out", "refused", "why").encode()
    cut = Interruptible(redis_client)
    cut.now_ms = None
    cut.cut_off_after(writes)
    with suppress(CutOff):
        cut.finish(cut.burying(PlainClaim("s", claim.timeline.encode(), 0, claim.token), head.id, details=details))
    for kind in ("waiting", "leased"):  # its daemon is gone, its lease has run out, and it is due
        cut.command("ZADD", cut.key(kind, "s"), "XX", 1, claim.timeline)
    if schedule := cut.schedule(claim.timeline.encode(), "s"):
        cut.command("HSET", cut.key("schedule", "s"), claim.timeline, struct.pack(">QQI", 1, 1, schedule[2]))
    await store.upkeep.maintain(0, ["s"], LEASE_MS)
    for _ in range(2):  # a burial that had kept no details yet is taken back by the first
        for again in (await store.digests.claim(0, [("s", 0)], [5], LEASE_MS)).claims:
            if getattr(await opened(store, again), "id", None) == head.id:
                return  # it is sent again
    (dead,) = await store.dead.page(0, 0)
    assert (dead.id, dead.details.reason, cut.client.zcard(cut.key("dead-set", head.id))) == (head.id, "refused", 1)
