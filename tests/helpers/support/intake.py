"""A daemon in this process, in front of a stage's real nsqd and Redis: for what a test does to its parts by hand."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from nsqdigest.config import Config, load
from nsqdigest.consumer import Consumer
from nsqdigest.daemon.life import Daemon
from nsqdigest.delivery.sinks.table import KINDS
from support.stage import CHANNEL, TOPIC, Stage


def config_of(stage: Stage, settings: Mapping[str, Mapping[str, Any]] | None = None) -> Config:
    process = stage.daemon(settings)
    process.start()  # writes the file and shows that it is right
    process.stop()
    return load(process.config_path, {}, KINDS)


@asynccontextmanager
async def running(config: Config) -> AsyncIterator[Daemon]:
    """The body ends it, or it is stopped. Whatever the loop has to complain about meanwhile is an error."""
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    threshold = gc.get_threshold()
    daemon = Daemon(config)
    try:
        await daemon.start()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        yield daemon
    finally:
        await daemon.stop()
        gc.unfreeze()
        gc.set_threshold(*threshold)
    gc.collect()  # a task whose exception nobody retrieved complains when it goes
    await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert complaints == []


def consumer_of(daemon: Daemon) -> Consumer:
    (consumer,) = daemon.parts.consumers
    return consumer


def in_flight_here(consumer: Consumer) -> int:
    return sum(connection.in_flight for connection in consumer.connections)


def left_at_nsqd(stage: Stage) -> tuple[int, int]:
    """In flight, and waiting or delayed."""
    (nsqd,) = stage.nsqds
    stats = nsqd.channel_stats(TOPIC, CHANNEL)
    return stats["in_flight_count"], stats["depth"] + stats["deferred_count"]
