"""What became of every record that was ever added, by the counters that the scripts keep (pure).

Each script counts what it changes in the same transaction, by route and partition, so at every moment

    added = open + in snapshots + delivered + superseded + dropped, for whatever reason + buried + deleted

What is in the dead store is buried until it is dropped (then it is deleted) or revived (then it is in a snapshot
again). A ledger that does not balance tells that Redis has lost something, that something else wrote to it, or of a
bug. Counters are compared by route and partition: two faults never make up for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

FATES = ("open", "snapshots", "delivered", "superseded", "buried", "deleted")
DROPPED = ("capacity", "timelines", "duplicate", "adopted")
"""The reasons that there are; what else the ledger has counts as well."""
_DROPPED_FIELD = "dropped:"
_UNFINISHED_FIELD = "unfinished:"


class Account(NamedTuple):
    """What was added, and what became of it."""

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
        """The sum of some ledgers, as Redis has them."""

        def total(field: str) -> int:
            return sum(ledger.get(field, 0) for ledger in ledgers)

        seen = {
            field.removeprefix(_DROPPED_FIELD): 0 for of in ledgers for field in of if field.startswith(_DROPPED_FIELD)
        }
        dropped = {reason: total(_DROPPED_FIELD + reason) for reason in dict.fromkeys(DROPPED) | seen}
        return cls(added=total("added"), dropped=dropped, **{fate: total(fate) for fate in FATES})

    @property
    def all_dropped(self) -> int:
        return sum(self.dropped.values())

    @property
    def missing(self) -> int:
        """Records that were added and are in no other counter. Below 0: so many too many are somewhere."""
        there = self.open + self.snapshots + self.delivered + self.superseded + self.buried + self.deleted
        return self.added - there - self.all_dropped

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "dropped": dict(self.dropped)}


def balances(ledger: Mapping[str, int]) -> bool:
    return Account.of(ledger).missing == 0


def unfinished(ledger: Mapping[str, int]) -> int:
    """Calls that were cut off between two writes, before they counted what they had done."""
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
        """Partitions where a counter is below 0, and which one: there cannot be fewer records than none."""
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
        """What is missing in the partitions that do not balance."""
        return {
            partition: Account.of(ledger).missing
            for partition, ledger in enumerate(self.ledgers)
            if not balances(ledger)
        }

    @property
    def is_orphan(self) -> bool:
        return not self.is_configured and self.timelines > 0


class Recount(NamedTuple):
    """What the counters say beside what is there."""

    differences: tuple[str, ...]
    unsure: tuple[str, ...] = ()
    """Sums that differ where daemons went on working while it was counted."""
    untold: int = 0
    """How many more differences there are."""


class Audit(NamedTuple):
    routes: tuple[RouteAudit, ...]
    recount: Recount | None = None
    is_new: bool = False
    """No daemon ever used this namespace."""
    timelines_counted: tuple[int, ...] = ()
    """By partition: what the count says that decides whether there is room for a new timeline."""

    @property
    def balanced(self) -> bool:
        is_exact = all(route.is_exact for route in self.routes) and not self.miscounted
        return is_exact and not (self.recount and self.recount.differences)

    @property
    def miscounted(self) -> dict[int, tuple[int, int]]:
        """Partitions whose count of timelines is off: what it says, and how many there are."""
        both = {
            partition: (counted, sum(route.censuses[partition].known for route in self.routes))
            for partition, counted in enumerate(self.timelines_counted)
        }
        return {partition: (counted, there) for partition, (counted, there) in both.items() if counted != there}

    @property
    def account(self) -> Account:
        return Account.of(*(ledger for route in self.routes for ledger in route.ledgers))

    def as_json(self) -> dict[str, Any]:
        answer: dict[str, Any] = {**self.account.as_json(), "balanced": self.balanced}
        answer["routes"] = {
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
            answer["recount"] = {
                "exact": not self.recount.unsure,
                "differences": [*self.recount.differences, *self.recount.unsure],
                "untold": self.recount.untold,
            }
        return answer


# -- one timeline, recounted


class Found(NamedTuple):
    """What is there of a timeline, as recount.lua answers it."""

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
        said = []
        if self.counted < 0:
            said.append(f"has {records(self.records + self.snapshot_records)} and no schedule")
        elif self.places != 1:
            said.append("is neither waiting nor leased" if self.places == 0 else "is waiting and leased at once")
        if 0 <= self.counted != self.records:
            said.append(f"its schedule counts {records(self.counted)}, {self.records} are there")
        said += _pairs("", self.records, self.values)
        if self.snapshot_counted != self.snapshot_records:
            said.append(f"its digest counts {records(self.snapshot_counted)}, {self.snapshot_records} are there")
        return said + _pairs(" in its digest", self.snapshot_records, self.snapshot_values)


class FoundDead(NamedTuple):
    """What is there of a dead digest; `counted`: None where what was told of it is gone."""

    counted: int | None
    records: int
    values: int

    def complaints(self) -> list[str]:
        if self.counted is None:
            return ["nothing tells of which route it is"]
        said = _pairs("", self.records, self.values)
        if self.counted != self.records:
            said.append(f"it was buried with {records(self.counted)}, {self.records} are there")
        return said


def _pairs(where: str, members: int, values: int) -> list[str]:
    return [f"has {records(members)}{where} and {values} values"] if members != values else []


def records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


# -- for people
