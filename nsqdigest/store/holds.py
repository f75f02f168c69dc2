"""Timelines that an operator muted or snoozed: what Redis holds of them, and what a daemon knows of it.

    mute     records that come are not kept; they count as dropped:muted
    snooze   nothing goes out before its end; what comes meanwhile is in the digest after it

Each has an end, and expires with it. They stand in Redis, so they hold for all daemons and over restarts. A daemon
reads them at its start and every few seconds, so no call of intake or delivery asks for them: where there is none, they
cost nothing. Until each daemon has read a new one (`KNOWN_WITHIN_S`), it may file or deliver as before. A snooze moves
the due instant of a timeline that waits. One that becomes due all the same is claimed and put off for a moment
(`PUT_OFF_MS`), not to the end: so a daemon that does not know yet that a snooze is over delays it by no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.base.errors import NsqdigestError, StoreError

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace

MOST_OF_A_PARTITION = 1000
KNOWN_WITHIN_S = 5
PUT_OFF_MS = 10_000
_BETWEEN = b":"  # no route's name has it


class HoldKind(StrEnum):
    MUTE = "mute"
    SNOOZE = "snooze"


class Hold(NamedTuple):
    route: str
    timeline: str
    kind: HoldKind
    until_ms: int
    since_ms: int
    by: str
    """The author: whoever muted or snoozed it."""


class Ended(NamedTuple):
    """What a hold took the place of, or what was ended. None: nothing."""

    kind: HoldKind | None


def field_of(route: str, timeline: bytes) -> bytes:
    """Of a hold, in Redis."""
    return route.encode() + _BETWEEN + timeline


class TooManyHolds(NsqdigestError):
    pass


class Holds:
    """What was read last. Everything asked of it is answered from memory."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.all: tuple[Hold, ...] = ()
        self._of_partition: list[list[Hold]] = [[] for _ in range(namespace.partitions)]
        self.is_any_muted = self.is_any_snoozed = False
        self._muted: Mapping[str, Mapping[bytes, int]] = MappingProxyType({})
        self._snoozed: Mapping[str, Mapping[str, int]] = MappingProxyType({})

    async def read(self) -> tuple[Hold, ...]:
        """All that are not over. Of a partition that fails the last ones remain; the others are known when this
        raises."""
        partitions = range(self._namespace.partitions)
        found = await asyncio.gather(*(self._read(number) for number in partitions), return_exceptions=True)
        failures = [each for each in found if isinstance(each, BaseException)]
        for number, each in enumerate(found):
            if not isinstance(each, BaseException):
                self._of_partition[number] = each
        self._know([hold for holds in self._of_partition for hold in holds])
        if failures:
            raise next((each for each in failures if not isinstance(each, StoreError)), failures[0])
        return self.all

    def _know(self, holds: Sequence[Hold]) -> None:
        self.all = tuple(holds)
        muted: dict[str, dict[bytes, int]] = {}
        snoozed: dict[str, dict[str, int]] = {}
        for hold in self.all:
            if hold.kind is HoldKind.MUTE:
                muted.setdefault(hold.route, {})[hold.timeline.encode()] = hold.until_ms
            else:
                snoozed.setdefault(hold.route, {})[hold.timeline] = hold.until_ms
        self._muted, self._snoozed = muted, snoozed
        self.is_any_muted, self.is_any_snoozed = bool(muted), bool(snoozed)

    async def _read(self, partition: int) -> list[Hold]:
        key = self._namespace.tags[partition] + b"holds"
        (flat,) = await self._namespace.send_together(partition, [[b"HGETALL", key]])
        now_ms = self._namespace.clock.now_ms()
        found = (_hold_of(field, text) for field, text in zip(flat[::2], flat[1::2], strict=True))
        return [hold for hold in found if hold is not None and hold.until_ms > now_ms]

    def muted(self, route: str) -> frozenset[bytes]:
        """The timelines of a route that are muted now."""
        now_ms = self._namespace.clock.now_ms()
        return frozenset(name for name, until_ms in self._muted.get(route, {}).items() if until_ms > now_ms)

    def put_off_ms(self, route: str, timeline: str) -> int | None:
        """Until when a claim of a timeline is put off. None: it is not snoozed."""
        until_ms, now_ms = self._snoozed.get(route, {}).get(timeline, 0), self._namespace.clock.now_ms()
        return min(until_ms, now_ms + PUT_OFF_MS) if until_ms > now_ms else None

    def latest_ms(self, route: str) -> int:
        """The last end of a snooze of this route; 0: there is none."""
        return max(self._snoozed.get(route, {}).values(), default=0) if self._snoozed else 0

    def counts(self) -> Mapping[tuple[str, HoldKind], int]:
        """By route and kind."""
        if not self.all:  # the clock may not have been read yet
            return {}
        now_ms = self._namespace.clock.now_ms()
        counts: dict[tuple[str, HoldKind], int] = {}
        for hold in self.all:
            if hold.until_ms > now_ms:
                counts[hold.route, hold.kind] = counts.get((hold.route, hold.kind), 0) + 1
        return counts

    # -- what an operator says

    async def begin(self, hold: Hold) -> Ended:
        """In place of what the timeline was held by before, if it was."""
        word, *had = await self._run(hold.route, hold.timeline, [hold.kind, hold.until_ms, hold.by.encode()])
        if word == b"full":
            raise TooManyHolds(
                f"{MOST_OF_A_PARTITION:,} timelines are muted or snoozed already, and no more may be: end some with "
                "`nsqdigest wake`, or pause a route or a sink"
            )
        return _ended(had)

    async def end(self, route: str, timeline: str) -> Ended:
        _, *had = await self._run(route, timeline, [b"", b"", b""])
        return _ended(had)

    async def _run(self, route: str, timeline: str, hold: list[bytes | str | int]) -> list[bytes]:
        name = timeline.encode()
        partition = self._namespace.partition_of(name)
        keys = [*self._namespace.keys[partition, route].of(name), self._namespace.tags[partition] + b"holds"]
        field = field_of(route, name)
        return await self._namespace.run(partition, "hold", keys, [b"", name, field, *hold, MOST_OF_A_PARTITION])


def _ended(had: list[bytes]) -> Ended:
    return Ended(HoldKind(had[0].decode()) if had and had[0] else None)


def _hold_of(field: bytes, text: bytes) -> Hold | None:
    """None where something else wrote it."""
    route, _, timeline = field.decode("utf-8", "backslashreplace").partition(_BETWEEN.decode())
    kind, *rest = text.decode("utf-8", "backslashreplace").split(" ", 5)
    if kind not in tuple(HoldKind) or len(rest) != 5 or not all(each.isascii() and each.isdigit() for each in rest[:4]):
        return None
    return Hold(route, timeline, HoldKind(kind), int(rest[0]), int(rest[1]), rest[4])
