"""Random policies and streams of events for property tests, in zones and around nights on which clocks change."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from nsqdigest.base.quiet_hours import MINUTES_OF_DAY, Window
from nsqdigest.config import Policy
from nsqdigest.trial.simulator import Event

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
CAPACITY = 5
_STARTS = (
    ("Europe/Berlin", 2026, 3, 28), ("Europe/Berlin", 2026, 10, 24), ("America/New_York", 2026, 3, 7),
    ("America/New_York", 2026, 10, 31), ("Australia/Lord_Howe", 2026, 4, 4), ("Australia/Lord_Howe", 2026, 10, 3),
    ("Europe/Berlin", 2026, 6, 15),
)  # fmt: skip
"""Days whose next night changes the clock, and one that is like others."""

_delays = st.integers(0, 90).map(lambda minutes: minutes * MINUTE_MS)
_minutes = st.integers(0, MINUTES_OF_DAY // 30 - 1).map(lambda half_hours: 30 * half_hours)
_windows = st.lists(
    st.builds(Window, _minutes, _minutes).filter(lambda window: 0 < len(window.minutes) <= 10 * 60), max_size=2
)
_cron = st.builds(
    lambda minute, hour, day: f"{minute} {hour} * * {day}",
    st.sampled_from(["0", "30", "*/20"]),
    st.sampled_from(["*", "2", "9", "1,3", "*/6", "0"]),
    st.sampled_from(["*", "0", "1-5"]),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    quiet = tuple(draw(_windows))
    at = tuple(draw(st.lists(_cron, min_size=1, max_size=2))) if draw(st.booleans()) else ()
    growth: Literal["none", "exponential"] = "none"
    intervals_ms: tuple[int, ...] = ()
    minimum_ms = increment_ms = maximum_ms = steps = 0
    if not at:
        minimum_ms, increment_ms = draw(_delays), draw(_delays)
        growth = "exponential" if draw(st.booleans()) else "none"
        steps = draw(st.integers(0, 3))
        if growth == "none":
            intervals_ms = tuple(draw(st.lists(_delays, max_size=3)))
        largest_ms = max((minimum_ms << steps) if growth == "exponential" else minimum_ms, *intervals_ms, 0)
        maximum_ms = largest_ms + draw(_delays)
    return Policy(
        name="p", immediate=draw(st.booleans()), minimum_delay_ms=minimum_ms, increment_delay_ms=increment_ms,
        maximum_delay_ms=maximum_ms, growth=growth, growth_steps=steps, intervals_ms=intervals_ms, at=at,
        zone=draw(st.sampled_from(ZONES)), quiet=quiet, capacity=CAPACITY, on_retry="frozen", dedupe_window_ms=0,
    )  # fmt: skip


@st.composite
def streams(draw: st.DrawFn, most: int = 40) -> list[Event]:
    zone, year, month, day = draw(st.sampled_from(_STARTS))
    now_ms = int(datetime(year, month, day, tzinfo=ZoneInfo(zone)).timestamp()) * 1000
    events = []
    for _ in range(draw(st.integers(1, most))):
        now_ms += draw(st.sampled_from([0, 1, 1000, MINUTE_MS, 20 * MINUTE_MS, HOUR_MS, 5 * HOUR_MS]))
        timeline, key = draw(st.sampled_from("ab")), draw(st.sampled_from(["k", "l", "m", "n", "o", "p"]))
        events.append(Event(now_ms, timeline, key))
    return events


def stories(most: int) -> st.SearchStrategy[tuple[Policy, list[Event]]]:
    """A policy and the events that it meets; of half of them timelines have zones of their own."""
    return st.tuples(policies(), streams(most)) | st.tuples(zoned_policies(), zoned_streams(most))


@st.composite
def zoned_policies(draw: st.DrawFn) -> Policy:
    """Those whose timelines have zones of their own."""
    policy = draw(policies().filter(lambda each: each.at or each.quiet))
    return replace(policy, zone="{zone}", zone_default=policy.zone)


@st.composite
def zoned_streams(draw: st.DrawFn, most: int = 40) -> list[Event]:
    """Each event names a zone for its timeline, or none."""
    return [event._replace(zone=draw(st.sampled_from([*ZONES, ""]))) for event in draw(streams(most))]
