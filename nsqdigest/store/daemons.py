"""The daemons of a namespace, as they make themselves known to each other in partition 0 (lua/upkeep/check_in.lua).

For people, and for a changed policy: no daemon gives waiting timelines its times while another one has another policy.
An entry that no version wrote is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from nsqdigest.store.namespace import Namespace

KNOWN_FOR_MS = 60_000
"""So long after it was seen last a daemon is taken to run."""
_FIELD = re.compile(rb"(\d{1,15}) (.+)", re.DOTALL)


class Told(msgspec.Struct, kw_only=True, frozen=True):
    """What a daemon tells of itself. A version that knows more fields may write them."""

    host: str = ""
    pid: int = 0
    version: str = ""
    config_hash: str = ""
    """Of what it works by: equal settings, equal hash, within one version."""
    started_ms: int = 0
    policies: dict[str, str] = msgspec.field(default_factory=dict)
    """By route, a mark of the policy that scores its timelines (`Rescoring.marks`)."""


class Known(NamedTuple):
    id: str
    seen_ms: int
    told: Told


class Daemons:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._key = namespace.tags[0] + b"daemons"

    async def check_in(self, daemon_id: str, told: Told) -> list[Known]:
        """Returns all that are known, this one among them."""
        return await self._call(daemon_id, msgspec.json.encode(told))

    async def say_goodbye(self, daemon_id: str) -> None:
        await self._call(daemon_id, b"")

    async def _call(self, daemon_id: str, text: bytes) -> list[Known]:
        arguments: list[bytes | str | int] = [b"", daemon_id, text, KNOWN_FOR_MS]
        _, *flat = await self._namespace.run(0, "check_in", [self._key], arguments)
        return _sorted(_known(each, int(seen), said) for each, seen, said in zip(*[iter(flat)] * 3, strict=True))

    async def read(self, now_ms: int) -> list[Known]:
        """For a command: those that were seen lately."""
        (flat,) = await self._namespace.send(0, [[b"HGETALL", self._key]])
        found = ((each, _FIELD.fullmatch(field)) for each, field in zip(flat[::2], flat[1::2], strict=True))
        known = (_known(each, int(match[1]), match[2]) for each, match in found if match)
        return [each for each in _sorted(known) if abs(now_ms - each.seen_ms) < KNOWN_FOR_MS]


def _known(daemon_id: bytes, seen_ms: int, text: bytes) -> Known | None:
    try:
        return Known(daemon_id.decode(), seen_ms, msgspec.json.decode(text, type=Told))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _sorted(found: Iterable[Known | None]) -> list[Known]:
    return sorted(
        (each for each in found if each is not None), key=lambda each: (each.told.host, each.told.started_ms, each.id)
    )
