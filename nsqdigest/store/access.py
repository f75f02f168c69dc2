"""Opens a namespace for a command that changes what stands in it. Commands that only look use `namespace.reading`.

Invariants:
- What a start of the daemon would refuse is refused here: servers, layout, and a right that the user lacks, since a
  script that is stopped half-way leaves work to the daemons' maintenance.
- Nothing is written where no daemon ever was: there is nothing to change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from nsqdigest.base.errors import Applied, StoreError, Unreachable, remedy_of_redis
from nsqdigest.store.damage import damaged
from nsqdigest.store.namespace import Namespace

if TYPE_CHECKING:
    from nsqdigest.config import Redis as RedisSettings

_CONNECTIONS = 8
_ENDS_WITHIN_S = 5.0
"""A call that was sent and has no answer yet gets so long: its outcome is to be known."""


@asynccontextmanager
async def operating(settings: RedisSettings, source: str) -> AsyncIterator[Namespace]:
    """`source`: the file of `settings`. Raises `Unreachable` where Redis does not do what it is asked for, and
    `StoreMismatch` where the layout does not fit the file."""
    namespace = Namespace(settings, _CONNECTIONS)
    is_open = False
    try:
        await namespace.open_to_read()
        await namespace.require_rights()
        is_open = True
        yield namespace
    except StoreError as error:
        if error.is_damage:
            raise damaged(error) from error
        doubt = "; the last change may have been made" if is_open and error.applied is Applied.AMBIGUOUS else ""
        raise Unreachable(
            f"{settings.shown_url} cannot be used: {error.what}{doubt}; {error.remedy or remedy_of_redis(source)}"
        ) from error
    finally:
        await namespace.close(_ENDS_WITHIN_S)


async def now_ms(namespace: Namespace) -> int:
    """By Redis' clock, asked for now."""
    ((seconds, microseconds),) = await namespace.send(0, [[b"TIME"]])
    namespace.clock.observe(int(seconds) * 1000 + int(microseconds) // 1000)
    return namespace.clock.now_ms()
