"""`/livez`, `/readyz` and `/metrics`, asked over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import resources
from importlib.resources.abc import Traversable

import aiohttp
import msgspec
import pytest
from aiohttp import web

from nsqdigest.admin import views
from nsqdigest.admin.guard import Tokens
from nsqdigest.admin.operator import Kind, OperatorApi
from nsqdigest.admin.server import AdminServer, Check
from nsqdigest.admin.views import Health
from nsqdigest.base.errors import EXIT_UNREACHABLE, NsqdigestError, StoreError, Unreachable
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address, Secret
from support.ports import HOST, free_port

pytestmark = pytest.mark.integration

WELL = [Check("running", True, "yes"), Check("store", True, "answers")]


TOKEN = "a-long-enough-token"
EVENTS_ROUTE = "events"


class Paused:
    """Remembers what was said of one topic, one timeline, one digest."""

    def __init__(self) -> None:
        self.topics: set[str] = set()

    def names_of(self, kind: Kind) -> list[str]:
        return {"topic": ["events"], "route": [EVENTS_ROUTE]}.get(kind, [])

    def pause(self, _kind: Kind, name: str) -> bool:
        is_new = name not in self.topics
        self.topics.add(name)
        return is_new

    def resume(self, _kind: Kind, name: str) -> bool:
        is_new = name in self.topics
        self.topics.discard(name)
        return is_new

    async def flush(self, route: str, timeline: str, digest: str) -> str:
        if timeline == "snoozed":
            raise NsqdigestError("this timeline is snoozed")
        if timeline == "lost":
            raise StoreError("redis-timeout", "no answer within 5 s")
        return "due" if (route, timeline, digest) in ((EVENTS_ROUTE, "user:42", ""), (EVENTS_ROUTE, "x", "id")) else ""

    async def replay(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        return [(each, "replayed" if each == "known" else "unknown") for each in ids]


class Admin:
    """A server whose checks the test writes."""

    def __init__(self, token: Secret | None = None) -> None:
        self.checks = WELL
        self.metrics = Metrics()
        self.paused = Paused()
        self.address = Address(HOST, free_port())
        api = [*OperatorApi(self.paused).routes(), web.get("/api/thing", self.thing)]
        self.server = AdminServer(self.address, self.metrics, lambda: self.checks, api, lambda: Tokens(token))
        self.failure: Exception | None = None

    async def thing(self, _request: web.Request) -> web.Response:
        if self.failure is not None:
            raise self.failure
        return web.json_response({"it": "is"})

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
    writer.write(
        b"POST /api/pause HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer \xff\xfe\r\nconnection: close\r\n\r\n"
    )
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


@pytest.mark.parametrize("path", ["/%61pi/pause", "/api/%70ause", "/./api/pause", "/x/../api/pause"])
async def test_an_address_in_other_letters_is_the_same_address(guarded: Admin, path: str) -> None:
    reader, writer = await asyncio.open_connection(guarded.address.host, guarded.address.port)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(f"{head}content-length: {len(EVENTS)}\r\n\r\n".encode() + EVENTS)
    assert (await reader.read()).startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 404 "))
    assert guarded.paused.topics == set()
    writer.close()
    await writer.wait_closed()


async def test_reading_an_address_that_writes_is_refused(guarded: Admin) -> None:
    assert (await guarded.ask("/api/pause", headers=ALLOWED))[0] == 405


async def test_metrics_in_openmetrics_for_whom_asks_for_it(admin: Admin) -> None:
    accept = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3"}
    _, text, headers = await admin.ask("/metrics", headers=accept)
    assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")


# -- a timeline, dead digests


@pytest.mark.parametrize(
    ("path", "body", "status", "answer"),
    [
        ("flush", {"route": "events", "timeline": "user:42"}, 200, {"state": "due"}),
        ("flush", {"route": "events", "timeline": "x", "digest": "id"}, 200, {"state": "due"}),
        ("flush", {"route": "events", "timeline": "user:41"}, 404, {"error": "there is no such timeline"}),
        ("flush", {"route": "evnets", "timeline": "x"}, 404, {"error": 'did you mean "events"?'}),
        ("flush", {"route": "events", "timeline": "snoozed"}, 400, {"error": "this timeline is snoozed"}),
        ("flush", {"route": "events", "timeline": "lost"}, 503, {"error": "redis-timeout: no answer within 5 s"}),
        ("flush", {"route": "events"}, 400, {"error": "timeline"}),
        ("flush", {"route": "events", "timeline": 1}, 400, {"error": "timeline"}),
        ("dead/replay", {"ids": []}, 400, {"error": "ids"}),
        ("dead/replay", {"ids": ["x"] * 101}, 400, {"error": "ids"}),
        ("dead/replay", {"ids": "known"}, 400, {"error": "ids"}),
        ("dead/drop", {"ids": ["known"]}, 404, {"error": "there is no such address"}),
    ],
)
async def test_what_is_done_to_a_timeline(
    guarded: Admin, path: str, body: object, status: int, answer: dict[str, str]
) -> None:
    found, text, _ = await guarded.ask(f"/api/{path}", "POST", json.dumps(body).encode(), ALLOWED)
    assert found == status
    for name, value in answer.items():
        assert value in json.loads(text)[name]


async def test_each_dead_digest_has_a_result(guarded: Admin) -> None:
    body = b'{"ids": ["known", "gone"]}'
    status, text, _ = await guarded.ask("/api/dead/replay", "POST", body, ALLOWED)
    assert status == 200
    assert json.loads(text) == {"digests": [{"id": "known", "result": "replayed"}, {"id": "gone", "result": "unknown"}]}


async def test_a_write_is_logged_with_what_it_was_and_whose(guarded: Admin, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsqdigest")
    await guarded.ask("/api/pause", "POST", EVENTS, ALLOWED)
    (line,) = [record for record in caplog.records if record.getMessage() == "admin.write"]
    fields = line.__dict__["fields"]
    assert fields == {
        "path": "/api/pause", "client": HOST, "status": 200, "what": {"kind": "topic", "name": "events"},
    }  # fmt: skip


async def test_a_refusal_is_counted_by_its_reason(guarded: Admin) -> None:
    await guarded.ask("/api/pause", "POST", EVENTS, {"content-type": "application/json"})
    await guarded.ask("/livez", headers={"host": "attacker.example"})
    text = guarded.metrics.text()
    assert 'nsqdigest_http_refusals_total{reason="token-missing"} 1.0' in text
    assert 'nsqdigest_http_refusals_total{reason="host"} 1.0' in text


async def test_wrong_tokens_are_slowed_down_and_the_address_is_told(guarded: Admin) -> None:
    wrong = {**ALLOWED, "authorization": "Bearer wrong"}
    seen = [(await guarded.ask("/api/pause", "POST", EVENTS, wrong))[0] for _ in range(12)]
    assert seen == [401] * 10 + [429] * 2
    assert (await guarded.ask("/api/pause", "POST", EVENTS, wrong))[2]["retry-after"] == "60"
    assert (await guarded.ask("/api/pause", "POST", EVENTS, ALLOWED))[0] == 200
    assert (await guarded.ask("/api/thing"))[0] == 200


# -- what every answer has


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/", "GET"), ("/page/main.js", "GET"), ("/livez", "GET"), ("/metrics", "GET"), ("/nothing", "GET"),
        ("/api/thing", "GET"), ("/api/nothing", "GET"), ("/api/pause", "POST"), ("/livez", "POST"), ("/", "OPTIONS"),
    ],
)  # fmt: skip
async def test_every_answer_has_the_headers_that_guard_it(guarded: Admin, path: str, method: str) -> None:
    _, _, headers = await guarded.ask(path, method)
    assert headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert not [name for name in headers if name.startswith("access-control") or name in ("server", "set-cookie")]


@pytest.mark.parametrize(
    ("failure", "status", "text"),
    [
        (StoreError("redis-connection", "refused"), 503, "redis-connection: refused"),
        (Unreachable("nobody is there"), 503, "nobody is there"),
        (NsqdigestError("not so"), 400, "not so"),
        (web.HTTPNotFound(text="there is no timeline"), 404, "there is no timeline"),
        (web.HTTPNotFound(), 404, "there is no such address"),
        (RuntimeError("secret inside"), 500, "its log has more"),
    ],
)
async def test_whatever_a_handler_raises_becomes_json(
    admin: Admin, failure: Exception, status: int, text: str, logged: Callable[[str], int]
) -> None:
    admin.failure = failure
    found, body, headers = await admin.ask("/api/thing")
    assert (found, headers["content-type"]) == (status, "application/json")
    assert text in json.loads(body)["error"]
    assert "secret" not in body
    assert logged("admin.request.bug") == (status == 500)


@pytest.mark.parametrize(
    "body", [b"[" * 60_000, b'{"kind": ' + b"[" * 60_000, b'{"x": ' + b"[" * 9999 + b"]" * 9999 + b"}"]
)
async def test_a_body_that_is_too_deep_is_refused_like_any_other(
    guarded: Admin, body: bytes, logged: Callable[[str], int]
) -> None:
    status, text, _ = await guarded.ask("/api/pause", "POST", body, ALLOWED)
    assert (status, "the body is no" in json.loads(text)["error"]) == (400, True)
    assert (logged("admin.write"), logged("admin.request.bug")) == (1, 0)


async def test_no_method_but_the_known_ones(guarded: Admin) -> None:
    for method in ("PUT", "DELETE", "PATCH"):
        status, text, headers = await guarded.ask("/api/pause", method, EVENTS, ALLOWED)
        assert (status, headers["allow"]) == (405, "POST")
        assert json.loads(text)["error"]
    assert (await guarded.ask("/api/pause", "OPTIONS", headers={"origin": "https://attacker.example"}))[0] == 403


# -- the page


async def test_the_page_and_all_that_it_names_are_served(admin: Admin) -> None:
    status, text, headers = await admin.ask("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    seen, ahead = {"/"}, re.findall(r'(?:src|href)="(page/[^"]+)"', text)
    while ahead:
        path = f"/{ahead.pop()}"
        if path in seen:
            continue
        seen.add(path)
        status, text, headers = await admin.ask(path)
        assert status == 200, path
        ahead += [f"page/{name}" for name in re.findall(r'from "\./([^"]+)"', text)]
    assert {"/page/main.js", "/page/style.css", "/page/timeline.js", "/page/dialog.js"} <= seen
    for health in Health:
        headers = (await admin.ask(f"/page/icon-{health}.svg"))[2]
        assert headers["content-type"].startswith("image/svg+xml")
        assert headers["cache-control"] == "max-age=86400"


def page_files() -> list[Traversable]:
    return list(resources.files("nsqdigest.admin").joinpath("page").iterdir())


def test_nothing_of_it_comes_from_elsewhere() -> None:
    for file in page_files():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|style=|data:", text)


async def test_a_file_that_a_browser_has_is_not_sent_again(admin: Admin) -> None:
    _, _, headers = await admin.ask("/page/main.js")
    etag = headers["etag"]
    status, text, headers = await admin.ask("/page/main.js", headers={"if-none-match": etag})
    assert (status, text, headers["etag"]) == (304, "", etag)
    assert (await admin.ask("/page/main.js", headers={"if-none-match": '"other"'}))[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/", "/page", "/page/../server.py", "/page/%2e%2e/server.py", "/page/..%2fserver.py", "/page/main.js/",
        "/page//etc/passwd", "/page/%2fetc%2fpasswd", "/page/main.js%00", "/page/..\\server.py", "//page/main.js",
        "/server.py",
        "/page/index.html",
    ],
)  # fmt: skip
async def test_no_other_file_is_served(admin: Admin, path: str) -> None:
    reader, writer = await asyncio.open_connection(admin.address.host, admin.address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    assert (await reader.read()).startswith((b"HTTP/1.1 404 ", b"HTTP/1.1 400 "))
    writer.close()
    await writer.wait_closed()


def test_every_field_that_the_page_reads_is_declared() -> None:
    declared = {field for each in vars(views).values() if isinstance(each, type) and issubclass(each, msgspec.Struct)
                for field in each.__struct_fields__}  # fmt: skip
    texts = [file.read_text("utf-8") for file in page_files() if file.name.endswith(".js")]
    read = {name for text in texts for name in re.findall(r"[.{,]\s?([a-z]+(?:_[a-z]+)+)\b", text)}
    assert read
    assert read - declared == set()
