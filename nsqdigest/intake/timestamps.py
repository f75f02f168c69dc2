"""The timestamp field of an event (pure): a number of seconds or milliseconds, or RFC 3339 text, to milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from nsqdigest.base.reasons import DeadLetterReason
from nsqdigest.intake.bodies import TYPE_NAMES, Rejected

if TYPE_CHECKING:
    from nsqdigest.config import Limits

_SMALLEST_MS_TIMESTAMP = 1e11
"""A smaller number is in seconds."""
_LATEST_MS = 2**52 // 1000  # in microseconds it is a score in Redis, exact to half a microsecond up to 2^52
_EARLIEST_ARRIVAL_MS, _ARRIVAL_STEP_MS = 500, 2
LATEST_ARRIVAL_US = 999
"""An end is newer than what it ends, whenever it arrived."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def timestamp_ms(value: Any, name: str, limits: Limits, now_ms: int) -> int:
    """Raises Rejected where the value is no timestamp, or one that the limits do not allow."""

    def bad(detail: str) -> Rejected:
        return Rejected(DeadLetterReason.BAD_TIMESTAMP, f'the timestamp field "{name}" {detail}')

    if value is msgspec.UNSET or value is None:
        raise bad("is not there")
    if value.__class__ is int or value.__class__ is float:
        number = value * 1000 if value < _SMALLEST_MS_TIMESTAMP else value
    elif value.__class__ is str:
        try:
            moment = datetime.fromisoformat(value.upper())  # RFC 3339 allows t and z
        except ValueError:
            raise bad("is neither a number nor RFC 3339") from None
        if moment.tzinfo is None:
            raise bad("has no zone; write one, like 2026-01-31T09:00:00Z")
        number = (moment - _EPOCH) // _MILLISECOND
    else:
        raise bad(f"is {TYPE_NAMES[value.__class__]}; a number or RFC 3339 is expected")
    if not 0 <= number < _LATEST_MS:
        raise bad(f"is {value}, which is not between the years 1970 and 2112")
    timestamp_ms = round(number)  # a fraction of a second is seldom a whole number of ms in binary
    if timestamp_ms > now_ms + limits.future_ms:
        raise bad(f"lies {(timestamp_ms - now_ms) // 1000} s ahead; limits.future allows {limits.future_ms // 1000} s")
    if limits.past_ms and timestamp_ms < now_ms - limits.past_ms:
        raise bad(f"lies {(now_ms - timestamp_ms) // 1000} s back; limits.past allows {limits.past_ms // 1000} s")
    return timestamp_ms


def arrival_us(timestamp_ms: int, arrived_ns: int) -> int:
    """Return what to add to a timestamp so that of equal ones the later arrival is the newer.

    It is less than a millisecond, so it is never shown. It grows by one for every 2 ms that the message arrived later,
    from half a second before the timestamp to a second and a half after it.
    """
    delay_ms = arrived_ns // 1_000_000 - timestamp_ms
    return min(max((delay_ms + _EARLIEST_ARRIVAL_MS) // _ARRIVAL_STEP_MS, 0), LATEST_ARRIVAL_US)
