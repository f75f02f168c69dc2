"""One topic's connections: one to every address that the directory knows, kept up by reconnecting.

Invariants:
- An address is managed once, and has one connection at most. All tasks here end with the task of `run`.
- A living connection is never ended because of what a nsqlookupd answers, or does not answer.
- A connection that broke, or failed to open, is tried again after a drawn time between 0.25 s and 5 s, longer from one
  try to the next: the file or a nsqlookupd names every managed address, so that its nsqd is expected back. After 15 s
  to 30 s where only the operator can help; and at once when a nsqlookupd names the address again.
- Failures are logged on start, on change and hourly; recovery is logged once.

Addresses come from `directory`, which gets the answers of `lookups`. Each subscribed connection goes to the owner, with
RDY 0; all further commands over it, and its messages, are the owner's.
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
from nsqdigest.base.errors import ConnectionLost, NsqdError
from nsqdigest.nsq.connection import NsqConnection, Receiver
from nsqdigest.nsq.directory import FILE
from nsqdigest.nsq.farewell import part_slowly

if TYPE_CHECKING:
    from nsqdigest.base.allowed_hosts import Allowed
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Address
    from nsqdigest.nsq.connection import ConnectionOptions
    from nsqdigest.nsq.directory import Directory, Entry

RECONNECT_FIRST_MS = 250
RECONNECT_CAP_MS = 5_000
OPERATOR_CAP_MS = 30_000
STABLE_AFTER_S = 5.0
"""A connection that ended sooner counts as one more failure in a row: an nsqd that hangs up at once is not tried in a
loop."""
LOG_REPEAT_S = 3600.0
_HINT = "only a nsqlookupd names this address: give that nsqd a -broadcast-address that can be reached from here"

_log = log.get("consumer")


class ConnectionOwner(Receiver, Protocol):
    def on_open(self, connection: NsqConnection) -> None:
        """Subscribed. `on_closed` follows when it ends."""


class ManagedAddress:
    """One nsqd: its connection, and how the last tries went."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connection: NsqConnection | None = None
        self.task: asyncio.Task[None] | None = None
        self.wake = asyncio.Event()
        """Set: try now, without waiting any longer."""
        self.failures = 0
        """In a row."""
        self.was_open = False
        self.is_leaving = False
        """Its connection ends because the file no longer names or allows it."""
        self.down_since_s: float | None = None
        self.logged_failure = ""
        """The `signature` of the failure that was logged last; "" once it has recovered."""
        self.logged_at_s = -math.inf

    @property
    def is_open(self) -> bool:
        return self.connection is not None and self.connection.subscribed and self.connection.is_open


class Connections:
    def __init__(
        self,
        topic: str,
        channel: str,
        directory: Directory,
        options: ConnectionOptions,
        owner: ConnectionOwner,
        *,
        metrics: Metrics,
        uniform: Callable[[float, float], float],
    ) -> None:
        self._topic = topic
        self._channel = channel
        self._directory = directory
        self._options = options
        self._owner = owner
        self._metrics = metrics
        self._uniform = uniform
        self._log = _log.bind(topic=topic)
        self._managed: dict[Address, ManagedAddress] = {}
        self._group: asyncio.TaskGroup | None = None
        self._is_stopping = False

    # -- for status

    @property
    def addresses(self) -> tuple[Address, ...]:
        return self._directory.addresses

    @property
    def connected(self) -> tuple[Address, ...]:
        return tuple(address for address, managed in self._managed.items() if managed.is_open)

    def entry(self, address: Address) -> Entry:
        return self._directory.entry(address)

    # -- start and end

    async def run(self) -> None:
        """Until it is cancelled, which ends all connections. An error in one task ends all of them, with that error."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._manage(self._directory.addresses)
            self._set_gauge()
            await asyncio.Event().wait()

    def stop_connecting(self) -> None:
        """No connection is made from here on. Those that are open stay, for the drain."""
        self._is_stopping = True
        for managed in self._managed.values():
            managed.wake.set()
            if managed.connection is not None and not managed.is_open:
                managed.connection.close("the daemon stops")

    def _manage(self, addresses: Sequence[Address]) -> None:
        if self._group is None or self._is_stopping:
            return  # `run` begins with all that are known by then
        for address in addresses:
            managed = self._managed[address] = ManagedAddress(address)
            managed.task = self._group.create_task(self._keep_connected(managed), name=f"{self._topic} at {address}")

    # -- answers of nsqlookupds

    def on_lookup_answer(self, lookupd: str, named: Sequence[Address]) -> None:
        """All nsqds that one nsqlookupd names for the topic."""
        change = self._directory.answered(lookupd, named, self.connected, time.monotonic())
        for address in change.found:
            self._log.info("consumer.nsqd.found", nsqd=str(address), lookupd=lookupd)
        self._manage(change.found)
        for address in change.returned:
            if address in self._managed:
                self._managed[address].wake.set()
        self._forget_all(change.forgotten)
        self._set_gauge()

    def _forget_all(self, addresses: Sequence[Address]) -> None:
        for address in addresses:
            managed = self._managed.get(address)
            if managed is not None and managed.task is not None:
                managed.task.cancel()
                self._forget(managed)

    # -- another file

    def change(self, fixed: Sequence[Address], gone: Sequence[str], allowed: Allowed | None) -> None:
        """The file's addresses from now on, the nsqlookupds that it no longer names, and the nsqds that it allows."""
        change = self._directory.change(fixed, gone, allowed, self.connected, time.monotonic())
        self._manage(change.found)
        self._forget_all(change.forgotten)
        for address in change.leaving:
            managed = self._managed[address]
            if self._group is not None and managed.connection is not None and not managed.is_leaving:
                managed.is_leaving = True
                self._group.create_task(part_slowly(managed.connection), name=f"{self._topic} leaves {address}")
        self._set_gauge()

    def _forget(self, managed: ManagedAddress) -> None:
        # By identity: named again meanwhile, the address may be managed anew already.
        if self._managed.get(managed.address) is managed:
            del self._managed[managed.address]
        self._log.info("consumer.nsqd.forgotten", nsqd=str(managed.address))

    def _set_gauge(self) -> None:
        self._metrics.set("nsqd_addresses", len(self._directory.addresses), topic=self._topic)

    # -- one address

    async def _keep_connected(self, managed: ManagedAddress) -> None:
        while not self._is_over(managed):
            managed.wake.clear()
            wait_s = await self._connect_once(managed)
            if self._is_over(managed):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await managed.wake.wait()

    def _is_over(self, managed: ManagedAddress) -> bool:
        if not self._is_stopping and self._directory.forget_if_unsourced(managed.address):
            self._forget(managed)
            self._set_gauge()
            return True
        return self._is_stopping

    async def _connect_once(self, managed: ManagedAddress) -> float:
        """One connection, from its beginning to its end. Returns the seconds to wait before the next try."""
        connection = managed.connection = NsqConnection(managed.address, self._options, self._owner)
        try:
            try:
                await connection.open()
                await connection.subscribe(self._topic, self._channel)
                if not connection.is_open:
                    # It ended in the same read as the answer: its owner knows, and must not get it afterwards.
                    raise await connection.closed()
            except NsqdError as error:
                return self._on_failure(managed, error)
            opened_s = time.monotonic()
            self._on_open(managed, connection)
            reason = await connection.closed()
            if managed.is_leaving:
                managed.is_leaving = False
                return 0.0
            return self._on_lost(managed, reason, time.monotonic() - opened_s)
        except Exception as error:
            # Whatever it is, it concerns this nsqd alone: the others of the topic must not end with it.
            self._log.error("consumer.connection.bug", nsqd=str(managed.address), error=error, exc_info=error)
            text = f"nsqd at {managed.address}: {type(error).__name__}: {error}"
            return self._on_failure(managed, ConnectionLost(text))
        finally:
            if not managed.is_open:
                # An open one, when this task is cancelled, is the owner's to close: it may have messages to give back.
                connection.close("its address is managed no more")
            managed.connection = None

    def _wait_s(self, managed: ManagedAddress, error: NsqdError) -> float:
        if error.needs_operator:
            return self._uniform(OPERATOR_CAP_MS / 2, OPERATOR_CAP_MS) / 1000
        return retry_wait_ms(managed.failures, RECONNECT_FIRST_MS, RECONNECT_CAP_MS, self._uniform) / 1000

    # -- how a try went

    def _on_open(self, managed: ManagedAddress, connection: NsqConnection) -> None:
        fields: dict[str, Any] = {}
        if managed.down_since_s is not None:
            fields["after_s"] = round(time.monotonic() - managed.down_since_s, 1)
        managed.was_open, managed.down_since_s, managed.logged_failure = True, None, ""
        self._log.info(
            "consumer.connection.open",
            channel=self._channel,
            nsqd=str(managed.address),
            sources=", ".join(self.entry(managed.address).sources),
            **fields,
        )
        self._owner.on_open(connection)

    def _on_failure(self, managed: ManagedAddress, error: NsqdError) -> float:
        managed.failures += 1
        wait_s = self._wait_s(managed, error)
        if self._is_stopping:
            return wait_s
        now_s = time.monotonic()
        if managed.down_since_s is None:
            managed.down_since_s = now_s
        is_news = error.signature != managed.logged_failure or now_s >= managed.logged_at_s + LOG_REPEAT_S
        if is_news:
            managed.logged_failure, managed.logged_at_s = error.signature, now_s
        fields: dict[str, Any] = {}
        if not managed.was_open and not error.needs_operator and FILE not in self.entry(managed.address).sources:
            fields["hint"] = _HINT
        (self._log.warning if is_news else self._log.debug)(
            "consumer.connection.failed", nsqd=str(managed.address), error=error, again_s=round(wait_s, 2), **fields
        )
        return wait_s

    def _on_lost(self, managed: ManagedAddress, reason: NsqdError, lived_s: float) -> float:
        managed.failures = 1 if lived_s >= STABLE_AFTER_S else managed.failures + 1
        wait_s = self._wait_s(managed, reason)
        if not self._is_stopping:
            managed.down_since_s = time.monotonic()
            self._metrics.add("nsqd_connections_lost_total", topic=self._topic, reason=reason.loss)
            self._log.warning(
                "consumer.connection.lost", nsqd=str(managed.address), error=reason, again_s=round(wait_s, 2)
            )
        return wait_s
