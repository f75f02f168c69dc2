"""A changed policy reaches the timelines that wait: in each partition it is remembered which policy a route's timelines
were scored by, and where the file has another one they get its instants, page by page.

Of one that had a digest the new delay counts from when that was opened (its id has the instant; so does what the digest
named as the earliest next one); of one that had none, from its oldest record. A calendar counts from now. These are
facts that scoring does not change: daemons that do it at once, or again after one that was killed, end in the same
schedule.

What is due already, is being delivered, or waits for another attempt stays as it is. So does everything where nothing
was remembered: a daemon of a version that remembers no policy scored it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.errors import StoreError
from nsqdigest.store.head import opened_of
from nsqdigest.store.record import timestamp_ms
from nsqdigest.store.schedule import due_ms, unpacked

if TYPE_CHECKING:
    from nsqdigest.store.keys import Keys
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.schedule import Plan, Schedule

_PAGE = 200
_PAUSE_PER_WORK = 4
"""So many times as long as a page took it leaves Redis to others."""


_HAD_DIGESTS = {"iteration", "closed", "id"}
"""Fields of the head of a timeline that had digests."""


class Rescored(NamedTuple):
    sooner: int = 0
    later: int = 0

    def plus(self, other: Rescored) -> Rescored:
        return Rescored(self.sooner + other.sooner, self.later + other.later)


class _Waiting(NamedTuple):
    """What is known of a timeline, but for its schedule."""

    name: bytes
    ended_id: str
    """Of the digest that ended last; "": none did."""
    iteration: int
    zone: str
    oldest_ms: int | None
    """The timestamp of its oldest record, where it had no digest."""


class Rescoring:
    def __init__(self, namespace: Namespace, plans: Mapping[str, Plan]) -> None:
        """`plans`: by the name of the route."""
        self._namespace = namespace
        self._plans = plans

    async def rescore(self, partition: int) -> dict[str, Rescored]:
        """Returns what was changed of the routes whose policy is another one than was remembered."""
        names = list(self._plans)
        (stored,) = await self._namespace.send(partition, [[b"HMGET", self._policies(partition), *names]])
        done: dict[str, Rescored] = {}
        for name, text in zip(names, stored, strict=True):
            try:
                if text is None:
                    await self._call(partition, name, (), remember=True)
                elif text.decode("utf-8", "replace") != self._plans[name].text:
                    done[name] = await self._rescore_route(partition, name)
            except StoreError as error:
                if not error.is_damage:  # a damaged route stops no other
                    raise
        return done

    async def _rescore_route(self, partition: int, route: str) -> Rescored:
        done, cursor = Rescored(), b"0"
        while True:
            began_s = time.monotonic()
            cursor, timelines = await self._page(partition, route, cursor)
            if timelines:
                done = done.plus(await self._call(partition, route, timelines))
            if cursor == b"0":
                await self._call(partition, route, (), remember=True)
                return done
            await asyncio.sleep(_PAUSE_PER_WORK * (time.monotonic() - began_s))

    async def _page(self, partition: int, route: str, cursor: bytes) -> tuple[bytes, list[_Waiting]]:
        of = self._namespace.keys[partition, route]
        ((cursor, flat),) = await self._namespace.send(partition, [[b"HSCAN", of.schedules, cursor, b"COUNT", _PAGE]])
        schedules = dict(zip(flat[::2], flat[1::2], strict=True))  # a name may come twice
        names = [*self._not_due(route, schedules)]
        if not names:
            return cursor, []
        (heads,) = await self._namespace.send(partition, [[b"HMGET", of.heads, *names]])
        fields = [_fields_of(head) for head in heads]
        without = [name for name, each in zip(names, fields, strict=True) if not _HAD_DIGESTS & {*each}]
        oldest = await self._oldest_ms(partition, of, without)
        return cursor, [
            _Waiting(
                name, each.get("closed", ""), _number(each.get("iteration")), each.get("zone", ""), oldest.get(name)
            )
            for name, each in zip(names, fields, strict=True)
            if "id" not in each  # a digest of it waits for another attempt
        ]

    def _not_due(self, route: str, schedules: Mapping[bytes, bytes]) -> Iterator[bytes]:
        """What is due would stay as it is (lua/upkeep/rescore.lua): nothing more is asked of it. In a backlog that is
        nearly all."""
        now_ms, increment_ms = self._namespace.clock.now_ms(), self._plans[route].increment_ms
        for name, packed in schedules.items():
            base_ms, bound_ms, records = unpacked(packed, now_ms)
            if due_ms(base_ms, bound_ms, increment_ms, records) > now_ms:
                yield name

    async def _oldest_ms(self, partition: int, of: Keys, names: list[bytes]) -> dict[bytes, int]:
        """Of those that have a record."""
        if not names:
            return {}
        ranges = await self._namespace.send(
            partition, [[b"ZRANGE", of.index + name, -1, -1, b"WITHSCORES"] for name in names]
        )
        return {name: timestamp_ms(flat[1]) for name, flat in zip(names, ranges, strict=True) if flat}

    async def _call(
        self, partition: int, route: str, timelines: Iterable[_Waiting], *, remember: bool = False
    ) -> Rescored:
        plan, of, now_ms = self._plans[route], self._namespace.keys[partition, route], self._namespace.clock.now_ms()
        arguments: list[bytes | str | int] = [b"", plan.increment_ms, route, plan.text if remember else ""]
        for each in timelines:
            instants = _instants(plan.of_zone(each.zone), each, now_ms)
            if instants is not None:
                arguments += (each.name, each.ended_id, *instants)
        keys = [of.waiting, of.schedules, of.heads, of.agenda, self._policies(partition)]
        _, sooner, later = await self._namespace.run(partition, "rescore", keys, arguments)
        return Rescored(sooner, later)

    def _policies(self, partition: int) -> bytes:
        return self._namespace.tags[partition] + b"policies"


def _instants(plan: Plan, timeline: _Waiting, now_ms: int) -> Schedule | None:
    """None: nothing says when its last digest was opened."""
    if not timeline.ended_id and timeline.iteration:
        return None  # it was adopted, and keeps the instants that it came with
    if not timeline.ended_id:
        oldest_ms = now_ms if timeline.oldest_ms is None else min(now_ms, timeline.oldest_ms)
        return plan.beginning(now_ms if plan.has_calendar else oldest_ms)
    opened_ms = opened_of(timeline.ended_id)
    if opened_ms is None:
        return None
    return plan.after_digest(max(1, timeline.iteration), now_ms if plan.has_calendar else min(now_ms, opened_ms))


def _fields_of(head: bytes | None) -> dict[str, str]:
    return dict(field.split("=", 1) for field in (head or b"").decode("utf-8", "replace").split() if "=" in field)


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0
