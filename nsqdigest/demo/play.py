"""The demo from start to end: servers, receivers and daemon start; the shop publishes; the last digests arrive.

The daemon is started and drained as `nsqdigest run` does it. Only Redis is a process of its own, and ends with this
one. A first TERM or INT ends the publishing, and events on their way still arrive; a second one, a HUP, or a closed
output ends the demo at once, and events that had not arrived by then count as lost.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from nsqdigest import config
from nsqdigest.config import Address, Config
from nsqdigest.daemon.life import Daemon
from nsqdigest.delivery.sinks.table import KINDS
from nsqdigest.demo.account import Account
from nsqdigest.demo.narrator import Narrator
from nsqdigest.demo.receiver import DeadLetterReader, WebhookReceiver, new_secret
from nsqdigest.demo.servers.nsqd import EmbeddedNsqd
from nsqdigest.demo.servers.redis import EmbeddedRedis
from nsqdigest.demo.shop import Shop
from nsqdigest.demo.stage import Publish, Stage, Timing
from nsqdigest.nsq.connection import ConnectionOptions
from nsqdigest.nsq.publisher import Publisher

PATIENCE_S = 30.0
"""Events on their way get so long once the publishing has ended."""


def settings(nsqd: Address, redis_url: str, webhook_url: str, secret: str) -> Config:
    """demo.toml, with the addresses put over it in the way that anyone can use."""
    text = (importlib.resources.files("nsqdigest.demo") / "demo.toml").read_text(encoding="utf-8")
    environ = {
        "NSQDIGEST__NSQ__NSQD_TCP_ADDRESSES": str(nsqd),
        "NSQDIGEST__REDIS__URL": redis_url,
        "NSQDIGEST__SINKS__TEAM__URL": webhook_url,
        "DEMO_WEBHOOK_SECRET": secret,
    }
    return config.parse_text(text, "demo.toml", environ, KINDS)


@asynccontextmanager
async def running(daemon: Daemon) -> AsyncIterator[None]:
    """Drained at the end of the body; stopped after an exception."""
    try:
        await daemon.start()
        yield
        await daemon.drain()
    except BaseException:
        await daemon.stop()
        raise


@asynccontextmanager
async def publishing(nsqd: Address, topic: str) -> AsyncIterator[Publish]:
    """Over the wire, each batch acknowledged."""
    publisher = Publisher(ConnectionOptions(heartbeat_interval_ms=30_000))
    try:
        yield lambda bodies: publisher.publish(nsqd, topic, bodies)
    finally:
        await publisher.close()


class Play:
    def __init__(self, seconds: int, narrator: Narrator) -> None:
        self._timing = Timing.of(seconds)
        self._narrator = narrator
        self._account = Account()
        self._stored: int | None = None
        self._is_on_stage = False
        self._asked_to_end = asyncio.Event()
        self._arrived = asyncio.Event()

    async def run(self) -> bool:
        """Returns whether every event arrived."""
        is_broken_off = False
        with self._narrator.showing_the_log(), self._endings():
            try:
                await self._run()
            except asyncio.CancelledError:
                is_broken_off = True
                self._narrator.note("ended at once, without waiting for events on their way")
        self._narrator.closing(self._account, self._stored, is_broken_off)
        return self._account.is_right

    @contextmanager
    def _endings(self) -> Iterator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def at_once() -> None:
            # Neither the start nor the clean-up is cut off: both are short, and would leave something behind.
            self._asked_to_end.set()
            if self._is_on_stage and not task.cancelling():
                task.cancel()

        def politely() -> None:
            if self._asked_to_end.is_set():
                at_once()
            self._asked_to_end.set()

        handlers = {signal.SIGINT: politely, signal.SIGTERM: politely, signal.SIGHUP: at_once}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        self._narrator.on_reader_gone = at_once
        try:
            yield
        finally:
            self._narrator.on_reader_gone = lambda: None
            for number in handlers:
                loop.remove_signal_handler(number)

    @contextmanager
    def _on_stage(self) -> Iterator[None]:
        self._is_on_stage = True
        try:
            yield
        finally:
            self._is_on_stage = False

    async def _run(self) -> None:
        secret = new_secret(os.urandom(24))
        async with (
            EmbeddedRedis(options={"maxmemory": "256mb"}) as redis,
            EmbeddedNsqd() as embedded,
            WebhookReceiver(secret, self._on_digest, self._on_forgery) as receiver,
        ):
            nsqd = Address(*embedded.tcp_address)
            chosen = settings(nsqd, redis.url, receiver.url, secret)
            daemon, topic = Daemon(chosen), chosen.routes[0].topic
            async with (
                DeadLetterReader(nsqd, chosen.nsq.dead_letter_topic, self._on_dead_letter),
                running(daemon),
                publishing(nsqd, topic) as publish,
            ):
                self._narrator.running(nsqd.port, redis.port, receiver.port)
                with self._on_stage():
                    await Stage(self._timing, self._narrator, self._account, redis).play(
                        Shop(random.Random()), publish, self._asked_to_end
                    )
                    await self._wait_for_the_last()
                ledgers = [await daemon.parts.store.operations.ledger(route.name) for route in chosen.routes]
                self._stored = sum(each.get("added", 0) - each.get("dropped:duplicate", 0) for each in ledgers)

    async def _wait_for_the_last(self) -> None:
        if self._account.open:
            self._narrator.phase(f"Publishing has ended. {self._account.open} events are still on their way.")
        try:
            async with asyncio.timeout(PATIENCE_S):
                while self._account.open:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            self._narrator.note(f"The demo waits no longer than {PATIENCE_S:.0f} s for them.")

    # -- what arrives

    def _on_digest(self, body: bytes) -> None:
        digest = self._account.accepted(body)
        if digest is None:
            self._narrator.digest_again()
        else:
            self._narrator.digest(digest)
        self._arrived.set()

    def _on_forgery(self) -> None:
        self._account.complaints.append("a digest came with a wrong signature, and was refused")

    def _on_dead_letter(self, letter: dict[str, Any]) -> None:
        self._account.dead_lettered(letter)
        self._narrator.dead_letter(letter["reason"], letter["detail"])
        self._arrived.set()
