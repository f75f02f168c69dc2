"""The store behind Sentinels: it finds the primary, and the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from nsqdigest.base.errors import Applied, StoreError, Unreachable
from support.daemon import Daemon
from support.ports import HOST
from support.publishing import Background
from support.redis_sets import SentinelSet
from support.servers import RedisServer
from support.stage import PROVE, Stage
from support.stores import OpenStore, add, rec
from support.waiting import until, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.servers, pytest.mark.every_redis]

EVENTS = 173_000 if PROVE else 16_000
EVENTS_PER_S = 2_000
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
            added = await add(store, rec(b"l"))
        except StoreError:
            return False
        return added.added + added.repeated == 1  # an answer that came too late has added it already

    await until(is_added, 20, "another primary to take it")
    assert (await store.operations.ledger("r"))["added"] == 2
    for sentinel in sentinels.sentinels:
        sentinel.kill()
    assert (await add(store, rec(b"m"))).added == 1  # what is known is used until it is stale
    sentinels.servers[1].kill()
    sentinels.servers[2].kill()
    with pytest.raises(StoreError) as raised:
        await add(store)
    assert raised.value.reason == "redis-connection"
    with pytest.raises(StoreError, match='0 of 3 Sentinels name a primary "main"') as raised:
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


async def test_a_minority_of_sentinels_is_not_believed(sentinels: SentinelSet, open_store: OpenStore) -> None:
    """It may be the one that a split has left with the old primary."""
    store = open_store(sentinels.url, timeout_ms=500)
    await store.start()
    sentinels.sentinels[1].kill()
    await store.look()
    sentinels.sentinels[2].kill()
    for _ in range(2):
        with pytest.raises(StoreError, match=r'1 of 3 Sentinels name a primary "main", a majority has to') as raised:
            await store.look()
        assert (raised.value.reason, raised.value.applied) == ("redis-sentinel", Applied.NO)
    sentinels.sentinels[2].start()
    assert await store.look()


NAMES = b"*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n"


@pytest.mark.parametrize(
    "answers",
    [
        NAMES + b"*0\r\n",
        NAMES + b"*1\r\n$2\r\nip\r\n",
        NAMES + b"*2\r\n$12\r\nconfig-epoch\r\n$1\r\nx\r\n",
        b"*1\r\n$9\r\n127.0.0.1\r\n*0\r\n",
        b"*2\r\n$1\r\n\xff\r\n$4\r\nport\r\n*0\r\n",
        b"*2\r\n:1\r\n:2\r\n*2\r\n:1\r\n*0\r\n",
        b":1\r\n:2\r\n",
        b"*-1\r\n*-1\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
    ids=["no fields", "half a field", "no number", "no port", "no text", "numbers", "no lists", "nothing", "no Redis"],
)
async def test_an_odd_answer_of_a_sentinel_is_told_with_its_name(open_store: OpenStore, answers: bytes) -> None:
    """No Sentinel of ours gives one, so here it is a server of the test's own."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while words := await reader.read(65536):
                writer.write(answers if b"SENTINEL" in words else b"+OK\r\n" * words.count(b"*"))
        writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(StoreError, match=f"sentinel {HOST}:{port}") as raised:
            await open_store(f"redis+sentinel://{HOST}:{port}/main/0", timeout_ms=500).start()
    finally:
        server.close()
    assert (raised.value.reason, raised.value.applied) == ("redis-sentinel", Applied.NO)


Fault = Callable[[SentinelSet, Daemon], None]


def killed(sentinels: SentinelSet, _daemon: Daemon) -> None:
    primary = sentinels.primary
    primary.kill()
    successor = sentinels.wait_for_another(primary)
    primary.start()
    follow(primary, successor)


def stopped(sentinels: SentinelSet, _daemon: Daemon) -> None:
    primary = sentinels.primary
    primary.pause()
    successor = sentinels.wait_for_another(primary)
    primary.resume()
    follow(primary, successor)


def replaced_while_it_works(sentinels: SentinelSet, _daemon: Daemon) -> None:
    """As an operator does it, or as Sentinels do when it was slow for too long: until they have told the other replica,
    the old primary takes writes, and that replica confirms them."""
    primary = sentinels.primary
    wait_until(partial(begins_a_failover, sentinels), what="the failover before to be over")
    follow(primary, sentinels.wait_for_another(primary))


def begins_a_failover(sentinels: SentinelSet) -> bool:
    """A Sentinel refuses while one is in progress, or knows no replica that is fit."""
    with suppress(ResponseError):
        sentinels.sentinels[0].cli("SENTINEL", "FAILOVER", "main")
        return True
    return False


def follow(server: RedisServer, primary: RedisServer) -> None:
    """What the Sentinels do as well, some ten seconds later."""
    server.cli("REPLICAOF", HOST, primary.port)


def killed_after_its_replicas_fell_silent(sentinels: SentinelSet, daemon: Daemon) -> None:
    """What it did last is in no replica."""
    primary = sentinels.primary
    replicas = [server for server in sentinels.servers if server is not primary]
    for replica in replicas:
        replica.pause()
    said = daemon.log_text().count("redis-replicas")
    wait_until(lambda: daemon.log_text().count("redis-replicas") > said, 10, "intake to hear of it")
    primary.kill()
    for replica in replicas:
        replica.resume()
    successor = sentinels.wait_for_another(primary)
    primary.start()
    follow(primary, successor)


FAULTS: tuple[Fault, ...] = (
    (killed, stopped, replaced_while_it_works) * 2
    if PROVE
    else (stopped, replaced_while_it_works, killed_after_its_replicas_fell_silent)
)


@pytest.mark.parametrize("run", range(10 if PROVE else 1))
def test_failovers_under_load_lose_nothing_and_show_nothing_in_two_digests(
    stage: Stage, sentinels: SentinelSet, run: int
) -> None:
    """No FIN and no digest before every replica has it. With fewer replicas a failover can promote one that has not."""
    stage.use(sentinels)
    nsqd = stage.nsqd()
    stage.receiver()
    daemon = stage.daemon({"redis": {"durability": "replica", "replicas": 2}, "nsq": {"msg_timeout": "5s"}})
    daemon.start()
    with Background(stage.publisher(nsqd), EVENTS, per_s=EVENTS_PER_S) as load:
        wait_until(lambda: stage.receivers[0].posts, 20, "the first digest")
        for number, fault in enumerate(FAULTS, 1):
            wait_until(lambda: load.reached(number / (len(FAULTS) + 1)), what="a part of the load")  # noqa: B023
            before = daemon.metric("records_added_total")
            fault(sentinels, daemon)
            wait_until(lambda: daemon.metric("records_added_total") > before, 20, "it to flow again")  # noqa: B023
    stage.wait_until_all_is_delivered(SETTLED_WITHIN_S)
    stage.check()
    assert stage.shown_twice() == []
    assert daemon.said("store.data_lost") == []
