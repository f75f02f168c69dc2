"""Instants and the wall clock of a zone (pure). An instant is an absolute number of milliseconds.

A wall clock shows some times never (a gap: it is put forward) and some twice (an overlap: it is put back). `first_ms`
and `last_ms` return an instant for each of them:

    in a gap       the instant at which the clock is put forward
    in an overlap  the first, or the second, of its two instants
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from nsqdigest.base.words import nearest

DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


@cache
def zone_named(name: str) -> ZoneInfo | None:
    """None: there is no such zone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones() - {"localtime", "posixrules", "Factory"})


def is_zone(name: str) -> bool:
    """Of names that anybody sent: unlike `zone_named` it remembers none that is no zone."""
    return name in _zone_names()


def nearest_zone(text: str) -> str:
    """The name that is probably meant: of a zone, or of a zone's last part. "" where none is near."""
    zones = sorted(_zone_names())
    wanted = text.strip().lower().replace(" ", "_")
    for zone in zones:
        if wanted == zone.lower():
            return zone
    by_place = {zone.rpartition("/")[2]: zone for zone in zones if "/" in zone}
    place = nearest(wanted.rpartition("/")[2], by_place, likeness=0.8)
    return by_place[place] if place else nearest(text, zones, likeness=0.75)


class LocalClock:
    """The wall clock of one zone. Its times are datetimes without a zone."""

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone

    def shown(self, instant_ms: int) -> datetime:
        return (_EPOCH + instant_ms * _MS).astimezone(self._zone).replace(tzinfo=None, fold=0)

    def first_ms(self, shown: datetime) -> int:
        before_ms, after_ms = self._readings_ms(shown)
        return self.change_ms(after_ms, before_ms) if after_ms < before_ms else before_ms

    def last_ms(self, shown: datetime) -> int:
        before_ms, after_ms = self._readings_ms(shown)
        return self.change_ms(after_ms, before_ms) if after_ms < before_ms else after_ms

    def offset_ms(self, instant_ms: int) -> int:
        """How far the clock is ahead of UTC at an instant."""
        offset = (_EPOCH + instant_ms * _MS).astimezone(self._zone).utcoffset()
        assert offset is not None
        return offset // _MS

    def _readings_ms(self, shown: datetime) -> tuple[int, int]:
        """The instants of a time by the offset before, and by the offset after, the change that is next to it. The
        second is earlier in a gap, and later in an overlap; elsewhere they are the same."""
        before, after = (shown.replace(tzinfo=self._zone, fold=fold) for fold in (0, 1))
        return (before - _EPOCH) // _MS, (after - _EPOCH) // _MS

    def change_ms(self, low_ms: int, high_ms: int) -> int:
        """The first instant with another offset than `low_ms` has; `high_ms` has another. Changes happen at whole
        seconds."""
        low, high, offset_ms = low_ms // 1000, -(-high_ms // 1000), self.offset_ms(low_ms)
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset_ms(middle * 1000) == offset_ms:
                low = middle
            else:
                high = middle
        return high * 1000
