"""The demo from start to end: servers, receivers and daemon start; the shop publishes; the last digests arrive.

The daemon is `nsqdigest run`, a process like Redis; both end with this one. A first TERM or INT ends the publishing,
and events on their way still arrive; a second one, a HUP, or a closed output ends the demo at once, and events that had
not arrived by then count as lost.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from nsqdigest.base.errors import NsqdigestError
from nsqdigest.config import Address
from nsqdigest.demo.account import Account, Troubles, in_one_sentence, records_of
from nsqdigest.demo.daemons import audit
from nsqdigest.demo.header import History
from nsqdigest.demo.narrator import Narrator
from nsqdigest.demo.receiver import DeadLetterReader, WebhookReceiver, new_secret
from nsqdigest.demo.servers.nsqd import EmbeddedNsqd, Options
from nsqdigest.demo.servers.redis import EmbeddedRedis
from nsqdigest.demo.settings import Places, file, settings
from nsqdigest.demo.shop import Shop
from nsqdigest.demo.stage import Publish, Stage, Timing
from nsqdigest.demo.troupe import Troupe
from nsqdigest.nsq.connection import ConnectionOptions
from nsqdigest.nsq.publisher import Publisher

PATIENCE_S = 30.0
"""Events on their way get so long once the publishing has ended."""
HEADER_EVERY_S = 0.25


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
        self._history = History()
        self._ledger = ""
        self._troubles = Troubles()
        self._is_on_stage = False
        self._has_ended = False
        """What the drain does is no part of the header."""
        self._asked_to_end = asyncio.Event()
        self._changed = asyncio.Event()
        """Something arrived, or the daemon has ended by itself."""
        self._troupe = Troupe(narrator, self._end_after_failure)

    async def run(self) -> bool:
        """Returns whether every event arrived."""
        is_broken_off = False
        with self._narrator.showing_the_log(), self._endings():
            try:
                await self._run()
            except asyncio.CancelledError:
                is_broken_off = True
                self._narrator.note("ended at once, without waiting for events on their way")
        self._narrator.header(self._history)
        sentence = in_one_sentence(self._account, self._troubles)
        self._narrator.closing(self._account, self._ledger, sentence, is_broken_off)
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

        handlers = {
            signal.SIGINT: politely, signal.SIGTERM: politely, signal.SIGHUP: at_once,
            signal.SIGTSTP: self._narrator.stop_the_process,
        }  # fmt: skip
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
            EmbeddedNsqd(Options(is_unbuffered=True)) as embedded,
            WebhookReceiver(secret, self._on_digest, self._on_forgery) as receiver,
        ):
            nsqd = Address(*embedded.tcp_address)
            places = Places(nsqd, redis.url, receiver.url, secret)
            chosen = settings(places)
            topic = chosen.routes[0].topic
            self._narrator.running(nsqd.port, redis.port, receiver.port)
            async with (
                self._live_header(embedded, topic, chosen.nsq.channel),
                DeadLetterReader(nsqd, chosen.nsq.dead_letter_topic, self._on_dead_letter),
                self._troupe.performing(places),
                publishing(nsqd, topic) as publish,
            ):
                stage = Stage(
                    self._timing, self._narrator, self._account, self._history,
                    redis=redis, kill_soon=self._troupe.kill_soon,
                )  # fmt: skip
                try:
                    with self._on_stage():
                        await stage.play(Shop(random.Random()), publish, self._asked_to_end)
                        await self._wait_for_the_last()
                        self._has_ended = True
                finally:
                    self._troubles = Troubles(stage.redis_away_s, self._troupe.kills)
            self._account.complaints += self._troupe.complaints
            await self._read_ledger(places)

    async def _wait_for_the_last(self) -> None:
        if self._account.open:
            self._narrator.phase(f"Publishing has ended. {self._account.open} events are still on their way.")
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (self._account.open or self._troupe.waits_for_repeat) and not self._troupe.complaints:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._narrator.note(f"The demo waits no longer than {PATIENCE_S:.0f} s for them.")

    async def _read_ledger(self, places: Places) -> None:
        """Redis' own account, when no daemon runs any more: every record that was ever added is in it."""
        try:
            with file() as path:
                ledger = await audit(path, places.environ())
        except NsqdigestError as error:
            self._account.complaints.append(f"the ledger cannot be read: {error}")
            return
        stored, delivered = ledger["added"] - ledger["dropped"]["duplicate"], ledger["delivered"]
        balance = "it balances" if ledger["balanced"] else "it does not balance"
        self._ledger = f"Redis stored {stored:,} events, {delivered:,} were delivered: {balance}"
        if not ledger["balanced"]:
            self._account.complaints.append("the ledger in Redis does not balance")
        if self._account.is_right and delivered != self._account.delivered + self._account.repeated:
            self._account.complaints.append(f"the ledger counts {delivered:,} delivered events")

    # -- the header

    @asynccontextmanager
    async def _live_header(self, nsqd: EmbeddedNsqd, topic: str, channel: str) -> AsyncIterator[None]:
        def look() -> None:
            if not self._has_ended:
                self._history.set_limit(nsqd.most_in_flight(topic, channel))

        async def show() -> None:
            while True:
                self._history.at(self._narrator.now_s)
                look()
                self._narrator.header(self._history)
                await asyncio.sleep(HEADER_EVERY_S)

        loop = asyncio.get_running_loop()

        # Each RDY, not only those that a timer happens to see: a probe is short. nsqd carries it out after this call.
        def on_command(_connection: object, name: str, _params: object) -> None:
            if name == "RDY":
                loop.call_soon(look)

        nsqd.script.on_command = on_command
        task = asyncio.create_task(show(), name="demo-header")
        try:
            yield
        finally:
            nsqd.script.on_command = None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # -- what arrives

    def _end_after_failure(self) -> None:
        """No daemon runs any more."""
        self._asked_to_end.set()
        self._changed.set()

    def _on_digest(self, body: bytes) -> None:
        digest = self._account.accepted(body)
        if digest is None:
            self._narrator.digest_again()
            self._troupe.on_repeat()
        else:
            self._history.add_digest()
            self._narrator.digest(digest, [record["value"]["id"] for record in records_of(digest)])
            self._troupe.on_digest(digest)
        self._changed.set()

    def _on_forgery(self) -> None:
        self._account.complaints.append("a digest came with a wrong signature, and was refused")

    def _on_dead_letter(self, letter: dict[str, Any]) -> None:
        self._account.dead_lettered(letter)
        self._narrator.dead_letter(letter["reason"], letter["detail"])
        self._changed.set()
