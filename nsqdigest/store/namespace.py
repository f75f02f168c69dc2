"""A namespace of Redis: its partitions, the keys and scripts in them, and the two ways to open it. The only caller of
scripts.

Invariants:
- Every change of state is one script, atomic, in one hash slot; every key it touches is declared.
- All keys of a partition share its hash tag, so they are in one slot of a Cluster and one script can use them together.
- A timeline's partition follows from its name alone, whatever its route: a route that adopts it finds it in the same
  partition.
- Nothing here tries again, and no call is cancelled once it was sent (servers/client.py): what fails is a `StoreError`,
  and the caller decides.
- One that is read-only runs no script but those of lua/reading.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from nsqdigest.base.errors import Applied, StoreError, StoreMismatch, Unreachable, remedy_of_redis
from nsqdigest.store import scripts
from nsqdigest.store.damage import damaged, number
from nsqdigest.store.keys import SCHEMA, DeadKeys, Keys, mismatch
from nsqdigest.store.servers.client import RedisClient
from nsqdigest.store.servers.facts import ServerFacts, StoreFacts
from nsqdigest.store.servers.resp import script_call
from nsqdigest.store.servers.rights import Rights

if TYPE_CHECKING:
    from nsqdigest.base.metrics import Metrics
    from nsqdigest.config import Redis as RedisSettings
    from nsqdigest.store.servers.facts import RedisClock
    from nsqdigest.store.servers.resp import Command, Words

_CONNECTIONS_TO_READ = 8


class Layout(NamedTuple):
    """What a namespace in Redis was made with."""

    schema: int
    partitions: int


class _KeysOfRoutes(dict[tuple[int, str], Keys]):
    """Made when they are first asked for."""

    def __init__(self, tags: Sequence[bytes]) -> None:
        self._tags = tags

    def __missing__(self, place: tuple[int, str]) -> Keys:
        partition, route = place
        self[place] = Keys(self._tags[partition], route)
        return self[place]


class Namespace:
    def __init__(self, settings: RedisSettings, connections: int, *, read_only: bool = False) -> None:
        self._settings = settings
        self._client = RedisClient(settings, connections)
        self.partitions = settings.partition_count
        self.tags = [f"{{{settings.namespace}:{partition}}}:".encode() for partition in range(self.partitions)]
        self.dead_keys = [DeadKeys(tag) for tag in self.tags]
        self.keys: Mapping[tuple[int, str], Keys] = _KeysOfRoutes(self.tags)
        """By partition and route, configured or not."""
        self.epochs: list[str] = []
        """A random text of each partition, written when it was empty. It changes when the partition was emptied."""
        self.layout: Layout | None = None
        """As found by `open_to_read`. None: no daemon ever used the namespace."""
        self._unfit = ""
        """Why nothing may be written, where Redis has become what a start would refuse. "": it is fit."""
        self._read_only = read_only

    # -- the two ways to open it

    async def open_to_serve(self, routes: Iterable[str]) -> StoreFacts:
        """Checks the servers and the user's rights, then writes the layout where there is none yet.

        Raises `Unreachable`, `StoreMismatch` or `StoreError` where going on would do harm.
        """
        servers = await self._client.facts()
        await self.require_rights()
        self.epochs = await self._agree_on_layout(routes)
        return StoreFacts(servers, self._client.warnings(servers))

    async def check_again(self, routes: Iterable[str]) -> list[ServerFacts]:
        """Checks the servers and the layout while it serves. Raises `Unreachable` or `StoreMismatch` where a start
        would refuse them: `run` then refuses every script until a check passes."""
        try:
            servers = await self._client.facts()
            self.epochs = await self._agree_on_layout(routes)
        except (Unreachable, StoreMismatch) as error:
            self._unfit = str(error)
            raise
        self._unfit = ""
        return servers

    async def open_to_read(self) -> None:
        """Checks the servers and the layout, and writes nothing. Raises like `open_to_serve`."""
        await self._client.facts()
        self.layout = await self.stored_layout()
        if self.layout is not None:
            self._refuse_mismatch(self.layout)

    async def close(self, within_s: float) -> None:
        """Waits for calls under way, no longer than `within_s`, then closes the connections."""
        await self._client.close(within_s)

    async def require_rights(self) -> None:
        """Before anything is written: a missing right would stop a script half-way, at some later time."""
        needed = Rights.needed_by(self._settings)
        missing = needed.missing(await self.refused(needed.commands) or ())
        if missing is not None:
            raise StoreError("redis-auth", f"user {needed.user} {missing.detail}", Applied.NO, missing.remedy)

    async def _agree_on_layout(self, routes: Iterable[str]) -> list[str]:
        """Returns the epoch of each partition. Where the first one has another layout, the others stay as they are."""
        first = await self._agree(0, routes)  # operators read the routes of partition 0
        return [first, *await asyncio.gather(*(self._agree(number, ()) for number in range(1, self.partitions)))]

    async def _agree(self, partition: int, routes: Iterable[str]) -> str:
        tag = self.tags[partition]
        arguments: Words = [b"", SCHEMA, self.partitions, uuid4().hex, *routes]
        stored = await self._run(tag, "hello", [tag + b"layout", tag + b"routes"], arguments)
        self._refuse_mismatch(Layout(*(number(each, tag + b"layout") for each in stored[:2])))
        return str(stored[2].decode())

    def _refuse_mismatch(self, layout: Layout) -> None:
        if refusal := mismatch(self._settings.namespace, *layout, self.partitions):
            raise StoreMismatch(refusal)

    # -- names

    def partition_of(self, timeline: bytes) -> int:
        return 0 if self.partitions == 1 else zlib.crc32(timeline) % self.partitions

    # -- calls to one partition

    async def run(
        self, partition: int, name: str, keys: Words, arguments: Words, *, durable: bool = False
    ) -> list[Any]:
        """Runs a script on keys of one partition. `durable`: the caller will FIN, or send a digest, on this answer, so
        wait for the replicas that redis.durability asks for. Raises `StoreError` unsent while the store is unfit."""
        if self._unfit:
            raise StoreError("redis-unfit", self._unfit, Applied.NO)
        if self._read_only and not scripts.only_reads(name):
            raise AssertionError(f"{name} writes, and the namespace is read-only")
        return await self._run(self.tags[partition], name, keys, arguments, durable=durable)

    async def _run(self, tag: bytes, name: str, keys: Words, arguments: Words, *, durable: bool = False) -> list[Any]:
        script = scripts.load(name)
        return await self._client.run(tag, script, script_call(script.sha, keys, arguments), durable=durable)

    async def send(self, partition: int, commands: Sequence[Command]) -> list[Any]:
        """Commands that read keys of one partition, in one round trip."""
        return await self._client.send(self.tags[partition], commands)

    async def send_together(self, partition: int, commands: Sequence[Command]) -> list[Any]:
        """The same for small commands: those sent in one turn of the loop to one server share a round trip."""
        return await self._client.send_together(self.tags[partition], commands)

    # -- the servers

    @property
    def clock(self) -> RedisClock:
        return self._client.clock

    @property
    def needs_check(self) -> asyncio.Event:
        """Set when the servers should be checked: one did not answer as it should, or has lost something."""
        return self._client.needs_check

    def allow(self, connections: int) -> None:
        """To one server, at least so many."""
        self._client.allow(connections)

    def time_scripts(self, metrics: Metrics) -> None:
        """From now on observes how many seconds each script takes, failures included."""
        self._client.times = {name: metrics.histogram("store_request_seconds", script=name) for name in scripts.names()}

    async def facts(self) -> list[ServerFacts]:
        """Of every primary, whether a daemon could use it or not."""
        return await self._client.unjudged_facts()

    async def stored_layout(self) -> Layout | None:
        """None where no daemon ever used the namespace."""
        key = self.tags[0] + b"layout"
        ((schema, partitions),) = await self.send(0, [[b"HMGET", key, b"schema", b"partitions"]])
        return None if schema is None or partitions is None else Layout(number(schema, key), number(partitions, key))

    async def refused(self, commands: Sequence[str]) -> set[str] | None:
        """Which of these the user may not send, on any server that has a partition. None: this Redis cannot check."""
        a_key = b"rights"
        answers = await asyncio.gather(
            *(self.run(number, "rights", [], [tag + a_key, *commands]) for number, tag in enumerate(self.tags))
        )
        if not all(can_tell for can_tell, *_ in answers):
            return None
        return {command.decode() for _, *refused in answers for command in refused}


@asynccontextmanager
async def reading(settings: RedisSettings, source: str) -> AsyncIterator[Namespace]:
    """A namespace that is open to read, for a command that looks into Redis. `source`: the file of `settings`.

    Raises `Unreachable` where Redis cannot be read, and `StoreMismatch` where the layout does not fit the file.
    """
    namespace = Namespace(settings, _CONNECTIONS_TO_READ, read_only=True)
    try:
        await namespace.open_to_read()
        yield namespace
    except StoreError as error:
        if error.is_damage:
            raise damaged(error) from error
        raise Unreachable(
            f"{settings.shown_url} cannot be read: {error.what}; {error.remedy or remedy_of_redis(source)}"
        ) from error
    finally:
        await namespace.close(0)
