"""Publishes to nsqds: PUB, MPUB, DPUB, each acknowledged before the call returns.

Invariants:
- `publish` returns when nsqd has acknowledged all bodies, or raises a PublishError that says how many of them it has
  and whether it may have more. What certainly did not happen is tried again, at the next address where there are
  several; what may have happened never is, so that a publisher makes no duplicates by itself.
- What is under way is bounded, in commands and in bytes; whoever comes then waits, first come first served, and a wait
  that takes too long says so.
- A command that was written is not cancelled with its caller: its room is taken until nsqd answers or the connection
  ends.
- An nsqd that is not connected, rests no more and has no publishes is forgotten: addresses come and go.
- An nsqd that cannot be reached rests, longer and longer. Publishes wait for the end of a short rest, and fail at once
  with the reason in a longer one.

One connection per nsqd is the default, and answers come in the order of commands: an answer that does not come in time
ends the connection for all who wait on it.
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
    NsqdigestError,
    NsqdRefused,
    ProtocolError,
    PublishError,
)
from nsqdigest.base.metrics import Metrics
from nsqdigest.config import Address
from nsqdigest.nsq import publish_rules
from nsqdigest.nsq.backpressure import Room
from nsqdigest.nsq.connection import ConnectionOptions, NsqConnection
from nsqdigest.nsq.frames import Message

REST_FIRST_MS = 250
REST_CAP_MS = 5_000
REST_WAITED_FOR_S = 2.0
CLOSE_WITHIN_S = 1.0
"""What is under way at the end gets so long to be acknowledged."""
_TRIES = 3
"""Of what certainly did not happen, at one nsqd."""

_log = log.get("publisher")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    connections: int = 1
    """To each nsqd."""
    commands: int = 256
    size_bytes: int = 16 << 20
    """Both: under way at all nsqds together."""
    room_within_s: float = 10.0
    acknowledged_within_s: float = 10.0
    rest_cap_ms: int = REST_CAP_MS
    """The longest rest of an nsqd that cannot be reached."""


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
        self._room = Room(self._bounds.commands, self._bounds.size_bytes, self._bounds.room_within_s)
        self._peers: dict[Address, _Peer] = {}
        self._sends: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def publish(
        self, nsqd: Address | Sequence[Address], topic: str, bodies: Sequence[bytes], *, delay_ms: int = 0
    ) -> None:
        """At one of the addresses, the first that can be reached. Bodies go in as few commands as nsqd's limits allow,
        one after the other; delayed ones one by one."""
        publish_rules.refuse_what_no_nsqd_takes(topic, bodies)
        addresses = [nsqd] if isinstance(nsqd, Address) else nsqd
        done = 0
        try:
            while done < len(bodies):
                done += await self._next_at_one_of(addresses, topic, bodies, done, delay_ms)
        except PublishError as error:
            error.acknowledged = done
            outcome = "refused" if error.code else "unsent" if error.applied is Applied.NO else "unknown"
            self._metrics.add("publishes_total", 1, outcome=outcome)
            raise

    @property
    def connected(self) -> int:
        return sum(peer.connected for peer in self._peers.values())

    async def close(self) -> None:
        """Takes nothing new, gives what is under way a moment, and ends. Whoever still waits is told."""
        self._is_closing = True
        self._room.refuse_all(_closing)
        if self._sends:
            await asyncio.wait(self._sends, timeout=CLOSE_WITHIN_S)
        peers, self._peers = list(self._peers.values()), {}
        await asyncio.gather(*(peer.close() for peer in peers))
        if self._sends:
            await asyncio.wait(self._sends)

    # -- one command

    async def _next_at_one_of(
        self, addresses: Sequence[Address], topic: str, bodies: Sequence[bytes], start: int, delay_ms: int
    ) -> int:
        """Returns how many bodies it was."""
        rests_until_s = {address: peer.rests_until_s for address, peer in self._peers.items()}
        problem = PublishError("no nsqd to publish to was named", applied=Applied.NO)
        for address in publish_rules.in_order(addresses, rests_until_s, time.monotonic()):
            peer = self._peer(address)
            peer.users += 1
            try:
                return await self._next_at(peer, topic, bodies, start, delay_ms)
            except PublishError as error:
                if error.applied is Applied.AMBIGUOUS or error.code or self._is_closing:
                    raise
                problem = error
            finally:
                peer.users -= 1
        raise problem

    async def _next_at(self, peer: _Peer, topic: str, bodies: Sequence[bytes], start: int, delay_ms: int) -> int:
        for _ in range(_TRIES):
            count = publish_rules.count_of_next(bodies, start, peer.max_body_bytes, delay_ms)
            command = publish_rules.command_of(topic, bodies[start : start + count], delay_ms)
            try:
                await self._send(peer, topic, command)
            except NotReached:
                continue
            except NsqdRefused as error:
                learned = publish_rules.learned_max_body_bytes(error, count)
                if learned is None:
                    raise publish_rules.refusal(error, f"nsqd at {peer.address}", topic) from error
                peer.max_body_bytes = learned
                continue
            except (ConnectionLost, ProtocolError) as error:
                raise PublishError(
                    f"a publish to {topic} was not acknowledged, nsqd may have it or not: {error}",
                    applied=Applied.AMBIGUOUS,
                ) from error
            self._metrics.add("publishes_total", 1, outcome="acknowledged")
            return count
        raise PublishError(
            f"a publish to {topic} did not get through to nsqd at {peer.address} in {_TRIES} tries: it refuses what "
            "others publish, or its connections break",
            applied=Applied.NO,
        )

    async def _send(self, peer: _Peer, topic: str, command: bytes) -> None:
        size_bytes = len(command)
        if self._is_closing:
            raise _closing()
        if reason := self._room.full_of(size_bytes):
            self._metrics.add("publish_waits_total", 1, reason=reason)
        await self._room.take(size_bytes, topic)
        try:
            connection = await peer.connection()
        except BaseException:
            self._room.give(size_bytes)
            raise
        send = asyncio.create_task(self._acknowledged(peer, connection, command), name=f"publish to {peer.address}")
        self._sends.add(send)
        send.add_done_callback(self._sent)
        await asyncio.shield(send)

    def _sent(self, send: asyncio.Task[None]) -> None:
        self._sends.discard(send)
        if not send.cancelled():
            send.exception()  # whoever waited for it may be gone

    async def _acknowledged(self, peer: _Peer, connection: NsqConnection, command: bytes) -> None:
        try:
            if not connection.is_open:
                raise NotReached(f"nsqd at {peer.address}: the connection ended before anything was sent")
            await connection.request(command, self._bounds.acknowledged_within_s)
            peer.acknowledged(connection)
        finally:
            self._room.give(len(command))
            peer.ended(connection)

    def _peer(self, address: Address) -> _Peer:
        peer = self._peers.get(address)
        if peer is None:
            now_s = time.monotonic()
            self._peers = {known: other for known, other in self._peers.items() if not other.is_idle(now_s)}
            peer = self._peers[address] = _Peer(address, self._options, self._bounds, self._uniform)
        return peer


def _closing() -> PublishError:
    return PublishError("the publisher ends: nothing was sent", applied=Applied.NO)


class _Peer:
    """One nsqd: the connections to it, and until when none is tried. It receives what they read."""

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        bounds: Bounds,
        uniform: Callable[[float, float], float],
    ) -> None:
        self.address = address
        self.max_body_bytes = publish_rules.MAX_BODY_BYTES
        self.rests_until_s = 0.0
        self.users = 0
        """Publishes that hold it."""
        self._options = options
        self._bounds = bounds
        self._uniform = uniform
        self._under_way: dict[NsqConnection, int] = {}
        """The open connections, and how many commands each has under way."""
        self._proven: set[NsqConnection] = set()
        """Those that have acknowledged something."""
        self._opening: asyncio.Task[None] | None = None
        self._failures = 0
        self._problem: NsqdigestError | None = None
        self._ends = asyncio.Event()

    @property
    def connected(self) -> int:
        return len(self._under_way)

    def is_idle(self, now_s: float) -> bool:
        """Whether nothing is lost by forgetting it: nobody publishes to it, nothing is connected, its rest is over."""
        return not (self.users or self._under_way or self._opening is not None or self.rests_until_s > now_s)

    async def connection(self) -> NsqConnection:
        """The one with the least under way, counted as busy from here on. A further one is opened, for whoever comes
        next, when all are busy."""
        may_wait = True
        while not self._ends.is_set():
            rest_s = self.rests_until_s - time.monotonic()
            chosen = publish_rules.least_busy(self._under_way)
            all_are_busy = chosen is None or self._under_way[chosen] > 0
            has_room = len(self._under_way) < self._bounds.connections
            if all_are_busy and rest_s <= 0 and self._opening is None and has_room:
                self._opening = tasks.start(self._open(), f"publisher connects to {self.address}")
            if chosen is not None:
                self._under_way[chosen] += 1
                return chosen
            if self._opening is not None:
                opening = self._opening
                await asyncio.wait([opening])
                if not opening.cancelled():
                    opening.result()
            elif may_wait and rest_s <= REST_WAITED_FOR_S:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rest_s + 0.001):  # a timer may come a little early
                        await self._ends.wait()
            else:
                raise PublishError(
                    f"{self._problem}; tried again in {rest_s:.2f} s at the earliest", applied=Applied.NO
                )
            may_wait = False
        raise _closing()

    def acknowledged(self, connection: NsqConnection) -> None:
        self._proven.add(connection)
        self._failures = 0

    def ended(self, connection: NsqConnection) -> None:
        if connection in self._under_way:
            self._under_way[connection] -= 1

    async def _open(self) -> None:
        connection = NsqConnection(self.address, self._options, self)
        try:
            await connection.open()
        except NsqdigestError as error:
            self._failed(error)
        else:
            if connection.is_open:
                self._under_way[connection] = 0
        finally:
            self._opening = None

    def _failed(self, error: NsqdigestError) -> None:
        self._problem = error
        self._failures += 1
        cap_ms = self._bounds.rest_cap_ms
        first_ms = cap_ms // 2 if error.needs_operator else REST_FIRST_MS
        rest_ms = retry_wait_ms(self._failures, first_ms, cap_ms, self._uniform)
        self.rests_until_s = time.monotonic() + rest_ms / 1000
        if self._failures == 1 and not self._ends.is_set():
            _log.info("publisher.nsqd.rests", nsqd=str(self.address), error=error, again_s=rest_ms / 1000)

    async def close(self) -> None:
        self._ends.set()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for connection in list(self._under_way):
            connection.close("the publisher ends")
            await connection.hang_up()

    # -- as a Receiver: a publishing connection gets no messages, and its failures reach whoever waits for an answer

    def on_messages(self, connection: NsqConnection, messages: list[Message]) -> None:
        raise ProtocolError(
            f"nsqd at {self.address} sent {len(messages)} messages to a connection that never subscribed"
        )

    def on_refused(self, connection: NsqConnection, error: NsqdRefused) -> None:
        pass

    def on_closed(self, connection: NsqConnection, reason: NsqdigestError) -> None:
        is_known = self._under_way.pop(connection, None) is not None
        is_proven = connection in self._proven
        self._proven.discard(connection)
        # One that never acknowledged anything was of no use; after a refusal it was the message, not nsqd.
        if is_known and not is_proven and not isinstance(reason, NsqdRefused):
            self._failed(reason)
