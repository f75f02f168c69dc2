"""Lists timelines, those that are due first, at the front. Reads only.

A page is a few hundred timelines of one route and partition: no command takes Redis longer than a moment, and no more
than the timelines that are to be shown are kept here.

Invariants:
- The score of a waiting timeline is never after its due instant (lua/lib/schedule.lua). So once as many as are wanted
  are due before the next page's first score, the rest of that route and partition need not be read.
- Pages are read one after the other while daemons are at work: a timeline that moves meanwhile may be missed or shown
  as it was, and is never shown twice.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.store.head import Head, zone_of
from nsqdigest.store.keys import is_own, own_digest_id, shown_timeline
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.schedule import due_ms, instant_ms, shown_due_ms, unpacked

if TYPE_CHECKING:
    from nsqdigest.base.quiet_hours import QuietHours
    from nsqdigest.store.keys import Keys
    from nsqdigest.store.namespace import Namespace


class State(StrEnum):
    LEASED = "leased"
    """A daemon delivers it."""
    DUE = "due"
    """Its instant has come; no daemon has claimed it yet."""
    RETRYING = "retrying"
    """A digest of it was opened and not delivered; it is to be tried again."""
    WAITING = "waiting"
    IDLE = "idle"
    """It was delivered and got nothing new. It is forgotten at the instant at which it would be due."""


class Listed(NamedTuple):
    """One timeline. `at_ms`: when it is due; where it is leased, when the lease ends."""

    route: str
    name: str
    """As the store has it: of a revived digest, `keys.own_timeline`."""
    state: State
    at_ms: int
    records: int
    """Open, those of a digest under way not among them."""
    digest: Head | None
    """Under way."""

    @property
    def is_revived(self) -> bool:
        return is_own(self.name)

    @property
    def shown(self) -> str:
        return shown_timeline(self.name)

    @property
    def digest_id(self) -> str:
        if self.digest is not None:
            return self.digest.id
        return own_digest_id(self.name)

    @property
    def order(self) -> tuple[bool, int, str, str]:
        return self.state is not State.LEASED, self.at_ms, self.route, self.name


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which timelines. "" and an empty set: any."""

    text: str = ""
    """In the name."""
    states: frozenset[State] = frozenset()
    only_revived: bool = False

    @property
    def is_any(self) -> bool:
        return self == Wanted()

    def takes(self, listed: Listed) -> bool:
        if self.text not in listed.shown or (self.only_revived and not listed.is_revived):
            return False
        return not self.states or listed.state in self.states


class Listing(NamedTuple):
    timelines: list[Listed]
    total: int
    """How many there are that were asked for."""
    is_partial: bool = False
    """The reading was broken off at its bound: there may be more, and some of them may be due before these."""


class Lister:
    def __init__(
        self,
        namespace: Namespace,
        increments_ms: Mapping[str, int],
        now_ms: int,
        quiet: Mapping[str, QuietHours | None] = MappingProxyType({}),
    ) -> None:
        """`increments_ms`: of the routes to list, by name; `quiet`: their quiet hours."""
        self._namespace = namespace
        self._increments_ms = increments_ms
        self._now_ms = now_ms
        self._quiet = quiet

    async def first(self, limit: int, wanted: Wanted, most_read: int = sys.maxsize) -> Listing:
        """`most_read`: once it has looked at so many timelines, it ends with the page it is at."""
        kept: list[Listed] = []
        total = read = 0
        is_partial = False
        for partition in range(self._namespace.partitions):
            for route, of, waiting, leased in await self._sizes(partition):
                for key, size, is_leased in ((of.leased, leased, True), (of.waiting, waiting, False)):
                    total += size if wanted.is_any else 0
                    if read >= most_read:
                        is_partial |= size > 0
                        continue
                    left, last_ms = size, kept[-1].order[:2] if len(kept) == limit else None
                    async for page, first_ms in self._pages(partition, route, key, size, is_leased=is_leased):
                        if wanted.is_any and last_ms is not None and (not is_leased, first_ms) > last_ms:
                            break
                        taken = [each for each in page if wanted.takes(each)]
                        total += 0 if wanted.is_any else len(taken)
                        kept = _first_of(kept, taken, limit)
                        last_ms = kept[-1].order[:2] if len(kept) == limit else None
                        read += len(page)
                        left -= len(page)
                        if read >= most_read:
                            is_partial |= left > 0
                            break
        # Those that came or went meanwhile are no more to be seen.
        is_cut = len(kept) == limit or is_partial
        return Listing(kept, max(total, len(kept)) if is_cut else len(kept), is_partial)

    async def _sizes(self, partition: int) -> list[tuple[str, Keys, int, int]]:
        """Of each route how many timelines wait, and how many are leased."""
        routes = list(self._increments_ms)
        of = [self._namespace.keys[partition, route] for route in routes]
        sizes = await self._namespace.send(
            partition, [[b"ZCARD", key] for each in of for key in (each.waiting, each.leased)]
        )
        return list(zip(routes, of, sizes[::2], sizes[1::2], strict=True))

    async def _pages(
        self, partition: int, route: str, key: bytes, size: int, *, is_leased: bool
    ) -> AsyncIterator[tuple[list[Listed], int]]:
        """Each with its first score. In the order of scores."""
        of = self._namespace.keys[partition, route]
        for start in range(0, size, RECORDS_PER_CALL):
            (flat,) = await self._namespace.send(
                partition, [[b"ZRANGE", key, start, start + RECORDS_PER_CALL - 1, b"WITHSCORES"]]
            )
            names = flat[::2]
            if not names:
                return
            schedules, heads = await self._namespace.send(
                partition, [[b"HMGET", of.schedules, *names], [b"HMGET", of.heads, *names]]
            )
            found = [
                self._listed(route, *each, is_leased=is_leased)
                for each in zip(names, map(instant_ms, flat[1::2]), schedules, heads, strict=True)
            ]
            yield found, instant_ms(flat[1])

    def _listed(
        self, route: str, name: bytes, score_ms: int, schedule: bytes | None, head: bytes | None, *, is_leased: bool
    ) -> Listed:
        base_ms, bound_ms, records = unpacked(schedule, score_ms)
        digest = digest_of(head)
        at_ms = score_ms
        if not is_leased:
            at_ms = max(score_ms, due_ms(base_ms, bound_ms, self._increments_ms[route], records))
            quiet, zone = self._quiet.get(route), zone_of(head)
            at_ms = shown_due_ms(at_ms, self._now_ms, quiet.in_zone(zone) if quiet is not None and zone else quiet)
        state = state_of(at_ms, self._now_ms, records, digest, is_leased=is_leased)
        return Listed(route, name.decode("utf-8", "backslashreplace"), state, at_ms, records, digest)


def state_of(at_ms: int, now_ms: int, records: int, digest: Head | None, *, is_leased: bool) -> State:
    if is_leased:
        return State.LEASED
    if not records and digest is None:
        return State.IDLE
    if at_ms <= now_ms:
        return State.DUE
    return State.RETRYING if digest is not None else State.WAITING


def digest_of(head: bytes | None) -> Head | None:
    """The digest under way. None: there is none, or something else wrote the head."""
    if head is None or b" id=" not in head:
        return None
    try:
        return Head.parse(head)
    except (KeyError, ValueError):
        return None


def _first_of(kept: list[Listed], page: list[Listed], limit: int) -> list[Listed]:
    """A timeline that moved between two pages is kept as it was read last."""
    by_name = {(each.route, each.name): each for each in (*kept, *page)}
    return nsmallest(limit, by_name.values(), key=lambda each: each.order)
