"""Daemons as `/api/status` shows them: one without work, one with much of it, one in all sorts of trouble."""

from __future__ import annotations

from typing import Any

import msgspec

from nsqdigest.admin.views import (
    BackoffView,
    CheckView,
    ConnectionView,
    DaemonView,
    Health,
    RatesView,
    RouteView,
    SinkView,
    StatusView,
    StoreView,
    TopicView,
)
from nsqdigest.daemon.verdict import verdict

NOW_MS = 1_795_075_200_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
FLOWING = BackoffView(state="flowing", level=0)


def topic(name: str = "events", **more: Any) -> TopicView:
    usual: dict[str, Any] = {
        "health": Health.WELL, "detail": "1 of 1 nsqd connected, flowing", "backoff": FLOWING, "max_in_flight": 2500,
        "in_flight": 0, "depth": None, "is_starved": False, "received_per_s": 0.0, "paused_since_ms": None,
        "connections": [ConnectionView(nsqd="127.0.0.1:4150", is_connected=True, rdy=2500, sources=["file"])],
    }  # fmt: skip
    return TopicView(name=name, **(usual | more))


def route(name: str = "events", **more: Any) -> RouteView:
    usual: dict[str, Any] = {
        "topic": "events", "sink": "hook", "policy": "default", "waiting": 0, "leased": 0, "overdue": 0,
        "oldest_due_s": 0.0, "open_records": 0, "held": {}, "quiet_until_ms": None, "paused_since_ms": None,
    }  # fmt: skip
    return RouteView(name=name, **(usual | more))


def sink(name: str = "hook", **more: Any) -> SinkView:
    usual: dict[str, Any] = {
        "type": "webhook", "state": "delivering", "health": Health.WELL, "detail": "delivering", "since_ms": None,
        "why": "", "backoff": FLOWING, "sending": 0, "concurrency": 8, "waits": 0, "oldest_due_s": 0.0, "buried": 0,
        "dead": 0, "delivered_per_s": 0.0, "last_delivery_ms": None, "paused_since_ms": None,
    }  # fmt: skip
    return SinkView(name=name, **(usual | more))


def daemon(name: str, **more: Any) -> DaemonView:
    usual: dict[str, Any] = {
        "host": "web-1", "pid": 4711, "version": "1.2.0", "config_hash": "7158cf36ef1d", "is_this": False,
        "differs": False, "started_ms": NOW_MS - 51 * HOUR_MS, "seen_ms": NOW_MS - 9_000,
    }  # fmt: skip
    return DaemonView(id=name, **(usual | more))


STORE = StoreView(
    redis="redis://127.0.0.1:6379/0", version="7.0.15", health=Health.WELL, detail="answers", failing_since_ms=None,
    partitions=1, figures_ms=NOW_MS - 3000,
)  # fmt: skip
QUIET_RATES = RatesView(events_in=0, events_stored=0, digests_out=0, records_out=0, dead_letters=0)


def status(**more: Any) -> StatusView:
    """With the verdict that follows."""
    usual: dict[str, Any] = {
        "now_ms": NOW_MS, "health": Health.WELL, "verdict": "", "version": "1.2.0",
        "config": "/etc/nsqdigest/nsqdigest.toml", "config_hash": "7158cf36ef1d", "started_ms": NOW_MS - 51 * HOUR_MS,
        "reloaded_ms": None, "has_token": True, "checks": [], "store": STORE, "topics": [topic()], "routes": [route()],
        "sinks": [sink()], "rates": QUIET_RATES, "message_age_s": None, "event_loop_lag_s": 0.0012, "timelines": 0,
        "dead_digests": 0, "orphans": {}, "daemons": [daemon("this", is_this=True)],
    }  # fmt: skip
    view = StatusView(**(usual | more))
    health, sentence = verdict(view)
    return msgspec.structs.replace(view, health=health, verdict=sentence)


def _nsqds(count: int, **more: Any) -> list[ConnectionView]:
    return [
        ConnectionView(
            nsqd=f"nsqd-{number}.internal:4150", is_connected=True, rdy=625, in_flight=78,
            sources=["nsqlookupd-1:4161", "nsqlookupd-2:4161"], **more,
        )
        for number in range(1, count + 1)
    ]  # fmt: skip


_GONE = ConnectionView(nsqd="nsqd-4.internal:4150", is_connected=False, sources=["nsqlookupd-1:4161"])


def empty() -> StatusView:
    return status(started_ms=NOW_MS - 4000)


def busy() -> StatusView:
    return status(
        topics=[
            topic("orders", received_per_s=1204.4, in_flight=312, depth=18, connections=_nsqds(4)),
            topic("logins", received_per_s=38.2, depth=0, in_flight=2, connections=_nsqds(1)),
        ],
        routes=[
            route(
                "orders", topic="orders", sink="slack", waiting=41_204, leased=7, open_records=182_113, overdue=12,
                oldest_due_s=1.4, held={"mute": 2, "snooze": 31},
            ),
            route("nightly", sink="mail", waiting=310, open_records=4_102, quiet_until_ms=NOW_MS + HOUR_MS),
            route("logins", topic="logins", sink="mail", waiting=3, open_records=3),
        ],
        sinks=[
            sink("slack", delivered_per_s=31.5, sending=7, last_delivery_ms=NOW_MS - 40, waits=12, oldest_due_s=1.4),
            sink("mail", type="email", delivered_per_s=0.01, last_delivery_ms=NOW_MS - 20 * MINUTE_MS, dead=3),
        ],
        rates=RatesView(events_in=1242.6, events_stored=1242.4, digests_out=31.5, records_out=1180.2, dead_letters=0),
        message_age_s=0.0184, event_loop_lag_s=0.0121, timelines=41_524, dead_digests=3,
        daemons=[
            daemon("this", is_this=True),
            daemon("b", host="web-2", pid=991),
            daemon("c", host="web-3", version="1.1.4", config_hash="09aa8cf3e21b"),
        ],
    )  # fmt: skip


def broken() -> StatusView:
    return status(
        topics=[
            topic(
                "orders", health=Health.TROUBLE, depth=1_204_311, connections=[*_nsqds(3), _GONE],
                backoff=BackoffView(state="backoff", level=4, next_probe_ms=NOW_MS + 12_400),
            ),
            topic("logins", health=Health.FAILING, connections=[], detail="no nsqd is known, no nsqlookupd answers"),
            topic(
                "audit", health=Health.TROUBLE, backoff=BackoffView(state="paused", level=0),
                paused_since_ms=NOW_MS - 40 * MINUTE_MS,
            ),
        ],
        routes=[
            route("orders", sink="slack", waiting=41_204, open_records=182_113, overdue=214, oldest_due_s=2_460.0),
            route(
                "nightly", sink="mail", waiting=310, open_records=4_102, overdue=3, oldest_due_s=80.0,
                paused_since_ms=NOW_MS - 3 * MINUTE_MS,
            ),
        ],
        sinks=[
            sink(
                "slack", health=Health.TROUBLE, state="refusing", since_ms=NOW_MS - 48 * MINUTE_MS, why="403",
                waits=214, oldest_due_s=2_460.0, buried=8, dead=8, last_delivery_ms=NOW_MS - 49 * MINUTE_MS,
                backoff=BackoffView(state="backoff", level=5, next_probe_ms=NOW_MS + 21_000),
            ),
            sink("mail", type="email", last_delivery_ms=NOW_MS - 20 * MINUTE_MS),
        ],
        checks=[CheckView(name="nsqlookupd", health=Health.FAILING, detail="0 of 2 answer")],
        rates=RatesView(events_in=0, events_stored=0, digests_out=0, records_out=0, dead_letters=0.4),
        event_loop_lag_s=0.0121, timelines=41_514, dead_digests=8, orphans={"old-orders": 4_102},
        daemons=[daemon("this", is_this=True), daemon("b", host="web-2", pid=991, differs=True)],
    )  # fmt: skip


def redis_away() -> StatusView:
    store = msgspec.structs.replace(
        STORE, health=Health.FAILING, detail="failing for 41.2 s", failing_since_ms=NOW_MS - 41_200
    )
    backoff = BackoffView(state="backoff", level=3, next_probe_ms=NOW_MS + 4_000)
    return status(store=store, topics=[topic(health=Health.TROUBLE, backoff=backoff)], started_ms=NOW_MS - HOUR_MS)


VIEWS = {"empty": empty, "busy": busy, "broken": broken, "redis-away": redis_away}
"""Made when they are asked for: the verdict has times of day."""
