"""The state of a daemon as lines of its log, after USR2: the same facts as `/api/status` and `nsqdigest status`."""

from __future__ import annotations

from nsqdigest.admin.views import Health, StatusView, TopicView
from nsqdigest.base import log

_log = log.get("daemon")


def write(view: StatusView) -> None:
    _log.info("daemon.state.verdict", health=view.health, verdict=view.verdict, config_hash=view.config_hash)
    for check in view.checks:
        _log.info("daemon.state", check=check.name, well=check.health is Health.WELL, detail=check.detail)
    for topic in view.topics:
        _write_topic(topic, view.now_ms)
    for route in view.routes:
        _log.info(
            "daemon.state.route", route=route.name, sink=route.sink, waiting=route.waiting, leased=route.leased,
            overdue=route.overdue, oldest_due_s=round(route.oldest_due_s, 1), open_records=route.open_records,
            held=sum(route.held.values()), quiet=route.quiet_until_ms is not None,
        )  # fmt: skip
    for sink in view.sinks:
        _log.info(
            "daemon.state.sink", sink=sink.name, state=sink.state, backoff_level=sink.backoff.level, waits=sink.waits,
            oldest_due_s=round(sink.oldest_due_s, 1), dead=sink.dead, sending=sink.sending,
            delivered_per_s=sink.delivered_per_s, delivered_s_ago=_s_ago(sink.last_delivery_ms, view.now_ms),
        )  # fmt: skip
    for daemon in view.daemons:
        if not daemon.is_this:
            _log.info(
                "daemon.state.other", host=daemon.host, pid=daemon.pid, version=daemon.version,
                config_hash=daemon.config_hash, differs=daemon.differs,
            )  # fmt: skip


def _write_topic(topic: TopicView, now_ms: int) -> None:
    _log.info(
        "daemon.state.topic", topic=topic.name, state=topic.backoff.state, backoff_level=topic.backoff.level,
        in_flight=topic.in_flight, depth=topic.depth, received_per_s=topic.received_per_s,
    )  # fmt: skip
    for nsqd in topic.connections:
        _log.info(
            "daemon.state.nsqd", topic=topic.name, nsqd=nsqd.nsqd, sources=", ".join(nsqd.sources),
            seen_s_ago=_s_ago(nsqd.seen_ms, now_ms), connected=nsqd.is_connected,
        )  # fmt: skip
        if nsqd.is_connected:
            _log.info(
                "daemon.state.connection", topic=topic.name, nsqd=nsqd.nsqd, rdy=nsqd.rdy, rdy_used=nsqd.rdy_used,
                in_flight=nsqd.in_flight,
            )  # fmt: skip


def _s_ago(at_ms: int | None, now_ms: int) -> float | None:
    return None if at_ms is None else round((now_ms - at_ms) / 1000, 1)
