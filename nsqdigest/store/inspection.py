"""Finds timelines by name, and reads what is known of one. Reads only.

What is read of one timeline comes in one round trip, and not at one instant: beside a busy daemon two numbers may be a
moment apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nsqdigest.store.head import Head, zone_of
from nsqdigest.store.keys import own_timeline, shown_timeline
from nsqdigest.store.listing import Listed, State, digest_of, state_of
from nsqdigest.store.newest import newest_records
from nsqdigest.store.packing import RECORDS_PER_CALL
from nsqdigest.store.schedule import due_ms, instant_ms, shown_due_ms, unpacked

if TYPE_CHECKING:
    from nsqdigest.base.quiet_hours import QuietHours
    from nsqdigest.store.keys import Keys
    from nsqdigest.store.namespace import Namespace
    from nsqdigest.store.record import StoredRecord

_REVIVED = "\x01*\x01"


class Place(NamedTuple):
    """Where a timeline is. `name`: as the store has it."""

    partition: int
    route: str
    name: str

    @property
    def shown(self) -> str:
        return shown_timeline(self.name)


class Known(NamedTuple):
    """What the store knows of one timeline, beside its records."""

    place: Place
    state: State | None
    """None: it neither waits nor is leased. A daemon's maintenance mends that."""
    now_ms: int
    at_ms: int
    """When it is due; where it is leased, when the lease ends."""
    base_ms: int
    bound_ms: int
    records: int
    iteration: int
    """How many digests it has had, the one under way among them."""
    last_id: str
    """Of the digest that ended last; "" where none has."""
    digest: Head | None
    """Under way."""
    is_urgent_next: bool
    """An urgent record came while the digest was under way: the next one follows at once."""
    superseded: int
    dropped_capacity: int
    dropped_cancelled: int
    """All three: since the digest before. Those of a digest under way are in its head."""
    zone: str
    """Of its own; "" where it has none."""
    remembered: int
    """Records of digests that ended lately: they are not shown again."""

    @property
    def listed(self) -> Listed:
        """As in a list. One that is astray is shown as due: upkeep makes it wait."""
        return Listed(self.place.route, self.place.name, self.state or State.DUE, self.at_ms, self.records, self.digest)


class Read(NamedTuple):
    """What Redis returned of one timeline."""

    schedule: bytes
    waiting: bytes | None
    leased: bytes | None
    head: bytes | None
    losses: Sequence[bytes | None]
    """Superseded, dropped for capacity, cancelled."""
    remembered: int


class Inspector:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    # -- by name

    async def find(self, timeline: str, routes: Iterable[str], digest_id: str = "") -> list[Place]:
        """In which of the routes it is. With an id: the revived digest of this id."""
        partition = self._namespace.partition_of(shown_timeline(timeline).encode())
        name = own_timeline(digest_id, timeline) if digest_id else timeline
        names = list(routes)
        known = await self._namespace.send(
            partition, [[b"HEXISTS", self._namespace.keys[partition, each].schedules, name.encode()] for each in names]
        )
        return [Place(partition, route, name) for route, is_known in zip(names, known, strict=True) if is_known]

    async def revived_of(self, timeline: str, routes: Iterable[str]) -> list[Place]:
        """The digests of this timeline that were sent again from the dead store and are not delivered yet."""
        partition = self._namespace.partition_of(timeline.encode())
        found: dict[Place, None] = {}
        for route in routes:
            schedules, cursor = self._namespace.keys[partition, route].schedules, b"0"
            while True:
                ((cursor, flat),) = await self._namespace.send(
                    partition, [[b"HSCAN", schedules, cursor, b"MATCH", _REVIVED + "*", b"COUNT", RECORDS_PER_CALL]]
                )
                names = (name.decode("utf-8", "replace") for name in flat[::2])
                found |= {Place(partition, route, name): None for name in names if shown_timeline(name) == timeline}
                if cursor == b"0":
                    break
        return list(found)

    # -- one of them

    async def look(self, place: Place, increment_ms: int, quiet: QuietHours | None = None) -> Known | None:
        """None: it is not there any more."""
        of, name = self._of(place)
        (time_s, time_us), schedule, waiting, leased, head, losses, remembered = await self._namespace.send(
            place.partition,
            [
                [b"TIME"],
                [b"HGET", of.schedules, name],
                [b"ZSCORE", of.waiting, name],
                [b"ZSCORE", of.leased, name],
                [b"HGET", of.heads, name],
                [b"HMGET", of.losses, b"s" + name, b"c" + name, b"x" + name],
                [b"ZCARD", of.memory + name],
            ],
        )
        if schedule is None:
            return None
        now_ms = int(time_s) * 1000 + int(time_us) // 1000
        read = Read(schedule, waiting, leased, head, losses, remembered)
        return known_of(place, now_ms, read, increment_ms, quiet)

    async def deleted(self, place: Place) -> int:
        """How many records of its route were ever deleted, in its partition."""
        of, _ = self._of(place)
        (count,) = await self._namespace.send(place.partition, [[b"HGET", of.ledger, b"deleted"]])
        return _number(count)

    async def is_remembered(self, place: Place) -> bool:
        """Whether a digest of it ended lately."""
        of, name = self._of(place)
        (there,) = await self._namespace.send(place.partition, [[b"EXISTS", of.memory + name]])
        return bool(there)

    async def records(self, place: Place, most: int) -> list[StoredRecord]:
        """The newest of its open records."""
        of, name = self._of(place)
        return await newest_records(self._namespace, place.partition, of.index + name, of.values + name, most)

    async def digest_records(self, place: Place, most: int) -> list[StoredRecord]:
        """The newest of its digest under way."""
        of, name = self._of(place)
        return await newest_records(
            self._namespace, place.partition, of.snapshot + name, of.snapshot_values + name, most
        )

    def _of(self, place: Place) -> tuple[Keys, bytes]:
        return self._namespace.keys[place.partition, place.route], place.name.encode()


def known_of(place: Place, now_ms: int, read: Read, increment_ms: int, quiet: QuietHours | None) -> Known:
    zone = zone_of(read.head)
    quiet = quiet.in_zone(zone) if quiet is not None and zone else quiet
    base_ms, bound_ms, records = unpacked(read.schedule, now_ms)
    if read.leased is None:
        at_ms = shown_due_ms(due_ms(base_ms, bound_ms, increment_ms, records), now_ms, quiet)
    else:
        at_ms = instant_ms(read.leased)
    digest = digest_of(read.head)
    is_astray = read.waiting is None and read.leased is None
    text = (read.head or b"").decode("utf-8", "replace")
    fields = dict(field.split("=", 1) for field in text.split() if "=" in field)
    superseded, dropped_capacity, dropped_cancelled = map(_number, read.losses)
    return Known(
        place,
        None if is_astray else state_of(at_ms, now_ms, records, digest, is_leased=read.leased is not None),
        now_ms,
        at_ms,
        base_ms,
        bound_ms,
        records,
        _number(fields.get("iteration")),
        fields.get("closed", ""),
        digest,
        digest is not None and "urgent" in fields,
        superseded,
        dropped_capacity,
        dropped_cancelled,
        zone,
        read.remembered,
    )


def _number(text: bytes | str | None) -> int:
    """0 where there is none, or something else wrote it."""
    try:
        return int(text or 0)
    except ValueError:
        return 0
