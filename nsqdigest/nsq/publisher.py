"""Publishes to nsqds: PUB and MPUB, each acknowledged before the call returns.

Invariants:
- `publish` returns when nsqd has acknowledged all bodies, or raises a PublishError: how many nsqd has, and whether it
  may have more. A command that certainly did not happen is tried again, at the next address where there are several;
  one that may have happened never is, so that a publisher makes no duplicates by itself.
- Commands in progress are bounded, by number and by bytes; further ones wait in line, for a limited time.
- A command that was written is not cancelled with its caller: it counts as in progress until nsqd answers or the
  connection ends.
- An nsqd that cannot be reached is not tried again before `retry_at_s`, later from failure to failure. Publishes wait
  for a retry that is near, and fail at once with the reason where it is not.
- An nsqd without a connection, a pending retry and publishes is forgotten: addresses come and go.

One connection per nsqd is the default. Answers come in the order of commands: one that does not come in time ends the
connection for all commands in progress on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base import log, tasks
from nsqdigest.base.errors import (
    Applied,
    ConnectionLost,
    NotReached,
    NsqdError,
    NsqdRefused,
    ProtocolError,
    PublishError,
)
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address
from nsqdigest.nsq import commands, publish_rules
from nsqdigest.nsq.backpressure import Backpressure
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import Message

RETRY_FIRST_MS = 250
RETRY_CAP_MS = 5_000
RETRY_WAITED_FOR_S = 2.0
"""A publish waits for a retry that is nearer than that."""
CLOSE_WITHIN_S = 1.0
"""Commands in progress at the end get so long to be acknowledged."""
_TRIES = 3
"""At one nsqd, of a command that certainly did not happen."""

_log = log.get("publisher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    connections: int = 1
    """To each nsqd."""
    commands: int = 256
    size_bytes: int = 16 << 20
    """Both: in progress at all nsqds together."""
    admitted_within_s: float = 10.0
    acknowledged_within_s: float = 10.0
    retry_cap_ms: int = RETRY_CAP_MS
    """The longest wait before an nsqd that cannot be reached is tried again."""


class Publisher:
    def __init__(
        self,
        options: ConnectionOptions,
        metrics: Metrics | None = None,
        bounds: Bounds | None = None,
        *,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._options = options
        self._metrics = metrics or Metrics()
        self._bounds = bounds or Bounds()
        self._uniform = uniform
        self._backpressure = Backpressure(
            self._bounds.commands, self._bounds.size_bytes, self._bounds.admitted_within_s
        )
        self._pools: dict[Address, _NsqdPool] = {}
        self._sends: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def publish(self, nsqd: Address | Sequence[Address], topic: str, bodies: Sequence[bytes]) -> None:
        """At one of the addresses, the first that can be reached. Bodies go in as few commands as nsqd's limits allow,
        one after the other."""
        publish_rules.refuse_what_no_nsqd_takes(topic, bodies)
        addresses = [nsqd] if isinstance(nsqd, Address) else nsqd
        done = 0
        try:
            while done < len(bodies):
                done += await self._next_at_one_of(addresses, topic, bodies, done)
        except PublishError as error:
            error.acknowledged = done
            outcome = "refused" if error.code else "unsent" if error.applied is Applied.NO else "unknown"
            self._metrics.add("publishes_total", 1, outcome=outcome)
            raise

    async def close(self) -> None:
        """Accepts nothing new, gives commands in progress a moment, and ends. Publishes that wait raise."""
        self._is_closing = True
        self._backpressure.refuse_all(_closing)
        if self._sends:
            await asyncio.wait(self._sends, timeout=CLOSE_WITHIN_S)
        pools, self._pools = list(self._pools.values()), {}
        await asyncio.gather(*(pool.close() for pool in pools))
        if self._sends:
            await asyncio.wait(self._sends)

    # -- one command

    async def _next_at_one_of(
        self, addresses: Sequence[Address], topic: str, bodies: Sequence[bytes], start: int
    ) -> int:
        """Returns how many bodies nsqd acknowledged."""
        retry_at_s = {address: pool.retry_at_s for address, pool in self._pools.items()}
        problem = PublishError("no nsqd to publish to was named", applied=Applied.NO)
        for address in publish_rules.in_order(addresses, retry_at_s, time.monotonic()):
            pool = self._pool(address)
            pool.users += 1
            try:
                return await self._next_at(pool, topic, bodies, start)
            except PublishError as error:
                if error.applied is Applied.AMBIGUOUS or error.code or self._is_closing:
                    raise
                problem = error
            finally:
                pool.users -= 1
        raise problem

    async def _next_at(self, pool: _NsqdPool, topic: str, bodies: Sequence[bytes], start: int) -> int:
        for _ in range(_TRIES):
            count = publish_rules.count_of_next(bodies, start, pool.max_body_bytes)
            command = commands.publish(topic, bodies[start : start + count])
            try:
                await self._send(pool, topic, command)
            except NotReached:
                continue
            except NsqdRefused as error:
                learned = publish_rules.learned_max_body_bytes(error, count)
                if learned is None:
                    raise publish_rules.refusal(error, f"nsqd at {pool.address}", topic) from error
                pool.max_body_bytes = learned
                continue
            except (ConnectionLost, ProtocolError) as error:
                raise PublishError(
                    f"a publish to {topic} was not acknowledged, nsqd may have it or not: {error}",
                    applied=Applied.AMBIGUOUS,
                ) from error
            self._metrics.add("publishes_total", 1, outcome="acknowledged")
            return count
        raise PublishError(
            f"a publish to {topic} did not get through to nsqd at {pool.address} in {_TRIES} tries: it refuses what "
            "others publish, or its connections break",
            applied=Applied.NO,
        )

    async def _send(self, pool: _NsqdPool, topic: str, command: bytes) -> None:
        size_bytes = len(command)
        if self._is_closing:
            raise _closing()
        if reason := self._backpressure.blocked_by(size_bytes):
            self._metrics.add("publish_waits_total", 1, reason=reason)
        await self._backpressure.acquire(size_bytes, topic)
        try:
            connection = await pool.connection()
        except BaseException:
            self._backpressure.release(size_bytes)
            raise
        send = asyncio.create_task(self._acknowledged(pool, connection, command), name=f"publish to {pool.address}")
        self._sends.add(send)
        send.add_done_callback(self._sent)
        await asyncio.shield(send)

    def _sent(self, send: asyncio.Task[None]) -> None:
        self._sends.discard(send)
        if not send.cancelled():
            send.exception()  # looked at: its caller may have been cancelled

    async def _acknowledged(self, pool: _NsqdPool, connection: NsqConnection, command: bytes) -> None:
        try:
            if not connection.is_open:
                raise NotReached(f"nsqd at {pool.address}: the connection ended before anything was sent")
            await connection.request(command, self._bounds.acknowledged_within_s)
            pool.acknowledged(connection)
        finally:
            self._backpressure.release(len(command))
            pool.ended(connection)

    def _pool(self, address: Address) -> _NsqdPool:
        pool = self._pools.get(address)
        if pool is None:
            now_s = time.monotonic()
            self._pools = {known: other for known, other in self._pools.items() if not other.is_idle(now_s)}
            pool = self._pools[address] = _NsqdPool(address, self._options, self._bounds, self._uniform)
        return pool


def _closing() -> PublishError:
    return PublishError("the publisher ends: nothing was sent", applied=Applied.NO)


class _NsqdPool:
    """The connections to one nsqd, and until when none is tried. It is the receiver of what they read."""

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        bounds: Bounds,
        uniform: Callable[[float, float], float],
    ) -> None:
        self.address = address
        self.max_body_bytes = publish_rules.MAX_BODY_BYTES
        self.retry_at_s = 0.0
        """No connection is tried before."""
        self.users = 0
        """Publishes that use it now."""
        self._options = options
        self._bounds = bounds
        self._uniform = uniform
        self._in_progress: dict[NsqConnection, int] = {}
        """The open connections, and how many commands are in progress on each."""
        self._acknowledged_once: set[NsqConnection] = set()
        """Those on which nsqd has acknowledged something."""
        self._opening: asyncio.Task[None] | None = None
        self._failures = 0
        self._problem: NsqdError | None = None
        self._ends = asyncio.Event()

    def is_idle(self, now_s: float) -> bool:
        """Whether nothing is lost by forgetting it: no publish uses it, nothing is connected, no retry is pending."""
        return not (self.users or self._in_progress or self._opening is not None or self.retry_at_s > now_s)

    async def connection(self) -> NsqConnection:
        """The one with the fewest commands in progress; the caller's counts from here on. When all are busy a further
        one is opened, for the next caller."""
        may_wait = True
        while not self._ends.is_set():
            wait_s = self.retry_at_s - time.monotonic()
            chosen = publish_rules.least_busy(self._in_progress)
            all_are_busy = chosen is None or self._in_progress[chosen] > 0
            has_room = len(self._in_progress) < self._bounds.connections
            if all_are_busy and wait_s <= 0 and self._opening is None and has_room:
                self._opening = tasks.start(self._open(), f"publisher connects to {self.address}")
            if chosen is not None:
                self._in_progress[chosen] += 1
                return chosen
            if self._opening is not None:
                opening = self._opening
                await asyncio.wait([opening])
                if not opening.cancelled():
                    opening.result()
            elif may_wait and wait_s <= RETRY_WAITED_FOR_S:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s + 0.001):  # a timer may come a little early
                        await self._ends.wait()
            else:
                raise PublishError(
                    f"{self._problem}; tried again in {wait_s:.2f} s at the earliest", applied=Applied.NO
                )
            may_wait = False
        raise _closing()

    def acknowledged(self, connection: NsqConnection) -> None:
        self._acknowledged_once.add(connection)
        self._failures = 0

    def ended(self, connection: NsqConnection) -> None:
        if connection in self._in_progress:
            self._in_progress[connection] -= 1

    async def _open(self) -> None:
        connection = NsqConnection(self.address, self._options, self)
        try:
            await connection.open()
        except NsqdError as error:
            self._failed(error)
        else:
            if connection.is_open:
                self._in_progress[connection] = 0
        finally:
            self._opening = None

    def _failed(self, error: NsqdError) -> None:
        self._problem = error
        self._failures += 1
        cap_ms = self._bounds.retry_cap_ms
        first_ms = cap_ms // 2 if error.needs_operator else RETRY_FIRST_MS
        wait_ms = retry_wait_ms(self._failures, first_ms, cap_ms, self._uniform)
        self.retry_at_s = time.monotonic() + wait_ms / 1000
        if self._failures == 1 and not self._ends.is_set():
            _log.info("publisher.nsqd.unreachable", nsqd=str(self.address), error=error, again_s=wait_ms / 1000)

    async def close(self) -> None:
        self._ends.set()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for connection in list(self._in_progress):
            connection.close("the publisher ends")
            await connection.hang_up()

    # -- as a Receiver: a publishing connection gets no messages, and its failures reach the callers that wait

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        raise ProtocolError(
            f"nsqd at {self.address} sent {len(messages)} messages to a connection that never subscribed"
        )

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        pass

    def on_closed(self, connection: NsqConnection, reason: NsqdError) -> None:
        is_known = self._in_progress.pop(connection, None) is not None
        has_acknowledged = connection in self._acknowledged_once
        self._acknowledged_once.discard(connection)
        # A connection that acknowledged nothing counts as a failure of nsqd, unless nsqd refused a message.
        if is_known and not has_acknowledged and not isinstance(reason, NsqdRefused):
            self._failed(reason)
