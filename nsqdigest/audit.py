"""What became of every record that was ever added, by the counters that the scripts keep (pure).

Each script counts what it changes in the same transaction, by route and partition, so at every moment

    added = open + in snapshots + delivered + superseded + dropped, for whatever reason + buried + deleted

What is in the dead store is buried until it is dropped (then it is deleted) or revived (then it is in a snapshot
again). A ledger that does not balance tells that Redis has lost something, that something else wrote to it, or of a
bug. Counters are compared by route and partition: two faults never make up for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

FATES = ("open", "snapshots", "delivered", "superseded", "buried", "deleted")
DROPPED = ("capacity", "timelines", "duplicate", "adopted")
"""The reasons that there are; what else the ledger has counts as well."""
_DROPPED_FIELD = "dropped:"
_UNFINISHED_FIELD = "unfinished:"

_HEADINGS = ("added", "open", "in snapshots", "delivered", "superseded", "dropped", "buried", "deleted")
_TOTAL = "all routes"


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


def report(audit: Audit) -> list[str]:
    """A table, what stands out, and the verdict with the way out."""
    lines = [*_table(audit), ""]
    dropped = [f"{reason} {count:,}" for reason, count in audit.account.dropped.items() if count]
    if dropped:
        lines.append(f"dropped: {', '.join(dropped)}")
    lines += [
        f'orphan: the file has no route "{route.name}"; nobody delivers its {route.timelines:,} '
        f"timeline{'' if route.timelines == 1 else 's'} until it has one"
        for route in audit.routes
        if route.is_orphan
    ]
    lines += [f'route "{route.name}": {_undelivered(route.account)}' for route in audit.routes if route.account.buried]
    return [*lines, *_recounted(audit.recount), *_verdict(audit)]


def _undelivered(account: Account) -> str:
    return f"{account.buried:,} of {records(account.added)} never delivered: they are in the dead list"


def _table(audit: Audit) -> list[str]:
    rows: list[Sequence[str]] = [("route", *_HEADINGS, "")]
    rows += [(route.name, *_figures(route.account), _mark(route)) for route in audit.routes]
    if len(audit.routes) > 1:
        rows.append((_TOTAL, *_figures(audit.account), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) + 1)]
    return [
        "  ".join(
            [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:], strict=True)),
                row[-1],
            ]
        ).rstrip()
        for row in rows
    ]


def _mark(route: RouteAudit) -> str:
    if route.off or route.negative:
        return "DOES NOT BALANCE"
    return "NOT EXACT" if route.cut_off or route.astray else ""


def _figures(account: Account) -> Iterable[str]:
    numbers = (
        account.added, account.open, account.snapshots, account.delivered, account.superseded, account.all_dropped,
        account.buried, account.deleted,
    )  # fmt: skip
    return (f"{number:,}" for number in numbers)


def _recounted(recount: Recount | None) -> list[str]:
    if recount is None:
        return []
    lines = [f"differs: {difference}" for difference in recount.differences]
    if recount.untold:
        lines.append(f"differs: {recount.untold:,} more")
    lines += [f"moving: {difference}" for difference in recount.unsure]
    if recount.unsure:
        lines.append("recounted while daemons were at work: sums that moved prove nothing; try again when it is quiet")
    elif not recount.differences:
        lines.append("recounted: all that the counters say is there")
    return lines


def _astray(audit: Audit) -> list[str]:
    lines = [
        f'  route "{route.name}", partition {partition}: {_where(number)}'
        for route in audit.routes
        for partition, number in route.astray.items()
    ]
    lines += [
        f"  partition {partition}: {counted:,} timelines are counted, {there:,} are there"
        for partition, (counted, there) in audit.miscounted.items()
    ]
    if lines:
        lines.append("A running daemon that has the routes mends this within a quarter of a lease.")
    return lines


def _where(astray: int) -> str:
    timelines = f"{abs(astray):,} timeline{'' if abs(astray) == 1 else 's'}"
    return f"{timelines} neither waiting nor leased" if astray > 0 else f"{timelines} in two places or unknown"


def _cut_off(audit: Audit) -> list[str]:
    lines = [
        f'  route "{route.name}", partition {partition}: {number:,} call{"" if number == 1 else "s"} stopped half-way'
        for route in audit.routes
        for partition, number in route.cut_off.items()
    ]
    if lines:
        lines.append(
            "Redis refused a command within a script: look for redis-auth and redis-script in the daemons' logs."
        )
        lines.append("A running daemon recounts such a route within a quarter of a lease.")
    return lines


def _verdict(audit: Audit) -> list[str]:
    if audit.balanced:
        if audit.is_new:
            return ["balanced: no daemon has used this namespace yet"]
        if audit.account.buried:
            return [f"balanced: every record is accounted for, but {_undelivered(audit.account)}"]
        return ["balanced: every record that was added is accounted for"]
    if any(route.off or route.negative for route in audit.routes):
        lines = ["DOES NOT BALANCE"]
    elif audit.recount is not None and audit.recount.differences:
        lines = ["THE COUNTERS ARE NOT WHAT IS THERE"]
    else:
        return ["THE COUNTERS ARE NOT EXACT", *_cut_off(audit), *_astray(audit)]
    for route in audit.routes:
        for partition, missing in route.off.items():
            what = f"{records(missing)} missing" if missing > 0 else f"{records(-missing)} too many"
            lines.append(f'  route "{route.name}", partition {partition}: {what}')
        for partition, field in route.negative.items():
            lines.append(f'  route "{route.name}", partition {partition}: "{field}" is below 0')
    lines += [*_cut_off(audit), *_astray(audit)]
    lines.append(
        "Redis lost something (look for store.data_lost in the daemons' logs, and for a restart, a failover or an "
        "eviction), or"
    )
    lines.append("something else wrote to these keys. Stop what does; keep a dump of Redis if you want to report it.")
    if audit.recount is None:
        lines.append("`nsqdigest audit --deep` recounts what is there and names the timelines that differ.")
    return lines
