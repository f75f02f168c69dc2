"""The account of every record that was ever added, by the counters that the scripts keep (pure).

Each script counts what it changes in the same transaction, by route and partition. So at every moment

    added = open + in snapshots + delivered + superseded + dropped, for whatever reason + buried + deleted

Records in the dead store are buried until they are dropped (then deleted) or revived (then in a snapshot again). Where
a ledger does not balance, Redis lost something, something else wrote to it, or there is a bug. Counters are compared by
route and partition, so that two faults never cancel each other out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

COUNTERS = ("open", "snapshots", "delivered", "superseded", "buried", "deleted")
DROPPED = ("capacity", "timelines", "duplicate", "muted", "cancelled", "adopted")
"""The known reasons. Other reasons in a ledger count as well."""
_DROPPED_FIELD = "dropped:"
_UNFINISHED_FIELD = "unfinished:"


class Account(NamedTuple):
    """How many records were added, and where they are."""

    added: int
    open: int
    snapshots: int
    delivered: int
    superseded: int
    dropped: Mapping[str, int]
    buried: int
    deleted: int

    @classmethod
    def of(cls, *ledgers: Mapping[str, int]) -> Account:
        """The sum of some ledgers as they are in Redis."""

        def total(field: str) -> int:
            return sum(ledger.get(field, 0) for ledger in ledgers)

        seen = {
            field.removeprefix(_DROPPED_FIELD): 0 for of in ledgers for field in of if field.startswith(_DROPPED_FIELD)
        }
        dropped = {reason: total(_DROPPED_FIELD + reason) for reason in dict.fromkeys(DROPPED) | seen}
        return cls(added=total("added"), dropped=dropped, **{name: total(name) for name in COUNTERS})

    @property
    def all_dropped(self) -> int:
        return sum(self.dropped.values())

    @property
    def missing(self) -> int:
        """Records that were added and are in no other counter. Below 0: so many are somewhere and were never added."""
        there = self.open + self.snapshots + self.delivered + self.superseded + self.buried + self.deleted
        return self.added - there - self.all_dropped

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "dropped": dict(self.dropped)}


def balances(ledger: Mapping[str, int]) -> bool:
    return Account.of(ledger).missing == 0


def unfinished(ledger: Mapping[str, int]) -> int:
    """Calls that were cut off between two writes, before they counted their changes."""
    return sum(number for field, number in ledger.items() if field.startswith(_UNFINISHED_FIELD))


class Census(NamedTuple):
    """The timelines of a route in one partition, at one instant."""

    known: int
    waiting: int
    leased: int

    @property
    def astray(self) -> int:
        """Timelines that neither wait nor are leased. Below 0: so many are in two places, or not known."""
        return self.known - self.waiting - self.leased


class RouteAudit(NamedTuple):
    name: str
    is_configured: bool
    censuses: tuple[Census, ...]
    """By partition, like the ledgers."""
    ledgers: tuple[Mapping[str, int], ...]

    @property
    def timelines(self) -> int:
        return sum(census.known for census in self.censuses)

    @property
    def astray(self) -> dict[int, int]:
        """Partitions where not every known timeline is in exactly one place, and how many are not."""
        return {partition: census.astray for partition, census in enumerate(self.censuses) if census.astray}

    @property
    def account(self) -> Account:
        return Account.of(*self.ledgers)

    @property
    def cut_off(self) -> dict[int, int]:
        """Partitions where calls were cut off before they counted, and how many."""
        calls = {partition: unfinished(ledger) for partition, ledger in enumerate(self.ledgers)}
        return {partition: number for partition, number in calls.items() if number}

    @property
    def negative(self) -> dict[int, str]:
        """Partitions where a counter is below 0, and which one."""
        return {
            partition: field
            for partition, ledger in enumerate(self.ledgers)
            for field in sorted(ledger)
            if ledger[field] < 0
        }

    @property
    def is_exact(self) -> bool:
        return not self.off and not self.negative and not self.cut_off and not self.astray

    @property
    def off(self) -> dict[int, int]:
        """Partitions that do not balance, and how many records are missing there."""
        return {
            partition: Account.of(ledger).missing
            for partition, ledger in enumerate(self.ledgers)
            if not balances(ledger)
        }

    @property
    def is_orphan(self) -> bool:
        return not self.is_configured and self.timelines > 0


class Recount(NamedTuple):
    """Where the counters differ from the records that are there."""

    differences: tuple[str, ...]
    unsure: tuple[str, ...] = ()
    """Sums that differ while daemons were working."""
    untold: int = 0
    """How many more differences were found."""


class Audit(NamedTuple):
    routes: tuple[RouteAudit, ...]
    recount: Recount | None = None
    is_new: bool = False
    """No daemon ever used this namespace."""
    timelines_counted: tuple[int, ...] = ()
    """By partition: the counter that limits.timelines goes by."""

    @property
    def balanced(self) -> bool:
        is_exact = all(route.is_exact for route in self.routes) and not self.miscounted
        return is_exact and not (self.recount and self.recount.differences)

    @property
    def miscounted(self) -> dict[int, tuple[int, int]]:
        """Partitions whose count of timelines is off: the count, and how many there are."""
        both = {
            partition: (counted, sum(route.censuses[partition].known for route in self.routes))
            for partition, counted in enumerate(self.timelines_counted)
        }
        return {partition: (counted, there) for partition, (counted, there) in both.items() if counted != there}

    @property
    def account(self) -> Account:
        return Account.of(*(ledger for route in self.routes for ledger in route.ledgers))

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {**self.account.as_json(), "balanced": self.balanced}
        shown["routes"] = {
            route.name: {
                **route.account.as_json(),
                "balanced": route.is_exact,
                "timelines": route.timelines,
                "timelines_astray": sum(map(abs, route.astray.values())),
                "configured": route.is_configured,
            }
            for route in self.routes
        }
        if self.recount is not None:
            shown["recount"] = {
                "exact": not self.recount.unsure,
                "differences": [*self.recount.differences, *self.recount.unsure],
                "untold": self.recount.untold,
            }
        return shown


# -- one timeline, recounted


class Found(NamedTuple):
    """One timeline as lua/reading/recount.lua returns it."""

    places: int
    counted: int
    records: int
    values: int
    snapshot_counted: int
    snapshot_records: int
    snapshot_values: int

    @property
    def is_gone(self) -> bool:
        return self.counted < 0 and not self.records and not self.snapshot_records

    def complaints(self) -> list[str]:
        if self.is_gone:
            return []
        found = []
        if self.counted < 0:
            found.append(f"has {records(self.records + self.snapshot_records)} and no schedule")
        elif self.places != 1:
            found.append("is neither waiting nor leased" if self.places == 0 else "is waiting and leased at once")
        if 0 <= self.counted != self.records:
            found.append(f"its schedule counts {records(self.counted)}, {self.records} are there")
        found += _pairs("", self.records, self.values)
        if self.snapshot_counted != self.snapshot_records:
            found.append(f"its digest counts {records(self.snapshot_counted)}, {self.snapshot_records} are there")
        return found + _pairs(" in its digest", self.snapshot_records, self.snapshot_values)


class FoundDead(NamedTuple):
    """One dead digest. `counted`: None where its details are gone or unreadable."""

    counted: int | None
    records: int
    values: int

    def complaints(self) -> list[str]:
        if self.counted is None:
            return ["nothing tells of which route it is"]
        found = _pairs("", self.records, self.values)
        if self.counted != self.records:
            found.append(f"it was buried with {records(self.counted)}, {self.records} are there")
        return found


def _pairs(where: str, members: int, values: int) -> list[str]:
    return [f"has {records(members)}{where} and {values} values"] if members != values else []


def records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"
