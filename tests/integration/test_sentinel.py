"""The store behind Sentinels: it finds the primary, and the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsqdigest.errors import Applied, StoreError, Unreachable
from support.publishing import Background
from support.redis_sets import SentinelSet
from support.servers import RedisServer
from support.stage import PROVE, Stage
from support.stores import OpenStore, add, rec
from support.waiting import until, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.every_redis]

EVENTS = 100_000 if PROVE else 12_000
EVENTS_PER_S = 4_000
SETTLED_WITHIN_S = 60.0


@pytest.fixture
def sentinels(tmp_path: Path, redis_binary: str) -> Iterator[SentinelSet]:
    with SentinelSet(tmp_path / "sentinels", binary=redis_binary) as servers:
        yield servers


async def test_it_follows_a_failover_and_knows_when_nobody_does(sentinels: SentinelSet, open_store: OpenStore) -> None:
    store = open_store(sentinels.url, timeout_ms=500)
    await store.start()
    assert (await add(store)).added == 1
    first = sentinels.primary
    sentinels.sentinels[0].pause()  # one of three may be silent
    wait_until(lambda: first.cli("WAIT", 1, 1000) >= 1, what="a replica to have it")
    first.kill()

    async def is_added() -> bool:
        try:
            return (await add(store, rec(b"l"))).added == 1
        except StoreError:
            return False

    await until(is_added, 20, "another primary to take it")
    assert (await store.ledger("r"))["added"] == 2
    for sentinel in sentinels.sentinels:
        sentinel.kill()
    assert (await add(store, rec(b"m"))).added == 1  # what is known is used until it is doubted
    sentinels.servers[1].kill()
    sentinels.servers[2].kill()
    with pytest.raises(StoreError) as raised:
        await add(store)
    assert raised.value.reason == "redis-connection"
    with pytest.raises(StoreError, match='no Sentinel knows a primary "main"') as raised:
        await add(store)
    assert (raised.value.reason, raised.value.applied) == ("redis-sentinel", Applied.NO)


async def test_names_and_urls_that_do_not_fit(tmp_path: Path, open_store: OpenStore, redis_binary: str) -> None:
    with SentinelSet(tmp_path / "one", replicas=0, sentinels=1, binary=redis_binary) as one:
        with pytest.raises(StoreError, match="No such master with that name"):
            await open_store(one.url.replace("/main/", "/nobody/")).start()
        address = one.url.removeprefix("redis+sentinel://").removesuffix("/main/0")
        with pytest.raises(Unreachable, match=r"is a Sentinel; write redis\+sentinel://"):
            await open_store(f"redis://{address}").start()
        assert (await open_store(one.url).start()).version


def killed(primary: RedisServer, wait: Callable[[RedisServer], RedisServer]) -> None:
    primary.kill()
    wait(primary)
    primary.start()


def stopped(primary: RedisServer, wait: Callable[[RedisServer], RedisServer]) -> None:
    primary.pause()
    wait(primary)
    primary.resume()


@pytest.mark.parametrize("fault", [killed, stopped])
def test_a_failover_under_load_loses_nothing(
    stage: Stage,
    sentinels: SentinelSet,
    fault: Callable[[RedisServer, Callable[[RedisServer], RedisServer]], None],
) -> None:
    stage.use(sentinels)
    nsqd = stage.nsqd()
    stage.receiver()
    daemon = stage.daemon({"redis": {"durability": "replica"}, "nsq": {"msg_timeout": "5s"}})
    daemon.start()
    with Background(stage.publisher(nsqd), EVENTS, per_s=EVENTS_PER_S) as load:
        wait_until(lambda: load.reached(0.3), 60, "a part of the load")
        wait_until(lambda: stage.receivers[0].posts, 20, "the first digest")
        before = daemon.metric("records_added_total")
        fault(sentinels.primary, sentinels.wait_for_another)
        wait_until(lambda: daemon.metric("records_added_total") > before, 20, "it to flow again")
    stage.wait_until_all_is_delivered(SETTLED_WITHIN_S)
    stage.check()
    assert daemon.said("store.data_lost") == []
