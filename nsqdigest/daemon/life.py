"""The life of a daemon: start, watch, drain or stop, each in the one order that loses nothing.

Start: the admin server (so that `/readyz` answers while the rest waits), the store (waited for, as long as it takes),
the scheduler, the consumers, discovery (whose answers give the consumers their nsqds). Drain: discovery, then side by
side the consumers (nothing new comes in, what is stored is finished, the rest goes back to nsqd) and the scheduler
(deliveries under way end), then publisher and sinks, the store and the admin server. All of it shares one budget,
`nsq.drain_timeout`, of which the last part (`STORE_ENDS_WITHIN_S`) is for what comes after consumers and scheduler.

Invariants:
- `stop` may be called at any moment, also after a `drain` that was cancelled: what was given back stays given back.
- A part that fails ends the daemon, and ends it in this same order, so that nsqd gets its messages back at once.
- `parts` is of the configuration in force: a reload (`reload`) puts another one in its place. Nothing but what a reload
  leaves as it is may be held on to.

Comes from `signals` (and the demo); the parts come from `parts`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from collections.abc import Iterator

from nsqdigest import __version__
from nsqdigest.admin.guard import Tokens
from nsqdigest.admin.operator import OperatorApi
from nsqdigest.admin.reading import ReadingApi
from nsqdigest.admin.server import AdminServer, url_of
from nsqdigest.backoff import PROBE_MESSAGE_WITHIN_S, longest_recovery_s, retry_wait_ms
from nsqdigest.base import log, tasks
from nsqdigest.base.errors import NsqdigestError, StoreError
from nsqdigest.base.words import counted
from nsqdigest.config import Config, tls_files
from nsqdigest.consumer import Consumer, most_held_bytes
from nsqdigest.daemon.browsing import Browser
from nsqdigest.daemon.changes import Changes, compare
from nsqdigest.daemon.labels import known_labels
from nsqdigest.daemon.operator import Operator
from nsqdigest.daemon.parts import Parts, Uniform, build, curve_of, rebuild, sink_files_of
from nsqdigest.daemon.registry import Registry
from nsqdigest.daemon.reload import NeedsRestart, Reloads, reader_of
from nsqdigest.daemon.status import Status, config_hash
from nsqdigest.daemon.succession import Replaced, all_of, take_over
from nsqdigest.daemon.summary import Summary
from nsqdigest.daemon.systemd import Notifier
from nsqdigest.daemon.view import View
from nsqdigest.delivery.sinks.kind import SinkKinds
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.nsq.held_frames import MOST_BYTES as HELD_FRAMES_BYTES
from nsqdigest.nsq.publisher import Bounds
from nsqdigest.store.servers.facts import StoreFacts

STORE_RETRY_FIRST_MS = 250
STORE_RETRY_CAP_MS = 10_000
SINKS_DRAIN_S = 2.0
"""Deliveries get at least so long, however short the drain: their digests are safe in Redis, but would go out late."""
DRAIN_LOGGED_EVERY_S = 2.0
TURN_WITHIN_S = 60.0
"""A timer waits for Redis within a turn: no longer than a lease, and than a few time-outs of one call."""
STORE_ENDS_WITHIN_S = 1.0
"""The end of a drain that is kept for the goodbye and for calls to Redis without an answer yet: at most so long."""
STORE_ENDS_SHARE = 0.2
"""And at most this share of the drain."""
AT_ONCE_S = 0.2
"""The same for an end that waits for nothing."""
GC_YOUNG_OBJECTS = 20_000

_log = log.get("daemon")


class Daemon:
    """`start` first; then `watch` until it has to end; then `drain`, or `stop`."""

    def __init__(self, config: Config, kinds: SinkKinds = KINDS, *, uniform: Uniform = random.uniform) -> None:
        """`kinds`: those that the configuration was read with."""
        self._kinds = kinds
        self._uniform = uniform
        self._failures = tasks.Failures()
        self.parts = build(config, kinds, uniform)
        self._replaced = Replaced()
        self._other_parts = asyncio.Event()
        """Set when `parts` is another one."""
        self._is_started = False
        self.reloads = Reloads(self, self.parts.metrics, reader_of(config, kinds))
        self.operator = Operator(self.parts)
        self.status = Status(self.parts, self.operator.paused_since_s, self.reloads)
        self.registry = Registry(
            lambda: self.parts.store.namespace,
            lambda: config_hash(self.config),
            lambda: self.parts.policy_changes.marks,
            uniform,
        )
        self.view = View(
            lambda: self.parts,
            self.status,
            self.operator.paused_since_s,
            self.registry,
            lambda: self.reloads.reloaded_at_s,
        )
        self._summary = Summary(self.parts.metrics, lambda: self.parts.store_watch.figures)
        self._systemd = Notifier(self.status.line, self._makes_progress)
        self._drain_log = tasks.Tasks()
        self._admin: AdminServer | None = None
        if config.admin.listen is not None:
            reads = ReadingApi(self.view, Browser(lambda: self.parts, self.status)).routes()
            api = [*reads, *OperatorApi(self.operator).routes()]
            self._admin = AdminServer(
                config.admin.listen,
                self.parts.metrics,
                self.status.checks,
                api,
                lambda: Tokens(self.config.admin.token, self.config.admin.read_token),
            )

    @property
    def config(self) -> Config:
        """The one in force."""
        return self.parts.config

    @property
    def is_draining(self) -> bool:
        return self.status.is_draining

    # -- start

    async def start(self) -> None:
        """Returns once everything runs. Raises ConfigError or StoreMismatch where the file, or the data in Redis,
        forbids it."""
        self._failures.listen()
        self._systemd.start()
        if self._admin is not None:
            await self._admin.start()
        self.reloads.start()
        facts = await self._wait_for_store()
        self._is_started = True
        parts = self.parts
        parts.store_watch.start(facts.servers)
        self.status.why_store_waits = ""
        parts.scheduler.start()
        for consumer in parts.consumers:
            consumer.start()
        parts.discovery.start()
        parts.lag.start()
        parts.depths.start()
        self._summary.start()
        self.view.start()
        self.registry.start()
        parts.policy_changes.start(self.registry.id)
        tune_garbage_collection()
        listen = self.config.admin.listen
        _log.info(
            "daemon.started",
            version=__version__, config=self.config.source, topics=[consumer.topic for consumer in parts.consumers],
            routes=len(self.config.routes), sinks=list(parts.outlets),
            ready=url_of(listen, "/readyz?verbose") if listen else "admin.listen is off",
            longest_recovery_s=_longest_recovery_s(self.config), intake_at_most_mib=_intake_at_most_mib(parts),
        )  # fmt: skip
        self._systemd.ready()

    async def _wait_for_store(self) -> StoreFacts:
        """A reload meanwhile begins it anew, with the other file's Redis."""
        attempts = 0
        while True:
            parts, redis = self.parts, self.config.redis.shown_url
            self._other_parts.clear()
            try:
                facts = await parts.store.start()
                if parts is not self.parts:
                    continue
            except NsqdigestError as error:
                if parts is not self.parts:
                    continue
                if not isinstance(error, StoreError):
                    raise
                attempts += 1
                self.status.why_store_waits = f"not usable yet: {error}"
                wait_ms = retry_wait_ms(attempts, STORE_RETRY_FIRST_MS, STORE_RETRY_CAP_MS, self._uniform)
                _log.warning(
                    "daemon.store.waiting", redis=redis, reason=error.reason, error=error, again_s=wait_ms / 1000
                )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_ms / 1000):
                        await self._other_parts.wait()
                continue
            partitions = self.parts.store.namespace.partitions
            _log.info("daemon.store.ready", redis=redis, version=facts.version, partitions=partitions)
            for warning in facts.warnings:
                _log.warning("daemon.store.advice", advice=warning)
            return facts

    # -- watch

    async def watch(self) -> None:
        """Raises when a part of the daemon ends by itself: a restart is better than a daemon that only looks alive."""
        failure = await self._failures.first_of(self._watched, self._other_parts)
        raise NsqdigestError(str(failure)) from failure.error

    def _watched(self) -> Iterator[asyncio.Task[None]]:
        parts = self.parts
        yield from parts.store_watch.tasks
        yield from parts.scheduler.tasks
        yield from parts.discovery.tasks
        yield from parts.lag.tasks
        yield from parts.depths.tasks
        yield from self._summary.tasks
        yield from self.view.tasks
        yield from self.registry.tasks
        yield from self._systemd.tasks
        yield from self.reloads.tasks
        for consumer in parts.consumers:
            yield from consumer.tasks

    def _makes_progress(self) -> bool:
        """Whether delivery's timers turn, as long as they should; that the event loop does, shows in being asked."""
        within_s = max(TURN_WITHIN_S, self.config.scheduler.lease_ms / 1000)
        return self.status.is_draining or time.monotonic() - self.parts.scheduler.turned_s <= within_s

    # -- reload: `reload.Reloaded`

    def changes_to(self, config: Config) -> Changes:
        before, had = self.config, self.parts.sink_files
        changes = compare(
            before,
            config,
            self._kinds,
            new_tls_files=tls_files.fingerprint(config.nsq.tls) != self.parts.tls_files,
            sinks_with_new_files=[
                name for name, files in sink_files_of(config, self._kinds).items() if had.get(name) != files
            ],
        )
        # Until Redis has answered nothing of it is in use, so that a wrong URL can be mended.
        fixed = [each for each in changes.need_restart if self._is_started or not each.path.startswith("redis.")]
        if fixed:
            raise NeedsRestart(fixed)
        return changes

    def prepare(self, config: Config, changes: Changes) -> Parts:
        if self._is_started:
            return rebuild(self.parts, config, changes, self._kinds)
        return build(config, self._kinds, self._uniform, self.parts.metrics)

    def take(self, parts: Parts) -> Parts:
        before = self.parts
        if self._is_started:
            self._replaced.note(before, parts)
        self.parts = parts
        self._other_parts.set()
        if self._is_started:
            take_over(before, parts, self.operator.paused_since_s)
            self.registry.tell()
        else:
            parts.metrics.know(known_labels(parts.config))
        self.operator.take(parts)
        self.status.take(parts)
        return before

    async def end_replaced(self, before: Parts) -> None:
        if before.store is self.parts.store:
            await self._replaced.end_replaced(before, self.parts)
            self._other_parts.set()  # there are other tasks by now
        else:  # nothing but its store was in use
            await before.store.close(0)

    def reloading(self) -> None:
        if self._is_started:
            self._systemd.reloading()

    def ready(self) -> None:
        if self._is_started:
            self._systemd.ready()

    # -- drain or stop

    async def drain(self) -> None:
        """Finishes what is stored, gives the rest back to nsqd, lets deliveries end; within `nsq.drain_timeout`."""
        self.status.is_draining = True
        now_s = time.monotonic()
        timeout_s = self.config.nsq.drain_timeout_ms / 1000
        until_s = now_s + timeout_s
        kept_s = min(STORE_ENDS_WITHIN_S, timeout_s * STORE_ENDS_SHARE)
        over_s = max(until_s, now_s + SINKS_DRAIN_S)
        _log.info("daemon.draining", timeout_s=timeout_s, waits_for=self._under_way())
        self._systemd.stopping("drains")
        self._drain_log.start(self._log_drain(until_s), "log of the drain")
        await self.reloads.stop()
        await self.parts.discovery.stop()
        await all_of(
            *(consumer.drain(until_s - kept_s) for consumer in self._consumers),
            self.parts.scheduler.drain(over_s - kept_s),
        )
        await self._close(over_s)
        _log.info("daemon.stopped")

    @property
    def _consumers(self) -> list[Consumer]:
        """Also those that a reload ends just now."""
        return [*self.parts.consumers, *self._replaced.consumers]

    async def _log_drain(self, until_s: float) -> None:
        while True:
            await asyncio.sleep(DRAIN_LOGGED_EVERY_S)
            left_s = round(max(0.0, until_s - time.monotonic()), 1)
            _log.info("daemon.draining.waits", left_s=left_s, waits_for=self._under_way())

    def _under_way(self) -> str:
        in_flight = sum(consumer.in_flight for consumer in self._consumers)
        sending = sum(outlet.sending for outlet in self.parts.outlets.values())
        return f"{counted(in_flight, 'event')} in flight, {counted(sending, 'digest')} being sent"

    async def stop(self) -> None:
        """Waits for nothing: every message that is not stored goes back to nsqd, deliveries are cut off."""
        self.status.is_draining = True
        self._systemd.stopping("stops at once")
        await self.reloads.stop()
        await self.parts.discovery.stop()
        await all_of(*(consumer.stop() for consumer in self._consumers))
        await self.parts.scheduler.drain(time.monotonic())
        await self._close(time.monotonic() + AT_ONCE_S)
        _log.info("daemon.stopped", at_once=True)

    async def _close(self, until_s: float) -> None:
        """Ends the parts that no event needs any longer. Nothing here waits for a server beyond `until_s`."""
        parts = self.parts
        await self._drain_log.stop()
        await self._summary.stop()
        await self.view.stop()
        await self._systemd.stop()
        await self._replaced.end()
        await parts.policy_changes.stop()
        await parts.lag.stop()
        await parts.depths.stop()
        await parts.store_watch.stop()
        says_goodbye = not self.status.why_store_fails()  # a store that does not answer would take all of the time
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(AT_ONCE_S, until_s - time.monotonic())):
                await all_of(
                    self.registry.stop(says_goodbye=says_goodbye),
                    parts.publisher.close(),
                    *(outlet.sink.close() for outlet in parts.outlets.values()),
                )
        await parts.store.close(max(0.0, until_s - time.monotonic()))
        if self._admin is not None:
            await self._admin.stop()


def tune_garbage_collection() -> None:
    """Two settings for a process that builds everything first and then runs for months.

    Whatever exists after the start lives as long as the daemon: frozen, it is never looked at again. And intake makes
    hundreds of short-lived lists a batch, none of them in a cycle: with Python's default threshold the collector would
    look through them several times a batch and find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)


def _intake_at_most_mib(parts: Parts) -> int:
    """The most memory that intake holds: bodies of each topic, frames that are not complete, and dead letters that nsqd
    has not acknowledged yet."""
    topic_bytes = most_held_bytes(parts.config.nsq, parts.config.limits.event_bytes)
    return (len(parts.consumers) * topic_bytes + HELD_FRAMES_BYTES + Bounds().size_bytes) >> 20


def _longest_recovery_s(config: Config) -> float:
    """The longest time from the first answer of the store until all of max_in_flight is allowed."""
    answer_s = PROBE_MESSAGE_WITHIN_S + config.redis.timeout_ms / 1000
    limit, slow_start = config.nsq.max_in_flight, config.backoff.slow_start
    return round(longest_recovery_s(curve_of(config.backoff), limit, answer_s, slow_start=slow_start), 1)
