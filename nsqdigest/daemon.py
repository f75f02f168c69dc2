"""Builds the parts from one configuration, starts them in order, drains them in order.

Start: admin (so that readiness can be asked while the rest waits), the store (waited for, as long as it takes), the
scheduler, the consumers. Drain: consumers (nothing new comes in, what is stored is finished, the rest goes back to
nsqd) and scheduler (what is being delivered ends) side by side, then publisher, sinks, store and admin. A second signal
skips the waiting.
"""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

from nsqdigest import __version__, log
from nsqdigest.admin.server import AdminServer, Check
from nsqdigest.backoff import Controller, Curve
from nsqdigest.commits import UNDER_WAY, FiledRoute
from nsqdigest.config import Config, LogSink, Route, WebhookSink
from nsqdigest.config import Sink as SinkSettings
from nsqdigest.consumer import Consumer
from nsqdigest.courier import ScheduledRoute, SinkPost
from nsqdigest.dead_letters import DeadLetters
from nsqdigest.delivery import retry_wait_ms
from nsqdigest.errors import NsqdigestError, StoreError
from nsqdigest.events import EventLimits, EventRoute, Router
from nsqdigest.metrics import Metrics
from nsqdigest.policy import Plan
from nsqdigest.scheduler import Scheduler
from nsqdigest.sinks.base import Sink
from nsqdigest.sinks.log import LogFile
from nsqdigest.sinks.webhook import Webhook
from nsqdigest.timelines import RoutePlan, ServerFacts, Timelines
from nsqdigest.transport.connection import ConnectionOptions
from nsqdigest.transport.publisher import Publisher

_log = log.get("daemon")

SINKS_DRAIN_S = 2.0
"""What deliveries get however short the drain: their digests are safe in Redis either way, but would go out late."""


STORE_ENDS_WITHIN_S = 1.0
"""What calls that were sent and not answered get before the connections close under them."""


def build_sink(settings: SinkSettings) -> Sink:
    if isinstance(settings, WebhookSink):
        return Webhook(settings)
    assert isinstance(settings, LogSink)
    return LogFile(settings)


class Daemon:
    def __init__(self, config: Config, *, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._config = config
        self.metrics = Metrics()
        plans = {name: Plan(policy) for name, policy in config.policies.items()}
        curve = Curve(config.backoff.base_ms / 1000, config.backoff.max_duration_ms / 1000, config.backoff.jitter)
        topics = list(dict.fromkeys(route.topic for route in config.routes))
        self.store = Timelines(
            config.redis,
            [self._route_plan(route) for route in config.routes],
            config.limits.timelines,
            # One for all that may ask at once, so that nobody waits for a connection.
            connections=sum(sink.concurrency for sink in config.sinks.values()) + len(topics) * UNDER_WAY + 2,
        )
        posts = {
            name: SinkPost(settings, build_sink(settings), Controller(settings.concurrency, curve, uniform))
            for name, settings in config.sinks.items()
        }
        self._posts = posts
        self.scheduler = Scheduler(
            config.scheduler,
            {route.name: ScheduledRoute(route, plans[route.policy], posts[route.sink]) for route in config.routes},
            self.store,
            self.metrics,
            uniform,
        )
        self._publisher = Publisher(ConnectionOptions(heartbeat_interval_ms=config.nsq.heartbeat_interval_ms))
        dead_letters = DeadLetters(self._publisher, config.nsq.dead_letter_topic, config.nsq.channel)
        limits = EventLimits(
            config.limits.event_bytes,
            config.limits.key_bytes,
            config.limits.depth,
            config.limits.future_ms,
            config.limits.past_ms,
        )
        self.consumers: list[Consumer] = []
        for topic in topics:
            routes = {number: route for number, route in enumerate(config.routes) if route.topic == topic}
            router = Router(
                [EventRoute(number, r.name, r.match, r.timeline, r.key, r.timestamp) for number, r in routes.items()],
                limits,
            )
            self.consumers.append(
                Consumer(
                    topic,
                    config.nsq,
                    router=router,
                    routes={number: FiledRoute(route.name, plans[route.policy]) for number, route in routes.items()},
                    store=self.store,
                    dead_letters=dead_letters,
                    controller=Controller(config.nsq.max_in_flight, curve, uniform),
                    metrics=self.metrics,
                    uniform=uniform,
                    on_due=self.scheduler.poke,
                )
            )
        self._admin = AdminServer(config.admin.listen, self.metrics, self.checks) if config.admin.listen else None
        self._uniform = uniform
        self._store_is_ready = False
        self._is_draining = False

    def _route_plan(self, route: Route) -> RoutePlan:
        policy = self._config.policies[route.policy]
        return RoutePlan(route.name, policy.capacity, policy.increment_delay_ms, policy.dedupe_window_ms)

    # -- life

    async def start(self) -> None:
        """Returns once everything runs. Raises where the file or the data in Redis says that it must not."""
        if self._admin is not None:
            await self._admin.start()
        await self._wait_for_store()
        self.scheduler.start()
        for consumer in self.consumers:
            consumer.start()
        # What was built so far lives as long as the daemon: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        # And the hot loop makes hundreds of short-lived lists a batch, none of them in a cycle.
        gc.set_threshold(20_000)
        _log.info(
            "daemon.started",
            version=__version__, config=self._config.source, topics=[consumer.topic for consumer in self.consumers],
            admin=str(self._config.admin.listen) if self._config.admin.listen else "off",
        )  # fmt: skip

    async def _wait_for_store(self) -> None:
        attempts = 0
        facts: ServerFacts | None = None
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
            partitions=self.store.partitions,
        )
        for warning in facts.warnings():
            _log.warning("daemon.store.advice", advice=warning)
        self._store_is_ready = True

    async def watch(self) -> None:
        """Raises when a part of the daemon ends by itself: better a restart than a daemon that looks alive."""
        parts = [*self.scheduler.tasks, *(task for consumer in self.consumers for task in consumer.tasks)]
        ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in ended:
            raise NsqdigestError(f"a part of the daemon ended: {part.get_name()}") from part.exception()

    async def drain(self) -> None:
        self._is_draining = True
        now_s = time.monotonic()
        until_s = now_s + self._config.nsq.drain_timeout_ms / 1000
        _log.info("daemon.draining", timeout_s=self._config.nsq.drain_timeout_ms / 1000)
        await asyncio.gather(
            *(consumer.drain(until_s) for consumer in self.consumers),
            self.scheduler.drain(max(until_s, now_s + SINKS_DRAIN_S)),
        )
        await self._close()
        _log.info("daemon.stopped")

    async def stop(self) -> None:
        """Without waiting: what nsqd handed over and is not stored goes back, what is being delivered is cut off."""
        self._is_draining = True
        await asyncio.gather(*(consumer.stop() for consumer in self.consumers))
        await self.scheduler.drain(time.monotonic())
        await self._close()
        _log.info("daemon.stopped", at_once=True)

    async def _close(self) -> None:
        await self._publisher.close()
        for post in self._posts.values():
            await post.sink.close()
        await self.store.close(STORE_ENDS_WITHIN_S)
        if self._admin is not None:
            await self._admin.stop()

    # -- health

    def refuse_reload(self) -> None:
        """HUP by itself would kill the daemon without a drain."""
        _log.warning(
            "daemon.reload.unavailable", hint="this version does not reload: stop it with TERM and start it anew"
        )

    def log_state(self) -> None:
        for check in self.checks():
            _log.info("daemon.state", check=check.name, well=check.is_well, detail=check.detail)
        for consumer in self.consumers:
            for connection in consumer.connections:
                _log.info(
                    "daemon.state.connection",
                    topic=consumer.topic,
                    nsqd=str(connection.address),
                    rdy=connection.rdy,
                    in_flight=connection.in_flight,
                )

    def checks(self) -> list[Check]:
        checks = [Check("running", not self._is_draining, "draining" if self._is_draining else "yes")]
        failing_s = self.scheduler.failing_since_s
        if not self._store_is_ready:
            checks.append(Check("store", False, "not reached yet"))
        elif failing_s is not None:
            checks.append(Check("store", False, f"failing for {time.monotonic() - failing_s:.1f} s"))
        else:
            checks.append(Check("store", True, "answers"))
        for consumer in self.consumers:
            connected = consumer.connected
            checks.append(
                Check(
                    f"topic {consumer.topic}",
                    connected > 0,
                    f"{connected} of {len(consumer.addresses)} nsqd connected, {consumer.decision.state}",
                )
            )
        return checks


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
    loop.add_signal_handler(signal.SIGUSR2, daemon.log_state)
    try:
        if await _unless(asked_to_end, daemon.start()):
            await _unless(asked_to_end, daemon.watch())
        if not await _unless(asked_again, daemon.drain()):
            await daemon.stop()
    except BaseException:
        await daemon.stop()
        raise


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Does the work, unless the event comes first: then the work is cancelled. Answers whether it was done."""
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
