"""following.py: what became of a timeline that was made due."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nsqdigest.store.digests import Ending
from nsqdigest.store.following import Followed, Result, follow
from nsqdigest.store.head import Head
from nsqdigest.store.inspection import Inspector, Known, Place
from nsqdigest.store.operations import Operations
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from support.stores import add, finish, open_digest

pytestmark = pytest.mark.integration

HERE = Place(0, "r", "t")


class Looking(Inspector):
    """`looked` is set when the timeline was seen again."""

    looked: asyncio.Event

    async def look(self, *where: Any) -> Known | None:
        known = await super().look(*where)
        self.looked.set()
        return known


async def begun(store: Store) -> asyncio.Task[Followed]:
    """One that has an event, and somebody who follows it."""
    await add(store)
    inspector = Looking(store.namespace)
    inspector.looked = asyncio.Event()
    known = await inspector.look(HERE, 0)
    assert known is not None
    inspector.looked.clear()
    following = asyncio.ensure_future(follow(inspector, store.dead, known, 0, digest_id="", limit_s=10))
    await inspector.looked.wait()
    return following


async def deliver(store: Store) -> None:
    """And forgets it at once."""
    now_ms = store.clock.now_ms()
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], 60_000)).claims
    head = await open_digest(store, claim, "id-1", [now_ms])
    assert isinstance(head, Head)
    await finish(store, Ending.close(claim, head.id, Schedule(now_ms - 1, now_ms - 1)))
    (claim,) = (await store.digests.claim(0, [("r", 0)], [9], 60_000)).claims
    await open_digest(store, claim, "id-2", [now_ms])


async def test_who_was_deleted_meanwhile_was_not_delivered(store: Store) -> None:
    following = await begun(store)
    await Operations(store.namespace).delete("r", "t")
    assert (await following).result is Result.DELETED


async def test_who_was_delivered_and_forgotten_at_once_was_delivered(store: Store) -> None:
    following = await begun(store)
    await deliver(store)
    assert (await following).result is Result.DELIVERED
