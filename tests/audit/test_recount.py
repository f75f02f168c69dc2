"""`nsqdigest audit` on a real Redis: it balances, it does not, and what a recount finds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from nsqdigest.audit.recount import Auditor
from nsqdigest.base.errors import EXIT_CONFIG, EXIT_NO, EXIT_OK, EXIT_UNREACHABLE
from nsqdigest.store.answers import Ended
from nsqdigest.store.dead import Details
from nsqdigest.store.head import Head
from nsqdigest.store.namespace import reading
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Schedule
from nsqdigest.store.store import Store
from support.daemon import run_command, toml
from support.ports import HOST, free_port
from support.servers import RedisServer
from support.store import Scripts
from support.stores import (
    PLAN,
    OpenStore,
    add,
    bury_digest,
    close_digest,
    limited_url,
    open_digest,
    rec,
    redis_settings,
)

pytestmark = pytest.mark.integration

LEASE_MS = 60_000
OLD = StoreRoute("old", capacity=1000, increment_ms=0, dedupe_window_ms=0)


async def start(open_store: OpenStore, url: str, partitions: int = 1) -> Store:
    store = open_store(url, [PLAN, OLD], partitions=partitions)
    await store.start()
    return store


async def open_next(store: Store, digest_id: str, partition: int = 0) -> tuple[Any, Head]:
    (claim,) = (await store.digests.claim(partition, [("r", 0)], [1], LEASE_MS)).claims
    opened = await open_digest(store, claim, digest_id, [0])
    assert isinstance(opened, Head)
    return claim, opened


async def bury(store: Store, digest_id: str) -> None:
    claim, told = await open_next(store, digest_id)
    after = Schedule(4_000_000_000_000, 4_000_000_000_000)
    answer = await bury_digest(
        store, claim, digest_id, after, Details(told, "r", claim.timeline, "out", "refused", "").encode()
    )
    assert answer is Ended.DONE


async def fill(store: Store) -> None:
    """Of route r: three records superseded, two buried, two in a snapshot, two open; of route old: one open."""
    for name in (b"dead", b"out", b"open"):
        await add(store, rec(b"k", 1, timeline=name), rec(b"k", 2, timeline=name), rec(b"l", 3, timeline=name))
        if name == b"dead":
            await bury(store, "id-1")
        elif name == b"out":
            await open_next(store, "id-2")
    await add(store, rec(timeline=b"left"), route="old")


@pytest.fixture
def file(tmp_path: Path, redis_url: str) -> Callable[..., str]:
    def write(url: str = redis_url, **settings: Any) -> str:
        path = tmp_path / "nsqdigest.toml"
        tables = {
            "nsq": {"nsqd_tcp_addresses": [f"{HOST}:4150"]},
            "redis": {"url": url, "namespace": "test", **settings},
            "sinks.out": {"type": "log"},
        }
        path.write_text(toml(tables, [{"name": "r", "topic": "t", "timeline": "{x}", "sink": "out"}]), "utf-8")
        return str(path)

    return write


# -- the command


async def test_it_balances(open_store: OpenStore, redis_url: str, file: Callable[..., str]) -> None:
    await fill(await start(open_store, redis_url))
    done = run_command("audit", "-c", file())
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line}
    assert rows["r"] == ["9", "2", "2", "0", "3", "0", "2", "0"]
    assert rows["old"] == ["1", "1", "0", "0", "0", "0", "0", "0"]
    assert 'the file has no route "old"; nobody delivers its 1 timeline' in done.stdout
    assert (
        done.stdout.splitlines()[-1]
        == "balanced: every record is accounted for, but 2 of 10 records never delivered: they are in the dead list"
    )


async def test_as_json(open_store: OpenStore, redis_url: str, file: Callable[..., str]) -> None:
    await fill(await start(open_store, redis_url))
    done = run_command("audit", "-c", file(), "--json", "--deep")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    answer = json.loads(done.stdout)
    assert answer.pop("recount") == {"exact": True, "differences": [], "untold": 0}
    assert answer.pop("routes").keys() == {"r", "old"}
    assert answer == {
        "added": 10, "open": 3, "snapshots": 2, "delivered": 0, "superseded": 3, "buried": 2, "deleted": 0,
        "dropped": {"capacity": 0, "timelines": 0, "duplicate": 0, "muted": 0, "cancelled": 0, "adopted": 0},
        "balanced": True,
    }  # fmt: skip


async def test_it_does_not_balance(
    open_store: OpenStore, redis_url: str, plain: Scripts, file: Callable[..., str]
) -> None:
    await fill(await start(open_store, redis_url))
    plain.command("HINCRBY", plain.key("ledger", "r"), "delivered", -3)
    done = run_command("audit", "-c", file())
    assert (done.returncode, done.stderr) == (EXIT_NO, "")
    assert 'route "r", partition 0: 3 records missing' in done.stdout
    answer = run_command("audit", "-c", file(), "--json")
    assert answer.returncode == EXIT_NO
    assert json.loads(answer.stdout)["balanced"] is False


async def test_a_timeline_that_is_nowhere_is_told_until_maintenance_mends_it(
    open_store: OpenStore, redis_url: str, plain: Scripts, file: Callable[..., str]
) -> None:
    store = await start(open_store, redis_url)
    await fill(store)
    plain.command("ZREM", plain.key("waiting", "r"), b"open")
    plain.command("INCRBY", plain.key("count"), 2)
    done = run_command("audit", "-c", file())
    assert (done.returncode, done.stderr) == (EXIT_NO, "")
    assert '  route "r", partition 0: 1 timeline neither waiting nor leased\n' in done.stdout
    assert "  partition 0: 6 timelines are counted, 4 are there\n" in done.stdout
    await store.upkeep.maintain(0, ["r", "old"], LEASE_MS)
    assert run_command("audit", "-c", file()).returncode == EXIT_OK


async def test_a_recount_names_what_differs(
    open_store: OpenStore, redis_url: str, plain: Scripts, file: Callable[..., str]
) -> None:
    """Something that the counters alone cannot tell."""
    await fill(await start(open_store, redis_url))
    plain.command("HDEL", plain.key("digest-values", "r", b"out"), "l")
    assert run_command("audit", "-c", file()).returncode == EXIT_OK
    done = run_command("audit", "-c", file(), "--deep")
    assert (done.returncode, done.stderr) == (EXIT_NO, "")
    assert 'differs: route "r", timeline "out" has 2 records in its digest and 1 values\n' in done.stdout


def test_of_a_namespace_that_nobody_used_there_is_nothing(file: Callable[..., str], redis_client: redis.Redis) -> None:
    done = run_command("audit", "-c", file(), "--deep")
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout.splitlines()[-1] == "balanced: no daemon has used this namespace yet"
    assert redis_client.dbsize() == 0


def test_a_redis_out_of_reach_is_exit_code_69_and_is_named(file: Callable[..., str]) -> None:
    port = free_port()
    done = run_command("audit", "-c", file(f"redis://:secret@{HOST}:{port}/0"))
    assert (done.returncode, done.stdout) == (EXIT_UNREACHABLE, "")
    assert f"{HOST}:{port}" in done.stderr
    assert "redis.url" in done.stderr
    assert "secret" not in done.stderr


async def test_another_number_of_partitions_is_exit_code_78_with_the_remedy(
    open_store: OpenStore, redis_url: str, file: Callable[..., str]
) -> None:
    await start(open_store, redis_url)
    done = run_command("audit", "-c", file(partitions=4))
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert "write 1" in done.stderr


def test_a_wrong_file_is_exit_code_78(tmp_path: Path) -> None:
    done = run_command("audit", "-c", str(tmp_path / "missing.toml"))
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert "missing.toml" in done.stderr


# -- recounting


async def recounted(url: str, routes: tuple[str, ...] = ("r",), **settings: Any) -> tuple[str, ...]:
    """What differs for certain."""
    async with reading(redis_settings(url, **settings), "nsqdigest.toml") as namespace:
        recount = (await Auditor(namespace, routes).audit(deep=True)).recount
    assert recount is not None
    assert recount.unsure == ()
    return recount.differences


async def test_a_record_too_many_is_found_in_its_timeline_and_in_the_sum(
    open_store: OpenStore, redis_url: str, plain: Scripts
) -> None:
    await fill(await start(open_store, redis_url))
    plain.command("ZADD", plain.key("set", "r", b"open"), -5, "planted")
    assert await recounted(redis_url) == (
        'route "r", timeline "open" its schedule counts 2 records, 3 are there',
        'route "r", timeline "open" has 3 records and 2 values',
        'route "r", partition 0: counted 2 records open, 3 are there',
    )


async def test_a_timeline_that_is_lost_is_found_in_the_sum(
    open_store: OpenStore, redis_url: str, plain: Scripts
) -> None:
    await fill(await start(open_store, redis_url))
    plain.command("HDEL", plain.key("schedule", "r"), "open")
    assert await recounted(redis_url) == (
        'route "r", partition 0: counted 2 records open, 0 are there',
        "partition 0: counted 4 timelines, 3 are there",
    )


@pytest.mark.parametrize(
    ("command", "difference"),
    [
        (("HDEL", "dead-values:id-1", "k"), 'dead digest "id-1": has 2 records and 1 values'),
        (("ZADD", "dead", 5, "id-x"), 'dead digest "id-x": nothing tells of which route it is'),
        (("ZREM", "dead", "id-1"), 'route "r", partition 0: counted 2 records in the dead store, 0 are there'),
    ],
)
async def test_the_dead_store_is_recounted(
    open_store: OpenStore, redis_url: str, plain: Scripts, command: tuple[Any, ...], difference: str
) -> None:
    await fill(await start(open_store, redis_url))
    plain.command(command[0], plain.key(command[1]), *command[2:])
    (said,) = await recounted(redis_url)
    assert said.endswith(difference)


async def test_it_is_counted_by_pages_in_every_partition(open_store: OpenStore, redis_url: str) -> None:
    store = await start(open_store, redis_url, partitions=3)
    names = [b"%d" % n for n in range(1500)]
    for partition in range(3):
        mine = [rec(timeline=name) for name in names if store.timelines.partition_of(name) == partition]
        await add(store, *mine[:300], partition=partition)
        await add(store, *mine[300:], partition=partition)
    for partition in range(3):
        await open_next(store, f"id-{partition}", partition)
    assert await recounted(redis_url, partitions=3) == ()


async def test_a_daemons_own_rights_are_enough(
    open_store: OpenStore, redis_url: str, shared_redis: RedisServer
) -> None:
    await fill(await start(open_store, redis_url))
    assert await recounted(limited_url(shared_redis)) == ()


async def test_counters_are_exact_and_no_timeline_seems_to_differ_while_daemons_are_at_work(
    open_store: OpenStore, redis_url: str
) -> None:
    store = open_store(redis_url)
    await store.start()
    is_over = False

    async def work(number: int) -> None:
        turn = 0
        while not is_over:
            turn += 1
            mine = [rec(b"%d" % turn, turn, timeline=b"%d" % (number * 10 + turn % 10)), rec(b"k", turn)]
            await add(store, *mine)
            for claim in (await store.digests.claim(0, [("r", 0)], [3], LEASE_MS)).claims:
                opened = await open_digest(store, claim, f"{number}-{turn}-{claim.timeline}", [0])
                if isinstance(opened, Head):
                    now_ms = store.clock.now_ms()
                    await close_digest(store, claim, opened.id, Schedule(now_ms, now_ms))

    at_work = [asyncio.create_task(work(number)) for number in range(4)]
    try:
        async with reading(redis_settings(redis_url), "nsqdigest.toml") as namespace:
            for _ in range(10):
                audit = await Auditor(namespace, ["r"]).audit(deep=True)
                assert audit.balanced
                assert audit.recount is not None
                assert audit.recount.differences == ()
    finally:
        is_over = True
        await asyncio.gather(*at_work)
