"""Of a fleet one daemon gives waiting timelines the instants of a changed policy, and none while policies differ."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Policy
from nsqdigest.daemon.policy_changes import PolicyChanges
from nsqdigest.store.daemons import Daemons, Told
from nsqdigest.store.record import Record
from nsqdigest.store.rescoring import Rescoring
from nsqdigest.store.schedule import Plan
from nsqdigest.store.store import Store
from support.settings import POLICY
from support.stores import OpenStore
from support.waiting import until

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
BEFORE = replace(POLICY, immediate=False, minimum_delay_ms=HOUR_MS, maximum_delay_ms=2 * HOUR_MS)
AFTER = replace(BEFORE, minimum_delay_ms=5 * HOUR_MS, maximum_delay_ms=6 * HOUR_MS)
TIMELINES = 450


def changes_of(store: Store, policy: Policy) -> PolicyChanges:
    rescoring = Rescoring(store.namespace, {"r": Plan(policy)})
    return PolicyChanges(rescoring, store, {"r": "default"}, Metrics(), random.uniform)


async def check_in(store: Store, daemon_id: str, changes: PolicyChanges) -> None:
    await Daemons(store.namespace).check_in(daemon_id, Told(policies=changes.marks))


async def stores_of(open_store: OpenStore, redis_url: str, count: int) -> list[Store]:
    stores = [open_store(redis_url) for _ in range(count)]
    for store in stores:
        await store.start()
    await Rescoring(stores[0].namespace, {"r": Plan(BEFORE)}).rescore(0)
    now_ms = stores[0].clock.now_ms()
    records = [Record(0, b"%d" % number, b"k", now_ms * 1000, b"{}", False) for number in range(TIMELINES)]
    await stores[0].timelines.add("r", 0, records, Plan(BEFORE).beginning(now_ms))
    return stores


def _counting(run: Any, scored: list[int], number: int) -> Any:
    async def counted(partition: int, name: str, keys: Any, arguments: Any) -> Any:
        scored[number] += (len(arguments) - 4) // 5 if name == "rescore" else 0
        return await run(partition, name, keys, arguments)

    return counted


@contextmanager
def counting(stores: Sequence[Store]) -> Iterator[list[int]]:
    """How many timelines each store scored anew."""
    scored = [0] * len(stores)
    with pytest.MonkeyPatch.context() as patch:
        for number, store in enumerate(stores):
            patch.setattr(store.namespace, "run", _counting(store.namespace.run, scored, number))
        yield scored


async def is_remembered(store: Store, policy: Policy) -> bool:
    ((text,),) = await store.namespace.send(0, [[b"HMGET", store.namespace.tags[0] + b"policies", b"r"]])
    return bool(text.decode() == Plan(policy).text)


async def test_one_daemon_of_a_fleet_scores_for_all(open_store: OpenStore, redis_url: str) -> None:
    stores = await stores_of(open_store, redis_url, 3)
    fleet = [changes_of(store, AFTER) for store in stores]
    for number, (store, changes) in enumerate(zip(stores, fleet, strict=True)):
        await check_in(store, str(number), changes)
    with counting(stores) as scored:
        for number, changes in enumerate(fleet):
            changes.start(str(number))
        await until(lambda: is_remembered(stores[0], AFTER), 20, "the other policy")
        for changes in fleet:
            await changes.stop()
    assert sorted(scored) == [0, 0, TIMELINES]


async def test_while_another_daemon_has_another_policy_nothing_is_scored(open_store: OpenStore, redis_url: str) -> None:
    here, there = await stores_of(open_store, redis_url, 2)
    new = changes_of(here, AFTER)
    await check_in(here, "new", new)
    await check_in(there, "old", changes_of(there, BEFORE))
    looked = 0
    send = here.namespace.send

    async def looking(partition: int, commands: Any) -> list[Any]:
        nonlocal looked
        looked += commands[0][0] == b"HGETALL"
        return await send(partition, commands)

    with counting([here]) as scored, pytest.MonkeyPatch.context() as patch:
        patch.setattr(here.namespace, "send", looking)
        new.start("new")
        await until(lambda: looked >= 2, 20, "it to look at the other daemons twice")
        assert (scored, await is_remembered(here, BEFORE)) == ([0], True)
        await Daemons(there.namespace).say_goodbye("old")
        await until(lambda: is_remembered(here, AFTER), 20, "the other policy")
        await new.stop()
    assert scored == [TIMELINES]
