"""The way to Redis: one call on one connection of the server that has the partition.

Invariants:
- A call that may have been applied is never sent again: a lost reply is an ambiguous error, and the caller decides. A
  call that the server refused unread (NOSCRIPT, MOVED, ASK) is sent again once it can succeed.
- A call that was sent is never cancelled: cancelling a waiter leaves it running (node.py), and its connection stays
  clean.
- Every error of the driver is translated to `StoreError`.
- A durable call waits for its replicas on the connection that wrote, in the same round trip. Fewer replicas than asked
  for is an ambiguous error, like a lost reply: the write is there, and a failover may undo it.

Every call names the hash tag of its partition.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors
from redis.crc import key_slot

from nsqdigest.base import tasks
from nsqdigest.base.errors import Applied, StoreError, Unreachable
from nsqdigest.config import redis_urls, tls_files
from nsqdigest.store.servers.base import Servers
from nsqdigest.store.servers.cluster import Cluster
from nsqdigest.store.servers.facts import RedisClock, ServerFacts
from nsqdigest.store.servers.node import Node
from nsqdigest.store.servers.sentinel import Sentinels
from nsqdigest.store.servers.single import SingleServer
from nsqdigest.store.servers.translation import translate

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Histogram
    from nsqdigest.config import Redis as RedisSettings
    from nsqdigest.store.scripts import Script
    from nsqdigest.store.servers.resp import Command

_SENTINEL_URL = "write redis+sentinel://HOST,HOST/NAME/0 in redis.url"
MAX_HOPS = 4
"""How often one call may be sent: to another server each time, or with its script."""
_WAIT_SHARE = 0.5
"""Of the time-out: how long replicas have to confirm, so that their number arrives before the time-out."""

# After these the server may have lost its partitions to another.
_STALE_AFTER = frozenset(
    (
        "redis-connection",
        "redis-timeout",
        "redis-unknown",
        "redis-readonly",
        "redis-masterdown",
        "redis-loading",
        "redis-clusterdown",
    )
)


class RedisClient:
    def __init__(self, settings: RedisSettings, connections: int) -> None:
        self._servers = servers_of(settings, connections)
        self._kind = redis_urls.read(settings.url).kind
        self._durability = settings.durability
        self._replicas = settings.replicas if settings.durability == "replica" else 0
        self._wait_ms = max(1, int(settings.timeout_ms * _WAIT_SHARE))
        self._slots: dict[bytes, int] = {}
        self._calls = 0
        """Under way."""
        self._together: dict[Node, tuple[list[Sequence[Command]], asyncio.Task[list[list[Any]]]]] = {}
        self.clock = RedisClock()
        self.times: Mapping[str, Histogram] = {}
        """By the name of the script: how many seconds each call took, failures included."""
        self.needs_check = asyncio.Event()
        """Set when a server did not answer as it should: another may have its place, or it may have lost something."""

    # -- facts of the servers

    async def facts(self) -> list[ServerFacts]:
        """Return those of every primary. Raises `Unreachable` if one of them must not be used, and `StoreError` if one
        is away or takes no writes for now."""
        facts = await self.unjudged_facts()
        for each in facts:
            if refusal := each.refusal(self._kind, self._durability):
                raise Unreachable(refusal)
            if readonly := each.why_readonly():
                raise readonly
        return facts

    async def unjudged_facts(self) -> list[ServerFacts]:
        """Of every primary, whether it may be used or not."""
        try:
            return [await self._facts_of(node) for node in await self._servers.primaries()]
        except StoreError as error:
            if error.reason == "redis-mode":
                raise Unreachable(str(error)) from error
            raise

    def warnings(self, facts: Sequence[ServerFacts]) -> list[str]:
        """What may cost events some day, each once."""
        names: dict[str, list[str]] = {}
        for each in facts:
            for warning in each.warnings(self._replicas):
                names.setdefault(warning, []).append(each.name)
        return [warning if self._kind == "single" else f"{', '.join(at)}: {warning}" for warning, at in names.items()]

    async def _facts_of(self, node: Node) -> ServerFacts:
        sections = (b"server", b"replication", b"memory", b"persistence")
        asked: list[Command] = [[b"TIME"], *([b"INFO", section] for section in sections)]
        answers = await self._exchange(node, asked)
        if isinstance(answers[1], bytes) and re.search(rb"^(redis|server)_mode:sentinel", answers[1], re.MULTILINE):
            raise StoreError("redis-mode", f"{node} is a Sentinel", Applied.NO, _SENTINEL_URL)
        clock, *info = _raise_first(answers)
        self.clock.observe(int(clock[0]) * 1000 + int(clock[1]) // 1000)
        lines = [line.partition(":") for section in info for line in section.decode().splitlines()]
        settings = await self._settings_of(node)
        facts = ServerFacts.of(str(node), {name: value for name, _, value in lines}, settings)
        if facts.role == "slave" and self._kind != "single":
            await self._servers.mark_stale(node)
            raise StoreError("redis-readonly", f"{node} is a replica by now", Applied.NO)
        return facts

    async def _settings_of(self, node: Node) -> dict[str, str] | None:
        """None where the user may not ask, or where there is no CONFIG, as with some services."""
        names = (b"appendfsync", b"save")
        answers = await self._exchange(node, [[b"CONFIG", b"GET", name] for name in names])
        if not all(isinstance(answer, list) and len(answer) == 2 for answer in answers):
            return None
        return {name.decode(): value.decode() for name, value in answers}

    # -- calls

    async def run(self, tag: bytes, script: Script, call: bytes, *, durable: bool = False) -> list[Any]:
        """Runs a script of lua/ on keys of the partition that the tag names. `call`: its EVALSHA. `durable`: the caller
        will FIN, or send a digest, on this answer, so wait for the replicas that redis.durability asks for. Every
        durable script writes at each call, a repeated one too: WAIT returns at once on a connection that wrote
        nothing."""
        unit: list[Command] = [call]
        waits = durable and self._replicas > 0
        if waits:
            unit.append([b"WAIT", self._replicas, self._wait_ms])
        sent_s = time.perf_counter()
        self._calls += 1
        try:
            answers = await self._call(self._slot(tag), unit, script)
        finally:
            self._calls -= 1
            if script.name in self.times:
                self.times[script.name].observe(time.perf_counter() - sent_s)
        if waits and answers[1] < self._replicas:
            confirmed = f"{answers[1]} of {self._replicas} replicas confirmed within {self._wait_ms} ms"
            raise StoreError("redis-replicas", f"{script.name}: {confirmed}")
        return answers[0]  # type: ignore[no-any-return]

    async def send(self, tag: bytes, commands: Sequence[Command]) -> list[Any]:
        """Commands that read, in one round trip; another for each whose key is moving to another server."""
        self._calls += 1
        try:
            return await self._read(self._slot(tag), commands)
        finally:
            self._calls -= 1

    async def send_together(self, tag: bytes, commands: Sequence[Command]) -> list[Any]:
        """The same for small commands: those sent in one turn of the loop to one server share a round trip, whatever
        their partitions."""
        self._calls += 1
        try:
            return await self._read_together(self._slot(tag), commands)
        finally:
            self._calls -= 1

    def allow(self, connections: int) -> None:
        """To one server, at least so many."""
        self._servers.allow(connections)

    async def close(self, within_s: float) -> None:
        """Waits for calls under way, no longer than `within_s`, then closes the connections."""
        await tasks.until(lambda: not self._calls and not self._servers.is_busy, within_s)
        await self._servers.close()

    def _slot(self, tag: bytes) -> int:
        if tag not in self._slots:
            self._slots[tag] = key_slot(tag)
        return self._slots[tag]

    async def _read(self, slot: int, commands: Sequence[Command]) -> list[Any]:
        answers = await self._exchange(self._servers.only or await self._servers.server_for(slot), commands)
        if _PLAIN.issuperset(map(type, answers)):
            return answers
        for number, answer in enumerate(answers):
            if isinstance(answer, redis_errors.AskError):
                answers[number] = (await self._call(slot, commands[number : number + 1]))[0]
        return _raise_first(answers)

    async def _read_together(self, slot: int, commands: Sequence[Command]) -> list[Any]:
        node = self._servers.only or await self._servers.server_for(slot)
        if node not in self._together:
            self._together[node] = [], asyncio.ensure_future(self._exchange_parts(node))
        parts, exchange = self._together[node]
        number = len(parts)
        parts.append(commands)
        answers = (await tasks.outlasting(exchange))[number]
        if any(isinstance(answer, redis_errors.AskError) for answer in answers):
            return await self._read(slot, commands)
        return _raise_first(answers)

    async def _exchange_parts(self, node: Node) -> list[list[Any]]:
        await asyncio.sleep(0)  # others join in this turn of the loop
        parts, _ = self._together.pop(node)
        answers = iter(await self._exchange(node, [command for commands in parts for command in commands]))
        return [[next(answers) for _ in commands] for commands in parts]

    async def _call(self, slot: int, unit: Sequence[Command], script: Script | None = None) -> list[Any]:
        """Sends commands that must stay together: one, or a script and its WAIT. The answer to the first decides."""
        node = self._servers.only or await self._servers.server_for(slot)
        before: list[Command] = []
        answers: list[Any] = []
        for _ in range(MAX_HOPS):
            answered = await self._exchange(node, [*before, *unit], script)
            answers = answered[len(before) :]
            if not any(isinstance(each, Exception) for each in answered):
                return answers
            _raise_first(answered[: len(before)], script)
            refusal = answers[0]
            if isinstance(refusal, redis_errors.AskError):
                is_moved = isinstance(refusal, redis_errors.MovedError)
                node = await self._servers.redirected(node, slot, refusal, for_good=is_moved)
                before = [] if is_moved else [[b"ASKING"]]
            elif isinstance(refusal, redis_errors.NoScriptError) and script is not None:
                # On the same connection: ASKING holds for the next command only.
                before = [[b"SCRIPT", b"LOAD", script.text], *(each for each in before if each == [b"ASKING"])]
            else:
                break
        return _raise_first(answers, script)

    async def _exchange(self, node: Node, commands: Sequence[Command], script: Script | None = None) -> list[Any]:
        """One exchange; a refused command has its error among the answers."""
        try:
            answers = await node.exchange(commands)
        except Exception as error:
            translated = translate(error, script)
            await self._mark_stale_after(node, translated)
            raise translated from error
        if _PLAIN.issuperset(map(type, answers)):
            return answers
        for answer in answers:
            if isinstance(answer, redis_errors.ResponseError) and not isinstance(answer, redis_errors.AskError):
                await self._mark_stale_after(node, translate(answer, script))
        return answers

    async def _mark_stale_after(self, node: Node, error: StoreError) -> None:
        if error.reason in _STALE_AFTER:
            self.needs_check.set()
            await self._servers.mark_stale(node)


_PLAIN = frozenset((bytes, int, list, type(None)))
"""What answers are that are no errors."""


def _raise_first(answers: list[Any], script: Script | None = None) -> list[Any]:
    """The answers, unless one of them is an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise translate(answer, script) from answer
    return answers


def servers_of(settings: RedisSettings, connections: int) -> Servers:
    """Raises TlsFileProblem if a file that the settings name cannot be used."""
    url = redis_urls.read(settings.url)
    timeout_s = settings.timeout_ms / 1000
    tls = tls_files.client(settings.tls, "redis") if settings.tls is not None else None
    if url.kind == "sentinel":
        return Sentinels(url, connections, timeout_s, tls)
    if url.kind == "cluster":
        return Cluster(url, connections, timeout_s, tls)
    return SingleServer(Node(settings.shown_url, url.text, connections, timeout_s, tls=tls))
