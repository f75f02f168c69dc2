"""The clients of a webhook whose host is a template: digests take turns by `delivery.hosts`.

Invariants:
- A digest is handed to its host's client only in its turn; what may not wait any longer is put off, unsent.
- Beside the clients that are in use only SPARE_CLIENTS are kept, with their connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from nsqdigest.base import log
from nsqdigest.base.http.client import Client
from nsqdigest.base.reasons import NOTHING_SENT, Verdict
from nsqdigest.delivery.hosts import Host, Hosts, Step, Turn
from nsqdigest.delivery.sinks.base import Outcome, OutgoingDigest

_log = log.get("scheduler")

SPARE_CLIENTS = 32
_CALLED_PER_POST = 2
"""One has the place of the post that ended, another that which the host gained by it. Each looks once more."""
_LOOKS_AGAIN_S = 1.0
"""What waits for its turn looks so often whether it still may."""

Send = Callable[[Client, OutgoingDigest, float], Awaitable[Outcome]]


class _Waiting(NamedTuple):
    host: Host
    called: asyncio.Event


class ManyHosts:
    def __init__(self, name: str, hosts: Hosts, client_to: Callable[[str], Client], send: Send) -> None:
        """`name`: of the sink."""
        self._name = name
        self._hosts = hosts
        self._client_to = client_to
        self._send = send
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._in_use: dict[str, int] = {}
        self._line: deque[_Waiting] = deque()

    async def deliver(self, digest: OutgoingDigest, until_s: float) -> Outcome:
        assert digest.target is not None
        origin, name = digest.target.texts["origin"], digest.target.texts["host"]
        host = self._hosts.host(origin)
        now_s = time.monotonic()
        turn = self._hosts.turn(host, now_s)
        if turn.step is Step.WAIT:
            turn = await self._wait(host, (now_s + until_s) / 2)
        if turn.step is not Step.POST:
            why = host.why or f"{name} takes its time, and others wait"
            return Outcome(Verdict.DEFERRED, why, retry_after_s=turn.wait_s, is_of_sink=False)
        return await self._post(host, name, origin, digest, until_s)

    async def _post(self, host: Host, name: str, origin: str, digest: OutgoingDigest, until_s: float) -> Outcome:
        post = self._hosts.began(host, time.monotonic(), until_s)
        outcome: Outcome | None = None
        try:
            outcome = await self._with_client(origin, digest, until_s)
            is_failure = outcome.verdict not in NOTHING_SENT and outcome.verdict is not Verdict.DELIVERED
            if is_failure and name not in outcome.cause:
                outcome = outcome._replace(cause=f"{name}: {outcome.cause}")
        finally:
            if self._hosts.ended(host, post, digest, outcome, time.monotonic()):
                self._report(host, name)
            self._call_up()
        # A body that could not be made says nothing of the host, and much of the sink.
        return outcome._replace(is_of_sink=outcome.verdict in NOTHING_SENT)

    def _report(self, host: Host, name: str) -> None:
        if host.failing_since_s is None:
            _log.counted("info", "scheduler.host.back", by=("sink",), sink=self._name, host=name)
        else:
            _log.counted(
                "warning", "scheduler.host.failing", by=("sink",), sink=self._name, host=name, detail=host.why,
                hint="its digests wait, each for its time; those of the sink's other hosts go on",
            )  # fmt: skip

    # -- turns

    async def _wait(self, host: Host, until_s: float) -> Turn:
        """Returns POST or LATER."""
        waiting = _Waiting(host, asyncio.Event())
        host.waiting += 1
        self._line.append(waiting)
        try:
            while True:
                waiting.called.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, min(_LOOKS_AGAIN_S, until_s - time.monotonic()))):
                        await waiting.called.wait()
                now_s = time.monotonic()
                turn = self._hosts.turn(host, now_s, is_waiting=True)
                if turn.step is not Step.WAIT:
                    return turn
                if now_s >= until_s:
                    return Turn(Step.LATER)
        finally:
            self._line.remove(waiting)
            host.waiting -= 1

    def _call_up(self) -> None:
        """A post ended: of those that may post the ones that wait for longest are next."""
        now_s, free = time.monotonic(), _CALLED_PER_POST
        for waiting in self._line:
            step = self._hosts.turn(waiting.host, now_s, is_waiting=True).step
            if step is not Step.WAIT and not waiting.called.is_set():
                waiting.called.set()
                free -= step is Step.POST
                if not free:
                    return

    # -- clients

    async def _with_client(self, origin: str, digest: OutgoingDigest, until_s: float) -> Outcome:
        client = self._clients.get(origin)
        if client is None:
            client = self._clients[origin] = self._client_to(origin)
        self._clients.move_to_end(origin)
        self._in_use[origin] = self._in_use.get(origin, 0) + 1
        try:
            return await self._send(client, digest, until_s)
        finally:
            self._in_use[origin] -= 1
            if not self._in_use[origin]:
                del self._in_use[origin]
            await self._close_spare()

    async def _close_spare(self) -> None:
        while len(self._clients) > SPARE_CLIENTS:
            origin = next((each for each in self._clients if each not in self._in_use), None)
            if origin is None:
                return
            await self._clients.pop(origin).close()

    async def close(self) -> None:
        clients, self._clients = list(self._clients.values()), OrderedDict()
        await asyncio.gather(*(client.close() for client in clients))
