"""The parts of another configuration take the place of those in force.

Everything that may fail was done when they were built. What is left are assignments, in one turn of the event loop: no
batch, no claim and no request comes in between. Invariants:

- A part that both have goes on: its connections, its backoff, its history and its pauses stay.
- First the store knows the routes, then delivery has them, then intake: no record is filed that nobody could deliver.
- What ends is given to `Replaced` before anything changes, so that a daemon that ends at any point ends that, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any

from nsqdigest.base import log, tasks
from nsqdigest.daemon.labels import known_labels
from nsqdigest.daemon.parts import curve_of, looks_every_s, store_connections, store_routes, wakes_of

if TYPE_CHECKING:
    from nsqdigest.consumer import Consumer
    from nsqdigest.daemon.parts import Parts

BATCHES_STORED_WITHIN_S = 60.0
"""A policy's change reaches timelines that wait when batches of before are stored, or after so long."""

Paused = Collection[tuple[str, str]]
"""By kind and name, what an operator paused."""


def take_over(before: Parts, after: Parts, paused: Paused) -> None:
    config, now_s = after.config, time.monotonic()
    after.metrics.know(known_labels(config))
    after.store.change(
        store_routes(config, after.plans),
        config.limits.timelines,
        dead_digests=config.limits.dead_digests,
        connections=store_connections(config),
    )
    _deliver(before, after, paused, now_s)
    after.dead_letters.topic = config.nsq.dead_letter_topic
    _take_in(before, after, paused)
    after.store_watch.every_s = looks_every_s(config)
    after.store_is_back.wakes = wakes_of(after)
    if config.log != before.config.log:
        log.change(config.log.level, config.log.format)


def _deliver(before: Parts, after: Parts, paused: Paused, now_s: float) -> None:
    config = after.config
    for name, outlet in after.outlets.items():
        was = before.outlets.get(name)
        if was is outlet:
            outlet.controller.change(
                outlet.most_senders, curve_of(config.backoff), now_s, slow_start=config.backoff.slow_start
            )
            if outlet.is_stopped:
                outlet.history.freed()
            continue
        if was is not None:
            outlet.follow(was)
        if ("sink", name) in paused:
            outlet.controller.pause(now_s)
    leaving = [outlet for name, outlet in before.outlets.items() if after.outlets.get(name) is not outlet]
    after.scheduler.change(config.scheduler, after.routes, leaving)


def _take_in(before: Parts, after: Parts, paused: Paused) -> None:
    config = after.config
    asked = {str(lookupd.address) for lookupd in after.discovery.lookupds}
    gone = [str(each.address) for each in before.discovery.lookupds if str(each.address) not in asked]
    for consumer in after.consumers:
        if consumer in before.consumers:
            consumer.change(
                config.nsq,
                config.limits,
                after.lines[consumer.topic],
                curve_of(config.backoff),
                slow_start=config.backoff.slow_start,
                gone=gone,
            )
        elif ("topic", consumer.topic) in paused:
            consumer.pause()


class Replaced:
    """Parts that a reload replaced, until they have ended; what waits for that begins then."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        """Those that end."""
        self._ends: list[Callable[[], Awaitable[None]]] = []
        """Of other parts. Each may be called twice."""

    def note(self, before: Parts, after: Parts) -> None:
        """To be called before `take_over`."""
        self.consumers += [consumer for consumer in before.consumers if consumer not in after.consumers]
        if before.discovery is not after.discovery:
            self._ends += [before.discovery.stop, before.depths.stop]
        self._ends.append(before.policy_changes.stop)
        if before.publisher is not after.publisher:
            self._ends.append(before.publisher.close)

    async def end_replaced(self, before: Parts, after: Parts) -> None:
        """Returns when all of it has ended but for the sinks, which the scheduler ends. It may be cancelled anywhere:
        what has not ended by then is still here."""
        if before.discovery is not after.discovery:
            await before.discovery.stop()
            after.discovery.start()
            await before.depths.stop()
            after.depths.start()
        await before.policy_changes.stop()
        successors = {each.topic: each for each in after.consumers if each not in before.consumers}
        for topic in successors.keys() - {each.topic for each in self.consumers}:
            successors[topic].start()
        until_s = time.monotonic() + before.config.nsq.drain_timeout_ms / 1000
        works = (self._follow(each, successors.get(each.topic), until_s) for each in list(self.consumers))
        await all_of(*works)
        await _until_stored(after)
        after.policy_changes.start(before.policy_changes.daemon_id)
        await self.end()
        after.metrics.know(known_labels(after.config))  # what ended may have set its gauges once more

    async def _follow(self, consumer: Consumer, successor: Consumer | None, until_s: float) -> None:
        """Only then its successor begins: no more than max_in_flight messages of a topic are worked on."""
        await consumer.drain(until_s)
        self.consumers.remove(consumer)
        if successor is not None:
            successor.start()

    async def end(self) -> None:
        """But for the consumers."""
        while self._ends:
            await self._ends[-1]()
            self._ends.pop()


async def _until_stored(parts: Parts) -> None:
    lines, consumers = parts.lines, parts.consumers
    await tasks.until(
        lambda: not any(each.uses_other_than(lines[each.topic]) for each in consumers), BATCHES_STORED_WITHIN_S
    )


async def all_of(*works: Coroutine[Any, Any, None]) -> None:
    """Until all have ended: one that raises does not leave the others half done. Then the first exception is raised."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if outcome is not None:
            raise outcome
