"""A timeline far beyond the default capacity: calls of bounded size, and a daemon that holds a page of it at most."""

from __future__ import annotations

import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
import redis

from nsqdigest.delivery.delivery import Delivery
from nsqdigest.store.answers import Claim
from nsqdigest.store.digests import Digests, Ending, Opening
from nsqdigest.store.head import Head
from nsqdigest.store.packing import BYTES_PER_CALL, RECORDS_PER_CALL
from nsqdigest.store.record import Record, StoredRecord
from nsqdigest.store.route import StoreRoute
from nsqdigest.store.schedule import Plan, Schedule
from nsqdigest.store.store import Store
from support import settings
from support.delivering import Delivering, ToldSink
from support.stage import PROVE
from support.stores import OpenStore, open_store
from support.waiting import until

pytestmark = pytest.mark.integration

__all__ = ["open_store"]
RECORDS = 100_000 if PROVE else 20_000
LEASE_MS = 60_000
MAX_BODY_BYTES = 64 << 10
VALUE = b'{"what":"' + 180 * b"x" + b'"}'
PLAN = StoreRoute("r", capacity=1_000_000, increment_ms=0, dedupe_window_ms=600_000)
POLICY = replace(settings.POLICY, capacity=1_000_000, dedupe_window_ms=600_000)


class Big(NamedTuple):
    store: Store
    claim: Claim
    sink: ToldSink

    async def carry(self, max_body_bytes: int) -> None:
        """As the daemon does it, with the sink's own time-out of five seconds."""
        stage = Delivering(
            self.store.digests, self.store.dead, sinks={"out": self.sink}, limit=1, plan=Plan(POLICY),
            max_body_bytes=max_body_bytes,
        )  # fmt: skip
        await stage.opener.open(0, stage.deliveries([self.claim]))
        await until(lambda: stage.held == 0, 30)
        await stage.stop()


async def claimed(store: Store, count: int) -> Big:
    await store.start()
    now_ms = store.clock.now_ms()
    for first in range(0, count, RECORDS_PER_CALL):
        records = [Record(0, b"t", b"%06d" % n, n, VALUE, False) for n in range(first, first + RECORDS_PER_CALL)]
        await store.timelines.add("r", 0, records, Schedule(now_ms, now_ms))
    (claim,) = (await store.digests.claim(0, [("r", 0)], [1], LEASE_MS)).claims
    return Big(store, claim, ToldSink())


@pytest.fixture
async def big(open_store: OpenStore, redis_url: str) -> Big:
    return await claimed(open_store(redis_url, [PLAN]), RECORDS)


Page = list[StoredRecord | None] | None


def before_page(monkeypatch: pytest.MonkeyPatch, then: Callable[[int, Digests, Head], Awaitable[None]]) -> list[Page]:
    """Lets something happen before each page is read. The pages are collected in what is answered."""
    read_page, pages = Digests.page, list[Page]()

    async def page(digests: Digests, claim: Claim, head: Head, start: int, count: int) -> Page:
        await then(len(pages) + 1, digests, head)
        pages.append(await read_page(digests, claim, head, start, count))
        return pages[-1]

    monkeypatch.setattr(Digests, "page", page)
    return pages


async def nothing(*_: object) -> None:
    pass


async def test_100_000_records_are_opened_read_and_closed_in_calls_of_bounded_size(
    open_store: OpenStore, redis_url: str, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    big = await claimed(open_store(redis_url, [PLAN]), 100_000)
    pages = before_page(monkeypatch, nothing)
    redis_client.config_resetstat()
    await big.carry(max_body_bytes=100 << 20)
    (digest,) = big.sink.sent
    assert (digest.records, digest.body.count(b'"key"')) == (100_000, 100_000)
    sizes = [len(page or ()) for page in pages]
    assert sum(sizes) == 100_000
    assert max(sizes) <= RECORDS_PER_CALL
    ledger = await big.store.operations.ledger("r")
    assert (ledger["delivered"], ledger["open"], ledger["snapshots"]) == (100_000, 0, 0)
    # Opening renames, closing unlinks and remembers the newest 10,000: no script went through the records.
    assert redis_client.zcard("{test:0}:shown:r:t") == 10_000
    assert set(redis_client.keys("*:r:t")) == {b"{test:0}:shown:r:t"}
    ran: dict[str, dict[str, int]] = redis_client.info("commandstats")
    assert ran["cmdstat_evalsha"]["calls"] < 10


async def test_its_digest_is_read_no_further_than_it_has_room(big: Big) -> None:
    await big.carry(MAX_BODY_BYTES)
    (digest,) = big.sink.sent
    assert digest.records == RECORDS
    assert len(digest.body) <= MAX_BODY_BYTES
    assert digest.body.count(b'"key"') * (len(VALUE) + 60) > MAX_BODY_BYTES * 0.9


async def test_the_daemon_holds_no_more_than_a_page_beyond_the_body(big: Big) -> None:
    """The body twice (its records, and joined) and a page of at most BYTES_PER_CALL twice (as it was read, and cut)."""
    await big.store.operations.ledger("r")  # what connections need is there before
    tracemalloc.start()
    try:
        await big.carry(MAX_BODY_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(big.sink.sent) == 1
    assert peak_bytes < 2 * MAX_BODY_BYTES + 2 * BYTES_PER_CALL
    assert peak_bytes < RECORDS * len(VALUE) / 2


async def test_a_worker_whose_digest_was_closed_between_pages_sends_nothing(
    big: Big, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def another_closes(number: int, digests: Digests, head: Head) -> None:
        if number == 3:
            now_ms = digests.now_ms()
            await digests.finish(0, [Ending.close(big.claim, head.id, Schedule(now_ms, now_ms))])

    pages = before_page(monkeypatch, another_closes)
    await big.carry(max_body_bytes=100 << 20)
    assert (len(pages), pages[-1], big.sink.sent) == (3, None, [])


async def test_a_worker_that_lost_its_lease_between_pages_sends_nothing(
    big: Big, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another has the same digest open: the records are there all the while."""

    async def another_has_it(number: int, digests: Digests, head: Head) -> None:
        if number == 3:
            await digests.finish(0, [Ending.wait(big.claim, digests.now_ms(), 1)])
            (other,) = (await digests.claim(0, [("r", 0)], [1], LEASE_MS)).claims
            (again,) = await digests.open(0, [Opening(other, "not taken")], {"r": [0]})
            assert isinstance(again, Head)
            assert again.id == head.id
            monkeypatch.setattr(Delivery, "lease_left_s", 0.0)  # as late as it would be by then

    pages = before_page(monkeypatch, another_has_it)
    await big.carry(max_body_bytes=100 << 20)
    assert (len(pages), big.sink.sent) == (3, [])
