"""Two daemons' stores on one Redis whose time is the test's, calls that go wrong in every way, and an account of all
that was put in.

`Daemon` holds a real `Timelines`. Its scripts are told the instant of `World`, its clock lags behind it, and each call
has a fate: heard; its answer lost; lost on the way there; cut off between two writes.

`Account` follows every event by its value, which no other has. It predicts nothing: it knows what must never be,
whatever the daemons did, from what Redis holds and from what receivers got.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from nsqdigest.base.errors import StoreError
from nsqdigest.config import Redis as RedisSettings
from nsqdigest.store.dead import Details
from nsqdigest.store.head import Head
from nsqdigest.store.keys import shown_timeline
from nsqdigest.store.namespace import Namespace
from nsqdigest.store.record import Record, StoredRecord
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.servers.client import RedisClient
from nsqdigest.store.servers.resp import Command, Words, count_of
from nsqdigest.store.store import Store
from support.cutting_off import text_cut_off
from support.store import NOW_MS
from support.stores import redis_settings


class Fate(StrEnum):
    HEARD = "heard"
    UNHEARD = "unheard"
    """It was done, and nobody heard so."""
    NOT_SENT = "not sent"
    CUT_OFF = "cut off"
    """It stopped after some of its writes, unless it has no more than that."""


class World:
    """What the scripts are told the time is, and what becomes of the next call."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS
        self.fate = Fate.HEARD
        self.writes = 0
        """After so many writes the next call is cut off, where that is its fate."""
        self.was_cut_off = False

    def next_fate(self) -> Fate:
        fate, self.fate = self.fate, Fate.HEARD
        return fate


class LaggingClock:
    """Redis' clock as one daemon has it: never ahead of it, and always as far behind."""

    def __init__(self, world: World, lag_ms: int) -> None:
        self._world = world
        self._lag_ms = lag_ms

    def observe(self, redis_now_ms: int) -> None: ...

    def now_ms(self) -> int:
        return self._world.now_ms - self._lag_ms


class TimedClient(RedisClient):
    world: World
    lag_ms: int

    def __init__(self, settings: RedisSettings, connections: int) -> None:
        super().__init__(settings, connections)
        self.clock = LaggingClock(self.world, self.lag_ms)  # type: ignore[assignment]

    async def send_together(self, tag: bytes, commands: Sequence[Command]) -> list[Any]:
        answers = await super().send_together(tag, commands)
        seconds, milliseconds = divmod(self.world.now_ms, 1000)
        time = [b"%d" % seconds, b"%d" % (1000 * milliseconds)]
        return [time if command == [b"TIME"] else answer for command, answer in zip(commands, answers, strict=True)]


class TimedNamespace(Namespace):
    world: World

    async def _run(self, tag: bytes, name: str, keys: Words, arguments: Words, *, durable: bool = False) -> list[Any]:
        """A script that asks for Redis' clock has '' as its first argument."""
        asks_for_time = bool(arguments) and arguments[0] == b""
        told = [b"%d" % self.world.now_ms, *arguments[1:]] if asks_for_time else arguments
        fate = self.world.next_fate()
        if fate is Fate.NOT_SENT:
            raise StoreError("redis-connection", f"{name} was not sent")
        if fate is Fate.CUT_OFF:
            self.world.was_cut_off = True
            text = text_cut_off(name, self.world.writes)
            (answer,) = await self._client.send(tag, [[b"EVAL", text, count_of(keys), *keys, *told]])
            return list(answer)
        answer = await super()._run(tag, name, keys, told, durable=durable)
        if fate is Fate.UNHEARD:
            raise StoreError("redis-timeout", f"nobody heard the answer of {name}")
        return answer


class Daemon:
    def __init__(self, world: World, url: str, plans: Sequence[StoreRoute], limit: int, lag_ms: int) -> None:
        TimedClient.world, TimedClient.lag_ms = world, lag_ms
        TimedNamespace.world = world
        self.store = Store(redis_settings(url, partitions=2), plans, limit, connections=2)
        self.clock = self.store.clock


# -- the account


@dataclass
class Event:
    """What became of it as far as its sender and its receiver know."""

    route: str
    record: Record
    is_acknowledged: bool = False
    may_be_gone: bool = False
    """Redis was put back to before it, or an operator deleted it."""
    may_come_twice: bool = False


Shown = tuple[StoredRecord, ...]
Place = tuple[str, bytes]
"""Route and timeline."""
Key = tuple[Place, bytes]


class Told(NamedTuple):
    """What a receiver is told of a digest beside its records."""

    id: str
    opened_ms: int
    iteration: int
    total: int
    superseded: int
    dropped_capacity: int
    next_earliest_ms: int

    @classmethod
    def of(cls, opened: Head) -> Told:
        return cls(*(getattr(opened, name) for name in cls._fields))


@dataclass
class Account:
    roomy: str
    """The route that drops nothing: what is not superseded there has to be shown, and shown once."""
    events: dict[bytes, Event] = field(default_factory=dict)
    digests: dict[str, Told] = field(default_factory=dict)
    bodies: dict[str, Shown] = field(default_factory=dict)
    """Of every digest that anyone ever read to its end."""
    shown: dict[bytes, str] = field(default_factory=dict)
    """By event the digest that a receiver got it in."""
    newest_shown: dict[Key, int] = field(default_factory=dict)
    """The newest timestamp (ms) of each key that was shown, or went with the dead."""

    def opened(self, opened: Head) -> None:
        told = Told.of(opened)
        assert self.digests.setdefault(opened.id, told) == told, "one id, two digests"

    def read(self, digest_id: str, body: Shown) -> None:
        assert len(body) == self.digests[digest_id].total
        assert list(body) == sorted(body, key=lambda record: (-record.timestamp_ms, record.key))
        assert self.bodies.setdefault(digest_id, body) == body, "one id, two bodies"

    def received(self, place: Place, digest_id: str) -> None:
        for record in self.bodies[digest_id]:
            event = self.events[record.value]
            before = self.shown.setdefault(record.value, digest_id)
            is_once = before == digest_id or event.may_come_twice or event.route != self.roomy
            assert is_once, f"{record.value!r} was shown in {before} and in {digest_id}"
        self.ended(place, digest_id)

    def ended(self, place: Place, digest_id: str) -> None:
        for record in self.bodies[digest_id]:
            of = place, record.key
            self.newest_shown[of] = max(self.newest_shown.get(of, -1), record.timestamp_ms)

    def of_timeline(self, route: str, timeline: bytes) -> list[Event]:
        return [each for each in self.events.values() if (each.route, each.record.timeline) == (route, timeline)]

    def missing(self, held: Mapping[Key, int]) -> list[str]:
        """Events of the roomy route that were acknowledged and are nowhere, nor anything newer under their key. `held`:
        the newest timestamp (ms) of each key in Redis."""
        return [
            f"{value!r} of {event.record.timeline!r} was acknowledged and is nowhere"
            for value, event in self.events.items()
            if event.is_acknowledged and not event.may_be_gone and event.route == self.roomy
            for of in [((event.route, event.record.timeline), event.record.key)]
            if max(held.get(of, -1), self.newest_shown.get(of, -1)) < event.record.timestamp_us // 1000
        ]


def newest_held(tag: bytes, contents: Mapping[bytes, Any]) -> dict[Key, int]:
    """The newest timestamp (ms) of each key that one partition has, wherever it is."""
    held: dict[Key, int] = {}
    for name, members in contents.items():
        kind, _, rest = name.removeprefix(tag).decode().partition(":")
        if kind in {"set", "digest"}:
            route, _, timeline = rest.partition(":")
        elif kind == "dead-set":
            details = contents.get(tag + b"dead:details", {}).get(rest.encode())
            if details is None:
                continue  # a burial that was cut off: its records are in the snapshot, too
            told = Details.decode(details)
            route, timeline = told.route, told.timeline
        else:
            continue
        for key, score in members.items():
            of = (route, shown_timeline(timeline).encode()), key
            held[of] = max(held.get(of, -1), -score // 1000)
    return held
