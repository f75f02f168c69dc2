"""What became of a timeline that was made due: looks at it until its digest has ended or failed. Reads only.

Invariants:
- A digest has ended when its id is the one that the timeline names as ended last, or its timeline is forgotten; it was
  buried if it is in the dead list then.
- Where its timeline is gone and no digest of it ended that anybody saw, it was deleted if records of its route were
  deleted meanwhile: what a delete leaves behind is the count of the route alone.
- An attempt failed when its digest waits for a later instant: what goes back unsent is due as before.
"""

from __future__ import annotations

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.store.listing import State

if TYPE_CHECKING:
    from nsqdigest.store.dead import DeadStore
    from nsqdigest.store.head import Head
    from nsqdigest.store.inspection import Inspector, Known, Place

_LOOK_EVERY_S = 0.2


class Result(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"
    """It is tried again later."""
    BURIED = "buried"
    DELETED = "deleted"
    """Its timeline was, before any digest of it ended."""
    PENDING = "pending"
    """Neither within the limit."""


class Followed(NamedTuple):
    result: Result
    digest_id: str = ""
    reason: str = ""
    """Why it was buried."""
    head: Head | None = None
    """Of a digest under way."""
    again_in_ms: int = 0


async def follow(
    inspector: Inspector, dead: DeadStore, before: Known, increment_ms: int, *, digest_id: str, limit_s: float
) -> Followed:
    """`before`: as it was when it was made due. `digest_id`: of a revived digest, which has a timeline for itself."""
    until_s = time.monotonic() + limit_s
    under_way = before.digest.id if before.digest else digest_id
    deleted = await inspector.deleted(before.place)
    while True:
        known = await inspector.look(before.place, increment_ms)
        if known is None and await _is_deleted(inspector, before.place, deleted):
            return Followed(Result.DELETED, under_way)
        ended = (under_way if known is None else known.last_id if known.last_id != before.last_id else "") or ""
        if known is None or ended:
            buried = await dead.find(ended) if ended else None
            reason = buried.details.reason if buried else ""
            return Followed(Result.BURIED if buried else Result.DELIVERED, ended, reason)
        if known.digest is not None:
            under_way = known.digest.id
        if known.state is State.RETRYING and known.at_ms > known.now_ms:
            return Followed(Result.FAILED, under_way, head=known.digest, again_in_ms=known.at_ms - known.now_ms)
        if time.monotonic() >= until_s:
            return Followed(Result.PENDING, under_way, head=known.digest)
        await asyncio.sleep(_LOOK_EVERY_S)


async def _is_deleted(inspector: Inspector, place: Place, deleted_before: int) -> bool:
    """A delivered digest is remembered for a while, a deleted timeline leaves nothing."""
    return await inspector.deleted(place) > deleted_before and not await inspector.is_remembered(place)
