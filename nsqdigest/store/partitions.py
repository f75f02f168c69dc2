"""The partitions of a namespace: which one a timeline is in, what its keys are called there, and a call to one of them.

All keys of a partition share its hash tag, so they are in one slot of a Cluster, and a script can touch them together.
A timeline's partition follows from its name alone, whatever its route, so a route that adopts it finds it at home.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nsqdigest.base.errors import Applied, StoreError
from nsqdigest.store.keys import DeadKeys, Keys

if TYPE_CHECKING:
    from nsqdigest.store.servers.client import RedisClient

_Words = Sequence[bytes | str | int]


class Partitions:
    def __init__(self, namespace: str, count: int, client: RedisClient) -> None:
        self.count = count
        self.tags = [f"{{{namespace}:{partition}}}:".encode() for partition in range(count)]
        self._client = client
        self.unfit = ""
        """Why nothing may be written, where Redis has become what a start would refuse. "": it is fit."""
        self._keys: dict[tuple[int, str], Keys] = {}
        self.dead = [DeadKeys(tag) for tag in self.tags]

    def of(self, timeline: bytes) -> int:
        return 0 if self.count == 1 else zlib.crc32(timeline) % self.count

    def keys(self, partition: int, route: str) -> Keys:
        """Of any route, configured or not."""
        found = self._keys.get((partition, route))
        if found is None:
            found = self._keys[partition, route] = Keys(self.tags[partition], route)
        return found

    async def run(
        self, partition: int, name: str, keys: Sequence[bytes], arguments: _Words, *, must_last: bool = False
    ) -> list[Any]:
        """Runs a script on keys of one partition. Raises `StoreError` unsent while the store is unfit."""
        if self.unfit:
            raise StoreError("redis-unfit", self.unfit, Applied.NO)
        return await self._client.run(self.tags[partition], name, keys, arguments, must_last=must_last)

    async def refused(self, commands: Sequence[str]) -> set[str] | None:
        """Which of these the user may not send, on any server that has a partition. None: Redis cannot tell."""
        a_key = b"rights"
        answers = await asyncio.gather(
            *(self.run(number, "rights", [], [tag + a_key, *commands]) for number, tag in enumerate(self.tags))
        )
        if not all(can_tell for can_tell, *_ in answers):
            return None
        return {command.decode() for _, *refused in answers for command in refused}

    async def send(self, partition: int, commands: Sequence[_Words]) -> list[Any]:
        """Commands on keys of one partition, in one round trip."""
        return await self._client.send(self.tags[partition], commands)

    async def send_together(self, partition: int, commands: Sequence[_Words]) -> list[Any]:
        """The same for small commands: what is asked in one moment of any partitions shares a round trip."""
        return await self._client.send_together(self.tags[partition], commands)
