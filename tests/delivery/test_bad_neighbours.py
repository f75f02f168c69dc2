"""One bad timeline never breaks its neighbours' call: keys that something else wrote, values and snapshots that Redis
lost, a full Redis; in open, read and finish of many digests in one call, against real Redis."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis

from nsqdigest.base.reasons import Verdict
from nsqdigest.delivery.sinks.base import Outcome
from nsqdigest.store.digests import READ_WHOLE_RECORDS, Digests
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.store import Store
from support.delivering import Delivering, ToldBulkSink
from support.servers import RedisServer
from support.store import Scripts
from support.stores import OpenStore, add, open_store, rec

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
GOOD = [f"good{number}" for number in range(12)]
OF_TIMELINE = ["set", "values", "digest", "digest-values", "shown"]
OF_ROUTE = ["tokens", "heads", "schedule", "waiting", "leased", "losses", "ledger"]
PLANS = [StoreRoute(name, 1000, 0, 60_000) for name in ("r", "s")]


@pytest.fixture
async def store(open_store: OpenStore, redis_url: str) -> Store:
    store = open_store(redis_url, PLANS)
    await store.start()
    return store


@pytest.fixture
def plain(redis_client: redis.Redis) -> Scripts:
    return Scripts(redis_client)


@pytest.fixture
async def stage(store: Store) -> AsyncIterator[Delivering]:
    stage = made(store)
    yield stage
    await stage.stop()


def made(store: Store, **settings: Any) -> Delivering:
    routes = {"r": "out", "s": "out"}
    return Delivering(
        store.digests, store.dead, sinks={"out": ToldBulkSink(100)}, routes=routes, limit=8, lease_ms=3000, **settings
    )


def before(monkeypatch: pytest.MonkeyPatch, call: str, then: Callable[[], object]) -> list[int]:
    """Lets something happen before the first such call. Returns the sizes of all of them."""
    really, sizes = getattr(Digests, call), list[int]()

    async def with_it(digests: Digests, partition: int, some: Any, *arguments: Any) -> Any:
        if not sizes:
            then()
        sizes.append(len(some))
        return await really(digests, partition, some, *arguments)

    monkeypatch.setattr(Digests, call, with_it)
    return sizes


async def go(stage: Delivering, store: Store, bad: str = "bad", bad_route: str = "r", records: int = 1) -> None:
    """The bad one amid its neighbours, all of them claimed in one call."""
    await add(store, *(rec(b"%d" % number, timeline=bad.encode()) for number in range(records)), route=bad_route)
    for name in GOOD:
        await add(store, rec(timeline=name.encode()), route="s")
    claimed = await store.digests.claim(0, [("r", 0), ("s", 0)], [100], stage.lease_ms)
    claims = sorted(claimed.claims, key=lambda claim: claim.timeline != bad)
    assert len(claims) == 1 + len(GOOD)
    await stage.opener.open(0, stage.deliveries([*claims[1:6], claims[0], *claims[6:]]))
    await stage.quiet()


def sent(stage: Delivering) -> set[str]:
    return set(stage.sink.timelines)


@pytest.mark.parametrize("call", ["open", "read", "finish"])
@pytest.mark.parametrize("kind", OF_TIMELINE)
@pytest.mark.parametrize("route", ["r", "s"])
async def test_a_key_of_a_timeline_of_another_type(
    *,
    stage: Delivering,
    store: Store,
    plain: Scripts,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    kind: str,
    route: str,
) -> None:
    def plant() -> None:
        plain.command("DEL", plain.key(kind, route, b"bad"))
        plain.command("SET", plain.key(kind, route, b"bad"), "planted")

    sizes = before(monkeypatch, call, plant)
    await go(stage, store, bad_route=route)
    assert set(GOOD) <= sent(stage)
    assert stage.held == 0
    assert sizes[0] >= 12  # in one call
    assert len(sizes) <= 12  # divided, and not asked again and again
    assert plain.ledger("s")["delivered"] >= len(GOOD)
    assert {name.decode() for name in plain.tokens("s")} <= {"bad"}
    plain.command("DEL", plain.key(kind, route, b"bad"))


@pytest.mark.parametrize("call", ["open", "finish"])
@pytest.mark.parametrize("kind", OF_ROUTE)
async def test_a_key_of_a_route_of_another_type_stops_no_other_route(
    *, stage: Delivering, store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch, call: str, kind: str
) -> None:
    def plant() -> None:
        plain.command("DEL", plain.key(kind, "r"))
        plain.command("SET", plain.key(kind, "r"), "planted")

    sizes = before(monkeypatch, call, plant)
    await go(stage, store)
    assert set(GOOD) <= sent(stage)
    assert (call == "finish") is ("bad" in sent(stage))
    assert stage.held == 0
    assert len(sizes) <= 12
    assert plain.ledger("s") == {"added": len(GOOD), "delivered": len(GOOD)}
    assert stage.metrics.value("store_errors_total", reason="redis-script") == 1


@pytest.mark.parametrize("call", ["open", "finish"])
async def test_a_partition_whose_agenda_has_another_type_is_left_with_all_it_has(
    stage: Delivering, store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    sizes = before(monkeypatch, call, lambda: plain.command("SET", plain.key("agenda"), "planted"))
    await go(stage, store)
    assert stage.held == 0
    assert len(sizes) <= 25  # each stands alone, once
    assert stage.metrics.value("store_errors_total", reason="redis-script") == 13
    assert len(plain.tokens("s")) == len(GOOD)  # the leases bring them back
    assert len(sent(stage)) == (0 if call == "open" else 13)


@pytest.mark.parametrize("kind", ["digest", "digest-values"])
async def test_what_redis_lost_before_the_read(
    stage: Delivering, store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    before(monkeypatch, "read", lambda: plain.command("DEL", plain.key(kind, "r", b"bad")))
    await go(stage, store)
    assert sent(stage) == set(GOOD)
    assert stage.held == 0
    assert len(await store.dead.page(0, 0)) == (kind == "digest-values")
    assert stage.metrics.total("digests_stale_total") == (kind == "digest")


@pytest.mark.parametrize("kind", ["digest", "digest-values", "set", "values"])
async def test_what_redis_lost_of_a_large_one(
    stage: Delivering, store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    before(monkeypatch, "read", lambda: plain.command("DEL", plain.key(kind, "r", b"bad")))
    await go(stage, store, records=READ_WHOLE_RECORDS + 1)
    assert set(GOOD) <= sent(stage)
    assert ("bad" in sent(stage)) is (kind in {"set", "values"})
    assert stage.held == 0


@pytest.mark.parametrize("field", ["heads", "schedule"])
async def test_a_field_that_says_nothing_stops_no_neighbour(
    stage: Delivering, store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    key = plain.key(field, "r")
    before(monkeypatch, "open", lambda: plain.command("HSET", key, "bad", " id=bad opened=never "))
    await go(stage, store)
    assert set(GOOD) <= sent(stage)
    assert stage.held == 0
    plain.command("HDEL", key, "bad")


@pytest.mark.parametrize("verdict", [Verdict.DELIVERED, Verdict.AGAIN, Verdict.REFUSED])
async def test_a_full_redis_opens_and_ends_digests_all_the_same(
    open_store: OpenStore, redis_server: RedisServer, verdict: Verdict
) -> None:
    store = open_store(redis_server.url, PLANS)
    await store.start()
    stage = made(store, max_attempts=1 if verdict is Verdict.REFUSED else 0)
    stage.sink.outcome = Outcome(verdict, "as told")
    for name in GOOD:
        await add(store, rec(timeline=name.encode()))
    claimed = await store.digests.claim(0, [("r", 0)], [100], stage.lease_ms)
    redis_server.cli("CONFIG", "SET", "maxmemory", "1")
    await stage.opener.open(0, stage.deliveries(claimed.claims))
    await stage.quiet()
    assert sent(stage) == set(GOOD)
    assert stage.metrics.total("store_errors_total") == 0
    ledger = await store.operations.ledger("r")
    field = {Verdict.DELIVERED: "delivered", Verdict.AGAIN: "snapshots", Verdict.REFUSED: "buried"}[verdict]
    assert ledger[field] == len(GOOD)
    await stage.stop()


@pytest.mark.parametrize("score", ["inf", "-inf"])
async def test_an_infinite_timestamp_that_something_else_wrote_stops_no_neighbour(
    stage: Delivering, store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch, score: str
) -> None:
    before(monkeypatch, "read", lambda: plain.command("ZADD", plain.key("digest", "r", b"bad"), score, "0"))
    await go(stage, store)
    assert set(GOOD) <= sent(stage)
    assert stage.held == 0


HEADS = [
    "", " ", " id=", " closed=", "\x00\x01", " id=x\nopened=1", " id=x total=-1", " id=x since=abc",
    " id=x burying=x", " id=x burying=x next=abc", " id=x attempts=z tries=q", " iteration=abc", " iteration=-5",
    " iteration=1e300", " iteration=1 id=x merging=abc", " id=x opened=99999999999999999999 total=1 next=1",
]  # fmt: skip


@pytest.mark.parametrize("planted", [*itertools.product(HEADS, ["open", "read", "finish"], [False, True])], ids=repr)
async def test_a_head_that_something_else_wrote_stops_no_neighbour(
    stage: Delivering, store: Store, plain: Scripts, monkeypatch: pytest.MonkeyPatch, planted: tuple[str, str, bool]
) -> None:
    head, call, has_snapshot = planted

    def plant() -> None:
        if has_snapshot:
            plain.command("ZADD", plain.key("digest", "r", b"bad"), -1, "0")
            plain.command("HSET", plain.key("digest-values", "r", b"bad"), "0", "{}")
        plain.command("HSET", plain.key("heads", "r"), "bad", head)

    before(monkeypatch, call, plant)
    await go(stage, store)
    assert set(GOOD) <= sent(stage)
    assert stage.held == 0
    assert set(plain.tokens("s")) <= {b"bad"}
