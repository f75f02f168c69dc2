"""One configuration → the parts of both rivers, built and not started.

From messages to records: discovery, consumers, store. From due timelines to receivers: scheduler, sinks. Nothing here
connects, waits or keeps time; `life` starts the parts and ends them in order, `status` and `operator` look at them.

`build` makes the parts of the first configuration, `rebuild` those of another one: what it leaves as it was is the same
object in both, what differs is new. `succession` then lets the ones take the place of the others.

Invariants:
- Every part gets what it works with as an argument: none of them looks another one up.
- What is shared is made once: the store, the metrics, the plans of the policies, the outlets of the sinks.
- `rebuild` changes nothing of the parts in force: where it raises, they go on as if nobody had asked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.loop_lag import LoopLag
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Backoff, Config, Route, SinkSettings, tls_files
from nsqdigest.consumer import Consumer, line_of
from nsqdigest.daemon.changes import Changes, Need, topics_of
from nsqdigest.daemon.labels import known_labels
from nsqdigest.daemon.policy_changes import PolicyChanges
from nsqdigest.daemon.routes import Plans, aims_of, intake_routes, plans_of
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.paced import outlet_of
from nsqdigest.delivery.sinks.kind import SinkContext, SinkKind, SinkKinds, Uses
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.intake.batches import CONCURRENT_WRITES, Line
from nsqdigest.intake.letters import DeadLetters
from nsqdigest.nsq.channel_depths import Depths
from nsqdigest.nsq.connection import ConnectionOptions, options_of
from nsqdigest.nsq.lookups import Discovery
from nsqdigest.nsq.publisher import Publisher
from nsqdigest.store.rescoring import Rescoring
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.store import Store
from nsqdigest.store.watch import StoreWatch

Uniform = Callable[[float, float], float]
LOOKS_AT_STORE_PER_LEASE = 4

INTAKE_CONNECTIONS = 64
"""To one server, at most: a batch of many parts waits a little, instead of opening hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Of one configuration. Those behind the line live as long as the daemon."""

    config: Config
    plans: Plans
    options: ConnectionOptions
    """Of every connection to nsqd."""
    tls_files: str
    """The fingerprint of the files that `options` were made of."""
    sink_files: Mapping[str, str]
    """By the name of the sink, the fingerprint of the files that its outlet was made of."""
    outlets: Mapping[str, Outlet]
    """By the name of the sink."""
    routes: Mapping[str, DeliveryRoute]
    publisher: Publisher
    """Of dead letters; a sink that publishes has its own."""
    dead_letters: DeadLetters
    lines: Mapping[str, Line]
    """By topic: its routes, compiled."""
    consumers: tuple[Consumer, ...]
    """One per topic."""
    discovery: Discovery
    depths: Depths
    policy_changes: PolicyChanges
    # ----
    metrics: Metrics
    store: Store
    store_watch: StoreWatch
    scheduler: Scheduler
    lag: LoopLag
    store_is_back: StoreIsBack
    uniform: Uniform


class StoreIsBack:
    """One part got an answer from Redis again: wakes the others, so that none waits for the end of its own backoff."""

    def __init__(self) -> None:
        self.wakes: tuple[Callable[[], None], ...] = ()

    def __call__(self) -> None:
        for wake in self.wakes:
            wake()


def build(
    config: Config, kinds: SinkKinds = KINDS, uniform: Uniform = random.uniform, metrics: Metrics | None = None
) -> Parts:
    """`kinds`: those that the configuration was read with. `metrics`: of a daemon that has not begun to work yet."""
    fingerprint = tls_files.fingerprint(config.nsq.tls)
    if metrics is None:
        metrics = Metrics(known_labels(config))
        metrics.set("start_time_seconds", time.time())
    plans = plans_of(config)
    options = options_of(config.nsq)
    store_is_back = StoreIsBack()
    store = build_store(config, plans)
    store.namespace.time_scripts(metrics)
    sink_files = sink_files_of(config, kinds)
    outlets = build_outlets(config, kinds, SinkContext(options, metrics, curve=curve_of(config.backoff)), uniform)
    routes = delivery_routes(config, plans, outlets)
    scheduler = Scheduler(config.scheduler, routes, store, metrics, uniform, on_store_back=store_is_back)
    publisher = Publisher(options, metrics)
    dead_letters = DeadLetters(publisher, config.nsq.dead_letter_topic, config.nsq.channel)
    make_line = _line_maker(config, kinds, plans, store, metrics)
    lines = {topic: make_line(topic) for topic in topics_of(config)}
    make = _ConsumerMaker(config, options, lines, dead_letters, scheduler, metrics, uniform)
    consumers = tuple(map(make, topics_of(config)))
    discovery = _discovery(config, consumers, metrics, uniform)
    parts = Parts(
        config=config,
        plans=plans,
        options=options,
        tls_files=fingerprint,
        sink_files=sink_files,
        outlets=outlets,
        routes=routes,
        publisher=publisher,
        dead_letters=dead_letters,
        lines=lines,
        consumers=consumers,
        discovery=discovery,
        depths=Depths(discovery, topics_of(config), config.nsq.channel, metrics),
        policy_changes=_policy_changes(config, plans, store, metrics, uniform),
        metrics=metrics,
        store=store,
        store_watch=StoreWatch(store, metrics, looks_every_s(config), store_is_back),
        scheduler=scheduler,
        lag=LoopLag(),
        store_is_back=store_is_back,
        uniform=uniform,
    )
    store_is_back.wakes = wakes_of(parts)
    return parts


def rebuild(before: Parts, config: Config, changes: Changes, kinds: SinkKinds = KINDS) -> Parts:
    """The parts of another configuration that leaves redis and admin.listen as they are. Raises what an operator's file
    makes raise, and then nothing has changed."""
    metrics, store, uniform = before.metrics, before.store, before.uniform
    reconnects, rediscovers = bool(changes.options[Need.CONSUMERS]), bool(changes.options[Need.LOOKUPDS])
    # Those that `options` are not made of count as new at the next reload, whenever they were written.
    fingerprint = tls_files.fingerprint(config.nsq.tls) if reconnects else before.tls_files
    plans = plans_of(config)
    options = options_of(config.nsq) if reconnects else before.options
    sink_files = sink_files_of(config, kinds)
    outlets = _outlets_after(before, config, kinds, options, changes)
    publisher = Publisher(options, metrics) if reconnects else before.publisher
    dead_letters = before.dead_letters
    if reconnects:
        dead_letters = DeadLetters(publisher, config.nsq.dead_letter_topic, config.nsq.channel)
    make_line = _line_maker(config, kinds, plans, store, metrics)
    lines = {
        topic: before.lines[topic]
        if _of_line(before.config, topic, kinds) == _of_line(config, topic, kinds)
        else make_line(topic)
        for topic in topics_of(config)
    }
    make = _ConsumerMaker(config, options, lines, dead_letters, before.scheduler, metrics, uniform)
    kept = {} if reconnects else {consumer.topic: consumer for consumer in before.consumers}
    consumers = tuple(kept.get(topic) or make(topic) for topic in topics_of(config))
    discovery, depths = before.discovery, before.depths
    if reconnects or rediscovers or changes.topics:
        discovery = _discovery(config, consumers, metrics, uniform, before.discovery)
        depths = Depths(discovery, topics_of(config), config.nsq.channel, metrics)
    return replace(
        before,
        config=config,
        plans=plans,
        options=options,
        tls_files=fingerprint,
        sink_files={
            name: before.sink_files[name] if outlet is before.outlets.get(name) else sink_files[name]
            for name, outlet in outlets.items()
        },
        outlets=outlets,
        routes=delivery_routes(config, plans, outlets),
        publisher=publisher,
        dead_letters=dead_letters,
        lines=lines,
        consumers=consumers,
        discovery=discovery,
        depths=depths,
        policy_changes=_policy_changes(config, plans, store, metrics, uniform),
    )


def wakes_of(parts: Parts) -> tuple[Callable[[], None], ...]:
    return (*(consumer.store_answered for consumer in parts.consumers), parts.scheduler.wake)


def looks_every_s(config: Config) -> float:
    return config.scheduler.lease_ms / 1000 / LOOKS_AT_STORE_PER_LEASE


# -- intake


def _line_maker(
    config: Config, kinds: SinkKinds, plans: Plans, store: Store, metrics: Metrics
) -> Callable[[str], Line]:
    """Makes the line of a topic."""
    aims = aims_of(config, kinds)

    def line(topic: str) -> Line:
        routes = intake_routes(config, topic, plans, aims)
        return line_of(topic, routes, config.limits, store.timelines, metrics)

    return line


def _of_line(config: Config, topic: str, kinds: SinkKinds) -> object:
    """All that the line of a topic is made of; None if it has no route."""
    aims = aims_of(config, kinds)
    routes = [
        (number, each, config.policies[each.policy], config.sinks[each.sink] if each.sink in aims else None)
        for number, each in enumerate(config.routes)
        if each.topic == topic
    ]
    return (config.limits, routes) if routes else None


@dataclass(frozen=True, slots=True)
class _ConsumerMaker:
    config: Config
    options: ConnectionOptions
    lines: Mapping[str, Line]
    dead_letters: DeadLetters
    scheduler: Scheduler
    metrics: Metrics
    uniform: Uniform

    def __call__(self, topic: str) -> Consumer:
        return Consumer(
            topic,
            self.config.nsq,
            options=self.options,
            limits=self.config.limits,
            line=self.lines[topic],
            dead_letters=self.dead_letters,
            controller=_controller(self.config, self.config.nsq.max_in_flight, self.uniform),
            metrics=self.metrics,
            uniform=self.uniform,
            on_due=self.scheduler.on_due,
        )


def _discovery(
    config: Config,
    consumers: Collection[Consumer],
    metrics: Metrics,
    uniform: Uniform,
    before: Discovery | None = None,
) -> Discovery:
    topics = {consumer.topic: consumer.links.on_lookup_answer for consumer in consumers}
    return Discovery(config.nsq, topics, metrics=metrics, uniform=uniform, before=before)


# -- the store


def build_store(config: Config, plans: Plans) -> Store:
    return Store(
        config.redis,
        store_routes(config, plans),
        config.limits.timelines,
        dead_digests=config.limits.dead_digests,
        connections=store_connections(config),
    )


def store_connections(config: Config) -> int:
    """To one server: one for each call that can be under way, so that none waits for a connection: each digest, each
    part of a batch, the timer of each partition. They are opened when they are needed."""
    digests = sum(sink.concurrency for sink in config.sinks.values())
    parts_of_batches = len(config.routes) * CONCURRENT_WRITES * config.redis.partition_count
    return digests + min(parts_of_batches, INTAKE_CONNECTIONS) + config.redis.partition_count + 2


def store_routes(config: Config, plans: Plans) -> list[StoreRoute]:
    return [_store_route(config, route, plans[route.policy]) for route in config.routes]


def _store_route(config: Config, route: Route, plan: Plan) -> StoreRoute:
    policy, sink = config.policies[route.policy], config.sinks[route.sink]
    return StoreRoute(
        route.name,
        policy.capacity,
        policy.increment_delay_ms,
        policy.dedupe_window_ms,
        merges=policy.on_retry == "merge",
        longest_ms=max(plan.longest_ms, sink.retry_cap_ms, sink.retry_after_max_ms),
        policy_longest_ms=plan.longest_ms,
        quiet=None if policy.is_zoned else plan.quiet,
        has_quiet_hours=plan.quiet is not None,
        is_zoned=policy.is_zoned,
        has_ends=bool(route.cancel),
        has_message_keys=not route.key,
    )


def _policy_changes(config: Config, plans: Plans, store: Store, metrics: Metrics, uniform: Uniform) -> PolicyChanges:
    return PolicyChanges(
        Rescoring(store.namespace, {route.name: plans[route.policy] for route in config.routes}),
        store,
        {route.name: route.policy for route in config.routes},
        metrics,
        uniform,
    )


# -- delivery


def delivery_routes(config: Config, plans: Plans, outlets: Mapping[str, Outlet]) -> dict[str, DeliveryRoute]:
    return {route.name: DeliveryRoute(route, plans[route.policy], outlets[route.sink]) for route in config.routes}


def sink_files_of(config: Config, kinds: SinkKinds) -> dict[str, str]:
    """As they are now."""
    return {name: tls_files.contents(kinds[each.type].files(each)) for name, each in config.sinks.items()}


def build_outlets(config: Config, kinds: SinkKinds, context: SinkContext, uniform: Uniform) -> dict[str, Outlet]:
    return {name: _outlet(config, kinds[each.type], each, context, uniform) for name, each in config.sinks.items()}


def _outlet(
    config: Config, kind: SinkKind[Any], settings: SinkSettings, context: SinkContext, uniform: Uniform
) -> Outlet:
    senders = kind.senders(settings)
    return outlet_of(
        settings,
        kind.build(settings, context),
        _controller(config, senders, uniform),
        kind.aim(settings),
        senders,
    )


def _outlets_after(
    before: Parts, config: Config, kinds: SinkKinds, options: ConnectionOptions, changes: Changes
) -> dict[str, Outlet]:
    """A sink that no route has any more is made anew, too: it begins without the history of what it had."""
    context = SinkContext(options, before.metrics, curve=curve_of(config.backoff))
    other = {Uses.NSQ_OPTIONS} if changes.options[Need.CONSUMERS] else set()
    other |= {Uses.CURVE} if changes.of("backoff") else set()
    had, have = ({route.sink for route in each.routes} for each in (before.config, config))
    kept = {
        name
        for name, settings in config.sinks.items()
        if name in before.config.sinks
        and name not in changes.sinks.changed
        and not other.intersection(kinds[settings.type].uses(settings))
        and (name in have or name not in had)
    }
    return {
        name: before.outlets[name] if name in kept else _outlet(config, kinds[each.type], each, context, before.uniform)
        for name, each in config.sinks.items()
    }


# -- backoff, of a topic or a sink


def curve_of(backoff: Backoff) -> Curve:
    return Curve(
        backoff.base_ms / 1000, backoff.max_duration_ms / 1000, backoff.strategy, backoff.jitter, backoff.recovery
    )


def _controller(config: Config, limit: int, uniform: Uniform) -> Controller:
    return Controller(limit, curve_of(config.backoff), uniform, slow_start=config.backoff.slow_start)
