"""The commands that a Redis user must be allowed, and what to change where some are refused.

The daemon asks at its start, the doctor at each run. Asking runs none of the commands (lua/reading/rights.lua).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from nsqdigest.config import redis_urls

if TYPE_CHECKING:
    from nsqdigest.config import Redis as RedisSettings

KEY = "@"
"""Stands for a key of the namespace in a command."""
_EVERYWHERE = (
    "client setname nsqdigest", "info server", "time", "evalsha 0 0", "script load 0",
    "type @", "exists @", "unlink @", "rename @ @", "renamenx @ @", "pexpire @ 1", "pttl @",
    "get @", "incr @", "incrby @ 1", "decr @",
    "hget @ f", "hmget @ f", "hgetall @", "hset @ f v", "hsetnx @ f v", "hdel @ f", "hexists @ f", "hlen @",
    "hincrby @ f 1", "hscan @ 0",
    "zadd @ 1 m", "zrem @ m", "zcard @", "zcount @ 0 1", "zscore @ m", "zmscore @ m", "zrange @ 0 1",
    "zrangebyscore @ 0 1", "zremrangebyrank @ 0 1",
)  # fmt: skip
_WITH_A_DATABASE = ("select 1",)
_WITH_REPLICAS = ("wait 1 1",)
_IN_A_CLUSTER = ("asking", "cluster slots", "cluster info")
ALL_RIGHTS = (*_EVERYWHERE, *_WITH_A_DATABASE, *_WITH_REPLICAS, *_IN_A_CLUSTER)
"""The rights that docs/redis.md lists."""
_WITH_SUBCOMMANDS = ("client", "script", "cluster")


class Rights(NamedTuple):
    """The commands that a daemon with these settings uses."""

    user: str
    namespace: str
    commands: tuple[str, ...]

    @classmethod
    def needed_by(cls, settings: RedisSettings) -> Rights:
        url = redis_urls.read(settings.url)
        parts = urlsplit(settings.url)
        if url.kind == "single":
            login = parts.username
            has_database = "db=" in parts.query or (parts.scheme != "unix" and parts.path.strip("/") not in ("", "0"))
        else:
            login = url.login.partition(":")[0].rstrip("@")
            has_database = url.database != 0
        commands = (
            *_EVERYWHERE,
            *(_WITH_A_DATABASE if has_database else ()),
            *(_WITH_REPLICAS if settings.durability == "replica" else ()),
            *(_IN_A_CLUSTER if url.kind == "cluster" else ()),
        )
        return cls(unquote(login or "") or "default", settings.namespace, commands)

    def missing(self, refused: Collection[str]) -> Missing | None:
        """`refused`: those of `commands` that the user may not send. Returns None where there are none."""
        if not refused:
            return None
        of_keys = {command for command in self.commands if KEY in command.split()}
        if of_keys <= set(refused):
            pattern = f"~{{{self.namespace}:*"
            return Missing(
                "may not use the keys of this namespace",
                f"ACL SETUSER {self.user} {pattern} and the commands that docs/redis.md lists",
            )
        rights = [right_of(command) for command in self.commands if command in refused]
        return Missing(
            f"may not send {', '.join(rights)}", f"ACL SETUSER {self.user} {' '.join(f'+{right}' for right in rights)}"
        )


class Missing(NamedTuple):
    """What the user may not do, and the command that grants it."""

    detail: str
    remedy: str


def right_of(command: str) -> str:
    """The name of the right in an ACL: script|load for "script load 0"."""
    words = command.split()
    return "|".join(words[:2]) if words[0] in _WITH_SUBCOMMANDS else words[0]
