"""One daemon as `/api/status` and `/api/history` show it, read from memory: the same facts for page, command and log.

Invariants:
- Nothing here waits, asks Redis or changes anything. A few values are noted every `INTERVAL_S`; nothing is noted where
  events and digests pass.
- Conditions, checks and words are `status`' and `verdict`'s: this module only gathers them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from nsqdigest import __version__
from nsqdigest.admin.views import (
    BackoffView,
    CheckView,
    ConnectionView,
    DaemonView,
    Health,
    HistoryView,
    RatesView,
    RouteView,
    SinkView,
    StatusView,
    StoreView,
    TopicView,
)
from nsqdigest.backoff import State
from nsqdigest.base import tasks
from nsqdigest.daemon import state_log
from nsqdigest.daemon.history import INTERVAL_S, History, Sample
from nsqdigest.daemon.status import config_hash
from nsqdigest.daemon.verdict import verdict
from nsqdigest.store.figures import RouteFigures
from nsqdigest.store.schedule import quiet_of

if TYPE_CHECKING:
    from nsqdigest.admin.server import Check
    from nsqdigest.backoff import Controller
    from nsqdigest.config import Route
    from nsqdigest.consumer import Consumer
    from nsqdigest.daemon.parts import Parts
    from nsqdigest.daemon.registry import Registry
    from nsqdigest.daemon.status import Status
    from nsqdigest.delivery.outlet import Outlet

_TOTALS = {
    "events_in": "messages_received_total",
    "events_stored": "message_age_seconds",
    "digests_out": "digests_delivered_total",
    "records_out": "digest_records_delivered_total",
    "dead_letters": "dead_letters_total",
}
"""Names of rates, and the metric that counts each over all labels."""


class _Generation:
    """What is worked out once of the parts of one configuration."""

    def __init__(self, parts: Parts) -> None:
        config, metrics = parts.config, parts.metrics
        self.parts = parts
        self.config_hash = config_hash(config)
        self.quiet = {route.name: quiet_of(config.policies[route.policy]) for route in config.routes}
        topics = [consumer.topic for consumer in parts.consumers]
        self.received = {topic: metrics.number("messages_received_total", topic=topic) for topic in topics}
        self.ages = [metrics.histogram("message_age_seconds", topic=topic) for topic in topics]
        self.delivered = [
            (route.sink, metrics.number("digests_delivered_total", sink=route.sink, route=route.name))
            for route in config.routes
        ]


class View:
    def __init__(
        self,
        parts: Callable[[], Parts],
        status: Status,
        paused_since_s: Mapping[tuple[str, str], float],
        registry: Registry,
        reloaded_at_s: Callable[[], float | None],
    ) -> None:
        """`parts`: of the configuration in force; `paused_since_s`: by kind and name, in Unix time; `reloaded_at_s`:
        when another file came into force, likewise."""
        self._parts = parts
        self._status = status
        self._paused_since_s = paused_since_s
        self._registry = registry
        self._started_ms = _unix_ms()
        self._known = _Generation(parts())
        self._history = History(self._sample())
        self._reloaded_at_s = reloaded_at_s
        self.tasks = tasks.Tasks()

    def start(self) -> None:
        self.tasks.start(self._run(), "history")

    async def stop(self) -> None:
        await self.tasks.stop()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self._history.note(self._sample())

    @property
    def _generation(self) -> _Generation:
        parts = self._parts()
        if parts is not self._known.parts:
            self._known = _Generation(parts)
        return self._known

    # -- what is remembered

    def _sample(self) -> Sample:
        known = self._generation
        parts = known.parts
        figures = parts.store_watch.figures.routes.values()
        counts = {name: parts.metrics.total(metric) for name, metric in _TOTALS.items()}
        counts |= {f"topic {name}": number.value for name, number in known.received.items()}
        for sink, number in known.delivered:
            counts[f"sink {sink}"] = counts.get(f"sink {sink}", 0.0) + number.value
        counts["ages_s"] = sum(ages.total for ages in known.ages)
        controllers = [consumer.controller for consumer in parts.consumers]
        controllers += [outlet.controller for outlet in parts.outlets.values()]
        gauges = {
            "waiting": sum(of.waiting for of in figures),
            "overdue": sum(of.overdue for of in figures),
            "event_loop_lag_s": round(parts.lag.longest_s, 4),
            "in_flight": sum(consumer.in_flight for consumer in parts.consumers),
            "level": max((controller.decision.level for controller in controllers), default=0),
        }
        return Sample(time.monotonic(), counts, gauges)

    def history(self) -> HistoryView:
        rates, gauges = self._history.rates, self._history.gauges
        return HistoryView(
            now_ms=_unix_ms(),
            interval_s=INTERVAL_S,
            events_in=rates("events_in"),
            events_stored=rates("events_stored"),
            digests_out=rates("digests_out"),
            waiting=[int(value) for value in gauges("waiting")],
            overdue=[int(value) for value in gauges("overdue")],
            event_loop_lag_s=gauges("event_loop_lag_s"),
            in_flight=[int(value) for value in gauges("in_flight")],
            level=[int(value) for value in gauges("level")],
        )

    # -- how it is now

    def log_state(self) -> None:
        state_log.write(self.status())

    def status(self) -> StatusView:
        known = self._generation
        parts, config = known.parts, known.parts.config
        now, now_ms = self._sample(), _unix_ms()
        rate, reloaded_s = self._history.rate(now), self._reloaded_at_s()
        checks = {check.name: check for check in self._status.checks()}
        figures = parts.store_watch.figures
        held = parts.store.holds.counts() if parts.store.holds.all else {}
        view = StatusView(
            now_ms=now_ms,
            health=Health.DRAINING if self._status.is_draining else Health.WELL,
            verdict="",
            version=__version__,
            config=config.source.encode("utf-8", "backslashreplace").decode(),  # a path may be any bytes
            config_hash=known.config_hash,
            started_ms=self._started_ms,
            reloaded_ms=None if reloaded_s is None else int(reloaded_s * 1000),
            has_token=config.admin.token is not None,
            checks=[CheckView(name=each.name, health=_health(each), detail=each.detail) for each in checks.values()],
            store=self._store(checks["store"]),
            topics=[
                self._topic(consumer, checks[f"topic {consumer.topic}"], rate(f"topic {consumer.topic}"), now_ms)
                for consumer in parts.consumers
            ],
            routes=[
                self._route(each, {str(kind): count for (name, kind), count in held.items() if name == each.name})
                for each in config.routes
            ],
            sinks=[
                self._sink(outlet, checks[f"sink {name}"], rate(f"sink {name}"), now_ms)
                for name, outlet in parts.outlets.items()
            ],
            rates=RatesView(**{name: round(rate(name), 3) for name in _TOTALS}),
            message_age_s=self._history.mean(now, "ages_s", "events_stored"),
            event_loop_lag_s=now.gauges["event_loop_lag_s"],
            timelines=sum(of.waiting + of.leased for of in figures.routes.values()),
            dead_digests=sum(figures.dead.values()),
            orphans=dict(figures.orphans),
            daemons=self._daemons(known.config_hash),
        )
        health, sentence = verdict(view)
        return msgspec.structs.replace(view, health=health, verdict=sentence)

    def _daemons(self, own_hash: str) -> list[DaemonView]:
        return [
            DaemonView(
                id=each.id,
                host=each.told.host,
                pid=each.told.pid,
                version=each.told.version,
                config_hash=each.told.config_hash,
                is_this=is_this,
                differs=each.told.version == __version__ and each.told.config_hash != own_hash,
                started_ms=each.told.started_ms,
                seen_ms=each.seen_ms,
            )
            for each, is_this in self._registry.all()
        ]

    def _store(self, check: Check) -> StoreView:
        watch, store = self._known.parts.store_watch, self._known.parts.store
        failing_s, loss = self._known.parts.scheduler.failing_since_s, watch.loss
        return StoreView(
            redis=self._known.parts.config.redis.shown_url,
            version=watch.version,
            health=_health(check),
            detail=check.detail,
            failing_since_ms=None if failing_s is None else _unix_ms() - int((time.monotonic() - failing_s) * 1000),
            partitions=store.namespace.partitions,
            figures_ms=watch.figures.now_ms or None,
            lost_ms=None if loss is None else int(loss.at_s * 1000),
            lost_records=0 if loss is None else loss.records,
            lost_partitions=0 if loss is None else loss.partitions,
        )

    def _topic(self, consumer: Consumer, check: Check, rate: float, now_ms: int) -> TopicView:
        backoff = _backoff(consumer.controller, now_ms)
        health = _health(check)
        if health is Health.WELL and backoff.level:
            health = Health.TROUBLE
        depth = self._known.parts.metrics.value("channel_depth", topic=consumer.topic)
        return TopicView(
            name=consumer.topic,
            health=health,
            detail=check.detail,
            backoff=backoff,
            max_in_flight=self._known.parts.config.nsq.max_in_flight,
            in_flight=consumer.in_flight,
            depth=None if depth is None else int(depth),
            is_starved=consumer.is_starved,
            received_per_s=round(rate, 3),
            paused_since_ms=self._paused_ms("topic", consumer.topic),
            connections=_connections(consumer, now_ms),
        )

    def _route(self, route: Route, held: dict[str, int]) -> RouteView:
        figures = self._known.parts.store_watch.figures
        of, quiet = figures.routes.get(route.name, RouteFigures()), self._known.quiet[route.name]
        return RouteView(
            name=route.name,
            topic=route.topic,
            sink=route.sink,
            policy=route.policy,
            waiting=of.waiting,
            leased=of.leased,
            overdue=of.overdue,
            oldest_due_s=of.overdue_s(figures.now_ms),
            open_records=of.open_records,
            held=held,
            quiet_until_ms=None if quiet is None else quiet.end_ms(figures.now_ms or _unix_ms()),
            paused_since_ms=self._paused_ms("route", route.name),
        )

    def _sink(self, outlet: Outlet, check: Check, rate: float, now_ms: int) -> SinkView:
        backlog, history = self._status.backlog_of(outlet.name), outlet.history
        condition = self._status.condition_of(outlet.name)
        last_s = self._known.parts.metrics.value("last_delivery_timestamp_seconds", sink=outlet.name)
        return SinkView(
            name=outlet.name,
            type=outlet.settings.type,
            state=condition.state,
            health=_health(check),
            detail=condition.detail,
            since_ms=None if condition.since_s is None else int(condition.since_s * 1000),
            why=history.why,
            backoff=_backoff(outlet.controller, now_ms),
            sending=outlet.sending,
            concurrency=outlet.settings.concurrency,
            waits=history.waits(backlog, now_ms / 1000),
            oldest_due_s=backlog.oldest_due_s,
            buried=history.buried_since,
            dead=backlog.dead,
            delivered_per_s=round(rate, 3),
            last_delivery_ms=int(last_s * 1000) if last_s else None,
            paused_since_ms=self._paused_ms("sink", outlet.name),
        )

    def _paused_ms(self, kind: str, name: str) -> int | None:
        since_s = self._paused_since_s.get((kind, name))
        return None if since_s is None else int(since_s * 1000)


def _unix_ms() -> int:
    return int(time.time() * 1000)


def _health(check: Check) -> Health:
    if not check.is_well:
        return Health.FAILING
    return Health.TROUBLE if check.is_trouble else Health.WELL


def _backoff(controller: Controller, now_ms: int) -> BackoffView:
    decision = controller.decision
    next_ms = None
    if decision.state is State.BACKOFF and decision.wake_at_s is not None:
        next_ms = now_ms + max(0, int((decision.wake_at_s - time.monotonic()) * 1000))
    return BackoffView(state=decision.state, level=decision.level, next_probe_ms=next_ms)


def _connections(consumer: Consumer, now_ms: int) -> list[ConnectionView]:
    open_now = {connection.address: connection for connection in consumer.connections}
    found = []
    for address in consumer.links.addresses:
        entry, connection = consumer.links.entry(address), open_now.get(address)
        found.append(
            ConnectionView(
                nsqd=str(address),
                is_connected=connection is not None,
                rdy=connection.rdy if connection else 0,
                rdy_used=connection.rdy_used if connection else 0,
                in_flight=connection.in_flight if connection else 0,
                sources=list(entry.sources),
                seen_ms=now_ms - int((time.monotonic() - entry.seen_s) * 1000),
            )
        )
    return sorted(found, key=lambda each: each.nsqd)
