"""Builds the parts from one configuration, starts them in order, drains them in order.

Start: admin (so that readiness can be asked while the rest waits), the store (waited for, as long as it takes), the
scheduler, the consumers, discovery (which tells them of nsqds). Drain: discovery, then consumers (nothing new comes in,
what is stored is finished, the rest goes back to nsqd) and scheduler (what is being delivered ends) side by side, then
publisher, sinks, store and admin. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

from nsqdigest import __version__
from nsqdigest.admin.operator import Kind, OperatorApi
from nsqdigest.admin.server import AdminServer
from nsqdigest.backoff import PROBE_MESSAGE_WITHIN_S, Controller, Curve, longest_recovery_s, retry_wait_ms
from nsqdigest.base import log, tasks
from nsqdigest.base.errors import NsqdigestError, StoreError
from nsqdigest.base.loop_lag import LoopLag
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Backoff, Config, Route
from nsqdigest.consumer import Consumer, most_held_bytes
from nsqdigest.daemon.status import Status, known_labels
from nsqdigest.delivery.delivery import DeliveryRoute
from nsqdigest.delivery.outlet import Outlet
from nsqdigest.delivery.sinks.kind import SinkContext, SinkKinds
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.delivery.timer import Scheduler
from nsqdigest.intake.batches import UNDER_WAY
from nsqdigest.intake.letters import DeadLetters
from nsqdigest.intake.routing import EventLimits, EventRoute, Router
from nsqdigest.intake.writer import FiledRoute
from nsqdigest.nsq.channel_depths import Depths
from nsqdigest.nsq.connection import ConnectionOptions, options_of
from nsqdigest.nsq.lookups import Discovery
from nsqdigest.nsq.publisher import Bounds, Publisher
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan
from nsqdigest.store.servers.facts import StoreFacts
from nsqdigest.store.store import Store
from nsqdigest.store.watch import StoreWatch

_log = log.get("daemon")

SINKS_DRAIN_S = 2.0
"""What deliveries get however short the drain: their digests are safe in Redis either way, but would go out late."""


LOOKS_AT_STORE_PER_LEASE = 4

INTAKE_CONNECTIONS = 64
"""To one server, at most: a batch of many parts waits a little, instead of opening hundreds."""

STORE_ENDS_WITHIN_S = 1.0
"""What calls that were sent and not answered get before the connections close under them."""


def _curve_of(backoff: Backoff) -> Curve:
    return Curve(
        backoff.base_ms / 1000, backoff.max_duration_ms / 1000, backoff.strategy, backoff.jitter, backoff.recovery
    )


class Daemon:
    def __init__(
        self,
        config: Config,
        kinds: SinkKinds = KINDS,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`kinds`: those that the configuration was read with."""
        self._config = config
        self._uniform = uniform
        self.metrics = Metrics(known_labels(config))
        self._failures = tasks.Failures()
        self._curve = _curve_of(config.backoff)
        self._plans = {name: Plan(policy) for name, policy in config.policies.items()}
        self.store = self._build_store()
        self.store.namespace.time_scripts(
            lambda script, took_s: self.metrics.observe("store_request_seconds", took_s, script=script)
        )
        self._store_watch = StoreWatch(
            self.store,
            self.metrics,
            config.scheduler.lease_ms / 1000 / LOOKS_AT_STORE_PER_LEASE,
            self._store_is_back,
        )
        options = options_of(config.nsq)
        context = SinkContext(options, self.metrics)
        self._posts = {
            name: Outlet(
                settings, kinds[settings.type].build(settings, context), self._controller(settings.concurrency)
            )
            for name, settings in config.sinks.items()
        }
        self.scheduler = Scheduler(
            config.scheduler,
            {r.name: DeliveryRoute(r, self._plans[r.policy], self._posts[r.sink]) for r in config.routes},
            self.store,
            self.metrics,
            uniform,
            on_store_back=self._store_is_back,
        )
        self._publisher = Publisher(options, self.metrics)
        self._dead_letters = DeadLetters(self._publisher, config.nsq.dead_letter_topic, config.nsq.channel)
        topics = dict.fromkeys(route.topic for route in config.routes)
        self.consumers = [self._build_consumer(topic, options) for topic in topics]
        self.discovery = Discovery(
            config.nsq,
            {consumer.topic: consumer.links.heard for consumer in self.consumers},
            metrics=self.metrics,
            uniform=uniform,
        )
        self._lag = LoopLag()
        self._depths = Depths(self.discovery, topics, config.nsq.channel, self.metrics)
        self.status = Status(
            config,
            self.metrics,
            consumers=self.consumers,
            scheduler=self.scheduler,
            posts=self._posts,
            discovery=self.discovery,
            watch=self._store_watch,
            lag=self._lag,
        )
        self._admin: AdminServer | None = None
        if config.admin.listen is not None:
            api = OperatorApi(self, config.admin.token).routes()
            self._admin = AdminServer(config.admin.listen, self.metrics, self.status.checks, api)

    def _controller(self, most: int) -> Controller:
        return Controller(most, self._curve, self._uniform, slow_start=self._config.backoff.slow_start)

    def _build_store(self) -> Store:
        config = self._config
        return Store(
            config.redis,
            [self._store_route(route) for route in config.routes],
            config.limits.timelines,
            dead_digests=config.limits.dead_digests,
            # One for all that may ask a server at once, so that nobody waits for a connection: each digest under way,
            # each part of a batch, each partition's timer. They are opened when they are needed.
            connections=sum(sink.concurrency for sink in config.sinks.values())
            + min(len(config.routes) * UNDER_WAY * config.redis.partition_count, INTAKE_CONNECTIONS)
            + config.redis.partition_count
            + 2,
        )

    def _build_consumer(self, topic: str, options: ConnectionOptions) -> Consumer:
        config, limits = self._config, self._config.limits
        routes = {number: route for number, route in enumerate(config.routes) if route.topic == topic}
        router = Router(
            [EventRoute(number, r.name, r.match, r.timeline, r.key, r.timestamp) for number, r in routes.items()],
            EventLimits(limits.event_bytes, limits.key_bytes, limits.depth, limits.future_ms, limits.past_ms),
        )
        return Consumer(
            topic,
            config.nsq,
            options=options,
            router=router,
            routes={number: FiledRoute(route.name, self._plans[route.policy]) for number, route in routes.items()},
            store=self.store.timelines,
            dead_letters=self._dead_letters,
            controller=self._controller(config.nsq.max_in_flight),
            metrics=self.metrics,
            uniform=self._uniform,
            on_due=self.scheduler.wake,
        )

    def _store_route(self, route: Route) -> StoreRoute:
        policy, sink = self._config.policies[route.policy], self._config.sinks[route.sink]
        return StoreRoute(
            route.name,
            policy.capacity,
            policy.increment_delay_ms,
            policy.dedupe_window_ms,
            merges=policy.on_retry == "merge",
            longest_ms=max(self._plans[route.policy].longest_ms, sink.retry_cap_ms, sink.retry_after_max_ms),
        )

    def _store_is_back(self) -> None:
        """Redis answers one part of the daemon again: the others need not wait for all of their own backoff."""
        for consumer in self.consumers:
            consumer.store_answered()
        self.scheduler.wake()

    # -- life

    async def start(self) -> None:
        """Returns once everything runs. Raises where the file or the data in Redis says that it must not."""
        self._failures.listen()
        if self._admin is not None:
            await self._admin.start()
        await self._wait_for_store()
        self.scheduler.start()
        for consumer in self.consumers:
            consumer.start()
        self.discovery.start()
        self._lag.start()
        self._depths.start()
        # What was built so far lives as long as the daemon: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        # And the hot loop makes hundreds of short-lived lists a batch, none of them in a cycle.
        gc.set_threshold(20_000)
        _log.info(
            "daemon.started",
            version=__version__, config=self._config.source, topics=[consumer.topic for consumer in self.consumers],
            admin=str(self._config.admin.listen) if self._config.admin.listen else "off",
            longest_recovery_s=self._longest_recovery_s, intake_at_most_mib=self._intake_at_most_mib,
        )  # fmt: skip

    @property
    def _intake_at_most_mib(self) -> int:
        """What the intake holds at most: of each topic, and of dead letters that nsqd has not acknowledged yet."""
        topic_bytes = most_held_bytes(self._config.nsq, self._config.limits.event_bytes)
        return (len(self.consumers) * topic_bytes + Bounds().size_bytes) >> 20

    @property
    def _longest_recovery_s(self) -> float:
        """Once the store answers again: until all of max_in_flight is allowed."""
        answer_s = PROBE_MESSAGE_WITHIN_S + self._config.redis.timeout_ms / 1000
        most, slow_start = self._config.nsq.max_in_flight, self._config.backoff.slow_start
        return round(longest_recovery_s(self._curve, most, answer_s, slow_start=slow_start), 1)

    async def _wait_for_store(self) -> None:
        attempts = 0
        facts: StoreFacts | None = None
        while facts is None:
            try:
                facts = await self.store.start()
            except StoreError as error:
                attempts += 1
                wait_ms = retry_wait_ms(attempts, 250, 10_000, self._uniform)
                _log.warning(
                    "daemon.store.waiting",
                    redis=self._config.redis.shown_url,
                    reason=error.reason,
                    error=error,
                    again_s=wait_ms / 1000,
                )
                await asyncio.sleep(wait_ms / 1000)
        _log.info(
            "daemon.store.ready",
            redis=self._config.redis.shown_url,
            version=facts.version,
            partitions=self.store.namespace.partitions,
        )
        for warning in facts.warnings:
            _log.warning("daemon.store.advice", advice=warning)
        self._store_watch.start(facts.servers)
        self.status.store_is_ready = True

    async def watch(self) -> None:
        """Raises when a part of the daemon ends by itself: better a restart than a daemon that looks alive."""
        parts = [
            *self._store_watch.tasks,
            *self.scheduler.tasks,
            *self.discovery.tasks,
            *self._lag.tasks,
            *self._depths.tasks,
            *(task for consumer in self.consumers for task in consumer.tasks),
        ]
        failure = await self._failures.first_of(parts)
        raise NsqdigestError(str(failure)) from failure.error

    async def drain(self) -> None:
        self.status.is_draining = True
        now_s = time.monotonic()
        until_s = now_s + self._config.nsq.drain_timeout_ms / 1000
        _log.info("daemon.draining", timeout_s=self._config.nsq.drain_timeout_ms / 1000)
        await self.discovery.stop()
        await _all_of(
            *(consumer.drain(until_s) for consumer in self.consumers),
            self.scheduler.drain(max(until_s, now_s + SINKS_DRAIN_S)),
        )
        await self._close()
        _log.info("daemon.stopped")

    async def stop(self) -> None:
        """Without waiting: what nsqd handed over and is not stored goes back, what is being delivered is cut off."""
        self.status.is_draining = True
        await self.discovery.stop()
        await _all_of(*(consumer.stop() for consumer in self.consumers))
        await self.scheduler.drain(time.monotonic())
        await self._close()
        _log.info("daemon.stopped", at_once=True)

    async def _close(self) -> None:
        await self._lag.stop()
        await self._depths.stop()
        await self._publisher.close()
        for post in self._posts.values():
            await post.sink.close()
        await self._store_watch.stop()
        await self.store.close(STORE_ENDS_WITHIN_S)
        if self._admin is not None:
            await self._admin.stop()

    # -- the operator's word

    def names_of(self, kind: Kind) -> list[str]:
        return {
            "topic": [consumer.topic for consumer in self.consumers],
            "route": [route.name for route in self._config.routes],
            "sink": list(dict.fromkeys(route.sink for route in self._config.routes)),
        }[kind]

    def pause(self, kind: Kind, name: str) -> bool:
        self.status.paused_since_s.setdefault((kind, name), time.time())
        scheduler = self.scheduler
        words = {"topic": self._pause_topic, "route": scheduler.pause_route, "sink": scheduler.pause_sink}
        return self._carry_out("daemon.operator.paused", words[kind], kind, name)

    def resume(self, kind: Kind, name: str) -> bool:
        self.status.paused_since_s.pop((kind, name), None)
        scheduler = self.scheduler
        words = {"topic": self._resume_topic, "route": scheduler.resume_route, "sink": scheduler.resume_sink}
        return self._carry_out("daemon.operator.resumed", words[kind], kind, name)

    def _carry_out(self, said_as: str, word: Callable[[str], bool], kind: Kind, name: str) -> bool:
        is_new = word(name)
        if is_new:
            _log.info(said_as, kind=kind, name=name)
        return is_new

    def _pause_topic(self, topic: str) -> bool:
        return self._consumer_of(topic).pause()

    def _resume_topic(self, topic: str) -> bool:
        return self._consumer_of(topic).resume()

    def _consumer_of(self, topic: str) -> Consumer:
        return next(consumer for consumer in self.consumers if consumer.topic == topic)

    # -- health

    def refuse_reload(self) -> None:
        """HUP by itself would kill the daemon without a drain."""
        _log.warning(
            "daemon.reload.unavailable", hint="this version does not reload: stop it with TERM and start it anew"
        )


async def run(config: Config) -> None:
    """Until TERM or INT: drains; a second one ends at once."""
    asked_to_end, asked_again = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (asked_again if asked_to_end.is_set() else asked_to_end).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    daemon = Daemon(config)
    loop.add_signal_handler(signal.SIGHUP, daemon.refuse_reload)
    loop.add_signal_handler(signal.SIGUSR2, daemon.status.log_state)
    try:
        if await _unless(asked_to_end, daemon.start()):
            await _unless(asked_to_end, daemon.watch())
        if not await _unless(asked_again, daemon.drain()):
            await daemon.stop()
    except BaseException:
        await daemon.stop()
        raise
    finally:
        # With the loop its handlers go: from then until the process has ended a signal would decide the exit code.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


async def _all_of(*works: Coroutine[Any, Any, None]) -> None:
    """Until all have ended: one that raises does not leave the others half done. Then the first exception is raised."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if outcome is not None:
            raise outcome


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Does the work, unless the event comes first: then the work is cancelled. Returns whether it was done."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
