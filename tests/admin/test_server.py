"""`/livez`, `/readyz` and `/metrics`, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest

from nsqdigest.admin.operator import Kind, OperatorApi
from nsqdigest.admin.server import AdminServer, Check
from nsqdigest.base.errors import EXIT_UNREACHABLE, Unreachable
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address, Secret
from support.ports import HOST, free_port

pytestmark = pytest.mark.integration

WELL = [Check("running", True, "yes"), Check("store", True, "answers")]


TOKEN = "a-long-enough-token"


class Paused:
    """Remembers what was said of one topic."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def names_of(self, kind: Kind) -> list[str]:
        return ["events"] if kind == "topic" else []

    def pause(self, _kind: Kind, name: str) -> bool:
        is_new = name not in self.topics
        self.topics.add(name)
        return is_new

    def resume(self, _kind: Kind, name: str) -> bool:
        is_new = name in self.topics
        self.topics.discard(name)
        return is_new


class Admin:
    """A server whose checks the test writes."""

    def __init__(self, token: Secret | None = None) -> None:
        self.checks = WELL
        self.metrics = Metrics()
        self.paused = Paused()
        self.address = Address(HOST, free_port())
        api = OperatorApi(self.paused, lambda: token).routes()
        self.server = AdminServer(self.address, self.metrics, lambda: self.checks, api)

    async def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str, dict[str, str]]:
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"http://{self.address}{path}", data=body, headers=headers) as answer,
        ):
            told = {name.lower(): value for name, value in answer.headers.items()}
            return answer.status, await answer.text(), told


@pytest.fixture
async def admin() -> AsyncIterator[Admin]:
    admin = Admin()
    await admin.server.start()
    yield admin
    await admin.server.stop()


@pytest.fixture
async def guarded() -> AsyncIterator[Admin]:
    admin = Admin(Secret(TOKEN))
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
    admin.checks = [*WELL, Check("topic events", False, "0 of 2 nsqd connected")]
    assert (await admin.ask(f"/readyz{query}"))[:2] == (
        503,
        "[+] running: yes\n[+] store: answers\n[-] topic events: 0 of 2 nsqd connected\nnot ready\n",
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
    assert 'nsqdigest_messages_received_total{topic="events"} 3.0\n' in text
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


async def test_a_port_that_is_taken_says_so_with_the_remedy(admin: Admin) -> None:
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


# -- the operator's word

EVENTS = b'{"kind": "topic", "name": "events"}'
ALLOWED = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}


async def test_pause_and_resume_say_what_holds_and_whether_it_is_new(guarded: Admin) -> None:
    said = [
        json.loads((await guarded.ask(f"/api/{word}", "POST", EVENTS, ALLOWED))[1])
        for word in ("pause", "pause", "resume", "resume")
    ]
    about = {"kind": "topic", "name": "events"}
    assert said == [
        {**about, "paused": True, "changed": True},
        {**about, "paused": True, "changed": False},
        {**about, "paused": False, "changed": True},
        {**about, "paused": False, "changed": False},
    ]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 401),
        ({"content-type": "application/json", "authorization": "Bearer wrong"}, 401),
        ({"content-type": "application/json", "authorization": TOKEN}, 401),
        ({"content-type": "text/plain", "authorization": f"Bearer {TOKEN}"}, 415),
    ],
)
async def test_who_has_no_token_or_hides_what_it_sends_is_refused(
    guarded: Admin, headers: dict[str, str], status: int
) -> None:
    assert (await guarded.ask("/api/pause", "POST", EVENTS, headers))[0] == status
    assert guarded.paused.topics == set()


async def test_a_token_of_any_bytes_is_refused(guarded: Admin) -> None:
    reader, writer = await asyncio.open_connection(guarded.address.host, guarded.address.port)
    writer.write(b"POST /api/pause HTTP/1.1\r\nhost: a\r\nauthorization: Bearer \xff\xfe\r\nconnection: close\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
    writer.close()
    await writer.wait_closed()


async def test_without_a_token_in_the_file_nobody_may_write(admin: Admin) -> None:
    status, text, _ = await admin.ask("/api/pause", "POST", EVENTS, ALLOWED)
    assert (status, "admin.token" in text) == (403, True)
    assert admin.paused.topics == set()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff", b'{"kind": "topic"}', b'{"kind": "star", "name": "events"}', b'{"kind": 1}']
)
async def test_a_body_that_says_nothing_is_refused_with_what_one_looks_like(guarded: Admin, body: bytes) -> None:
    status, text, _ = await guarded.ask("/api/pause", "POST", body, ALLOWED)
    assert (status, "topic" in text) == (400, True)


async def test_a_name_that_is_not_there_is_refused_with_those_that_are(guarded: Admin) -> None:
    status, text, _ = await guarded.ask("/api/pause", "POST", b'{"kind": "topic", "name": "evnets"}', ALLOWED)
    assert (status, json.loads(text)) == (404, {"error": 'there is no topic "evnets"; did you mean "events"?'})


async def test_reading_an_address_that_writes_is_refused(guarded: Admin) -> None:
    assert (await guarded.ask("/api/pause", headers=ALLOWED))[0] == 405


async def test_metrics_in_openmetrics_for_whom_asks_for_it(admin: Admin) -> None:
    accept = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3"}
    _, text, headers = await admin.ask("/metrics", headers=accept)
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
