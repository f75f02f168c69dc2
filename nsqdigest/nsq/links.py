"""One topic's connections: one is kept to every address that the directory knows.

Invariants:
- An address has one link, and a link one connection at most. All links end with the task that runs them.
- A connection that lives is never ended for what a nsqlookupd says, or does not say.
- What broke or could not be made is tried again after a drawn time between 0.25 s and 5 s, longer from one try to the
  next: the file or a nsqlookupd names every address that has a link, so that its nsqd is expected back. After 15 s to
  30 s where only the operator can help; and at once where a nsqlookupd names the address again.
- A failure is said when it begins and when it turns into another one, then once an hour; its end is said, too.

What is sent over a connection, and what comes of it, is the host's business: it gets each connection subscribed, with
RDY 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base import log
from nsqdigest.base.errors import ConnectionLost, NsqdigestError, NsqdRefused, NsqdSilent, ProtocolError
from nsqdigest.nsq.connection import NsqConnection, Receiver
from nsqdigest.nsq.directory import FILE

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Address
    from nsqdigest.nsq.connection import ConnectionOptions
    from nsqdigest.nsq.directory import Directory, Entry

RECONNECT_FIRST_MS = 250
RECONNECT_CAP_MS = 5_000
OPERATOR_CAP_MS = 30_000
SETTLED_S = 5.0
"""A connection that ended sooner did not end the row of failures: whoever hangs up at once is not tried in a loop."""
SAY_AGAIN_S = 3600.0
_HINT = "only a nsqlookupd names this address: give that nsqd a -broadcast-address that can be reached from here"

_log = log.get("consumer")


class Host(Receiver, Protocol):
    def on_open(self, connection: NsqConnection) -> None:
        """Subscribed. `on_closed` follows when it ends."""


class Link:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.connection: NsqConnection | None = None
        self.task: asyncio.Task[None] | None = None
        self.nudge = asyncio.Event()
        self.failures = 0
        self.was_open = False
        self.down_since_s: float | None = None
        self.said = ""
        self.said_s = -math.inf

    @property
    def is_open(self) -> bool:
        return self.connection is not None and self.connection.subscribed and self.connection.is_open


class Links:
    def __init__(
        self,
        topic: str,
        channel: str,
        directory: Directory,
        options: ConnectionOptions,
        host: Host,
        *,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
    ) -> None:
        self._topic = topic
        self._channel = channel
        self._directory = directory
        self._options = options
        self._host = host
        self._metrics = metrics
        self._uniform = uniform
        self._links: dict[Address, Link] = {}
        self._group: asyncio.TaskGroup | None = None
        self._held = False

    # -- what others may see

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self._directory.addresses

    @property
    def connected(self) -> tuple[Address, ...]:
        return tuple(address for address, link in self._links.items() if link.is_open)

    def entry(self, address: Address) -> Entry:
        return self._directory.entry(address)

    # -- beginning and end

    async def run(self) -> None:
        """Until it is cancelled; then every link is. A link that ends with an error ends all of them, with it."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._begin(self._directory.addresses)
            self._count()
            await asyncio.Event().wait()

    def hold(self) -> None:
        """No connection is made from here on. Those that are open stay, for the drain."""
        self._held = True
        for link in self._links.values():
            link.nudge.set()
            if link.connection is not None and not link.is_open:
                link.connection.close("the daemon stops")

    def _begin(self, addresses: Sequence[Address]) -> None:
        if self._group is None or self._held:
            return  # `run` begins all that are known by then
        for address in addresses:
            link = self._links[address] = Link(address)
            link.task = self._group.create_task(self._keep(link), name=f"{self._topic} at {address}")

    # -- what a nsqlookupd says

    def heard(self, lookupd: str, named: Sequence[Address]) -> None:
        change = self._directory.answered(lookupd, named, self.connected, time.monotonic())
        for address in change.found:
            _log.info("consumer.nsqd.found", topic=self._topic, nsqd=str(address), lookupd=lookupd)
        self._begin(change.found)
        for address in change.returned:
            if address in self._links:
                self._links[address].nudge.set()
        for address in change.forgotten:
            link = self._links.get(address)
            if link is not None and link.task is not None:
                link.task.cancel()
                self._forgotten(link)
        self._count()

    def _forgotten(self, link: Link) -> None:
        # By identity: named again meanwhile, the address may have another link already.
        if self._links.get(link.address) is link:
            del self._links[link.address]
        _log.info("consumer.nsqd.forgotten", topic=self._topic, nsqd=str(link.address))

    def _count(self) -> None:
        self._metrics.set("nsqd_addresses", len(self._directory.addresses), topic=self._topic)

    # -- one link

    async def _keep(self, link: Link) -> None:
        while not self._is_over(link):
            link.nudge.clear()
            wait_s = await self._connect(link)
            if self._is_over(link):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await link.nudge.wait()

    def _is_over(self, link: Link) -> bool:
        if not self._held and self._directory.broken(link.address):
            self._forgotten(link)
            self._count()
            return True
        return self._held

    async def _connect(self, link: Link) -> float:
        """One connection, from its beginning to its end. Returns how long to wait for the next."""
        connection = link.connection = NsqConnection(link.address, self._options, self._host)
        try:
            try:
                await connection.open()
                await connection.subscribe(self._topic, self._channel)
                if not connection.is_open:
                    # It ended in the same read as the answer: its host has been told, and must not get it afterwards.
                    raise await connection.closed()
            except NsqdigestError as error:
                return self._failed(link, error)
            opened_s = time.monotonic()
            self._opened(link, connection)
            reason = await connection.closed()
            return self._lost(link, reason, time.monotonic() - opened_s)
        except Exception as error:
            # Whatever it is, it is about this nsqd: the others of the topic must not end with it.
            _log.error(
                "consumer.connection.bug", topic=self._topic, nsqd=str(link.address), error=error, exc_info=error
            )
            return self._failed(link, ConnectionLost(f"nsqd at {link.address}: {type(error).__name__}: {error}"))
        finally:
            if not link.is_open:
                # Of an open one, when the task is cancelled, the host decides: it may have something to give back.
                connection.close("its link ends")
            link.connection = None

    def _wait_s(self, link: Link, error: NsqdigestError) -> float:
        if error.needs_operator:
            return self._uniform(OPERATOR_CAP_MS / 2, OPERATOR_CAP_MS) / 1000
        return retry_wait_ms(link.failures, RECONNECT_FIRST_MS, RECONNECT_CAP_MS, self._uniform) / 1000

    # -- what happened to it

    def _opened(self, link: Link, connection: NsqConnection) -> None:
        fields: dict[str, Any] = {}
        if link.down_since_s is not None:
            fields["after_s"] = round(time.monotonic() - link.down_since_s, 1)
        link.was_open, link.down_since_s, link.said = True, None, ""
        _log.info(
            "consumer.connection.open",
            topic=self._topic,
            channel=self._channel,
            nsqd=str(link.address),
            sources=", ".join(self.entry(link.address).sources),
            **fields,
        )
        self._host.on_open(connection)

    def _failed(self, link: Link, error: NsqdigestError) -> float:
        link.failures += 1
        wait_s = self._wait_s(link, error)
        if self._held:
            return wait_s
        now_s = time.monotonic()
        if link.down_since_s is None:
            link.down_since_s = now_s
        kind = _kind(error)
        is_news = kind != link.said or now_s >= link.said_s + SAY_AGAIN_S
        if is_news:
            link.said, link.said_s = kind, now_s
        fields: dict[str, Any] = {}
        if not link.was_open and not error.needs_operator and FILE not in self.entry(link.address).sources:
            fields["hint"] = _HINT
        (_log.warning if is_news else _log.debug)(
            "consumer.connection.failed",
            topic=self._topic,
            nsqd=str(link.address),
            error=error,
            again_s=round(wait_s, 2),
            **fields,
        )
        return wait_s

    def _lost(self, link: Link, reason: NsqdigestError, lived_s: float) -> float:
        link.failures = 1 if lived_s >= SETTLED_S else link.failures + 1
        wait_s = self._wait_s(link, reason)
        if not self._held:
            link.down_since_s = time.monotonic()
            self._metrics.add("nsqd_connections_lost_total", topic=self._topic, reason=_word(reason))
            _log.warning(
                "consumer.connection.lost",
                topic=self._topic,
                nsqd=str(link.address),
                error=reason,
                again_s=round(wait_s, 2),
            )
        return wait_s


def _kind(error: NsqdigestError) -> str:
    """What makes two failures the same one, whatever numbers their texts hold."""
    if error.needs_operator:
        return str(error)
    return f"{type(error).__name__} {error.code}" if isinstance(error, NsqdRefused) else type(error).__name__


def _word(reason: NsqdigestError) -> str:
    """One of a few, for a label."""
    if isinstance(reason, NsqdSilent):
        return "silent"
    if isinstance(reason, NsqdRefused):
        return "refused"
    return "garbage" if isinstance(reason, ProtocolError) else "closed"
