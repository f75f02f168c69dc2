"""An audit as text (pure): a table of the routes, the differences, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nsqdigest.audit.ledger import Account, Audit, Recount, RouteAudit, records
from nsqdigest.base.screen import table, wrapped

_HEADINGS = ("added", "open", "in snapshots", "delivered", "superseded", "dropped", "buried", "deleted")
_TOTAL = "all routes"


def report(audit: Audit, width: int = 0) -> list[str]:
    """The lines of the report: table, differences, verdict with the remedy."""
    lines = [""]
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
    lines += [*_recounted(audit.recount), *_verdict(audit)]
    return [*_table(audit, width), *(part for line in lines for part in _fitted(line, width))]


def _fitted(line: str, width: int) -> list[str]:
    """What is indented stays so."""
    text = line.lstrip()
    indent = " " * (len(line) - len(text))
    return wrapped(text, indent, f"{indent}  ", width)


def _undelivered(account: Account) -> str:
    return f"{account.buried:,} of {records(account.added)} never delivered: they are in the dead list"


def _table(audit: Audit, width: int) -> list[str]:
    rows: list[Sequence[str]] = [("route", *_HEADINGS, "")]
    rows += [(route.name, *_figures(route.account), _mark(route)) for route in audit.routes]
    if len(audit.routes) > 1:
        rows.append((_TOTAL, *_figures(audit.account), ""))
    return table(rows[0], rows[1:], right=range(1, len(_HEADINGS) + 1), flexible={0}, width=width)


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
