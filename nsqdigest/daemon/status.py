"""The state of a daemon for its operator: the checks of `/readyz`, the gauges, what a sink is like.

Invariants:
- All of it is read from memory (descriptors: the kernel's) when somebody asks, and nothing waits. Figures of Redis and
  nsqd are collected beforehand, at a pace of their own (`StoreWatch`, `Depths`).
- Nothing here changes anything: pauses are `operator`'s, the two flags below are set by `life`.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nsqdigest import __version__
from nsqdigest.admin.server import Check
from nsqdigest.backoff import State
from nsqdigest.base import backoff_report, descriptors, log
from nsqdigest.base.reasons import SinkState
from nsqdigest.base.words import counted
from nsqdigest.daemon.labels import known_labels
from nsqdigest.delivery.sink_state import Backlog, Condition, clock_text
from nsqdigest.store.holds import HoldKind

if TYPE_CHECKING:
    from nsqdigest.config import Config
    from nsqdigest.consumer import Consumer
    from nsqdigest.daemon.parts import Parts
    from nsqdigest.daemon.reload import Reloads

_log = log.get("daemon")

_HASH_LENGTH = 12


def config_hash(config: Config) -> str:
    """Equal for settings by which daemons of one version work alike. Where the file is, [admin] and [log] do not enter
    it, nor do secrets, and URLs that may contain one."""
    own = (
        replace(config.admin, listen=None, token=None, read_token=None),
        replace(config.log, level="info", format="auto"),
    )
    text = repr(replace(config, source="", warnings=(), admin=own[0], log=own[1]))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]


class Status:
    def __init__(self, parts: Parts, paused_since_s: Mapping[tuple[str, str], float], reloads: Reloads) -> None:
        """`paused_since_s`: by kind and name, what an operator paused, in Unix time."""
        self._metrics = parts.metrics
        self._paused_since_s = paused_since_s
        self._reloads = reloads
        self._dead_shown: set[str] = set()
        self._hash = ""
        self.why_store_waits = "not reached yet"
        """Why Redis is waited for at the start. "" after that."""
        self.is_draining = False
        self.take(parts)
        self._metrics.set("build_info", 1, version=__version__, python=platform.python_version())
        self._metrics.refresh_by(self._set_gauges)

    def take(self, parts: Parts) -> None:
        """From now on it looks at the parts of another configuration."""
        config = parts.config
        self._source = config.source
        self._consumers = parts.consumers
        self._scheduler = parts.scheduler
        self._outlets = parts.outlets
        self._discovery = parts.discovery
        self._watch = parts.store_watch
        self._holds = parts.store.holds
        self._lag = parts.lag
        self._pausable = known_labels(config)["kind", "name"]
        self._sink_of = {route.name: route.sink for route in config.routes}
        self._dead_shown |= set(config.sinks)
        self._metrics.clear("config_info", hash=self._hash)
        self._hash = config_hash(config)
        self._metrics.set("config_info", 1, hash=self._hash)

    # -- gauges

    def _set_gauges(self) -> None:
        metrics = self._metrics
        for consumer in self._consumers:
            backoff_report.set_gauges(metrics, "consumer.topic", consumer.controller, topic=consumer.topic)
            metrics.set("messages_in_flight", consumer.in_flight, topic=consumer.topic)
        for name, outlet in self._outlets.items():
            backoff_report.set_gauges(metrics, "scheduler.sink", outlet.controller, sink=name)
            now = self.condition_of(name).state
            for state in SinkState:
                metrics.set("sink_state", state is now, sink=name, state=state)
        for kind, name in self._pausable:
            metrics.set("paused", (kind, name) in self._paused_since_s, kind=kind, name=name)
        metrics.set("store_up", not self.why_store_waits and self._scheduler.failing_since_s is None)
        metrics.set("log_lines_dropped_total", log.lines_dropped())
        used = descriptors.used()
        metrics.set("descriptors_used_ratio", 0 if used is None else used.ratio)
        metrics.set("event_loop_lag_seconds", self._lag.longest_s)
        self._set_figures()

    def _set_figures(self) -> None:
        metrics, figures = self._metrics, self._watch.figures
        for name, of in figures.routes.items():
            if name not in self._sink_of:
                continue  # a reload took it out since they were read
            metrics.set("timelines", of.waiting, route=name, state="waiting")
            metrics.set("timelines", of.leased, route=name, state="leased")
            metrics.set("records_open", of.open_records, route=name)
            metrics.set("oldest_due_seconds", of.overdue_s(figures.now_ms), route=name)
        self._dead_shown |= set(figures.dead)  # also of sinks that the file no longer has
        for sink in self._dead_shown:
            metrics.set("dead_digests", figures.dead.get(sink, 0), sink=sink)
        metrics.set("orphan_records", sum(figures.orphans.values()))
        held = self._holds.counts()
        for name in self._sink_of:
            for kind in HoldKind:
                metrics.set("timelines_held", held.get((name, kind), 0), route=name, kind=kind)

    # -- sinks

    def backlog_of(self, sink: str) -> Backlog:
        figures = self._watch.figures
        backlog = Backlog(dead=figures.dead.get(sink, 0))
        for name, of in figures.routes.items():
            if self._sink_of.get(name) == sink:
                backlog = backlog.plus(Backlog(of.overdue, of.overdue_s(figures.now_ms)))
        return backlog

    def condition_of(self, sink: str) -> Condition:
        paused_since_s = self._paused_since_s.get(("sink", sink))
        return self._outlets[sink].history.condition(self.backlog_of(sink), paused_since_s, time.time())

    def obstacles(self, route: str) -> list[str]:
        """What keeps this daemon from delivering what is due of a route."""
        found = []
        if ("route", route) in self._paused_since_s:
            found.append(f"route {route} is {self._check_of_paused_route(route).detail}")
        sink = self._sink_of.get(route)
        if sink is not None and (condition := self.condition_of(sink)).is_trouble:
            found.append(f"sink {sink} is {condition.detail}")
        return found

    # -- one line

    def line(self) -> str:
        """How the daemon is, and how much it did."""
        troubles = [f"{check.name}: {check.detail}" for check in self.checks() if not check.is_well or check.is_trouble]
        events, digests = (self._metrics.total(f"{name}_total") for name in ("messages_received", "digests_delivered"))
        waits = sum(of.waiting for of in self._watch.figures.routes.values())
        done = f"{counted(int(events), 'event')} in, {counted(int(digests), 'digest')} out"
        return f"{'; '.join(troubles) or 'well'}; {done}, {counted(waits, 'timeline')} waiting"

    # -- /readyz

    def checks(self) -> list[Check]:
        checks = [Check("running", not self.is_draining, "draining" if self.is_draining else "yes")]
        why = self.why_store_fails()
        checks.append(Check("store", not why, why or "answers"))
        checks += [self._check_of(consumer) for consumer in self._consumers]
        checks += [
            self._check_of_paused_route(name) for name in self._sink_of if ("route", name) in self._paused_since_s
        ]
        for sink in self._outlets:
            condition = self.condition_of(sink)
            checks.append(Check(f"sink {sink}", True, condition.detail, condition.is_trouble))
        checks.append(self._check_of_config())
        if (used := descriptors.used()) is not None and used.is_trouble:
            detail = f"{used.open:,} of {used.limit:,} are open; raise LimitNOFILE= of its unit, or ulimit -n"
            checks.append(Check("descriptors", True, detail, is_trouble=True))
        if lookupds := self._discovery.lookupds:
            well = sum(lookupd.is_well for lookupd in lookupds)
            # Without an answer, the connections that are open go on.
            is_well = well > 0 or all(consumer.connected for consumer in self._consumers)
            checks.append(Check("nsqlookupd", is_well, f"{well} of {len(lookupds)} answer"))
        return checks

    def why_store_fails(self) -> str:
        """ "" where it answers."""
        failing_s = self._scheduler.failing_since_s
        if self.why_store_waits:
            return self.why_store_waits
        return "" if failing_s is None else f"failing for {time.monotonic() - failing_s:.1f} s"

    def _check_of(self, consumer: Consumer) -> Check:
        name, known = f"topic {consumer.topic}", len(consumer.links.addresses)
        if known:
            detail = f"{consumer.connected} of {known} nsqd connected"
            paused_since_s = self._paused_since_s.get(("topic", consumer.topic))
            if consumer.connected or consumer.decision.state is not State.FLOWING:  # nothing flows from nowhere
                detail += f", {consumer.decision.state}"
            if paused_since_s is not None:
                detail += f" since {clock_text(paused_since_s, time.time())}"
            return Check(name, consumer.connected > 0, detail, paused_since_s is not None)
        if self._discovery.has_answers:
            return Check(name, True, "no nsqlookupd knows an nsqd that has it yet; the daemon goes on asking")
        return Check(name, False, "no nsqd is known, and no nsqlookupd answers")

    def _check_of_config(self) -> Check:
        reloads, now_s = self._reloads, time.time()
        loaded = f"{'loaded' if reloads.reloaded_at_s is None else 'reloaded'} {clock_text(reloads.loaded_at_s, now_s)}"
        if reloads.failed_at_s is None:
            return Check("config", True, f"{self._source}, {loaded}")
        failed = f"the reload of {clock_text(reloads.failed_at_s, now_s)} was not taken: {reloads.trouble}"
        return Check("config", True, f"{failed}; in force is what was {loaded}", is_trouble=True)

    def _check_of_paused_route(self, name: str) -> Check:
        since = clock_text(self._paused_since_s["route", name], time.time())
        overdue = self._watch.figures.routes[name].overdue if name in self._watch.figures.routes else 0
        waits = f" ({overdue:,} digest{' waits' if overdue == 1 else 's wait'})" if overdue else ""
        return Check(f"route {name}", True, f"paused since {since}{waits}", is_trouble=True)
