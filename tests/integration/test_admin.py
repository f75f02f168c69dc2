"""`/livez`, `/readyz` and `/metrics`, asked over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from nsqdigest.admin.server import AdminServer, Check
from nsqdigest.config import Address
from nsqdigest.errors import EXIT_UNREACHABLE, Unreachable
from nsqdigest.metrics import Metrics
from support.ports import HOST, free_port

WELL = [Check("running", True, "yes"), Check("store", True, "answers")]


class Admin:
    """A server whose checks the test writes."""

    def __init__(self) -> None:
        self.checks = WELL
        self.metrics = Metrics()
        self.address = Address(HOST, free_port())
        self.server = AdminServer(self.address, self.metrics, lambda: self.checks)

    async def ask(self, path: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://{self.address}{path}") as answer,
        ):
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, await answer.text(), headers


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    admin = Admin()
    await admin.server.start()
    yield admin
    await admin.server.stop()


async def test_live_means_that_it_answers(admin: Admin) -> None:
    assert (await admin.ask("/livez"))[:2] == (200, "ok\n")


async def test_it_is_live_also_while_it_is_not_ready(admin: Admin) -> None:
    admin.checks = [Check("store", False, "not reached yet")]
    assert (await admin.ask("/livez"))[0] == 200


async def test_ready_means_that_every_check_holds(admin: Admin) -> None:
    assert (await admin.ask("/readyz"))[:2] == (200, "ready\n")


@pytest.mark.parametrize("query", ["?verbose", "?verbose=1", "?verbose="])
async def test_verbose_names_each_check(admin: Admin, query: str) -> None:
    assert (await admin.ask(f"/readyz{query}"))[:2] == (200, "[+] running: yes\n[+] store: answers\nready\n")


@pytest.mark.parametrize("query", ["", "?verbose"])
async def test_one_check_that_fails_makes_it_not_ready_and_says_which(admin: Admin, query: str) -> None:
    admin.checks = [*WELL, Check("topic events", False, "0 of 2 nsqd connected, flowing")]
    assert (await admin.ask(f"/readyz{query}"))[:2] == (
        503,
        "[+] running: yes\n[+] store: answers\n[-] topic events: 0 of 2 nsqd connected, flowing\nnot ready\n",
    )


async def test_readiness_is_looked_at_anew_each_time(admin: Admin) -> None:
    seen = []
    for is_well in (True, False, True):
        admin.checks = [Check("store", is_well, "")]
        seen.append((await admin.ask("/readyz"))[0])
    assert seen == [200, 503, 200]


async def test_health_is_plain_text_that_nobody_keeps(admin: Admin) -> None:
    for path in ("/livez", "/readyz"):
        _, _, headers = await admin.ask(path)
        assert headers["content-type"].startswith("text/plain")
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


async def test_metrics_are_those_of_the_daemon(admin: Admin) -> None:
    admin.metrics.add("messages_received_total", 3, topic="events")
    status, text, headers = await admin.ask("/metrics")
    assert status == 200
    assert 'nsqdigest_messages_received_total{topic="events"} 3\n' in text
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_head_is_answered_too(admin: Admin) -> None:
    """Some load balancers ask so."""
    assert (await admin.ask("/livez", "HEAD"))[:2] == (200, "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_nothing_can_be_written(admin: Admin, method: str, path: str) -> None:
    assert (await admin.ask(path, method))[0] == 405


@pytest.mark.parametrize("path", ["/nothing", "/livez/more", "/metrics/../livez/x", "/%00"])
async def test_what_is_not_there_is_not_found(admin: Admin, path: str) -> None:
    assert (await admin.ask(path))[0] == 404


async def test_many_may_ask_at_once(admin: Admin) -> None:
    answers = await asyncio.gather(*(admin.ask("/readyz") for _ in range(30)))
    assert {status for status, _, _ in answers} == {200}


async def test_a_port_that_is_taken_says_so_with_the_way_out(admin: Admin) -> None:
    second = AdminServer(admin.address, Metrics(), lambda: WELL)
    with pytest.raises(Unreachable, match=f"admin.listen: cannot listen on {admin.address}") as caught:
        await second.start()
    assert "is another daemon running?" in str(caught.value)
    assert caught.value.exit_code == EXIT_UNREACHABLE


async def test_stopped_it_gives_its_port_back() -> None:
    admin = Admin()
    for _ in range(2):
        await admin.server.start()
        await admin.server.stop()
        admin.server = AdminServer(admin.address, admin.metrics, lambda: WELL)
