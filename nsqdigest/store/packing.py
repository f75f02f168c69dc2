"""Packs the records of a call for lua/intake/add.lua; sizes calls and the pages of a digest (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from nsqdigest.store.keys import Keys
from nsqdigest.store.record import Record, stored_key
from nsqdigest.store.schedule import Zoned
from nsqdigest.store.servers.resp import Arguments

RECORDS_PER_CALL = 500
BYTES_PER_CALL = 1 << 20
_FIRST_PAGE_RECORDS = 16
_LENGTHS = [length.to_bytes(2, "big") for length in range(4097)]
"""Packed lengths: of keys (limits.key is 4 KiB at most), and of the records of one timeline in a batch."""
_REPEAT, _URGENT, _MUTED = 1, 2, 4
_WITH_ENDS, _WITH_ZONES, _WITH_QUIET_HOURS = 1, 2, 4


class _Grouped(NamedTuple):
    timelines: list[bytes]
    counts: list[int]
    """Of each, how many of the records are its own. They stand in the order of the timelines."""
    records: list[Record]


class Special(NamedTuple):
    """What few routes have. With any of it all timelines of a call are of the second kind."""

    ends: tuple[int, ...] = ()
    """Where records may end others: how long ends are remembered (ms), and how many."""
    zoned: Zoned | None = None
    """Where timelines have zones of their own."""
    exempt: bytes = b""
    """That key, where the route has quiet hours and a record is urgent."""


NOTHING_SPECIAL = Special()


def pack_batch(
    keys: Keys,
    records: Sequence[Record],
    muted: frozenset[bytes] = frozenset(),
    special: Special = NOTHING_SPECIAL,
    *,
    has_message_keys: bool = False,
) -> tuple[list[Arguments], list[int | bytes | Arguments]]:
    """The keys of the batch's timelines, and add's arguments from the number of timelines of its first kind on.
    `muted`: timelines whose records are counted and not kept.

    Column by column, which takes half the time of record by record.
    """
    plain: Sequence[Record] = records
    second: Sequence[Record] = ()
    of_second_kind = {record.timeline for record in records if record.possible_repeat or record.is_urgent}
    if muted:
        of_second_kind |= muted
    is_special = special != NOTHING_SPECIAL
    if is_special:
        plain, second = (), records
    elif of_second_kind:
        plain = [record for record in records if record.timeline not in of_second_kind]
        second = [record for record in records if record.timeline in of_second_kind]
    of_plain, of_second = _grouped(plain), _grouped(second)
    ordered = of_plain.records + of_second.records
    names = [stored_key(record.key) for record in ordered] if has_message_keys else [record.key for record in ordered]
    columns = [b""] * (3 * len(ordered))
    columns[::3] = [_LENGTHS[len(name)] for name in names]
    columns[1::3] = names
    columns[2::3] = _scores(ordered)
    packed = [
        *[_LENGTHS[count] for count in of_plain.counts + of_second.counts],
        *columns,
        bytes(
            _REPEAT * record.possible_repeat
            + _URGENT * record.is_urgent
            + _MUTED * (record.timeline in muted)
            + record.end
            for record in of_second.records
        ),
    ]
    declared = [
        Arguments(of_plain.timelines, (keys.index, keys.values)),
        Arguments(of_second.timelines, keys.of_second_kind_with_ends if special.ends else keys.of_second_kind),
    ]
    values = Arguments([record.value for record in ordered])
    ends, zoned, exempt = special
    if not is_special:
        return declared, [len(of_plain.timelines), b"".join(packed), values]
    if exempt:
        declared.append(Arguments([exempt]))
    kind = -(_WITH_ENDS * bool(ends) + _WITH_ZONES * (zoned is not None) + _WITH_QUIET_HOURS * bool(exempt))
    zone = () if zoned is None else (zoned.zone.encode(), *(zoned.anew or (b"", b"")))
    return declared, [kind, b"".join(packed), *ends, *zone, values]


def _grouped(records: Sequence[Record]) -> _Grouped:
    """By timeline. Most timelines have one record in a batch."""
    of_one: dict[bytes, Record] = {}
    of_several: dict[bytes, list[Record]] = {}
    for record in records:
        timeline = record.timeline
        if timeline not in of_one:
            of_one[timeline] = record
        elif timeline in of_several:
            of_several[timeline].append(record)
        else:
            of_several[timeline] = [of_one[timeline], record]
    for timeline in of_several:
        del of_one[timeline]
    several = list(of_several.values())
    return _Grouped(
        [*of_one, *of_several],
        [1] * len(of_one) + [len(theirs) for theirs in several],
        [*of_one.values(), *chain.from_iterable(several)],
    )


def _scores(records: Sequence[Record]) -> list[bytes]:
    scores = [b"%d" % -record.timestamp_us for record in records]
    # None has more than 17 characters, and hardly any has less: to format all with a width takes three times as long.
    is_short = len(b"".join(scores)) < 17 * len(scores)
    return [score.zfill(17) for score in scores] if is_short else scores


def first_page(total: int) -> int:
    return min(total, _FIRST_PAGE_RECORDS)


def next_page(records_seen: int, bytes_seen: int, left: int) -> int:
    """How many records the next page may have, by the average size of those before."""
    average = max(1, bytes_seen // max(1, records_seen))
    return max(1, min(left, RECORDS_PER_CALL, BYTES_PER_CALL // average))
