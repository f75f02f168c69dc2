"""The page in a real browser, on a real daemon: what it shows of a busy, a broken and a hostile world, what one can do.

One world for all tests: two daemons of one namespace, a receiver that takes digests, one that is down for good, one
that refuses each digest so that it is dead. A test that breaks something mends it. Pictures of every view are kept in
.pictures for people to look at.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from support.browser import Browser, Page, find_browser
from support.daemon import Daemon
from support.ports import HOST
from support.receiver import Answer
from support.servers import MissingServer
from support.stage import DURABLE, TOPIC, Stage
from support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.servers, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / ".pictures"
AXE = ROOT / ".servers" / "axe" / "node_modules" / "axe-core" / "axe.min.js"
TOKEN = "a-long-enough-token"
PHONE, DESK = 360, 1280

SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"user:{SCRIPT}\u202egnp.exe"
SHOWN = f"user:{SCRIPT}\\u202egnp.exe"
HEBREW = "\u05d7\u05e9\u05d1\u05d5\u05df:1"
MARKUP = {"html": '"><img src=x onerror=alert(2)>', "mark": "\u202e\u2066", "bell": "\u0007", "line": "\u2028"}


class World:
    """What the tests share. `waiting`: a route whose digests do not go out while they run."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder)
        self.stage.nsqd("-max-msg-size=4194304")
        self.stage.redis(*DURABLE)
        self.hook, self.down, self.refusing = (self.stage.receiver() for _ in range(3))
        self.down.answer(Answer(503))
        self.refusing.answer(Answer(400, text=SCRIPT))
        token = folder / "token"
        token.write_text(TOKEN, encoding="utf-8")
        token.chmod(0o600)
        self.daemon = self._daemon(token)
        self.other = self.stage.daemon(routes=[{"topic": "spare", "timeline": "{timeline}", "sink": "hook"}])
        self.other.admin = dict(self.daemon.admin)
        self.other.start()
        self.daemon.start()  # which finds the other one

    def _daemon(self, token: Path) -> Daemon:
        def route(name: str, sink: str, policy: str = "default") -> dict[str, Any]:
            return {
                "name": name, "topic": TOPIC, "match": {"to": name}, "timeline": "{timeline}", "key": "{id}",
                "sink": sink, "policy": policy,
            }  # fmt: skip

        daemon = self.stage.daemon(
            {
                "policies.patient": {"immediate": False, "minimum_delay": "1h", "maximum_delay": "2h"},
                "sinks.second": {"retry_base": "30s", "retry_cap": "60s"},
            },
            [
                route("quick", "hook"),
                route("waiting", "hook", "patient"),
                route("down", "second"),
                route("bad", "third"),
            ],
        )
        daemon.admin = {"token": f"file:{token}"}
        return daemon

    def publish(self, to: str, *timelines: str, **more: Any) -> None:
        events = [{"to": to, "timeline": timeline, "id": f"{timeline}-1", **more} for timeline in timelines]
        self.stage.nsqds[0].publish_many(TOPIC, [json.dumps(event, ensure_ascii=False).encode() for event in events])

    async def fill(self) -> None:
        self.publish("quick", "user:42", "user:43", HOSTILE)
        self.publish("waiting", *(f"team:{number}" for number in range(30)), HEBREW)
        self.publish("waiting", HOSTILE, **MARKUP)
        self.publish("down", "user:1", "user:2", "user:3")
        self.publish("bad", "user:8", HOSTILE)
        self.publish("waiting", "x" * 1_000_000)  # a dead letter
        self.stage.nsqds[0].publish_many(TOPIC, [b"no JSON"])
        await until(lambda: len(self.hook.accepted()) >= 3, PATIENCE_S, "digests to be delivered")
        await until(lambda: self.dead() == 2, PATIENCE_S, "digests to be dead")
        await until(lambda: self.down.posts, PATIENCE_S, "a digest to be refused")

    def dead(self) -> int:
        return int(self.stage.store.cli("ZCARD", "{nsqdigest:0}:dead"))

    def url(self, fragment: str = "", daemon: Daemon | None = None) -> str:
        return f"http://{HOST}:{(daemon or self.daemon).ports[0]}/{fragment}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    try:
        find_browser()
        if not AXE.exists():
            raise MissingServer("axe-core is not in .servers; run `make setup`")
    except MissingServer as problem:
        if os.environ.get("CI", "").lower() not in {"", "0", "false"}:
            pytest.fail(f"{problem} (an error, because CI is set)", pytrace=False)
        pytest.skip(str(problem))
    PICTURES.mkdir(exist_ok=True)
    async with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    try:
        await world.fill()
        yield world
        assert world.daemon.bugs() == []
    finally:
        world.stage.end()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, world: World) -> AsyncIterator[Page]:
    page = await browser.page(world.url(), width=DESK)
    await page.until_text("Topics", "#main")
    yield page
    assert page.complaints == []
    origins = {re.sub(r"^(\w+://[^/]+).*", r"\1", url) for url in page.requests}
    assert origins <= {world.url().rstrip("/"), world.url(daemon=world.other).rstrip("/")}
    await page.close()


async def visit(page: Page, fragment: str, wanted: str) -> None:
    await page.run(f"void (location.hash = {json.dumps(fragment)})")
    await page.until_text(wanted, "#main")


DAY, NIGHT = ("desk", DESK, False), ("phone", PHONE, True)


async def examine(page: Page, name: str, looks: Sequence[tuple[str, int, bool]] = (DAY, NIGHT)) -> None:
    """By day on a desk, by night on a phone: nothing for axe to complain of, nothing beyond the edge; and pictures."""
    if not await page.run("'axe' in window"):
        await page.run(AXE.read_text("utf-8") + ";0")
    for look, width, dark in looks:
        await page.resize(width, 900)
        await page.look(dark=dark)
        found = await page.run("axe.run({resultTypes: ['violations']}).then(({violations}) => violations)")
        assert [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found] == [], (name, look)
        assert await page.run("document.documentElement.scrollWidth") <= width, (name, look)
        await page.picture(PICTURES / f"{name}-{look}.png")
    await page.resize(DESK, 900)
    await page.look(dark=False)


async def button(page: Page, label: str) -> None:
    await page.run(f"document.querySelector({json.dumps(f'button[aria-label={json.dumps(label)}]')}).focus()")
    await page.press("Enter")


async def answer_dialog(page: Page, token: str) -> None:
    await page.until("document.querySelector('dialog').open")
    if await page.run("!!document.querySelector('dialog input')"):
        await page.run("document.querySelector('dialog input').select()")
        await page.type(token)
    await page.press("Enter")


# -- what it shows


async def test_the_first_view_says_how_it_is_and_shows_every_part(page: Page, world: World) -> None:
    world.publish("down", "first-view")
    await page.until_text(lambda text: "sink second refuses" in text.lower(), "#verdict")
    await page.until_text("differs", "#main")  # the other daemon has checked in
    # In one step: a refresh between two steps may change the verdict.
    verdict, health, title, icon = await page.run(
        "[document.getElementById('verdict').innerText, document.documentElement.dataset.health, document.title,"
        " document.getElementById('icon').getAttribute('href')]"
    )
    assert (health, icon) == ("trouble", "page/icon-trouble.svg"), verdict
    assert title.startswith(f"! {verdict}")
    text = await page.text("#main")
    nsqd = ":".join(map(str, world.stage.nsqds[0].tcp_address))
    for wanted in (nsqd, "RDY", "2,500", "hook", "second", "third", "waiting", "down", "redis://"):
        assert wanted in text, wanted
    await page.until("document.querySelectorAll('svg[role=img]').length === 5")
    await examine(page, "overview")


async def test_what_a_publisher_wrote_is_text_and_nothing_else(page: Page) -> None:
    await visit(page, "#/timelines?route=waiting&text=script", SHOWN)
    assert await page.run("document.querySelectorAll('main script, main img').length") == 0
    await page.run("document.querySelector('main a').click()")
    await page.until_text("Why it is due then", "#main")
    assert (await page.text("h2 .name")) == SHOWN
    text = await page.text("main pre")
    assert '\\"><img src=x onerror=alert(2)>' in text
    assert "\u202e" not in await page.text()
    assert "\u2028" not in text
    await examine(page, "timeline")
    await page.run("history.back()")
    await page.until_text("of 1", "#main")


async def test_timelines_are_searched_by_text_and_route(page: Page) -> None:
    await visit(page, "#/timelines", "team:7")
    await examine(page, "timelines")
    await page.run("document.querySelector('input[name=text]').focus()")
    await page.type("team:1")
    await page.press("Enter")
    await page.until_text(lambda text: "11 timelines of 11" in text and "team:7" not in text, "#main")
    assert "text=team%3A1" in await page.run("location.hash")
    assert await page.run("document.activeElement.name") == "text"
    await visit(page, "#/timelines?text=nobody", "No timeline fits this search")


async def test_one_that_is_not_there_is_named(page: Page) -> None:
    await visit(page, "#/timeline/waiting/nobody", "nobody")
    await page.until("document.querySelector('.notice.failing')")


async def test_deliveries_of_all_sinks_and_of_one(page: Page, world: World) -> None:
    world.publish("quick", "delivered:1")
    world.publish("down", "refused:1")
    await visit(page, "#/deliveries", "delivered")
    await page.until_text("503", "#main")
    await examine(page, "deliveries")
    await visit(page, "#/deliveries?sink=second", "503")
    await page.until_text(lambda text: "delivered\n" not in text, "#main tbody")


async def test_it_is_for_a_keyboard_and_a_screen_reader(page: Page) -> None:
    await page.press("Tab")
    assert await page.run("document.activeElement.textContent") == "Skip to the content"
    roles = "['header', 'main', 'footer', 'nav'].every((each) => document.querySelector(each))"
    assert await page.run(roles)
    assert await page.run("[...document.querySelectorAll('table')].every((each) => each.caption.textContent)")
    assert await page.run("document.querySelectorAll('[aria-live]').length") == 1
    told = "document.getElementById('announcer').textContent === "
    await page.until(
        f"{told}`${{document.documentElement.dataset.health}}: ${{document.getElementById('verdict').textContent}}`"
    )


@pytest.mark.parametrize("fragment", ["#/constructor", "#/__proto__/x", "#/toString?a=b", "#/%ff", "#//", "#/nope"])
async def test_an_address_that_names_no_view_is_the_first_one(page: Page, fragment: str) -> None:
    await visit(page, fragment, "Last quarter of an hour")


async def test_a_sink_that_is_not_there_is_not_called_idle(page: Page) -> None:
    await visit(page, "#/deliveries?sink=nope", "remembers no attempt of sink nope")
    await visit(page, "#/dead?sink=nope", "No digest of sink nope is dead")


# -- what one can do


async def test_a_topic_is_paused_and_resumed_and_the_focus_stays(page: Page, world: World) -> None:
    await button(page, f"Pause topic {TOPIC}")
    await answer_dialog(page, "wrong-token")
    await page.until_text("This token is wrong", "dialog")
    await page.picture(PICTURES / "wrong-token.png", whole=False)
    await answer_dialog(page, TOKEN)
    await page.until(f"document.querySelector('[aria-label=\"Resume topic {TOPIC}\"]') === document.activeElement")
    await page.until_text("paused", "#main table")
    assert TOKEN not in await page.run("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
    await button(page, f"Resume topic {TOPIC}")
    await answer_dialog(page, TOKEN)
    await page.until(f"document.querySelector('[aria-label=\"Pause topic {TOPIC}\"]') === document.activeElement")
    assert [line["path"] for line in world.daemon.said("admin.write")][-2:] == ["/api/pause", "/api/resume"]


async def test_a_timeline_is_delivered_now(page: Page, world: World) -> None:
    world.publish("waiting", "flushed:1")
    await visit(page, "#/timelines?text=flushed", "flushed:1")
    await page.run("document.querySelector('main table a').click()")
    await page.until("document.querySelector('[aria-label^=\"Deliver now\"]')")
    await button(page, "Deliver now: timeline flushed:1")
    await answer_dialog(page, TOKEN)
    await until(lambda: any(data["timeline"] == "flushed:1" for data in world.hook.digests()), PATIENCE_S)
    await page.until("!document.querySelector('dialog').open")


async def test_dead_digests_are_sent_again(page: Page, world: World) -> None:
    posts = len(world.refusing.posts)
    await visit(page, "#/dead", SHOWN)
    await page.until_text("refused", "#main")
    await examine(page, "dead")
    await page.run(
        "[...document.querySelectorAll('main button')].find((each) => /again/.test(each.textContent)).focus()"
    )
    await page.press("Enter")
    await answer_dialog(page, TOKEN)
    await page.until("!document.querySelector('dialog').open")
    await until(lambda: len(world.refusing.posts) > posts, PATIENCE_S, "a dead digest to be posted again")
    await until(lambda: world.dead() == 2, PATIENCE_S, "it to be dead again")


# -- what breaks


async def test_redis_away_and_back(page: Page, world: World) -> None:
    world.stage.store.kill()
    try:
        world.publish("quick", "user:44")
        await page.until("document.documentElement.dataset.health === 'failing'", PATIENCE_S)
        await page.until("document.querySelector('.checks .failing')")
        await examine(page, "redis-away", [DAY])
        await visit(page, "#/timelines", "Redis")
        await page.picture(PICTURES / "redis-away-timelines.png")
    finally:
        world.stage.store.start()
    await page.until("['well', 'trouble'].includes(document.documentElement.dataset.health)", PATIENCE_S)
    await page.until_text("team:7", "#main")


async def test_the_daemon_away_and_back(page: Page, world: World) -> None:
    world.daemon.kill()
    try:
        await page.until_text("The daemon does not answer", "#verdict")
        await page.until_text("What stands below is from", "#top")
        assert "hook" in await page.text("#main")
        assert (await page.run("document.title")).startswith("? ")
        assert await page.run("document.getElementById('icon').getAttribute('href')") == "page/icon-away.svg"
        await page.until("document.querySelector('.banner img').naturalWidth > 0")
        await examine(page, "daemon-away", [DAY])
    finally:
        world.daemon.start()
    await page.until("document.documentElement.dataset.health !== 'away'", PATIENCE_S)


async def test_left_open_it_does_not_grow(page: Page) -> None:
    def has_asked(before: int) -> bool:
        return len(page.requests) > before

    async def refreshed(times: int) -> float:
        for _ in range(times):
            asked = len(page.requests)
            await page.run("document.dispatchEvent(new Event('visibilitychange'))")
            await until(partial(has_asked, asked), PATIENCE_S)
            await page.run("new Promise(requestAnimationFrame)")
        await page.call("HeapProfiler.collectGarbage")
        return float((await page.call("Memory.getDOMCounters"))["nodes"])

    first = await refreshed(20)
    assert await refreshed(60) <= first * 1.1 + 50


async def test_beyond_this_machine_it_asks_for_the_token(page: Page, world: World) -> None:
    world.other.kill()
    world.other.admin["listen"] = f"0.0.0.0:{world.other.ports[0]}"
    world.other.start()
    await page.go(world.url(daemon=world.other))
    await page.until_text("This needs the token", "#verdict")
    await examine(page, "locked", [NIGHT])
    await page.run("document.querySelector('main button').focus()")
    await page.press("Enter")
    await answer_dialog(page, "wrong-token")
    await page.until_text("This token is wrong", "dialog")
    await answer_dialog(page, TOKEN)
    await page.until_text("Connections", "#main")
