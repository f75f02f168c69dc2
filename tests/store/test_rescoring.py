"""A changed policy reaches the timelines that wait, in both directions, to and from a calendar, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from nsqdigest.base.errors import StoreError
from nsqdigest.config import Policy
from nsqdigest.delivery.ids import RANDOM_BYTES, uuid7
from nsqdigest.store.digests import Ending, Opening
from nsqdigest.store.head import Head, opened_of
from nsqdigest.store.record import Record
from nsqdigest.store.rescoring import Rescored, Rescoring
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan, Zoned, unpacked
from nsqdigest.store.store import Store
from support.ports import HOST
from support.servers import RedisServer
from support.settings import POLICY
from support.stores import redis_settings

pytestmark = pytest.mark.integration

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
LEASE_MS = 60_000
FIXED = replace(POLICY, immediate=False, minimum_delay_ms=HOUR_MS, maximum_delay_ms=2 * HOUR_MS)
SHORTER = replace(FIXED, minimum_delay_ms=10 * MINUTE_MS, maximum_delay_ms=20 * MINUTE_MS)
LONGER = replace(FIXED, minimum_delay_ms=5 * HOUR_MS, maximum_delay_ms=6 * HOUR_MS)
CALENDAR = replace(FIXED, minimum_delay_ms=0, maximum_delay_ms=0, at=("0 9 * * *",), zone="Europe/Berlin")


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[Store]:
    store = Store(redis_settings(f"redis://{HOST}:{redis_server.port}/0"), [StoreRoute("r", 100, 0, 60_000)], 10_000)
    await store.start()
    yield store
    await store.close(5)


async def add(store: Store, policy: Policy, *timelines: bytes, old_ms: int = 0) -> int:
    """Returns when. `old_ms`: so old are the events."""
    now_ms = store.clock.now_ms()
    records = [Record(0, name, b"%d" % now_ms, (now_ms - old_ms) * 1000, b"{}", False) for name in timelines]
    await store.timelines.add("r", 0, records, Plan(policy).beginning(now_ms))
    return now_ms


async def deliver(store: Store, policy: Policy) -> int:
    """All that is due, at once. Returns when its digest was opened."""
    plan, now_ms = Plan(policy), store.clock.now_ms()
    for claim in (await store.digests.claim(0, [("r", 0)], [100], LEASE_MS)).claims:
        opening = Opening(claim, uuid7(now_ms, bytes(RANDOM_BYTES)))
        (head,) = await store.digests.open(0, [opening], {"r": plan.earliest_next_ms(now_ms)})
        assert isinstance(head, Head)
        await store.digests.finish(0, [Ending.close(claim, head.id, plan.after_digest(head.iteration, now_ms))])
    return now_ms


async def base_of(store: Store, timeline: bytes = b"t") -> tuple[int, int]:
    of = store.namespace.keys[0, "r"]
    (packed,) = await store.namespace.send(0, [[b"HGET", of.schedules, timeline]])
    return unpacked(packed, 0)[:2]


async def rescore(store: Store, policy: Policy) -> dict[str, Rescored]:
    return await Rescoring(store.namespace, {"r": Plan(policy)}).rescore(0)


async def test_what_nothing_is_remembered_of_stays(store: Store) -> None:
    """A daemon of a version that remembers no policy scored it."""
    await add(store, FIXED, b"t")
    before = await base_of(store)
    assert await rescore(store, SHORTER) == {}
    assert await base_of(store) == before


async def test_the_same_policy_changes_nothing_and_so_do_options_that_score_nothing(store: Store) -> None:
    await rescore(store, FIXED)
    await add(store, FIXED, b"t")
    assert await rescore(store, replace(FIXED, name="other", capacity=7, dedupe_window_ms=1)) == {}


@pytest.mark.parametrize("old_ms", [0, 48 * HOUR_MS])
@pytest.mark.parametrize(
    ("policy", "expected"),
    [(SHORTER, Rescored(sooner=1)), (LONGER, Rescored(later=1))],
)
async def test_a_timeline_that_had_no_digest_counts_from_its_beginning(
    store: Store, policy: Policy, expected: Rescored, old_ms: int
) -> None:
    """Whatever the timestamps of its events are."""
    await rescore(store, FIXED)
    began_ms = await add(store, FIXED, b"t", old_ms=old_ms)
    assert await rescore(store, policy) == {"r": expected}
    assert await base_of(store) == Plan(policy).beginning(began_ms)
    assert await rescore(store, policy) == {}, "it is remembered"


async def test_beginnings_survive_any_number_of_policies(store: Store) -> None:
    await rescore(store, FIXED)
    began_ms = await add(store, FIXED, b"t")
    for policy in (LONGER, CALENDAR, SHORTER, LONGER, FIXED):
        await rescore(store, policy)
    assert await base_of(store) == Plan(FIXED).beginning(began_ms)


async def test_one_that_is_stopped_half_way_begins_again_and_scores_nothing_twice(store: Store) -> None:
    await rescore(store, FIXED)
    names = [b"%d" % number for number in range(450)]
    began_ms = await add(store, FIXED, *names)
    run = store.namespace.run
    with pytest.MonkeyPatch.context() as patch:

        async def stopping(partition: int, name: str, keys: Any, arguments: Any) -> Any:
            if arguments[3]:  # all pages are done, and the policy would be remembered
                raise StoreError("redis-connection", "as told")
            return await run(partition, name, keys, arguments)

        patch.setattr(store.namespace, "run", stopping)
        with pytest.raises(StoreError):
            await rescore(store, LONGER)
    assert await rescore(store, LONGER) == {"r": Rescored()}
    assert {await base_of(store, name) for name in names[::50]} == {Plan(LONGER).beginning(began_ms)}


async def test_a_beginning_under_a_calendar_is_not_known_and_counts_from_now(store: Store) -> None:
    await rescore(store, CALENDAR)
    await add(store, CALENDAR, b"t", old_ms=48 * HOUR_MS)
    before_ms = store.clock.now_ms()
    await rescore(store, FIXED)
    base_ms, _ = await base_of(store)
    assert before_ms + HOUR_MS <= base_ms <= store.clock.now_ms() + HOUR_MS


async def test_one_that_had_a_digest_counts_from_its_opening(store: Store) -> None:
    at_once = replace(FIXED, immediate=True)
    await rescore(store, at_once)
    await add(store, at_once, b"t")
    opened_ms = await deliver(store, at_once)
    await add(store, at_once, b"t")
    assert await rescore(store, replace(LONGER, immediate=True)) == {"r": Rescored(later=1)}
    assert await base_of(store) == Plan(LONGER).after_digest(1, opened_ms)


async def test_no_digest_comes_before_the_instant_that_the_last_one_named(store: Store) -> None:
    """To a shorter policy at once, or by way of a longer one and back."""
    at_once = replace(FIXED, immediate=True)
    await rescore(store, at_once)
    await add(store, at_once, b"t")
    opened_ms = await deliver(store, at_once)
    promised_ms = opened_ms + HOUR_MS
    for policy in (SHORTER, LONGER, SHORTER, CALENDAR, SHORTER):
        await rescore(store, replace(policy, immediate=True))
        assert (await base_of(store))[0] >= promised_ms
    assert await base_of(store) == (promised_ms, promised_ms)


async def test_the_instant_that_an_earlier_digest_named_holds_no_longer(store: Store) -> None:
    short = replace(FIXED, immediate=True, minimum_delay_ms=1, maximum_delay_ms=1)
    await rescore(store, short)
    await add(store, short, b"t")
    await deliver(store, short)
    await rescore(store, replace(FIXED, immediate=True))
    await rescore(store, short)
    await asyncio.sleep(0.002)
    await add(store, short, b"t")
    second_ms = await deliver(store, replace(FIXED, immediate=True))
    await rescore(store, replace(SHORTER, immediate=True))
    assert await base_of(store) == (second_ms + HOUR_MS, second_ms + HOUR_MS)


async def test_to_a_calendar_and_back(store: Store) -> None:
    await rescore(store, LONGER)
    began_ms = await add(store, LONGER, b"t")
    await rescore(store, CALENDAR)
    assert await base_of(store) == Plan(CALENDAR).beginning(store.clock.now_ms())
    await rescore(store, LONGER)
    assert await base_of(store) == Plan(LONGER).beginning(began_ms)


async def test_each_gets_the_instants_of_its_zone(store: Store) -> None:
    daily = replace(POLICY, immediate=False, at=("0 9 * * *",), zone="{zone}", zone_default="UTC")
    noon, now_ms = replace(daily, at=("0 12 * * *",)), store.clock.now_ms()
    await rescore(store, daily)
    for zone in ("Asia/Tokyo", "America/New_York", ""):
        plan = Plan(daily).of_zone(zone)
        record = Record(0, zone.encode() or b"t", b"k", now_ms * 1000, b"{}", False, zone=zone)
        zoned = Zoned(zone, plan.anew(now_ms))
        await store.timelines.add("r", 0, [record], plan.beginning(now_ms), zoned)
        assert await base_of(store, record.timeline) == plan.beginning(now_ms)
    done = (await rescore(store, noon))["r"]
    assert done.sooner + done.later == 3
    for zone in ("Asia/Tokyo", "America/New_York", ""):
        expected = Plan(noon).of_zone(zone).beginning(now_ms)
        assert await base_of(store, zone.encode() or b"t") == expected


async def test_what_is_due_and_a_retry_stay(store: Store) -> None:
    at_once = replace(FIXED, immediate=True)
    await rescore(store, at_once)
    await add(store, at_once, b"due", b"retried")
    claims = (await store.digests.claim(0, [("r", 0)], [100], LEASE_MS)).claims
    (retried,) = [claim for claim in claims if claim.timeline == "retried"]
    (due,) = [claim for claim in claims if claim.timeline == "due"]
    now_ms = store.clock.now_ms()
    await store.digests.open(0, [Opening(retried, uuid7(now_ms, bytes(RANDOM_BYTES)))], {"r": [now_ms]})
    again_ms = now_ms + HOUR_MS
    await store.digests.finish(0, [Ending.wait(retried, again_ms, 1), Ending.wait(due, due.due_ms, 0)])
    assert await rescore(store, LONGER) == {"r": Rescored()}
    assert await base_of(store, b"retried") == (again_ms, again_ms)
    assert (await base_of(store, b"due"))[0] == due.due_ms


async def test_of_what_is_due_nothing_more_is_asked(store: Store) -> None:
    """In a backlog that is nearly all, and its delivery needs Redis."""
    await rescore(store, FIXED)
    await add(store, replace(FIXED, immediate=True), *(b"due-%d" % number for number in range(30)))
    await add(store, FIXED, b"later")
    send, asked = store.namespace.send, Counter[bytes]()

    async def counting(partition: int, commands: Any) -> list[Any]:
        asked.update(bytes(command[0]) for command in commands)
        return await send(partition, commands)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.namespace, "send", counting)
        assert await rescore(store, SHORTER) == {"r": Rescored(sooner=1)}
    assert asked[b"HMGET"] == 2  # the policies, and the head of the one that is not due


async def test_many_daemons_at_once_and_many_timelines(store: Store) -> None:
    await rescore(store, FIXED)
    names = [b"%d" % number for number in range(900)]
    began: dict[bytes, int] = {}
    for start in range(0, len(names), 300):
        some = names[start : start + 300]
        began |= dict.fromkeys(some, await add(store, FIXED, *some))
    done: list[Any] = await asyncio.gather(*(rescore(store, SHORTER) for _ in range(3)))
    assert sum(each["r"].sooner for each in done) == len(names)
    for name in names[::50]:
        assert await base_of(store, name) == Plan(SHORTER).beginning(began[name])


async def test_a_route_with_a_damaged_key_stops_no_other(redis_server: RedisServer) -> None:
    names = ("bad", "good")
    settings = redis_settings(f"redis://{HOST}:{redis_server.port}/0")
    store = Store(settings, [StoreRoute(name, 100, 0, 60_000) for name in names], 10_000)
    await store.start()
    try:
        await Rescoring(store.namespace, dict.fromkeys(names, Plan(FIXED))).rescore(0)
        now_ms = store.clock.now_ms()
        await store.timelines.add(
            "good", 0, [Record(0, b"t", b"k", now_ms * 1000, b"{}", False)], Plan(FIXED).beginning(now_ms)
        )
        redis_server.cli("SET", store.namespace.keys[0, "bad"].schedules.decode(), "x")
        done = await Rescoring(store.namespace, dict.fromkeys(names, Plan(SHORTER))).rescore(0)
        assert done == {"good": Rescored(sooner=1)}
    finally:
        await store.close(5)


@pytest.mark.parametrize("text", ["", "id-1", "0193-", "not-hexadecimal-zzzzzzzzzzzzzzzzz"])
def test_an_id_that_is_not_ours_says_nothing(text: str) -> None:
    assert opened_of(text) is None
    assert opened_of(uuid7(1_795_000_000_123, bytes(RANDOM_BYTES))) == 1_795_000_000_123
