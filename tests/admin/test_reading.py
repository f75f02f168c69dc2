"""reading.py over HTTP: what it answers where it cannot answer, and that reads of Redis are bounded in number."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from nsqdigest.admin import reading
from nsqdigest.admin.reading import Asked, NoSuchThing, ReadingApi
from nsqdigest.admin.server import AdminServer
from nsqdigest.admin.views import (
    DeadListView,
    DeliveriesView,
    HistoryView,
    StatusView,
    TimelineDetailView,
    TimelinesView,
)
from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address
from support.ports import HOST, free_port
from support.status_views import busy

pytestmark = pytest.mark.integration


class Observed:
    def status(self) -> StatusView:
        return busy()

    def history(self) -> HistoryView:
        return HistoryView(
            now_ms=1, interval_s=5, events_in=[], events_stored=[], digests_out=[], waiting=[], overdue=[],
            event_loop_lag_s=[], in_flight=[], level=[],
        )  # fmt: skip


class Browsed:
    """Reads that take until `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked: list[Asked] = []
        self.under_way = self.most = 0

    def deliveries(self, asked: Asked) -> DeliveriesView:
        self.asked.append(asked)
        return DeliveriesView(now_ms=1, deliveries=[])

    async def timelines(self, asked: Asked) -> TimelinesView:
        self.asked.append(asked)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.go.wait()
        finally:
            self.under_way -= 1
        return TimelinesView(now_ms=1, timelines=[], total=0, is_partial=False)

    async def timeline(self, asked: Asked) -> TimelineDetailView:
        raise NoSuchThing(f"there is no {asked.timeline}")

    async def dead(self, _asked: Asked) -> DeadListView:
        raise StoreError("redis-timeout", "no answer within 5 s", Applied.NO)


class Served:
    def __init__(self) -> None:
        self.browsed = Browsed()
        self.address = Address(HOST, free_port())
        api = ReadingApi(Observed(), self.browsed).routes()
        self.server = AdminServer(self.address, Metrics(), list, api)

    async def get(self, path: str) -> tuple[int, dict[str, object], dict[str, str]]:
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}/api/{path}") as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, json.loads(await answer.text()), headers


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    served = Served()
    await served.server.start()
    yield served
    await served.server.stop()


async def test_an_answer_is_json_that_nobody_keeps(served: Served) -> None:
    for path in ("status", "history", "deliveries"):
        status, _, headers = await served.get(path)
        assert (status, headers["cache-control"], headers["x-content-type-options"]) == (200, "no-store", "nosniff")
        assert headers["content-type"].startswith("application/json")


async def test_so_many_reads_of_redis_at_a_time_and_who_comes_beyond_is_sent_away(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WAITS_S", 0.05)
    asking = [asyncio.create_task(served.get("timelines")) for _ in range(5)]
    done, pending = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 3:
        more, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    refused = [task.result() for task in done]
    assert {status for status, _, _ in refused} == {429}
    assert all("try again" in str(answer["error"]) and headers["retry-after"] == "1" for _, answer, headers in refused)
    assert (await served.get("status"))[0] == 200, "what is read from memory waits for nobody"
    served.browsed.go.set()
    assert [(await task)[0] for task in pending] == [200, 200]
    assert served.browsed.most == reading.MOST_READS
    assert (await served.get("timelines"))[0] == 200


async def test_a_read_that_takes_too_long_is_ended(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WITHIN_S", 0.05)
    status, answer, _ = await served.get("timelines")
    assert (status, answer["error"]) == (503, "Redis did not answer within 0.05 s")
    assert served.browsed.under_way == 0


async def test_what_redis_refuses_and_what_is_not_there(served: Served) -> None:
    status, answer, headers = await served.get("dead")
    assert (status, headers["retry-after"]) == (503, "1")
    assert answer["error"] == "Redis cannot be read: redis-timeout: no answer within 5 s; see `nsqdigest doctor`"
    assert (await served.get("timeline?timeline=a%20b"))[:2] == (404, {"error": "there is no a b"})


async def test_what_is_asked_for_arrives(served: Served) -> None:
    served.browsed.go.set()
    await served.get("timelines?route=r&sink=s&text=%E2%82%AC&state=due&state=leased&limit=7")
    (asked,) = served.browsed.asked
    assert (asked.route, asked.sink, asked.text, asked.limit) == ("r", "s", "€", 7)
    assert sorted(asked.states) == ["due", "leased"]


async def test_nothing_can_be_written_here(served: Served) -> None:
    async with aiohttp.ClientSession() as session, session.post(f"http://{served.address}/api/status") as answer:
        assert answer.status == 405
