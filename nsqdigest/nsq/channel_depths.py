"""How many messages wait in nsqd for our channel, by its `/stats`, for a gauge.

It asks the nsqds that a nsqlookupd names, since only that answer has their HTTP addresses (`lookups`). Where one of
them does not answer, the depth is unknown: a sum without it would be too small.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from nsqdigest.base import log, tasks
from nsqdigest.base.errors import LookupFailed
from nsqdigest.base.reasons import LookupProblem
from nsqdigest.nsq.lookups import get, open_session

if TYPE_CHECKING:
    import aiohttp

    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Address
    from nsqdigest.nsq.lookups import Discovery

EVERY_S = 15.0
_CONCURRENT_REQUESTS = 8

_log = log.get("discovery")


class _Channel(msgspec.Struct):
    channel_name: str
    depth: int


class _Topic(msgspec.Struct):
    topic_name: str
    depth: int
    channels: list[_Channel]


class _Stats(msgspec.Struct):
    topics: list[_Topic]


def read_depth(status: int, body: bytes, topic: str, channel: str) -> int:
    """Messages in the channel, and in the topic before they reach it. Raises LookupFailed where the answer has none."""
    if status != 200:
        raise LookupFailed(LookupProblem.STATUS, f"status {status}")
    try:
        stats = msgspec.json.decode(body, type=_Stats)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise LookupFailed(LookupProblem.GARBAGE, f"not the stats of an nsqd: {error}") from None
    return sum(
        of.depth + sum(each.depth for each in of.channels if each.channel_name == channel)
        for of in stats.topics
        if of.topic_name == topic
    )


class Depths:
    """From `start` to `stop`. Without a nsqlookupd it does nothing."""

    def __init__(
        self, discovery: Discovery, topics: Iterable[str], channel: str, metrics: Metrics, every_s: float = EVERY_S
    ) -> None:
        self._discovery = discovery
        self._topics = list(topics)
        self._channel = channel
        self._metrics = metrics
        self._every_s = every_s
        self._slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)
        self.tasks = tasks.Tasks()

    def start(self) -> None:
        if self._discovery.lookupds:
            self.tasks.start(self._run(), "depths of channels")

    async def stop(self) -> None:
        await self.tasks.stop()

    async def _run(self) -> None:
        async with open_session() as session:
            while True:
                for topic in self._topics:
                    await self._look(session, topic)
                await asyncio.sleep(self._every_s)

    async def _look(self, session: aiohttp.ClientSession, topic: str) -> None:
        nsqds = self._discovery.http_addresses_of(topic)
        try:
            depths = await asyncio.gather(*(self._depth_at(session, nsqd, topic) for nsqd in nsqds))
        except LookupFailed as failure:
            _log.debug("discovery.depth.unknown", topic=topic, reason=failure.reason, error=failure)
            depths = []
        if depths:
            self._metrics.set("channel_depth", sum(depths), topic=topic)
        else:
            self._metrics.clear("channel_depth", topic=topic)

    async def _depth_at(self, session: aiohttp.ClientSession, nsqd: Address, topic: str) -> int:
        # Without `channel`: where the channel does not exist yet, nsqd would leave out its topic, too.
        asked = {"format": "json", "topic": topic, "include_clients": "false"}
        async with self._slots:
            return read_depth(*await get(session, nsqd, "/stats", asked), topic, self._channel)
