"""verdict.py: the one sentence, for every kind of trouble, and which of several comes first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nsqdigest.admin.views import BackoffView, CheckView, Health, RatesView
from support.local_clock import in_utc
from support.status_views import HOUR_MS, MINUTE_MS, NOW_MS, STORE, daemon, route, sink, status, topic

pytestmark = pytest.mark.unit
__all__ = ["in_utc"]

WAITING = BackoffView(state="backoff", level=4, next_probe_ms=NOW_MS + 12_400)
PAUSED = BackoffView(state="paused", level=0)
TROUBLED: dict[str, Any] = {"health": Health.TROUBLE}
REFUSING = sink(
    "slack", **TROUBLED, state="refusing", since_ms=NOW_MS - 48 * MINUTE_MS, why="403", waits=214, oldest_due_s=2_460.0
)
AWAY = msgspec.structs.replace(STORE, health=Health.FAILING, failing_since_ms=NOW_MS - 41_200)

WELL = "All is well: nothing came in the last minute, 0 timelines wait"
ELSE_WELL = "; everything else is well"
CASES: dict[str, tuple[dict[str, Any], Health, str]] = {
    "nothing to do": ({}, Health.WELL, WELL),
    "at work": (
        {"rates": RatesView(events_in=1204.4, events_stored=1, digests_out=3.21, records_out=1, dead_letters=0),
         "routes": [route(waiting=4120), route("b", waiting=1)]},
        Health.WELL, "All is well: 1,204 events in and 3.2 digests out a second, 4,121 timelines wait",
    ),
    "quiet hours": (
        {"routes": [route(quiet_until_ms=NOW_MS + HOUR_MS, waiting=1)]},
        Health.WELL, "All is well: nothing came in the last minute, 1 timeline waits; quiet hours hold events",
    ),
    "digests died once": ({"dead_digests": 3}, Health.WELL, f"{WELL}; 3 digests in the dead list"),
    "another file": (
        {"daemons": [daemon("a", is_this=True), daemon("b", differs=True), daemon("c", differs=True)]},
        Health.WELL, f"{WELL}; 2 of 3 daemons have another file",
    ),
    "draining": (
        {"health": Health.DRAINING, "topics": [topic(in_flight=12)], "sinks": [sink(sending=1)]},
        Health.DRAINING, "It drains, and then ends: 12 events in flight, 1 digest being sent",
    ),
    "Redis lost records": (
        {"store": msgspec.structs.replace(STORE, lost_ms=NOW_MS - 3 * MINUTE_MS, lost_records=64)},
        Health.TROUBLE,
        "Redis lost up to 64 records (found 07:57): see store.data_lost in the log, and NsqdigestRecordsLost in the "
        f"runbook{ELSE_WELL}",
    ),
    "Redis was emptied": (
        {"store": msgspec.structs.replace(STORE, lost_ms=NOW_MS, lost_partitions=1)},
        Health.TROUBLE,
        "Redis was emptied, and lost what waited in it (found 08:00): see store.data_lost in the log, and "
        f"NsqdigestRecordsLost in the runbook{ELSE_WELL}",
    ),
    "Redis lost records some time ago": (
        {"store": msgspec.structs.replace(STORE, lost_ms=NOW_MS - HOUR_MS, lost_records=64)}, Health.WELL, WELL,
    ),
    "no Redis yet": (
        {"store": msgspec.structs.replace(AWAY, failing_since_ms=None)},
        Health.FAILING,
        f"Redis was not reached yet: nothing is stored or delivered, and events wait in nsqd{ELSE_WELL}",
    ),
    "Redis went away": (
        {"store": AWAY},
        Health.FAILING,
        "Redis does not answer since 07:59 (41s): nothing is stored or delivered, and events wait in nsqd" + ELSE_WELL,
    ),
    "no nsqd": (
        {"topics": [topic(health=Health.FAILING, detail="0 of 2 nsqd connected")]},
        Health.FAILING, f"Topic events is cut off: 0 of 2 nsqd connected{ELSE_WELL}",
    ),
    "backing off": (
        {"topics": [topic(**TROUBLED, backoff=WAITING)]},
        Health.TROUBLE,
        f"Topic events takes nothing in after failures (level 4), the next probe comes in 12s{ELSE_WELL}",
    ),
    "probing": (
        {"topics": [topic(**TROUBLED, backoff=BackoffView(state="probing", level=4))]},
        Health.TROUBLE, f"Topic events probes with single events after failures (level 4){ELSE_WELL}",
    ),
    "a paused topic": (
        {"topics": [topic(**TROUBLED, backoff=PAUSED, paused_since_ms=NOW_MS - HOUR_MS, depth=1204)]},
        Health.TROUBLE, f"Topic events is paused since 07:00; 1,204 events wait in nsqd{ELSE_WELL}",
    ),
    "no nsqlookupd": (
        {"checks": [CheckView(name="nsqlookupd", health=Health.FAILING, detail="0 of 2 answer")]},
        Health.FAILING, f"Nsqlookupd is out of reach: 0 of 2 answer{ELSE_WELL}",
    ),
    "few descriptors": (
        {"checks": [CheckView(name="descriptors", health=Health.TROUBLE, detail="62 of 64 are open")]},
        Health.TROUBLE, f"Descriptors are nearly used up: 62 of 64 are open{ELSE_WELL}",
    ),
    "a sink that refuses": (
        {"sinks": [REFUSING]},
        Health.TROUBLE, f"Sink slack refuses since 07:12: 403; 214 digests wait, the oldest for 41m{ELSE_WELL}",
    ),
    "a sink that buries": (
        {"sinks": [msgspec.structs.replace(REFUSING, waits=0, buried=8)]},
        Health.TROUBLE, f"Sink slack refuses since 07:12: 403; 8 digests given up{ELSE_WELL}",
    ),
    "a sink that is gone": (
        {"sinks": [msgspec.structs.replace(REFUSING, state="stopped", why="410", waits=1)]},
        Health.TROUBLE,
        "Sink slack is stopped since 07:12: 410; 1 digest waits, the oldest for 41m: its receiver is gone, and it "
        f"stays stopped until a reload{ELSE_WELL}",
    ),
    "a sink that is behind": (
        {"sinks": [msgspec.structs.replace(REFUSING, state="behind", why="")]},
        Health.TROUBLE, f"Sink slack is behind since 07:12; 214 digests wait, the oldest for 41m{ELSE_WELL}",
    ),
    "a paused sink": (
        {"sinks": [msgspec.structs.replace(REFUSING, state="paused", why="", waits=0)]},
        Health.TROUBLE, f"Sink slack is paused since 07:12{ELSE_WELL}",
    ),
    "one place of a sink": (
        {"sinks": [sink(**TROUBLED, detail="delivering, but 2 digests wait (2 since 08:00: b.example.com fails)")]},
        Health.TROUBLE,
        f"Sink hook is delivering, but 2 digests wait (2 since 08:00: b.example.com fails){ELSE_WELL}",
    ),
    "a paused route": (
        {"routes": [route(paused_since_ms=NOW_MS - HOUR_MS, overdue=1, oldest_due_s=60.0)]},
        Health.TROUBLE, f"Route events is paused since 07:00; 1 digest waits, the oldest for 1m{ELSE_WELL}",
    ),
    "an orphan": (
        {"orphans": {"old": 1}},
        Health.TROUBLE, f"Route old is not in the file: nobody delivers its 1 record{ELSE_WELL}",
    ),
    "a late event loop": (
        {"event_loop_lag_s": 2.5},
        Health.TROUBLE, "The event loop is 2s late: too much work for one processor, or the machine stands still at "
        f"times{ELSE_WELL}",
    ),
    "late events": (
        {"message_age_s": 754.0},
        Health.TROUBLE, f"Intake is behind: events are stored 12m34s after they were published{ELSE_WELL}",
    ),
    "two": (
        {"sinks": [REFUSING], "topics": [topic(**TROUBLED, backoff=WAITING)]},
        Health.TROUBLE,
        "Topic events takes nothing in after failures (level 4), the next probe comes in 12s. Also: sink slack refuses "
        "since 07:12: 403; 214 digests wait, the oldest for 41m",
    ),
    "the worst first, the others by name": (
        {"sinks": [REFUSING, sink("b", **TROUBLED, state="paused")], "store": AWAY, "orphans": {"old": 1, "older": 1},
         "topics": [topic(**TROUBLED, backoff=WAITING), topic("down", health=Health.FAILING, detail="x")],
         "routes": [route(paused_since_ms=NOW_MS), route("r", paused_since_ms=NOW_MS)]},
        Health.FAILING,
        "Redis does not answer since 07:59 (41s): nothing is stored or delivered, and events wait in nsqd. Also: topic "
        "down is cut off: x; topic events takes nothing in after failures (level 4), the next probe comes in 12s; and "
        "trouble with sink slack, route events, route r, sink b and 2 others",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("in_utc")
@pytest.mark.parametrize("case", CASES)
def test_what_it_says(case: str) -> None:
    changes, health, sentence = CASES[case]
    view = status(**changes)
    assert (view.verdict, view.health) == (sentence, health)
