"""The way to Redis: one call on one connection of the server that has the partition.

Invariants:
- Nothing here tries again what may have been done: a lost reply is an ambiguous error and its caller decides. What a
  server refused unread (a script that it does not have, a slot that is another's) is sent once more, the right way.
- A call, once sent, is never cancelled: whoever awaited it may go, the call runs to its end and its connection stays
  clean.
- Whatever comes out of the driver is translated to `StoreError`.
- What must outlive the server ("replica") waits for its replicas on the connection that wrote it, in the same round
  trip. Fewer than asked for is an error like a lost reply: it is there, and perhaps not for long.

Every call names the hash tag of the partition that it is about.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors
from redis.crc import key_slot

from nsqdigest.base.errors import Applied, StoreError, Unreachable
from nsqdigest.config import redis_urls
from nsqdigest.store import scripts
from nsqdigest.store.servers.discovery import servers_of
from nsqdigest.store.servers.facts import RedisClock, ServerFacts
from nsqdigest.store.servers.node import Command, Node
from nsqdigest.store.servers.translation import translate

if TYPE_CHECKING:
    from nsqdigest.config import Redis as RedisSettings

_A_SENTINEL = "is a Sentinel; write redis+sentinel://HOST,HOST/NAME/0 in redis.url"
_STEPS = 4
"""How often one call may be sent on its way: to another server, or with its script."""
_WAIT_PART = 0.5
"""Of the time-out: what replicas get to confirm, so that their number is heard before the time-out."""

# After these it is asked again who has the partition.
_DOUBTFUL = frozenset(
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
        self._wait_ms = max(1, int(settings.timeout_ms * _WAIT_PART))
        self._slots: dict[bytes, int] = {}
        self._under_way: set[asyncio.Task[list[Any]]] = set()
        self._together: dict[Node, tuple[list[Sequence[Command]], asyncio.Task[list[list[Any]]]]] = {}
        self.clock = RedisClock()
        self.on_request: Callable[[str, float], None] | None = None
        """Is told how long a script's answer took, in seconds, or its failure."""
        self.doubted = asyncio.Event()
        """A server did not answer as it should: perhaps another has its place, or it has lost something."""

    # -- what the servers say of themselves

    async def facts(self) -> list[ServerFacts]:
        """Of every primary. Raises `Unreachable` where one of them must not be used."""
        facts = await self.unjudged_facts()
        for each in facts:
            if refusal := each.refusal(self._kind, self._durability):
                raise Unreachable(refusal)
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
        """What may cost events some day, each said once."""
        said: dict[str, list[str]] = {}
        for each in facts:
            for warning in each.warnings(self._replicas):
                said.setdefault(warning, []).append(each.name)
        return [warning if self._kind == "single" else f"{', '.join(at)}: {warning}" for warning, at in said.items()]

    async def _facts_of(self, node: Node) -> ServerFacts:
        sections = (b"server", b"replication", b"memory", b"persistence")
        asked: list[Command] = [[b"TIME"], *([b"INFO", section] for section in sections)]
        answers = await self._in_a_task(self._at(node, asked))
        if isinstance(answers[1], bytes) and re.search(rb"^(redis|server)_mode:sentinel", answers[1], re.MULTILINE):
            raise StoreError("redis-mode", f"{node} {_A_SENTINEL}", Applied.NO)
        clock, *told = _all(answers)
        self.clock.heard(int(clock[0]) * 1000 + int(clock[1]) // 1000)
        lines = [line.partition(":") for section in told for line in section.decode().splitlines()]
        names = (b"appendfsync", b"save")
        settings: dict[str, str] | None = {}
        for answer in await self._in_a_task(self._at(node, [[b"CONFIG", b"GET", name] for name in names])):
            if settings is None or not isinstance(answer, list) or len(answer) != len(names):
                settings = None  # not allowed, or not known: some services have no CONFIG
            else:
                settings[answer[0].decode()] = answer[1].decode()
        facts = ServerFacts.of(str(node), {name: value for name, _, value in lines}, settings)
        if facts.role == "slave" and self._kind != "single":
            await self._servers.doubt(node)
            raise StoreError("redis-readonly", f"{node} is a replica by now", Applied.NO)
        return facts

    # -- calls

    async def run(
        self, tag: bytes, name: str, keys: Sequence[bytes], arguments: Command, *, durable: bool = False
    ) -> list[Any]:
        """Runs a script of lua/. Its keys are all of the partition that the tag names. `durable`: the caller will FIN
        or send a digest on this answer, so wait for the replicas that `redis.durability` asks for. Such a script writes
        at each call, a repeated one too: WAIT returns at once on a connection that wrote nothing."""
        script = scripts.load(name)
        unit: list[Command] = [[b"EVALSHA", script.sha, len(keys), *keys, *arguments]]
        waits = durable and self._replicas > 0
        if waits:
            unit.append([b"WAIT", self._replicas, self._wait_ms])
        sent_s = time.perf_counter()
        try:
            answers = await self._in_a_task(self._call(self._slot(tag), unit, script))
        finally:
            if self.on_request is not None:
                self.on_request(name, time.perf_counter() - sent_s)
        if waits and answers[1] < self._replicas:
            confirmed = f"{answers[1]} of {self._replicas} replicas confirmed within {self._wait_ms} ms"
            raise StoreError("redis-replicas", f"{name}: {confirmed}")
        return answers[0]  # type: ignore[no-any-return]

    async def send(self, tag: bytes, commands: Sequence[Command]) -> list[Any]:
        """Commands that read: one round trip, but for those whose keys are on their way to another server."""
        return await self._in_a_task(self._read(self._slot(tag), commands))

    async def send_together(self, tag: bytes, commands: Sequence[Command]) -> list[Any]:
        """Small commands that read: what is asked of a server in one moment, about whatever partitions, goes in one
        round trip."""
        return await self._in_a_task(self._read_together(self._slot(tag), commands))

    async def close(self, within_s: float) -> None:
        """Lets what was sent come to its end, within reason, then closes the connections."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=within_s)
        await self._servers.close()

    def _slot(self, tag: bytes) -> int:
        if tag not in self._slots:
            self._slots[tag] = key_slot(tag)
        return self._slots[tag]

    async def _in_a_task(self, call: Coroutine[Any, Any, list[Any]]) -> list[Any]:
        """Its own task: the caller may be cancelled, the call may not. (Before Python 3.12 it could not even be ended
        so: `wait_for`, which the driver uses, now and then swallows a cancellation.)"""
        task = asyncio.ensure_future(call)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[list[Any]]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: nobody may be waiting for it any more

    async def _read(self, slot: int, commands: Sequence[Command]) -> list[Any]:
        answers = await self._at(await self._servers.of(slot), commands)
        for number, answer in enumerate(answers):
            if isinstance(answer, redis_errors.AskError):
                answers[number] = (await self._call(slot, commands[number : number + 1]))[0]
        return _all(answers)

    async def _read_together(self, slot: int, commands: Sequence[Command]) -> list[Any]:
        node = await self._servers.of(slot)
        if node not in self._together:
            self._together[node] = [], asyncio.ensure_future(self._exchange_parts(node))
        parts, exchange = self._together[node]
        number = len(parts)
        parts.append(commands)
        answers = (await asyncio.shield(exchange))[number]
        if any(isinstance(answer, redis_errors.AskError) for answer in answers):
            return await self._read(slot, commands)
        return _all(answers)

    async def _exchange_parts(self, node: Node) -> list[list[Any]]:
        await asyncio.sleep(0)  # whoever asks in this moment is heard
        parts, _ = self._together.pop(node)
        answers = iter(await self._at(node, [command for commands in parts for command in commands]))
        return [[next(answers) for _ in commands] for commands in parts]

    async def _call(self, slot: int, unit: Sequence[Command], script: scripts.Script | None = None) -> list[Any]:
        """What must stay together: a command, or a script and what waits for its replicas. The first one decides."""
        node = await self._servers.of(slot)
        before: list[Command] = []
        answers: list[Any] = []
        for _ in range(_STEPS):
            answered = await self._at(node, [*before, *unit], script)
            _all(answered[: len(before)], script)
            answers = answered[len(before) :]
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
        return _all(answers, script)

    async def _at(self, node: Node, commands: Sequence[Command], script: scripts.Script | None = None) -> list[Any]:
        """One exchange; what was refused stands among the answers."""
        try:
            answers = await node.exchange(commands)
        except Exception as error:
            translated = translate(error, script)
            await self._doubt(node, translated)
            raise translated from error
        for answer in answers:
            if isinstance(answer, redis_errors.ResponseError) and not isinstance(answer, redis_errors.AskError):
                await self._doubt(node, translate(answer, script))
        return answers

    async def _doubt(self, node: Node, error: StoreError) -> None:
        if error.reason in _DOUBTFUL:
            self.doubted.set()
            await self._servers.doubt(node)


def _all(answers: list[Any], script: scripts.Script | None = None) -> list[Any]:
    """The answers, unless one of them is an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise translate(answer, script) from answer
    return answers
