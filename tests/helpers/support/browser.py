"""A headless Chromium, driven by the DevTools protocol over its websocket: pages, scripts in them, pictures of them.

`async with Browser(folder) as browser:` starts it with an empty profile. Whatever a page writes to its console as an
error, what it throws, and each address that it asks elsewhere than its own origin is kept in `page.complaints`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import aiohttp

from support.servers import MissingServer
from support.waiting import PATIENCE_S, until

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--disable-dev-shm-usage", "--remote-debugging-port=0", "--force-color-profile=srgb",
)  # fmt: skip
ANSWERS_WITHIN_S = 2 * PATIENCE_S
"""Checks of a whole page are one call."""
LARGEST_ANSWER = 64 << 20


def find_browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise MissingServer(f"there is no Chromium here (looked for {', '.join(BROWSERS)}); run `make setup`")
    return found


class Browser:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.pages: dict[str, Page] = {}

    async def __aenter__(self) -> Self:
        profile = self._folder / "profile"
        profile.mkdir(parents=True)
        log = (self._folder / "chromium.log").open("wb")
        with log:
            self._process = subprocess.Popen(
                [find_browser(), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        said = profile / "DevToolsActivePort"
        try:
            await until(lambda: said.exists() and "\n" in said.read_text(), what="Chromium to start")
            port, path = said.read_text().split("\n")[:2]
            self._session = aiohttp.ClientSession()
            self._socket = await self._session.ws_connect(
                f"ws://127.0.0.1:{port}{path}", max_msg_size=LARGEST_ANSWER, autoping=True
            )
        except BaseException:
            await self.__aexit__()
            raise
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._socket is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.call("Browser.close"), 5.0)
            await self._socket.close()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, 5.0)
            self._process.kill()
            self._process.wait()

    async def page(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        target = (await self.call("Target.createTarget", url="about:blank"))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self.pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            await page.call(f"{domain}.enable")
        await page.resize(width, height)
        await page.look(dark=dark)
        await page.go(url)
        return page

    async def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        assert self._socket is not None
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        await self._socket.send_str(json.dumps(message))
        try:
            return await asyncio.wait_for(answer, ANSWERS_WITHIN_S)
        finally:
            self._answers.pop(number, None)

    async def _read(self) -> None:
        assert self._socket is not None
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                continue
            told = json.loads(message.data)
            answer = self._answers.get(told.get("id", 0))
            if answer is not None and not answer.done():
                if "error" in told:
                    answer.set_exception(RuntimeError(f"Chromium refuses: {told['error']}"))
                else:
                    answer.set_result(told["result"])
            elif "method" in told and told.get("sessionId") in self.pages:
                self.pages[told["sessionId"]].learn(told["method"], told["params"])


class Page:
    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target
        self.complaints: list[str] = []
        self.requests: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._browser.call(method, self._session, **params)

    def learn(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            about = params["exceptionDetails"]
            self.complaints.append(f"{about['text']} {about.get('exception', {}).get('description', '')}")
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"console: {params['args']}")
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            if entry["source"] != "network":  # an answer that is no 200, or none: the page deals with it
                self.complaints.append(f"{entry['source']}: {entry['text']}")
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Page.javascriptDialogOpening":
            self.complaints.append(f"a script of somebody else ran: {params['message']}")

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def resize(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    async def look(self, *, dark: bool) -> None:
        """Without motion: what is looked at has arrived."""
        features = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        told = [{"name": name, "value": value} for name, value in features.items()]
        await self.call("Emulation.setEmulatedMedia", features=told)

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        told = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise AssertionError(f"{script[:200]}: {told['exceptionDetails']}")
        return told["result"].get("value")

    async def until(self, script: str, timeout_s: float = 10.0, what: str = "") -> None:
        await until(lambda: self.run(f"Boolean({script})"), timeout_s, what or script)

    async def text(self, selector: str = "body") -> str:
        return str(await self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def until_text(self, wanted: str | Callable[[str], bool], selector: str = "body") -> None:
        does = wanted if callable(wanted) else lambda text: wanted in text

        async def looks() -> bool:
            return does(await self.text(selector))

        await until(looks, 15.0, f"{wanted!r} in {selector}")

    async def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text
            )

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def picture(self, path: Path, *, whole: bool = True) -> None:
        params: dict[str, Any] = {"format": "png"}
        if whole:
            size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
            clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
            params |= {"captureBeyondViewport": True, "clip": clip}
        told = await self.call("Page.captureScreenshot", **params)
        path.write_bytes(base64.b64decode(told["data"]))

    async def close(self) -> None:
        await self._browser.call("Target.closeTarget", targetId=self._target)
        self._browser.pages.pop(self._session, None)
