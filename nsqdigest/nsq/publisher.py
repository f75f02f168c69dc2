"""Publishes to nsqds: PUB and MPUB, each acknowledged before the call returns.

Invariants:
- `publish` returns when nsqd has acknowledged all bodies, or raises a PublishError: how many nsqd has, and whether it
  may have more. A command that certainly did not happen is tried again, at the next address where there are several;
  one that may have happened never is, so that a publisher makes no duplicates by itself.
- `publish_each` does the same for messages that have nothing to do with one another, in one write: each has a result of
  its own, and none is refused because of another.
- Writes in progress are bounded, by number and by bytes; further ones wait in line, for a limited time.
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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from nsqdigest.backoff import retry_wait_ms
from nsqdigest.base import log, tasks
from nsqdigest.base.errors import (
    Applied,
    BehindRefusal,
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
_ALONE_AFTER_FAILURE = 1_000
"""After nsqd failed to store an MPUB, of which it may have a part, so many messages go in a PUB each. What it has is
known then, and a disk that stays full makes no more duplicates."""

_log = log.get("publisher")

T = TypeVar("T")


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
        self._sends: set[asyncio.Task[list[bytes | NsqdError]]] = set()
        self._is_closing = False

    async def publish(self, nsqd: Address | Sequence[Address], topic: str, bodies: Sequence[bytes]) -> None:
        """At one of the addresses, the first that can be reached. Bodies go in as few commands as nsqd's limits allow,
        one after the other."""
        publish_rules.refuse_what_no_nsqd_takes(topic, bodies)
        addresses = [nsqd] if isinstance(nsqd, Address) else nsqd
        done = 0
        try:
            while done < len(bodies):
                following = partial(self._next_at, topic=topic, bodies=bodies, start=done)
                done += await self._at_one_of(addresses, following)
        except PublishError as error:
            error.acknowledged = done
            self._count(error)
            raise

    async def publish_each(
        self,
        nsqd: Address | Sequence[Address],
        messages: Sequence[tuple[str, bytes]],
        results: dict[int, PublishError | None],
    ) -> None:
        """Topics and bodies, which go in one write: the caller bounds how many. `results` gets what became of each, by
        its number, as it is known; None: nsqd acknowledged it. Raises why the others have no result."""
        for number, (topic, body) in enumerate(messages):
            try:
                publish_rules.refuse_what_no_nsqd_takes(topic, (body,))
            except PublishError as error:
                self._count(error)
                results[number] = error
        addresses = [nsqd] if isinstance(nsqd, Address) else nsqd
        try:
            await self._at_one_of(addresses, partial(self._each_at, messages=messages, results=results))
        except PublishError as error:
            self._count(error)
            raise

    def _count(self, error: PublishError) -> None:
        outcome = "refused" if error.code else "unsent" if error.applied is Applied.NO else "unknown"
        self._metrics.add("publishes_total", 1, outcome=outcome)

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

    # -- at one nsqd

    async def _at_one_of(self, addresses: Sequence[Address], publish: Callable[[_NsqdPool], Awaitable[T]]) -> T:
        """At the first that can be reached."""
        retry_at_s = {address: pool.retry_at_s for address, pool in self._pools.items()}
        problem = PublishError("no nsqd to publish to was named", applied=Applied.NO)
        for address in publish_rules.in_order(addresses, retry_at_s, time.monotonic()):
            pool = self._pool(address)
            pool.users += 1
            try:
                return await publish(pool)
            except PublishError as error:
                if error.applied is Applied.AMBIGUOUS or error.code or self._is_closing:
                    raise
                problem = error
            finally:
                pool.users -= 1
        raise problem

    async def _next_at(self, pool: _NsqdPool, topic: str, bodies: Sequence[bytes], start: int) -> int:
        """One command. Returns how many bodies nsqd acknowledged."""
        tries = 0
        while tries < _TRIES:
            tries += 1
            count = publish_rules.count_of_next(bodies, start, pool.max_body_bytes)
            command = commands.publish(topic, bodies[start : start + count])
            try:
                (answer,) = await self._send(pool, topic, [command])
            except NotReached as error:
                answer = error
            if isinstance(answer, NotReached):
                tries -= isinstance(answer, BehindRefusal)  # it was another's
                continue
            if isinstance(answer, NsqdRefused):
                learned = publish_rules.learned_max_body_bytes(answer, count)
                if learned is None:
                    raise publish_rules.refusal(answer, f"nsqd at {pool.address}", topic) from answer
                pool.max_body_bytes = learned
                continue
            if isinstance(answer, NsqdError):
                raise _unknown(topic, answer) from answer
            self._metrics.add("publishes_total", 1, outcome="acknowledged")
            return count
        raise _not_through(topic, pool.address)

    async def _each_at(
        self, pool: _NsqdPool, messages: Sequence[tuple[str, bytes]], results: dict[int, PublishError | None]
    ) -> None:
        """All that have no result yet, in one write; again while some of them certainly did not happen."""
        tries = 0
        while waiting := [number for number in range(len(messages)) if number not in results]:
            topic = messages[waiting[0]][0]
            if tries == _TRIES:
                raise _not_through(topic, pool.address)
            parts = publish_rules.parts_of(messages, waiting, pool.max_body_bytes, pool.max_shared_bytes)
            try:
                answers = await self._send(
                    pool,
                    topic,
                    [commands.publish(part.topic, [messages[each][1] for each in part.numbers]) for part in parts],
                )
            except NotReached as error:
                answers = [error] * len(parts)
            known = len(results)
            for part, answer in zip(parts, answers, strict=True):
                self._on_answer(pool, part, answer, results)
            # A refusal costs what stands behind it: no try, since each ends with one message less. Nor does another's.
            if len(results) > known:
                tries = 0
            elif not isinstance(answers[0], BehindRefusal):
                tries += 1

    def _on_answer(
        self,
        pool: _NsqdPool,
        part: publish_rules.Part,
        answer: bytes | NsqdError,
        results: dict[int, PublishError | None],
    ) -> None:
        """Raises what holds for all that stand behind it, too."""
        count = len(part.numbers)
        if isinstance(answer, NotReached):
            return
        if isinstance(answer, NsqdRefused):
            if pool.has_learned(answer, count):
                return
            error = publish_rules.refusal(answer, f"nsqd at {pool.address}", part.topic)
            if not publish_rules.is_of_one_command(answer):
                raise error from answer
            self._count(error)
            results.update(dict.fromkeys(part.numbers, error))
            return
        if isinstance(answer, NsqdError):
            raise _unknown(part.topic, answer) from answer
        pool.stored(count)
        self._metrics.add("publishes_total", 1, outcome="acknowledged")
        results.update(dict.fromkeys(part.numbers))

    async def _send(self, pool: _NsqdPool, topic: str, requests: Sequence[bytes]) -> list[bytes | NsqdError]:
        """Commands, in one write. Returns nsqd's answers, or why there is none."""
        size_bytes = sum(map(len, requests))
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
        send = asyncio.create_task(
            self._answered(pool, connection, requests, size_bytes), name=f"publish to {pool.address}"
        )
        self._sends.add(send)
        send.add_done_callback(self._sent)
        return await asyncio.shield(send)

    def _sent(self, send: asyncio.Task[list[bytes | NsqdError]]) -> None:
        self._sends.discard(send)
        if not send.cancelled():
            send.exception()  # looked at: its caller may have been cancelled

    async def _answered(
        self, pool: _NsqdPool, connection: NsqConnection, requests: Sequence[bytes], size_bytes: int
    ) -> list[bytes | NsqdError]:
        try:
            if not connection.is_open:
                kind = BehindRefusal if connection.is_refused else NotReached
                raise kind(f"nsqd at {pool.address}: the connection ended before anything was sent")
            answers = await connection.request_all(requests, self._bounds.acknowledged_within_s)
            if isinstance(answers[0], bytes):
                pool.acknowledged(connection)
            return answers
        finally:
            self._backpressure.release(size_bytes)
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


def _unknown(topic: str, error: NsqdError) -> PublishError:
    return PublishError(
        f"a publish to {topic} was not acknowledged, nsqd may have it or not: {error}", applied=Applied.AMBIGUOUS
    )


def _not_through(topic: str, address: Address) -> PublishError:
    return PublishError(
        f"a publish to {topic} did not get through to nsqd at {address} in {_TRIES} tries: it refuses what others "
        "publish, or its connections break",
        applied=Applied.NO,
    )


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
        self._max_shared_bytes = publish_rules.MAX_BODY_BYTES
        self._alone_left = 0
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

    @property
    def max_shared_bytes(self) -> int:
        """Of a message that shares a command with others, which may have nothing to do with it."""
        return 0 if self._alone_left else self._max_shared_bytes

    def has_learned(self, error: NsqdRefused, count: int) -> bool:
        """Whether this refusal of `count` messages taught how to send them in another way."""
        if error.code == "E_MPUB_FAILED":
            self._alone_left = _ALONE_AFTER_FAILURE
        max_body_bytes = publish_rules.learned_max_body_bytes(error, count)
        max_shared_bytes = publish_rules.learned_max_shared_bytes(error, count)
        if max_body_bytes is not None:
            self.max_body_bytes = max_body_bytes
        if max_shared_bytes is not None:
            self._max_shared_bytes = max_shared_bytes
        return max_body_bytes is not None or max_shared_bytes is not None

    def stored(self, count: int) -> None:
        self._alone_left = max(0, self._alone_left - count)

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
