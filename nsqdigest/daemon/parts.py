"""One configuration → the parts of both rivers, built and not started.

From messages to records: discovery, consumers, store. From due timelines to receivers: scheduler, sinks. Nothing here
connects, waits or keeps time; `life` starts the parts and ends them in order, `status` and `operator` look at them.

Invariants:
- Every part gets what it works with as an argument: none of them looks another one up.
- What is shared is made once: the store, the metrics, the plans of the policies, the outlets of the sinks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nsqdigest.backoff import Controller, Curve
from nsqdigest.base.loop_lag import LoopLag
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Backoff, Config, Route, SinkSettings
from nsqdigest.consumer import Consumer
from nsqdigest.daemon.labels import known_labels
from nsqdigest.daemon.policy_changes import PolicyChanges
from nsqdigest.daemon.routes import Plans, intake_routes, plans_of
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.paced import outlet_of
from nsqdigest.delivery.sinks.kind import SinkContext, SinkKind, SinkKinds
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.intake.batches import CONCURRENT_WRITES
from nsqdigest.intake.letters import DeadLetters
from nsqdigest.nsq.channel_depths import Depths
from nsqdigest.nsq.connection import options_of
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
    config: Config
    metrics: Metrics
    store: Store
    store_watch: StoreWatch
    policy_changes: PolicyChanges
    outlets: Mapping[str, Outlet]
    """By the name of the sink."""
    scheduler: Scheduler
    publisher: Publisher
    """Of dead letters; a sink that publishes has its own."""
    consumers: tuple[Consumer, ...]
    """One per topic."""
    discovery: Discovery
    depths: Depths
    lag: LoopLag


def build(config: Config, kinds: SinkKinds = KINDS, uniform: Uniform = random.uniform) -> Parts:
    """`kinds`: those that the configuration was read with."""
    metrics = Metrics(known_labels(config))
    plans = plans_of(config)
    options = options_of(config.nsq)
    store_is_back = StoreIsBack()
    store = build_store(config, plans)
    store.namespace.time_scripts(metrics)
    outlets = build_outlets(config, kinds, SinkContext(options, metrics, curve=curve_of(config.backoff)), uniform)
    scheduler = Scheduler(
        config.scheduler,
        {route.name: DeliveryRoute(route, plans[route.policy], outlets[route.sink]) for route in config.routes},
        store,
        metrics,
        uniform,
        on_store_back=store_is_back,
    )
    publisher = Publisher(options, metrics)
    dead_letters = DeadLetters(publisher, config.nsq.dead_letter_topic, config.nsq.channel)
    topics = dict.fromkeys(route.topic for route in config.routes)
    consumers = tuple(
        Consumer(
            topic,
            config.nsq,
            options=options,
            limits=config.limits,
            routes=intake_routes(config, topic, plans),
            store=store.timelines,
            dead_letters=dead_letters,
            controller=_controller(config, config.nsq.max_in_flight, uniform),
            metrics=metrics,
            uniform=uniform,
            on_due=scheduler.on_due,
        )
        for topic in topics
    )
    store_is_back.wakes = (*(consumer.store_answered for consumer in consumers), scheduler.wake)
    discovery = Discovery(
        config.nsq,
        {consumer.topic: consumer.links.on_lookup_answer for consumer in consumers},
        metrics=metrics,
        uniform=uniform,
    )
    return Parts(
        config=config,
        metrics=metrics,
        store=store,
        store_watch=StoreWatch(
            store, metrics, config.scheduler.lease_ms / 1000 / LOOKS_AT_STORE_PER_LEASE, store_is_back
        ),
        policy_changes=PolicyChanges(
            Rescoring(store.namespace, {route.name: plans[route.policy] for route in config.routes}),
            store.namespace.partitions,
            {route.name: route.policy for route in config.routes},
            metrics,
            uniform,
        ),
        outlets=outlets,
        scheduler=scheduler,
        publisher=publisher,
        consumers=consumers,
        discovery=discovery,
        depths=Depths(discovery, topics, config.nsq.channel, metrics),
        lag=LoopLag(),
    )


class StoreIsBack:
    """One part got an answer from Redis again: wakes the others, so that none waits for the end of its own backoff."""

    def __init__(self) -> None:
        self.wakes: tuple[Callable[[], None], ...] = ()

    def __call__(self) -> None:
        for wake in self.wakes:
            wake()


# -- the store


def build_store(config: Config, plans: Plans) -> Store:
    return Store(
        config.redis,
        [_store_route(config, route, plans[route.policy]) for route in config.routes],
        config.limits.timelines,
        dead_digests=config.limits.dead_digests,
        connections=_store_connections(config),
    )


def _store_connections(config: Config) -> int:
    """To one server: one for each call that can be under way, so that none waits for a connection: each digest, each
    part of a batch, the timer of each partition. They are opened when they are needed."""
    digests = sum(sink.concurrency for sink in config.sinks.values())
    parts_of_batches = len(config.routes) * CONCURRENT_WRITES * config.redis.partition_count
    return digests + min(parts_of_batches, INTAKE_CONNECTIONS) + config.redis.partition_count + 2


def _store_route(config: Config, route: Route, plan: Plan) -> StoreRoute:
    policy, sink = config.policies[route.policy], config.sinks[route.sink]
    return StoreRoute(
        route.name,
        policy.capacity,
        policy.increment_delay_ms,
        policy.dedupe_window_ms,
        merges=policy.on_retry == "merge",
        longest_ms=max(plan.longest_ms, sink.retry_cap_ms, sink.retry_after_max_ms),
        quiet=None if policy.is_zoned else plan.quiet,
        has_quiet_hours=plan.quiet is not None,
        is_zoned=policy.is_zoned,
        has_ends=bool(route.cancel),
    )


# -- delivery


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


# -- backoff, of a topic or a sink


def curve_of(backoff: Backoff) -> Curve:
    return Curve(
        backoff.base_ms / 1000, backoff.max_duration_ms / 1000, backoff.strategy, backoff.jitter, backoff.recovery
    )


def _controller(config: Config, limit: int, uniform: Uniform) -> Controller:
    return Controller(limit, curve_of(config.backoff), uniform, slow_start=config.backoff.slow_start)
