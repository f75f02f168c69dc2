"""Rules over the options of one policy, and what follows for options that the file does not write."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

from nsqdigest.base.calendar import Calendar
from nsqdigest.base.local_time import DAY_MS
from nsqdigest.base.moments import format_duration
from nsqdigest.base.quiet_hours import MINUTES_OF_DAY, QuietHours
from nsqdigest.base.words import listed
from nsqdigest.config.problems import Spot
from nsqdigest.config.units import LONGEST_MS

Values = dict[str, Any]

_DELAYS: dict[str, tuple[str, Any]] = {
    "minimum_delay": ("minimum_delay_ms", 0),
    "increment_delay": ("increment_delay_ms", 0),
    "maximum_delay": ("maximum_delay_ms", 0),
    "growth": ("growth", "none"),
    "growth_steps": ("growth_steps", 0),
    "intervals": ("intervals_ms", ()),
}
"""The options that a calendar stands instead of; what they are beside one."""
_SAMPLE_FROM_MS = 1_767_225_600_000
"""1 January 2026."""
_SAMPLE_DAYS = 366
_SAMPLE_MOST = 500


def policy(values: Values, spot: Spot) -> None:
    if values.get("at") == ():
        _delays(values, spot)
    else:
        _calendar(values, spot)
    _quiet(values, spot)
    if "{" not in values.get("zone", "{") and (spot / "zone_default").written:
        (spot / "zone_default").warning(
            "has no effect where zone names one", 'leave it out, or write zone = "{user.zone}"'
        )
    if values.get("at") == () == values.get("quiet") and values.get("zone", "UTC") != "UTC":
        (spot / "zone").warning("has no effect without at or quiet", "leave it out, or write one of them")


def _calendar(values: Values, spot: Spot) -> None:
    if written := [key for key in _DELAYS if (spot / key).written]:
        these = "it" if len(written) == 1 else "them"
        (spot / written[0]).problem(
            f"at excludes {listed(written)}", f"leave {these} out: the calendar alone decides when"
        )
    if not (spot / "immediate").written:
        values["immediate"] = False
    values.update(_DELAYS.values())


def _delays(values: Values, spot: Spot) -> None:
    if values.get("growth") == "exponential" and values.get("intervals_ms"):
        spot.first_written("intervals", "growth").problem(
            "growth and intervals exclude each other", 'leave one out (growth = "none" or intervals = [])'
        )
        return
    if {"immediate", "minimum_delay_ms", "maximum_delay_ms", "growth", "growth_steps", "intervals_ms"} - {*values}:
        return
    largest_ms = values["minimum_delay_ms"]
    how = "minimum_delay"
    if values["growth"] == "exponential":
        largest_ms <<= values["growth_steps"]
        how = f"minimum_delay, doubled {values['growth_steps']} times"
    intervals_ms = values["intervals_ms"][1 if values["immediate"] else 0 :]
    if intervals_ms and max(intervals_ms) > largest_ms:
        largest_ms = max(intervals_ms)
        how = "the longest of intervals"
    if largest_ms <= values["maximum_delay_ms"]:
        return
    if not (spot / "maximum_delay").written:
        values["maximum_delay_ms"] = largest_ms
        if largest_ms > LONGEST_MS:
            spot.first_written("growth_steps", "minimum_delay").problem(
                f"the largest delay is {format_duration(largest_ms)} ({how})", "write a shorter delay or fewer steps"
            )
        return
    maximum, largest = format_duration(values["maximum_delay_ms"]), format_duration(largest_ms)
    (spot / "maximum_delay").problem(
        f"the largest delay is {largest} ({how}), but maximum_delay is {maximum}",
        f'write maximum_delay = "{largest}" or more, or a shorter delay',
    )


def _quiet(values: Values, spot: Spot) -> None:
    windows = values.get("quiet")
    if not windows:
        return
    if len(set().union(*(window.minutes for window in windows))) == MINUTES_OF_DAY:
        (spot / "quiet").problem("covers the whole day: nothing would ever be delivered", "leave some time free")
        return
    if not values.get("at") or not {"zone", "zone_default"} <= {*values}:
        return
    zone = ZoneInfo(values["zone_default"] if "{" in values["zone"] else values["zone"])
    calendar, quiet = Calendar(values["at"], zone), QuietHours(windows, zone)
    now_ms, until_ms = _SAMPLE_FROM_MS, _SAMPLE_FROM_MS + _SAMPLE_DAYS * DAY_MS
    for _ in range(_SAMPLE_MOST):
        now_ms = calendar.next_ms(now_ms)
        if quiet.end_ms(now_ms) is None:
            return
        if now_ms > until_ms:
            break
    (spot / "quiet").warning(
        "holds back every instant of at: the digests go out when it ends", "write times outside of it in at"
    )
