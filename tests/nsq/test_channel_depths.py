"""How many messages wait in nsqd for our channel, as a gauge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from nsqdigest.base.errors import LookupFailed
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address
from nsqdigest.nsq.channel_depths import Depths, read_depth
from support.servers import Nsqd
from support.waiting import until

pytestmark = pytest.mark.integration

TOPIC, CHANNEL = "events", "nsqdigest"


class Named:
    """Discovery, as far as depths need it."""

    lookupds = ("one",)

    def __init__(self) -> None:
        self.http: set[Address] = set()

    def http_addresses_of(self, topic: str) -> set[Address]:
        return self.http


@pytest.fixture
async def depths() -> AsyncIterator[tuple[Named, Metrics]]:
    named, metrics = Named(), Metrics()
    depths = Depths(named, [TOPIC], CHANNEL, metrics, every_s=0.05)  # type: ignore[arg-type]
    depths.start()
    yield named, metrics
    await depths.stop()


async def until_depth(metrics: Metrics, depth: float | None) -> None:
    await until(lambda: metrics.value("channel_depth", topic=TOPIC) == depth, 10, f"a depth of {depth}")


async def test_it_is_the_sum_over_all_nsqds_and_unknown_while_one_is_silent(
    depths: tuple[Named, Metrics], nsqd_factory: Callable[..., Nsqd]
) -> None:
    named, metrics = depths
    await until_depth(metrics, None)
    first, second = nsqd_factory(), nsqd_factory()
    for nsqd, count in ((first, 3), (second, 4)):
        nsqd.create_channel(TOPIC, CHANNEL)
        for _ in range(count):
            await asyncio.to_thread(nsqd.publish, TOPIC, b"x")
    named.http = {Address(*nsqd.http_address) for nsqd in (first, second)}
    await until_depth(metrics, 7)
    second.kill()
    await until_depth(metrics, None)
    named.http = {Address(*first.http_address)}
    await until_depth(metrics, 3)


async def test_what_waits_in_the_topic_for_its_channel_counts(
    depths: tuple[Named, Metrics], nsqd_factory: Callable[..., Nsqd]
) -> None:
    named, metrics = depths
    nsqd = nsqd_factory()
    await asyncio.to_thread(nsqd.publish, TOPIC, b"x")
    named.http = {Address(*nsqd.http_address)}
    await until_depth(metrics, 1)


@pytest.mark.parametrize(("status", "body"), [(404, b"{}"), (200, b"{}"), (200, b"no"), (200, b'{"topics":[{}]}')])
def test_what_is_no_stats_is_no_depth(status: int, body: bytes) -> None:
    with pytest.raises(LookupFailed):
        read_depth(status, body, TOPIC, CHANNEL)
