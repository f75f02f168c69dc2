"""A changed policy reaches the timelines that wait: in each partition it is remembered which policy a route's timelines
were scored by, and where the file has another one they get its instants, page by page.

- A timeline that had no digest counts from its beginning: its base, less the first delay of the remembered policy. The
  timestamps of its records say nothing of that. Where the remembered policy is a calendar, it counts from now.
- One that had a digest counts from when that was opened (its id has the instant), and keeps the base that it has: its
  receiver knows that no digest comes before.
- A calendar counts from now.

Scoring would lose the beginning and the base before, so the first one writes them into the head as its anchor,
`anchor=ITERATION:INSTANT`; it holds until the next digest. So daemons that score at once, or again after one that was
killed, end in the same schedule.

What is due already, is being delivered, or waits for another attempt stays as it is. So does everything where nothing
was remembered: a daemon of a version that remembers no policy scored it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.errors import StoreError
from nsqdigest.store.head import opened_of
from nsqdigest.store.schedule import Remembered, Schedule, due_ms, unpacked

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.schedule import Plan

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
    """What is known of a timeline."""

    name: bytes
    ended_id: str
    """The digest that ended last; "": none did."""
    iteration: int
    zone: str
    anchor_ms: int | None
    """The one that an earlier scoring wrote, unless a digest came since."""
    had_digests: bool
    schedule: Schedule


class _Scored(NamedTuple):
    anchor_ms: int
    schedule: Schedule


class Rescoring:
    def __init__(self, namespace: Namespace, plans: Mapping[str, Plan]) -> None:
        """`plans`: by the name of the route."""
        self._namespace = namespace
        self._plans = plans
        self.marks = {name: _mark(plan.text) for name, plan in plans.items()}
        """By route, a short text for its policy. Policies that score alike have the same."""

    async def changed(self, partition: int) -> list[str]:
        """The routes for whose timelines another policy is remembered. Of those that nothing is remembered of the
        present one is remembered from here on."""
        names = list(self._plans)
        (stored,) = await self._namespace.send(partition, [[b"HMGET", self._policies(partition), *names]])
        for name, text in zip(names, stored, strict=True):
            if text is None:
                await self._call(partition, name, {}, remember=True)
        return [
            name
            for name, text in zip(names, stored, strict=True)
            if text is not None and text.decode("utf-8", "replace") != self._plans[name].text
        ]

    async def rescore(self, partition: int, routes: Collection[str] | None = None) -> dict[str, Rescored]:
        """Returns what was changed of those whose policy is another one than was remembered. `routes`: no others."""
        done: dict[str, Rescored] = {}
        for name in await self.changed(partition):
            if routes is not None and name not in routes:
                continue
            try:
                done[name] = await self._rescore_route(partition, name)
            except StoreError as error:
                if not error.is_damage:  # a damaged route stops no other
                    raise
        return done

    async def _rescore_route(self, partition: int, route: str) -> Rescored:
        (text,) = await self._namespace.send(partition, [[b"HGET", self._policies(partition), route]])
        remembered = Remembered.of((text or b"").decode("utf-8", "replace"))
        done, cursor = Rescored(), b"0"
        while True:
            began_s = time.monotonic()
            cursor, timelines = await self._page(partition, route, cursor)
            scored = self._scored(route, timelines, remembered)
            if scored:
                done = done.plus(await self._call(partition, route, scored))
            if cursor == b"0":
                await self._call(partition, route, {}, remember=True)
                return done
            await asyncio.sleep(_PAUSE_PER_WORK * (time.monotonic() - began_s))

    async def _page(self, partition: int, route: str, cursor: bytes) -> tuple[bytes, list[_Waiting]]:
        of = self._namespace.keys[partition, route]
        ((cursor, flat),) = await self._namespace.send(partition, [[b"HSCAN", of.schedules, cursor, b"COUNT", _PAGE]])
        schedules = dict(self._not_due(route, dict(zip(flat[::2], flat[1::2], strict=True))))  # a name may come twice
        if not schedules:
            return cursor, []
        (heads,) = await self._namespace.send(partition, [[b"HMGET", of.heads, *schedules]])
        fields = zip(schedules.items(), map(_fields_of, heads), strict=True)
        # One that has an id waits for another attempt.
        return cursor, [_waiting(name, schedule, head) for (name, schedule), head in fields if "id" not in head]

    def _not_due(self, route: str, schedules: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, Schedule]]:
        """What is due would stay as it is (lua/upkeep/rescore.lua): nothing more is asked of it. In a backlog that is
        nearly all."""
        now_ms, increment_ms = self._namespace.clock.now_ms(), self._plans[route].increment_ms
        for name, packed in schedules.items():
            base_ms, bound_ms, records = unpacked(packed, now_ms)
            if due_ms(base_ms, bound_ms, increment_ms, records) > now_ms:
                yield name, Schedule(base_ms, bound_ms)

    def _scored(
        self, route: str, timelines: Iterable[_Waiting], remembered: Remembered | None
    ) -> dict[_Waiting, _Scored]:
        plan, now_ms = self._plans[route], self._namespace.clock.now_ms()
        found = ((each, _score(plan.of_zone(each.zone), each, remembered, now_ms)) for each in timelines)
        return {each: scored for each, scored in found if scored is not None}

    async def _call(
        self, partition: int, route: str, scored: Mapping[_Waiting, _Scored], *, remember: bool = False
    ) -> Rescored:
        plan, of = self._plans[route], self._namespace.keys[partition, route]
        arguments: list[bytes | str | int] = [b"", plan.increment_ms, route, plan.text if remember else ""]
        for each, (anchor_ms, schedule) in scored.items():
            arguments += (each.name, each.ended_id, *schedule, f"{each.iteration}:{anchor_ms}")
        keys = [of.waiting, of.schedules, of.heads, of.agenda, self._policies(partition)]
        _, sooner, later = await self._namespace.run(partition, "rescore", keys, arguments)
        return Rescored(sooner, later)

    def _policies(self, partition: int) -> bytes:
        return self._namespace.tags[partition] + b"policies"


def _score(plan: Plan, timeline: _Waiting, remembered: Remembered | None, now_ms: int) -> _Scored | None:
    """None: nothing says when its last digest was opened, and it keeps its instants."""
    anchor_ms = timeline.anchor_ms
    if not timeline.had_digests:
        if anchor_ms is None:
            anchor_ms = now_ms if remembered is None else remembered.began_ms(timeline.schedule, now_ms)
        return _Scored(anchor_ms, plan.beginning(now_ms if plan.has_calendar else anchor_ms))
    opened_ms = opened_of(timeline.ended_id)
    if opened_ms is None:  # it was adopted, perhaps
        return None
    from_ms = now_ms if plan.has_calendar else min(now_ms, opened_ms)
    anchor_ms = timeline.schedule.base_ms if anchor_ms is None else anchor_ms
    return _Scored(anchor_ms, plan.after_digest(max(1, timeline.iteration), from_ms, anchor_ms))


def _mark(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=4).hexdigest()


def _waiting(name: bytes, schedule: Schedule, head: Mapping[str, str]) -> _Waiting:
    iteration = _number(head.get("iteration"))
    anchored, _, anchor = head.get("anchor", "").partition(":")
    is_of_now = anchored == str(iteration) and anchor.isdigit()
    return _Waiting(
        name, head.get("closed", ""), iteration, head.get("zone", ""), int(anchor) if is_of_now else None,
        bool(_HAD_DIGESTS & {*head}), schedule,
    )  # fmt: skip


def _fields_of(head: bytes | None) -> dict[str, str]:
    return dict(field.split("=", 1) for field in (head or b"").decode("utf-8", "replace").split() if "=" in field)


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0
