"""Writes docs/pictures/page.png and page-dark.png: the page of a daemon that has worked for three minutes, one of whose
receivers refuses. It needs Chromium, nsqd and Redis.

Run it after a change of what the page shows: `make page-picture`.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import tempfile
import time
from pathlib import Path

from support.browser import Browser
from support.daemon import Daemon, Settings
from support.receiver import Answer, Receiver
from support.servers import Nsqd, RedisServer

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH, HEIGHT = 1200, 1130
WORKS_S = 180.0
TICK_S = 0.2
TIMELINES = 400
SEED = 7


class Pictured(Daemon):
    """Its file has a short name: the page shows it."""

    def _arguments(self) -> list[str]:
        super()._arguments()
        return ["run", "--config", self.config_path.name]


def daemon_of(folder: Path, nsqd: Nsqd, redis: RedisServer, chat: Receiver, pager: Receiver) -> Daemon:
    host, port = nsqd.tcp_address
    settings: Settings = {
        "nsq": {"nsqd_tcp_addresses": [f"{host}:{port}"]},
        "redis": {"url": redis.url},
        "policies.default": {"minimum_delay": "20s", "increment_delay": "1s", "maximum_delay": "60s"},
        "sinks.chat": {"type": "webhook", "url": chat.url},
        "sinks.pager": {"type": "webhook", "url": pager.url},
    }
    routes = [
        {"name": "events", "topic": "events", "timeline": "{user}", "key": "{id}", "sink": "chat"},
        {"name": "alarms", "topic": "alarms", "timeline": "{service}", "key": "{id}", "sink": "pager"},
    ]
    return Pictured(folder / "daemon", settings, routes)


async def publish(nsqd: Nsqd, until_s: float) -> None:
    draw, began_s, number = random.Random(SEED), time.monotonic(), 0
    while (now_s := time.monotonic()) < until_s:
        per_s = 180 + 90 * math.sin((now_s - began_s) / 17) + draw.uniform(-20, 20)
        events = [
            {"user": f"user:{draw.randrange(TIMELINES)}", "id": number + each} for each in range(int(per_s * TICK_S))
        ]
        number += len(events)
        nsqd.publish_many("events", [json.dumps(event).encode() for event in events])
        if draw.random() < TICK_S / 10:
            nsqd.publish_many("alarms", [json.dumps({"service": f"db-{draw.randrange(5)}", "id": number}).encode()])
        await asyncio.sleep(TICK_S)


async def draw(folder: Path) -> None:
    with Nsqd(folder / "nsqd") as nsqd, RedisServer(folder / "redis") as redis, Receiver() as chat, Receiver() as pager:
        for topic in ("events", "alarms"):
            nsqd.create_channel(topic, "nsqdigest")
        daemon = daemon_of(folder, nsqd, redis, chat, pager)
        with daemon:
            half_s = time.monotonic() + WORKS_S / 2
            await publish(nsqd, half_s)
            pager.answer(Answer(503))
            await publish(nsqd, half_s + WORKS_S / 2)
            async with Browser(folder / "browser") as browser:
                load = asyncio.create_task(publish(nsqd, math.inf))
                url = f"http://127.0.0.1:{daemon.ports[0]}/"
                page = await browser.page(url, width=WIDTH, height=HEIGHT)
                await page.until("document.querySelectorAll('svg[role=img]').length === 5")
                for name, dark in (("page", False), ("page-dark", True)):
                    await page.look(dark=dark)
                    await page.picture(PICTURES / f"{name}.png", whole=False)
                load.cancel()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(draw(Path(folder)))
    print("written: docs/pictures/page.png and page-dark.png")


if __name__ == "__main__":
    main()
