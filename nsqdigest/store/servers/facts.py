"""Facts of a Redis server from INFO and CONFIG, and its clock.

`refusal` and `warnings` judge the facts (pure): a start refuses what would break a promise, with the remedy, and warns
of what may cost events some day.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nsqdigest.base.errors import Applied, StoreError

LOWEST_VERSION = (6, 2)
_DRIFT = 0.0005
"""The share by which two clocks may run apart."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    name: str
    version: str
    mode: str
    """standalone or cluster."""
    role: str
    run_id: str
    """Changes when the server restarts."""
    replication_id: str
    """Changes when the server takes the data of another, or is promoted."""
    replicas: int
    maxmemory_policy: str
    maxmemory_bytes: int
    persistent: bool | None
    """None where the user may not ask."""
    appendfsync: str | None

    @classmethod
    def of(cls, name: str, info: Mapping[str, str], settings: Mapping[str, str] | None) -> ServerFacts:
        """`info` from INFO; `settings` from CONFIG GET, None where the user may not ask."""
        appends = info.get("aof_enabled") == "1"
        # Valkey has server_mode for redis_mode; its redis_version is the one of Redis that it is compatible with.
        version, valkey = info.get("redis_version", "unknown"), info.get("valkey_version")
        return cls(
            name=name,
            version=f"{version} (Valkey {valkey})" if valkey else version,
            mode=info.get("redis_mode") or info.get("server_mode", "standalone"),
            role=info.get("role", "unknown"),
            run_id=info.get("run_id", ""),
            replication_id=info.get("master_replid", ""),
            replicas=int(info.get("connected_slaves", "0")),
            maxmemory_policy=info.get("maxmemory_policy", "noeviction"),
            maxmemory_bytes=int(info.get("maxmemory", "0")),
            persistent=True if appends else None if settings is None else bool(settings.get("save")),
            appendfsync=("no" if not appends else None if settings is None else settings.get("appendfsync", "no")),
        )

    def why_readonly(self) -> StoreError | None:
        """Why a replica takes no write, until a failover makes it a primary: it is waited for like a server that is
        away."""
        if self.role != "slave":
            return None
        what, remedy = f"redis.url names a replica ({self.name})", "name its primary, unless it is about to become one"
        return StoreError("redis-readonly", what, Applied.NO, remedy)

    def refusal(self, kind: Literal["single", "sentinel", "cluster"], durability: str) -> str | None:
        """Why this server must not be used, and the remedy."""
        number = re.match(r"(\d+)\.(\d+)", self.version)
        if number is not None and (int(number[1]), int(number[2])) < LOWEST_VERSION:
            return f"{self.name} is Redis {self.version}; use 6.2 or newer"
        if self.mode == "cluster" and kind == "single":
            return f"{self.name} is a server of a Cluster; write redis+cluster:// instead of redis:// in redis.url"
        if durability == "fsync" and self.appendfsync is None:
            return (
                f'redis.durability is "fsync", and this user may not ask {self.name} for its appendfsync; give it '
                '+config|get, or write durability = "reply"'
            )
        if durability == "fsync" and self.appendfsync != "always":
            return (
                f'redis.durability is "fsync", and {self.name} does not write each change to disk before it answers; '
                'set appendonly yes and appendfsync always there, or write durability = "reply"'
            )
        return None

    def warnings(self, replicas_wanted: int = 0) -> list[str]:
        found = []
        if self.maxmemory_policy != "noeviction":
            found.append(
                f"maxmemory-policy is {self.maxmemory_policy}: Redis may throw away events that are not delivered yet; "
                "set maxmemory-policy noeviction"
            )
        if self.persistent is False:
            found.append(
                "neither append-only file nor snapshots are on: a restart of Redis loses what waits; set appendonly yes"
            )
        if not self.maxmemory_bytes:
            found.append(
                "maxmemory is not set: a flood of timelines could take all of the machine's memory; set maxmemory"
            )
        if self.replicas < replicas_wanted:
            found.append(
                f"redis.replicas is {replicas_wanted}, and {self.replicas} are connected: until they are, nothing is "
                "taken in and no digest is sent"
            )
        if self.replicas > replicas_wanted > 0:
            found.append(
                f"redis.replicas is {replicas_wanted}, and {self.replicas} are connected: a failover can promote one "
                f"that did not confirm, which loses events or sends them twice; write replicas = {self.replicas}"
            )
        return found


class StoreFacts(NamedTuple):
    """The servers at a start, and what to warn of."""

    servers: list[ServerFacts]
    warnings: list[str]

    @property
    def version(self) -> str:
        return ", ".join(sorted({server.version for server in self.servers}))


class RedisClock:
    """Estimates Redis' clock between replies; never ahead of it, but for drift.

    A reply was stamped before it arrived, so each gives a lower bound, and the highest recent one is the best. A bound
    far below it means that the clock was set back: the estimate follows.
    """

    _SET_BACK_MS = 1000

    def __init__(self) -> None:
        self._ahead_ms: float | None = None
        self._updated_ms = 0.0

    def observe(self, redis_now_ms: int) -> None:
        now_ms = time.monotonic() * 1000
        ahead_ms = redis_now_ms - now_ms
        if self._ahead_ms is not None:
            best_ms = self._ahead_ms - (now_ms - self._updated_ms) * _DRIFT
            if ahead_ms < best_ms < ahead_ms + self._SET_BACK_MS:
                ahead_ms = best_ms
        self._ahead_ms, self._updated_ms = ahead_ms, now_ms

    def now_ms(self) -> int:
        if self._ahead_ms is None:
            raise StoreError("redis-connection", "the clock of Redis was not read yet")
        return int(time.monotonic() * 1000 + self._ahead_ms)


class SetBack:
    """Finds how far a server's clock went back between two looks at it, beside a monotonic clock."""

    _LEAST_MS = 1000

    def __init__(self) -> None:
        self._seen: tuple[float, int] | None = None

    def observe(self, sent_s: float, answered_s: float, server_ms: int) -> int:
        """Returns how far (ms), or 0. `sent_s`, `answered_s`: the question and the answer, by the monotonic clock.

        Between two looks at least as much time passed as between an answer and the next question.
        """
        seen, self._seen = self._seen, (answered_s, server_ms)
        if seen is None:
            return 0
        back_ms = round(seen[1] + 1000 * (sent_s - seen[0]) * (1 - _DRIFT)) - server_ms
        return back_ms if back_ms >= self._LEAST_MS else 0
